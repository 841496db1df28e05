"""Arguments of filters for some axes or for all: sizes, origins, modes; and what is beyond the edges."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshcomm.core._arguments import counted, normalised_axes, quote
from meshcomm.core._tracing import Value
from meshcomm.errors import ShapeError
from meshcomm.halos.boundaries import Boundary, as_boundary, axis_of

T = TypeVar("T")

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")


class SequenceError(ShapeError, RuntimeError):
    """A sequence has not one entry for each axis: SciPy raises ``RuntimeError``."""

    __module__ = "meshcomm"


@dataclass(frozen=True)
class Edges:
    """SciPy's *mode*, one or one for each axis, and *cval*."""

    mode: Value = "reflect"
    cval: Value = 0.0

    def of(self, axis: int, ndim: int) -> "Edges":
        """Return those of one of *ndim* axes."""
        return Edges(self.modes(ndim)[axis], self.cval)

    def modes(self, ndim: int) -> list[Value]:
        """Return the mode of each of *ndim* axes."""
        return per_axis(self.mode, ndim, "mode")

    def boundaries(self, ndim: int) -> tuple[Boundary, ...]:
        """Return the boundaries of *ndim* axes."""
        for mode in self.modes(ndim):
            if mode not in MODES:
                raise ShapeError(f"mode {quote(mode)} is none of SciPy's: {', '.join(MODES)}")
        return tuple(as_boundary(mode, self.cval) for mode in self.modes(ndim))


def per_axis(given: Value, count: int, what: str) -> list[Value]:
    """Return what is *given* for each of *count* axes: one for all, or a sequence."""
    if isinstance(given, str) or not np.iterable(given):
        return [given] * count
    found = list(given)
    if len(found) != count:
        raise SequenceError(
            f"sequence argument must have length equal to input rank: {what} {quote(given)} has "
            f"{counted(len(found), 'entry')} for {counted(count, 'axis')}"
        )
    return found


def spread(values: Iterable[T], axes: Iterable[int], ndim: int, rest: T) -> list[T]:
    """Return *values*, of which each is that of one of *axes*, for all axes; those that are not named have *rest*.

    >>> spread([3, 5], (2, 0), 3, 1)
    [5, 1, 3]
    """
    by_axis = [rest] * ndim
    for axis, value in zip(axes, values, strict=True):
        by_axis[axis] = value
    return by_axis


def ordered_axes(axes: Value, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, in the order that is given."""
    if axes is None:
        return tuple(range(ndim))
    normalised_axes(axes, ndim)
    return tuple(axis_of(axis, ndim) for axis in (axes if np.iterable(axes) else (axes,)))


def settings_along(axes: Value, ndim: int, **settings: Value) -> Iterator[tuple[Value, ...]]:
    """Go through *axes* in the order that is given: each with its own of the *settings*.

    >>> list(settings_along((1, 0), 2, size=3, mode=["wrap", "mirror"]))
    [(1, 3, 'wrap'), (0, 3, 'mirror')]
    """
    ordered = ordered_axes(axes, ndim)
    return zip(ordered, *(per_axis(value, len(ordered), name) for name, value in settings.items()), strict=True)
