"""Linear algebra on tensors with NumPy's and SciPy's names; :mod:`meshcomm.linalg.scalapack` calls ScaLAPACK itself.

The functions of numpy.linalg take tensors, too. Those here also take ``layout=``. `plan` tells which way they go.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public

if TYPE_CHECKING:
    from meshcomm.linalg import scalapack
    from meshcomm.linalg.choose import plan
    from meshcomm.linalg.functions import (
        cholesky,
        det,
        eig,
        eigh,
        eigvals,
        eigvalsh,
        inv,
        lstsq,
        pinv,
        qr,
        slogdet,
        solve,
        svd,
        svdvals,
        tensorinv,
        tensorsolve,
    )
    from meshcomm.linalg.norms import cond, matrix_norm, matrix_rank, norm, vector_norm
    from meshcomm.linalg.solvers import (
        cho_factor,
        cho_solve,
        lu_factor,
        lu_solve,
        solve_triangular,
        svd_randomized,
    )

_FROM = {
    "choose": "plan",
    "functions": (
        "cholesky det eig eigh eigvals eigvalsh inv lstsq pinv qr slogdet solve svd svdvals tensorinv tensorsolve"
    ),
    "norms": "cond matrix_norm matrix_rank norm vector_norm",
    "solvers": "cho_factor cho_solve lu_factor lu_solve solve_triangular svd_randomized",
}
"""The names that each module has: it is imported at its first use."""

__all__ = [
    "cho_factor",
    "cho_solve",
    "cholesky",
    "cond",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "matrix_norm",
    "matrix_rank",
    "norm",
    "pinv",
    "plan",
    "qr",
    "scalapack",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svd_randomized",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vector_norm",
]

if not TYPE_CHECKING:  # checkers know the imports above, and see misspelt names
    _missing, __dir__ = only_public(__name__, __all__)
    _MODULE_OF = {name: module for module, names in _FROM.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        if name in _MODULE_OF:
            return getattr(import_module(f"meshcomm.linalg.{_MODULE_OF[name]}"), name)
        if name in __all__:
            return import_module(f"meshcomm.linalg.{name}")
        return _missing(name)
