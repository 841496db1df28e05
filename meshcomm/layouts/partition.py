"""How an axis is cut into blocks: the one owner of the rule.

The rule is that of :func:`numpy.array_split`: the first blocks are one element longer than the others, as many of them
as there are elements left over, and blocks may be empty. No other file does this arithmetic: all code asks a `Cut`, by
itself or through ``Layout.cut``. One axis is solved here; a box in N dimensions is a product of intervals.

Rounds are another matter: `round_starts` says which elements of a packed box move in which round, which has nothing to
do with where the elements of an array live.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm._types import Indices

Interval: TypeAlias = tuple[int, int]  # start, stop


class Cut(NamedTuple):
    """An axis of *length* elements that is cut into consecutive *blocks*.

    Other code knows no more of the rule than these answers. `start` and `block_of` are the rule itself for one number,
    `starts` and `blocks_of` for many numbers at once; all other answers follow from these four, and from `shortest`,
    `longest` and `refines`.

    >>> cut = Cut(7, 3)
    >>> [cut.interval(number) for number in range(cut.blocks)]
    [(0, 3), (3, 5), (5, 7)]
    """

    length: int
    blocks: int

    def start(self, number: int) -> int:
        """Return the first index of block *number*; the number after the last one gives the end of the axis.

        >>> [Cut(7, 3).start(number) for number in range(4)]
        [0, 3, 5, 7]
        """
        length, longer = divmod(self.length, self.blocks)
        return number * length + min(number, longer)

    def block_of(self, index: int) -> int:
        """Return the number of the block that holds the element at *index*.

        >>> [Cut(7, 3).block_of(index) for index in range(7)]
        [0, 0, 0, 1, 1, 2, 2]
        """
        length, longer = divmod(self.length, self.blocks)
        if index < longer * (length + 1):
            return index // (length + 1)
        return longer + (index - longer * (length + 1)) // length

    def starts(self, numbers: Indices) -> Indices:
        """Return `start` of many blocks."""
        length, longer = divmod(self.length, self.blocks)
        return numbers * length + np.minimum(numbers, longer)

    def blocks_of(self, indices: Indices) -> Indices:
        """Return `block_of` for many elements."""
        length, longer = divmod(self.length, self.blocks)
        beyond = longer * (length + 1)
        return np.where(indices < beyond, indices // (length + 1), longer + (indices - beyond) // max(1, length))

    @property
    def shortest(self) -> int:
        """The number of elements in the shortest block."""
        return self.length // self.blocks

    @property
    def longest(self) -> int:
        """The number of elements in the longest block.

        >>> Cut(7, 3).longest, Cut(0, 3).longest
        (3, 0)
        """
        return -(-self.length // self.blocks)

    def refines(self, pieces: int) -> bool:
        """Return whether a cut into *pieces* times as many blocks cuts each of these blocks into *pieces* blocks.

        Cutting flat and cutting nested agree when the remainder is 0, 1 or one less than the number of blocks.

        >>> Cut(8, 2).refines(2), Cut(5, 2).refines(2), Cut(6, 2).refines(2), Cut(7, 2).refines(2)
        (True, True, False, True)
        """
        blocks = self.blocks * pieces
        return self.blocks == 1 or pieces == 1 or self.length % blocks in (0, 1, blocks - 1)

    def interval(self, number: int) -> Interval:
        """Return ``(start, stop)`` of block *number*."""
        return self.start(number), self.start(number + 1)

    def intervals(self, numbers: Indices) -> tuple[Indices, Indices]:
        """Return starts and stops of many blocks."""
        return self.starts(numbers), self.starts(numbers + 1)

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

    def most_overlapping(self, other: "Cut") -> int:
        """Return an upper bound on the blocks of the *other* cut that share an element with one block of this one.

        >>> Cut(12, 2).most_overlapping(Cut(12, 4)), Cut(12, 4).most_overlapping(Cut(12, 2))
        (3, 2)
        """
        return min(other.blocks, self.longest, (self.longest - 1) // max(1, other.shortest) + 2)


def round_starts(elements: Indices, rounds: int, number: int) -> Indices:
    """Return where round *number* of *rounds* begins in boxes with these numbers of *elements*.

    The kernel packs rounds by this rule, in ``Packing`` of ``_kernels.pyx``. It is array_split's too, but does not
    depend on how axes are cut.

    >>> round_starts(np.array([7, 2]), 3, 1).tolist()
    [3, 1]
    """
    if rounds == 1:
        return elements * number
    length, longer = np.divmod(elements, rounds)
    return length * number + np.minimum(longer, number)


def most_in_a_round(elements: Indices, boxes: int, rounds: int) -> Indices:
    """Return an upper bound on the elements that one of *rounds* moves of *boxes* boxes with so many *elements*.

    In a box, a round is at most one element longer than an even share of the elements beyond the first one.

    >>> most_in_a_round(np.array([10]), 2, 3).tolist()
    [4]
    """
    return np.maximum(elements - boxes, 0) // rounds + boxes
