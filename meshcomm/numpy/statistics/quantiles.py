"""Medians, quantiles and percentiles, as NumPy has them.

If no mesh dimension cuts the reduced axes, each device calls NumPy's function on its block. Else, if there are other
axes, the tensor is relaid so that the reduced axes are whole: `whole_along`. Else the elements are sorted by a sample
sort, and every rank gets the few that the result needs.
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
from meshcomm.core._callers import warning_at_program
from meshcomm.core._types import Array, Axis, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.numpy.elementwise.signatures import implements, implements_each
from meshcomm.numpy.order.samplesort import elements_at, in_order
from meshcomm.numpy.reductions.reductions import sum
from meshcomm.numpy.statistics.averages import weights_along

Levels: TypeAlias = Any  # a number or an array

Pick: TypeAlias = Callable[[list[int]], Array]
"""A function that returns elements by their indices in ascending order of all elements. Collective over the mesh."""


class _Statistic(NamedTuple):
    """A statistic of the elements along some axes.

    Parameters
    ----------
    name: name of NumPy's function
    function: function of an array, ``axis=`` and ``keepdims=``
    line_function: function of the number of sorted elements and a function that picks some; None if there is none
    ignores_nan: whether NaN are left out
    """

    name: str
    function: Callable[..., ArrayLike]
    line_function: Callable[[int, Pick], ArrayLike] | None
    ignores_nan: bool


class _QuantileResult(NamedTuple):
    """Shape, dtype and layout of a result.

    Parameters
    ----------
    shape, dtype: shape and dtype of the result
    axes: function from the sharding specs of the tensor to those of the result
    empty_value: value of each element, if there is nothing to reduce
    """

    shape: Shape
    dtype: DType
    axes: Callable[[Axes], Axes]
    empty_value: object


@implements(np.median)
def median(
    a: DTensor, axis: Axis = None, out: object = None, overwrite_input: bool = False, keepdims: object = False
) -> DTensor:
    """Return the median over *axis*, as numpy.median. Collective over the mesh if a reduced axis is sharded.

    The axes that remain keep their sharding. As in NumPy, NaN is the median if there is one.

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
    """Return the median over *axis* of the elements that are not NaN, as numpy.nanmedian. Otherwise as `median`."""
    statistic = _Statistic("nanmedian", warning_at_program(np.nanmedian), _median_of_line, True)
    result = _statistic_over(statistic, a, axis, bool(keepdims))
    return with_out("numpy.nanmedian", out, result)


@implements_each(np.quantile, np.percentile, np.nanquantile, np.nanpercentile)
def _quantile_function(function: Callable[..., ArrayLike]) -> Callable[..., DTensor]:
    """Return *function*, NumPy's quantile, percentile, nanquantile or nanpercentile, for tensors."""
    name: str = function.__name__
    numpy_function = warning_at_program(function) if name.startswith("nan") else function

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

        def block_quantiles(block: Array, **axis_options: object) -> ArrayLike:
            return numpy_function(block, levels, method=method, **axis_options)

        on_line = partial(_levels_of_line, _fractions(levels, "percentile" in name)) if method == "linear" else None
        call_name = f"{name} at {quote(levels)}" + ("" if method == "linear" else f" by {quote(method)}")
        result = _statistic_over(
            _Statistic(call_name, block_quantiles, on_line, name.startswith("nan")), tensor, axis, bool(keepdims)
        )
        return with_out(f"numpy.{name}", out, result)

    return computed


def _operands(name: str, a: object, q: object, weights: object) -> tuple[DTensor, Levels]:
    """Return *a* as a tensor, and *q* as a number or an array that all ranks have. Collective."""
    mesh = mesh_of(map(unwrapped, (a, q, weights)))
    array, levels = agree_on_plain(name, [unwrapped(a), unwrapped(q)], mesh)
    tensor = array if isinstance(array, DTensor) else replicated(array, mesh)
    return tensor, allgather_array(name, levels) if isinstance(levels, DTensor) else levels


def _fractions(levels: Levels, are_percents: bool) -> Levels:
    """Return levels from 0 to 1: a Python number stays one, as it does not change dtypes; others become an array."""
    is_python_number = type(levels) in (int, float)
    if not are_percents:
        return levels if is_python_number else np.asarray(levels)
    fractions = np.true_divide(levels, 100)
    return float(fractions) if is_python_number else np.asarray(fractions)


# -- of blocks --------------------------------------------------------------------------------------------------------


def _statistic_over(statistic: _Statistic, a: object, axis: Axis, keepdims: bool) -> DTensor:
    """Return the statistic over *axis*. Collective over the mesh if a reduced axis is sharded."""
    name = statistic.name
    tensor = as_tensor(f"numpy.{name}", a)
    axes = normalised_axes(axis, tensor.ndim)
    result = _result_spec(statistic, tensor, axis, axes, keepdims)
    names = tensor.layout.dims_along(axes)
    if statistic.line_function is not None and names and tensor.size and is_one_line(tensor.shape, axes):
        local_result = _line_statistic(statistic, tensor, axes, result)
    else:
        numpy_axis = None if axis is None else axes

        def reduce_block(block: Array) -> Array:
            kept_lengths = [block.shape[number] for number in range(tensor.ndim) if number not in axes]
            leading_ndim = len(result.shape) - (tensor.ndim if keepdims else len(kept_lengths))
            shape = result.shape[:leading_ndim] + _reduced_shape(block.shape, axes, keepdims)
            if 0 in kept_lengths:  # NumPy fails for some empty blocks
                return np.empty(shape, result.dtype)
            if result.empty_value is not None:  # NumPy has warned already
                return np.full(shape, result.empty_value, result.dtype)

            def reduce_interval(interval: Array) -> ArrayLike:
                return statistic.function(interval, axis=numpy_axis, keepdims=keepdims)

            values = by_intervals(reduce_interval, block, axes, leading=leading_ndim, keepdims=keepdims)
            # Without elements, the result may lack the axes of the levels.
            return np.array(np.broadcast_to(np.asarray(values, result.dtype), shape), order="C")

        result_block, layout = of_whole_blocks(tensor, axes, name, reduce_block)
        local_result = make(result_block, Layout(result.axes(layout.axes), tensor.mesh), result.shape, result.dtype)
    return relaid(local_result, result.axes(tensor.layout.axes), name)


def _result_spec(
    statistic: _Statistic, tensor: DTensor, axis: Axis, axes: tuple[int, ...], keepdims: bool
) -> _QuantileResult:
    """Return shape, dtype and layout of the result; NumPy's errors for dtypes and arguments, on all ranks alike."""
    numpy_axis = None if axis is None else axes
    with np.errstate(all="ignore"):
        sample_result = np.asarray(
            statistic.function(np.ones((1,) * tensor.ndim, tensor.dtype), axis=numpy_axis, keepdims=True)
        )
    empty_value = None
    if any(tensor.shape[number] == 0 for number in axes):
        flat_values = np.ravel(statistic.function(np.empty(tensor.shape, tensor.dtype), axis=numpy_axis))
        empty_value = flat_values[0] if flat_values.size else 0
    leading_ndim = sample_result.ndim - tensor.ndim

    def result_axes(tensor_axes: Axes) -> Axes:
        remaining = [number for number in range(tensor.ndim) if keepdims or number not in axes]
        return ((),) * leading_ndim + tuple(() if number in axes else tensor_axes[number] for number in remaining)

    return _QuantileResult(
        sample_result.shape[:leading_ndim] + _reduced_shape(tensor.shape, axes, keepdims),
        sample_result.dtype,
        result_axes,
        empty_value,
    )


def _reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """Return *shape* after a reduction over *axes*."""
    if keepdims:
        return tuple(1 if number in axes else length for number, length in enumerate(shape))
    return without(shape, axes)


# -- of elements in order ---------------------------------------------------------------------------------------------


def _line_statistic(statistic: _Statistic, tensor: DTensor, axes: tuple[int, ...], result: _QuantileResult) -> DTensor:
    """Return the statistic of all elements, on all devices. Collective over the mesh."""
    sorted_values = in_order(
        statistic.name, _sharded_only_along(tensor, axes, statistic.name), stable=False, indexed=False
    ).values

    def pick(indices: list[int]) -> Array:
        elements = elements_at(statistic.name, sorted_values, np.array(indices, dtype=np.intp))
        assert elements is not None
        return elements

    def line_result() -> ArrayLike:
        size, last_element = tensor.size, pick([tensor.size - 1])  # NaN and NaT are sorted after all others
        if statistic.ignores_nan and _is_nan(last_element[0]):
            size -= int(sum(elementwise("isnan", np.isnan, [tensor]))._block[()])  # one tensor
        if _is_nan(last_element[0]) and (size == 0 or not statistic.ignores_nan):
            return statistic.function(last_element, axis=None, keepdims=False)  # NumPy decides the result for NaN
        assert statistic.line_function is not None
        return statistic.line_function(size, pick)

    block = on_device(tensor.mesh, lambda _: np.array(line_result(), result.dtype).reshape(result.shape))
    return make(block, Layout([()] * len(result.shape), tensor.mesh), result.shape, result.dtype)


def _sharded_only_along(tensor: DTensor, axes: tuple[int, ...], operation: str) -> DTensor:
    """Return *tensor* with the sharding of *axes*, and all other axes unsharded."""
    return relaid(tensor, tensor.layout.only(axes).axes, operation)


def _is_nan(value: object) -> bool:
    return bool(value != value)


def _median_of_line(size: int, pick: Pick) -> ArrayLike:
    low, high = pick([(size - 1) // 2, size // 2])
    return np.median(np.array([low] if size % 2 else [low, high]))


def _levels_of_line(levels: Levels, size: int, pick: Pick) -> ArrayLike:
    """Return quantiles by linear interpolation.

    NumPy itself interpolates between the two elements on both sides of each quantile, at the distance from the first
    one. So the bits are those of NumPy.
    """
    flat_levels = list(levels.reshape(-1)) if isinstance(levels, np.ndarray) else [levels]
    positions = [(size - 1) * level for level in flat_levels]
    first_indices = [max(0, min(floor(position), size - 2)) for position in positions]
    elements = pick([min(first_index + step, size - 1) for first_index in first_indices for step in (0, 1)])
    quantiles = [
        np.quantile(elements[2 * number : 2 * number + 2], position - first_index)
        for number, (position, first_index) in enumerate(zip(positions, first_indices, strict=True))
    ]
    return np.array(quantiles).reshape(levels.shape) if isinstance(levels, np.ndarray) else quantiles[0]


# -- with weights -----------------------------------------------------------------------------------------------------


def _weighted_quantiles(
    function: Callable[..., ArrayLike],
    tensor: DTensor,
    weights: DTensor | ArrayLike,
    axis: Axis,
    options: tuple[Levels, str, bool],
) -> DTensor:
    """Return quantiles of weighted elements, which NumPy finds without interpolation. Collective over the mesh.

    Parameters
    ----------
    function: NumPy's function
    tensor: tensor of the elements
    weights: weights of its shape, or of its lengths along *axis*
    axis: one axis, several, or None for all
    options: levels, method, and whether reduced axes stay
    """
    name, (levels, method, keepdims) = f"numpy.{function.__name__}", options
    sample, axes = np.ones((1,) * tensor.ndim, tensor.dtype), normalised_axes(axis, tensor.ndim)
    function(sample, levels, axis=axes, method=method, weights=np.ones(sample.shape))  # NumPy's errors
    broadcast_weights = tensor_np.broadcast_to(weights_along(name, tensor, weights, axis), tensor.shape)
    weights_tensor = relaid(broadcast_weights, tensor.layout.axes, name)
    is_used = ~tensor_np.isnan(tensor) if function.__name__.startswith("nan") else None
    used_weights = weights_tensor if is_used is None else tensor_np.where(is_used, weights_tensor, 0)
    weight_sum = tensor_np.sum(used_weights, axis=axes, dtype=float)
    is_invalid = ~np.isfinite(weight_sum) | (weight_sum == 0) & (
        True if is_used is None else np.any(is_used, axis=axes)
    )
    if bool(np.any(weights_tensor < 0)):
        raise ValueError("Weights must be non-negative.")
    if bool(np.any(is_invalid)):
        raise ValueError("Weights included NaN, inf or were all zero.")
    names = tensor.layout.dims_along(axes)
    if names and tensor.size and is_one_line(tensor.shape, axes):
        result = _weighted_line(tensor, used_weights, is_used, np.asarray(_fractions(levels, "percentile" in name)))
        return tensor_np.reshape(result, np.shape(levels) + _reduced_shape(tensor.shape, axes, keepdims))
    whole_tensor = whole_along(tensor, axes, name)
    block, block_weights = whole_tensor._block, relaid(weights_tensor, whole_tensor.layout.axes, name)._block

    def block_quantiles(lines: Array, **axis_options: object) -> ArrayLike:
        line_weights = block_weights if lines is block else np.ones(lines.shape)
        return function(lines, levels, method=method, weights=line_weights, **axis_options)

    values = _statistic_over(_Statistic(function.__name__, block_quantiles, None, False), whole_tensor, axis, keepdims)
    layout = tensor.layout.replace(axes, ()) if keepdims else tensor.layout.delete(axes)
    return relaid(values, ((),) * (values.ndim - layout.ndim) + layout.axes, name)


def _weighted_line(tensor: DTensor, weights: DTensor, is_used: DTensor | None, levels: Array) -> TensorOrArray:
    """Return, on all devices, the first elements at which the cumulative weight reaches each of the *levels*."""
    values, used_weights = tensor.ravel(), weights.ravel()
    if is_used is not None:
        values, used_weights = values[is_used.ravel()], used_weights[is_used.ravel()]
    if not values.size:
        return np.full(levels.shape, np.asarray(np.nan).astype(tensor.dtype))
    order = tensor_np.argsort(values)
    values = values[order]
    cumulative_weights = tensor_np.cumsum(used_weights[order], dtype=float)
    cumulative_weights = cumulative_weights / cumulative_weights[-1]
    if levels.dtype.kind == "f":
        cumulative_weights = cumulative_weights.astype(levels.dtype)
    cumulative_weights = tensor_np.where(cumulative_weights == 0, -1, cumulative_weights)
    indices = tensor_np.minimum(tensor_np.searchsorted(cumulative_weights, levels), values.size - 1)
    last_value = values[-1]
    return tensor_np.where(last_value != last_value, last_value, values[indices])  # NaN, NaT
