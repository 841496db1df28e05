"""The methods of ufuncs: reduce, accumulate, reduceat, outer; and reductions with ``where=``.

Associative functions reduce each block, and then the shares of the devices, in the order of the devices. For other
functions, such as subtract, the axis is first made whole on each device.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import agree_on_plain, aligned_blocks
from meshcomm.blocks.make import make, mapped
from meshcomm.blocks.map import deciding, elementwise, with_out
from meshcomm.blocks.reduce import Merge, Reduction, axis_argument, reduced
from meshcomm.blocks.rules import mesh_of, without
from meshcomm.blocks.scan import Scan, accumulated
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.blocks.whole import of_whole_blocks, whole_along
from meshcomm.core._arguments import NO_VALUE, normalised_axes, reduced_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Axis, DType
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.numpy.elementwise.signatures import decision
from meshcomm.numpy.elementwise.where import where as select_where

_MERGE_OPS: dict[np.ufunc, str | Merge] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_and: "min",
    np.logical_or: "max",
}
ASSOCIATIVE = {
    *(*_MERGE_OPS, np.fmax, np.fmin, np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    *(np.gcd, np.lcm, np.hypot, np.logaddexp, np.logaddexp2),
}
"""Functions of two elements that may first reduce intervals of elements, and then the results of these."""


def reduce(
    ufunc: np.ufunc,
    array: object,
    axis: Axis = 0,
    dtype: DTypeLike | None = None,
    *,
    keepdims: bool = False,
    initial: object = NO_VALUE,
    where: object = True,
) -> DTensor:
    """Return the elements along *axis* reduced by *ufunc*, in their order. Collective if a reduced axis is cut.

    Parameters
    ----------
    ufunc: a universal function of two operands
    array: a tensor
    axis: one axis, several, or None for all
    dtype: dtype of the computation, by default NumPy's
    keepdims: whether reduced axes stay, with length 1
    initial: one more element, before the others
    where: which elements count: a boolean tensor, or an array that is the same on all ranks

    NumPy's errors for functions and dtypes that have no reduction, and for tensors without elements. Source:
    numpy.ufunc.reduce.
    """
    name, tensor = f"numpy.{ufunc.__name__}.reduce", as_tensor(f"numpy.{ufunc.__name__}", array)
    axes = () if tensor.ndim == 0 and axis in (0, -1) else reduced_axes(axis, tensor.ndim)
    options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
    if initial is not NO_VALUE:
        options["initial"] = initial
    mask = None if where is True else agree_on_plain(name, [mask_of(where)], tensor.mesh)[0]
    if ufunc not in ASSOCIATIVE:
        whole_result = _reduced_whole(ufunc, tensor, axes, options, mask)
        return tensor_np.expand_dims(whole_result, axes) if keepdims else whole_result
    out_dtype = _reduced_dtype(ufunc, tensor, axes, options, mask)
    empty_value = ufunc.identity if initial is NO_VALUE else initial
    if 0 in [tensor.shape[a] for a in axes]:
        return tensor_np.full_like(tensor_np.any(tensor, axis=axes, keepdims=keepdims), empty_value, dtype=out_dtype)
    if mask is not None:
        neutral_element = np.asarray(initial if ufunc.identity is None else ufunc.identity)
        operand = tensor if tensor.dtype.kind == out_dtype.kind or out_dtype.kind == "b" else tensor.astype(out_dtype)
        tensor = select_where(mask, operand, neutral_element.astype(operand.dtype))
    numpy_axis = axis_argument(axes, tensor.ndim)

    # Ufuncs take the type numpy.datetime64, but no dtype with its unit.
    def reduce_block(block: Array) -> Array:
        return ufunc.reduce(block, axis=numpy_axis, dtype=out_dtype.type)

    def merge(rows: Array) -> Array:
        result: Array = ufunc.reduce(rows, axis=0, dtype=out_dtype.type)
        return np.asarray(result)

    reduction = Reduction(name, axes, reduce_block, reduce_block, _MERGE_OPS.get(ufunc, merge), out_dtype, ufunc=ufunc)
    result = reduced(reduction, tensor, keepdims)
    if initial is NO_VALUE or initial is None:
        return result
    return ufunc(np.asarray(initial).astype(out_dtype)[()], result)


def mask_of(where: object) -> Value:
    """Return the argument ``where=`` as a mask, by NumPy's rules: a list is converted to bool, None is False."""
    if isinstance(where, list | tuple):
        return np.asarray(where, np.bool_)
    return True if where is True else np.bool_(False) if where is False or where is None else unwrapped(where)


def _reduced_dtype(
    ufunc: np.ufunc, tensor: DTensor, axes: tuple[int, ...], options: dict[str, Value], mask: Value
) -> DType:
    """Return the dtype of a reduction; NumPy's error on all ranks if it is not defined."""
    ones = np.ones([min(n, 1) for n in tensor.shape], tensor.dtype)
    where_option = {} if mask is None else {"where": np.ones((1,) * np.ndim(mask), mask.dtype)}
    sample: Array = ufunc.reduce(ones, axis=axis_argument(axes, tensor.ndim), **options, **where_option)
    return np.asarray(sample).dtype


def _reduced_whole(
    ufunc: np.ufunc, tensor: DTensor, axes: tuple[int, ...], options: dict[str, Value], mask: Value
) -> DTensor:
    """Return a reduction by a function that is not associative: the reduced axes become whole on each device."""
    name, out_dtype = f"numpy.{ufunc.__name__}.reduce", _reduced_dtype(ufunc, tensor, axes, options, mask)
    whole_tensor = whole_along(tensor, axes, name)
    where_option = (
        {} if mask is None else {"where": aligned_blocks(name, [mask], whole_tensor.shape, whole_tensor.layout)[0]}
    )

    def reduce_whole(block: Array) -> Array:
        return ufunc.reduce(block, axis=axis_argument(axes, tensor.ndim), **options, **where_option)

    return mapped(
        reduce_whole,
        whole_tensor,
        layout=whole_tensor.layout.delete(axes),
        shape=without(whole_tensor.shape, axes),
        dtype=out_dtype,
    )


def accumulate(ufunc: np.ufunc, array: object, axis: int = 0, dtype: DTypeLike | None = None) -> DTensor:
    """Return the elements up to each one along *axis* reduced by *ufunc*. Collective if the axis is cut.

    Source: numpy.ufunc.accumulate. Arguments are those of `reduce`.
    """
    name, tensor = f"numpy.{ufunc.__name__}.accumulate", as_tensor(f"numpy.{ufunc.__name__}", array)
    axes = normalised_axes(axis, tensor.ndim) if tensor.ndim else ()
    sample: Array = ufunc.accumulate(np.ones([min(n, 1) for n in tensor.shape], tensor.dtype), axis, dtype)
    (scan_axis,) = axes  # NumPy has refused no axis and several

    def accumulate_block(block: Array, axis: int, dtype: DType) -> Array:
        return ufunc.accumulate(block, axis, dtype.type)

    if ufunc in ASSOCIATIVE:
        return accumulated(Scan(name, accumulate_block, ufunc, scan_axis, sample.dtype), tensor)
    block_and_layout = of_whole_blocks(tensor, [scan_axis], name, lambda x: ufunc.accumulate(x, scan_axis, dtype))
    return make(*block_and_layout, tensor.shape, sample.dtype)


def reduceat(
    ufunc: np.ufunc, array: object, indices: DTensor | ArrayLike, axis: int = 0, dtype: DTypeLike | None = None
) -> DTensor:
    """Return the elements between *indices* along *axis* reduced by *ufunc*. Collective if the axis is cut.

    The axis is whole on each device first. *indices* are the same on all ranks. Source: numpy.ufunc.reduceat.
    """
    name, tensor = f"numpy.{ufunc.__name__}.reduceat", as_tensor(f"numpy.{ufunc.__name__}", array)
    (reduced_axis,) = normalised_axes(axis, tensor.ndim)
    index_array = allgather_array(name, indices)
    index_array = index_array if index_array.size else index_array.astype(np.intp)  # an empty list has dtype float64
    shape = (*tensor.shape[:reduced_axis], len(index_array), *tensor.shape[reduced_axis + 1 :])
    sample = np.ones([n if a == reduced_axis else 1 for a, n in enumerate(tensor.shape)], tensor.dtype)
    out_dtype = ufunc.reduceat(sample, index_array, reduced_axis, dtype).dtype  # raises NumPy's errors

    def reduceat_block(block: Array) -> Array:
        return np.asarray(ufunc.reduceat(block, index_array, reduced_axis, dtype), order="C")

    return make(*of_whole_blocks(tensor, [reduced_axis], name, reduceat_block), shape, out_dtype)


def outer(ufunc: np.ufunc, a: object, b: object, **options: object) -> Value:
    """Return *ufunc* of each element of *a* with each of *b*. Collective if an operand has to move.

    Source: numpy.ufunc.outer.
    """
    name = f"{ufunc.__name__}.outer"
    left, right = agree_on_plain(f"numpy.{name}", [a, b], mesh_of([a, b]))
    if (ndim := np.ndim(left) + np.ndim(right)) > 64:
        raise ValueError(f"maximum supported dimension for an ndarray is 64, but `{name}()` result would have {ndim}.")
    expanded = left[(..., *(None,) * np.ndim(right))] if isinstance(left, DTensor | np.ndarray) and left.ndim else left
    return ufunc(expanded, right, **options)


# -- calls ------------------------------------------------------------------------------------------------------------


def elementwise_ufunc(
    ufunc: np.ufunc, operands: Sequence[object], out: Sequence[DTensor], options: dict[str, object]
) -> Call | DTensor | Sequence[DTensor]:
    """Return the results of an elementwise ufunc, or the call that makes them.

    Collective if it returns results and an operand has to move, or is a plain array. Elements that ``where=`` excludes
    keep their value in *out*; without *out* they are zero.
    """
    name = f"numpy.{ufunc.__name__}"
    if not options:
        return deciding(name, ufunc, operands, out)
    options = {**options, "order": "C"}  # NumPy's results for transposed blocks are transposed
    where = mask_of(options.pop("where", True))
    if where is True:
        return elementwise(name, lambda *blocks, **out_option: ufunc(*blocks, **out_option, **options), operands, out)

    def masked_ufunc(*blocks: Array, **out_option: object) -> object:
        *inputs, mask = blocks
        if not out_option:
            empty_results = ufunc(*(x if np.ndim(x) == 0 else np.empty(0, x.dtype) for x in inputs), **options)
            shape = np.broadcast_shapes(*map(np.shape, blocks))
            out_option = {
                "out": tuple(
                    np.zeros(shape, x.dtype)
                    for x in (empty_results if isinstance(empty_results, tuple) else (empty_results,))
                )
            }
        return ufunc(*inputs, where=mask, **out_option, **options)

    return elementwise(name, masked_ufunc, [*operands, where], out)


_METHODS: dict[str, Callable[..., DTensor]] = {"reduce": reduce, "accumulate": accumulate, "reduceat": reduceat}


def call_method(ufunc: np.ufunc, method: str, inputs: tuple[object, ...], options: dict[str, object]) -> Value:
    """Return the result of a method of a ufunc on tensors, written to ``out=`` if there is one."""
    if method == "outer":
        return outer(ufunc, *inputs, **options)
    out = options.pop("out", None)
    return with_out(f"numpy.{ufunc.__name__}.{method}", out, _METHODS[method](ufunc, *inputs, **options), "unsafe")


# -- NumPy's reductions with initial= and where= ----------------------------------------------------------------------


def with_where(
    tensor_function: Callable[..., DTensor], ufunc: np.ufunc, *, skip_nan: bool = False
) -> Callable[..., Call | DTensor]:
    """Return *tensor_function*, a reduction by *ufunc*, with NumPy's ``initial=`` and ``where=``.

    With *skip_nan*, NaN does not count.
    """

    def reduce_tensor(
        a: DTensor,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        keepdims: bool = False,
        initial: object = NO_VALUE,
        where: object = True,
    ) -> Call | DTensor:
        options = {} if dtype is None else {"dtype": dtype}
        if where is True and initial is NO_VALUE:
            return decision(tensor_function)(a, axis, keepdims=bool(keepdims), **options)
        if skip_nan and as_tensor(ufunc.__name__, a).dtype.kind in "fc":
            where = tensor_np.logical_and(~tensor_np.isnan(a), where)
        return reduce(ufunc, a, axis, keepdims=bool(keepdims), initial=initial, where=where, **options)

    return reduce_tensor
