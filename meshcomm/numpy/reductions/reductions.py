"""Reductions of tensors: each device reduces its block, and then the devices reduce their results."""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped
from meshcomm.blocks.reduce import (
    Partial,
    Reduction,
    axis_argument,
    reducing,
    run_partial,
    unchanged,
)
from meshcomm.blocks.rules import result_dtype
from meshcomm.blocks.small import is_short_view
from meshcomm.core._arguments import reduced_axes
from meshcomm.core._callers import warn
from meshcomm.core._tracing import traceable
from meshcomm.core._types import Array, Axis, DType, Shape
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import exact_copy
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import operation


def inner_of_same_layout(a: object, b: object) -> DTensor | None:
    """Return the sum of products of two vectors of one floating-point dtype, in one layout or small; None for others.

    The result is that of a contraction, in less time. Collective over the mesh if the vectors are sharded.
    """
    if type(a) is not DTensor or type(b) is not DTensor or a.layout.mesh is not b.layout.mesh:
        return None
    if len(a.shape) != 1 or a.shape != b.shape:
        return None
    if a.dtype != b.dtype or a.dtype.char not in "fdFD":
        return None
    if is_short_view(a) and is_short_view(b):
        vectors = [x if x.layout.num_shards(0) == 1 else relaid(x, ((),), "inner product") for x in (a, b)]
        return mapped(np.dot, *vectors, layout=a.layout._recut(()), shape=())
    # By value: two layouts may be one object on some ranks only, and all ranks must go the same way.
    if a.layout.axes != b.layout.axes:
        return None
    partial, layout = _prepared_inner(a._spec)
    return run_partial(partial, mapped(np.dot, a, b, layout=layout, shape=()), layout, ())


@lru_cache(maxsize=1024)
def _prepared_inner(source: TensorSpec) -> tuple[Partial, Layout]:
    names = source.layout.dims_along(0)
    specs = source.layout.specs_text
    text = f"inner product of two vectors of {source.shape} {source.dtype} in {specs}"
    partial = Partial(("inner", source), text, unchanged, names, "sum", source.dtype)
    return partial, Layout.replicated(source.layout.mesh, 0)


def refuse_empty(name: str, tensor: DTensor, axis: Axis) -> None:
    """Raise ``ShapeError`` if a tensor has no elements along *axis*: as NumPy, even if the result has none either.

    *name* is the reduction.
    """
    shape = tensor.shape
    if 0 in [shape[a] for a in reduced_axes(axis, tensor.ndim)]:
        raise ShapeError(f"the {name} over axis {axis} of shape {shape} has no elements, so there is none")


def reducing_by(
    function: Callable[..., object],
    merge: str,
    operand: object,
    axis: Axis,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    needs_elements: bool = False,
) -> Call:
    """Return the call of a reduction: each device applies *function* to its block, and *merge* reduces the results.

    Parameters
    ----------
    function: function of NumPy
    merge: name of the reduction of the results of several devices
    operand: a tensor, or an object that holds one
    axis: one axis, several, or None for all
    keepdims: True to keep reduced axes, with length 1
    dtype: the argument of *function*, if it has one
    needs_elements: True if there is no result for no elements
    """
    tensor = as_tensor(f"numpy.{function.__name__}", operand)
    axes = reduced_axes(axis, tensor.ndim)
    if needs_elements and 0 in tensor.shape:
        refuse_empty(function.__name__, tensor, axis)
    out_dtype = result_dtype(function, [tensor.dtype], tensor.ndim, None if dtype is None else np.dtype(dtype))
    numpy_axis, options = axis_argument(axes, tensor.ndim), {} if dtype is None else {"dtype": np.dtype(dtype)}
    ufunc = _UFUNCS.get(function)
    reduce_function: Callable[..., object] = function if ufunc is None else ufunc.reduce

    def reduce(block: Array) -> object:
        return reduce_function(block, axis=numpy_axis, **options)

    merge_ufunc = _MERGE_UFUNCS[merge]
    reduction = Reduction(
        function.__name__, axes, reduce, reduce, merge, out_dtype, takes_empty=not needs_elements, ufunc=merge_ufunc
    )
    return reducing(reduction, tensor, keepdims)


_UFUNCS: dict[Callable[..., object], np.ufunc] = {
    np.sum: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.min: np.minimum,
}
"""The ufuncs by which functions of NumPy reduce: to call these directly saves some microseconds."""

_MERGE_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
"""The ufunc for each reduction of the results of devices: it merges the results of pieces of one block."""


@operation()
@traceable(twin=np.sum)
def sum(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Call | DTensor:
    """Return the sum over *axis*. Collective over the mesh if a reduced axis is sharded.

    The axes that remain keep their sharding. All devices that hold an element of the result hold the same bits.

    Parameters
    ----------
    t: a tensor
    axis: one axis, several, or None for all; ``ShapeError`` for an axis that does not exist
    dtype: dtype of the result, by default as numpy.sum has it
    keepdims: True to keep reduced axes, with length 1

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.ones((3, 2)), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.sum(axis=0).local.tolist(), float(t.sum())
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([3.0, 3.0], 6.0), ([3.0, 3.0], 6.0)]
    """
    return reducing_by(np.sum, "sum", t, axis, keepdims, dtype=dtype)


@operation()
@traceable(twin=np.mean)
def mean(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Call | DTensor:
    """Return the mean over *axis*. Collective over the mesh if a reduced axis is sharded.

    The dtype is by default as numpy.mean has it. As in NumPy there is a warning if there are no elements. The
    parameters are those of `sum`.
    """
    tensor = as_tensor("numpy.mean", t)
    axes, given_dtype = reduced_axes(axis, tensor.ndim), None if dtype is None else np.dtype(dtype)
    return reducing(_mean_reduction(axes, given_dtype, tensor), tensor, keepdims)


def _mean_reduction(axes: tuple[int, ...], dtype: DType | None, tensor: DTensor) -> Reduction:
    out_dtype = result_dtype(np.mean, [tensor.dtype], tensor.ndim, dtype)
    # As in NumPy, float16 is added up in float32.
    sum_dtype = np.dtype(np.float32) if dtype is None and out_dtype == np.float16 else out_dtype
    numpy_axis, count, add_reduce = (
        axis_argument(axes, tensor.ndim),
        prod(tensor.shape[a] for a in axes),
        _UFUNCS[np.sum].reduce,
    )

    def finish(sums: Array) -> Array:
        if not count:
            warn("Mean of empty slice", RuntimeWarning)
        return np.asarray(sums[()] / np.intp(count)).astype(out_dtype)  # NumPy divides in the same dtype

    return Reduction(
        "mean",
        axes,
        lambda block: np.mean(block, axis=numpy_axis, dtype=dtype),
        lambda block: add_reduce(block, axis=numpy_axis, dtype=sum_dtype.type),
        "sum",
        out_dtype,
        sum_dtype,
        finish,
        (f"added up in {sum_dtype}",),
        takes_empty=True,
        ufunc=np.add,
    )


@operation()
@traceable(twin=np.max)
def max(t: DTensor, axis: Axis = None, keepdims: bool = False) -> Call | DTensor:
    """Return the maximum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the maximum if there is one. ``ShapeError`` if there are no elements, or no such axis.
    """
    return reducing_by(np.max, "max", t, axis, keepdims, needs_elements=True)


@operation()
@traceable(twin=np.min)
def min(t: DTensor, axis: Axis = None, keepdims: bool = False) -> Call | DTensor:
    """Return the minimum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the minimum if there is one. ``ShapeError`` if there are no elements, or no such axis.
    """
    return reducing_by(np.min, "min", t, axis, keepdims, needs_elements=True)


@traceable()
def spread(t: DTensor | ArrayLike, axes: tuple[int, ...], shape: Shape, layout: Layout) -> DTensor:
    """Return *t* repeated along new axes: the adjoint of `sum`. Collective over the mesh if *t* has to move.

    Parameters
    ----------
    t: tensor with the axes of *shape* that are not in *axes*
    axes: the new axes
    shape, layout: global shape and layout of the result
    """
    narrow_layout = layout.delete(axes)
    if not isinstance(t, DTensor):
        t = relayout(t, narrow_layout)
    if t.layout.axes != narrow_layout.axes or t.mesh is not layout.mesh:
        t = relayout(t, narrow_layout)

    def repeat_block(block: Array) -> Array:
        return exact_copy(np.broadcast_to(np.expand_dims(block, axes), layout.block_shape(shape)))

    return mapped(repeat_block, t, layout=layout, shape=shape)
