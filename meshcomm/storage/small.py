"""Small arrays: one rank reads many of them at once, and broadcasts them in one message."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, Bytes
from meshcomm.storage.selection import READ_TOGETHER
from meshcomm.storage.stored import Segment, Stored, in_one_file
from meshcomm.storage.transfer import ByteRuns, OpenFiles, joined_reads

SMALL_ARRAY = 2**16
"""Bytes. One rank reads smaller arrays, and broadcasts them. A compromise: it saves opening files."""

_BYTE = np.dtype("u1")


def is_small(stored: Stored) -> bool:
    """Return whether one rank reads the array for all."""
    return stored.nbytes <= SMALL_ARRAY


@dataclass(frozen=True)
class ReadBatch:
    """Small arrays that are read and broadcast together, and their size in bytes."""

    arrays: tuple[Stored, ...]
    nbytes: int

    def read(self, open_files: OpenFiles) -> Bytes:
        """Return the bytes of the arrays, one after the other; zeros behind an error."""
        packed, offset = np.zeros(self.nbytes, dtype=_BYTE), 0
        with open_files.trying():
            for file_array, byte_runs in self.runs:
                stop = offset + int(byte_runs[1].sum())
                open_files.fill(file_array, byte_runs, packed[offset:stop])
                offset = stop
        return packed

    def unpacked(self, packed: Bytes) -> Iterator[Array]:
        """Yield each array, a view of *packed*, the result of `read`."""
        offset = 0
        for array in self.arrays:
            if array.nbytes:
                yield np.ndarray(array.shape, array.dtype, buffer=packed.data, offset=offset)
            else:
                yield np.zeros(array.shape, array.dtype)
            offset += array.nbytes

    def reads(self) -> Iterator[Segment]:
        """Yield a segment for each call that reads: its bytes 0 to *stop* come from an offset of a file."""
        for file_array, byte_runs in self.runs:
            for start, length in zip(*joined_reads(byte_runs)[0], strict=True):
                yield Segment(file_array.name, 0, int(length), int(start))

    @cached_property
    def runs(self) -> list[tuple[Stored, ByteRuns]]:
        """The runs of bytes of the arrays in each file; a file is an array of its bytes."""
        segments = (segment for array in self.arrays for segment in array.segments)
        runs = []
        for name, file_segments in groupby(segments, key=lambda segment: segment.file):
            pairs = np.array([(s.offset, s.stop - s.start) for s in file_segments], dtype=np.intp)
            starts, lengths = pairs[:, 0], pairs[:, 1]
            end = int((starts + lengths).max())
            runs.append((in_one_file(name, (end,), _BYTE, 0, name), (starts, lengths)))
        return runs


def batches(arrays: Iterable[Stored], limit: int | None) -> Iterator[ReadBatch]:
    """Yield the small *arrays* in batches of at most *limit* bytes, and of at most `READ_TOGETHER`.

    A larger array is a batch by itself.
    """
    max_bytes = min(READ_TOGETHER, limit or DEFAULT_SCRATCH)
    batch: list[Stored] = []
    size = 0
    for array in arrays:
        if batch and size + array.nbytes > max_bytes:
            yield ReadBatch(tuple(batch), size)
            batch, size = [], 0
        batch.append(array)
        size += array.nbytes
    if batch:
        yield ReadBatch(tuple(batch), size)
