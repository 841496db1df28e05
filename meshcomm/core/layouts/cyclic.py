"""Blocks dealt round: an axis is cut into short blocks, which go to the devices in turn, as ScaLAPACK has it.

A device holds runs of `block` elements, one every `period` elements: periodic, so that no answer takes longer the
longer the axis is. In the memory of a device its runs lie one after the other.

            device 0    device 1    device 0    device 1    device 0
    global  0  1  2     3  4  5     6  7  8     9  10 11    12
    local   0  1  2     0  1  2     3  4  5     3  4  5     6
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Indices
from meshcomm.core.layouts.partition import ChosenCut, Consecutive, Cut, Interval
from meshcomm.errors import ShapeError


class Runs(NamedTuple):
    """What a device holds of an axis: runs of *block* elements, one every *period* elements, *length* elements in all.

    The last run may be shorter. *first* is where the first one begins.
    """

    first: int
    length: int
    block: int
    period: int


Span: TypeAlias = Interval | Runs
"""What a device holds of one axis."""


class CyclicCut(NamedTuple):
    """An axis of *length* elements, cut into blocks of *block* elements that are dealt round to *blocks* devices.

    What one device holds is "its block", as for other cuts. The first short block goes to device *offset*.

    >>> cut = CyclicCut(13, 2, 3, 0)
    >>> cut.lengths(np.array([0, 1])).tolist(), cut.span(1)
    ([7, 6], Runs(first=3, length=6, block=3, period=6))
    """

    length: int
    blocks: int
    block: int
    offset: int

    @property
    def is_consecutive(self) -> Literal[False]:
        """Whether each block is one stretch of the axis."""
        return False

    @property
    def undealt(self) -> Consecutive:
        """The cut into as many consecutive blocks."""
        return Cut(self.length, self.blocks)

    @property
    def period(self) -> int:
        """The elements after which the same device has its next run."""
        return min(self.block * self.blocks, LONGEST)

    def firsts(self, numbers: Indices) -> Indices:
        """Return where the first run of each device begins; it may be beyond the end of the axis."""
        return np.minimum((numbers - self.offset) % self.blocks, -(-self.length // self.block)) * self.block

    def owners(self, short_blocks: Indices) -> Indices:
        """Return the device that holds each of these short blocks of the axis."""
        return (short_blocks + self.offset) % self.blocks

    def before(self, numbers: Indices, index: Indices | int) -> Indices:
        """Return how many of the elements before *index* each device holds.

        >>> CyclicCut(13, 2, 3, 0).before(np.array([0, 1]), 8).tolist()
        [5, 3]
        """
        rounds, rest = np.divmod(index, self.period)
        inside: Indices = rounds * self.block + np.clip(rest - self.firsts(numbers), 0, self.block)
        return inside

    def find(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the devices that hold these elements, and where they are in their blocks.

        >>> [each.tolist() for each in CyclicCut(13, 2, 3, 0).find(np.array([2, 3, 6]))]
        [[0, 1, 0], [2, 0, 3]]
        """
        numbers = self.owners(indices // self.block)
        return numbers, self.before(numbers, indices)

    def around(self, start: int, stop: int) -> Interval:
        """Return the ends of a stretch with ``start:stop`` that begins with a run, and can stay where it is.

        >>> CyclicCut(13, 2, 3, 0).around(5, 8)
        (3, 8)
        """
        return start // self.block * self.block, stop

    def flipped(self) -> "CyclicCut | None":
        """Return how the axis is cut in reverse order, if the devices are in reverse order, too.

        None if the last run is shorter: it would be the first.

        >>> CyclicCut(9, 2, 3, 0).flipped(), CyclicCut(8, 2, 3, 0).flipped()
        (CyclicCut(length=9, blocks=2, block=3, offset=1), None)
        """
        count, rest = divmod(self.length, self.block)
        return None if rest else self._replace(offset=(self.blocks - count - self.offset) % self.blocks)

    def repeated(self, times: int) -> "CyclicCut":
        """Return how the axis is cut if each element is there so many *times*, where it was."""
        return self._replace(length=self.length * times, block=self.block * times)

    def lengths(self, numbers: Indices) -> Indices:
        """Return the number of elements that each device holds."""
        return self.before(numbers, self.length)

    def runs_of(self, length: int) -> int:
        """Return how many runs of consecutive elements a device with *length* elements has."""
        return -(-length // self.block)

    @property
    def runs(self) -> int:
        """How many runs of consecutive elements of one device the axis has."""
        return self.runs_of(self.length)

    def run(self, number: int) -> tuple[int, int, int]:
        """Return ``(start, stop, device)`` of run *number*.

        >>> cut = CyclicCut(7, 2, 3, 0)
        >>> [cut.run(number) for number in range(cut.runs)]
        [(0, 3, 0), (3, 6, 1), (6, 7, 0)]
        """
        start = number * self.block
        return start, min(start + self.block, self.length), (number + self.offset) % self.blocks

    def runs_within(self, start: int, stop: int) -> range:
        """Return the numbers of the runs that share an index with ``start:stop``."""
        return range(start // self.block, -(-stop // self.block))

    def span(self, number: int) -> Runs:
        """Return what one device holds."""
        one = np.array([number], dtype=np.intp)
        first, length = int(self.firsts(one)[0]), int(self.lengths(one)[0])
        return Runs(first if length else 0, length, self.block, self.period)

    def common(self, number: int, other: "Consecutive | CyclicCut", its_number: int) -> float:
        """Return about how many elements the device with this *number* shares with a block of another cut."""
        return self.longest * other.longest / max(1, self.length)

    @property
    def shortest(self) -> int:
        """The fewest elements that a device holds."""
        return int(self.lengths(np.array([self.offset - 1], dtype=np.intp))[0])

    @property
    def longest(self) -> int:
        """The most elements that a device holds."""
        return int(self.lengths(np.array([self.offset], dtype=np.intp))[0])


LONGEST = 1 << 62
"""Elements of the longest axis with chosen boundaries, or blocks dealt round: beyond it, numbers could overflow."""


AnyCut: TypeAlias = Cut | ChosenCut | CyclicCut


def cyclic_cut(length: int, blocks: int, block: int, offset: int) -> AnyCut:
    """Return the cut into blocks dealt round, in its simplest form: consecutive, if each device gets one run at most.

    ``ShapeError`` if the axis is too long.

    >>> cyclic_cut(5, 3, 2, 0), cyclic_cut(6, 3, 3, 0)
    (Cut(length=5, blocks=3), ChosenCut(boundaries=(0, 3, 6, 6)))
    """
    if blocks == 1:
        return Cut(length, 1)
    if length >= LONGEST:
        raise ShapeError(f"an axis of {quote(length)} elements is too long to be dealt round; it has fewer than 2**62")
    block = min(block, max(1, length))
    if offset or length > block * blocks:
        return CyclicCut(length, blocks, block, offset)
    chosen = ChosenCut(tuple(min(number * block, length) for number in range(blocks + 1)))
    return Cut(length, blocks) if chosen.is_usual() else chosen


def span_of(cut: AnyCut, number: int) -> Span:
    """Return what the device with this *number* holds."""
    return cut.interval(number) if isinstance(cut, Consecutive) else cut.span(number)


def length_of(span: Span) -> int:
    """Return how many elements *span* has.

    >>> length_of((2, 5)), length_of(Runs(0, 7, 3, 6))
    (3, 7)
    """
    return span.length if isinstance(span, Runs) else span[1] - span[0]


def intervals_of(span: Span, start: int = 0, stop: int | None = None) -> list[Interval]:
    """Return the runs of *span*, in order, or of its elements *start* to *stop*; one without elements is left out.

    >>> intervals_of((2, 5)), intervals_of(Runs(3, 4, 3, 6)), intervals_of(Runs(3, 4, 3, 6), 1, 4)
    ([(2, 5)], [(3, 6), (9, 10)], [(4, 6), (9, 10)])
    """
    stop = length_of(span) if stop is None else stop
    if start >= stop:
        return []
    if not isinstance(span, Runs):
        return [(span[0] + start, span[0] + stop)]
    first, last = global_indices(span, np.array([start, stop - 1], dtype=np.intp)).tolist()
    begins = range(first - (first - span.first) % span.period, last + 1, span.period)
    return [(max(begin, first), min(begin + span.block, last + 1)) for begin in begins]


def extent_of(span: Span) -> Interval:
    """Return the first index that *span* has, and the one behind its last.

    >>> extent_of((2, 5)), extent_of(Runs(3, 4, 3, 6))
    ((2, 5), (3, 10))
    """
    if not isinstance(span, Runs):
        return span
    return span.first, int(global_indices(span, np.array([span.length - 1], dtype=np.intp))[0]) + 1


def indices_of(span: Span) -> Indices:
    """Return the global indices that *span* has, in order.

    >>> indices_of(Runs(3, 4, 3, 6)).tolist()
    [3, 4, 5, 9]
    """
    if not isinstance(span, Runs):
        return np.arange(*span, dtype=np.intp)
    return global_indices(span, np.arange(span.length, dtype=np.intp))


def local_indices(span: Span, indices: Indices) -> Indices:
    """Return where elements lie in a block that is *span*, from their global *indices*, which it holds."""
    if not isinstance(span, Runs):
        return indices - span[0]
    rounds, inside = np.divmod(indices - span.first, span.period)
    return rounds * span.block + inside


def held_within(span: Span, begin: int, end: int) -> tuple[Indices | slice, slice]:
    """Return what a block that is *span* holds of the indices *begin* to *end*, from *begin* on, and where in it.

    *end* is at most the length of the axis.

    >>> held_within((3, 5), 4, 8), held_within(Runs(1, 4, 2, 3), 4, 6)
    ((slice(0, 1, None), slice(1, 2, None)), (array([0, 1]), slice(2, 4, None)))
    """
    if not isinstance(span, Runs):
        low = max(span[0], begin)
        high = max(low, min(span[1], end))
        return slice(low - begin, high - begin), slice(low - span[0], high - span[0])
    beyond = np.arange(begin, end, dtype=np.intp) - span.first
    held = np.flatnonzero((beyond >= 0) & (beyond % span.period < span.block)).astype(np.intp)
    first = int(local_indices(span, held[:1] + begin)[0]) if len(held) else 0
    return held, slice(first, first + len(held))


def global_indices(span: Span, indices: Indices) -> Indices:
    """Return the global indices of elements from where they lie in a block that is *span*: `local_indices` reversed.

    >>> global_indices(Runs(3, 4, 3, 6), np.array([2, 3])).tolist()
    [5, 9]
    """
    if not isinstance(span, Runs):
        return indices + span[0]
    rounds, inside = np.divmod(indices, span.block)
    return span.first + rounds * span.period + inside


def local_steps(span: Span, steps: Indices) -> Indices:
    """Return how far apart elements lie in a block that is *span*, if they are *steps* apart in the global array.

    A step is either a multiple of the period, or stays within a run.
    """
    if not isinstance(span, Runs):
        return steps
    rounds, inside = np.divmod(steps, span.period)
    return rounds * span.block + inside
