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


def read_by_library(opened: OpenFiles, request: ArrayRequest, into: DTensor, limit: int | None) -> None:
    """Fill *into* with the array of a request, the axes as the file has them. Collective over its mesh.

    Each rank reads whole chunks. So it holds its share of the result, beside its block, unless its block is that
    share.
    """
    stored, chosen, chunks = request.stored, request.file_chosen, request.chunks
    assert chunks is not None
    layout = layout_by_chunks(chosen, into.mesh, chunks)
    straight = into.mesh.size == 1 or layout == into.layout
    share = into if straight else empty(chosen.box, into.dtype, layout)
    opened.settled = False
    with opened.trying(), open_array(opened.base, stored.name, stored.shape) as array, reading(opened.base):
        on_blocks(lambda block: _read(array, _block_selection(chosen, share.layout), block, chunks, limit), share)
    if not straight:
        opened.before_sending()
        unsliced = request.unsliced or request.coding is not None  # what is decoded later goes to a new tensor
        result = relayout(share, into.layout, out=into if unsliced else None, max_scratch_bytes=limit)
        if result is not into:
            on_blocks(convert, result, into)


def layout_by_chunks(chosen: Selection, mesh: Mesh, chunks: Shape) -> Layout:
    """Return the layout in which what is *chosen* is read: the axis with the most chunks is cut where chunks end.

    *chunks* is their shape.
    """
    grid = _grid(chosen, chunks)
    if not grid:
        return Layout.replicated(mesh, len(chosen.box))
    axis = max(grid, key=lambda axis: min(grid[axis].number, chosen.box[axis]))  # with steps, some are not touched
    ends = [grid[axis].first + number for number in Cut(grid[axis].number, mesh.size).all_starts()]
    boundaries = [_index(chosen, axis, end * grid[axis].length) for end in ends]
    if chosen.step[axis] < 0:
        boundaries.reverse()
    return cut_along(axis, boundaries, chosen.box, mesh)


def read_box(base: Path, stored: Stored, chosen: Selection) -> Array:
    """Return what is *chosen* of an array that only a library can read, with the axes that are dropped."""
    with open_array(base, stored.name, stored.shape) as array, reading(base):
        return _read_selection(array, chosen)


class _ChunkRange(NamedTuple):
    """The chunks along an axis that a selection touches: which is the *first*, their *number*, their *length*."""

    first: int
    number: int
    length: int


def _grid(chosen: Selection, chunks: Shape) -> dict[int, _ChunkRange]:
    """Return the chunks that are touched along each axis of the array, which the index has not added."""
    axes = [axis for axis in range(len(chosen.box)) if axis not in chosen.new]
    grid = {}
    for axis, length in zip(axes, chunks, strict=True):
        n, start, step = chosen.box[axis], chosen.start[axis], chosen.step[axis]
        lowest, highest = sorted((start, start + max(n - 1, 0) * step))
        grid[axis] = _ChunkRange(lowest // length, highest // length - lowest // length + 1, length)
    return grid


def _index(chosen: Selection, axis: int, border: int) -> int:
    """Return how many elements of what is taken come before those on the other side of a *border* of the array."""
    start, step, n = chosen.start[axis], chosen.step[axis], chosen.box[axis]
    index = -((start - border) // step) if step > 0 else (start - border) // -step + 1
    return min(max(index, 0), n)


def _block_selection(chosen: Selection, layout: Layout) -> Selection:
    """Return what the block of this rank in *layout* has of what is *chosen*."""
    for axis, (start, stop, *_) in enumerate(layout.block_box(chosen.box)):
        chosen = chosen.narrowed(axis, start, stop)
    return chosen


def _read(array: Sliced, chosen: Selection, block: Array, chunks: Shape, limit: int | None) -> None:
    """Fill *block* with what *chosen* takes of the array, in steps of whole chunks, if these keep to *limit*.

    zarr has whole chunks in memory, but those of shards.
    """
    max_elements = (limit or DEFAULT_SCRATCH) // max(1, array.dtype.itemsize)
    if getattr(array, "shards", ()) is None:
        max_elements = max(max_elements, prod(chunks))
    for step, where in _steps(chosen, chunks, max_elements, (slice(None),) * len(chosen.box)):
        index: tuple[slice | EllipsisType, ...] = (*where, ...)  # of an array without axes, too, a view
        convert(_read_selection(array, step), block[index])


def _steps(
    chosen: Selection, chunks: Shape, max_elements: int, where: tuple[slice, ...]
) -> Iterator[tuple[Selection, tuple[slice, ...]]]:
    """Yield boxes of at most *max_elements*, or of one, each with its slices of the block: whole chunks, if these fit.

    What is *chosen* is halved until the boxes are small enough; *where* has its own slices of the block.
    """
    n = prod(chosen.box)
    if n <= max(max_elements, 1):
        if n:
            yield chosen, where
        return
    grid = _grid(chosen, chunks)
    axis = next((axis for axis in grid if grid[axis].number > 1), None)
    if axis is None:  # one chunk, which is too large
        axis = next(axis for axis in grid if chosen.box[axis] > 1)
        middle = chosen.box[axis] // 2
    else:
        middle = _index(chosen, axis, (grid[axis].first + grid[axis].number // 2) * grid[axis].length)
    begin = where[axis].start or 0
    for first, last in ((0, middle), (middle, chosen.box[axis])):
        inside = (*where[:axis], slice(begin + first, begin + last), *where[axis + 1 :])
        yield from _steps(chosen.narrowed(axis, first, last), chunks, max_elements, inside)


def _read_selection(array: Sliced, chosen: Selection) -> Array:
    """Return what is *chosen* of the array: libraries take steps forwards only."""
    forwards: list[slice] = []
    turns: list[slice | EllipsisType] = []
    for axis, (start, n, step) in enumerate(zip(chosen.start, chosen.box, chosen.step, strict=True)):
        if axis not in chosen.new:
            lowest, highest = sorted((start, start + (n - 1) * step)) if n else (0, -1)
            forwards.append(slice(lowest, highest + 1, abs(step)))
            turns.append(slice(None, None, 1 if step > 0 else -1))
    turns.append(...)
    with at_files():
        elements: Array = np.asarray(array[tuple(forwards)])[tuple(turns)]
    return elements.reshape(chosen.box) if chosen.new else elements
