"""Boundaries: beyond the edges of an array there is nothing, or a constant, or repeated elements of the array.

Names are as in :mod:`scipy.ndimage`. For the elements a b c d of an axis:

    none                      a b c d                 there are no ghosts
    0.0, or another number    0 0 0 | a b c d | 0 0 0
    periodic                  b c d | a b c d | a b c
    nearest                   a a a | a b c d | d d d
    reflect                   c b a | a b c d | d c b
    mirror                    d c b | a b c d | c b a
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.rules import Number
from meshcomm.core._arguments import counted, quote
from meshcomm.core._types import DType, Indices
from meshcomm.errors import AxisError, ShapeError


class Boundary(NamedTuple):
    """The kind of boundary of one axis, *name*, and the *value* of a constant one."""

    name: str
    value: Number | None = None

    def __str__(self) -> str:
        return f"constant {self.value!r}" if self.name == "constant" else self.name

    @property
    def repeats(self) -> bool:
        """Whether ghosts beyond the edges repeat elements of the array."""
        return self.name in SOURCES


def _folded_indices(indices: Indices, period: int, n: int, mirror_sum: int) -> Indices:
    folded = indices % period
    return np.where(folded < n, folded, mirror_sum - folded)


SOURCES: dict[str, Callable[[Indices, int], Indices]] = {
    "periodic": lambda indices, n: indices % n,
    "nearest": lambda indices, n: np.clip(indices, 0, n - 1),
    "reflect": lambda indices, n: _folded_indices(indices, 2 * n, n, 2 * n - 1),
    "mirror": lambda indices, n: _folded_indices(indices, max(2 * n - 2, 1), n, 2 * n - 2),
}
"""Boundaries that repeat elements: functions from indices beyond the edges to indices of *n* elements."""

_SCIPY_NAMES = {"wrap": "periodic", "grid-wrap": "periodic", "grid-mirror": "reflect", "grid-constant": "constant"}
"""Other names of scipy.ndimage for its modes."""

_HINTS = {
    "edge": "numpy.pad's 'edge' is 'nearest' here",
    "symmetric": "numpy.pad's 'symmetric' is 'reflect' here, as in scipy.ndimage",
    "ghosted": "PETSc's GHOSTED is a number here, such as 0.0",
}

_KINDS_TEXT = "'none', 'periodic', 'nearest', 'reflect', 'mirror' or a number"


def as_boundary(boundary: object, value: Number = 0) -> Boundary:
    """Return a boundary from its name, or from a number; *value* is the constant of ``"constant"``.

    >>> print(as_boundary("grid-wrap"), as_boundary(1.5), as_boundary(None))
    periodic constant 1.5 none
    """
    if boundary is None:
        return Boundary("none")
    if isinstance(boundary, Boundary):
        return boundary
    if isinstance(boundary, str):
        name = _SCIPY_NAMES.get(boundary, boundary)
        if name == "none" or name in SOURCES:
            return Boundary(name)
        if name == "constant":
            return Boundary(name, value)
        hint = _HINTS.get(boundary.lower())
        raise ShapeError(f"boundary {quote(boundary)} is not known: it is {_KINDS_TEXT}{f'; {hint}' if hint else ''}")
    if not isinstance(boundary, int | float | complex | np.generic | np.ndarray) or np.ndim(boundary):
        raise ShapeError(f"boundary {quote(boundary)}: it is {_KINDS_TEXT}, or one of these for each axis")
    return Boundary("constant", boundary.item() if isinstance(boundary, np.ndarray) else boundary)


def as_boundaries(boundary: object, ndim: int, value: Number = 0) -> tuple[Boundary, ...]:
    """Return the boundary of each of *ndim* axes, from one for all, one for each, or a dict by axis.

    ``ShapeError`` if a boundary is not known, ``AxisError`` if there is no such axis.

    >>> print(*as_boundaries({0: "periodic"}, 2), *as_boundaries("mirror", 2))
    periodic none mirror mirror
    """
    if isinstance(boundary, Mapping):
        boundaries = [Boundary("none")] * ndim
        for axis, entry in boundary.items():
            boundaries[axis_of(axis, ndim)] = as_boundary(entry, value)
        return tuple(boundaries)
    if isinstance(boundary, Sequence) and not isinstance(boundary, str | Boundary):
        if len(boundary) != ndim:
            raise ShapeError(
                f"boundary {quote(boundary)} has {counted(len(boundary), 'entry')} for {counted(ndim, 'axis')}"
            )
        return tuple(as_boundary(entry, value) for entry in boundary)
    return (as_boundary(boundary, value),) * ndim


def axis_of(axis: object, ndim: int) -> int:
    """Return *axis* counted from 0; ``AxisError`` if an array with *ndim* axes has no such axis."""
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -ndim <= axis < ndim:
        raise AxisError(f"axis {quote(axis)} is out of range for a tensor with {counted(ndim, 'axis')}")
    return int(axis) % ndim


def source_indices(boundary: Boundary, indices: Indices, n: int) -> Indices:
    """Return the index among the *n* elements of an axis for each of *indices*, inside or beyond the edges."""
    is_inside = (indices >= 0) & (indices < n)
    if is_inside.all():
        return indices
    return SOURCES[boundary.name](indices, n)


def as_element(value: object, dtype: DType) -> np.generic:
    """Return *value* as an element of *dtype*, or raise NumPy's error."""
    element = np.empty(1, dtype)
    with np.errstate(all="ignore"):
        element[:] = value
    return element[0]


def holds(dtype: DType, value: object) -> bool:
    """Return whether an element of *dtype* can be *value*, as NumPy compares them.

    >>> [holds(np.dtype("u1"), value) for value in (255, 256, -1, 0.5, 1j)]
    [True, False, False, False, False]
    >>> holds(np.dtype("f4"), 0.5), holds(np.dtype("f4"), np.nan)
    (True, True)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            element = as_element(value, dtype)
        except (TypeError, ValueError, OverflowError):
            return False
    return bool(element == value or (value != value and element != element))
