"""Coordinates of splines: SciPy's rules for coordinates beyond the edges, and the elements that a value needs.

A value at a coordinate needs ``order + 1`` elements along each axis. `Support` has the elements for all values of a
rank, with the repeated elements beyond the edges. SciPy then evaluates the spline.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Array, Indices
from meshcomm.core.layouts.boxes import Box
from meshcomm.ndimage.arguments import Number

CONSTANT = -2.0
"""A coordinate at which a value is the constant."""

_UNIFORM_MODES = ("mirror", "reflect", "grid-mirror", "wrap")
"""Modes in which an axis of one element has equal values at all coordinates."""

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


def folded(coordinates: Array, n: int, mode: str) -> Array:
    """Return *coordinates*, also those beyond the edges, folded into an axis of *n* elements as SciPy does.

    >>> folded(np.array([-1.5, 1, 4.25]), 4, "mirror").tolist(), folded(np.array([-1, 4]), 4, "grid-wrap").tolist()
    ([1.5, 1.0, 1.75], [3.0, 0.0])
    """
    coordinates = np.array(coordinates, dtype=np.float64)
    coordinates[~np.isfinite(coordinates)] = -np.inf if mode == "constant" else 0.0
    if n <= 1 and mode in _UNIFORM_MODES:
        return np.where((coordinates < 0) | (coordinates > n - 1), 0.0, coordinates)
    for is_beyond, folds in ((coordinates < 0, _FOLDS_BELOW), (coordinates > n - 1, _FOLDS_ABOVE)):
        if is_beyond.any():
            coordinates[is_beyond] = folds[mode](coordinates[is_beyond], n)
    return coordinates


def _mirror_below(coordinates: Array, n: int) -> Array:
    period = 2 * n - 2
    coordinates = period * np.trunc(-coordinates / period) + coordinates
    return np.where(coordinates <= 1 - n, coordinates + period, -coordinates)


def _reflect_below(coordinates: Array, n: int) -> Array:
    period = 2 * n
    coordinates = np.where(coordinates < -period, period * np.trunc(-coordinates / period) + coordinates, coordinates)
    return np.where(coordinates < -n, coordinates + period, np.where(coordinates > -_TINY, _TINY, -coordinates) - 1)


def _wrap_below(coordinates: Array, n: int) -> Array:
    return np.asarray(coordinates + (n - 1) * (np.trunc(-coordinates / (n - 1)) + 1))


def _mirror_above(coordinates: Array, n: int) -> Array:
    coordinates = coordinates - (2 * n - 2) * np.trunc(coordinates / (2 * n - 2))
    return np.where(coordinates >= n, 2 * n - 2 - coordinates, coordinates)


def _reflect_above(coordinates: Array, n: int) -> Array:
    coordinates = coordinates - 2 * n * np.trunc(coordinates / (2 * n))
    return np.where(coordinates >= n, 2 * n - coordinates - 1, coordinates)


def _wrap_above(coordinates: Array, n: int) -> Array:
    return np.asarray(coordinates - (n - 1) * np.trunc(coordinates / (n - 1)))


def _grid_wrap_below(coordinates: Array, n: int) -> Array:
    return coordinates + n * (np.trunc((-1 - coordinates) / n) + 1) if n > 1 else np.zeros_like(coordinates)


_FOLDS_BELOW: dict[str, Callable[[Array, int], Array]] = {
    "mirror": _mirror_below,
    "reflect": _reflect_below,
    "grid-mirror": _reflect_below,
    "wrap": _wrap_below,
    "grid-wrap": _grid_wrap_below,
    "nearest": lambda coordinates, n: np.zeros_like(coordinates),
    "constant": lambda coordinates, n: np.full_like(coordinates, -1.0),
}
_FOLDS_ABOVE: dict[str, Callable[[Array, int], Array]] = {
    "mirror": _mirror_above,
    "reflect": _reflect_above,
    "grid-mirror": _reflect_above,
    "wrap": _wrap_above,
    "grid-wrap": lambda coordinates, n: coordinates - n * np.trunc(coordinates / n),
    "nearest": lambda coordinates, n: np.full_like(coordinates, float(n - 1)),
    "constant": lambda coordinates, n: np.full_like(coordinates, -1.0),
}


class Support:
    """The elements along one axis that some values need.

    Parameters
    ----------
    n: length of the axis
    rule: rule of the spline
    """

    def __init__(self, n: int, rule: SplineRule) -> None:
        self._n, self._rule = n, rule
        self._min_first, self._max_first = np.inf, -np.inf

    def folded(self, coordinates: Array) -> tuple[Array, Array]:
        """Return *coordinates* folded into the axis, and the mask of those whose value is the constant.

        Order 0 rounds to an element here: rounding later could give another element.
        """
        if self._rule.mode in ("nearest", "grid-constant"):  # beyond the edges all elements are equal
            margin = self._rule.order + 2.0
            folded_coordinates = np.nan_to_num(np.clip(coordinates, -margin, self._n - 1 + margin))
            is_constant = np.zeros(folded_coordinates.shape, bool)
        else:
            folded_coordinates = folded(coordinates, self._n, self._rule.mode)
            is_constant = folded_coordinates <= -1
        return np.floor(folded_coordinates + 0.5) if self._rule.order == 0 else folded_coordinates, is_constant

    def add(self, coordinates: Array) -> None:
        """Add the elements for values at *coordinates*."""
        folded_coordinates, is_constant = self.folded(coordinates)
        folded_coordinates = folded_coordinates[~is_constant]
        if folded_coordinates.size:
            first_elements = (
                np.floor(folded_coordinates if self._rule.order & 1 else folded_coordinates + 0.5)
                - self._rule.order // 2
            )
            self._min_first, self._max_first = (
                min(self._min_first, first_elements.min()),
                max(self._max_first, first_elements.max()),
            )

    @property
    def first(self) -> int:
        """The first element, which may lie beyond the edge."""
        return int(self._min_first) if self._min_first <= self._max_first else 0

    @property
    def sources(self) -> Indices:
        """The index in the axis of each element; -1 for the constant."""
        if self._min_first > self._max_first:
            return np.zeros(0, np.intp)
        indices = np.arange(int(self._min_first), int(self._max_first) + self._rule.order + 1)
        if self._rule.mode == "grid-constant":
            return np.where((indices >= 0) & (indices < self._n), indices, -1)
        return folded(indices, self._n, self._rule.repeats).astype(np.intp)

    @property
    def span(self) -> tuple[int, int]:
        """Start and stop of the elements of the axis to read."""
        indices = self.sources
        indices = indices[indices >= 0]
        return (int(indices.min()), int(indices.max()) + 1) if indices.size else (0, 0)


def extended(array: Array, supports: Sequence[Support], axes: Sequence[int], rule: SplineRule) -> Array:
    """Return the elements of *supports* along *axes*, from an array of the elements in their spans."""
    for support, axis in zip(supports, axes, strict=True):
        sources, (start, stop) = support.sources, support.span
        if len(sources) == stop - start and (sources == np.arange(start, stop)).all():
            continue
        if (sources < 0).all():
            shape = [len(sources) if a == axis else n for a, n in enumerate(array.shape)]
            array = np.full(shape, rule.cval, np.float64)
            continue
        is_constant = sources < 0
        array = array.take(np.where(is_constant, start, sources) - start, axis=axis)
        if is_constant.any():
            array = array.astype(np.promote_types(array.dtype, np.float64), copy=False)
            array[(slice(None),) * axis + (is_constant,)] = rule.cval
    return array


def slabs(box: Box, limit: int) -> Iterator[Box]:
    """Return slabs of *box* along its first axis, each of at most *limit* elements or of one index.

    >>> list(slabs(((2, 7), (0, 4)), 10))
    [((2, 4), (0, 4)), ((4, 6), (0, 4)), ((6, 7), (0, 4))]
    """
    (start, stop, *_), *other_ranges = box
    step = max(1, limit // max(1, int(np.prod([end - begin for begin, end, *_ in other_ranges]))))
    for slab_start in range(start, stop, step):
        yield ((slab_start, min(slab_start + step, stop)), *other_ranges)
