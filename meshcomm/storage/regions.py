"""Boxes of arrays that are in a file: their elements change, and no others.

Where a file has the bytes of an array as they are, each rank writes its own. A chunk that is compressed is read,
changed and written as a whole, by one owner: in zarr the rank that has most to do with it, each chunk in one step; in
HDF5 the first rank, through the library, all of them in one step at the end.
"""

from collections.abc import Mapping
from contextlib import closing
from math import prod
from pathlib import Path
from typing import NamedTuple

from meshcomm.blocks.make import on_blocks
from meshcomm.blocks.session import Session, in_session
from meshcomm.core._arguments import quote
from meshcomm.core._files import resolved
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Json, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.storage.by_library import layout_by_chunks
from meshcomm.storage.files import final_names
from meshcomm.storage.formats import zarr_library
from meshcomm.storage.formats.hdf5_write import Hdf5Writer
from meshcomm.storage.formats.known import contents, writer_for
from meshcomm.storage.meshes import cut_along
from meshcomm.storage.selection import Selection, box_of, boxes
from meshcomm.storage.stored import Stored
from meshcomm.storage.transfer import Opened, write_tensor


class Box(NamedTuple):
    """Where a tensor goes: from which index on along each axis of the array, whose *shape* is that of the whole."""

    tensor: DTensor
    start: Shape
    shape: Shape

    @property
    def chosen(self) -> Selection:
        """The box."""
        return box_of(self.shape, self.start, self.tensor.shape)


def save_boxes(path: Path, boxes: Mapping[str, Box], mesh: Mesh, limit: int | None) -> None:
    """Write tensors to *boxes* of the arrays with their names. Collective over *mesh*.

    Parameters
    ----------
    path: of a file or store that has the arrays
    boxes: by the names of the arrays; shapes, starts and dtypes fit
    mesh: one with the ranks of all tensors
    limit: bytes that a rank may use beyond its blocks
    """
    saving = _Saving(path, boxes, limit)
    in_session("save", mesh, saving.steps)


class _Saving:
    def __init__(self, path: Path, boxes: Mapping[str, Box], limit: int | None) -> None:
        self._path, self._boxes, self._limit = path, boxes, limit
        self._writer: Hdf5Writer | None = None  # on the first rank, of an HDF5 file

    def steps(self, here: Session) -> None:
        """Do all of a save. Collective over its mesh."""
        texts = [f"{name} {box.tensor.shape} {box.tensor.layout} at {box.start}" for name, box in self._boxes.items()]
        call = f"save to {quote(str(self._path))}: {'; '.join(texts)}"
        try:
            base, origins = here.looked_up(call, self._begin)
            opened = Opened(Path(base), True)
            with closing(opened), here.exchanging():
                for (name, box), told in zip(self._boxes.items(), origins, strict=True):
                    self._write(name, box, Stored.from_told(told), opened)
            here.agree(call, opened.error)
            here.looked_up(f"the end of the {call}", self._commit)
        finally:
            if self._writer is not None:
                self._writer.abandon()

    @final_names()
    def _begin(self) -> Json:
        """Return where the file is, and where each array is."""
        path = resolved(self._path)
        found = contents(path)
        if not path.is_dir():
            self._writer = writer_for(path)(path, [], ["dict", {}], {}, mode="a")  # type: ignore[assignment]
            assert isinstance(self._writer, Hdf5Writer)
            self._writer.begin()
        origins = []
        for name, box in self._boxes.items():
            in_runs = self._writer and self._writer.located(name, box.chosen)
            origins.append((in_runs or found.arrays[name]).told())
        return [str(path), origins]

    def _write(self, name: str, box: Box, stored: Stored, opened: Opened) -> None:
        """Write one box. Collective over the mesh of its tensor."""
        tensor, chosen = box.tensor, box.chosen
        if not prod(tensor.shape):
            return
        if stored.chunks is None:
            write_tensor(tensor, stored, opened, self._limit, chosen)
        elif opened.base.is_dir():
            layout = layout_by_chunks(chosen, tensor.mesh, stored.chunks.shape)
            owned = relayout(tensor, layout, max_scratch_bytes=self._limit)
            index = tuple(
                slice(start + first, start + last)
                for start, (first, last, *_) in zip(box.start, owned.layout.block_box(tensor.shape), strict=True)
            )
            with opened.trying():
                on_blocks(lambda block: zarr_library.write_box(opened.base, name, index, block), owned)
        else:
            self._write_by_first(name, box, stored.chunks.shape, opened)

    def _write_by_first(self, name: str, box: Box, chunks: Shape, opened: Opened) -> None:
        """Let the first rank write a box, in steps of whole chunks. Collective over the mesh of the tensor."""
        tensor, size = box.tensor, box.tensor.dtype.itemsize
        for start, lengths in boxes(tensor.shape, size, self._limit or DEFAULT_SCRATCH, chunks):
            piece = tensor[tuple(slice(s, s + n) for s, n in zip(start, lengths, strict=True))]
            on_first = cut_along(0, [0] + [lengths[0]] * tensor.mesh.size, lengths, tensor.mesh)
            alone = relayout(piece, on_first, max_scratch_bytes=self._limit)
            if self._writer is not None:
                at = tuple(slice(b + s, b + s + n) for b, s, n in zip(box.start, start, lengths, strict=True))
                with opened.trying():
                    self._writer.write_box(name, at, alone.local)

    @final_names()
    def _commit(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.commit([])
            except BaseException:
                writer.abandon()
                raise
