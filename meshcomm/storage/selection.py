"""Selections of an array that is loaded: all of it, or the elements of a basic index of NumPy, also with steps."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.layouts.slicing import AxisSlice, parsed_index

READ_OVER = 2**15
"""Bytes between two runs of a box that is loaded: up to this many are read, too. That costs less than another call."""

READ_TOGETHER = 2**22
"""Bytes. Runs that lie close together are read in one call of at most this many bytes."""


class Selection(NamedTuple):
    """A selection of an array of *shape*: *box* elements along each axis, from *start* on, *step* apart.

    The index adds the axes *new*: there *shape* has the length 1. It takes one element of each axis in *dropped*: the
    result is without these axes.
    """

    shape: Shape
    start: Shape
    box: Shape
    step: Shape
    new: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    @property
    def result(self) -> Shape:
        """The shape of the selected array."""
        return tuple(n for axis, n in enumerate(self.box) if axis not in self.dropped)

    @property
    def takes_all(self) -> bool:
        """Whether this is the whole array, without steps."""
        return self.box == self.shape and not self.has_steps

    @property
    def has_steps(self) -> bool:
        """Whether the step along some axis is not 1: there are gaps, or the order is reversed."""
        return self.step != (1,) * len(self.step)

    def turned(self) -> "Selection":
        """Return the same selection of the transposed array."""
        last = len(self.shape) - 1
        axes = (tuple(last - axis for axis in numbers) for numbers in (self.new, self.dropped))
        return Selection(self.shape[::-1], self.start[::-1], self.box[::-1], self.step[::-1], *axes)

    def narrowed(self, axis: int, first: int, last: int) -> "Selection":
        """Return the elements *first* to *last* of this selection along *axis*."""
        start, box = list(self.start), list(self.box)
        start[axis] += first * self.step[axis]
        box[axis] = last - first
        return self._replace(start=tuple(start), box=tuple(box))

    def numpy_index(self) -> tuple[slice | int | None, ...]:
        """Return the index of NumPy for this selection, for an array without the new axes.

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

    # Where steps are short, the elements between are read, too, and left out afterwards.

    def spread(self, axis: int, itemsize: int) -> int:
        """Return the number of elements that are read along *axis* for each selected one."""
        step, last_offset, row_size = abs(self.step[axis]), 0, 1
        for n, length, other_step in zip(self.shape[:axis:-1], self.box[:axis:-1], self.step[:axis:-1], strict=True):
            last_offset += (length - 1) * abs(other_step) * row_size
            row_size *= n
        return step if (step * row_size - last_offset - 1) * itemsize <= READ_OVER else 1

    def in_file(self, intervals: list[list[Interval]], itemsize: int) -> list[list[Interval]]:
        """Return the indices of the array that are read along each axis for *intervals* of the selection.

        >>> selected((10, 4), np.s_[8:1:-3, 2:]).in_file([[(0, 2)], [(0, 1)]], 8)
        [[(5, 9)], [(2, 3)]]
        """
        return [
            [
                file_interval
                for interval in axis_intervals
                for file_interval in self._read_intervals(axis, interval, itemsize)
            ]
            for axis, axis_intervals in enumerate(intervals)
        ]

    def _read_intervals(self, axis: int, interval: Interval, itemsize: int) -> list[Interval]:
        start, step, (first, last) = self.start[axis], self.step[axis], interval
        if step == 1:
            return [(start + first, start + last)]
        spread = self.spread(axis, itemsize)
        if spread < abs(step):
            return [(start + k * step, start + k * step + 1) for k in range(first, last)]
        lowest = start + (first if step > 0 else last - 1) * step
        return [(lowest, lowest + (last - first - 1) * spread + 1)]

    def taken(self, block: Array, intervals: list[list[Interval]]) -> Array:
        """Return the selected elements of the *block* that was read for *intervals*."""
        result = block
        for axis, axis_intervals in enumerate(intervals):
            step, itemsize = self.step[axis], block.dtype.itemsize
            if step == 1 or self.spread(axis, itemsize) < abs(step):
                continue
            indices, offset = [], 0
            for interval in axis_intervals:
                ((low, high),) = self._read_intervals(axis, interval, itemsize)
                indices.append(np.arange(*interval, dtype=np.intp) * step + (self.start[axis] - low + offset))
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
    """Yield the start and the shape of boxes of at most *max_bytes*, which together are the array.

    With *chunk*, the shape of chunks, boxes consist of whole chunks; one chunk may have more bytes.

    >>> list(boxes((3, 4), 1, 8))
    [((0, 0), (2, 4)), ((2, 0), (1, 4))]
    """
    steps = [max(n, 1) for n in shape]
    for axis in range(len(shape)):
        row_bytes = prod(steps[axis + 1 :]) * itemsize
        if row_bytes * steps[axis] <= max_bytes:
            break
        steps[axis] = max(1, max_bytes // row_bytes)
    if chunk is not None:
        steps = [-(-step // n) * n for step, n in zip(steps, chunk, strict=True)]
    for start in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        yield start, tuple(min(step, n - s) for s, n, step in zip(start, shape, steps, strict=True))


def selected(shape: Shape, index: object) -> Selection:
    """Return the selection of an array by *index*, an index of NumPy's basic indexing. ``IndexError`` as there.

    Lists and masks also raise ``IndexError``: only boxes are read from files.

    >>> selected((10, 4), np.s_[2:9:3, -1])
    Selection(shape=(10, 4), start=(2, 3), box=(3, 1), step=(3, 1), new=(), dropped=(1,))
    """
    for axis, item in enumerate(index if isinstance(index, tuple) else (index,)):
        _refuse_lists(item, axis)
    lengths, axis_selections, new, dropped = iter(shape), [], [], []
    for axis, item in enumerate(parsed_index(index, shape)):
        if item is None:
            new.append(axis)
            axis_selections.append((1, 0, 1, 1))
        elif isinstance(item, AxisSlice):
            axis_selections.append(
                (next(lengths), item.start if item.length else 0, item.length, item.step if item.length > 1 else 1)
            )
        else:
            dropped.append(axis)
            axis_selections.append((next(lengths), item, 1, 1))
    selection_shape, start, box, step = (tuple(fields[k] for fields in axis_selections) for k in range(4))
    return Selection(selection_shape, start, box, step, tuple(new), tuple(dropped))


def _refuse_lists(item: object, axis: int) -> None:
    """Raise ``IndexError`` for a list of indices and for a mask; the error says what to do instead."""
    is_mask = isinstance(item, bool | np.bool_) or getattr(item, "dtype", None) == np.dtype(bool)
    if isinstance(item, list) and item:
        is_mask = all(isinstance(element, bool | list) for element in item)
    if not is_mask and not isinstance(item, list) and not getattr(item, "ndim", 0):
        return
    kind = "a mask" if is_mask else "a list of indices"
    advice = "t[mask]" if is_mask else f"numpy.take(t, indices, axis={axis})"
    raise IndexError(
        f"axis {axis} has {kind}, but a box is read: integers, slices, ... and None say which one; load the box that "
        f"has all that you need, then use {advice}"
    )


def close_runs(starts: Indices, lengths: Indices, gap: int, limit: int) -> list[tuple[int, int]]:
    """Return the first and last run (exclusive) of each read that joins runs.

    Gaps between joined runs have at most *gap* elements, and a read at most *limit*.

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
