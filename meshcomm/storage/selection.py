"""What is loaded of an array: all of it, or a box, and an index that is applied to the box afterwards."""

from typing import NamedTuple

import numpy as np

from meshcomm._types import Indices, Shape
from meshcomm.layouts.partition import Interval
from meshcomm.layouts.slicing import Stretch, parsed, result_shape


class Selection(NamedTuple):
    """A box of an array of *shape*, from *start* on; *index* says what is taken of the box, None is all of it."""

    shape: Shape
    start: Shape
    box: Shape
    index: tuple[slice | int | None, ...] | None  # type: ignore[assignment]

    def shifted(self, intervals: list[list[Interval]]) -> list[list[Interval]]:
        """Return intervals of indices of the box as those of the array."""
        return [[(a + s, b + s) for a, b in axis] for axis, s in zip(intervals, self.start, strict=True)]

    @property
    def result(self) -> Shape:
        """The shape of what is taken."""
        return self.box if self.index is None else result_shape(parsed(self.index, self.box))


def all_of(shape: Shape) -> Selection:
    """Return the selection of a whole array."""
    return Selection(shape, (0,) * len(shape), shape, None)


def selected(shape: Shape, index: object) -> Selection:
    """Return what *index*, as NumPy's basic indexing takes it, selects of an array. ``IndexError`` as there.

    So it is for lists and masks: what is read of a file is a box.

    >>> selected((10, 4), np.s_[2:9:3, -1])
    Selection(shape=(10, 4), start=(2, 3), box=(7, 1), index=(slice(None, None, 3), 0))
    """
    for axis, item in enumerate(index if isinstance(index, tuple) else (index,)):
        _refuse_lists(item, axis)
    start: list[int] = []
    box: list[int] = []
    after: list[slice | int | None] = []
    plain = True
    for item in parsed(index, shape):
        if item is None:
            after.append(None)
            plain = False
        elif isinstance(item, Stretch):
            first, last = sorted((item.start, item.start + (item.length - 1) * item.step)) if item.length else (0, -1)
            start.append(first)
            box.append(last + 1 - first)
            after.append(slice(None, None, item.step if item.step != 1 else None))
            plain = plain and item.step == 1
        else:
            start.append(item)
            box.append(1)
            after.append(0)
            plain = False
    return Selection(shape, tuple(start), tuple(box), None if plain else tuple(after))


def _refuse_lists(item: object, axis: int) -> None:
    """Raise ``IndexError`` for a list of indices and for a mask, and say what to do instead."""
    masks = isinstance(item, bool | np.bool_) or getattr(item, "dtype", None) == np.dtype(bool)
    if isinstance(item, list) and item:
        masks = all(isinstance(each, bool | list) for each in item)
    if not masks and not isinstance(item, list) and not getattr(item, "ndim", 0):
        return
    what = "a mask" if masks else "a list of indices"
    then = "t[mask]" if masks else f"numpy.take(t, indices, axis={axis})"
    raise IndexError(
        f"axis {axis} has {what}, but a box is read: integers, slices, ... and None say which one; load the box that "
        f"has all that you need, then use {then}"
    )


def close_runs(starts: Indices, lengths: Indices, gap: int, most: int) -> list[tuple[int, int]]:
    """Return the runs, from one to another, that are read together: with gaps of at most *gap*, *most* in all.

    >>> close_runs(np.array([0, 10, 30]), np.array([5, 5, 5]), 5, 100)
    [(0, 2), (2, 3)]
    """
    found, first = [], 0
    for number in range(1, len(starts) + 1):
        if (
            number == len(starts)
            or starts[number] - starts[number - 1] - lengths[number - 1] > gap
            or starts[number] < starts[number - 1]
            or starts[number] + lengths[number] - starts[first] > most
        ):
            found.append((first, number))
            first = number
    return found
