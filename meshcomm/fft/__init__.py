"""Fourier transforms of tensors along any axes, in any layouts, with SciPy's names and arguments."""

import meshcomm.fft.gradients
from meshcomm.fft.fourier import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from meshcomm.fft.planning import FFTPlan, plan
from meshcomm.fft.protocols import scipy_backend
from meshcomm.fft.spectra import crop_spectrum, fftfreq, fftshift, frequencies, ifftshift, pad_spectrum, rfftfreq
from meshcomm.fft.trigonometric import dct, dctn, dst, dstn, idct, idctn, idst, idstn
