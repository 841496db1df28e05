"""Copies between blocks: where boxes lie in memory, and exact copies of any array."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._tuning import OWN_COPY_FROM
from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.memory.blocks import as_bytes, new_block


class Strided(NamedTuple):
    """Boxes in regions of memory; each field has a row for each box."""

    regions: Indices  # (k,): which region each box is in
    offsets: Indices  # (k,): the byte of the region at which it begins
    strides: Indices  # (k, ndim): the bytes from one index to the next, per axis
    extents: Indices  # (k, ndim)


class BoxLoops(NamedTuple):
    """Boxes in the indices of a block. Each axis of a box is one loop, or several, one inside the other."""

    starts: Indices  # (k, ndim): where each box begins
    extents: Indices  # (k, ndim, loops): how often a loop of an axis runs, the outer loop first
    steps: Indices  # (k, ndim, loops): by how many indices of the axis it steps


def strided(
    region: int, shape: Shape | None, itemsize: int, loops: BoxLoops, order: tuple[int, ...] | None = None
) -> Strided:
    """Return where boxes lie in a block.

    Parameters
    ----------
    region: number of the region that is the block
    shape: shape of the block; None is a block without boxes
    itemsize: bytes of an element
    loops: boxes, in the indices of the block
    order: for each axis of *shape*, the axis of the memory that it is; None if they are in one order
    """
    boxes, ndim, depth = loops.extents.shape
    lengths = shape or (1,) * ndim
    if order is None:
        strides = _strides(lengths, itemsize)
    else:
        strides = _strides(tuple(lengths[order.index(axis)] for axis in range(ndim)), itemsize)[list(order)]
    in_bytes = (loops.steps * strides[:, None]).reshape(boxes, ndim * depth)
    regions = np.full(boxes, region, dtype=np.intp)
    return Strided(regions, loops.starts @ strides, in_bytes, loops.extents.reshape(boxes, ndim * depth))


def concatenated(parts: Sequence[Strided], ndim: int) -> Strided:
    """Return the boxes of all *parts*, perhaps none, with *ndim* axes or loops."""
    none, nothing = np.zeros(0, dtype=np.intp), np.zeros((0, ndim), dtype=np.intp)
    empty = Strided(none, none, nothing, nothing)
    return Strided(*(np.concatenate(columns) for columns in zip(empty, *parts, strict=True)))


def as_byte_boxes(sides: Sequence[Strided], itemsizes: Sequence[int]) -> tuple[Strided, int]:
    """Return the boxes of several tensors in one list, and its itemsize.

    Boxes of several tensors may have different numbers of axes and different itemsizes. So all get as many axes as the
    most of them has, and one more for the bytes of an item; the itemsize is 1.
    """
    if len(sides) == 1:
        return sides[0], itemsizes[0]
    ndim = max(boxes.extents.shape[1] for boxes in sides) + 1
    regions, offsets = (np.concatenate([boxes[i] for boxes in sides]) for i in (0, 1))
    strides, extents = np.ones((2, len(regions), ndim), dtype=np.intp)
    start = 0
    for boxes, itemsize in zip(sides, itemsizes, strict=True):
        count, axes = boxes.extents.shape
        if count:
            rows, columns = slice(start, start + count), slice(ndim - 1 - axes, ndim - 1)
            strides[rows, columns] = boxes.strides
            extents[rows, columns] = boxes.extents
            extents[rows, -1] = itemsize
            start += count
    return Strided(regions, offsets, strides, extents), 1


def _strides(shape: Shape, itemsize: int) -> Indices:
    strides = np.ones(len(shape), dtype=np.intp)
    if len(shape) > 1:
        strides[:-1] = np.cumprod(shape[:0:-1])[::-1]
    return strides * itemsize


def opaque(array: Array) -> Array:
    """Return *array* as elements without fields: NumPy copies structured ones field by field, not every bit."""
    return array if array.dtype.names is None else array.view(np.dtype((np.void, array.dtype.itemsize)))


def exact_copy(array: Array) -> Array:
    """Return a C-contiguous copy of *array*, bit for bit."""
    block = new_block(array.shape, array.dtype)
    if array.flags.c_contiguous or array.nbytes < OWN_COPY_FROM:
        opaque(block)[...] = opaque(array)
    else:
        copy_strided(array, block)
    return block


def contiguous(array: Array) -> Array:
    """Return *array* itself if it is C-contiguous, else a copy that is: a block of a slice may have gaps."""
    return array if array.flags.c_contiguous else exact_copy(array)


def copy_strided(array: Array, block: Array) -> None:
    """Copy an *array* of any strides, none of its axes empty, into a C-contiguous *block*, byte by byte."""
    # All offsets are from its lowest byte on, which is not its first element if an axis runs backwards.
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


def is_same_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays are one array in memory.

    >>> rows = np.zeros((2, 3))
    >>> is_same_memory(rows[1:], rows[-1:]), is_same_memory(rows[0], rows[1]), is_same_memory(rows, rows.view("i8"))
    (True, False, False)
    """
    if one.strides != other.strides or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(one.__array_interface__["data"][0] == other.__array_interface__["data"][0])
