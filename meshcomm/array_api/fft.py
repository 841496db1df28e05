"""The fft extension of the array API standard: numpy.fft's functions, called with tensors by NumPy's protocol.

The layout of a result is that after the last local transform: see docs/fft.md.
"""

import typing as _typing

import numpy as _np

from meshcomm.array_api import functions as _functions
from meshcomm.numpy import fft as _fft

_numpys: _typing.Any = _np.fft
_ours: _typing.Any = _fft

fft: _functions.One = _numpys.fft
fftfreq: _functions.One = _ours.fftfreq
fftn: _functions.One = _numpys.fftn
fftshift: _functions.One = _numpys.fftshift
hfft: _functions.One = _numpys.hfft
ifft: _functions.One = _numpys.ifft
ifftn: _functions.One = _numpys.ifftn
ifftshift: _functions.One = _numpys.ifftshift
ihfft: _functions.One = _numpys.ihfft
irfft: _functions.One = _numpys.irfft
irfftn: _functions.One = _numpys.irfftn
rfft: _functions.One = _numpys.rfft
rfftfreq: _functions.One = _ours.rfftfreq
rfftn: _functions.One = _numpys.rfftn

if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_"]
