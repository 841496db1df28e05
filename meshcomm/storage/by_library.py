"""Arrays that only a library can read, in chunks or compressed: each rank reads whole chunks; then they are relaid."""

from pathlib import Path
from typing import Any

import numpy as np

from meshcomm._tuning import DEFAULT_SCRATCH
from meshcomm._types import Array
from meshcomm.arrays.create import empty
from meshcomm.arrays.dtensor import DTensor
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import Cut
from meshcomm.layouts.specs import cut_at
from meshcomm.memory.copies import opaque
from meshcomm.storage.formats import hdf5, zarr
from meshcomm.storage.formats.base import reading
from meshcomm.storage.meshes import rows_of
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import Opened


def read_by_library(
    opened: Opened, stored: Stored, chosen: Selection, mesh: Mesh, *, rows: int, limit: int | None
) -> DTensor:
    """Return the box of the array that is *chosen*, its first axis cut over the mesh where chunks of *rows* end."""
    array, close = None, lambda: None
    with opened.trying():
        array, close = _open(opened.base, stored.name)
    made = empty(chosen.box, stored.dtype, layout_by_chunks(chosen, mesh, rows))
    if made.local is not None and mesh.rank is not None and array is not None:
        with opened.trying(), reading(opened.base):
            _read(array, made.layout, chosen, made.local, limit)
    with opened.trying():
        close()
    return made


def layout_by_chunks(chosen: Selection, mesh: Mesh, rows: int) -> Layout:
    """Return the layout in which the box *chosen* is read: its first axis is cut where chunks of *rows* rows end."""
    if not chosen.box:
        return Layout([], mesh)
    n, first = chosen.box[0], chosen.start[0]
    chunks = -(-(first + n) // rows) - first // rows
    ends = [(first // rows + start) * rows - first for start in Cut(chunks, mesh.size).all_starts()]
    boundaries = [min(max(end, 0), n) for end in ends]
    return Layout([cut_at(rows_of(mesh), boundaries, n), *[()] * (len(chosen.box) - 1)], mesh)


def read_box(base: Path, name: str, chosen: Selection) -> Array:
    """Return the box *chosen* of an array that only a library can read."""
    array, close = _open(base, name)
    try:
        with reading(base):
            box = tuple(slice(s, s + n) for s, n in zip(chosen.start, chosen.box, strict=True))
            found: Array = np.asarray(array[box])
            return found
    finally:
        close()


def _read(array: Any, layout: Layout, chosen: Selection, block: Array, limit: int | None) -> None:
    assert layout.mesh.rank is not None
    if not chosen.box:
        block[...] = np.asarray(array[()])
        return
    start, stop = (chosen.start[0] + n for n in layout.block_box(chosen.box, layout.mesh.rank)[0][:2])
    others = tuple(slice(s, s + n) for s, n in zip(chosen.start[1:], chosen.box[1:], strict=True))
    row = max(1, block.nbytes // max(1, block.shape[0]))
    step = max(1, (limit or DEFAULT_SCRATCH) // row)
    for first in range(start, stop, step):
        last = min(first + step, stop)
        opaque(block)[first - start : last - start] = opaque(np.asarray(array[(slice(first, last), *others)]))


def _open(base: Path, name: str) -> Any:
    if base.suffix in (".h5", ".hdf5"):
        dataset, file = hdf5.open_dataset(base, name)
        return dataset, file.close
    return zarr.open_array(base, name), lambda: None
