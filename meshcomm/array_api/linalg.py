"""The linalg extension of the array API standard: numpy.linalg's functions, called with tensors by NumPy's protocol.

What moves, and the layout of a result, is as with NumPy's function: see docs/linear-algebra.md.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.array_api.functions import matmul, matrix_transpose, tensordot, vecdot
from meshcomm.core._types import Axis
from meshcomm.core.arrays.dtensor import DTensor

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

_numpys: Any = np.linalg  # by NumPy's protocol it returns tensors


# -- decompositions ---------------------------------------------------------------------------------------------------


def cholesky(x: DTensor, /, *, upper: bool = False) -> DTensor:
    """Return the lower or *upper* Cholesky factors of matrices. Collective if they are sharded."""
    made: DTensor = _numpys.cholesky(x, upper=upper)
    return made


def eig(x: DTensor, /) -> tuple[DTensor, DTensor]:
    """Return eigenvalues and eigenvectors of square matrices, as complex numbers. Collective if they are sharded."""
    found: Any = _numpys.eig(x)
    made: tuple[DTensor, DTensor] = found._make(map(_as_complex, found))  # of NumPy's kind
    return made


def eigh(x: DTensor, /) -> tuple[DTensor, DTensor]:
    """Return eigenvalues and eigenvectors of Hermitian matrices. Collective if they are sharded."""
    made: tuple[DTensor, DTensor] = _numpys.eigh(x)
    return made


def eigvals(x: DTensor, /) -> DTensor:
    """Return the eigenvalues of square matrices, as complex numbers. Collective if they are sharded."""
    return _as_complex(_numpys.eigvals(x))


def _as_complex(x: DTensor) -> DTensor:
    return x.astype(np.result_type(x.dtype, np.complex64), copy=False)


def eigvalsh(x: DTensor, /) -> DTensor:
    """Return the eigenvalues of Hermitian matrices, smallest first. Collective if they are sharded."""
    made: DTensor = _numpys.eigvalsh(x)
    return made


def qr(x: DTensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> tuple[DTensor, DTensor]:
    """Return the QR decomposition of matrices. Collective if they are sharded."""
    made: tuple[DTensor, DTensor] = _numpys.qr(x, mode=mode)
    return made


def svd(x: DTensor, /, *, full_matrices: bool = True) -> tuple[DTensor, DTensor, DTensor]:
    """Return the singular value decomposition of matrices: U, S and Vh. Collective if they are sharded."""
    made: tuple[DTensor, DTensor, DTensor] = _numpys.svd(x, full_matrices=full_matrices)
    return made


def svdvals(x: DTensor, /) -> DTensor:
    """Return the singular values of matrices, largest first. Collective if they are sharded."""
    made: DTensor = _numpys.svdvals(x)
    return made


# -- systems of equations ---------------------------------------------------------------------------------------------


def det(x: DTensor, /) -> DTensor:
    """Return the determinants of square matrices. Collective if they are sharded."""
    made: DTensor = _numpys.det(x)
    return made


def inv(x: DTensor, /) -> DTensor:
    """Return the inverses of square matrices. Collective if they are sharded."""
    made: DTensor = _numpys.inv(x)
    return made


def pinv(x: DTensor, /, *, rtol: ArrayLike | DTensor | None = None) -> DTensor:
    """Return the pseudo-inverses of matrices. Collective if they are sharded.

    Singular values up to *rtol* times the largest one count as zero; by default the precision times the longer side.
    """
    made: DTensor = _numpys.pinv(x, rtol=rtol)
    return made


def slogdet(x: DTensor, /) -> tuple[DTensor, DTensor]:
    """Return signs of determinants, and logarithms of their absolute values. Collective if matrices are sharded."""
    made: tuple[DTensor, DTensor] = _numpys.slogdet(x)
    return made


def solve(x1: DTensor, x2: DTensor, /) -> DTensor:
    """Return x with ``x1 @ x = x2``; *x2* is a vector if it has one axis. Collective if an operand is sharded."""
    made: DTensor = _numpys.solve(x1, x2)
    return made


# -- norms and products -----------------------------------------------------------------------------------------------


def matrix_norm(x: DTensor, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] = "fro") -> DTensor:
    """Return norms of matrices. Collective if they are sharded."""
    made: DTensor = _numpys.matrix_norm(x, keepdims=keepdims, ord=ord)
    return made


def matrix_rank(x: DTensor, /, *, rtol: ArrayLike | DTensor | None = None) -> DTensor:
    """Return the ranks of matrices. Collective if they are sharded.

    Singular values up to *rtol* times the largest one count as zero; by default the precision times the longer side.
    """
    made: DTensor = _numpys.matrix_rank(x, rtol=rtol)
    return made


def vector_norm(x: DTensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> DTensor:
    """Return norms of vectors along *axis*; by default all elements are one vector. Collective if it is sharded."""
    made: DTensor = _numpys.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    return made


def cross(x1: DTensor, x2: DTensor, /, *, axis: int = -1) -> DTensor:
    """Return the cross products of vectors of three components along *axis*. Collective if an operand is sharded."""
    made: DTensor = _numpys.cross(x1, x2, axis=axis)
    return made


def matrix_power(x: DTensor, n: int, /) -> DTensor:
    """Return square matrices to the power *n*. Collective if they are sharded."""
    made: DTensor = _numpys.matrix_power(x, n)
    return made


def outer(x1: DTensor, x2: DTensor, /) -> DTensor:
    """Return the products of all elements of two vectors. Collective if one of them is sharded."""
    made: DTensor = _numpys.outer(x1, x2)
    return made


# -- diagonals --------------------------------------------------------------------------------------------------------


def diagonal(x: DTensor, /, *, offset: int = 0) -> DTensor:
    """Return the diagonals of matrices, *offset* columns right of the main one."""
    made: DTensor = _numpys.diagonal(x, offset=offset)
    return made


def trace(x: DTensor, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> DTensor:
    """Return the sums of `diagonal`. Collective over the mesh if the diagonal is sharded."""
    made: DTensor = _numpys.trace(x, offset=offset, dtype=dtype)
    return made
