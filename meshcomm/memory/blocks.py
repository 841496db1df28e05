"""Blocks of bytes: arrays as bytes and back, and new blocks."""

from typing import Any

import numpy as np

from meshcomm._types import Array, Bytes
from meshcomm.memory.pools import allocate, allocate_unshared

_BYTE = np.dtype(np.uint8)


def as_bytes(block: Array) -> Bytes:
    """Return the bytes of a C-contiguous *block*, sharing its memory. Local."""
    base = block.base
    if type(base) is np.ndarray and base.dtype is _BYTE and base.nbytes == block.nbytes and base.flags.c_contiguous:
        return base.reshape(-1) if base.ndim != 1 else base  # a block that was made by `as_block`
    if block.dtype.itemsize == 0:
        return np.empty(0, dtype=np.uint8)
    return block.reshape(-1).view(np.uint8)


def as_block(data: Bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return *data* as a C-contiguous array, sharing its memory. Local."""
    return np.ndarray(shape, dtype, data)


def new_bytes(size: int) -> Bytes:
    """Return *size* new bytes, for a block: in memory that the node's ranks share, if there is such. Local."""
    shared = allocate(size)
    return allocate_unshared(size) if shared is None else shared


def new_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new C-contiguous block of any content, as `new_bytes`. Local."""
    return as_block(new_bytes(nbytes(shape, dtype.itemsize)), shape, dtype)


def nbytes(shape: tuple[int, ...] | None, itemsize: int) -> int:
    """Return the bytes of a block of *shape*; None is no block. Local."""
    if shape is None:
        return 0
    for n in shape:
        itemsize *= n
    return itemsize


NOTHING: Bytes = np.empty(0, dtype=np.uint8)
