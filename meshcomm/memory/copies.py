"""Copies between blocks: where boxes lie in memory, and copies of any array."""

from typing import NamedTuple

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm._tuning import COPIED_BY_NUMPY
from meshcomm._types import Array, Indices
from meshcomm.memory.blocks import as_bytes, new_block


class Placed(NamedTuple):
    """Boxes in memory: the region, the byte offset, and per axis the stride in bytes and the extent."""

    regions: Indices
    offsets: Indices
    strides: Indices
    extents: Indices


def _strides(shape: tuple[int, ...], itemsize: int) -> Indices:
    strides = np.ones(len(shape), dtype=np.intp)
    if len(shape) > 1:
        strides[:-1] = np.cumprod(shape[:0:-1])[::-1]
    return strides * itemsize


def placed(region: int, shape: tuple[int, ...] | None, itemsize: int, starts: Indices, stops: Indices) -> Placed:
    """Return where boxes lie in the block of *shape* that is this *region*. Local."""
    strides = _strides(shape or (1,) * starts.shape[1], itemsize)
    regions = np.full(len(starts), region, dtype=np.intp)
    return Placed(regions, starts @ strides, np.broadcast_to(strides, starts.shape), stops - starts)


def joined(sides: list[Placed], itemsizes: list[int]) -> tuple[Placed, int]:
    """Return boxes of blocks of several dtypes as boxes of bytes, with as many axes as the most of them. Local."""
    if len(sides) == 1:
        return sides[0], itemsizes[0]
    ndim = max(boxes.extents.shape[1] for boxes in sides) + 1
    strides, extents = [], []
    for boxes, itemsize in zip(sides, itemsizes, strict=True):
        lacking = ((0, 0), (ndim - 1 - boxes.extents.shape[1], 1))
        strides.append(np.pad(boxes.strides, lacking, constant_values=1))
        extents.append(np.pad(boxes.extents, lacking, constant_values=1))
        extents[-1][:, -1] = itemsize
    regions, offsets = (np.concatenate([boxes[i] for boxes in sides]) for i in (0, 1))
    return Placed(regions, offsets, np.concatenate(strides), np.concatenate(extents)), 1


def copy_strided(array: Array, block: Array) -> None:
    """Copy an *array* of any strides, none of its axes empty, into a C-contiguous *block*, byte by byte. Local."""
    # From its lowest byte on: an axis that runs backwards is run the other way, in both.
    strides = np.array(array.strides, dtype=np.intp)
    lowest = array[tuple(slice(None, None, -1) if stride < 0 else slice(None) for stride in array.strides)]
    extents = np.array(array.shape, dtype=np.intp)
    size = int(((extents - 1) * np.abs(strides)).sum()) + array.itemsize
    first = lowest[(slice(1),) * array.ndim].reshape(1).view(np.uint8)
    memory = np.lib.stride_tricks.as_strided(first, (size,), (1,), writeable=False)
    start = int(((extents - 1) * np.where(strides < 0, -strides, 0)).sum())
    zero, offset = np.zeros(1, dtype=np.intp), np.array([start], dtype=np.intp)
    into = _strides(array.shape, array.itemsize)[None]
    copies = BoxCopies(
        [size], [block.nbytes], array.itemsize, zero, offset, strides[None], zero, zero, into, extents[None]
    )
    copies.run([memory], [as_bytes(block)])


def opaque(array: Array) -> Array:
    """Return *array* as elements without fields: NumPy copies structured ones field by field, not every bit. Local."""
    return array if array.dtype.names is None else array.view(np.dtype((np.void, array.dtype.itemsize)))


def exact_copy(array: Array) -> Array:
    """Return a C-contiguous copy of *array*, bit for bit. Local."""
    block = new_block(array.shape, array.dtype)
    if array.flags.c_contiguous or array.nbytes < COPIED_BY_NUMPY:
        opaque(block)[...] = opaque(array)
    else:
        copy_strided(array, block)
    return block
