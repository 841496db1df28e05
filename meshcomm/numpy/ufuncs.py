"""The methods of universal functions: reduce, accumulate, reduceat, outer; and reductions of chosen elements.

Functions that are associative reduce each block, and then the shares of the devices, in the order of the devices. Of
the others, such as subtract, the axis is whole on each device first.
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
from meshcomm.numpy.elementwise.where import where as chosen

_MERGED_BY: dict[np.ufunc, str | Merge] = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "max",
    np.minimum: "min",
    np.logical_and: "min",
    np.logical_or: "max",
}
ASSOCIATIVE = {
    *(*_MERGED_BY, np.fmax, np.fmin, np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor),
    *(np.gcd, np.lcm, np.hypot, np.logaddexp, np.logaddexp2),
}
"""Functions of two elements that may reduce intervals of elements first, and then what they made of these."""


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
    """Return what *ufunc* makes of the elements along *axis*, one after the other. Collective if one of them is cut.

    Parameters
    ----------
    ufunc: a universal function of two operands
    array: a tensor
    axis: one axis, several, or None for all
    dtype: of the computation, by default as NumPy has it
    keepdims: whether reduced axes stay, with length 1
    initial: one more element, before the others
    where: which elements count: a boolean tensor, or an array that is the same on all ranks

    NumPy's errors for functions and dtypes that have no reduction, and for what has no elements. Source:
    numpy.ufunc.reduce.
    """
    name, tensor = f"numpy.{ufunc.__name__}.reduce", as_tensor(f"numpy.{ufunc.__name__}", array)
    axes = () if tensor.ndim == 0 and axis in (0, -1) else reduced_axes(axis, tensor.ndim)
    options: dict[str, object] = {} if dtype is None else {"dtype": dtype}
    if initial is not NO_VALUE:
        options["initial"] = initial
    mask = None if where is True else agree_on_plain(name, [mask_of(where)], tensor.mesh)[0]
    if ufunc not in ASSOCIATIVE:
        whole = _reduced_whole(ufunc, tensor, axes, options, mask)
        return tensor_np.expand_dims(whole, axes) if keepdims else whole
    kind = _kind_of_reduced(ufunc, tensor, axes, options, mask)
    first = ufunc.identity if initial is NO_VALUE else initial
    if 0 in [tensor.shape[a] for a in axes]:
        return tensor_np.full_like(tensor_np.any(tensor, axis=axes, keepdims=keepdims), first, dtype=kind)
    if mask is not None:
        neutral = np.asarray(initial if ufunc.identity is None else ufunc.identity)
        wide = tensor if tensor.dtype.kind == kind.kind or kind.kind == "b" else tensor.astype(kind)
        tensor = chosen(mask, wide, neutral.astype(wide.dtype))
    over = axis_argument(axes, tensor.ndim)

    # Universal functions take the type of a date, but no dtype with its unit.
    def reduce_block(block: Array) -> Array:
        return ufunc.reduce(block, axis=over, dtype=kind.type)

    def merged(rows: Array) -> Array:
        result: Array = ufunc.reduce(rows, axis=0, dtype=kind.type)
        return np.asarray(result)

    how = Reduction(name, axes, reduce_block, reduce_block, _MERGED_BY.get(ufunc, merged), kind, ufunc=ufunc)
    result = reduced(how, tensor, keepdims)
    if initial is NO_VALUE or initial is None:
        return result
    return ufunc(np.asarray(initial).astype(kind)[()], result)


def mask_of(where: object) -> Value:
    """Return ``where=`` as NumPy takes it: of lists, numbers say what is true; None is False."""
    if isinstance(where, list | tuple):
        return np.asarray(where, np.bool_)
    return True if where is True else np.bool_(False) if where is False or where is None else unwrapped(where)


def _kind_of_reduced(
    ufunc: np.ufunc, tensor: DTensor, axes: tuple[int, ...], options: dict[str, Value], mask: Value
) -> DType:
    """Return the dtype of a reduction; NumPy's error if there is none, on all ranks."""
    small = np.ones([min(n, 1) for n in tensor.shape], tensor.dtype)
    chosen_ones = {} if mask is None else {"where": np.ones((1,) * np.ndim(mask), mask.dtype)}
    sample: Array = ufunc.reduce(small, axis=axis_argument(axes, tensor.ndim), **options, **chosen_ones)
    return np.asarray(sample).dtype


def _reduced_whole(
    ufunc: np.ufunc, tensor: DTensor, axes: tuple[int, ...], options: dict[str, Value], mask: Value
) -> DTensor:
    """Return a reduction by a function that is not associative: each device has the elements in their order."""
    name, kind = f"numpy.{ufunc.__name__}.reduce", _kind_of_reduced(ufunc, tensor, axes, options, mask)
    whole = whole_along(tensor, axes, name)
    chosen_ones = {} if mask is None else {"where": aligned_blocks(name, [mask], whole.shape, whole.layout)[0]}

    def reduce_whole(block: Array) -> Array:
        return ufunc.reduce(block, axis=axis_argument(axes, tensor.ndim), **options, **chosen_ones)

    return mapped(reduce_whole, whole, layout=whole.layout.delete(axes), shape=without(whole.shape, axes), dtype=kind)


def accumulate(ufunc: np.ufunc, array: object, axis: int = 0, dtype: DTypeLike | None = None) -> DTensor:
    """Return what *ufunc* makes of the elements up to each one along *axis*. Collective if that is cut.

    Source: numpy.ufunc.accumulate. Arguments are those of `reduce`.
    """
    name, tensor = f"numpy.{ufunc.__name__}.accumulate", as_tensor(f"numpy.{ufunc.__name__}", array)
    axes = normalised_axes(axis, tensor.ndim) if tensor.ndim else ()
    small: Array = ufunc.accumulate(np.ones([min(n, 1) for n in tensor.shape], tensor.dtype), axis, dtype)
    (along,) = axes  # for none, or several, that was NumPy's error

    def of_block(block: Array, axis: int, dtype: DType) -> Array:
        return ufunc.accumulate(block, axis, dtype.type)

    if ufunc in ASSOCIATIVE:
        return accumulated(Scan(name, of_block, ufunc, along, small.dtype), tensor)
    whole = of_whole_blocks(tensor, [along], name, lambda block: ufunc.accumulate(block, along, dtype))
    return make(*whole, tensor.shape, small.dtype)


def reduceat(
    ufunc: np.ufunc, array: object, indices: DTensor | ArrayLike, axis: int = 0, dtype: DTypeLike | None = None
) -> DTensor:
    """Return what *ufunc* makes of the elements between *indices* along *axis*. Collective if that is cut.

    The axis is whole on each device first. *indices* are the same on all ranks. Source: numpy.ufunc.reduceat.
    """
    name, tensor = f"numpy.{ufunc.__name__}.reduceat", as_tensor(f"numpy.{ufunc.__name__}", array)
    (along,) = normalised_axes(axis, tensor.ndim)
    at = allgather_array(name, indices)
    at = at if at.size else at.astype(np.intp)  # an empty list
    shape = (*tensor.shape[:along], len(at), *tensor.shape[along + 1 :])
    sample = np.ones([n if a == along else 1 for a, n in enumerate(tensor.shape)], tensor.dtype)
    kind = ufunc.reduceat(sample, at, along, dtype).dtype  # or NumPy's error

    def reduceat_block(block: Array) -> Array:
        return np.asarray(ufunc.reduceat(block, at, along, dtype), order="C")

    return make(*of_whole_blocks(tensor, [along], name, reduceat_block), shape, kind)


def outer(ufunc: np.ufunc, a: object, b: object, **options: object) -> Value:
    """Return what *ufunc* makes of each element of *a* with each of *b*. Collective if an operand has to move.

    Source: numpy.ufunc.outer.
    """
    name = f"{ufunc.__name__}.outer"
    one, other = agree_on_plain(f"numpy.{name}", [a, b], mesh_of([a, b]))
    if (ndim := np.ndim(one) + np.ndim(other)) > 64:
        raise ValueError(f"maximum supported dimension for an ndarray is 64, but `{name}()` result would have {ndim}.")
    wide = one[(..., *(None,) * np.ndim(other))] if isinstance(one, DTensor | np.ndarray) and one.ndim else one
    return ufunc(wide, other, **options)


# -- calls ------------------------------------------------------------------------------------------------------------


def of_elements(
    ufunc: np.ufunc, operands: Sequence[object], out: Sequence[DTensor], options: dict[str, object]
) -> Call | DTensor | Sequence[DTensor]:
    """Return what a universal function makes of its operands, element by element, or the call that makes it.

    Collective if it returns results and an operand has to move, or is a plain array. Elements that a ``where=`` leaves
    out are those of *out*, or zero.
    """
    name = f"numpy.{ufunc.__name__}"
    if not options:
        return deciding(name, ufunc, operands, out)
    options = {**options, "order": "C"}  # of transposed blocks NumPy's are transposed
    where = mask_of(options.pop("where", True))
    if where is True:
        return elementwise(name, lambda *blocks, **into: ufunc(*blocks, **into, **options), operands, out)

    def masked(*blocks: Array, **into: object) -> object:
        *inputs, mask = blocks
        if not into:
            few = ufunc(*(x if np.ndim(x) == 0 else np.empty(0, x.dtype) for x in inputs), **options)
            shape = np.broadcast_shapes(*map(np.shape, blocks))
            into = {"out": tuple(np.zeros(shape, x.dtype) for x in (few if isinstance(few, tuple) else (few,)))}
        return ufunc(*inputs, where=mask, **into, **options)

    return elementwise(name, masked, [*operands, where], out)


_METHODS: dict[str, Callable[..., DTensor]] = {"reduce": reduce, "accumulate": accumulate, "reduceat": reduceat}


def call_method(ufunc: np.ufunc, method: str, inputs: tuple[object, ...], options: dict[str, object]) -> Value:
    """Return what a method of a universal function makes of tensors, written to ``out=`` if there is one."""
    if method == "outer":
        return outer(ufunc, *inputs, **options)
    out = options.pop("out", None)
    return with_out(f"numpy.{ufunc.__name__}.{method}", out, _METHODS[method](ufunc, *inputs, **options), "unsafe")


# -- NumPy's reductions, of chosen elements ---------------------------------------------------------------------------


def with_where(
    ours: Callable[..., DTensor], ufunc: np.ufunc, *, numbers: bool = False
) -> Callable[..., Call | DTensor]:
    """Return *ours*, a reduction by *ufunc*, with NumPy's ``initial=`` and ``where=``.

    With *numbers*, NaN does not count.
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
            return decision(ours)(a, axis, keepdims=bool(keepdims), **options)
        if numbers and as_tensor(ufunc.__name__, a).dtype.kind in "fc":
            where = tensor_np.logical_and(~tensor_np.isnan(a), where)
        return reduce(ufunc, a, axis, keepdims=bool(keepdims), initial=initial, where=where, **options)

    return reduce_tensor
