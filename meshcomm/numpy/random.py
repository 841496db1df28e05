"""Random initial values that each rank makes for its own block, the same for every layout. No communication.

A counter-based generator makes a sequence of words, any of which it can make at once. Element *i* of the global array,
counted in row-major order, is made from the words number ``width * i`` to ``width * (i + 1) - 1``. So each rank makes
its block by itself, and all blocks together are the same array for every layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from meshcomm.core._arguments import as_dtype, as_shape, integer, quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.layouts.boxes import Box, box_size
from meshcomm.errors import DTypeError, ShapeError

_WORDS = 4  # words that Philox makes in one step of its counter
_BATCH = 1 << 16  # elements made at once; so the memory beside the block is at most 1.5 MiB


class Initializer(Protocol):
    """A function that makes a block of an initial value."""

    def __call__(self, slices: tuple[slice, ...], shape: Shape, dtype: DType, /) -> ArrayLike:
        """Return the block *slices* of the array of *shape* and *dtype*."""


@dataclass(frozen=True)
class _Uniform:
    seed: int
    low: float
    high: float

    def __call__(self, slices: tuple[slice, ...], shape: Sequence[int], dtype: DTypeLike) -> Array:
        return _block(self, 1, slices, shape, dtype)

    def values(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        return _unit(words) * (self.high - self.low) + self.low


@dataclass(frozen=True)
class _Normal:
    seed: int
    mean: float
    stddev: float

    def __call__(self, slices: tuple[slice, ...], shape: Sequence[int], dtype: DTypeLike) -> Array:
        return _block(self, 2, slices, shape, dtype)

    def values(self, words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Box and Muller's: a radius from the first word and an angle from the second one."""
        first, second = np.ascontiguousarray(_unit(words).reshape(-1, 2).T)
        values: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
        return values * self.stddev + self.mean


def random_uniform(seed: int, low: float = 0.0, high: float = 1.0) -> Initializer:
    """Return an initializer of numbers that are uniform between *low* and *high*.

    The same *seed* gives the same global array for every layout and number of ranks; arrays of different seeds are
    independent. ``ShapeError`` unless *seed* is an integer of up to 128 bits. The initializer raises ``DTypeError``
    for a dtype that is not of floating point.

    >>> whole = random_uniform(7)((slice(0, 2), slice(0, 3)), (2, 3), "f4")
    >>> block = random_uniform(7)((slice(0, 2), slice(1, 2)), (2, 3), "f4")
    >>> bool((block == whole[:, 1:2]).all())
    True
    """
    checked = _seed("random_uniform", seed)
    _numbers("random_uniform", low=low, high=high)
    return _Uniform(checked, low, high)


def random_normal(seed: int, mean: float = 0.0, stddev: float = 1.0) -> Initializer:
    """Return an initializer of numbers of a normal distribution.

    The same *seed* gives the same global array for every layout and number of ranks; arrays of different seeds are
    independent. ``ShapeError`` unless *seed* is an integer of up to 128 bits. The initializer raises ``DTypeError``
    for a dtype that is not of floating point.

    >>> random_normal(7)((slice(0, 2),), (1000,), "f4").shape
    (2,)
    """
    checked = _seed("random_normal", seed)
    _numbers("random_normal", mean=mean, stddev=stddev)
    return _Normal(checked, mean, stddev)


def _numbers(name: str, **arguments: float) -> None:
    """Raise ``ShapeError`` if one of the *arguments* of the function *name* is no real number."""
    for argument, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ShapeError(f"{name}: {argument} is a number, not {quote(value)}{_HOW.format(name)}")


def _seed(name: str, seed: int) -> int:
    try:
        checked = integer(seed, "seed", ShapeError)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}{_HOW.format(name)}") from None
    if not 0 <= checked < 1 << 128:
        raise ShapeError(f"{name}: seed {quote(seed)}; it must be zero or more and below 2**128")
    return checked


_HOW = "; mc.{0}(seed) makes an initializer, for mc.Variable(mc.{0}(seed), shape, dtype, layout=layout)"


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers of [0, 1) from the upper 53 bits of *words*."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _block(
    made: _Uniform | _Normal, width: int, slices: tuple[slice, ...], shape: Sequence[int], dtype: DTypeLike
) -> Array:
    """Return the block *slices* of the array of *shape* and *dtype*; *made* makes each element from *width* words."""
    kind, lengths = as_dtype(dtype), as_shape(shape)
    if kind.kind not in "fcV" or kind.type is np.void or not np.can_cast(np.float64, kind, "same_kind"):
        raise DTypeError(f"random real numbers cannot be of dtype {kind}; it must be of floating point")
    box = tuple(slice(*cut.indices(n)[:2]) for cut, n in zip(slices, lengths, strict=True))
    edges = tuple((cut.start, max(cut.start, cut.stop)) for cut in box)
    block = np.empty(tuple(stop - start for start, stop in edges), kind)
    if block.size:
        starts, count = _runs(edges, lengths)
        flat = block.reshape(len(starts), count)
        generator = _Generator(made.seed)
        for rows, columns in _batches(len(starts), count):
            n = columns.stop - columns.start
            words = [generator.words((start + columns.start) * width, n * width) for start in starts[rows]]
            flat[rows, columns] = made.values(np.concatenate(words)).reshape(-1, n)
    return block


def _runs(box: Box, shape: Shape) -> tuple[list[int], int]:
    """Return the starts of the contiguous runs of *box* in the array of *shape*, and the length of each run.

    >>> _runs(((0, 2), (1, 3)), (2, 4)), _runs(((1, 2), (0, 4)), (2, 4)), _runs((), ())
    (([1, 5], 2), ([4], 4), ([0], 1))
    """
    if not shape:
        return [0], 1
    inner = len(shape) - 1
    while inner and box[inner] == (0, shape[inner]):
        inner -= 1
    stride = prod(shape[inner + 1 :])
    starts = np.array([box[inner][0] * stride], dtype=np.int64)
    for axis in reversed(range(inner)):
        stride *= shape[axis + 1]
        starts = np.add.outer(np.arange(*box[axis], dtype=np.int64) * stride, starts).ravel()
    return starts.tolist(), box_size(box[inner:])


def _batches(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of batches of at most _BATCH elements: several whole rows, or a stretch of one.

    >>> list(_batches(2, 70000))[1]
    (slice(0, 1, None), slice(65536, 70000, None))
    """
    height = max(1, _BATCH // columns)
    for row in range(0, rows, height):
        for column in range(0, columns, _BATCH):
            yield slice(row, min(row + height, rows)), slice(column, min(column + _BATCH, columns))


class _Generator:
    """The words of Philox, which can be asked for in any order."""

    def __init__(self, seed: int) -> None:
        from numpy.random import Philox  # by np.random, two threads at once could end in a RecursionError

        self._bits = Philox(key=seed)
        self._counter = 0

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Return *count* words from number *start* on."""
        counter, skipped = divmod(start, _WORDS)
        steps = -(-(skipped + count) // _WORDS)
        self._bits.advance((counter - self._counter) % (1 << 256))
        self._counter = counter + steps
        words: NDArray[np.uint64] = self._bits.random_raw(steps * _WORDS)
        return words[skipped : skipped + count]
