"""How an axis is cut into consecutive blocks: the one owner of the rule.

By default the rule is that of :func:`numpy.array_split`: if n elements are left over, the first n blocks are one
element longer than the others; blocks may be empty. A `ChosenCut` has chosen boundaries. Cyclic cuts are in
:mod:`meshcomm.core.layouts.cyclic`. No other file does this arithmetic: all code asks a cut, directly or through
``Layout.cut``. A cut is of one axis; a box in N dimensions is a product of intervals.

Rounds are different: `round_starts` says which elements of a packed box move in which round. That does not depend on
how the axes are cut.
"""

from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._types import Indices

Interval: TypeAlias = tuple[int, int]  # start, stop


class Runs(NamedTuple):
    """Elements of an axis on one device: runs of *block* elements, one every *period* elements, *length* in all.

    The last run may be shorter. *first* is the start of the first run.
    """

    first: int
    length: int
    block: int
    period: int


Span: TypeAlias = Interval | Runs
"""The elements of one axis on a device."""


_FEW_BLOCKS = 8  # for fewer blocks, Python is faster than NumPy, measured


class AxisCut:
    """A cut of an axis into numbered blocks, one per device: consecutive, or cyclic.

    `Consecutive` and `CyclicCut` have the same methods; the methods that they call of each other are declared here.
    Methods for many blocks at once take arrays.
    """

    __slots__ = ()

    length: int
    """The number of elements along the axis."""
    blocks: int
    """The number of blocks."""
    is_consecutive: bool
    """Whether each block is one interval of the axis; blocks of a cyclic cut are not."""

    def span(self, number: int) -> Span:
        """Return the elements of the device with this *number*: one interval, or runs."""
        raise NotImplementedError

    def intervals(self, number: int, start: int = 0, stop: int | None = None) -> list[Interval]:
        """Return the runs of block *number*, or of its elements *start* to *stop*, in order, without empty ones.

        >>> Cut(7, 3).intervals(1), Cut(7, 3).intervals(1, 1, 1)
        ([(3, 5)], [])
        """
        return intervals_of(self.span(number), start, stop)

    def indices(self, number: int) -> Indices:
        """Return the global indices of the elements of block *number*, in order.

        >>> Cut(7, 3).indices(1).tolist()
        [3, 4]
        """
        return indices_of(self.span(number))

    def common(self, number: int, other: "AxisCut", other_number: int) -> float:
        """Return the number of elements that block *number* shares with a block of *other*: an estimate if cyclic."""
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """The number of elements in the longest block."""
        raise NotImplementedError


class Consecutive(AxisCut):
    """A cut into consecutive blocks; subclasses define its rule by four methods.

    `start` and `block_of` are the rule for one number, `starts` and `blocks_of` for many numbers at once.
    """

    __slots__ = ()

    is_consecutive: Literal[True] = True

    @property
    def consecutive(self) -> "Consecutive":
        """The cut into the same number of consecutive blocks: this one."""
        return self

    @property
    def period(self) -> int:
        """The number of elements from a run of a device to its next run: the length, as each device has one run."""
        return self.length

    def start(self, number: int) -> int:
        """Return the first index of block *number*; the number after the last one gives the end of the axis."""
        raise NotImplementedError

    def block_of(self, index: int) -> int:
        """Return the number of the block that holds the element at *index*."""
        raise NotImplementedError

    def starts(self, numbers: Indices) -> Indices:
        """Return `start` of many blocks."""
        raise NotImplementedError

    def blocks_of(self, indices: Indices) -> Indices:
        """Return `block_of` for many elements."""
        raise NotImplementedError

    def find(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the number of the block that holds each element, and the index of the element in this block.

        >>> [array.tolist() for array in Cut(7, 3).find(np.array([2, 3, 6]))]
        [[0, 1, 2], [2, 0, 1]]
        """
        numbers = self.blocks_of(indices)
        return numbers, indices - self.starts(numbers)

    def around(self, start: int, stop: int) -> Interval:
        """Return an interval with ``start:stop`` where a slice of it moves no elements: the whole axis."""
        return 0, self.length

    def flipped(self) -> "ChosenCut":
        """Return the cut of the reversed axis, over the devices in reverse order.

        >>> Cut(5, 2).flipped()
        ChosenCut(boundaries=(0, 2, 5))
        """
        return ChosenCut(tuple(self.length - start for start in reversed(self.all_starts())))

    def repeated(self, times: int) -> "ChosenCut":
        """Return the cut of the axis with each element repeated *times* times, on the same device.

        >>> Cut(5, 2).repeated(2)
        ChosenCut(boundaries=(0, 6, 10))
        """
        return ChosenCut(tuple(start * times for start in self.all_starts()))

    def nonempty_before(self, numbers: Indices) -> Indices:
        """Return, for each of *numbers*, the count of nonempty blocks with a smaller number."""
        raise NotImplementedError

    @property
    def shortest(self) -> int:
        """The number of elements in the shortest block."""
        raise NotImplementedError

    def all_starts(self) -> list[int]:
        """Return the starts of all blocks, and the end of the axis.

        >>> Cut(7, 3).all_starts()
        [0, 3, 5, 7]
        """
        if self.blocks < _FEW_BLOCKS:
            return [self.start(number) for number in range(self.blocks + 1)]
        return self.starts(np.arange(self.blocks + 1, dtype=np.intp)).tolist()

    def interval(self, number: int) -> Interval:
        """Return ``(start, stop)`` of block *number*."""
        return self.start(number), self.start(number + 1)

    span = interval

    def ends(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return starts and stops of many blocks."""
        return self.starts(numbers), self.starts(numbers + 1)

    def lengths(self, numbers: Indices) -> Indices:
        """Return the number of elements in each of many blocks."""
        starts, stops = self.ends(numbers)
        return stops - starts

    def before(self, numbers: Indices, index: Indices | int) -> Indices:
        """Return the number of elements before *index* that each block holds.

        >>> Cut(7, 3).before(np.array([0, 1, 2]), 4).tolist()
        [3, 1, 0]
        """
        starts, stops = self.ends(numbers)
        return np.clip(index, starts, stops) - starts

    def runs_of(self, length: int) -> int:
        """Return how many runs of consecutive elements a block of *length* elements has."""
        return 1

    @property
    def runs(self) -> int:
        """The number of runs of the axis: intervals of one block each. Empty blocks have none."""
        return int(self.nonempty_before(np.array([self.blocks], dtype=np.intp))[0])

    def run(self, number: int) -> tuple[int, int, int]:
        """Return ``(start, stop, block)`` of run *number*.

        >>> [Cut(2, 3).run(number) for number in range(Cut(2, 3).runs)], ChosenCut((0, 4, 4, 6)).run(1)
        ([(0, 1, 0), (1, 2, 1)], (4, 6, 2))
        """
        return *self.interval(number), number

    def runs_within(self, start: int, stop: int) -> range:
        """Return the numbers of the runs that share an index with ``start:stop``, which is not empty.

        >>> Cut(5, 8).runs_within(1, 3), ChosenCut((0, 4, 4, 6)).runs_within(3, 6)
        (range(1, 3), range(0, 2))
        """
        ends = np.array([self.block_of(start), self.block_of(stop - 1)], dtype=np.intp)
        first, last = self.nonempty_before(ends).tolist()
        return range(first, last + 1)

    def overlapping(self, interval: Interval) -> range:
        """Return the numbers of the blocks that share an element with *interval*; empty blocks between are included.

        >>> Cut(7, 3).overlapping((2, 5)), Cut(7, 3).overlapping((4, 4))
        (range(0, 2), range(0, 0))
        """
        start, stop = interval
        if start >= stop:
            return range(0)
        return range(self.block_of(start), self.block_of(stop - 1) + 1)

    def first_and_last(self, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
        """Return the first and the last block that share an element with each interval.

        An empty interval gives the one block at its start.
        """
        return self.blocks_of(starts), self.blocks_of(np.maximum(stops - 1, starts))

    def common(self, number: int, other: AxisCut, other_number: int) -> float:
        """Return the number of elements that block *number* shares with a block of *other*: an estimate if cyclic.

        >>> Cut(7, 2).common(0, Cut(7, 3), 1)
        1
        """
        if not isinstance(other, Consecutive):
            return other.common(other_number, self, number)
        (start, stop), (first, last) = self.interval(number), other.interval(other_number)
        return max(0, min(stop, last) - max(start, first))

    def most_overlapping(self, other: "Consecutive") -> int:
        """Return an upper bound on the blocks of the *other* cut that share an element with one block of this one.

        >>> Cut(12, 2).most_overlapping(Cut(12, 4)), Cut(12, 4).most_overlapping(Cut(12, 2))
        (3, 2)
        """
        return min(other.blocks, self.longest, (self.longest - 1) // max(1, other.shortest) + 2)


class _LengthAndBlocks(NamedTuple):
    length: int
    blocks: int


class Cut(_LengthAndBlocks, Consecutive):
    """An axis of *length* elements that is cut into consecutive *blocks*, as numpy.array_split cuts.

    >>> cut = Cut(7, 3)
    >>> [cut.interval(number) for number in range(cut.blocks)]
    [(0, 3), (3, 5), (5, 7)]
    """

    __slots__ = ()

    def start(self, number: int) -> int:
        """Return the first index of block *number*; the number after the last one gives the end of the axis.

        >>> [Cut(7, 3).start(number) for number in range(4)]
        [0, 3, 5, 7]
        """
        length, remainder = divmod(self.length, self.blocks)
        return number * length + min(number, remainder)

    def block_of(self, index: int) -> int:
        """Return the number of the block that holds the element at *index*.

        >>> [Cut(7, 3).block_of(index) for index in range(7)]
        [0, 0, 0, 1, 1, 2, 2]
        """
        length, remainder = divmod(self.length, self.blocks)
        if index < remainder * (length + 1):
            return index // (length + 1)
        return remainder + (index - remainder * (length + 1)) // length

    def starts(self, numbers: Indices) -> Indices:
        length, remainder = divmod(self.length, self.blocks)
        return numbers * length + np.minimum(numbers, remainder)

    def blocks_of(self, indices: Indices) -> Indices:
        length, remainder = divmod(self.length, self.blocks)
        longest = length + bool(remainder)  # no overflow: an axis may have 2**63 - 1 elements
        split = remainder * longest  # the first index in a shorter block
        return np.where(indices < split, indices // max(1, longest), remainder + (indices - split) // max(1, length))

    def nonempty_before(self, numbers: Indices) -> Indices:
        return numbers if self.shortest else self.starts(numbers)  # blocks of one element, or of none

    @property
    def shortest(self) -> int:
        return self.length // self.blocks

    @property
    def longest(self) -> int:
        """The number of elements in the longest block.

        >>> Cut(7, 3).longest, Cut(0, 3).longest
        (3, 0)
        """
        return -(-self.length // self.blocks)

    def refines(self, factor: int) -> bool:
        """Return whether a cut into *factor* times as many blocks cuts each of these blocks into *factor* blocks.

        Cutting flat and cutting nested agree when the remainder is 0, 1 or one less than the number of blocks.

        >>> Cut(8, 2).refines(2), Cut(5, 2).refines(2), Cut(6, 2).refines(2), Cut(7, 2).refines(2)
        (True, True, False, True)
        """
        blocks = self.blocks * factor
        return self.blocks == 1 or factor == 1 or self.length % blocks in (0, 1, blocks - 1)


class _Boundaries(NamedTuple):
    boundaries: tuple[int, ...]


class ChosenCut(_Boundaries, Consecutive):
    """An axis that is cut at chosen *boundaries*: ascending, from 0 to the length. Blocks may be empty.

    >>> cut = ChosenCut((0, 4, 4, 6))
    >>> [cut.interval(number) for number in range(cut.blocks)], [cut.block_of(index) for index in range(6)]
    ([(0, 4), (4, 4), (4, 6)], [0, 0, 0, 0, 2, 2])
    """

    __slots__ = ()

    @property
    def length(self) -> int:  # type: ignore[override]
        """The number of elements along the axis."""
        return self.boundaries[-1]

    @property
    def blocks(self) -> int:  # type: ignore[override]
        """The number of blocks."""
        return len(self.boundaries) - 1

    def all_starts(self) -> list[int]:
        return list(self.boundaries)

    def start(self, number: int) -> int:
        return self.boundaries[number]

    def block_of(self, index: int) -> int:
        return min(bisect_right(self.boundaries, index) - 1, self.blocks - 1)

    def starts(self, numbers: Indices) -> Indices:
        return _boundary_arrays(self.boundaries)[0][numbers]

    def blocks_of(self, indices: Indices) -> Indices:
        numbers = np.searchsorted(_boundary_arrays(self.boundaries)[0], indices, side="right").astype(np.intp) - 1
        return np.minimum(numbers, self.blocks - 1)

    def nonempty_before(self, numbers: Indices) -> Indices:
        return _boundary_arrays(self.boundaries)[1][numbers]

    def run(self, number: int) -> tuple[int, int, int]:
        return super().run(int(np.searchsorted(_boundary_arrays(self.boundaries)[1], number, side="right")) - 1)

    @property
    def shortest(self) -> int:
        return min(stop - start for start, stop in pairwise(self.boundaries))

    @property
    def longest(self) -> int:
        return max(stop - start for start, stop in pairwise(self.boundaries))

    def is_usual(self) -> bool:
        """Return whether numpy.array_split cuts at the same boundaries.

        >>> ChosenCut((0, 4, 6, 8)).is_usual(), ChosenCut((0, 3, 6, 8)).is_usual()
        (False, True)
        """
        return Cut(self.length, self.blocks).all_starts() == list(self.boundaries)


@lru_cache(maxsize=256)
def _boundary_arrays(boundaries: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Return *boundaries* as an array, and the count of nonempty blocks before each one."""
    array = np.array(boundaries, dtype=np.intp)
    return array, np.concatenate([[0], np.cumsum(np.diff(array) > 0)]).astype(np.intp)


# -- the elements of an axis on one device ----------------------------------------------------------------------------


def length_of(span: Span) -> int:
    """Return how many elements *span* has.

    >>> length_of((2, 5)), length_of(Runs(0, 7, 3, 6))
    (3, 7)
    """
    return span.length if isinstance(span, Runs) else span[1] - span[0]


def intervals_of(span: Span, start: int = 0, stop: int | None = None) -> list[Interval]:
    """Return the runs of *span*, or of its elements *start* to *stop*, in order, without empty ones.

    >>> intervals_of((2, 5)), intervals_of(Runs(3, 4, 3, 6)), intervals_of(Runs(3, 4, 3, 6), 1, 4)
    ([(2, 5)], [(3, 6), (9, 10)], [(4, 6), (9, 10)])
    """
    stop = length_of(span) if stop is None else stop
    if start >= stop:
        return []
    if not isinstance(span, Runs):
        return [(span[0] + start, span[0] + stop)]
    first, last = global_indices(span, np.array([start, stop - 1], dtype=np.intp)).tolist()
    run_starts = range(first - (first - span.first) % span.period, last + 1, span.period)
    return [(max(run_start, first), min(run_start + span.block, last + 1)) for run_start in run_starts]


def extent_of(span: Span) -> Interval:
    """Return the interval from the first index of *span* to its last one.

    >>> extent_of((2, 5)), extent_of(Runs(3, 4, 3, 6))
    ((2, 5), (3, 10))
    """
    if not isinstance(span, Runs):
        return span
    return span.first, int(global_indices(span, np.array([span.length - 1], dtype=np.intp))[0]) + 1


def indices_of(span: Span) -> Indices:
    """Return the global indices of the elements of *span*, in order.

    >>> indices_of(Runs(3, 4, 3, 6)).tolist()
    [3, 4, 5, 9]
    """
    if not isinstance(span, Runs):
        return np.arange(*span, dtype=np.intp)
    return global_indices(span, np.arange(span.length, dtype=np.intp))


def local_indices(span: Span, indices: Indices) -> Indices:
    """Return the indices in a block with this *span* of its elements at global *indices*."""
    if not isinstance(span, Runs):
        return indices - span[0]
    periods, offsets = np.divmod(indices - span.first, span.period)
    return periods * span.block + offsets


def indices_within(span: Span, begin: int, end: int) -> tuple[Indices | slice, slice]:
    """Return the elements from global index *begin* to *end* that a block with this *span* holds.

    They are indices counted from *begin*, and indices in the block. *end* is at most the length of the axis.

    >>> indices_within((3, 5), 4, 8), indices_within(Runs(1, 4, 2, 3), 4, 6)
    ((slice(0, 1, None), slice(1, 2, None)), (array([0, 1]), slice(2, 4, None)))
    """
    if not isinstance(span, Runs):
        low = max(span[0], begin)
        high = max(low, min(span[1], end))
        return slice(low - begin, high - begin), slice(low - span[0], high - span[0])
    distances = np.arange(begin, end, dtype=np.intp) - span.first
    offsets = np.flatnonzero((distances >= 0) & (distances % span.period < span.block)).astype(np.intp)
    first = int(local_indices(span, offsets[:1] + begin)[0]) if len(offsets) else 0
    return offsets, slice(first, first + len(offsets))


def global_indices(span: Span, indices: Indices) -> Indices:
    """Return the global indices of elements at *indices* in a block with this *span*; `local_indices` is the inverse.

    >>> global_indices(Runs(3, 4, 3, 6), np.array([2, 3])).tolist()
    [5, 9]
    """
    if not isinstance(span, Runs):
        return indices + span[0]
    periods, offsets = np.divmod(indices, span.block)
    return span.first + periods * span.period + offsets


def local_steps(span: Span, steps: Indices) -> Indices:
    """Return *steps* between elements of the global array as steps in a block with this *span*.

    A step is either a multiple of the period, or stays within a run.
    """
    if not isinstance(span, Runs):
        return steps
    periods, offsets = np.divmod(steps, span.period)
    return periods * span.block + offsets


# -- rounds -----------------------------------------------------------------------------------------------------------


def round_starts(elements: Indices, rounds: int, number: int) -> Indices:
    """Return the first element of round *number* of *rounds* in boxes with these numbers of *elements*.

    The kernel packs rounds by this rule, in ``Packing`` of ``_kernels.pyx``. It is also the rule of array_split, but
    does not depend on how axes are cut.

    >>> round_starts(np.array([7, 2]), 3, 1).tolist()
    [3, 1]
    """
    if rounds == 1:
        return elements * number
    length, remainder = np.divmod(elements, rounds)
    return length * number + np.minimum(remainder, number)


def max_round_elements(elements: Indices, boxes: int, rounds: int) -> Indices:
    """Return an upper bound on the elements in one of *rounds* rounds, of *boxes* boxes with *elements* in total.

    In a box, a round has at most one element more than an equal fraction of the elements after the first one.

    >>> max_round_elements(np.array([10]), 2, 3).tolist()
    [4]
    """
    return np.maximum(elements - boxes, 0) // rounds + boxes
