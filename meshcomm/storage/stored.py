"""Where the arrays of a file are: values that ranks exchange as JSON."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._tuning import PAGE
from meshcomm.core._types import DType, Indices, Shape
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text

known_dtype = lru_cache(maxsize=256)(dtype_of_text)  # many arrays have few dtypes


class Segment(NamedTuple):
    """The bytes *start* to *stop* of an array in row-major order are in *file*, from *offset* on.

    *file* is relative to the path that was saved; "" is that path itself.
    """

    file: str
    start: int
    stop: int
    offset: int


class Chunking(NamedTuple):
    """How an array is cut into chunks of one *shape*, and the *codecs* that encode each: names with their levels."""

    shape: Shape
    codecs: tuple[tuple[str, int | None], ...]


StoredFields: TypeAlias = tuple[str, Shape, str, tuple[Segment, ...], bool, int, Chunking | None]
"""The fields of a `Stored`, with the text of its dtype, as JSON can hold them."""


class Stored(NamedTuple):
    """An array in files. If it is in *fortran* order, *shape* is of its transpose, which is in row-major order.

    Ranks that write it cut it at multiples of *unit* bytes, and it begins at such a multiple in its file. An array
    in *chunks* has no segments: only a library can read it, and the location of a chunk is known only when the chunk
    is encoded.
    """

    name: str
    shape: Shape
    dtype: DType
    segments: tuple[Segment, ...]
    fortran: bool = False
    unit: int = PAGE
    chunks: Chunking | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def array_shape(self) -> Shape:
        """The shape of the array, as programs see it."""
        return self.shape[::-1] if self.fortran else self.shape

    def by_library(self, chunk: Shape) -> "Stored":
        """Return this as an array that only a library can read, in chunks of this shape."""
        return self._replace(segments=(), chunks=Chunking(tuple(max(1, n) for n in chunk), ()))

    @property
    def begin(self) -> int:
        """The offset of its first byte in the file that has this byte; 0 if the array is empty."""
        return self.segments[0].offset if self.segments else 0

    def as_json(self) -> StoredFields:
        """Return this as JSON can hold it."""
        return (self.name, self.shape, dtype_text(self.dtype), *self[3:])

    @classmethod
    def from_json(cls, values: StoredFields) -> "Stored":
        """Return the array of *values*, the result of `as_json` with lists in place of tuples."""
        name, shape, dtype, segments, fortran, unit, chunks = values
        if chunks is not None:
            chunks = Chunking(tuple(chunks[0]), tuple((name, level) for name, level in chunks[1]))
        return cls(name, tuple(shape), known_dtype(dtype), tuple(map(Segment._make, segments)), fortran, unit, chunks)

    def pieces(self, starts: Indices, lengths: Indices) -> Iterator[tuple[Segment, int, int, int]]:
        """Yield (segment, offset in its file, offset in the block, bytes) for runs of bytes of the array.

        Runs follow one another in a block.
        """
        block_offset, ends = 0, [segment.stop for segment in self.segments]
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            stop = start + length
            number = int(np.searchsorted(ends, start, side="right"))
            while start < stop:
                segment = self.segments[number]
                end = min(stop, segment.stop)
                yield segment, segment.offset + start - segment.start, block_offset, end - start
                block_offset, start, number = block_offset + end - start, end, number + 1

    def runs(self, starts: Indices, lengths: Indices) -> Iterator[tuple[Segment, Indices, Indices]]:
        """Yield (segment, offsets in its file, bytes) for runs of bytes of the array that are in order.

        They follow one another in a block.
        """
        nonempty = lengths > 0
        starts, stops = starts[nonempty], (starts + lengths)[nonempty]
        ends = [segment.stop for segment in self.segments]
        for segment in self.segments[bisect_right(ends, starts[0]) :] if len(starts) else ():
            if segment.start >= stops[-1]:
                break
            first, last = np.searchsorted(stops, segment.start, side="right"), np.searchsorted(starts, segment.stop)
            if first == last:  # it is between two runs
                continue
            begins = np.maximum(starts[first:last], segment.start)
            yield (
                segment,
                begins + (segment.offset - segment.start),
                np.minimum(stops[first:last], segment.stop) - begins,
            )

    def calls(self, starts: Indices, lengths: Indices) -> int:
        """Return how many pieces `pieces` yields."""
        ends = np.array([segment.stop for segment in self.segments], dtype=np.intp)
        nonempty = lengths > 0
        first = np.searchsorted(ends, starts[nonempty], side="right")
        last = np.searchsorted(ends, starts[nonempty] + lengths[nonempty] - 1, side="right")
        return int((last - first + 1).sum())


def in_one_file(name: str, shape: Shape, dtype: DType, offset: int, file: str = "") -> Stored:
    """Return an array that is in one run from *offset* on."""
    nbytes = prod(shape) * dtype.itemsize
    segments = (Segment(file, 0, nbytes, offset),) if nbytes else ()
    return Stored(name, shape, dtype, segments)
