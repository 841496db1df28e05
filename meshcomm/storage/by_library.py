"""Arrays that only a library can read, in chunks or compressed: each rank reads whole chunks; then they are relaid."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import EllipsisType
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import on_blocks
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import Cut
from meshcomm.storage.files import at_files
from meshcomm.storage.formats.base import Sliced, reading
from meshcomm.storage.formats.known import open_array
from meshcomm.storage.meshes import cut_along
from meshcomm.storage.request import ArrayRequest
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import OpenFiles, convert


def read_by_library(open_files: OpenFiles, request: ArrayRequest, target: DTensor, limit: int | None) -> None:
    """Fill *target* with the array of a request; its axes are those of the file. Collective over its mesh.

    Each rank reads whole chunks. If these are not its block of *target*, it also holds a block in the layout of
    `layout_by_chunks`.
    """
    stored, selection, chunks = request.stored, request.file_chosen, request.chunks
    assert chunks is not None
    layout = layout_by_chunks(selection, target.mesh, chunks)
    is_direct = target.mesh.size == 1 or layout == target.layout
    read_tensor = target if is_direct else empty(selection.box, target.dtype, layout)
    open_files.has_agreed = False
    with (
        open_files.trying(),
        open_array(open_files.base, stored.name, stored.shape) as array,
        reading(open_files.base),
    ):
        on_blocks(
            lambda block: _read_in_steps(array, _block_selection(selection, read_tensor.layout), block, chunks, limit),
            read_tensor,
        )
    if not is_direct:
        open_files.before_sending()
        # With a coding, the target is a new tensor.
        overwrites = request.out_is_contiguous or request.coding is not None
        result = relayout(read_tensor, target.layout, out=target if overwrites else None, max_scratch_bytes=limit)
        if result is not target:
            on_blocks(convert, result, target)


def layout_by_chunks(selection: Selection, mesh: Mesh, chunks: Shape) -> Layout:
    """Return the layout in which ranks read *selection*: the axis with the most chunks is cut where chunks end.

    *chunks* is the shape of a chunk.
    """
    grid = _grid(selection, chunks)
    if not grid:
        return Layout.replicated(mesh, len(selection.box))
    axis = max(grid, key=lambda axis: min(grid[axis].number, selection.box[axis]))  # with steps, some are not touched
    ends = [grid[axis].first + number for number in Cut(grid[axis].number, mesh.size).all_starts()]
    boundaries = [_index_at_border(selection, axis, end * grid[axis].length) for end in ends]
    if selection.step[axis] < 0:
        boundaries.reverse()
    return cut_along(axis, boundaries, selection.box, mesh)


def read_box(base: Path, stored: Stored, selection: Selection) -> Array:
    """Return the *selection* of an array that only a library can read, with the axes that are dropped."""
    with open_array(base, stored.name, stored.shape) as array, reading(base):
        return _read_selection(array, selection)


class _ChunkRange(NamedTuple):
    """The chunks along an axis that a selection touches: index of the *first*, *number*, and *length* of each."""

    first: int
    number: int
    length: int


def _grid(selection: Selection, chunks: Shape) -> dict[int, _ChunkRange]:
    """Return the touched chunks along each axis of the array, without axes that the index has added."""
    axes = [axis for axis in range(len(selection.box)) if axis not in selection.new]
    grid = {}
    for axis, length in zip(axes, chunks, strict=True):
        n, start, step = selection.box[axis], selection.start[axis], selection.step[axis]
        lowest, highest = sorted((start, start + max(n - 1, 0) * step))
        grid[axis] = _ChunkRange(lowest // length, highest // length - lowest // length + 1, length)
    return grid


def _index_at_border(selection: Selection, axis: int, border: int) -> int:
    """Return the number of selected elements that come before the *border*, an index of the array."""
    start, step, n = selection.start[axis], selection.step[axis], selection.box[axis]
    index = -((start - border) // step) if step > 0 else (start - border) // -step + 1
    return min(max(index, 0), n)


def _block_selection(selection: Selection, layout: Layout) -> Selection:
    """Return the part of *selection* that is the block of this rank in *layout*."""
    for axis, (start, stop, *_) in enumerate(layout.block_box(selection.box)):
        selection = selection.narrowed(axis, start, stop)
    return selection


def _read_in_steps(array: Sliced, selection: Selection, block: Array, chunks: Shape, limit: int | None) -> None:
    """Fill *block* with the *selection* of the array, in steps of whole chunks, if these keep to *limit* bytes.

    zarr has whole chunks in memory, except those of shards.
    """
    max_elements = (limit or DEFAULT_SCRATCH) // max(1, array.dtype.itemsize)
    if getattr(array, "shards", ()) is None:
        max_elements = max(max_elements, prod(chunks))
    for step_selection, slices in _steps(selection, chunks, max_elements, (slice(None),) * len(selection.box)):
        index: tuple[slice | EllipsisType, ...] = (*slices, ...)  # a view, also for 0 axes
        convert(_read_selection(array, step_selection), block[index])


def _steps(
    selection: Selection, chunks: Shape, max_elements: int, slices: tuple[slice, ...]
) -> Iterator[tuple[Selection, tuple[slice, ...]]]:
    """Yield boxes of at most *max_elements*, or one, with their slices of the block: whole chunks, if these fit.

    *selection* is halved until the boxes are small enough; *slices* are its slices of the block.
    """
    n = prod(selection.box)
    if n <= max(max_elements, 1):
        if n:
            yield selection, slices
        return
    grid = _grid(selection, chunks)
    axis = next((axis for axis in grid if grid[axis].number > 1), None)
    if axis is None:  # one chunk, which is too large
        axis = next(axis for axis in grid if selection.box[axis] > 1)
        middle = selection.box[axis] // 2
    else:
        middle = _index_at_border(selection, axis, (grid[axis].first + grid[axis].number // 2) * grid[axis].length)
    begin = slices[axis].start or 0
    for first, last in ((0, middle), (middle, selection.box[axis])):
        half_slices = (*slices[:axis], slice(begin + first, begin + last), *slices[axis + 1 :])
        yield from _steps(selection.narrowed(axis, first, last), chunks, max_elements, half_slices)


def _read_selection(array: Sliced, selection: Selection) -> Array:
    """Return the *selection* of the array. Libraries take positive steps only, so the order is reversed afterwards."""
    forward_slices: list[slice] = []
    reversals: list[slice | EllipsisType] = []
    for axis, (start, n, step) in enumerate(zip(selection.start, selection.box, selection.step, strict=True)):
        if axis not in selection.new:
            lowest, highest = sorted((start, start + (n - 1) * step)) if n else (0, -1)
            forward_slices.append(slice(lowest, highest + 1, abs(step)))
            reversals.append(slice(None, None, 1 if step > 0 else -1))
    reversals.append(...)
    with at_files():
        elements: Array = np.asarray(array[tuple(forward_slices)])[tuple(reversals)]
    return elements.reshape(selection.box) if selection.new else elements
