"""How one axis of *n* elements is cut into blocks; pure arithmetic on integers and on arrays of them.

The rule is that of :func:`numpy.array_split`: the first ``n % parts`` blocks are one element longer, and blocks may be
empty. One dimension is solved here; a box in N dimensions is a product of intervals.
"""

from typing import TypeAlias

import numpy as np

from meshcomm._types import Indices

Interval: TypeAlias = tuple[int, int]  # start, stop


def block_start(n: int, parts: int, number: int) -> int:
    """Return where block *number* of *parts* begins on an axis of *n* elements; number ``parts`` is the end. Local.

    >>> [block_start(7, 3, i) for i in range(4)]
    [0, 3, 5, 7]
    """
    length, longer = divmod(n, parts)
    return number * length + min(number, longer)


def block_interval(n: int, parts: int, number: int) -> Interval:
    """Return ``(start, stop)`` of block *number* of *parts* on an axis of *n* elements. Local.

    >>> [block_interval(4, 3, i) for i in range(3)]
    [(0, 2), (2, 3), (3, 4)]
    """
    return block_start(n, parts, number), block_start(n, parts, number + 1)


def block_number(n: int, parts: int, index: int) -> int:
    """Return the number of the block that holds element *index* of an axis of *n* elements. Local.

    >>> [block_number(7, 3, i) for i in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    """
    length, longer = divmod(n, parts)
    if index < longer * (length + 1):
        return index // (length + 1)
    return longer + (index - longer * (length + 1)) // length


def overlapping(n: int, parts: int, interval: Interval) -> range:
    """Return the numbers of the blocks that share an element with *interval*. Local.

    >>> overlapping(7, 3, (2, 5))
    range(0, 2)
    >>> overlapping(7, 3, (4, 4))
    range(0, 0)
    """
    start, stop = interval
    if start >= stop:
        return range(0)
    return range(block_number(n, parts, start), block_number(n, parts, stop - 1) + 1)


def refines(n: int, parts: int, pieces: int) -> bool:
    """Return whether cutting *n* into ``parts * pieces`` blocks cuts each of the *parts* blocks into *pieces*. Local.

    Cutting flat and cutting nested agree when the remainder is 0, 1 or one less than the number of blocks.

    >>> refines(8, 2, 2), refines(5, 2, 2), refines(6, 2, 2), refines(7, 2, 2)
    (True, True, False, True)
    """
    blocks = parts * pieces
    return parts == 1 or pieces == 1 or n % blocks in (0, 1, blocks - 1)


def most_overlapping(n: int, parts: int, others: int) -> int:
    """Return how many of *others* blocks of *n* elements a block of *parts* may meet at most.

    >>> most_overlapping(12, 2, 4), most_overlapping(12, 4, 2), most_overlapping(7, 3, 2)
    (3, 2, 2)
    """
    longest = -(-n // parts)
    return min(others, longest, (longest - 1) // max(1, n // others) + 2)


def block_starts(n: int, parts: int, numbers: Indices) -> Indices:
    """Return `block_start` of many blocks at once. Local."""
    length, longer = divmod(n, parts)
    return numbers * length + np.minimum(numbers, longer)


def starts_and_stops(n: int, parts: int, numbers: Indices) -> tuple[Indices, Indices]:
    """Return `block_interval` of many blocks at once. Local."""
    return block_starts(n, parts, numbers), block_starts(n, parts, numbers + 1)


def block_numbers(n: int, parts: int, indices: Indices) -> Indices:
    """Return `block_number` of many elements at once. Local."""
    length, longer = divmod(n, parts)
    beyond = longer * (length + 1)
    return np.where(indices < beyond, indices // (length + 1), longer + (indices - beyond) // max(1, length))


def round_starts(elements: Indices, rounds: int, number: int) -> Indices:
    """Return where round *number* of *rounds* begins in boxes of so many *elements*, cut as an axis is.

    >>> round_starts(np.array([7, 2]), 3, 1).tolist()
    [3, 1]
    """
    if rounds == 1:
        return elements * number
    length, longer = np.divmod(elements, rounds)
    return length * number + np.minimum(longer, number)
