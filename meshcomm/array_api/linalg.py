"""The linalg extension of the array API standard: numpy.linalg's functions, called with tensors by NumPy's protocol.

What moves, and the layout of a result, is as with NumPy's function: see docs/linear-algebra.md.
"""

import typing as _typing

import numpy as _np

from meshcomm.array_api import functions as _functions
from meshcomm.array_api.functions import functions_named as _named
from meshcomm.blocks.tensor_numpy import untyped_np as _untyped_np

cholesky, det, eigvalsh = _named(_np.linalg, "cholesky det eigvalsh")
inv, matrix_power, matrix_rank = _named(_np.linalg, "inv matrix_power matrix_rank")
solve, svdvals, trace = _named(_np.linalg, "solve svdvals trace")
diagonal, matrix_norm, vector_norm = _named(_np.linalg, "diagonal matrix_norm vector_norm")
cross, matmul, matrix_transpose = _named(_np.linalg, "cross matmul matrix_transpose")
outer, tensordot, vecdot = _named(_np.linalg, "outer tensordot vecdot")

eigh: _functions.ReturnsTensors = _untyped_np.linalg.eigh
qr: _functions.ReturnsTensors = _untyped_np.linalg.qr
slogdet: _functions.ReturnsTensors = _untyped_np.linalg.slogdet
svd: _functions.ReturnsTensors = _untyped_np.linalg.svd

eig = _functions.eig
eigvals = _functions.eigvals
pinv = _functions.pinv

if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_"]
