"""Arrays that grow along their first axis: what a snapshot has to be, and in which chunks it is stored."""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

from meshcomm.core._arguments import counted, quote
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import DType, Shape
from meshcomm.errors import CheckpointError, DTypeError, ShapeError
from meshcomm.storage.chunked import CHUNK, default_chunk
from meshcomm.storage.formats.base import ArrayToSave
from meshcomm.storage.stored import Chunking, Segment, Stored

SERIES_CHUNK = 2**26
"""Bytes of a chunk of a snapshot that is not compressed, one row at least. A compromise: few chunks are found quickly,
and readers of a few rows take parts of them."""

SNAPSHOTS = 1024
"""Small snapshots that share one chunk of a page, at most."""


def copy_that_grows(path: Path) -> str:
    """Return, for people, how they get a copy of a file of another program to which snapshots can be added."""
    return f"A copy that grows: meshcomm convert {path} NEW.zarr"


def check_snapshots(path: Path, array: ArrayToSave, shape: Shape, dtype: DType | None) -> None:
    """Raise ``ShapeError`` or ``DTypeError`` unless *array* is a snapshot of one with this *shape* and *dtype*."""
    if shape[1:] != array.shape or len(shape) != len(array.shape) + 1:
        raise ShapeError(f"{path}: the snapshots of {quote(array.name)} are {shape[1:]}, not {array.shape}")
    if dtype != array.dtype:
        raise DTypeError(f"{path}: the snapshots of {quote(array.name)} are {dtype}, not {array.dtype}")


def snapshots_of(path: Path, arrays: Iterable[ArrayToSave], counts: Mapping[str, int]) -> int:
    """Return how many snapshots all *arrays* have that grow, of the *counts* of those that are there."""
    count = min(counts.values(), default=0)
    missing = [array.name for array in arrays if array.grows and array.name not in counts]
    if missing and max(counts.values(), default=0) == 1:
        return 0  # a job was killed as it added the first snapshot
    if count and missing:
        raise CheckpointError(f"{path} has {counted(count, 'snapshot')} without {quote(missing[0])}")
    return count


def chunks_of_snapshots(array: ArrayToSave) -> Shape:
    """Return the shape of chunks of snapshots; small ones share a chunk."""
    chunk = array.chunks or default_chunk(array.shape, array.dtype.itemsize, CHUNK if array.codecs else SERIES_CHUNK)
    together = 1 if array.codecs or array.chunks or not array.nbytes else max(1, min(SNAPSHOTS, PAGE // array.nbytes))
    return (together, *(max(1, n) for n in chunk))


def plus(index: Shape, first: int) -> Shape:
    """Return the numbers of a chunk, with *first* added along the first axis."""
    return (index[0] + first, *index[1:]) if index else index


def laid_out(
    path: Path, array: ArrayToSave, chunks: Chunking, count: int, reserve: Callable[[Shape, int], tuple[str, int]]
) -> Stored:
    """Return where the data of more snapshots go. ``CheckpointError`` if they cannot go to such chunks.

    Parameters
    ----------
    path: path of the file, for errors
    array: description of one snapshot; `steps` of them are appended
    chunks: chunks of the array in the file; the axis that grows comes first
    count: number of snapshots in the file
    reserve: function from the index of a chunk and its bytes, 0 for one that exists, to its file and offset
    """
    (together, *lengths), codecs = chunks
    stored = Stored(array.name, (array.steps, *array.shape), array.dtype, ())
    in_rows = tuple(lengths[1:]) == array.shape[1:] and (together == 1 or tuple(lengths) == array.shape)
    if codecs or not in_rows:
        if together > 1:  # they are written as a whole
            raise CheckpointError(
                f"{path}: the chunks of {quote(array.name)} have {together} snapshots each, so none can be added. "
                + copy_that_grows(path)
            )
        return stored._replace(chunks=chunks)
    chunk_bytes, segments = prod(lengths) * array.dtype.itemsize, list[Segment]()
    for step in range(array.steps if array.nbytes else 0):
        chunk, inside = divmod(count + step, together)
        for number, start in enumerate(range(0, array.nbytes, chunk_bytes)):
            index = (chunk, *(number, *[0] * (len(lengths) - 1))[: len(lengths)])
            file, offset = reserve(index, 0 if inside else together * chunk_bytes)
            first, nbytes = step * array.nbytes + start, min(chunk_bytes, array.nbytes - start)
            _append(segments, Segment(file, first, first + nbytes, offset + inside * array.nbytes))
    return stored._replace(segments=tuple(segments))


def _append(segments: list[Segment], more: Segment) -> None:
    """Append *more*, or make the last segment longer, if *more* follows it in the file."""
    last = segments[-1] if segments else None
    if last is not None and (last.file, last.offset + last.stop - last.start) == (more.file, more.offset):
        segments[-1] = last._replace(stop=more.stop)
    else:
        segments.append(more)
