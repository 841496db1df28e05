"""Coordinates of splines: SciPy's rule for coordinates beyond the edges, and the elements for a value.

A value at a coordinate needs ``order + 1`` elements along each axis. `Support` has the elements for the values of a
rank, also those repeated beyond the edges. SciPy then evaluates the spline.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array, Indices
from meshcomm.core.layouts.boxes import Box
from meshcomm.ndimage.arguments import Number

CONSTANT = -2.0
"""A coordinate along an axis that gives the constant."""

_OF_ONE = ("mirror", "reflect", "grid-mirror", "wrap")
"""Modes in which an axis of one element has the same value at all coordinates."""

_TINY = 1e-15  # as in SciPy: "reflect" avoids -0.0


class SplineRule(NamedTuple):
    """SciPy's arguments for evaluating a spline.

    Parameters
    ----------
    order: order of the spline
    mode: boundary
    cval: the value beyond constant edges
    """

    order: int
    mode: str
    cval: Number

    @property
    def repeats(self) -> str:
        """The mode that repeats elements beyond the edges."""
        return "mirror" if self.mode in ("constant", "wrap") else self.mode


def folded(at: Array, n: int, mode: str) -> Array:
    """Return the coordinates at which SciPy evaluates an axis of *n* elements for *at*, also beyond the edges.

    >>> folded(np.array([-1.5, 1, 4.25]), 4, "mirror").tolist(), folded(np.array([-1, 4]), 4, "grid-wrap").tolist()
    ([1.5, 1.0, 1.75], [3.0, 0.0])
    """
    at = np.array(at, dtype=np.float64)
    at[~np.isfinite(at)] = -np.inf if mode == "constant" else 0.0
    if n <= 1 and mode in _OF_ONE:
        return np.where((at < 0) | (at > n - 1), 0.0, at)
    for wrong, rule in ((at < 0, _BELOW), (at > n - 1, _ABOVE)):
        if wrong.any():
            at[wrong] = rule[mode](at[wrong], n)
    return at


def _mirror_below(at: Array, n: int) -> Array:
    period = 2 * n - 2
    at = period * np.trunc(-at / period) + at
    return np.where(at <= 1 - n, at + period, -at)


def _reflect_below(at: Array, n: int) -> Array:
    period = 2 * n
    at = np.where(at < -period, period * np.trunc(-at / period) + at, at)
    return np.where(at < -n, at + period, np.where(at > -_TINY, _TINY, -at) - 1)


def _wrap_below(at: Array, n: int) -> Array:
    return np.asarray(at + (n - 1) * (np.trunc(-at / (n - 1)) + 1))


def _mirror_above(at: Array, n: int) -> Array:
    at = at - (2 * n - 2) * np.trunc(at / (2 * n - 2))
    return np.where(at >= n, 2 * n - 2 - at, at)


def _reflect_above(at: Array, n: int) -> Array:
    at = at - 2 * n * np.trunc(at / (2 * n))
    return np.where(at >= n, 2 * n - at - 1, at)


def _wrap_above(at: Array, n: int) -> Array:
    return np.asarray(at - (n - 1) * np.trunc(at / (n - 1)))


def _grid_wrap_below(at: Array, n: int) -> Array:
    return at + n * (np.trunc((-1 - at) / n) + 1) if n > 1 else np.zeros_like(at)


_BELOW: dict[str, Callable[[Array, int], Array]] = {
    "mirror": _mirror_below,
    "reflect": _reflect_below,
    "grid-mirror": _reflect_below,
    "wrap": _wrap_below,
    "grid-wrap": _grid_wrap_below,
    "nearest": lambda at, n: np.zeros_like(at),
    "constant": lambda at, n: np.full_like(at, -1.0),
}
_ABOVE: dict[str, Callable[[Array, int], Array]] = {
    "mirror": _mirror_above,
    "reflect": _reflect_above,
    "grid-mirror": _reflect_above,
    "wrap": _wrap_above,
    "grid-wrap": lambda at, n: at - n * np.trunc(at / n),
    "nearest": lambda at, n: np.full_like(at, float(n - 1)),
    "constant": lambda at, n: np.full_like(at, -1.0),
}


class Support:
    """The elements along one axis for some values.

    Parameters
    ----------
    n: length of the axis
    rule: rule of the spline
    """

    def __init__(self, n: int, rule: SplineRule) -> None:
        self._n, self._rule = n, rule
        self._least, self._most = np.inf, -np.inf

    def folded(self, at: Array) -> tuple[Array, Array]:
        """Return the coordinates within the axis for *at*, and the mask of those that give the constant.

        Order 0 rounds to an element here: rounding later could give another element.
        """
        if self._rule.mode in ("nearest", "grid-constant"):  # beyond the edges all elements are equal
            beyond = self._rule.order + 2.0
            coordinates = np.nan_to_num(np.clip(at, -beyond, self._n - 1 + beyond))
            constant = np.zeros(coordinates.shape, bool)
        else:
            coordinates = folded(at, self._n, self._rule.mode)
            constant = coordinates <= -1
        return np.floor(coordinates + 0.5) if self._rule.order == 0 else coordinates, constant

    def add(self, at: Array) -> None:
        """Add the elements for values at *at*."""
        coordinates, constant = self.folded(at)
        coordinates = coordinates[~constant]
        if coordinates.size:
            first = np.floor(coordinates if self._rule.order & 1 else coordinates + 0.5) - self._rule.order // 2
            self._least, self._most = min(self._least, first.min()), max(self._most, first.max())

    @property
    def first(self) -> int:
        """The first element, which may lie beyond the edge."""
        return int(self._least) if self._least <= self._most else 0

    @property
    def sources(self) -> Indices:
        """The index in the axis of each element; -1 for the constant."""
        if self._least > self._most:
            return np.zeros(0, np.intp)
        indices = np.arange(int(self._least), int(self._most) + self._rule.order + 1)
        if self._rule.mode == "grid-constant":
            return np.where((indices >= 0) & (indices < self._n), indices, -1)
        return folded(indices, self._n, self._rule.repeats).astype(np.intp)

    @property
    def span(self) -> tuple[int, int]:
        """The elements of the axis to read."""
        inside = self.sources
        inside = inside[inside >= 0]
        return (int(inside.min()), int(inside.max()) + 1) if inside.size else (0, 0)


def extended(array: Array, supports: Sequence[Support], axes: Sequence[int], rule: SplineRule) -> Array:
    """Return the elements of *supports* along *axes*, from the elements of their spans."""
    for support, axis in zip(supports, axes, strict=True):
        sources, (start, stop) = support.sources, support.span
        if len(sources) == stop - start and (sources == np.arange(start, stop)).all():
            continue
        if (sources < 0).all():
            shape = [len(sources) if a == axis else n for a, n in enumerate(array.shape)]
            array = np.full(shape, rule.cval, np.float64)
            continue
        outside = sources < 0
        array = array.take(np.where(outside, start, sources) - start, axis=axis)
        if outside.any():
            array = array.astype(np.promote_types(array.dtype, np.float64), copy=False)
            array[(slice(None),) * axis + (outside,)] = rule.cval
    return array


def slabs(box: Box, limit: int) -> Iterator[Box]:
    """Return slabs of *box* along its first axis, of at most *limit* elements, or of one index of the axis.

    >>> list(slabs(((2, 7), (0, 4)), 10))
    [((2, 4), (0, 4)), ((4, 6), (0, 4)), ((6, 7), (0, 4))]
    """
    (start, stop, *_), *others = box
    step = max(1, limit // max(1, int(np.prod([last - first for first, last, *_ in others]))))
    for first in range(start, stop, step):
        yield ((first, min(first + step, stop)), *others)
