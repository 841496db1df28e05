"""numpy.linalg's solvers and decompositions of tensors, with ``layout=`` for the results."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import replicated
from meshcomm.blocks.rules import NUMBERS
from meshcomm.core._arguments import NO_VALUE, as_integer, ndim_of, normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.linalg import scalapack
from meshcomm.linalg.by_scipy import eigh_of_some
from meshcomm.linalg.run import run, too_large_error, way_to, work_dtype
from meshcomm.linalg.tasks import LAPACK, ResultLayouts, Task

Results: TypeAlias = Any
"""NumPy's named tuple of tensors, or one tensor if only one result is requested."""

_SAME_AXES = ((0, -2), (0, -1))  # rows and columns like those of the first operand
_NO_ORIGIN = (None,)


@cache
def result_type(name: str) -> Callable[..., Results]:
    """Return NumPy's named tuple for the results of a function; a tuple in versions without one."""
    tuple_type = type(getattr(np.linalg, name)(np.eye(1)))
    return tuple_type._make if hasattr(tuple_type, "_make") else tuple


# -- systems of equations ---------------------------------------------------------------------------------------------


@refusable
def solve(a: DTensor | ArrayLike, b: DTensor | ArrayLike, *, layout: Layout | None = None) -> DTensor:
    """Return x with ``a @ x = b``, as numpy.linalg.solve. Collective over the mesh if an operand is sharded.

    Parameters
    ----------
    a: square matrices; a tensor, or a plain array that all ranks pass
    b: a vector, or matrices; one of the two is a tensor
    layout: layout of x; by default the layout of *b*

    ``numpy.linalg.LinAlgError`` on all ranks if a matrix is singular.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     a = mc.distribute(np.array([[2.0, 0], [0, 4]]), rows)
    ...     return np.linalg.solve(a, [2.0, 2.0]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1.0, 0.5]
    """
    return run(
        task_of_solve("linalg.solve", b, np.linalg.solve, lambda a, b: way_to("large", "solve")(a, b)), (a, b), layout
    )[0]


def task_of_solve(
    name: str,
    b: object,
    compute: Callable[[Array, Array], Array],
    solve_large: Callable[[DTensor, DTensor], DTensor],
    options: str = "",
) -> Task:
    """Return the task of a solver whose right sides are the columns of *b*, or a vector.

    *compute* takes arrays, *solve_large* large matrices; both take the right sides as columns.
    """
    if ndim_of(unwrapped(b)) != 1:
        origins = (((1, -2), (1, -1)),)
        return Task(name, compute, origins, (2, 2), options, columns=True, for_large=lambda _, m: [solve_large(*m)])

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        a, vector = matrices
        x = solve_large(a, _as_column(vector))
        return [x[:, 0]]

    def of_vector(a: Array, b: Array) -> Array:
        return compute(a, b[..., None])[..., 0]

    return Task(name, of_vector, (((1, -1),),), (2, 1), options, for_large=for_large)


def _as_column(vector: DTensor) -> DTensor:
    return vector[:, None]


@refusable
def inv(a: DTensor, *, layout: Layout | None = None) -> DTensor:
    """Return the inverse of matrices, as numpy.linalg.inv. Collective over the mesh if they are sharded.

    ``numpy.linalg.LinAlgError`` on all ranks if a matrix is singular.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return np.linalg.inv(mc.distribute(np.array([[2.0, 0], [0, 4]]), rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0.5, 0.0]], [[0.0, 0.25]]]
    """
    task = Task("linalg.inv", LAPACK.inv, (_SAME_AXES,), for_large=lambda algorithm, m: [way_to(algorithm, "inv")(*m)])
    return run(task, (a,), layout)[0]


@refusable
def det(a: DTensor, *, layout: Layout | None = None) -> DTensor:
    """Return the determinant of matrices, as numpy.linalg.det. Collective over the mesh if they are sharded."""

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        sign, logarithm = way_to(algorithm, "slogdet")(*matrices)
        determinant = sign * np.exp(logarithm)
        return [determinant.astype(matrices[0].dtype)]

    return run(Task("linalg.det", LAPACK.det, ((),), for_large=for_large), (a,), layout)[0]


@refusable
def slogdet(a: DTensor, *, layout: ResultLayouts = None) -> Results:
    """Return sign and logarithm of the determinant, as numpy.linalg.slogdet. Collective if matrices are sharded."""
    task = Task("linalg.slogdet", LAPACK.slogdet, ((), ()), for_large=lambda method, m: way_to(method, "slogdet")(*m))
    return result_type("slogdet")(run(task, (a,), layout))


@refusable
def lstsq(
    a: DTensor | ArrayLike, b: DTensor | ArrayLike, rcond: float | None = None, *, layout: ResultLayouts = None
) -> tuple[DTensor, DTensor, DTensor, DTensor]:
    """Return the least-squares solution, as numpy.linalg.lstsq. Collective over the mesh if an operand is sharded.

    The results are x, the sums of squared residuals, the rank of *a*, and its singular values.

    Parameters
    ----------
    a: a matrix
    b: a vector, or a matrix
    rcond: singular values below *rcond* times the largest one count as zero; by default the precision times the
        larger side of *a*
    layout: tuple with a layout, or None, for each result; or None

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     a = mc.distribute(np.array([[1.0, 0], [1, 1], [1, 2]]), rows)
    ...     x, residuals, rank, s = np.linalg.lstsq(a, [1.0, 3, 5])
    ...     return x.to_numpy().round(12).tolist(), int(rank)
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    ([1.0, 2.0], 2)
    """
    is_vector = np.ndim(unwrapped(b)) == 1
    columns = () if is_vector else ((1, -1),)

    def compute(a: Array, b: Array) -> object:
        return LAPACK.lstsq(a, b, rcond)

    def for_large(algorithm: str, matrices: list[DTensor]) -> Sequence[DTensor]:
        a, b = matrices
        cutoff = float(np.finfo(a.dtype).eps) * max(a.shape) if rcond is None else rcond
        rhs = _as_column(b) if is_vector else b
        if algorithm == "tall":
            x, residuals, rank, s = way_to(algorithm, "lstsq")(a, rhs, cutoff)
        else:
            x, residuals, rank, s = _lstsq_by_svd(a, rhs, cutoff)
        return x[:, 0] if is_vector else x, residuals, replicated(np.array(rank, np.intc), a.mesh), s

    origins = (((0, -1), *columns), columns or _NO_ORIGIN, (), _NO_ORIGIN)
    task = Task(
        "linalg.lstsq", compute, origins, (2, 1 if is_vector else 2), f"{rcond=}", stacked=False, for_large=for_large
    )
    x, residuals, rank, s = run(task, (a, b), layout)
    return x, residuals, rank, s


def _lstsq_by_svd(a: DTensor, b: object, rcond: float) -> tuple[Value, Value, int, DTensor]:
    """Return the results of `lstsq` for a large matrix. Collective over the mesh."""
    u, s, vh = svd(a, full_matrices=False)
    inverses, is_nonzero = _inverses(s, rcond)
    rank = int(np.count_nonzero(is_nonzero))
    x = np.conj(vh).T @ (inverses[:, None].astype(a.dtype) * (np.conj(u).T @ b))
    squares = np.abs(b - a @ x) ** 2
    residuals = squares.sum(0) if rank == a.shape[1] < a.shape[0] else squares.sum(0)[:0]
    return x, residuals, rank, s


def _inverses(s: Value, rcond: float) -> tuple[Value, Value]:
    """Return the inverses of singular values, 0 for those that count as zero, and the mask of the others."""
    is_nonzero = s > rcond * float(s[0])
    return np.where(is_nonzero, 1 / np.where(is_nonzero, s, 1), 0), is_nonzero


# -- decompositions ---------------------------------------------------------------------------------------------------


@refusable
def cholesky(a: DTensor, /, *, upper: bool = False, layout: Layout | None = None) -> DTensor:
    """Return the Cholesky factor of matrices, as numpy.linalg.cholesky. Collective if they are sharded.

    Parameters
    ----------
    a: Hermitian matrices; only the triangle of the factor is read
    upper: whether the factor is U with ``a = U^H U``, not L with ``a = L L^H``
    layout: layout of the factor

    ``numpy.linalg.LinAlgError`` on all ranks if a matrix is not positive definite.
    """

    def factor(a: Array) -> object:  # NumPy has upper= since version 2
        if not upper:
            return LAPACK.cholesky(a)
        return LAPACK.cholesky(a.swapaxes(-1, -2).conj()).swapaxes(-1, -2).conj()

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        return [scalapack.cholesky(*matrices, lower=not upper)]

    return run(Task("linalg.cholesky", factor, (_SAME_AXES,), (2,), f"{upper=}", for_large=for_large), (a,), layout)[0]


@refusable
def qr(a: DTensor, mode: str = "reduced", *, layout: ResultLayouts = None) -> Results:
    """Return the QR decomposition of matrices, as numpy.linalg.qr. Collective if they are sharded.

    Parameters
    ----------
    a: matrices; a tall one, with few columns, is never gathered
    mode: ``"reduced"``, ``"r"``, and for matrices that are small or whole ``"complete"`` and ``"raw"``
    layout: tuple with the layouts of Q and R; by default the rows of Q are cut like those of *a*, and R is replicated;
        if *a* is wide, the columns of R are cut like those of *a*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     q, r = np.linalg.qr(mc.distribute(np.array([[3.0], [4.0]]), rows))
    ...     return q.local.round(12).tolist(), r.local.round(12).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([[-0.6]], [[-5.0]]), ([[-0.8]], [[-5.0]])]
    """
    shape = np.shape(unwrapped(a))
    r_axes = (None, (0, -1) if len(shape) > 1 and shape[-2] < shape[-1] else None)  # R of a wide matrix is wide
    origins = {"r": (r_axes,), "raw": (r_axes, _NO_ORIGIN)}.get(mode, (((0, -2), None), r_axes))

    def for_large(algorithm: str, matrices: list[DTensor]) -> Sequence[DTensor]:
        if mode not in ("reduced", "r"):
            raise too_large_error("linalg.qr", f"mode={mode!r} is for small matrices", "there are 'reduced' and 'r'")
        factors = way_to(algorithm, "qr")(*matrices, mode)
        return factors if mode == "reduced" else [factors if isinstance(factors, DTensor) else factors[1]]

    task = Task("linalg.qr", lambda a: LAPACK.qr(a, mode), origins, (2,), f"{mode=}", for_large=for_large)
    results = run(task, (a,), layout)
    if mode == "r":
        return results[0]
    return tuple(results) if mode == "raw" else result_type("qr")(results)


@refusable
def svd(
    a: DTensor,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    *,
    layout: ResultLayouts = None,
) -> Results:
    """Return the singular value decomposition, as numpy.linalg.svd. Collective if matrices are sharded.

    Parameters
    ----------
    a: matrices; a tall or wide one, with a short side, is never gathered
    full_matrices: whether U and Vh are square; only where *a* is square, small or whole
    compute_uv: whether to return U, S and Vh, not S alone
    hermitian: whether *a* is Hermitian, so that eigenvalues can be used
    layout: tuple with the layouts of U, S and Vh; by default the rows of U are cut like those of *a*, and the columns
        of Vh like those of *a*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     u, s, vh = np.linalg.svd(mc.distribute(np.diag([2.0, 3.0]), rows))
    ...     return u.layout == rows, s.local.round(12).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    (True, [3.0, 2.0])
    """

    def compute(a: Array) -> object:
        return LAPACK.svd(a, full_matrices, compute_uv, hermitian)

    def for_large(algorithm: str, matrices: list[DTensor]) -> Sequence[DTensor]:
        (m,) = matrices
        if compute_uv and full_matrices and m.shape[0] != m.shape[1]:
            raise too_large_error(
                "linalg.svd", "full_matrices=True is for small matrices", "there is full_matrices=False"
            )
        factors = way_to(algorithm, "svd")(m, compute_uv=compute_uv)
        return factors if compute_uv else [factors if isinstance(factors, DTensor) else factors[1]]

    origins = (((0, -2), None), _NO_ORIGIN, (None, (0, -1))) if compute_uv else (_NO_ORIGIN,)
    options = f"{full_matrices=}, {compute_uv=}, {hermitian=}"
    results = run(Task("linalg.svd", compute, origins, (2,), options, for_large=for_large), (a,), layout)
    return result_type("svd")(results) if compute_uv else results[0]


def svdvals(x: DTensor, /, *, layout: Layout | None = None) -> DTensor:
    """Return the singular values of matrices, largest first, as numpy.linalg.svdvals. Collective, as `svd`."""
    return svd(x, compute_uv=False, layout=layout)


@refusable
def eigh(
    a: DTensor,
    UPLO: str = "L",  # noqa: N803 - NumPy's
    *,
    subset_by_index: Sequence[int] | None = None,
    layout: ResultLayouts = None,
) -> Results:
    """Return eigenvalues and eigenvectors of Hermitian matrices, as numpy.linalg.eigh. Collective if they are sharded.

    Parameters
    ----------
    a: Hermitian matrices; only one triangle is read
    UPLO: triangle to read: ``"L"`` or ``"U"``
    subset_by_index: the first and the last eigenvalue to compute, counted from 0, the smallest one: as in SciPy, which
        computes them
    layout: tuple with the layouts of both results; by default the rows of the eigenvectors are cut like those of *a*
    """
    subset = None
    if subset_by_index is not None:
        first_number, last_number = (as_integer(n, "an index", ShapeError) for n in subset_by_index)
        subset = first_number, last_number

    def compute(a: Array) -> object:
        return LAPACK.eigh(a, UPLO) if subset is None else eigh_of_some(a, UPLO, subset)

    def for_large(algorithm: str, matrices: list[DTensor]) -> Sequence[DTensor]:
        return way_to(algorithm, "eigh")(*matrices, UPLO=UPLO, subset_by_index=subset)

    origins = (_NO_ORIGIN, ((0, -2), None))
    task = Task("linalg.eigh", compute, origins, (2,), f"{UPLO=}, {subset=}", for_large=for_large)
    return result_type("eigh")(run(task, (a,), layout))


@refusable
def eigvalsh(a: DTensor, UPLO: str = "L", *, layout: Layout | None = None) -> DTensor:  # noqa: N803
    """Return eigenvalues of Hermitian matrices, smallest first, as numpy.linalg.eigvalsh. Collective, as `eigh`."""

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        return [way_to(algorithm, "eigvalsh")(*matrices, UPLO=UPLO)]

    task = Task(
        "linalg.eigvalsh", lambda a: LAPACK.eigvalsh(a, UPLO), (_NO_ORIGIN,), (2,), f"{UPLO=}", for_large=for_large
    )
    return run(task, (a,), layout)[0]


@refusable
def eig(a: DTensor, *, layout: ResultLayouts = None) -> Results:
    """Return eigenvalues and eigenvectors of any square matrices, as numpy.linalg.eig. Collective if they are sharded.

    ``ShapeError`` for sharded matrices above the limit of the small way: ScaLAPACK does not have it.
    """
    origins = (_NO_ORIGIN, ((0, -2), None))
    return result_type("eig")(run(Task("linalg.eig", LAPACK.eig, origins, either=True), (a,), layout))


@refusable
def eigvals(a: DTensor, *, layout: Layout | None = None) -> DTensor:
    """Return eigenvalues of any square matrices, as numpy.linalg.eigvals. Collective if they are sharded, as `eig`."""
    return run(Task("linalg.eigvals", LAPACK.eigvals, (_NO_ORIGIN,), either=True), (a,), layout)[0]


# -- functions of the decompositions ----------------------------------------------------------------------------------


@refusable
def pinv(
    a: DTensor,
    rcond: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = NO_VALUE,
    layout: Layout | None = None,
) -> DTensor:
    """Return the pseudo-inverse of matrices, as numpy.linalg.pinv. Collective if they are sharded.

    Parameters
    ----------
    a: matrices
    rcond: singular values up to this one times the largest count as zero; 1e-15 by default
    rtol: the same; ``rtol=None`` is the precision times the longer side
    hermitian: whether *a* is Hermitian
    layout: layout of the result; by default rows are cut like the columns of *a*, and columns like its rows
    """
    if rcond is not None and rtol is not NO_VALUE:
        raise ValueError("`rtol` and `rcond` can't be both set.")
    cutoff = rcond if rtol is NO_VALUE else rtol
    if rtol is None:
        tensor = as_tensor("linalg.pinv", a)
        cutoff = max(tensor.shape[-2:], default=0) * float(np.finfo(work_dtype([tensor.dtype])).eps)
    values = [a] if cutoff is None else [a, cutoff]

    def compute(a: Array, cutoff: ArrayLike | None = None) -> object:
        if cutoff is None:
            return LAPACK.pinv(a, hermitian=hermitian)
        return LAPACK.pinv(a, cutoff, hermitian=hermitian)

    def for_large(algorithm: str, matrices: list[DTensor]) -> list[DTensor]:
        relative_cutoff = 1e-15 if cutoff is None else float(matrices[1])
        if algorithm == "tall":
            return [way_to(algorithm, "pinv")(matrices[0], relative_cutoff)]
        u, s, vh = svd(matrices[0], full_matrices=False)
        inverses, _ = _inverses(s, relative_cutoff)
        result = (np.conj(vh).T * inverses.astype(matrices[0].dtype)) @ np.conj(u).T
        return [result]

    cores = (2,) if cutoff is None else (2, 0)
    options = f"{hermitian=}, {number_text(cutoff)}"
    task = Task("linalg.pinv", compute, (((0, -1), (0, -2)),), cores, options, for_large=for_large)
    return run(task, values, layout)[0]


@refusable
def tensorsolve(
    a: DTensor | ArrayLike, b: DTensor | ArrayLike, axes: Sequence[int] | None = None, *, layout: Layout | None = None
) -> DTensor:
    """Return x with ``tensordot(a, x, x.ndim) = b``, as numpy.linalg.tensorsolve. Collective, as `solve`.

    Parameters
    ----------
    a, b: tensors, or a tensor and a plain array
    axes: axes of *a* to move to the end first
    layout: layout of x
    """
    lhs: Value = unwrapped(a) if isinstance(unwrapped(a), DTensor) else np.asarray(a)
    rhs: Value = unwrapped(b) if isinstance(unwrapped(b), DTensor) else np.asarray(b)
    if axes is not None:
        moved_axes = normalised_axes(tuple(axes), lhs.ndim)
        lhs = np.moveaxis(lhs, moved_axes, tuple(range(-len(moved_axes), 0)))
    shape = lhs.shape[rhs.ndim - lhs.ndim :] if lhs.ndim > rhs.ndim else ()
    n = prod(shape)
    if prod(lhs.shape) != n**2:
        raise np.linalg.LinAlgError(
            "Input arrays must satisfy the requirement prod(a.shape[b.ndim:]) == prod(a.shape[:b.ndim])"
        )
    solution: Value = solve(lhs.reshape(n, n), rhs.reshape(-1))
    return in_layout(solution.reshape(shape), layout)


@refusable
def tensorinv(a: DTensor, ind: int = 2, *, layout: Layout | None = None) -> DTensor:
    """Return the inverse of a tensor as a linear map, as numpy.linalg.tensorinv. Collective, as `inv`.

    Parameters
    ----------
    a: a tensor
    ind: number of first axes that belong to the results of the map
    layout: layout of the result
    """
    tensor = as_tensor("linalg.tensorinv", a)
    if ind <= 0:
        raise ValueError("Invalid ind argument.")
    rows, columns = tensor.shape[:ind], tensor.shape[ind:]
    inverse = inv(tensor.reshape(prod(rows), prod(columns)))
    return in_layout(inverse.reshape(*columns, *rows), layout)


def number_text(x: object) -> str:
    """Return the text of a number for the ranks to compare; "" for arrays, which are compared elsewhere."""
    return repr(x) if isinstance(x, NUMBERS) else ""


def in_layout(result: DTensor, layout: Layout | None) -> DTensor:
    """Return *result* in *layout* if there is one. Collective if it has to move."""
    return result if layout is None or result.layout == layout else relayout(result, layout)
