"""Arguments of filters for some axes or for all: sizes, origins and modes, also as boundaries of a halo."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshcomm.core._arguments import counted, normalised_axes, quote
from meshcomm.core._tracing import Value
from meshcomm.errors import ShapeError
from meshcomm.halos.boundaries import Boundary, as_boundary, axis_of
from meshcomm.ndimage.arguments import Axes, Modes, Number

T = TypeVar("T")


MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")


class SequenceError(ShapeError, RuntimeError):
    """A sequence has another number of entries than axes: SciPy raises ``RuntimeError``."""

    __module__ = "meshcomm"


@dataclass(frozen=True)
class FilterEdges:
    """SciPy's *mode*, one or one for each axis, and *cval*."""

    mode: Modes = "reflect"
    cval: Number = 0.0

    def of(self, axis: int, ndim: int) -> "FilterEdges":
        """Return the edges of one of *ndim* axes."""
        return FilterEdges(self.modes(ndim)[axis], self.cval)

    def modes(self, ndim: int) -> list[str]:
        """Return the mode of each of *ndim* axes."""
        return per_axis(self.mode, ndim, "mode")

    def boundaries(self, ndim: int) -> tuple[Boundary, ...]:
        """Return the boundaries of *ndim* axes."""
        for mode in self.modes(ndim):
            if mode not in MODES:
                raise ShapeError(f"mode {quote(mode)} is none of SciPy's: {', '.join(MODES)}")
        return tuple(as_boundary(mode, self.cval) for mode in self.modes(ndim))


def per_axis(value: T | Iterable[T], count: int, argument_name: str) -> list[T]:
    """Return a list of *count* values, one for each axis: *value* is one for all, or a sequence."""
    if isinstance(value, str) or not np.iterable(value):
        return [value] * count
    values: list[T] = list(value)
    if len(values) != count:
        raise SequenceError(
            f"sequence argument must have length equal to input rank: {argument_name} {quote(value)} has "
            f"{counted(len(values), 'entry')} for {counted(count, 'axis')}"
        )
    return values


def spread_over_axes(values: Iterable[T], axes: Iterable[int], ndim: int, default: T) -> list[T]:
    """Return one value for each of *ndim* axes: *values* for *axes*, and *default* for the other axes.

    >>> spread_over_axes([3, 5], (2, 0), 3, 1)
    [5, 1, 3]
    """
    by_axis = [default] * ndim
    for axis, value in zip(axes, values, strict=True):
        by_axis[axis] = value
    return by_axis


def ordered_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Return *axes* counted from 0, in the same order."""
    if axes is None:
        return tuple(range(ndim))
    normalised_axes(axes, ndim)
    return tuple(axis_of(axis, ndim) for axis in (axes if np.iterable(axes) else (axes,)))


def settings_along(axes: Axes, ndim: int, **settings: object) -> Iterator[tuple[Value, ...]]:
    """Return pairs of an axis and its *settings*, in the order of *axes*.

    >>> list(settings_along((1, 0), 2, size=3, mode=["wrap", "mirror"]))
    [(1, 3, 'wrap'), (0, 3, 'mirror')]
    """
    ordered = ordered_axes(axes, ndim)
    return zip(ordered, *(per_axis(value, len(ordered), name) for name, value in settings.items()), strict=True)
