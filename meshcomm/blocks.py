"""Blocks: how an axis of *n* elements is cut into *parts* blocks; pure arithmetic on plain integers.

The rule is that of :func:`numpy.array_split`: the first ``n % parts`` blocks are one element longer, and blocks may be
empty. One dimension is solved here; a box in N dimensions is a product of intervals.
"""

from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]  # start, stop
Box: TypeAlias = tuple[Interval, ...]


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


def box_size(box: Box) -> int:
    """Return how many elements *box* holds. Local.

    >>> box_size(((0, 2), (3, 6))), box_size(())
    (6, 1)
    """
    size = 1
    for start, stop in box:
        size *= stop - start
    return size
