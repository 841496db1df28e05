"""Medians, quantiles and percentiles, as NumPy has them.

Where no mesh dimension cuts the axes, each device asks NumPy about its block. Where there are other axes, the tensor
is relaid so that the axes are whole: `whole_along`. Else the elements are sorted by a sample sort, and every rank gets
the few that the result needs.
"""

from collections.abc import Callable
from functools import partial
from math import floor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid, replicated
from meshcomm.blocks.intervals import by_intervals
from meshcomm.blocks.make import make, on_device
from meshcomm.blocks.map import elementwise, with_out
from meshcomm.blocks.rules import mesh_of, without
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.tensor_numpy import TensorOrArray, tensor_np
from meshcomm.blocks.whole import is_one_line, of_whole_blocks, whole_along
from meshcomm.core._arguments import normalised_axes, quote
from meshcomm.core._callers import naming_callers
from meshcomm.core._types import Array, Axis, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.numpy.elementwise.signatures import implements, implements_each
from meshcomm.numpy.order.samplesort import elements_at, in_order
from meshcomm.numpy.reductions.reductions import sum
from meshcomm.numpy.statistics.averages import weights_along

Levels: TypeAlias = Any  # a number or an array

Picked: TypeAlias = Callable[[list[int]], Array]
"""Returns elements by their indices in the global order. Collective over the mesh."""


class _Statistic(NamedTuple):
    """What to compute of the elements along some axes.

    Parameters
    ----------
    name: name of NumPy's function
    of: function of an array, ``axis=`` and ``keepdims=``
    of_line: function of the number of sorted elements and a function that picks some; None if there is none
    ignores_nan: whether NaN are left out
    """

    name: str
    of: Callable[..., ArrayLike]
    of_line: Callable[[int, Picked], ArrayLike] | None
    ignores_nan: bool


class _QuantileResult(NamedTuple):
    """How a result looks.

    Parameters
    ----------
    shape, dtype: shape and dtype of the result
    axes: function from the sharding specs of the tensor to those of the result
    of_nothing: value of each element, if there is nothing to reduce
    """

    shape: Shape
    dtype: DType
    axes: Callable[[Axes], Axes]
    of_nothing: object


@implements(np.median)
def median(
    a: DTensor, axis: Axis = None, out: object = None, overwrite_input: bool = False, keepdims: object = False
) -> DTensor:
    """Return the median over *axis*, as numpy.median. Collective over the mesh if a reduced axis is sharded.

    The axes that remain keep their sharding. As in NumPy, NaN is the median where there is one.

    Parameters
    ----------
    a: a tensor
    axis: one axis, several, or None for all; ``ShapeError`` for a missing one
    out: a tensor to write the result to
    overwrite_input: has no effect
    keepdims: whether reduced axes stay, with length 1

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([4, 1, 2, 9]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return float(np.median(t)), float(np.quantile(t, 0.5)), np.percentile(t, [0, 100]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (3.0, 3.0, [1.0, 9.0])
    """
    result = _statistic_over(_Statistic("median", np.median, _median_of_line, False), a, axis, bool(keepdims))
    return with_out("numpy.median", out, result)


@implements(np.nanmedian)
def nanmedian(
    a: DTensor, axis: Axis = None, out: object = None, overwrite_input: bool = False, keepdims: object = False
) -> DTensor:
    """Return the median over *axis* of what is not NaN, as numpy.nanmedian. The rest is as for `median`."""
    statistic = _Statistic("nanmedian", naming_callers(np.nanmedian), _median_of_line, True)
    result = _statistic_over(statistic, a, axis, bool(keepdims))
    return with_out("numpy.nanmedian", out, result)


@implements_each(np.quantile, np.percentile, np.nanquantile, np.nanpercentile)
def _of_levels(function: Callable[..., ArrayLike]) -> Callable[..., DTensor]:
    """Return `numpy.quantile`, or one that is like it, for tensors."""
    name: str = function.__name__
    named = naming_callers(function) if name.startswith("nan") else function

    def computed(
        a: DTensor,
        q: ArrayLike,
        axis: Axis = None,
        out: object = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: object = False,
        *,
        weights: DTensor | ArrayLike | None = None,
        **options: object,
    ) -> DTensor:
        for argument, value in options.items():
            if value is not None:
                raise TypeError(f"numpy.{name}: {argument}= is not supported for DTensors")
        tensor, levels = _operands(f"numpy.{name}", a, q, weights)
        if weights is not None:
            result = _weighted_quantiles(function, tensor, weights, axis, (levels, method, bool(keepdims)))
            return with_out(f"numpy.{name}", out, result)

        def of(block: Array, **where: object) -> ArrayLike:
            return named(block, levels, method=method, **where)

        of_line = partial(_levels_of_line, _fractions(levels, "percentile" in name)) if method == "linear" else None
        called = f"{name} at {quote(levels)}" + ("" if method == "linear" else f" by {quote(method)}")
        result = _statistic_over(_Statistic(called, of, of_line, name.startswith("nan")), tensor, axis, bool(keepdims))
        return with_out(f"numpy.{name}", out, result)

    return computed


def _operands(name: str, a: object, q: object, weights: object) -> tuple[DTensor, Levels]:
    """Return a tensor, also of a plain array if another operand is one, and levels that all ranks know. Collective."""
    mesh = mesh_of(map(unwrapped, (a, q, weights)))
    array, levels = agree_on_plain(name, [unwrapped(a), unwrapped(q)], mesh)
    tensor = array if isinstance(array, DTensor) else replicated(array, mesh)
    return tensor, allgather_array(name, levels) if isinstance(levels, DTensor) else levels


def _fractions(levels: Levels, percent: bool) -> Levels:
    """Return levels from 0 to 1: a number of Python as such, which does not change dtypes, and others as NumPy's."""
    plain = type(levels) in (int, float)
    if not percent:
        return levels if plain else np.asarray(levels)
    fractions = np.true_divide(levels, 100)
    return float(fractions) if plain else np.asarray(fractions)


# -- of blocks --------------------------------------------------------------------------------------------------------


def _statistic_over(statistic: _Statistic, a: object, axis: Axis, keepdims: bool) -> DTensor:
    """Return the statistic over *axis*. Collective over the mesh if a reduced axis is sharded."""
    name = statistic.name
    tensor = as_tensor(f"numpy.{name}", a)
    axes = normalised_axes(axis, tensor.ndim)
    result = _result_spec(statistic, tensor, axis, axes, keepdims)
    names = tensor.layout.dims_along(axes)
    if statistic.of_line is not None and names and tensor.size and is_one_line(tensor.shape, axes):
        local_result = _of_line(statistic, tensor, axes, result)
    else:
        where = None if axis is None else axes

        def of(block: Array) -> Array:
            lengths = [block.shape[number] for number in range(tensor.ndim) if number not in axes]
            leading = len(result.shape) - (tensor.ndim if keepdims else len(lengths))
            shape = result.shape[:leading] + _reduced_shape(block.shape, axes, keepdims)
            if 0 in lengths:  # NumPy fails for some empty blocks
                return np.empty(shape, result.dtype)
            if result.of_nothing is not None:  # it has warned
                return np.full(shape, result.of_nothing, result.dtype)

            def of_interval(interval: Array) -> ArrayLike:
                return statistic.of(interval, axis=where, keepdims=keepdims)

            values = by_intervals(of_interval, block, axes, leading=leading, keepdims=keepdims)
            # It may forget the levels of nothing.
            return np.array(np.broadcast_to(np.asarray(values, result.dtype), shape), order="C")

        local, whole = of_whole_blocks(tensor, axes, name, of)
        local_result = make(local, Layout(result.axes(whole.axes), tensor.mesh), result.shape, result.dtype)
    return relaid(local_result, result.axes(tensor.layout.axes), name)


def _result_spec(
    statistic: _Statistic, tensor: DTensor, axis: Axis, axes: tuple[int, ...], keepdims: bool
) -> _QuantileResult:
    """Return how the result looks; NumPy's errors for dtypes, arguments and empty arrays, on all ranks alike."""
    where = None if axis is None else axes
    with np.errstate(all="ignore"):
        probe = np.asarray(statistic.of(np.ones((1,) * tensor.ndim, tensor.dtype), axis=where, keepdims=True))
    nothing = None
    if any(tensor.shape[number] == 0 for number in axes):
        flat = np.ravel(statistic.of(np.empty(tensor.shape, tensor.dtype), axis=where))
        nothing = flat[0] if flat.size else 0
    leading = probe.ndim - tensor.ndim

    def sharded(cut: Axes) -> Axes:
        remaining = [number for number in range(tensor.ndim) if keepdims or number not in axes]
        return ((),) * leading + tuple(() if number in axes else cut[number] for number in remaining)

    return _QuantileResult(
        probe.shape[:leading] + _reduced_shape(tensor.shape, axes, keepdims), probe.dtype, sharded, nothing
    )


def _reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return what is left of *shape* if *axes* are reduced."""
    if keepdims:
        return tuple(1 if number in axes else length for number, length in enumerate(shape))
    return without(shape, axes)


# -- of elements in order ---------------------------------------------------------------------------------------------


def _of_line(statistic: _Statistic, tensor: DTensor, axes: tuple[int, ...], result: _QuantileResult) -> DTensor:
    """Return the statistic of all elements, on all devices. Collective over the mesh."""
    ordered = in_order(statistic.name, _spread_along(tensor, axes, statistic.name), stable=False, indexed=False).values

    def pick(indices: list[int]) -> Array:
        elements = elements_at(statistic.name, ordered, np.array(indices, dtype=np.intp))
        assert elements is not None
        return elements

    def result_at_ranks() -> ArrayLike:
        size, last = tensor.size, pick([tensor.size - 1])  # NaN and NaT are behind all others
        if statistic.ignores_nan and _is_nan(last[0]):
            size -= int(sum(elementwise("isnan", np.isnan, [tensor]))._block[()])  # one tensor
        if _is_nan(last[0]) and (size == 0 or not statistic.ignores_nan):
            return statistic.of(last, axis=None, keepdims=False)  # NumPy says what follows from NaN
        assert statistic.of_line is not None
        return statistic.of_line(size, pick)

    block = on_device(tensor.mesh, lambda _: np.array(result_at_ranks(), result.dtype).reshape(result.shape))
    return make(block, Layout([()] * len(result.shape), tensor.mesh), result.shape, result.dtype)


def _spread_along(tensor: DTensor, axes: tuple[int, ...], operation: str) -> DTensor:
    """Return *tensor* with *axes* sharded as they are, and no other one."""
    return relaid(tensor, tensor.layout.only(axes).axes, operation)


def _is_nan(value: object) -> bool:
    return bool(value != value)


def _median_of_line(size: int, pick: Picked) -> ArrayLike:
    low, high = pick([(size - 1) // 2, size // 2])
    return np.median(np.array([low] if size % 2 else [low, high]))


def _levels_of_line(levels: Levels, size: int, pick: Picked) -> ArrayLike:
    """Return quantiles by linear interpolation.

    NumPy itself interpolates between the two elements beside each of them, at the distance from the first one. So the
    bits are those of NumPy.
    """
    flat = list(levels.reshape(-1)) if isinstance(levels, np.ndarray) else [levels]
    at = [(size - 1) * level for level in flat]
    firsts = [max(0, min(floor(index), size - 2)) for index in at]
    elements = pick([min(first + step, size - 1) for first in firsts for step in (0, 1)])
    quantiles = [
        np.quantile(elements[2 * number : 2 * number + 2], index - first)
        for number, (index, first) in enumerate(zip(at, firsts, strict=True))
    ]
    return np.array(quantiles).reshape(levels.shape) if isinstance(levels, np.ndarray) else quantiles[0]


# -- with weights -----------------------------------------------------------------------------------------------------


def _weighted_quantiles(
    function: Callable[..., ArrayLike],
    tensor: DTensor,
    weights: DTensor | ArrayLike,
    axis: Axis,
    how: tuple[Levels, str, bool],
) -> DTensor:
    """Return quantiles of weighted elements, which NumPy finds without interpolation. Collective over the mesh.

    Parameters
    ----------
    function: NumPy's function
    tensor: tensor of the elements
    weights: weights of its shape, or of its lengths along *axis*
    axis: one axis, several, or None for all
    how: levels, method, and whether reduced axes stay
    """
    name, (levels, method, keepdims) = f"numpy.{function.__name__}", how
    small, axes = np.ones((1,) * tensor.ndim, tensor.dtype), normalised_axes(axis, tensor.ndim)
    function(small, levels, axis=axes, method=method, weights=np.ones(small.shape))  # NumPy's errors
    wide = tensor_np.broadcast_to(weights_along(name, tensor, weights, axis), tensor.shape)
    factors = relaid(wide, tensor.layout.axes, name)
    counted = ~tensor_np.isnan(tensor) if function.__name__.startswith("nan") else None
    used = factors if counted is None else tensor_np.where(counted, factors, 0)
    total = tensor_np.sum(used, axis=axes, dtype=float)
    lost = ~np.isfinite(total) | (total == 0) & (True if counted is None else np.any(counted, axis=axes))
    if bool(np.any(factors < 0)):
        raise ValueError("Weights must be non-negative.")
    if bool(np.any(lost)):
        raise ValueError("Weights included NaN, inf or were all zero.")
    names = tensor.layout.dims_along(axes)
    if names and tensor.size and is_one_line(tensor.shape, axes):
        line = _weighted_line(tensor, used, counted, np.asarray(_fractions(levels, "percentile" in name)))
        return tensor_np.reshape(line, np.shape(levels) + _reduced_shape(tensor.shape, axes, keepdims))
    whole_lines = whole_along(tensor, axes, name)
    block, loads_of_block = whole_lines._block, relaid(factors, whole_lines.layout.axes, name)._block

    def of(lines: Array, **where: object) -> ArrayLike:
        loads = loads_of_block if lines is block else np.ones(lines.shape)
        return function(lines, levels, method=method, weights=loads, **where)

    quantiles = _statistic_over(_Statistic(function.__name__, of, None, False), whole_lines, axis, keepdims)
    layout = tensor.layout.replace(axes, ()) if keepdims else tensor.layout.delete(axes)
    return relaid(quantiles, ((),) * (quantiles.ndim - layout.ndim) + layout.axes, name)


def _weighted_line(tensor: DTensor, weights: DTensor, counted: DTensor | None, levels: Array) -> TensorOrArray:
    """Return the elements at which the sums of the weights of those below reach the levels, on all devices."""
    values, loads = tensor.ravel(), weights.ravel()
    if counted is not None:
        values, loads = values[counted.ravel()], loads[counted.ravel()]
    if not values.size:
        return np.full(levels.shape, np.asarray(np.nan).astype(tensor.dtype))
    order = tensor_np.argsort(values)
    values = values[order]
    sums = tensor_np.cumsum(loads[order], dtype=float)
    sums = sums / sums[-1]
    if levels.dtype.kind == "f":
        sums = sums.astype(levels.dtype)
    sums = tensor_np.where(sums == 0, -1, sums)
    at = tensor_np.minimum(tensor_np.searchsorted(sums, levels), values.size - 1)
    last = values[-1]
    return tensor_np.where(last != last, last, values[at])  # NaN, NaT
