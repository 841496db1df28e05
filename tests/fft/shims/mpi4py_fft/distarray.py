"""Blocks to fill."""

import numpy as np


def newDistArray(pfft, forward_output=True, val=0):  # noqa: N802 - mpi4py-fft's name
    """Return an array for the input or the output of a transform."""
    pencil = pfft.pencil[forward_output]
    return np.full(pencil.subshape, val, pfft.dtype(forward_output))
