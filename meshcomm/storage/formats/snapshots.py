"""Arrays that grow along their first axis: checks of their snapshots, and the chunks that store them."""

from abc import abstractmethod
from math import prod
from pathlib import Path
from typing import ClassVar

from meshcomm.core._arguments import counted, quote
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import DType, Shape
from meshcomm.errors import CheckpointError, DTypeError, ShapeError
from meshcomm.storage import files
from meshcomm.storage.chunked import CHUNK, default_chunk
from meshcomm.storage.formats.base import ArrayToSave, Writer
from meshcomm.storage.stored import Chunking, Segment, Stored

SERIES_CHUNK = 2**26
"""The most bytes of an uncompressed chunk of a snapshot, which has at least one row. A compromise: few chunks are
found quickly, and readers of a few rows read parts of them."""

MAX_SNAPSHOTS_PER_CHUNK = 1024
"""The most small snapshots in one chunk of a page."""


def copy_that_grows(path: Path) -> str:
    """Return a text for people on how to copy a file of another program so that snapshots can be added."""
    return f"A copy that grows: meshcomm convert {path} NEW.zarr"


def chunks_of_snapshots(array: ArrayToSave) -> Shape:
    """Return the shape of chunks of snapshots; small ones share a chunk."""
    chunk = array.chunks or default_chunk(array.shape, array.dtype.itemsize, CHUNK if array.codecs else SERIES_CHUNK)
    snapshots_per_chunk = (
        1
        if array.codecs or array.chunks or not array.nbytes
        else max(1, min(MAX_SNAPSHOTS_PER_CHUNK, PAGE // array.nbytes))
    )
    return (snapshots_per_chunk, *(max(1, n) for n in chunk))


def shifted_index(index: Shape, first: int) -> Shape:
    """Return the index of a chunk, with *first* added along the first axis."""
    return (index[0] + first, *index[1:]) if index else index


class SnapshotWriter(Writer):
    """Writes arrays in chunks, some of them growing by snapshots: HDF5 and zarr."""

    separator: ClassVar[str] = "/"
    adds: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = True
    has_chunks: ClassVar[bool] = True

    _count = 0
    """The number of snapshots in the file before this save."""

    @abstractmethod
    def old_snapshots(self, name: str) -> tuple[Shape, DType | None, bool] | None:
        """Return the shape and dtype of an array in the file, and whether it can grow; None if it is not there."""

    @abstractmethod
    def reserve(self, name: str, index: Shape, nbytes: int, *, syncs: bool = True) -> tuple[str, int]:
        """Reserve *nbytes* for the chunk at *index*, 0 if it is there already; return its file, and its offset.

        Without *syncs*, the caller syncs the file when it has written the bytes.
        """

    def place(self, name: str, chunks: list[tuple[Shape, int]]) -> list[tuple[str, int]]:
        first = self._count if any(array.grows for array in self.arrays if array.name == name) else 0
        with files.at_files():
            return [self.reserve(name, shifted_index(index, first), nbytes, syncs=False) for index, nbytes in chunks]

    def count_snapshots(self) -> None:
        """Count the snapshots that all growing arrays have. Raise an error if new ones do not fit the old ones."""
        counts: dict[str, int] = {}
        growing_arrays = [array for array in self.arrays if array.grows]
        for array in growing_arrays:
            old_array = self.old_snapshots(array.name)
            if old_array is None:
                continue
            shape, dtype, can_grow = old_array
            if not shape or shape[1:] != array.shape:
                raise ShapeError(
                    f"{self.path}: the snapshots of {quote(array.name)} are {shape[1:]}, not {array.shape}"
                )
            if dtype != array.dtype:
                raise DTypeError(f"{self.path}: the snapshots of {quote(array.name)} are {dtype}, not {array.dtype}")
            if not can_grow:
                raise CheckpointError(
                    f"{self.path}: {quote(array.name)} cannot grow: its shape is fixed, it was not appended to. "
                    + copy_that_grows(self.path)
                )
            counts[array.name] = shape[0]
        missing = [array.name for array in growing_arrays if array.name not in counts]
        self._count = min(counts.values(), default=0)
        if missing and max(counts.values(), default=0) == 1:
            self._count = 0  # a job was killed as it added the first snapshot
        if self._count and missing:
            raise CheckpointError(f"{self.path} has {counted(self._count, 'snapshot')} without {quote(missing[0])}")

    def lay_out_snapshots(self, array: ArrayToSave, chunks: Chunking) -> Stored:
        """Reserve space for new snapshots of *array*, and return the location of their data.

        *chunks* are those of the array in the file. ``CheckpointError`` if no snapshots can be added to them.
        """
        (per_chunk, *lengths), codecs = chunks
        stored = Stored(array.name, (array.steps, *array.shape), array.dtype, ())
        has_whole_rows = tuple(lengths[1:]) == array.shape[1:] and (per_chunk == 1 or tuple(lengths) == array.shape)
        if codecs or not has_whole_rows:
            if per_chunk > 1:  # they are written as a whole
                raise CheckpointError(
                    f"{self.path}: the chunks of {quote(array.name)} have {per_chunk} snapshots each, "
                    f"so none can be added. {copy_that_grows(self.path)}"
                )
            return stored._replace(chunks=chunks)
        chunk_bytes, segments = prod(lengths) * array.dtype.itemsize, list[Segment]()
        for step in range(array.steps if array.nbytes else 0):
            chunk, index_in_chunk = divmod(self._count + step, per_chunk)
            for number, start in enumerate(range(0, array.nbytes, chunk_bytes)):
                index = (chunk, *(number, *[0] * (len(lengths) - 1))[: len(lengths)])
                file, offset = self.reserve(array.name, index, 0 if index_in_chunk else per_chunk * chunk_bytes)
                first, nbytes = step * array.nbytes + start, min(chunk_bytes, array.nbytes - start)
                _append(segments, Segment(file, first, first + nbytes, offset + index_in_chunk * array.nbytes))
        return stored._replace(segments=tuple(segments))


def _append(segments: list[Segment], segment: Segment) -> None:
    """Append *segment*, or extend the last segment if *segment* follows it in the file."""
    last_segment = segments[-1] if segments else None
    if last_segment is not None and (
        last_segment.file,
        last_segment.offset + last_segment.stop - last_segment.start,
    ) == (segment.file, segment.offset):
        segments[-1] = last_segment._replace(stop=segment.stop)
    else:
        segments.append(segment)
