"""Arrays that only a library can read, in chunks or compressed: each rank reads whole chunks; then they are relaid."""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshcomm._tuning import DEFAULT_SCRATCH
from meshcomm._types import Array, Names
from meshcomm.arrays.create import empty
from meshcomm.arrays.dtensor import DTensor
from meshcomm.arrays.relayout import relayout
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import Cut
from meshcomm.layouts.specs import cut_at
from meshcomm.storage.files import at_files
from meshcomm.storage.formats import hdf5, zarr
from meshcomm.storage.formats.base import reading
from meshcomm.storage.meshes import rows_of
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import Opened, convert


def read_by_library(
    opened: Opened,
    stored: Stored,
    chosen: Selection,
    into: DTensor,
    *,
    rows: int,
    limit: int | None,
    unsliced: bool,
) -> None:
    """Fill *into* with what is *chosen* of an array. Collective over its mesh.

    Each rank reads whole chunks, of *rows* rows. So it holds its share of the result, beside its block, unless its
    block is that share. *unsliced* says that *into* is no slice on any rank.
    """
    array, close = None, lambda: None
    with opened.trying():
        array, close = _open(opened.base, stored.name)
    mesh, layout = into.mesh, layout_by_chunks(chosen, into.mesh, rows)
    straight = mesh.size == 1 or layout == into.layout
    made = into if straight else empty(chosen.box, into.dtype, layout)
    if made.local is not None and mesh.rank is not None and array is not None:
        with opened.trying(), reading(opened.base):
            _read(array, chosen, made, rows, limit)
    with opened.trying():
        close()
    if not straight:
        found = relayout(made, into.layout, out=into if unsliced else None, max_scratch_bytes=limit)
        if found is not into and found.local is not None and into.local is not None:
            convert(found.local, into.local)


def layout_by_chunks(chosen: Selection, mesh: Mesh, rows: int) -> Layout:
    """Return the layout in which what is *chosen* is read: its first axis is cut where chunks of *rows* rows end."""
    axis = _first_axis(chosen)
    if axis is None:
        return Layout.replicated(mesh, len(chosen.box))
    n, start, step = chosen.box[axis], chosen.start[axis], chosen.step[axis]
    lowest, highest = sorted((start, start + max(n - 1, 0) * step))
    chunks = highest // rows - lowest // rows + 1
    ends = [(lowest // rows + number) * rows for number in Cut(chunks, mesh.size).all_starts()]
    boundaries = [min(max(-((lowest - end) // abs(step)), 0), n) for end in ends]
    if step < 0:
        boundaries = [n - boundary for boundary in reversed(boundaries)]
    axes: list[Names] = [()] * len(chosen.box)
    axes[axis] = cut_at(rows_of(mesh), boundaries, n)
    return Layout(axes, mesh)


def read_box(base: Path, name: str, chosen: Selection) -> Array:
    """Return what is *chosen* of an array that only a library can read, with the axes that are dropped."""
    array, close = _open(base, name)
    try:
        with reading(base):
            return _taken(array, chosen)
    finally:
        close()


def _first_axis(chosen: Selection) -> int | None:
    """Return the first axis of the array, which the index has not added; None if it has no axes."""
    return next((axis for axis in range(len(chosen.box)) if axis not in chosen.new), None)


def _read(array: Any, chosen: Selection, made: DTensor, rows: int, limit: int | None) -> None:
    """Fill the block of *made*, in steps of whole chunks, if these keep to *limit*."""
    axis, block = _first_axis(chosen), made.local
    assert made.mesh.rank is not None
    assert block is not None
    its = chosen
    for each, (start, stop, *_) in enumerate(made.layout.block_box(chosen.box, made.mesh.rank)):
        its = its.narrowed(each, start, stop)
    if axis is None:
        convert(_taken(array, its), block)
        return
    n = its.box[axis]
    row = max(1, prod(its.box) // max(1, n) * array.dtype.itemsize)
    most, first = max(1, (limit or DEFAULT_SCRATCH) // row), 0
    while first < n:
        last = _end(its, axis, first, most, rows)
        convert(_taken(array, its.narrowed(axis, first, last)), block[(slice(None),) * axis + (slice(first, last),)])
        first = last


def _end(its: Selection, axis: int, first: int, most: int, rows: int) -> int:
    """Return where a step ends of at most *most* rows from *first* on: with a chunk, unless the chunk has more."""
    last, step, start = first + most, its.step[axis], its.start[axis]
    if last >= its.box[axis]:
        return its.box[axis]
    chunk = (start + last * step) // rows
    border = -((start - chunk * rows) // step) if step > 0 else -((start - (chunk + 1) * rows + 1) // step)
    return border if border > first else last


def _taken(array: Any, chosen: Selection) -> Array:
    """Return what is *chosen* of the array: libraries take steps forwards only."""
    forwards, turns = [], []
    for axis, (start, n, step) in enumerate(zip(chosen.start, chosen.box, chosen.step, strict=True)):
        if axis not in chosen.new:
            lowest, highest = sorted((start, start + (n - 1) * step)) if n else (0, -1)
            forwards.append(slice(lowest, highest + 1, abs(step)))
            turns.append(slice(None, None, 1 if step > 0 else -1))
    with at_files():
        found: Array = np.asarray(array[tuple(forwards)])[tuple(turns)]
    return found.reshape(chosen.box) if chosen.new else found


def _open(base: Path, name: str) -> Any:
    if base.suffix in (".h5", ".hdf5", ".nc"):
        dataset, file = hdf5.open_dataset(base, name)
        return dataset, file.close
    return zarr.open_array(base, name), lambda: None
