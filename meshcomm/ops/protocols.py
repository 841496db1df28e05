"""Arithmetic on DTensors: NumPy's operators and elementwise functions, reductions, matmul and transpose.

How the operands of an elementwise function meet:

1. Shapes broadcast as NumPy's do; an axis of length 1 that is stretched counts as unsharded.
2. Going through the tensors from left to right, each adds its sharding on the axes of the result that are not sharded
   yet, with the mesh dimensions that are not used yet.
3. Every operand is relaid to that. Nothing moves where it is so already, and replicated operands are only sliced.

So ``[x, unsharded] + [unsharded, y]`` is ``[x, y]``, ``[x, unsharded] + [unsharded, x]`` is ``[x, unsharded]``, and
``x + relayout_like(ones, x)`` moves nothing. With ``out=``, as in ``x += y``, operands meet in the layout of *out*.

Numbers and arrays of rank 0 take part as NumPy's do. Plain arrays count as replicated: all ranks of the mesh agree on
a digest of their bytes, each time, and then each uses its part; `distribute` one that is used often. Ranks outside of
the mesh may call everything here; their results have shape, dtype and layout, and no block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshcomm import _hooks
from meshcomm._tracing import is_traced, untraced
from meshcomm.arrays.create import ones_like, zeros_like
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.errors import ShapeError
from meshcomm.ops.elementwise import ADVICE, elementwise, is_operand, store, where
from meshcomm.ops.linalg import matmul, transpose
from meshcomm.ops.reductions import max, mean, min, sum


@_hooks.provides("numpy")
def numpy_protocol(function: Any, method: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function of NumPy makes of tensors; *method* is that of a universal function, else None."""
    return array_function(function, args, kwargs) if method is None else array_ufunc(function, method, args, kwargs)


def array_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a universal function of NumPy makes of tensors. Collective if an operand has to move.

    ``MeshError`` for tensors on several meshes, ``ShapeError`` if shapes do not broadcast, ``CollectiveMismatch`` for
    plain arrays that differ between ranks, ``TypeError`` for what is not done: ``where=``, and methods such as reduce.
    """
    out = kwargs.pop("out", ())
    operands = [unwrapped(x) for x in inputs]
    if any(map(is_traced, (*operands, *out))) or not all(map(is_operand, operands)):
        return NotImplemented
    name = f"numpy.{ufunc.__name__}"
    if method != "__call__":
        raise TypeError(f"{name}.{method} is not defined for DTensors; for sums use t.sum(), else {ADVICE}")
    if kwargs.pop("where", True) is not True:
        raise TypeError(f"{name}: where= is not supported for DTensors; use numpy.where on the result")
    if not all(isinstance(target, DTensor) for target in out):
        raise TypeError(f"{name}: out= must be DTensors where an operand is one; {ADVICE}")
    if ufunc is np.matmul:
        if kwargs:
            raise TypeError(f"{name} of DTensors takes no {', '.join(kwargs)}=")
        product = matmul(*operands)
        if not out:
            return product
        if out[0].shape != product.shape:
            raise ShapeError(f"{name}: out has shape {out[0].shape}, but the product has {product.shape}")
        store(out, [product])
        return out[0]
    if ufunc.signature is not None:
        raise TypeError(f"{name} is not defined for DTensors: it is not elementwise; {ADVICE}")
    return elementwise(name, lambda *blocks, **into: ufunc(*blocks, **into, **kwargs), operands, out)


def _map(function: Callable[[Any], Any]) -> Callable[[Any], DTensor]:
    """Return an elementwise function of one tensor."""
    return lambda t: elementwise(function.__name__, function, [t], ())


def _dtype_of(x: Any) -> Any:
    held = unwrapped(untraced(x))
    return held.dtype if isinstance(held, DTensor) else x


def _numpy_reduction(function: Callable[..., DTensor], takes_dtype: bool) -> Callable[..., DTensor]:
    """Return a reduction with the arguments of NumPy's."""

    def refuse(out: Any) -> None:
        if out is not None:
            raise TypeError(f"numpy.{function.__name__}: out= is not supported for DTensors")

    def with_dtype(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> DTensor:
        refuse(out)
        return function(a, axis, dtype, bool(keepdims))

    def without_dtype(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> DTensor:
        refuse(out)
        return function(a, axis, bool(keepdims))

    return with_dtype if takes_dtype else without_dtype


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _numpy_reduction(sum, True),
    np.mean: _numpy_reduction(mean, True),
    np.max: _numpy_reduction(max, False),
    np.amax: _numpy_reduction(max, False),
    np.min: _numpy_reduction(min, False),
    np.amin: _numpy_reduction(min, False),
    np.transpose: transpose,
    np.dot: matmul,
    np.where: where,
    np.real: _map(np.real),
    np.imag: _map(np.imag),
    np.copy: lambda t: t.copy(),
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.shape: lambda t: t.shape,
    np.ndim: lambda t: t.ndim,
    np.size: lambda t: t.size,
    np.iscomplexobj: lambda t: t.dtype.kind == "c",
    np.result_type: lambda *operands: np.result_type(*map(_dtype_of, operands)),
}


def array_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function of NumPy makes of tensors; Collective where the function of this module is.

    ``TypeError`` for those that are not defined.
    """
    found = _FUNCTIONS.get(function)
    name = f"numpy.{getattr(function, '__name__', function)}"
    if found is None:
        raise TypeError(f"{name} is not defined for DTensors: {ADVICE}")
    return found(*args, **kwargs)
