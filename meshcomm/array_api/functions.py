"""The other functions of the array API standard: NumPy's, called with tensors by NumPy's protocol.

What moves, and the layout of a result, is as with NumPy's function: see docs/arithmetic.md.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.array_api.devices import Device, moved
from meshcomm.core._arguments import as_dtype, counted, normalised_axes
from meshcomm.core._types import Axis, Shape
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError

target_on = refusable(moved)  # where a tensor has to move: another rank may move it
Number = int | float | complex
Tensors = Sequence[DTensor]

broadcast_shapes = np.broadcast_shapes


def _call(function: Callable[..., object], *args: object, **options: object) -> DTensor:
    """Return what *function*, one of NumPy, makes of tensors; an option that is None is left out."""
    given = {name: value for name, value in options.items() if value is not None}
    made: DTensor = function(*args, **given)  # type: ignore[assignment]  # by NumPy's protocol
    return made


# -- dtypes and elements ----------------------------------------------------------------------------------------------


def astype(x: DTensor, dtype: DTypeLike, /, *, copy: bool = True, device: Device | None = None) -> DTensor:
    """Return the tensor in another dtype. Collective over the meshes if it moves to another *device*."""
    if not isinstance(x, DTensor):  # xarray passes NumPy's scalars beside tensors
        return np.asarray(x).astype(as_dtype(dtype), copy=copy)
    result = x.astype(as_dtype(dtype), copy=copy)
    layout = target_on(x.layout, device)
    return result if layout == x.layout else relayout(result, layout)


def clip(x: DTensor, /, min: DTensor | Number | None = None, max: DTensor | Number | None = None) -> DTensor:
    """Return the tensor with elements below *min* and above *max* replaced by these."""
    return _call(np.clip, x, min, max)


def imag(x: DTensor, /) -> DTensor:
    """Return the imaginary parts of complex numbers."""
    return _call(np.imag, x)


def real(x: DTensor, /) -> DTensor:
    """Return the real parts of complex numbers."""
    return _call(np.real, x)


def round(x: DTensor, /) -> DTensor:
    """Return the nearest integers, the even one of two."""
    return _call(np.round, x)


def where(condition: DTensor, x1: DTensor | Number, x2: DTensor | Number, /) -> DTensor:
    """Return elements of *x1* where *condition* is true, else of *x2*."""
    return _call(np.where, condition, x1, x2)


# -- reductions -------------------------------------------------------------------------------------------------------


def all(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return whether all elements along *axis* are true. Collective over the mesh."""
    return _call(np.all, x, axis=axis, keepdims=keepdims)


def any(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return whether any element along *axis* is true. Collective over the mesh."""
    return _call(np.any, x, axis=axis, keepdims=keepdims)


def argmax(x: DTensor, /, *, axis: int | None = None, keepdims: bool = False) -> DTensor:
    """Return the index of the first maximum along *axis*. Collective over the mesh."""
    return _call(np.argmax, x, axis=axis, keepdims=keepdims)


def argmin(x: DTensor, /, *, axis: int | None = None, keepdims: bool = False) -> DTensor:
    """Return the index of the first minimum along *axis*. Collective over the mesh."""
    return _call(np.argmin, x, axis=axis, keepdims=keepdims)


def count_nonzero(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return how many elements along *axis* are not zero. Collective over the mesh."""
    return _call(np.count_nonzero, x, axis=axis, keepdims=keepdims)


def max(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the maximum along *axis*. Collective over the mesh."""
    return _call(np.max, x, axis=axis, keepdims=keepdims)


def mean(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the mean along *axis*. Collective over the mesh."""
    return _call(np.mean, x, axis=axis, keepdims=keepdims)


def min(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the minimum along *axis*. Collective over the mesh."""
    return _call(np.min, x, axis=axis, keepdims=keepdims)


def prod(x: DTensor, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the product along *axis*. Collective over the mesh."""
    return _call(np.prod, x, axis=axis, dtype=dtype, keepdims=keepdims)


def std(x: DTensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> DTensor:
    """Return the standard deviation along *axis*. Collective over the mesh."""
    return _call(np.std, x, axis=axis, ddof=correction, keepdims=keepdims)


def sum(x: DTensor, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the sum along *axis*. Collective over the mesh."""
    return _call(np.sum, x, axis=axis, dtype=dtype, keepdims=keepdims)


def var(x: DTensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> DTensor:
    """Return the variance along *axis*. Collective over the mesh."""
    return _call(np.var, x, axis=axis, ddof=correction, keepdims=keepdims)


# -- along an axis ----------------------------------------------------------------------------------------------------


def argsort(x: DTensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> DTensor:
    """Return the indices that sort the tensor along *axis*. Collective over the mesh."""
    if not descending:
        return _call(np.argsort, x, axis=axis, stable=stable)
    # Equal elements keep their order: they are sorted from the last one to the first.
    backwards = flip(_call(np.argsort, flip(x, axis=axis), axis=axis, stable=stable), axis=axis)
    return _call(np.subtract, x.shape[axis] - 1, backwards)


@refusable
def cumulative_prod(
    x: DTensor, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> DTensor:
    """Return the products of the elements up to each one; with *include_initial* after 1. Collective over the mesh."""
    return _cumulative(np.cumprod, x, axis, dtype, 1 if include_initial else None)


@refusable
def cumulative_sum(
    x: DTensor, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> DTensor:
    """Return the sums of the elements up to each one; with *include_initial* after 0. Collective over the mesh."""
    return _cumulative(np.cumsum, x, axis, dtype, 0 if include_initial else None)


def _cumulative(
    function: Callable[..., object], x: DTensor, axis: int | None, dtype: DTypeLike | None, initial: int | None
) -> DTensor:
    """Return what *function* adds up along *axis*, after *initial* unless that is None."""
    if axis is None and x.ndim != 1:
        raise ShapeError(f"a tensor of shape {x.shape} has {counted(x.ndim, 'axis')}: pass the axis to go along")
    (along,) = normalised_axes(0 if axis is None else axis, x.ndim)
    result = _call(function, x, axis=along, dtype=dtype)
    if initial is None:
        return result
    shape = tuple(1 if number == along else n for number, n in enumerate(x.shape))
    first = create.full(shape, initial, result.dtype, Layout.replicated(x.mesh, x.ndim))
    return concat([first, result], axis=along)


@refusable
def diff(
    x: DTensor, /, *, axis: int = -1, n: int = 1, prepend: DTensor | None = None, append: DTensor | None = None
) -> DTensor:
    """Return the differences of neighbours along *axis*, *n* times. Collective over the mesh."""
    joined = [each for each in (prepend, x, append) if each is not None]
    return _call(np.diff, concat(joined, axis=axis) if len(joined) > 1 else x, n=n, axis=axis)


def sort(x: DTensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> DTensor:
    """Return the tensor sorted along *axis*. Collective over the mesh."""
    result = _call(np.sort, x, axis=axis, stable=stable)
    return flip(result, axis=axis) if descending else result


def nonzero(x: DTensor, /) -> tuple[DTensor, ...]:
    """Return where elements are not zero: the indices along each axis. Collective over the mesh."""
    found: tuple[DTensor, ...] = np.nonzero(x)  # type: ignore[assignment]  # by NumPy's protocol
    return found


def take(x: DTensor, indices: DTensor, /, *, axis: int | None = None) -> DTensor:
    """Return the elements at *indices* along *axis*. Collective over the mesh."""
    return _call(np.take, x, indices, axis=axis)


def take_along_axis(x: DTensor, indices: DTensor, /, *, axis: int = -1) -> DTensor:
    """Return the elements at *indices* along *axis*, others for each line. Collective over the mesh."""
    return _call(np.take_along_axis, x, indices, axis=axis)


# -- shapes -----------------------------------------------------------------------------------------------------------


@refusable
def broadcast_arrays(*arrays: DTensor) -> tuple[DTensor, ...]:
    """Return the tensors broadcast to their common shape. Collective over the mesh."""
    made: tuple[DTensor, ...] = tuple(np.broadcast_arrays(*arrays))  # type: ignore[arg-type]  # by the protocol
    return made


def broadcast_to(x: DTensor, /, shape: Shape) -> DTensor:
    """Return the tensor broadcast to *shape*. Collective over the mesh."""
    return _call(np.broadcast_to, x, shape)


@refusable
def concat(arrays: Tensors, /, *, axis: int | None = 0) -> DTensor:
    """Return tensors one after the other along *axis*; None is all axes as one. Collective over the mesh."""
    if axis is None:
        return _call(np.concatenate, [reshape(x, (-1,)) for x in arrays])
    return _call(np.concatenate, list(arrays), axis=axis)


def expand_dims(x: DTensor, /, axis: int | tuple[int, ...]) -> DTensor:
    """Return the tensor with new axes of length 1."""
    return _call(np.expand_dims, x, axis)


def flip(x: DTensor, /, *, axis: Axis = None) -> DTensor:
    """Return the tensor in reverse order along *axis*. Collective over the mesh."""
    return _call(np.flip, x, axis=axis)


def meshgrid(*arrays: DTensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[DTensor, ...]:
    """Return the coordinates of the points of a grid, from the coordinates along each of its axes."""
    made: Sequence[DTensor] = np.meshgrid(*arrays, indexing=indexing)  # type: ignore[assignment]  # by the protocol
    return tuple(made)


def moveaxis(x: DTensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> DTensor:
    """Return the tensor with some axes moved."""
    return _call(np.moveaxis, x, source, destination)


def permute_dims(x: DTensor, /, axes: tuple[int, ...]) -> DTensor:
    """Return the tensor with its axes in another order."""
    return _call(np.transpose, x, axes)


def repeat(x: DTensor, repeats: int | DTensor, /, *, axis: int | None = None) -> DTensor:
    """Return the tensor with each element repeated along *axis*. Collective over the mesh."""
    return _call(np.repeat, x, repeats, axis=axis)


def reshape(x: DTensor, /, shape: Shape, *, copy: bool | None = None) -> DTensor:
    """Return the tensor in another shape. Collective over the mesh."""
    return _call(np.reshape, x, shape, copy=copy)


def roll(x: DTensor, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> DTensor:
    """Return the tensor with its elements shifted round along *axis*. Collective over the mesh."""
    return _call(np.roll, x, shift, axis=axis)


def squeeze(x: DTensor, /, axis: int | tuple[int, ...]) -> DTensor:
    """Return the tensor without axes of length 1."""
    return _call(np.squeeze, x, axis=axis)


def stack(arrays: Tensors, /, *, axis: int = 0) -> DTensor:
    """Return tensors of one shape side by side along a new axis. Collective over the mesh."""
    return _call(np.stack, list(arrays), axis=axis)


def tile(x: DTensor, repetitions: tuple[int, ...], /) -> DTensor:
    """Return copies of the tensor side by side. Collective over the mesh."""
    return _call(np.tile, x, repetitions)


def tril(x: DTensor, /, *, k: int = 0) -> DTensor:
    """Return the lower triangle of each matrix, up to its diagonal number *k*; zeros above."""
    return _call(np.tril, x, k=k)


def triu(x: DTensor, /, *, k: int = 0) -> DTensor:
    """Return the upper triangle of each matrix, from its diagonal number *k* on; zeros below."""
    return _call(np.triu, x, k=k)


@refusable
def unstack(x: DTensor, /, *, axis: int = 0) -> tuple[DTensor, ...]:
    """Return the slices along *axis*. Collective over the mesh."""
    (along,) = normalised_axes(axis, x.ndim)
    return tuple(x[(*[slice(None)] * along, number)] for number in range(x.shape[along]))


# -- matrices ---------------------------------------------------------------------------------------------------------


def matmul(x1: DTensor, x2: DTensor, /) -> DTensor:
    """Return the matrix product. Collective over the mesh."""
    return _call(np.matmul, x1, x2)


def matrix_transpose(x: DTensor, /) -> DTensor:
    """Return the tensor with its last two axes exchanged; ``ShapeError`` if it has no two."""
    return x.mT


def tensordot(x1: DTensor, x2: DTensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> DTensor:
    """Return the sums of products over pairs of axes. Collective over the mesh."""
    return _call(np.tensordot, x1, x2, axes=axes)


def vecdot(x1: DTensor, x2: DTensor, /, *, axis: int = -1) -> DTensor:
    """Return the sums of products along *axis*, of the complex conjugates of *x1*. Collective over the mesh."""
    return _call(np.vecdot, x1, x2, axis=axis)
