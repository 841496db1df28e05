"""The linalg extension of the array API standard: numpy.linalg's functions, called with tensors by NumPy's protocol.

What moves, and the layout of a result, is as with NumPy's function: see docs/linear-algebra.md.
"""

import typing as _typing

import numpy as _np

from meshcomm.array_api import functions as _functions

_numpys: _typing.Any = _np.linalg

cholesky: _functions.One = _numpys.cholesky
cross: _functions.One = _numpys.cross
det: _functions.One = _numpys.det
diagonal: _functions.One = _numpys.diagonal
eig = _functions.eig
eigh: _functions.Several = _numpys.eigh
eigvals = _functions.eigvals
eigvalsh: _functions.One = _numpys.eigvalsh
inv: _functions.One = _numpys.inv
matmul: _functions.One = _numpys.matmul
matrix_norm: _functions.One = _numpys.matrix_norm
matrix_power: _functions.One = _numpys.matrix_power
matrix_rank: _functions.One = _numpys.matrix_rank
matrix_transpose: _functions.One = _numpys.matrix_transpose
outer: _functions.One = _numpys.outer
pinv = _functions.pinv
qr: _functions.Several = _numpys.qr
slogdet: _functions.Several = _numpys.slogdet
solve: _functions.One = _numpys.solve
svd: _functions.Several = _numpys.svd
svdvals: _functions.One = _numpys.svdvals
tensordot: _functions.One = _numpys.tensordot
trace: _functions.One = _numpys.trace
vecdot: _functions.One = _numpys.vecdot
vector_norm: _functions.One = _numpys.vector_norm

if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_"]
