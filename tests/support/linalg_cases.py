"""Calls of numpy.linalg and scipy.linalg with random arguments, as a table: what they make of tensors, and of arrays.

A case is a function of a random number generator that returns the name of the function, operands, and options.
Operands are arrays of which the tests make tensors.
"""

import numpy as np
import scipy.linalg

import meshcomm as mc
from support.tensors import layout_of

DTYPES = "f8", "f4", "c16", "c8", "i4"
STACKS = (), (), (), (3,), (1,), (2, 3), (0,)


def matrices(rng, *shape, dtype="f8"):
    """Random matrices of a good condition: integers, with a strong diagonal."""
    made = rng.integers(-4, 5, shape) * 1.0
    if np.dtype(dtype).kind == "c":
        made = made + 1j * rng.integers(-4, 5, shape)
    if shape[-1:] == shape[-2:-1]:
        made = made + 20 * np.eye(shape[-1])
    return made.astype(dtype)


def hermitian(rng, *shape, dtype="f8"):
    made = matrices(rng, *shape, dtype=dtype)
    return made + made.swapaxes(-1, -2).conj()


def _some(rng):
    return (
        STACKS[rng.integers(len(STACKS))],
        int(rng.integers(0 if rng.random() < 0.1 else 1, 9)),
        DTYPES[rng.integers(5)],
    )


def _square(name, make=matrices, **options):
    def case(rng):
        stack, n, dtype = _some(rng)
        return name, [make(rng, *stack, n, n, dtype=dtype)], options

    return case


def _any_shape(name, some=None, **options):
    def case(rng):
        stack, n, dtype = _some(rng)
        m = int(rng.integers(1, 9))
        return name, [matrices(rng, *stack, m, max(1, n) if some else n, dtype=dtype)], options

    return case


def _sides(rng, stack, n, dtype):
    """Right sides: a vector, or matrices with some of the stack's axes."""
    if rng.random() < 0.3:
        return matrices(rng, n, dtype=dtype)
    return matrices(rng, *stack[rng.integers(len(stack) + 1) :], n, int(rng.integers(1, 7)), dtype=dtype)


def _solver(name, make=matrices, plain=False, **options):
    def case(rng):
        stack, n, dtype = _some(rng)
        return name, [make(rng, *stack, n, n, dtype=dtype), _sides(rng, stack, n, DTYPES[rng.integers(5)])], options

    return case


def _lstsq(rng):
    _, n, dtype = _some(rng)
    m = int(rng.integers(1, 9))
    return "lstsq", [matrices(rng, m, n, dtype=dtype), _sides(rng, (), m, dtype)], {}


def _tensorsolve(rng):
    a = matrices(rng, 6, 6).reshape(2, 3, 3, 2)
    return "tensorsolve", [a, matrices(rng, 2, 3)], {}


def _rank(rng):
    stack, n, dtype = _some(rng)
    low = matrices(rng, *stack, n, 2, dtype=dtype) @ matrices(rng, *stack, 2, 5, dtype=dtype)
    options = [{}, {"tol": 1e-3}, {"rtol": 1e-2}, {"rtol": np.full(stack, 0.1)}]
    return "matrix_rank", [low], options[rng.integers(4)]


def _pinv_of_low_rank(rng):
    dtype = (
        "f4" if rng.random() < 0.5 else "c8"
    )  # singular values that are 0 come out at 1e-7: above the default, 1e-15
    return "pinv", [matrices(rng, 5, 2, dtype=dtype) @ matrices(rng, 2, 6, dtype=dtype)], {"rtol": None}


def _norm(rng):
    orders = None, 1, -1, 2, -2, np.inf, -np.inf, "fro", "nuc"
    ord = orders[rng.integers(len(orders))]
    shape = tuple(rng.integers(1, 6, rng.integers(2, 5)).tolist())
    axis = tuple(rng.permutation(len(shape))[:2].tolist()) if len(shape) > 2 or rng.random() < 0.5 else None
    return (
        "norm",
        [matrices(rng, *shape, dtype=DTYPES[rng.integers(4)])],
        {"ord": ord, "axis": axis, "keepdims": bool(rng.integers(2))},
    )


CASES = {
    "solve": _solver("solve"),
    "inv": _square("inv"),
    "det": _square("det"),
    "slogdet": _square("slogdet"),
    "cholesky": _square("cholesky", hermitian),
    "cholesky U": _square("cholesky", hermitian, upper=True),
    "qr": _any_shape("qr"),
    "qr r": _any_shape("qr", mode="r"),
    "qr complete": _any_shape("qr", mode="complete"),
    "qr raw": _any_shape("qr", mode="raw"),
    "svd": _any_shape("svd"),
    "svd reduced": _any_shape("svd", full_matrices=False),
    "svd values": _any_shape("svd", compute_uv=False),
    "svd hermitian": _square("svd", hermitian, hermitian=True),
    "svdvals": _any_shape("svdvals"),
    "eigh": _square("eigh", hermitian),
    "eigh U": _square("eigh", hermitian, UPLO="U"),
    "eigvalsh": _square("eigvalsh", hermitian),
    "eig": _square("eig"),
    "eigvals": _square("eigvals", hermitian),
    "lstsq": _lstsq,
    "pinv": _any_shape("pinv", some=True),
    "pinv rcond": _any_shape("pinv", some=True, rcond=0.3),
    "pinv rtol": _pinv_of_low_rank,
    "pinv hermitian": _square("pinv", hermitian, hermitian=True),
    "matrix_rank": _rank,
    "cond": _any_shape("cond", some=True),
    "cond 1": _square("cond", p="fro"),
    "norm": _norm,
    "matrix_norm": _any_shape("matrix_norm", some=True, ord="nuc"),
    "vector_norm": _any_shape("vector_norm", ord=3, axis=(-1, -2)),
    "tensorsolve": _tensorsolve,
    "tensorinv": lambda rng: ("tensorinv", [matrices(rng, 6, 6).reshape(2, 3, 6)], {"ind": 2}),
}
"""Functions of numpy.linalg."""


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
"""Functions of scipy.linalg: ours, SciPy's for matrices, options, and what makes the matrix."""


def tensors_of(random, mesh, arrays):
    return [mc.distribute(a, layout_of(random, mesh, a.shape)) for a in arrays]


def several(results):
    return tuple(results) if isinstance(results, tuple) else (results,)


def alike(found, expected, scale=1):
    """Compare results, tensors with arrays: shapes, dtypes and values."""
    found, expected = several(found), several(expected)
    assert len(found) == len(expected)
    for tensor, array in zip(found, map(np.asarray, expected), strict=True):
        assert isinstance(tensor, mc.DTensor)
        assert (tensor.shape, tensor.dtype) == (array.shape, array.dtype)
        if tensor.mesh.rank is None:
            continue
        eps = np.finfo(array.dtype).eps if array.dtype.kind in "fc" else 0
        size = np.abs(array).max(initial=0)
        np.testing.assert_allclose(tensor.to_numpy(), array, rtol=1000 * eps, atol=float(100 * eps * size * scale))
