"""Solvers for matrices too large for one rank, by ScaLAPACK; decompositions are in `meshcomm.linalg.spectra`.

Operands are in any layout. They are relaid to square block-cyclic blocks over a grid of all ranks of their mesh.
Results stay in this layout, or are views of tensors in it; `meshcomm.relayout` moves them. ScaLAPACK sees the
transpose A' of a matrix A in this layout (see `meshcomm.linalg.block_cyclic`), and solves the transposed problem::

    A X = B        <=>   A' = P L U,  then X by the transpose of A'
    A = Q R        <=>   A' = R' Q'
    A = U S V^H    <=>   A' = (V^H)' S U'
    inv(A)         <=>   inv(A')'

Right sides, and matrices that ScaLAPACK must see untransposed, are transposed by their relayout.

All functions are Collective over the mesh of their operands, which are matrices of one dtype: float32, float64,
complex64 or complex128. *block* is the size of the blocks, unless the first operand is in such a layout already.
Errors of all of them: ``ShapeError``, ``DTypeError``, ``MeshError``, and ``ImportError`` if no ScaLAPACK is found.
``numpy.linalg.LinAlgError`` where the result does not exist, on all ranks.
"""

from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import make, map_into
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.linalg.block_cyclic import USUAL_BLOCK
from meshcomm.linalg.jobs import ScalapackJob, conjugate, raise_if
from meshcomm.linalg.routines import any_shape, check_rows, check_square, real_of
from meshcomm.linalg.spectra import eigh, eigvalsh, qr, svd

__all__ = [
    "cho_solve",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu",
    "lu_solve",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]

_PIVOTS = 0
"""The axis along which most devices lie for getrf: devices that share a column wait for each other."""

_TRANSPOSED = {0: b"T", 1: b"N", 2: b"N"}  # SciPy's trans, for the transpose that ScaLAPACK sees


class PivotedLU(NamedTuple):
    """Result of `lu`: both factors in one matrix, and for each row the index of the row it was exchanged with."""

    factors: DTensor
    pivots: DTensor


@refusable
def solve(a: DTensor, b: DTensor, *, block: int = USUAL_BLOCK) -> DTensor:
    """Return x with ``a x = b``, by getrf and getrs. Collective.

    *a* is square, and *b* has equally many rows; its columns are right sides. ``LinAlgError`` if *a* is singular.
    """
    job = ScalapackJob.begin("linalg.solve", [a, b], block, check_square, along=_PIVOTS)
    factors, rhs = job.placed(a), job.transposed(b)
    if job.is_inside and a.size:
        pivots = job.factored(factors)
        if b.size:
            matrices = *job.matrix(factors), pivots, *job.matrix(rhs)
            job.call_checked("getrs", a.dtype, b"T", *rhs.shape[::-1], *matrices)
    return rhs.T


@refusable
def inv(a: DTensor, *, block: int = USUAL_BLOCK) -> DTensor:
    """Return the inverse of a square matrix, by getrf and getri. Collective. ``LinAlgError`` if it is singular."""
    job = ScalapackJob.begin("linalg.inv", [a], block, check_square, along=_PIVOTS)
    inverse = job.placed(a)
    if job.is_inside and a.size:
        pivots = job.factored(inverse)
        job.call_in_workspace("getri", a.dtype, "wi", len(a), *job.matrix(inverse), pivots)
    return inverse


@refusable
def slogdet(a: DTensor, *, block: int = USUAL_BLOCK) -> tuple[DTensor, DTensor]:
    """Return the sign of the determinant of a square matrix, and the logarithm of its size, by getrf. Collective."""
    job = ScalapackJob.begin("linalg.slogdet", [a], block, check_square, along=_PIVOTS)
    factors = job.placed(a)
    sign, log = np.ones((), "c16"), np.zeros(())
    if job.is_inside and a.size:
        pivots = job.along_columns(factors, np.intc)
        job.lu(factors, pivots)
        diagonal, columns = job.diagonal(factors)
        values = diagonal.astype("c16")
        magnitudes = abs(values)
        signs = np.divide(values, magnitudes, out=np.zeros_like(values), where=magnitudes != 0)
        swaps = np.count_nonzero(pivots[columns] != job.indices(factors, 1)[columns] + 1)
        phase = complex(signs.prod()) * (-1) ** swaps
        with np.errstate(divide="ignore"):
            logarithms = np.array(job.all_gathered([phase.real, phase.imag, float(np.log(magnitudes).sum())]))
        sign, log = (logarithms[:, 0] + 1j * logarithms[:, 1]).prod(), logarithms[:, 2].sum()
    sign = sign if a.dtype.kind == "c" else sign.real
    return job.replicated(np.array(sign, a.dtype)), job.replicated(np.array(log, real_of(a.dtype)))


@refusable
def lu(a: DTensor, *, block: int = USUAL_BLOCK) -> PivotedLU:
    """Return the factors of a matrix with its rows exchanged, by getrf. Collective. Source: scipy.linalg.lu_factor.

    The factors are one matrix: U with its diagonal, and below it L, whose diagonal is 1. A zero on the diagonal of U
    is no error.
    """
    job = ScalapackJob.begin("linalg.lu_factor", [a], block, any_shape, along=_PIVOTS)
    factors = job.transposed(a)
    length = min(a.shape)
    cyclic = Layout([job.layout.sharding_specs[1]], job.layout.mesh)
    local = None
    if job.is_inside:
        pivots = job.along_columns(factors, np.intc)
        if a.size:
            job.lu(factors, pivots)
        local = pivots[: cyclic.block_shape((length,), job.rank_session.device)[0]] - 1
    pivot_rows = make(local, cyclic, (length,), np.dtype(np.intc))
    return PivotedLU(factors.T, relayout(pivot_rows, Layout.replicated(a.mesh, 1)))


@refusable
def lu_solve(lu: tuple[DTensor, DTensor], b: DTensor, *, trans: int = 0, block: int = USUAL_BLOCK) -> DTensor:
    """Return x with ``a x = b`` from the result of `lu` for *a*, by getrs. Collective. Source: scipy.linalg.lu_solve.

    With *trans* 1 the transpose of *a* is solved, with 2 the transpose of its conjugate.
    """
    factors, pivot_rows = lu
    job = ScalapackJob.begin("linalg.lu_solve", [factors.T, b], block, check_square, f"{trans=}")
    lu_matrix, rhs = job.transposed(factors), job.transposed(b)
    local_pivots = relayout(pivot_rows, Layout([job.layout.sharding_specs[1]], job.layout.mesh))
    if job.is_inside and b.size:
        pivots = job.along_columns(lu_matrix, np.intc)
        pivots[: len(local_pivots._block)] = local_pivots._block + 1
        matrices = *job.matrix(lu_matrix), pivots, *job.matrix(rhs)
        job.call_checked("getrs", b.dtype, (b"N", b"T", b"C")[trans], *rhs.shape[::-1], *matrices)
    return rhs.T


@refusable
def cho_solve(factor: DTensor, b: DTensor, *, lower: bool = True, block: int = USUAL_BLOCK) -> DTensor:
    """Return x with ``a x = b`` from the Cholesky *factor* of *a*, by potrs. Collective.

    Source: scipy.linalg.cho_solve.
    The other triangle of *factor* than the *lower* or upper one is not read.
    """
    job = ScalapackJob.begin("linalg.cho_solve", [factor, b], block, check_square, f"{lower=}")
    factor_matrix, rhs = job.placed(factor), job.transposed(b)
    if job.is_inside and b.size:
        conjugate(rhs)  # ScaLAPACK sees the conjugate of a
        matrices = *job.matrix(factor_matrix), *job.matrix(rhs)
        job.call_checked("potrs", b.dtype, b"U" if lower else b"L", *rhs.shape[::-1], *matrices)
        conjugate(rhs)
    return rhs.T


@refusable
def solve_triangular(
    a: DTensor,
    b: DTensor,
    *,
    trans: int = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    block: int = USUAL_BLOCK,
) -> DTensor:
    """Return x with ``a x = b`` for a triangle of *a*, by trtrs. Collective. Source: scipy.linalg.solve_triangular.

    Parameters
    ----------
    a: a square matrix, of which one triangle is read
    b: a matrix with equally many rows
    trans: 1 for the transpose of *a*, 2 for the transpose of its conjugate
    lower: whether to read the lower triangle, not the upper one
    unit_diagonal: whether to take the diagonal for 1, and not to read it
    block: size of blocks, see the top of this module

    ``LinAlgError`` if there is a zero on the diagonal.
    """
    options = f"{trans=} {lower=} {unit_diagonal=}"
    job = ScalapackJob.begin("linalg.solve_triangular", [a, b], block, check_square, options)
    matrix, rhs = job.placed(a), job.transposed(b)
    if job.is_inside and b.size:
        if trans == 2:
            conjugate(rhs)
        flags = b"U" if lower else b"L", _TRANSPOSED[trans], b"U" if unit_diagonal else b"N"
        matrices = *job.matrix(matrix), *job.matrix(rhs)
        if not unit_diagonal:
            job.check_diagonal(matrix, "singular matrix: resolution failed at diagonal {0}")  # trtrs misses some
        job.call_checked("trtrs", a.dtype, *flags, *rhs.shape[::-1], *matrices)
        if trans == 2:
            conjugate(rhs)
    return rhs.T


@refusable
def lstsq(a: DTensor, b: DTensor, *, block: int = USUAL_BLOCK) -> DTensor:
    """Return x that makes the columns of ``b - a x`` shortest, by gels. Collective.

    With fewer rows than columns, it is the shortest x with ``a x = b``. *a* must have full rank: ``LinAlgError`` if a
    diagonal element of its triangular factor is as small as rounding errors. `svd` serves for all ranks.
    """
    job = ScalapackJob.begin("linalg.lstsq", [a, b], block, check_rows)
    (m, n), rhs_count = a.shape, b.shape[1]
    matrix, solution = job.placed(a), job.resized(job.transposed(b), (rhs_count, max(m, n)))
    if job.is_inside and a.size and b.size:
        conjugate(matrix)
        arguments = n, m, rhs_count, *job.matrix(matrix), *job.matrix(solution)
        job.call_in_workspace("gels", a.dtype, "w", b"C" if a.dtype.kind == "c" else b"T", *arguments)
        magnitudes = abs(job.diagonal(matrix)[0])
        bounds = np.array(job.all_gathered([float(magnitudes.min(initial=np.inf)), float(magnitudes.max(initial=0))]))
        cutoff = np.finfo(a.dtype).eps * max(m, n) * bounds[:, 1].max()
        raise_if(bool(bounds[:, 0].min() <= cutoff), "the matrix has not full rank")
    else:
        map_into(lambda block: block.fill(0), solution)
    return job.resized(solution, (rhs_count, n)).T
