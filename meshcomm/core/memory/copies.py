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

    regions: Indices  # (k,): number of the region of each box
    offsets: Indices  # (k,): byte of the region at which the box begins
    strides: Indices  # (k, ndim): bytes from one index to the next, per axis
    extents: Indices  # (k, ndim)


class BoxLoops(NamedTuple):
    """Boxes in the indices of a block. Each axis of a box is one loop, or several, one inside the other."""

    starts: Indices  # (k, ndim): first index of each box
    extents: Indices  # (k, ndim, loops): turns of each loop of an axis, the outer loop first
    steps: Indices  # (k, ndim, loops): indices of the axis from one turn to the next


def strided(
    region: int, shape: Shape | None, itemsize: int, loops: BoxLoops, order: tuple[int, ...] | None = None
) -> Strided:
    """Return where boxes lie in a block.

    Parameters
    ----------
    region: number of the region that is the block
    shape: shape of the block; None if it has no boxes
    itemsize: bytes of an element
    loops: boxes, in the indices of the block
    order: for each axis of *shape*, its axis in memory; None if the axes are in the same order
    """
    count, ndim, loops_per_axis = loops.extents.shape
    lengths = shape or (1,) * ndim
    if order is None:
        strides = _strides(lengths, itemsize)
    else:
        strides = _strides(tuple(lengths[order.index(axis)] for axis in range(ndim)), itemsize)[list(order)]
    byte_strides = (loops.steps * strides[:, None]).reshape(count, ndim * loops_per_axis)
    regions = np.full(count, region, dtype=np.intp)
    return Strided(regions, loops.starts @ strides, byte_strides, loops.extents.reshape(count, ndim * loops_per_axis))


def concatenated(strided_boxes: Sequence[Strided], ndim: int) -> Strided:
    """Return all *strided_boxes*, perhaps none, as one; each has *ndim* axes or loops."""
    no_indices, no_rows = np.zeros(0, dtype=np.intp), np.zeros((0, ndim), dtype=np.intp)
    empty = Strided(no_indices, no_indices, no_rows, no_rows)
    return Strided(*(np.concatenate(columns) for columns in zip(empty, *strided_boxes, strict=True)))


def as_byte_boxes(boxes_of_tensors: Sequence[Strided], itemsizes: Sequence[int]) -> tuple[Strided, int]:
    """Return the boxes of several tensors as one, and its itemsize.

    Boxes of several tensors may have different numbers of axes and different itemsizes. So all get the largest number
    of axes, and one axis more for the bytes of an item; the itemsize is 1.
    """
    if len(boxes_of_tensors) == 1:
        return boxes_of_tensors[0], itemsizes[0]
    ndim = max(boxes.extents.shape[1] for boxes in boxes_of_tensors) + 1
    regions, offsets = (np.concatenate([boxes[i] for boxes in boxes_of_tensors]) for i in (0, 1))
    strides, extents = np.ones((2, len(regions), ndim), dtype=np.intp)
    start = 0
    for boxes, itemsize in zip(boxes_of_tensors, itemsizes, strict=True):
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
    """Return *array* with elements without fields: NumPy copies fields one by one, and not the bytes between them."""
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
    """Return *array* if it is C-contiguous, else a C-contiguous copy."""
    return array if array.flags.c_contiguous else exact_copy(array)


def copy_strided(array: Array, block: Array) -> None:
    """Copy an *array* of any strides, without empty axes, into a C-contiguous *block*, bit for bit."""
    # Offsets count from the byte with the lowest address; with negative strides this is not in the first element.
    strides = np.array(array.strides, dtype=np.intp)
    lowest = array[tuple(slice(None, None, -1) if stride < 0 else slice(None) for stride in array.strides)]
    extents = np.array(array.shape, dtype=np.intp)
    size = int(((extents - 1) * np.abs(strides)).sum()) + array.itemsize
    first_byte = lowest[(slice(1),) * array.ndim].reshape(1).view(np.uint8)
    memory = np.lib.stride_tricks.as_strided(first_byte, (size,), (1,), writeable=False)
    start = int(((extents - 1) * np.where(strides < 0, -strides, 0)).sum())
    zero, offset = np.zeros(1, dtype=np.intp), np.array([start], dtype=np.intp)
    block_strides = _strides(array.shape, array.itemsize)[None]
    copies = BoxCopies(
        [size], [block.nbytes], array.itemsize, zero, offset, strides[None], zero, zero, block_strides, extents[None]
    )
    copies.run([memory], [as_bytes(block)])


def is_same_memory(a: Array, b: Array) -> bool:
    """Return whether *a* and *b* have the same elements in memory, with the same shape, strides and dtype.

    >>> rows = np.zeros((2, 3))
    >>> is_same_memory(rows[1:], rows[-1:]), is_same_memory(rows[0], rows[1]), is_same_memory(rows, rows.view("i8"))
    (True, False, False)
    """
    if a.strides != b.strides or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])
