"""Solvers that keep their factors, as scipy.linalg has them, and the randomized singular value decomposition."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.linalg import by_scipy
from meshcomm.linalg.functions import Results, cholesky, qr, result_type, svd, task_of_solve
from meshcomm.linalg.run import run, way_to, work_dtype
from meshcomm.linalg.tasks import ResultLayouts, Task, laid_out
from meshcomm.random.generator import default_rng

_EXTRA_COLUMNS = 10  # extra columns of the random basis
_POWER_ITERATIONS = 2  # power iterations
_TRANSPOSES = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


class LU(NamedTuple):
    """Factors of a matrix for `lu_solve`: *lu* has L below its diagonal and U in the rest, *piv* the pivots."""

    lu: DTensor
    piv: DTensor


class Cholesky(NamedTuple):
    """A Cholesky factor for `cho_solve`, and whether it is the lower one."""

    c: DTensor
    lower: bool


def _transpose_kind(trans: object) -> int:
    number = _TRANSPOSES.get(trans) if isinstance(trans, int | str) else None
    if number is None:
        raise ShapeError(f"trans must be 0, 1 or 2, or 'N', 'T' or 'C', not {quote(trans)}")
    return number


@refusable
def solve_triangular(
    a: DTensor | ArrayLike,
    b: DTensor | ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    *,
    layout: Layout | None = None,
) -> DTensor:
    """Return x with ``a @ x = b`` for triangular *a*, as scipy.linalg.solve_triangular. Collective, as `solve`.

    Parameters
    ----------
    a: square matrices; only one triangle is read
    b: a vector, or matrices
    trans: 1 to solve with the transpose of *a*, 2 with its adjoint
    lower: whether the lower triangle is read
    unit_diagonal: whether the diagonal counts as ones, and is not read
    layout: layout of x; by default the layout of *b*
    """
    trans_number = _transpose_kind(trans)

    def compute(a: Array, b: Array) -> Array:
        return by_scipy.triangular(a, b, trans_number, lower, unit_diagonal)

    def solve_large(a: DTensor, b: DTensor) -> DTensor:
        return way_to("large", "solve_triangular")(a, b, trans=trans_number, lower=lower, unit_diagonal=unit_diagonal)

    options = f"trans={trans_number}, {lower=}, {unit_diagonal=}"
    return run(task_of_solve("linalg.solve_triangular", b, compute, solve_large, options), (a, b), layout)[0]


@refusable
def lu_factor(a: DTensor, *, layout: ResultLayouts = None) -> LU:
    """Return the factors of matrices for `lu_solve`, as scipy.linalg.lu_factor. Collective if they are sharded.

    A zero on the diagonal of U, of a singular matrix, is no error. *layout* is a tuple of two.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     factors = mc.linalg.lu_factor(mc.distribute(np.array([[2.0, 0], [0, 4]]), rows))
    ...     return mc.linalg.lu_solve(factors, [2.0, 2.0]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1.0, 0.5]
    """
    origins = (((0, -2), (0, -1)), (None,))
    task = Task(
        "linalg.lu_factor", by_scipy.lu_factors, origins, for_large=lambda algorithm, m: way_to(algorithm, "lu")(*m)
    )
    return LU(*run(task, (a,), layout))


@refusable
def lu_solve(
    lu_and_piv: tuple[DTensor, DTensor],
    b: DTensor | ArrayLike,
    trans: int | str = 0,
    *,
    layout: Layout | None = None,
) -> DTensor:
    """Return x with ``a @ x = b`` from what `lu_factor` returned for *a*, as scipy.linalg.lu_solve. Collective.

    Parameters
    ----------
    lu_and_piv: result of `lu_factor`
    b: a vector, or matrices
    trans: 1 to solve with the transpose of *a*, 2 with its adjoint
    layout: layout of x; by default the layout of *b*
    """
    factors, pivots = lu_and_piv
    trans_number = _transpose_kind(trans)
    is_vector = np.ndim(unwrapped(b)) == 1

    def compute(lu: Array, piv: Array, b: Array) -> Array:
        if is_vector:
            return by_scipy.lu_solution(lu, piv, b[..., None], trans_number)[..., 0]
        return by_scipy.lu_solution(lu, piv, b, trans_number)

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        lu, piv, rhs = matrices
        b_tensor = rhs
        x = way_to(algorithm, "lu_solve")((lu, piv), b_tensor[:, None] if is_vector else b_tensor, trans=trans_number)
        return [x[:, 0] if is_vector else x]

    origins = (((2, -1),),) if is_vector else (((2, -2), (2, -1)),)
    cores = (2, 1, 1 if is_vector else 2)
    task = Task(
        "linalg.lu_solve", compute, origins, cores, f"trans={trans_number}", columns=not is_vector, for_large=for_large
    )
    return run(task, (factors, pivots, b), layout)[0]


@refusable
def cho_factor(a: DTensor, lower: bool = False, *, layout: Layout | None = None) -> Cholesky:
    """Return the Cholesky factor of matrices for `cho_solve`, as scipy.linalg.cho_factor. Collective, as `cholesky`.

    The other triangle of the factor is zero.
    """
    return Cholesky(cholesky(a, upper=not lower, layout=layout), bool(lower))


@refusable
def cho_solve(c_and_lower: tuple[DTensor, bool], b: DTensor | ArrayLike, *, layout: Layout | None = None) -> DTensor:
    """Return x with ``a @ x = b`` from what `cho_factor` returned for *a*, as scipy.linalg.cho_solve. Collective.

    Parameters
    ----------
    c_and_lower: result of `cho_factor`
    b: a vector, or matrices
    layout: layout of x; by default the layout of *b*
    """
    factor, lower = c_and_lower

    def compute(c: Array, b: Array) -> Array:
        return by_scipy.cho_solution(c, b, lower)

    def solve_large(c: DTensor, b: DTensor) -> DTensor:
        return way_to("large", "cho_solve")(c, b, lower=lower)

    return run(task_of_solve("linalg.cho_solve", b, compute, solve_large, f"{lower=}"), (factor, b), layout)[0]


@refusable
def svd_randomized(a: DTensor, k: int, seed: int = 0, *, layout: ResultLayouts = None) -> Results:
    """Return the *k* largest singular values of a matrix, with their vectors, to a good approximation. Collective.

    The matrix is multiplied with k + 10 random columns, with two power iterations between: products and decompositions
    of tall matrices. Source: N. Halko, P. G. Martinsson, J. A. Tropp, Finding structure with randomness, 2011.

    Parameters
    ----------
    a: a matrix
    k: number of singular values
    seed: seed of the random columns, which are the same for every layout and number of ranks
    layout: tuple with the layouts of U, S and Vh; by default as for `svd`

    ``ShapeError`` unless k is from 1 to the shorter side of *a*.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     a = mc.distribute(np.outer(np.arange(6.0), np.ones(4)), rows)
    ...     return mc.linalg.svd_randomized(a, 1).S.to_numpy().round(6).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [14.832397]
    """
    tensor = as_tensor("linalg.svd_randomized", a)
    if tensor.ndim != 2:
        raise ShapeError(f"svd_randomized takes a matrix, but the shape is {tensor.shape}")
    count = as_integer(k, "k", ShapeError)
    if not 1 <= count <= min(tensor.shape):
        raise ShapeError(f"k is {count}; there are {min(tensor.shape)} singular values, and at least 1 is computed")
    dtype = work_dtype([tensor.dtype])
    matrix = tensor if tensor.dtype == dtype else tensor.astype(dtype)
    width = min(count + _EXTRA_COLUMNS, *tensor.shape)
    rng, real_dtype = default_rng(as_integer(seed, "seed", ShapeError)), np.empty(0, dtype).real.dtype
    columns_layout = tensor.layout.take([1]).insert(1)
    columns = rng.standard_normal((tensor.shape[1], width), real_dtype, layout=columns_layout)
    adjoint = np.conj(matrix).T
    basis = qr(matrix @ columns).Q
    for _ in range(_POWER_ITERATIONS):
        basis = qr(matrix @ qr(adjoint @ basis).Q).Q
    u, s, vh = svd(np.conj(basis).T @ matrix, full_matrices=False)
    results = [basis @ u[:, :count], s[:count], vh[:count]]
    origins = (((0, -2), None), (None,), (None, (0, -1)))
    factors = laid_out(Task("linalg.svd_randomized", svd, origins), results, [tensor], layout)
    return result_type("svd")(factors)
