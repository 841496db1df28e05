"""Indices of NumPy without arrays: a slice, one index, or a new axis for each axis."""

from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._arguments import counted, index_of, quote
from meshcomm.core._types import Shape


class AxisSlice(NamedTuple):
    """The elements start, start + step, ... of an axis, *length* of them."""

    start: int
    length: int
    step: int = 1

    @property
    def slice(self) -> slice:
        """The slice that takes these elements.

        >>> np.arange(5)[AxisSlice(3, 4, -1).slice].tolist()
        [3, 2, 1, 0]
        """
        if self.length == 0:
            return slice(0, 0)
        stop = self.start + self.length * self.step
        return slice(self.start, stop if stop >= 0 else None, self.step)


Item: TypeAlias = int | AxisSlice | None
"""An index of an axis, which drops the axis; a slice of it; or None, a new axis of length 1."""

Items: TypeAlias = tuple[Item, ...]
"""An index: an item for each axis in order, and new axes between them."""


def parsed_index(index: object, shape: Shape) -> Items:
    """Return *index* of an array of *shape* as items; ``IndexError`` if it is no basic index, or out of bounds.

    >>> parsed_index((Ellipsis, -1, None), (4, 5, 6))
    (AxisSlice(start=0, length=4, step=1), AxisSlice(start=0, length=5, step=1), 5, None)
    """
    entries: tuple[object, ...] = index if isinstance(index, tuple) else (index,)
    ellipsis_count = len([entry for entry in entries if entry is Ellipsis])
    count = len([entry for entry in entries if entry is not None]) - ellipsis_count
    if count > len(shape):
        raise IndexError(
            f"too many indices: {quote(index)} has {count} for the {counted(len(shape), 'axis')} of shape {shape}"
        )
    if ellipsis_count > 1:
        raise IndexError(f"index {quote(index)} has {ellipsis_count} ellipses (...); one at most")
    full_slices = (slice(None),) * (len(shape) - count)
    if ellipsis_count:
        position = next(number for number, entry in enumerate(entries) if entry is Ellipsis)
        full_index = (*entries[:position], *full_slices, *entries[position + 1 :])
    else:
        full_index = (*entries, *full_slices)
    items: list[Item] = []
    axis = 0
    for entry in full_index:
        items.append(None if entry is None else _item(entry, axis, shape[axis]))
        axis += entry is not None
    return tuple(items)


def _item(index: object, axis: int, length: int) -> Item:
    if isinstance(index, slice):
        try:
            start, stop, step = index.indices(length)
        except (TypeError, ValueError) as error:
            raise type(error)(f"axis {axis}: {quote(index)}: {error}") from None
        return AxisSlice(start, len(range(start, stop, step)), step)
    if isinstance(index, bool | np.bool_):
        raise IndexError(f"axis {axis}: index {index} is a bool; a mask is a tensor or an array of bool, with axes")
    try:
        number = index_of(index)
    except TypeError:
        shape = getattr(index, "shape", None)
        text = quote(index) if shape is None else f"of shape {shape}"
        raise IndexError(
            f"axis {axis}: index {text} is a {type(index).__name__}; an index has integers, slices, ..., None, and "
            "arrays, lists or tensors of integers or bools"
        ) from None
    if not -length <= number < length:
        raise IndexError(f"axis {axis}: index {quote(number)} is out of bounds for {counted(length, 'element')}")
    return number % length
