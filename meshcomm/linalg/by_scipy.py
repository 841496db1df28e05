"""LAPACK's routines that NumPy lacks, from SciPy, for stacks of matrices; SciPy is imported at the first call."""

import warnings
from collections.abc import Sequence
from functools import partial
from importlib import import_module

import numpy as np

from meshcomm.core._types import AnyFunction, Array
from meshcomm.linalg.tasks import LAPACK


def _scipy_function(name: str) -> AnyFunction:
    try:
        function: AnyFunction = getattr(import_module("scipy.linalg"), name)
    except ImportError as error:
        raise ImportError(f"mc.linalg needs SciPy for {name}: pip install scipy ({error})") from error
    return function


def _over_stacks(function: AnyFunction, cores: Sequence[int], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return the stacked results of *function* for each set of matrices; empty results for empty stacks.

    *cores* says for each array how many of its last axes are those of a matrix.
    """
    stack = np.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in zip(arrays, cores, strict=True)))
    operands = [np.broadcast_to(a, (*stack, *a.shape[a.ndim - core :])) for a, core in zip(arrays, cores, strict=True)]
    if 0 in stack:
        samples = [_regular_sample(a, core) for a, core in zip(arrays, cores, strict=True)]
        return tuple(np.empty((*stack, *sample.shape), sample.dtype) for sample in _as_arrays(function(*samples)))
    results = [_as_arrays(function(*(a[index] for a in operands))) for index in np.ndindex(*stack)]
    return tuple(np.stack(matrices).reshape(*stack, *matrices[0].shape) for matrices in zip(*results, strict=True))


def _regular_sample(array: Array, core: int) -> Array:
    """Return a regular matrix, with ones on the diagonal, of the shape of the matrices in *array*."""
    shape = array.shape[array.ndim - core :]
    return np.eye(*shape, dtype=array.dtype) if core == 2 else np.zeros(shape, array.dtype)


def _as_arrays(result: object) -> tuple[Array, ...]:
    return tuple(map(np.asarray, result)) if isinstance(result, tuple) else (np.asarray(result),)


def eigh_of_some(a: Array, uplo: str, subset: tuple[int, int]) -> tuple[Array, ...]:
    """Return eigenvalues from the first to the last of *subset*, and their eigenvectors."""
    eigh = _scipy_function("eigh")
    LAPACK.eigvalsh(np.empty((0, *a.shape[-2:]), a.dtype), uplo)  # NumPy's errors
    return _over_stacks(lambda m: eigh(m, lower=uplo.upper() == "L", subset_by_index=subset), (2,), [a])


def triangular(a: Array, b: Array, trans: int, lower: bool, unit_diagonal: bool) -> Array:
    """Return x with ``a @ x = b`` for triangular *a*; with *trans* 1 for its transpose, with 2 for its adjoint."""
    solve = partial(_scipy_function("solve_triangular"), trans=trans, lower=lower, unit_diagonal=unit_diagonal)
    return _over_stacks(solve, (2, 2), [a, b])[0]


def lu_factors(a: Array) -> tuple[Array, ...]:
    """Return LAPACK's factors L and U in one matrix, and its pivots. A zero on the diagonal of U is no error."""
    factor = _scipy_function("lu_factor")

    def factor_one(a: Array) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return factor(a)

    return _over_stacks(factor_one, (2,), [a])


def lu_solution(factors: Array, pivots: Array, b: Array, trans: int) -> Array:
    """Return x with ``a @ x = b`` from the factors of *a*."""
    solve = _scipy_function("lu_solve")
    return _over_stacks(lambda lu, piv, b: solve((lu, piv), b, trans=trans), (2, 1, 2), [factors, pivots, b])[0]


def cho_solution(factor: Array, b: Array, lower: bool) -> Array:
    """Return x with ``a @ x = b`` from the Cholesky factor of *a*."""
    solve = _scipy_function("cho_solve")
    return _over_stacks(lambda c, b: solve((c, lower), b), (2, 2), [factor, b])[0]
