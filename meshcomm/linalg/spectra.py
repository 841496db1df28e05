"""Decompositions of matrices too large for one rank, by ScaLAPACK: see `meshcomm.linalg.large`."""

from typing import Literal, NamedTuple

import numpy as np

from meshcomm.blocks.make import map_into
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.linalg.block_cyclic import USUAL_BLOCK
from meshcomm.linalg.jobs import ScalapackJob, conjugate, raise_if
from meshcomm.linalg.library import Argument
from meshcomm.linalg.routines import any_shape, check_square, clear_triangle, real_of

_NO_EIGENVALUES = "Eigenvalues did not converge"
_NO_SVD = "SVD did not converge"


class EigH(NamedTuple):
    """Result of `eigh`: eigenvalues in ascending order, on all ranks, and eigenvectors as columns."""

    eigenvalues: DTensor
    eigenvectors: DTensor


class QR(NamedTuple):
    """Result of `qr`; *q* is None in mode ``r``."""

    q: DTensor | None
    r: DTensor


class SVD(NamedTuple):
    """Result of `svd`; the singular values, the largest first, are on all ranks."""

    u: DTensor | None
    s: DTensor
    vh: DTensor | None


@refusable
def eigh(
    a: DTensor,
    UPLO: str = "L",  # noqa: N803
    *,
    subset_by_index: tuple[int, int] | None = None,
    block: int = USUAL_BLOCK,
) -> EigH:
    """Return eigenvalues and eigenvectors of a symmetric or Hermitian matrix. Collective.

    It is by syevd or heevd, or by syevr or heevr for a subset. Sources: numpy.linalg.eigh, scipy.linalg.eigh.

    Parameters
    ----------
    a: a square matrix
    UPLO: triangle of *a* to read, ``L`` or ``U``
    subset_by_index: numbers of the first and the last eigenvalue to return, counted from 0
    block: size of blocks, see `meshcomm.linalg.large`

    ``LinAlgError`` if the iterations do not converge, or the matrix has infinity or NaN in it.
    """
    job = ScalapackJob.begin("linalg.eigh", [a], block, check_square, f"{UPLO=} {subset_by_index=}", in_order=True)
    real_dtype, n = real_of(a.dtype), a.shape[0]
    first_number, last_number = subset_by_index or (0, n - 1)
    matrix = job.placed(a)
    values: Array = np.zeros(n, real_dtype)
    vectors = job.resized(matrix, (n, n))
    if job.is_inside and n:
        job.check_finite(matrix, _NO_EIGENVALUES)
        arguments: list[Argument] = [_letter_in_transpose(UPLO), n, *job.matrix(matrix)]
        if subset_by_index is None:
            routine, letters = ("heevd", "wri") if a.dtype.kind == "c" else ("syevd", "wi")
            arguments = [b"V", *arguments, values, *job.matrix(vectors)]
        else:
            routine, letters = ("heevr", "wri") if a.dtype.kind == "c" else ("syevr", "wi")
            bounds, counts = np.zeros(1, real_dtype), np.zeros(2, np.intc)
            subset_arguments = bounds, bounds, first_number + 1, last_number + 1, counts[:1], counts[1:]
            arguments = [b"V", b"I", *arguments, *subset_arguments, values, *job.matrix(vectors)]
        panels = job.panels(matrix)
        info = job.call_in_workspace(routine, a.dtype, letters, *arguments, at_least=panels)
        raise_if(info > 0, _NO_EIGENVALUES)
        conjugate(vectors)  # ScaLAPACK sees the conjugate of a
    if subset_by_index is not None:
        values, vectors = (
            values[: last_number + 1 - first_number],
            job.resized(vectors, (last_number + 1 - first_number, n)),
        )
    return EigH(job.replicated(values), vectors.T)


@refusable
def eigvalsh(a: DTensor, UPLO: str = "L", *, block: int = USUAL_BLOCK) -> DTensor:  # noqa: N803
    """Return the eigenvalues that `eigh` returns, by syev or heev, in less time. Collective."""
    job = ScalapackJob.begin("linalg.eigvalsh", [a], block, check_square, f"{UPLO=}", in_order=True)
    matrix, values = job.placed(a), np.zeros(a.shape[0], real_of(a.dtype))
    if job.is_inside and a.size:
        job.check_finite(matrix, _NO_EIGENVALUES)
        routine, letters = ("heev", "wr") if a.dtype.kind == "c" else ("syev", "w")
        matrix_arguments = job.matrix(matrix)
        arguments = b"N", _letter_in_transpose(UPLO), a.shape[0], *matrix_arguments, values, *matrix_arguments
        panels = job.panels(matrix)
        info = job.call_in_workspace(routine, a.dtype, letters, *arguments, at_least=panels)
        raise_if(info > 0, _NO_EIGENVALUES)
    return job.replicated(values)


@refusable
def svd(a: DTensor, *, compute_uv: bool = True, block: int = USUAL_BLOCK) -> SVD:
    """Return the singular value decomposition of a matrix, by gesvd. Collective.

    U has as many columns, and V^H as many rows, as there are singular values. Without *compute_uv* both are None.
    ``LinAlgError`` if the iterations do not converge, or the matrix has infinity or NaN in it.
    """
    job = ScalapackJob.begin("linalg.svd", [a], block, any_shape, f"{compute_uv=}")
    (m, n), length = a.shape, min(a.shape)
    matrix, values = job.placed(a), np.zeros(length, real_of(a.dtype))
    u, vh = (job.resized(matrix, shape if compute_uv else (0, 0)) for shape in ((m, length), (length, n)))
    if job.is_inside and a.size:
        job.check_finite(matrix, _NO_SVD)
        job_letter = b"V" if compute_uv else b"N"
        vector_arguments = (*job.matrix(vh), *job.matrix(u)) if compute_uv else job.matrix(matrix) * 2
        arguments = job_letter, job_letter, n, m, *job.matrix(matrix), values, *vector_arguments
        letters = "wR" if a.dtype.kind == "c" else "w"
        info = job.call_in_workspace("gesvd", a.dtype, letters, *arguments, at_least=job.panels(matrix))
        raise_if(info > 0, _NO_SVD)
    s = job.replicated(values)
    return SVD(u, s, vh) if compute_uv else SVD(None, s, None)


@refusable
def qr(a: DTensor, mode: Literal["reduced", "complete", "r"] = "reduced", *, block: int = USUAL_BLOCK) -> QR:
    """Return Q and R with ``a = Q R``, by gelqf, and orglq or unglq. Collective. Source: numpy.linalg.qr.

    Q has as many columns as R has rows: the shorter side of *a*, or with *mode* ``complete`` its rows. With *mode*
    ``r`` it is None.
    """
    job = ScalapackJob.begin("linalg.qr", [a], block, any_shape, f"{mode=}", along=1)  # reflections work on columns
    (m, n), length = a.shape, min(a.shape)
    factors = job.placed(a)
    reflections = None
    if job.is_inside and a.size:
        reflections = job.along_columns(factors, a.dtype)
        job.call_in_workspace("gelqf", a.dtype, "w", n, m, *job.matrix(factors), reflections)
    rows = m if mode == "complete" else length
    r = job.resized(factors, (rows, n))
    if job.is_inside:
        clear_triangle(r, lower=False)
    if mode == "r":
        return QR(None, r)
    q = job.resized(factors, (m, rows))
    if job.is_inside and reflections is not None:
        routine = "unglq" if a.dtype.kind == "c" else "orglq"
        arguments = rows, m, length, *job.matrix(q), reflections
        job.call_in_workspace(routine, a.dtype, "w", *arguments)
    else:
        map_into(lambda block: np.putmask(block, np.equal.outer(job.indices(q, 0), job.indices(q, 1)), 1), q)
    return QR(q, r)


def _letter_in_transpose(triangle: str) -> bytes:
    """Return the letter of the same *triangle* in the transpose, as ScaLAPACK sees it."""
    return b"U" if triangle == "L" else b"L"
