"""Cyclic cuts: an axis is cut into short blocks, which go to the devices in turn, as in ScaLAPACK.

A device holds runs of `block` elements, one every `period` elements. The cut is periodic, so no method takes longer
for a longer axis. In the memory of a device its runs lie one after the other.

            device 0    device 1    device 0    device 1    device 0
    global  0  1  2     3  4  5     6  7  8     9  10 11    12
    local   0  1  2     0  1  2     3  4  5     3  4  5     6
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Indices
from meshcomm.core.layouts.partition import AxisCut, ChosenCut, Consecutive, Cut, Interval, Runs
from meshcomm.errors import ShapeError


class _CyclicFields(NamedTuple):
    length: int
    blocks: int
    block: int
    offset: int


class CyclicCut(_CyclicFields, AxisCut):
    """An axis of *length* elements, cut into blocks of *block* elements that go to *blocks* devices in turn.

    All elements of one device are "its block", as for other cuts. The first short block goes to device *offset*.

    >>> cut = CyclicCut(13, 2, 3, 0)
    >>> cut.lengths(np.array([0, 1])).tolist(), cut.span(1)
    ([7, 6], Runs(first=3, length=6, block=3, period=6))
    """

    __slots__ = ()

    is_consecutive: Literal[False] = False

    @property
    def consecutive(self) -> Consecutive:
        """The cut into the same number of consecutive blocks, by default."""
        return Cut(self.length, self.blocks)

    @property
    def period(self) -> int:
        """The number of elements from a run of a device to its next run."""
        return min(self.block * self.blocks, LONGEST)

    def first_run_starts(self, numbers: Indices) -> Indices:
        """Return the start of the first run of each device; it may be beyond the end of the axis."""
        return np.minimum((numbers - self.offset) % self.blocks, -(-self.length // self.block)) * self.block

    def owners(self, run_numbers: Indices) -> Indices:
        """Return the device that holds each of these runs of the axis."""
        return (run_numbers + self.offset) % self.blocks

    def before(self, numbers: Indices, index: Indices | int) -> Indices:
        """Return the number of elements before *index* that each device holds.

        >>> CyclicCut(13, 2, 3, 0).before(np.array([0, 1]), 8).tolist()
        [5, 3]
        """
        periods, remainder = np.divmod(index, self.period)
        return periods * self.block + np.clip(remainder - self.first_run_starts(numbers), 0, self.block)

    def find(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the device that holds each element, and the index of the element in the device's block.

        >>> [array.tolist() for array in CyclicCut(13, 2, 3, 0).find(np.array([2, 3, 6]))]
        [[0, 1, 0], [2, 0, 3]]
        """
        numbers = self.owners(indices // self.block)
        return numbers, self.before(numbers, indices)

    def around(self, start: int, stop: int) -> Interval:
        """Return an interval with ``start:stop`` that begins with a run: a slice of it moves no elements.

        >>> CyclicCut(13, 2, 3, 0).around(5, 8)
        (3, 8)
        """
        return start // self.block * self.block, stop

    def flipped(self) -> "CyclicCut | None":
        """Return the cut of the reversed axis, over the devices in reverse order.

        None if the last run is shorter: it would be the first.

        >>> CyclicCut(9, 2, 3, 0).flipped(), CyclicCut(8, 2, 3, 0).flipped()
        (CyclicCut(length=9, blocks=2, block=3, offset=1), None)
        """
        count, remainder = divmod(self.length, self.block)
        return None if remainder else self._replace(offset=(self.blocks - count - self.offset) % self.blocks)

    def repeated(self, times: int) -> "CyclicCut":
        """Return the cut of the axis with each element repeated *times* times, on the same device."""
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
        """Return the elements of one device."""
        numbers = np.array([number], dtype=np.intp)
        first, length = int(self.first_run_starts(numbers)[0]), int(self.lengths(numbers)[0])
        return Runs(first if length else 0, length, self.block, self.period)

    def common(self, number: int, other: AxisCut, other_number: int) -> float:
        """Return an estimate of the number of elements that device *number* shares with a block of another cut."""
        return self.longest * other.longest / max(1, self.length)

    @property
    def shortest(self) -> int:
        """The smallest number of elements on a device."""
        return int(self.lengths(np.array([self.offset - 1], dtype=np.intp))[0])

    @property
    def longest(self) -> int:
        """The largest number of elements on a device."""
        return int(self.lengths(np.array([self.offset], dtype=np.intp))[0])


LONGEST = 1 << 62
"""An axis with chosen boundaries or a cyclic cut has fewer elements than this: beyond it, integers could overflow."""

AnyCut: TypeAlias = Cut | ChosenCut | CyclicCut
"""Any kind of `AxisCut`; type checkers tell the kinds apart by `is_consecutive`."""


def cyclic_cut(length: int, blocks: int, block: int, offset: int) -> AnyCut:
    """Return the cyclic cut, in its simplest form: consecutive if each device has at most one run.

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
    cut = ChosenCut(tuple(min(number * block, length) for number in range(blocks + 1)))
    return Cut(length, blocks) if cut.is_usual() else cut
