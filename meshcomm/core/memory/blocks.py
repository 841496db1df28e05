"""Blocks as bytes: arrays as bytes and back, and memory for new blocks."""

import numpy as np

from meshcomm.core._tuning import MIN_UNMERGED_RANGE, POOLED_FROM
from meshcomm.core._types import Array, Bytes, DType, Shape
from meshcomm.core.memory import pools

NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_BYTE = np.dtype(np.uint8)


def as_bytes(block: Array) -> Bytes:
    """Return the bytes of a C-contiguous *block*, sharing its memory."""
    base = block.base
    if type(base) is np.ndarray and base.dtype is _BYTE and base.nbytes == block.nbytes and base.flags.c_contiguous:
        return base.reshape(-1) if base.ndim != 1 else base  # a block made by `as_block`
    if block.dtype.itemsize == 0:
        return np.empty(0, dtype=np.uint8)
    return block.reshape(-1).view(np.uint8)


def as_block(data: Bytes, shape: Shape, dtype: DType) -> Array:
    """Return *data* as a C-contiguous array, sharing its memory."""
    return np.ndarray(shape, dtype, data)


def new_bytes(size: int) -> Bytes:
    """Return *size* bytes of any value for a block, in memory that the node's ranks share if possible.

    The pool keeps the memory of large blocks for others of the same length. If the blocks of a loop shrink or grow, it
    would keep memory for each length, and take new memory in each turn. So large lengths are rounded up to one of 16
    in each power of two: by 6% at most.
    """
    length = size
    if size >= MIN_UNMERGED_RANGE:
        step = 1 << (size.bit_length() - 5)
        length = -(-size // step) * step
    block: Bytes | None = None if pools.shared is None else pools.shared.allocate(length)
    if block is None:
        if size <= POOLED_FROM:
            return np.empty(size, dtype=np.uint8)
        block = pools.allocate_unshared(length)
    return block if length == size else block[:size]


def new_block(shape: Shape, dtype: DType) -> Array:
    """Return a new uninitialized C-contiguous block, in memory of `new_bytes`."""
    size = block_bytes(shape, dtype.itemsize)
    try:
        return np.ndarray(shape, dtype, new_bytes(size))
    except OverflowError:
        raise MemoryError(
            f"a block of shape {shape} and dtype {dtype} has {size} bytes, more than any memory"
        ) from None


def block_bytes(shape: Shape | None, itemsize: int) -> int:
    """Return the bytes of a block of *shape*; 0 for None, which is no block."""
    if shape is None:
        return 0
    for n in shape:
        itemsize *= n
    return itemsize
