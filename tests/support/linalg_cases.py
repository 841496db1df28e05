"""Matrices, functions of scipy.linalg as a table, and the comparison of results; numpy_calls.txt has numpy.linalg."""

import numpy as np
import scipy.linalg

import meshcomm as mc
from support.tensors import layout_of

DTYPES = "f8", "f4", "c16", "c8", "i4"


def matrices(rng, *shape, dtype="f8"):
    """Random well-conditioned matrices: integers, with a strong diagonal."""
    array = rng.integers(-4, 5, shape) * 1.0
    if np.dtype(dtype).kind == "c":
        array = array + 1j * rng.integers(-4, 5, shape)
    if shape[-1:] == shape[-2:-1]:
        array = array + 20 * np.eye(shape[-1])
    return array.astype(dtype)


def hermitian(rng, *shape, dtype="f8"):
    array = matrices(rng, *shape, dtype=dtype)
    return array + array.swapaxes(-1, -2).conj()


def _our_lu(a, b, **options):
    return mc.linalg.lu_solve(mc.linalg.lu_factor(a), b, **options)


def _by_lu(a, b, trans=0):
    return scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans=trans)


SCIPY = {
    "solve_triangular": (
        lambda a, b, **options: mc.linalg.solve_triangular(a, b, **options),
        lambda a, b, **options: scipy.linalg.solve_triangular(a, b, **options),
        [{}, {"lower": True, "trans": 1}, {"trans": "C", "unit_diagonal": True}],
        matrices,
    ),
    "lu": (
        _our_lu,
        _by_lu,
        [{}, {"trans": 2}],
        matrices,
    ),
    "cho": (
        lambda a, b, **options: mc.linalg.cho_solve(mc.linalg.cho_factor(a, **options), b),
        lambda a, b, lower=False: scipy.linalg.cho_solve(scipy.linalg.cho_factor(a, lower), b),
        [{}, {"lower": True}],
        hermitian,
    ),
}
"""Functions of scipy.linalg by name: ours, SciPy's, a list of options, and the function that makes the matrix."""


def tensors_of(random, mesh, arrays):
    return [mc.distribute(a, layout_of(random, mesh, a.shape)) for a in arrays]


def several(results):
    return tuple(results) if isinstance(results, tuple) else (results,)


def alike(results, expected, scale=1):
    """Compare results, tensors with arrays: shapes, dtypes and values."""
    results, expected = several(results), several(expected)
    assert len(results) == len(expected)
    for tensor, array in zip(results, map(np.asarray, expected), strict=True):
        assert isinstance(tensor, mc.DTensor)
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        if tensor.mesh.rank is None:
            continue
        eps = np.finfo(array.dtype).eps if array.dtype.kind in "fc" else 0
        size = np.abs(array).max(initial=0)
        np.testing.assert_allclose(tensor.to_numpy(), array, rtol=1000 * eps, atol=float(100 * eps * size * scale))
