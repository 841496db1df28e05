"""Names of transforms, for the argument *transforms* of `PFFT`."""

import numpy as np


def dctn(*args, **kwargs):
    """Stand for meshcomm.fft.dctn."""
    raise NotImplementedError("a name only")


def idctn(*args, **kwargs):
    """Stand for meshcomm.fft.idctn."""
    raise NotImplementedError("a name only")


def dstn(*args, **kwargs):
    """Stand for meshcomm.fft.dstn."""
    raise NotImplementedError("a name only")


def idstn(*args, **kwargs):
    """Stand for meshcomm.fft.idstn."""
    raise NotImplementedError("a name only")


def aligned_like(array):
    """Return an array like another."""
    return np.empty_like(array)


def get_fftw_lib(dtype):
    """Return whether there are transforms of this precision: there are."""
    return True
