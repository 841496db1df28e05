"""Boxes of arrays in a file that are overwritten; other elements stay.

Where a file has the bytes of an array uncompressed, each rank writes its own. A compressed chunk is read, changed and
written as a whole by one owner: in zarr the rank with the largest part of it, each chunk in one step; in HDF5 the
first rank, through the library, all chunks in one step at the end.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

from meshcomm.blocks.make import on_blocks
from meshcomm.blocks.session import Session
from meshcomm.core._files import resolved
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.storage.by_library import layout_by_chunks
from meshcomm.storage.checksums import Piece
from meshcomm.storage.files import final_names
from meshcomm.storage.formats import zarr_library
from meshcomm.storage.formats.hdf5_write import Hdf5Writer
from meshcomm.storage.formats.known import contents
from meshcomm.storage.meshes import cut_along
from meshcomm.storage.save import Content, Saving, run_save
from meshcomm.storage.selection import Selection, box_of, boxes
from meshcomm.storage.stored import Stored, StoredFields
from meshcomm.storage.transfer import OpenFiles, write_tensor


class Box(NamedTuple):
    """A tensor, its *start* along each axis of the array in the file, and the *shape* of that array."""

    tensor: DTensor
    start: Shape
    shape: Shape

    @property
    def chosen(self) -> Selection:
        """The box."""
        return box_of(self.shape, self.start, self.tensor.shape)


def save_boxes(path: Path, boxes_by_name: Mapping[str, Box], mesh: Mesh, limit: int | None) -> None:
    """Write tensors to boxes of arrays in a file. Collective over *mesh*.

    Parameters
    ----------
    path: path of the file or store with the arrays
    boxes_by_name: one box for each array, by its name; shape, start and dtype fit the array
    mesh: mesh over the ranks of all tensors
    limit: scratch limit of a rank, in bytes
    """
    run_save("save", _BoxSaving(path, boxes_by_name, mesh), limit)


class _BoxSaving(Saving):
    """A save to boxes of arrays that are in a file."""

    def __init__(self, path: Path, boxes_by_name: Mapping[str, Box], mesh: Mesh) -> None:
        super().__init__(path, Content([], ["dict", {}], {}), mesh, None, "a")
        self._boxes = boxes_by_name

    @property
    def nbytes(self) -> int:
        return sum(box.tensor.nbytes for box in self._boxes.values())

    @property
    def _hdf5(self) -> Hdf5Writer | None:
        """The writer of an HDF5 file, on the first rank; None elsewhere."""
        return self._active if isinstance(self._active, Hdf5Writer) else None

    def _text(self) -> str:
        texts = (f"{name} {box.tensor.shape} {box.tensor.layout} at {box.start}" for name, box in self._boxes.items())
        return "; ".join(texts)

    @final_names()
    def _begin(self) -> tuple[str, list[StoredFields]]:
        path = resolved(self.path)
        file_contents = contents(path)
        if not path.is_dir():
            self._active = self.writer(path, *self.content, mode="a")
            self._active.begin()
        locations = []
        for name, box in self._boxes.items():
            stored_in_runs = self._hdf5 and self._hdf5.located(name, box.chosen)
            locations.append((stored_in_runs or file_contents.arrays[name]).as_json())
        return str(path), locations

    def write(self, stored: list[Stored], open_files: OpenFiles, session: Session, limit: int | None) -> None:
        with session.exchanging():
            for array in stored:
                self._write(array, self._boxes[array.name], open_files, limit)

    def _write(self, stored: Stored, box: Box, open_files: OpenFiles, limit: int | None) -> None:
        """Write one box. Collective over the mesh of its tensor."""
        tensor, selection = box.tensor, box.chosen
        if not prod(tensor.shape):
            return
        if stored.chunks is None:
            write_tensor(tensor, stored, open_files, limit, selection)
        elif open_files.base.is_dir():
            layout = layout_by_chunks(selection, tensor.mesh, stored.chunks.shape)
            aligned = relayout(tensor, layout, max_scratch_bytes=limit)
            index = tuple(
                slice(start + first, start + last)
                for start, (first, last, *_) in zip(box.start, aligned.layout.block_box(tensor.shape), strict=True)
            )
            with open_files.trying():
                on_blocks(lambda block: zarr_library.write_box(open_files.base, stored.name, index, block), aligned)
        else:
            self._write_by_first(stored, box, open_files, limit)

    def _write_by_first(self, stored: Stored, box: Box, open_files: OpenFiles, limit: int | None) -> None:
        """Let the first rank write a box, in steps of whole chunks. Collective over the mesh of the tensor."""
        tensor, chunk = box.tensor, stored.chunks and stored.chunks.shape
        for start, lengths in boxes(tensor.shape, tensor.dtype.itemsize, limit or DEFAULT_SCRATCH, chunk):
            step_tensor = tensor[tuple(slice(s, s + n) for s, n in zip(start, lengths, strict=True))]
            first_rank_layout = cut_along(0, [0] + [lengths[0]] * tensor.mesh.size, lengths, tensor.mesh)
            first_rank_tensor = relayout(step_tensor, first_rank_layout, max_scratch_bytes=limit)
            if self._hdf5 is not None:
                index = tuple(slice(b + s, b + s + n) for b, s, n in zip(box.start, start, lengths, strict=True))
                with open_files.trying():
                    self._hdf5.write_box(stored.name, index, first_rank_tensor._block)

    @final_names()
    def _commit(self, pieces: list[Piece]) -> None:
        if self._active is not None:
            self._active.commit(pieces)
            self._active = None
