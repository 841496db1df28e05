"""numpy.linalg, called with tensors: its functions find these by NumPy's protocol."""

import numpy as np

from meshcomm.linalg import functions, norms
from meshcomm.numpy.elementwise.signatures import implements

for module, names in (
    (functions, "solve inv det slogdet lstsq cholesky qr svd svdvals eigh eigvalsh eig eigvals pinv"),
    (functions, "tensorsolve tensorinv"),
    (norms, "norm matrix_norm vector_norm cond matrix_rank"),
):
    for name in names.split():  # svdvals, matrix_norm and vector_norm came with NumPy 2
        implements(getattr(np.linalg, name, None), partly=True)(getattr(module, name))
