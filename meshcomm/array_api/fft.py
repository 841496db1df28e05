"""The fft extension of the array API standard: numpy.fft's functions, called with tensors by NumPy's protocol.

The layout of a result is that after the last local transform: see docs/fft.md.
"""

import typing as _typing

import numpy as _np

from meshcomm.array_api.functions import functions_named as _named
from meshcomm.numpy import fft as _fft

fft, fftn, ifft, ifftn, rfft = _named(_np.fft, "fft fftn ifft ifftn rfft")
rfftn, irfft, irfftn, hfft, ihfft = _named(_np.fft, "rfftn irfft irfftn hfft ihfft")
fftshift, ifftshift = _named(_np.fft, "fftshift ifftshift")
fftfreq, rfftfreq = _named(_fft, "fftfreq rfftfreq")

if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_"]
