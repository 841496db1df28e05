"""Functions of small arrays with a large result, known from the shapes: each rank computes its block only."""

from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import TypeAlias

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.namespace._arrays import set_growing
from meshcomm.numpy.namespace.making import create_by_blocks
from meshcomm.numpy.namespace.rule import WHOLE_BELOW, layout_for

Growing: TypeAlias = Callable[..., Value]

_GROWING_FUNCTIONS: dict[Callable[..., object], Growing] = {}


def _growing_function(numpy_function: Callable[..., object]) -> Callable[[Growing], Growing]:
    def register(function: Growing) -> Growing:
        _GROWING_FUNCTIONS[numpy_function] = function
        return function

    return register


def _array_by_indices(shape: Shape, dtype: DType, block: Callable[[Sequence[Array]], Array]) -> object:
    """Return the large array whose blocks *block* computes from the indices along each axis.

    ``NotImplemented`` if each rank shall compute all of it by NumPy.
    """
    mesh = mesh_of_program()
    is_cut = prod(shape) * dtype.itemsize >= WHOLE_BELOW and not dtype.hasobject and mesh.size == mesh.world.size
    if not is_cut or layout_for(shape, dtype, mesh).is_fully_replicated():
        return NotImplemented
    return create_by_blocks(shape, dtype, None, lambda slices: block([np.arange(s.start, s.stop) for s in slices]))


@_growing_function(np.outer)
def _outer(a: Value, b: Value) -> Value:
    rows, columns = np.ravel(a), np.ravel(b)
    dtype = np.multiply.resolve_dtypes((rows.dtype, columns.dtype, None))[-1]
    return _array_by_indices(
        (rows.size, columns.size), dtype, lambda indices: np.outer(rows[indices[0]], columns[indices[1]])
    )


@_growing_function(np.kron)
def _kron(a: object, b: object) -> object:
    first, second = np.asarray(a), np.asarray(b)
    ndim = max(first.ndim, second.ndim)
    first, second = (x.reshape((1,) * (ndim - x.ndim) + x.shape) for x in (first, second))
    dtype = np.multiply.resolve_dtypes((first.dtype, second.dtype, None))[-1]

    def block(indices: Sequence[Array]) -> Array:
        first_factors = first[np.ix_(*(i // n for i, n in zip(indices, second.shape, strict=True)))]
        second_factors = second[np.ix_(*(i % n for i, n in zip(indices, second.shape, strict=True)))]
        return first_factors * second_factors

    shape = tuple(n * m for n, m in zip(first.shape, second.shape, strict=True))
    return _array_by_indices(shape, dtype, block)


@_growing_function(np.tile)
def _tile(A: object, reps: Value) -> Value:  # noqa: N803 - NumPy's name
    array = np.asarray(A)
    repetitions = tuple(map(index, reps)) if np.ndim(reps) else (index(reps),)
    ndim = max(array.ndim, len(repetitions))
    array = array.reshape((1,) * (ndim - array.ndim) + array.shape)
    shape = tuple(n * m for n, m in zip(array.shape, (1,) * (ndim - len(repetitions)) + repetitions, strict=True))
    if 0 in array.shape:
        return NotImplemented
    return _array_by_indices(
        shape,
        array.dtype,
        lambda indices: array[np.ix_(*(i % n for i, n in zip(indices, array.shape, strict=True)))],
    )


@_growing_function(np.repeat)
def _repeat(a: Value, repeats: Value, axis: int | None = None) -> Value:
    if np.ndim(repeats):
        return NotImplemented
    array, count = (np.ravel(a), index(repeats)) if axis is None else (np.asarray(a), index(repeats))
    axis_number = 0 if axis is None else range(array.ndim)[axis]
    shape = tuple(n * count if other == axis_number else n for other, n in enumerate(array.shape))

    def block(indices: Sequence[Array]) -> Array:
        return array[np.ix_(*(i // count if other == axis_number else i for other, i in enumerate(indices)))]

    return _array_by_indices(shape, array.dtype, block)


def _call_by_blocks(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    try:
        return _GROWING_FUNCTIONS[function](*args, **kwargs)
    except (TypeError, ValueError, IndexError):
        return NotImplemented  # NumPy raises the error, or supports more arguments


set_growing(frozenset(_GROWING_FUNCTIONS), _call_by_blocks)
