"""Computed values for pad: statistics, ramps, and reflections about the edge."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.errors import ShapeError

Pair: TypeAlias = tuple[Any, Any]
Values: TypeAlias = DTensor | Array

STATISTICS: dict[str, Callable[..., Values]] = {
    "maximum": np.amax,
    "minimum": np.amin,
    "mean": np.mean,
    "median": np.median,
}
"""Modes that pad with a statistic of the elements at the edge, and the function that computes it."""


def pairs(option: object, ndim: int, name: str) -> list[Pair]:
    """Return an option of pad as a pair for each axis. ``ShapeError`` if it does not broadcast to pairs."""
    try:
        values = np.broadcast_to(np.asarray(option), (ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(f"{name} {quote(option)}: it is a number, (before, after), or a pair for each axis") from None
    return [(before, after) for before, after in values]


def statistics(tensor: DTensor, axis: int, mode: str, lengths: Pair) -> tuple[Values, Values]:
    """Return the values before and after a tensor: a statistic of the elements at each edge.

    *lengths* are the numbers of elements at both edges; None for all of the axis.
    """
    n, edge_values = tensor.shape[axis], []
    for length, at_end in zip(lengths, (False, True), strict=True):
        count = n if length is None else min(int(length), n)
        if count < 1:
            raise ValueError("stat_length of 0 yields no value for padding")
        edge = tensor[(slice(None),) * axis + (slice(n - count, n) if at_end else slice(0, count),)]
        value = STATISTICS[mode](edge, axis=axis, keepdims=True)
        edge_values.append(_converted(np.rint(value) if tensor.dtype.kind in "iu" else value, tensor.dtype))
    return edge_values[0], edge_values[1]


def ramps(tensor: DTensor, axis: int, width: tuple[int, int], end_values: Pair) -> tuple[Values, Values]:
    """Return the values before and after a tensor: straight lines from the edge to *end_values*, as numpy.linspace."""
    n, lines = tensor.shape[axis], []
    for count, end_value, at_end in zip(width, end_values, (False, True), strict=True):
        edge = tensor[(slice(None),) * axis + (slice(n - 1, n) if at_end else slice(0, 1),)]
        steps = np.arange(count, dtype=float).reshape((-1,) + (1,) * (tensor.ndim - axis - 1))
        line = steps * ((edge - end_value * np.ones(1)) / max(count, 1)) + end_value
        line = np.floor(line) if tensor.dtype.kind in "iu" else line
        lines.append(_converted(np.flip(line, axis) if at_end else line, tensor.dtype))
    return lines[0], lines[1]


def mirrored(tensor: DTensor, padded: DTensor, axis: int, width: tuple[int, int], mode: str) -> tuple[Values, Values]:
    """Return the values before and after a tensor in an odd reflection; *padded* is the even reflection.

    Each reflection mirrors the previous one about its edge: after two of them, the elements are those of the tensor
    plus two times the difference of its edges.
    """
    if tensor.dtype == bool:
        tensor, padded = tensor.astype("i1"), padded.astype("i1")
    n, (before, after) = tensor.shape[axis], width
    leading_slices, trailing_shape = (slice(None),) * axis, (1,) * (tensor.ndim - axis - 1)
    first_edge, last_edge = tensor[(*leading_slices, slice(0, 1))], tensor[(*leading_slices, slice(n - 1, n))]
    reflections = []
    for edge, start, count in ((first_edge, -before, before), (last_edge, n, after)):
        even_values = padded[(*leading_slices, slice(start + before, start + before + count))]
        turns = np.arange(start, start + count) // (n - (mode == "reflect") or 1)
        is_odd = (turns % 2 == 1).reshape(-1, *trailing_shape)
        steps = turns + turns % 2 if edge is first_edge else turns - turns % 2  # those beyond the edge that is closer
        shift = steps.reshape(-1, *trailing_shape).astype(tensor.dtype) * (last_edge - first_edge)
        reflections.append(even_values if n == 1 else np.where(is_odd, 2 * edge - even_values, even_values) + shift)
    return reflections[0], reflections[1]


def _converted(values: Values, dtype: DType) -> Values:
    return values.astype(dtype, copy=False)
