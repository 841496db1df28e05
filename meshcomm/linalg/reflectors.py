"""Householder reflectors of a block: its R factor, and products with its Q, which is never formed.

Q is ``I - V T V^H``: the columns of V are the vectors of the reflectors, and T is triangular. LAPACK computes V. T
comes from ``V^H V``: its strict upper triangle is that of the inverse of T ("Accumulating Householder transformations,
revisited", Joffrain et al., 2006). So a product with Q is two products of matrices, and takes less time than LAPACK's
own Q. Arithmetic is in double precision, as in NumPy's `linalg`.
"""

from functools import cached_property

import numpy as np

from meshcomm.core._types import Array, DType

_PANEL = 32  # columns that are eliminated before the others are updated
_ROWS = 4096  # rows that are read or conjugated at once


def arithmetic(dtype: DType) -> DType:
    """Return the dtype in which matrices of *dtype* are factored."""
    return np.dtype(complex if dtype.kind == "c" else float)


class Reflectors:
    """The reflectors that make *block* upper triangular; *r* is the triangle, with one row for each reflector."""

    def __init__(self, block: Array) -> None:
        factored, self._scales = np.linalg.qr(block.astype(arithmetic(block.dtype), copy=False), mode="raw")
        packed, count = factored.T, len(self._scales)  # R, and below its diagonal V
        self.r = np.triu(packed[:count])
        self._vectors = packed[:, :count]
        self._vectors[:count] = np.tril(self._vectors[:count], -1) + np.eye(count)

    def times(self, matrix: Array) -> Array:
        """Return the product of the first columns of Q and a matrix, which has at least one row for each reflector."""
        count = len(self._scales)
        top = matrix[:count]
        if not matrix.size:  # then T is not needed
            return np.empty((len(self._vectors), matrix.shape[1]))
        product: Array = self._vectors @ -(self._triangle @ (self._vectors[:count].conj().T @ top))
        product[:count] += top
        return product

    def adjoint_times(self, matrix: Array) -> tuple[Array, Array]:
        """Multiply the adjoint of Q by a matrix. Return the rows of R, and the sum of squares of each column below."""
        count = len(self._scales)
        product = matrix - self._vectors @ (self._triangle.conj().T @ _adjoint_times(self._vectors, matrix))
        return product[:count], squares(product[count:])

    @cached_property
    def _triangle(self) -> Array:
        """T, with zeros for reflectors that change nothing."""
        changing = np.flatnonzero(self._scales)
        index = np.ix_(changing, changing)
        inverse = np.triu(_adjoint_times(self._vectors, self._vectors), 1)[index]
        inverse[np.diag_indices(len(changing))] = 1 / self._scales[changing]
        triangle = np.zeros((len(self._scales),) * 2, inverse.dtype)
        triangle[index] = np.linalg.inv(inverse) if np.isfinite(inverse).all() else np.nan
        return triangle


def squares(matrix: Array) -> Array:
    """Return the sum of the squares of each column."""
    sums: Array = np.einsum("ij,ij->j", matrix.real, matrix.real)
    return sums + np.einsum("ij,ij->j", matrix.imag, matrix.imag) if matrix.dtype.kind == "c" else sums


def _adjoint_times(a: Array, b: Array) -> Array:
    if a.dtype.kind != "c":
        return np.asarray(a.T @ b)  # BLAS does half of the work if a is b
    product = np.zeros((a.shape[1], b.shape[1]), a.dtype)
    for start in range(0, len(a), _ROWS):  # so that there is no conjugate of all rows
        rows = slice(start, start + _ROWS)
        product += a[rows].conj().T @ b[rows]
    return product


# -- the signs of LAPACK ----------------------------------------------------------------------------------------------


def last_rows(block: Array, rows: Array, limit: int) -> Array:
    """Return the number of the last row that is not zero, for each column; -1 for a column of zeros.

    Parameters
    ----------
    block: some rows of a matrix
    rows: the number of each row in the matrix, ascending
    limit: largest number to return; later rows count as this one

    >>> last_rows(np.array([[0, 1, 1], [0, 0, 2], [0, 0, 3]]), np.array([1, 5, 6]), 4).tolist()
    [-1, 1, 4]
    """
    last_of_columns = np.full(block.shape[1], -1)
    columns, below_limit, stop, step = np.arange(block.shape[1]), int(np.searchsorted(rows, limit)), len(block), 1
    while stop > below_limit and len(columns):  # usually the last row is enough
        start = max(below_limit, stop - step)
        is_nonzero_column = (block[start:stop, columns] != 0).any(axis=0)
        last_of_columns[columns[is_nonzero_column]] = limit
        columns, stop, step = columns[~is_nonzero_column], start, min(4 * step, _ROWS)
    if below_limit:
        is_nonzero = block[:below_limit, columns] != 0
        last_nonzero = rows[below_limit - 1 - is_nonzero[::-1].argmax(axis=0)]
        last_of_columns[columns] = np.where(is_nonzero.any(axis=0), last_nonzero, -1)
    return last_of_columns


def signs(r: Array, top: Array, ends: Array) -> Array:
    """Return a sign for each row of *r*, so that it becomes the R of LAPACK, which works on the whole matrix.

    A reflector moves an element to the diagonal, and LAPACK gives it the opposite sign. An elimination of the first
    rows of the matrix minus R finds that element (Ballard et al., "Reconstructing Householder vectors from tall-skinny
    QR", 2014). If all elements below are zero, LAPACK reflects nothing, and keeps the sign.

    Parameters
    ----------
    r: an R factor of the matrix, with a real diagonal
    top: the first rows of the matrix, as many as *r* has
    ends: result of `last_rows` for the whole matrix
    """
    count, work, row_ends = len(r), top.copy(), ends.copy()
    result = np.ones(count)
    for start in range(0, count, _PANEL):
        stop = min(start + _PANEL, count)
        for j in range(start, stop):
            pivot, diagonal, subcolumn = work[j, j], r[j, j].real, work[j + 1 :, j]
            if row_ends[j] <= j and pivot.imag == 0:
                result[j] = -1 if (pivot.real < 0) != (diagonal < 0) else 1
                subcolumn[...] = 0
                continue
            # A reflector mixes rows j to row_ends[j] of all columns that have elements there.
            row_ends[j + 1 :] = np.where(
                row_ends[j + 1 :] >= j, np.maximum(row_ends[j + 1 :], row_ends[j]), row_ends[j + 1 :]
            )
            result[j] = 1 if np.signbit(pivot.real) != np.signbit(diagonal) else -1
            row = work[j, j:stop] - result[j] * r[j, j:stop]
            subcolumn[...] = subcolumn / row[0] if row[0] else 0
            work[j + 1 :, j + 1 : stop] -= np.outer(subcolumn, row[1:])
        trailing_rows = work[start:stop, stop:] - result[start:stop, None] * r[start:stop, stop:]
        for j in range(start, stop):
            trailing_rows[j + 1 - start :] -= np.outer(work[j + 1 : stop, j], trailing_rows[j - start])
        work[stop:, stop:] -= work[stop:, start:stop] @ trailing_rows
    return result
