"""numpy.linalg's norms of tensors, and the numbers that follow from singular values."""

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.make import mapped
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Axis
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.linalg.functions import in_layout, inv, number_text, svdvals
from meshcomm.linalg.run import run
from meshcomm.linalg.tasks import LAPACK, Task
from meshcomm.numpy.reductions import norms

_OF_SINGULAR_VALUES: dict[object, Callable[[Value], Array]] = {
    2: lambda s: s.max(-1, initial=0),  # 0 for matrices without elements, as in NumPy 2.4
    -2: lambda s: s.min(-1),
    "nuc": lambda s: s.sum(-1),
}
"""Norms of matrices that need their singular values."""


@refusable
def norm(
    x: DTensor,
    ord: norms.Order = None,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    layout: Layout | None = None,
) -> DTensor:
    """Return a norm of vectors or of matrices, as numpy.linalg.norm. Collective if an axis of them is sharded.

    Parameters
    ----------
    x: a tensor
    ord: the order; by default 2 for vectors, and ``"fro"`` for matrices; 2, -2 and ``"nuc"`` of matrices need `svd`
    axis: one axis for vectors, two for matrices; by default all, and if there is no *ord* all elements are one vector
    keepdims: whether reduced axes stay, with length 1
    layout: layout of the result

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([[3.0, 0], [4, 1]]), mc.Layout(["x", "unsharded"], mc.create_mesh([("x", 2)])))
    ...     return float(np.linalg.norm(t)), float(np.linalg.norm(t, 1)), round(float(np.linalg.norm(t, 2)), 3)
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (5.0990195135927845, 7.0, 5.064)
    """
    tensor: Value = as_tensor("numpy.linalg.norm", x)
    axes = normalised_axes(axis, tensor.ndim)
    if len(axes) != 2 or not (isinstance(ord, str) or ord in _OF_SINGULAR_VALUES) or ord not in _OF_SINGULAR_VALUES:
        return in_layout(norms.norm(tensor, ord, axis, keepdims), layout)
    matrix_axes = axes if axis is None or isinstance(axis, int) else tuple(int(a) for a in axis)
    norm_of_values = _OF_SINGULAR_VALUES[ord]

    def compute(x: Array) -> Array:
        return norm_of_values(LAPACK.svd(x, compute_uv=False))

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        return [_along_last_axis(svdvals(*matrices), norm_of_values)]

    task = Task("linalg.norm", compute, ((),), (2,), f"{ord=}", for_large=for_large)
    norms_of_matrices: Value = run(task, (np.moveaxis(tensor, matrix_axes, (-2, -1)),))[0]
    result: Value = np.expand_dims(norms_of_matrices, axes) if keepdims else norms_of_matrices
    return in_layout(result, layout)


def _along_last_axis(values: DTensor, function: Callable[[Value], Array]) -> DTensor:
    """Return *function*, which reduces the last axis, of *values*; that axis is unsharded."""
    sample = np.asarray(function(np.ones((1,) * (values.ndim - 1) + values.shape[-1:], values.dtype)))
    return mapped(function, values, layout=values.layout.delete(-1), shape=values.shape[:-1], dtype=sample.dtype)


@refusable
def matrix_norm(
    x: DTensor, /, *, keepdims: bool = False, ord: norms.Order = "fro", layout: Layout | None = None
) -> DTensor:
    """Return a norm of the matrices in the last two axes, as numpy.linalg.matrix_norm. Collective, as `norm`.

    Parameters
    ----------
    x: a tensor
    keepdims: whether reduced axes stay, with length 1
    ord: the order
    layout: layout of the result
    """
    tensor = as_tensor("numpy.linalg.matrix_norm", x)
    return norm(tensor, ord, (-2, -1), keepdims, layout=layout)


@refusable
def vector_norm(
    x: DTensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2, layout: Layout | None = None
) -> DTensor:
    """Return a norm of vectors, as numpy.linalg.vector_norm. Collective if an axis of them is sharded.

    Parameters
    ----------
    x: a tensor
    axis: axes whose elements are one vector; by default all
    keepdims: whether reduced axes stay, with length 1
    ord: the order
    layout: layout of the result
    """
    return in_layout(norms.norm_of_vectors(as_tensor("numpy.linalg.vector_norm", x), ord, axis, keepdims), layout)


@refusable
def cond(x: DTensor, p: norms.Order = None, *, layout: Layout | None = None) -> DTensor:
    """Return the condition number of matrices, as numpy.linalg.cond. Collective if they are sharded.

    Parameters
    ----------
    x: matrices
    p: the order of the norm; by default 2, the ratio of the largest and the smallest singular value
    layout: layout of the result
    """

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        (matrix,) = matrices
        if p in (None, 2, -2):
            ratio: Callable[[Array], Array] = lambda s: s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]  # noqa: E731
            return [_along_last_axis(svdvals(matrix), ratio)]
        norm_of_matrix = norm(matrix, p)
        try:
            return [norm_of_matrix * norm(inv(matrix), p)]
        except np.linalg.LinAlgError:
            return [norm_of_matrix * inf]

    task = Task("linalg.cond", lambda x: LAPACK.cond(x, p), ((),), (2,), f"{p=}", for_large=for_large)
    return run(task, (x,), layout)[0]


@refusable
def matrix_rank(
    A: DTensor,  # noqa: N803 - NumPy's
    tol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = None,
    layout: Layout | None = None,
) -> DTensor:
    """Return the rank of matrices, as numpy.linalg.matrix_rank. Collective if they are sharded.

    Parameters
    ----------
    A: matrices; of a vector the rank is 1, or 0 if it is zero
    tol: singular values up to this one count as zero
    hermitian: whether *A* is Hermitian
    rtol: the same, relative to the largest singular value; by default the precision times the longer side
    layout: layout of the result
    """
    if tol is not None and rtol is not None:
        raise ValueError("`tol` and `rtol` can't be both set.")
    tensor = as_tensor("linalg.matrix_rank", A)
    if tensor.ndim < 2:
        nonzero = tensor != 0
        return in_layout(nonzero.any().astype(int), layout)
    tolerance = tol if rtol is None else rtol

    def rank_of_values(s: Array, cutoff: Array | None) -> Array:
        limit: object
        largest = s.max(axis=-1, keepdims=True, initial=0)
        if tolerance is None:
            limit = largest * (max(tensor.shape[-2:]) * np.finfo(s.dtype).eps)
        else:
            limit = np.asarray(cutoff)[..., None] * (1 if rtol is None else largest)
        return np.asarray(np.count_nonzero(s > limit, axis=-1))

    def compute(a: Array, cutoff: Array | None = None) -> Array:
        return rank_of_values(LAPACK.svd(a, compute_uv=False, hermitian=hermitian), cutoff)

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        cutoff = matrices[1]._block if len(matrices) > 1 else None
        return [_along_last_axis(svdvals(matrices[0]), lambda s: rank_of_values(s, cutoff))]

    values = [tensor] if tolerance is None else [tensor, unwrapped(tolerance)]
    options = f"{hermitian=}, {number_text(tol)}, {number_text(rtol)}"
    task = Task("linalg.matrix_rank", compute, ((),), (2, 0)[: len(values)], options, for_large=for_large)
    return run(task, values, layout)[0]
