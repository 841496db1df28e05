"""numpy.linalg, called with tensors: its functions find these by NumPy's protocol."""

import numpy as np

from meshcomm.linalg import functions, norms
from meshcomm.numpy.elementwise.signatures import table
from meshcomm.numpy.protocols import define

define(
    table(
        *[
            (getattr(np.linalg, name), getattr(module, name))
            for module, names in (
                (functions, "solve inv det slogdet lstsq cholesky qr svd svdvals eigh eigvalsh eig eigvals pinv"),
                (functions, "tensorsolve tensorinv"),
                (norms, "norm matrix_norm vector_norm cond matrix_rank"),
            )
            for name in names.split()
        ]
    )
)
