"""Norms of vectors and matrices, as numpy.linalg.norm has them.

The norm of a vector is the norm of the norms of its blocks, for every order. So each device computes NumPy's norm of
its block, and these few numbers are reduced by NumPy's norm again. A norm of matrices is a sum over one axis, and then
an extreme over the other one; the Frobenius norm is that of a vector.
"""

from collections.abc import Callable
from functools import partial
from math import inf, prod
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped
from meshcomm.blocks.reduce import Reduction, reduced
from meshcomm.blocks.rules import result_dtype
from meshcomm.core._arguments import normalised_axes, quote
from meshcomm.core._types import Array, Axis, DType
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.errors import ShapeError
from meshcomm.numpy.reductions.reductions import max, min

Order: TypeAlias = float | str | None

_MATRIX_NORMS: dict[object, tuple[int, Callable[..., DTensor]]] = {
    1: (0, max),
    -1: (0, min),
    inf: (1, max),
    -inf: (1, min),
}
"""For the order of a norm of matrices: which of the two axes to sum over, and the reduction over the other one."""


def norm(x: DTensor, ord: Order = None, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return a norm of vectors or of matrices. Collective over the mesh if an axis of them is sharded.

    As numpy.linalg.norm, without the norms of matrices that need singular values: `meshcomm.linalg.norm` has them.

    Parameters
    ----------
    x: a tensor
    ord: the order; by default 2 for vectors, and ``"fro"`` for matrices
    axis: one axis for vectors, two for matrices; by default all, and if there is no *ord* all elements are one vector
    keepdims: True to keep reduced axes, with length 1

    ``ShapeError`` for other numbers of axes, and for other orders.
    """
    tensor = as_tensor("numpy.linalg.norm", x)
    axes = normalised_axes(axis, tensor.ndim)
    numpy_norm = partial(np.linalg.norm, ord=ord, axis=axis)
    if axis is None and ord is None:
        return _norm_of_vectors(numpy_norm, tensor, 2, axes, keepdims)
    if len(axes) == 1:
        if not (ord is None or isinstance(ord, int | float | np.integer | np.floating)):
            raise ShapeError(f"numpy.linalg.norm: the order of a norm of vectors is a number, not {quote(ord)}")
        return _norm_of_vectors(numpy_norm, tensor, 2 if ord is None else ord, axes, keepdims)
    if len(axes) != 2:
        raise ShapeError(f"numpy.linalg.norm needs 1 or 2 axes to take norms over, not {len(axes)}: {axis!r}")
    if ord in (None, "fro", "f"):
        return _norm_of_vectors(numpy_norm, tensor, 2, axes, keepdims)
    if ord not in _MATRIX_NORMS:
        raise ShapeError(
            f"numpy.linalg.norm: norms of matrices are 'fro', 'nuc', 1, -1, 2, -2, inf and -inf, not {quote(ord)}"
        )
    # The first of the two axes is that of the rows.
    matrix_axes = axes if axis is None or isinstance(axis, int) else tuple(int(a) % tensor.ndim for a in axis)
    return _norm_of_matrices(numpy_norm, tensor, ord, matrix_axes, keepdims)


def norm_of_vectors(x: DTensor, ord: float, axis: Axis, keepdims: bool) -> DTensor:
    """Return vector norms over *axis*; several axes are flattened into one vector.

    Arguments are those of `norm`. Collective over the mesh if one of the axes is sharded.
    """
    axes = normalised_axes(axis, x.ndim)

    def numpy_norm(block: Array) -> object:
        return np.linalg.norm(_flattened_last(block, axes), ord, axis=-1)

    return _norm_of_vectors(numpy_norm, x, ord, axes, keepdims)


def _flattened_last(block: Array, axes: tuple[int, ...]) -> Array:
    """Return *block* with the elements along *axes* on the last axis."""
    transposed = np.moveaxis(block, axes, range(-len(axes), 0)) if axes else block
    return transposed.reshape(*transposed.shape[: block.ndim - len(axes)], prod(block.shape[axis] for axis in axes))


def _norm_dtypes(numpy_norm: Callable[[Array], object], tensor: DTensor) -> tuple[DType, DType]:
    """Return the dtype of a norm, and the one in which several devices compute it: float32 for float16."""
    dtype = result_dtype(numpy_norm, [tensor.dtype], tensor.ndim)
    return dtype, np.dtype(np.float32) if dtype == np.float16 else dtype


def _unsharded_if_empty(numpy_norm: Callable[[Array], object], tensor: DTensor, axes: tuple[int, ...]) -> DTensor:
    """Return *tensor* with *axes* unsharded if it has no elements along them, so that NumPy computes their norm.

    ``ShapeError`` if NumPy does not define it.
    """
    if all(tensor.shape[axis] for axis in axes):
        return tensor
    try:
        numpy_norm(np.zeros([n and 1 for n in tensor.shape]))
    except ValueError as error:
        raise ShapeError(
            f"numpy.linalg.norm over axes {axes} of shape {tensor.shape} has no elements, so there is none: {error}"
        ) from None
    return relaid(tensor, tensor.layout.replace(axes, ()).axes, "numpy.linalg.norm")


def _norm_of_vectors(
    numpy_norm: Callable[[Array], object], tensor: DTensor, ord: float, axes: tuple[int, ...], keepdims: bool
) -> DTensor:
    """Return norms over *axes*: the elements along them are one vector. *numpy_norm* is NumPy's function."""
    dtype, compute_dtype = _norm_dtypes(numpy_norm, tensor)
    tensor = _unsharded_if_empty(numpy_norm, tensor, axes)
    is_float16 = tensor.dtype == np.float16

    def share(block: Array) -> object:
        return numpy_norm(block.astype(compute_dtype) if is_float16 else block)

    def merge(rows: Array) -> Array:
        # The norm of order 0 counts elements: the counts are added up, not counted.
        return np.asarray(np.sum(rows, axis=0) if ord == 0 else np.linalg.norm(rows, ord, axis=0), compute_dtype)

    def finish(norms: Array) -> Array:
        return norms.astype(dtype, copy=False)

    reduction = Reduction("norm", axes, numpy_norm, share, merge, dtype, compute_dtype, finish, (f"order {ord!r}",))
    return reduced(reduction, tensor, keepdims)


def _norm_of_matrices(
    numpy_norm: Callable[[Array], object], tensor: DTensor, ord: object, axes: tuple[int, ...], keepdims: bool
) -> DTensor:
    """Return norms of matrices: their rows are along the first of *axes*. *numpy_norm* is NumPy's function."""
    dtype, compute_dtype = _norm_dtypes(numpy_norm, tensor)
    tensor = _unsharded_if_empty(numpy_norm, tensor, axes)
    if not tensor.layout.dims_along(axes):
        return reduced(Reduction("norm", tuple(sorted(axes)), numpy_norm, numpy_norm, "max", dtype), tensor, keepdims)
    axis_position, extreme = _MATRIX_NORMS[ord]
    axis = axes[axis_position]

    def abs_sums(block: Array) -> object:
        return np.sum(
            np.abs(block if block.dtype.kind in "fc" else block.astype(compute_dtype)),
            axis=axis,
            dtype=compute_dtype,
        )

    options = (f"order {ord!r} over axes {axes}",)
    reduction = Reduction("norm", (axis,), abs_sums, abs_sums, "sum", compute_dtype, options=options, takes_empty=True)
    norms = extreme(reduced(reduction, tensor, keepdims=True), axes, keepdims)
    return mapped(lambda block: block.astype(dtype, copy=False), norms, dtype=dtype)
