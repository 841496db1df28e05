"""How many ghosts a block has before and after it along each axis, as users write it."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meshcomm.core._arguments import counted, integer, quote
from meshcomm.errors import ShapeError
from meshcomm.halos.boundaries import axis_of

Width: TypeAlias = tuple[int, int]
"""The ghosts before a block and after it."""


def as_widths(given: object, ndim: int, what: str = "width") -> tuple[Width, ...]:
    """Return the ghosts before and after, for each of *ndim* axes.

    *given* is one number; or for each axis a number or (before, after); or a dict from axes to those. ``ShapeError``
    if it is something else, ``AxisError`` if there is no such axis.

    >>> as_widths(1, 2), as_widths([1, (2, 0)], 2), as_widths({-1: 3}, 2)
    (((1, 1), (1, 1)), ((1, 1), (2, 0)), ((0, 0), (3, 3)))
    """
    if isinstance(given, Mapping):
        found = [(0, 0)] * ndim
        for axis, one in given.items():
            found[axis_of(axis, ndim)] = _as_width(one, what)
        return tuple(found)
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != ndim:
            raise ShapeError(
                f"{what} {quote(given)} has {counted(len(given), 'entry')} for {counted(ndim, 'axis')}: it is a "
                "number, or for each axis a number or (before, after); for the same (before, after) along all axes, "
                "repeat it"
            )
        return tuple(_as_width(one, what) for one in given)
    return (_as_width(given, what),) * ndim


def _as_width(given: object, what: str) -> Width:
    pair = given if isinstance(given, Sequence) and not isinstance(given, str) else (given, given)
    if len(pair) != 2:
        raise ShapeError(f"{what} {quote(given)}: along an axis it is a number, or (before, after)")
    before, after = (integer(n, what, ShapeError) for n in pair)
    if before < 0 or after < 0:
        raise ShapeError(f"{what} {quote(given)} is negative")
    return before, after
