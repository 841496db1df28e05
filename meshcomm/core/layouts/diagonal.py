"""Diagonals of sharded matrices: which layout keeps every element on the device that has it.

Of an axis of rows and one of columns, each cut into consecutive blocks, a diagonal runs through blocks from the upper
left to the lower right. So in the order of these blocks, row by row, their stretches of the diagonal follow each
other: the diagonal has `Cuts` over the mesh dimensions of both axes. Most of its stretches are empty.

            columns 0-2   columns 3-5
    rows 0-3    0 1 2         3         of a diagonal of 6 elements:
    rows 4-5                4 5         Cuts (0, 3, 4, 4, 6)
"""

from itertools import accumulate, pairwise, product
from typing import NamedTuple

from meshcomm.core._types import Names, Shape
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.core.layouts.specs import cut_at


class Diagonal(NamedTuple):
    """A diagonal that keeps every element on its device.

    Parameters
    ----------
    spec: how it is cut
    length: its number of elements
    rows, columns: which rows and columns of the block of a device it crosses, as many of both
    """

    spec: Names
    length: int
    rows: slice
    columns: slice


def kept_diagonal(
    layout: Layout, shape: Shape, axes: tuple[int, int], offset: int, device: int | None
) -> Diagonal | None:
    """Return the diagonal of an array of *shape* in *layout* on *device*; None if elements must move.

    They must if one of the axes is dealt round.

    Parameters
    ----------
    layout, shape: of the array
    axes: that of the rows, and that of the columns
    offset: how many columns the diagonal is right of the main one
    device: whose block is asked about; None for a rank outside of the mesh

    >>> from meshcomm import Mesh
    >>> layout = Layout(["x", "y"], Mesh(range(4), {"x": 2, "y": 2}))
    >>> found = kept_diagonal(layout, (6, 6), (0, 1), 0, 3)
    >>> found.spec, found.rows, found.columns
    (Cuts(('x', 'y'), (0, 3, 3, 3, 6)), slice(0, 3, None), slice(0, 3, None))
    """
    cuts = [layout.cut(axis, shape[axis]) for axis in axes]
    if not all(isinstance(cut, Consecutive) or cut.blocks == 1 for cut in cuts):
        return None
    first = max(-offset, 0), max(offset, 0)  # the row and the column where the diagonal begins
    length = max(0, min(shape[axis] - begin for axis, begin in zip(axes, first, strict=True)))
    spans = [_spans(cut, begin, length) for cut, begin in zip(cuts, first, strict=True)]
    stretches = [(max(a, c), min(b, d)) for (a, b), (c, d) in product(*spans)]
    bounds = [0, *accumulate(max(0, stop - start) for start, stop in stretches)]
    spec = cut_at((*layout.axes[axes[0]], *layout.axes[axes[1]]), bounds, length)
    if device is None:
        return Diagonal(spec, length, slice(0, 0), slice(0, 0))
    numbers = [layout.block_numbers(device)[axis] for axis in axes]
    start, stop = stretches[numbers[0] * len(spans[1]) + numbers[1]]
    count = max(0, stop - start)
    begins = [
        start + begin - (cut.start(number) if isinstance(cut, Consecutive) else 0) if count else 0
        for cut, begin, number in zip(cuts, first, numbers, strict=True)
    ]
    return Diagonal(spec, length, *(slice(begin, begin + count) for begin in begins))


def _spans(cut: AnyCut, begin: int, length: int) -> list[tuple[int, int]]:
    """Return what each block of an axis has of a diagonal that begins at the index *begin*."""
    ends = cut.all_starts() if isinstance(cut, Consecutive) else [0, cut.length]
    within = [min(max(end - begin, 0), length) for end in ends]
    return list(pairwise(within))
