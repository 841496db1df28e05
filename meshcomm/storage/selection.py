"""What is loaded of an array: all of it, or a box of elements, which may be steps apart, as an index of NumPy says."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.layouts.slicing import AxisSlice, parsed_index

READ_OVER = 2**15
"""Bytes between two runs of a box that is loaded. Up to this many are read, too: that costs less than another call."""

READ_TOGETHER = 2**22
"""Bytes. Runs that lie close together are read in one call of at most this many bytes."""


class Selection(NamedTuple):
    """What is taken of an array of *shape*: *box* elements along each axis, from *start* on, *step* apart.

    Axes that the index adds are *new*: the array has the length 1 there. Axes of which it takes one element are
    *dropped*: the result is without them.
    """

    shape: Shape
    start: Shape
    box: Shape
    step: Shape
    new: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    @property
    def result(self) -> Shape:
        """The shape of what is taken."""
        return tuple(n for axis, n in enumerate(self.box) if axis not in self.dropped)

    @property
    def takes_all(self) -> bool:
        """Whether this is the whole array, as it is."""
        return self.box == self.shape and not self.has_steps

    @property
    def has_steps(self) -> bool:
        """Whether elements are not in the order of the array, or have others between them, along some axis."""
        return self.step != (1,) * len(self.step)

    def turned(self) -> "Selection":
        """Return the same of the transpose."""
        last = len(self.shape) - 1
        axes = (tuple(last - axis for axis in numbers) for numbers in (self.new, self.dropped))
        return Selection(self.shape[::-1], self.start[::-1], self.box[::-1], self.step[::-1], *axes)

    def narrowed(self, axis: int, first: int, last: int) -> "Selection":
        """Return the elements *first* to *last* along *axis* of what this takes."""
        start, box = list(self.start), list(self.box)
        start[axis] += first * self.step[axis]
        box[axis] = last - first
        return self._replace(start=tuple(start), box=tuple(box))

    def numpy_index(self) -> tuple[slice | int | None, ...]:
        """Return what NumPy takes for it, for an array without the axes that are new.

        >>> selected((10, 4), np.s_[8:1:-3, None, -1]).numpy_index()
        (slice(8, None, -3), None, 3)
        """
        items: list[slice | int | None] = []
        for axis, (start, n, step) in enumerate(zip(self.start, self.box, self.step, strict=True)):
            if axis in self.new:
                items.append(None)
            else:
                items.append(start if axis in self.dropped else AxisSlice(start, n, step).slice)
        return tuple(items)

    # Where steps are short, what lies between the elements is read, too, and left out afterwards.

    def spread(self, axis: int, itemsize: int) -> int:
        """Return how many elements are read along *axis* for each one that is taken."""
        step, last, row = abs(self.step[axis]), 0, 1
        for n, length, other_step in zip(self.shape[:axis:-1], self.box[:axis:-1], self.step[:axis:-1], strict=True):
            last += (length - 1) * abs(other_step) * row
            row *= n
        return step if (step * row - last - 1) * itemsize <= READ_OVER else 1

    def in_file(self, intervals: list[list[Interval]], itemsize: int) -> list[list[Interval]]:
        """Return which indices of the array are read along each axis for *intervals* of what is taken.

        >>> selected((10, 4), np.s_[8:1:-3, 2:]).in_file([[(0, 2)], [(0, 1)]], 8)
        [[(5, 9)], [(2, 3)]]
        """
        return [
            [read for pair in axis_intervals for read in self._read(axis, pair, itemsize)]
            for axis, axis_intervals in enumerate(intervals)
        ]

    def _read(self, axis: int, pair: Interval, itemsize: int) -> list[Interval]:
        start, step, (first, last) = self.start[axis], self.step[axis], pair
        if step == 1:
            return [(start + first, start + last)]
        size = self.spread(axis, itemsize)
        if size < abs(step):
            return [(start + k * step, start + k * step + 1) for k in range(first, last)]
        lowest = start + (first if step > 0 else last - 1) * step
        return [(lowest, lowest + (last - first - 1) * size + 1)]

    def taken(self, block: Array, intervals: list[list[Interval]]) -> Array:
        """Return what is taken of the *block* that was read for *intervals*."""
        result = block
        for axis, axis_intervals in enumerate(intervals):
            step, itemsize = self.step[axis], block.dtype.itemsize
            if step == 1 or self.spread(axis, itemsize) < abs(step):
                continue
            indices, offset = [], 0
            for pair in axis_intervals:
                ((low, high),) = self._read(axis, pair, itemsize)
                indices.append(np.arange(*pair, dtype=np.intp) * step + (self.start[axis] - low + offset))
                offset += high - low
            if len(axis_intervals) == 1:
                result = result[(slice(None),) * axis + (slice(indices[0][0], None, step),)]
            elif axis_intervals:
                result = result.take(np.concatenate(indices), axis)
        return result


def all_of(shape: Shape) -> Selection:
    """Return the selection of a whole array."""
    return box_of(shape, (0,) * len(shape), shape)


def box_of(shape: Shape, start: Shape, box: Shape) -> Selection:
    """Return the selection of a box of an array of *shape*, from *start* on."""
    return Selection(shape, start, box, (1,) * len(shape))


def boxes(shape: Shape, itemsize: int, max_bytes: int, chunk: Shape | None = None) -> Iterator[tuple[Shape, Shape]]:
    """Yield the start and the shape of boxes of at most *max_bytes*; together they are the array.

    They are of whole chunks of the shape *chunk*, if that is given; then a chunk may have more.

    >>> list(boxes((3, 4), 1, 8))
    [((0, 0), (2, 4)), ((2, 0), (1, 4))]
    """
    steps = [max(n, 1) for n in shape]
    for axis in range(len(shape)):
        row = prod(steps[axis + 1 :]) * itemsize
        if row * steps[axis] <= max_bytes:
            break
        steps[axis] = max(1, max_bytes // row)
    if chunk is not None:
        steps = [-(-step // n) * n for step, n in zip(steps, chunk, strict=True)]
    for start in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        yield start, tuple(min(step, n - s) for s, n, step in zip(start, shape, steps, strict=True))


def selected(shape: Shape, index: object) -> Selection:
    """Return what *index*, as NumPy's basic indexing takes it, selects of an array. ``IndexError`` as there.

    So it is for lists and masks: what is read of a file is a box.

    >>> selected((10, 4), np.s_[2:9:3, -1])
    Selection(shape=(10, 4), start=(2, 3), box=(3, 1), step=(3, 1), new=(), dropped=(1,))
    """
    for axis, item in enumerate(index if isinstance(index, tuple) else (index,)):
        _refuse_lists(item, axis)
    left, parts, new, dropped = iter(shape), [], [], []
    for axis, item in enumerate(parsed_index(index, shape)):
        if item is None:
            new.append(axis)
            parts.append((1, 0, 1, 1))
        elif isinstance(item, AxisSlice):
            parts.append(
                (next(left), item.start if item.length else 0, item.length, item.step if item.length > 1 else 1)
            )
        else:
            dropped.append(axis)
            parts.append((next(left), item, 1, 1))
    of_shape, start, box, step = (tuple(part[k] for part in parts) for k in range(4))
    return Selection(of_shape, start, box, step, tuple(new), tuple(dropped))


def _refuse_lists(item: object, axis: int) -> None:
    """Raise ``IndexError`` for a list of indices and for a mask, and say what to do instead."""
    masks = isinstance(item, bool | np.bool_) or getattr(item, "dtype", None) == np.dtype(bool)
    if isinstance(item, list) and item:
        masks = all(isinstance(element, bool | list) for element in item)
    if not masks and not isinstance(item, list) and not getattr(item, "ndim", 0):
        return
    what = "a mask" if masks else "a list of indices"
    then = "t[mask]" if masks else f"numpy.take(t, indices, axis={axis})"
    raise IndexError(
        f"axis {axis} has {what}, but a box is read: integers, slices, ... and None say which one; load the box that "
        f"has all that you need, then use {then}"
    )


def close_runs(starts: Indices, lengths: Indices, gap: int, limit: int) -> list[tuple[int, int]]:
    """Return the runs, from one to another, that are read together: with gaps of at most *gap*, *limit* in all.

    >>> close_runs(np.array([0, 10, 30]), np.array([5, 5, 5]), 5, 100)
    [(0, 2), (2, 3)]
    """
    pairs, first = [], 0
    for number in range(1, len(starts) + 1):
        if (
            number == len(starts)
            or starts[number] - starts[number - 1] - lengths[number - 1] > gap
            or starts[number] < starts[number - 1]
            or starts[number] + lengths[number] - starts[first] > limit
        ):
            pairs.append((first, number))
            first = number
    return pairs
