"""The fft extension of the array API standard: numpy.fft's functions, called with tensors by NumPy's protocol.

The layout of a result is that after the last local transform: see docs/fft.md.
"""

import typing as _typing

import numpy as _np

from meshcomm.array_api import creation as _creation
from meshcomm.array_api import functions as _functions

_numpys: _typing.Any = _np.fft

fft: _functions.One = _numpys.fft
fftfreq = _creation.fftfreq
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
rfftfreq = _creation.rfftfreq
rfftn: _functions.One = _numpys.rfftn

if not _typing.TYPE_CHECKING:
    __all__ = [name for name in dir() if name[0] != "_"]
