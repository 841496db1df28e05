"""The number of ghosts before and after a block along each axis: the arguments ``width`` and ``depth``."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.errors import ShapeError
from meshcomm.halos.boundaries import axis_of

Width: TypeAlias = tuple[int, int]
"""The ghosts before a block and after it."""


def as_widths(width: object, ndim: int, argument: str = "width") -> tuple[Width, ...]:
    """Return the ghosts before and after, for each of *ndim* axes.

    *width* is one number; or for each axis a number or (before, after); or a dict from axes to those. ``ShapeError``
    if it is something else, ``AxisError`` if there is no such axis. *argument* names it in messages.

    >>> as_widths(1, 2), as_widths([1, (2, 0)], 2), as_widths({-1: 3}, 2)
    (((1, 1), (1, 1)), ((1, 1), (2, 0)), ((0, 0), (3, 3)))
    """
    if isinstance(width, Mapping):
        widths = [(0, 0)] * ndim
        for axis, entry in width.items():
            widths[axis_of(axis, ndim)] = _as_width(entry, argument)
        return tuple(widths)
    if isinstance(width, Sequence) and not isinstance(width, str):
        if len(width) != ndim:
            raise ShapeError(
                f"{argument} {quote(width)} has {counted(len(width), 'entry')} for {counted(ndim, 'axis')}: it is a "
                "number, or for each axis a number or (before, after); for the same (before, after) along all axes, "
                "repeat it"
            )
        return tuple(_as_width(entry, argument) for entry in width)
    return (_as_width(width, argument),) * ndim


def _as_width(width: object, argument: str) -> Width:
    pair = width if isinstance(width, Sequence) and not isinstance(width, str) else (width, width)
    if len(pair) != 2:
        raise ShapeError(f"{argument} {quote(width)}: along an axis it is a number, or (before, after)")
    before, after = (as_integer(n, argument, ShapeError) for n in pair)
    if before < 0 or after < 0:
        raise ShapeError(f"{argument} {quote(width)} is negative")
    return before, after
