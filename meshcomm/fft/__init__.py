"""Fourier transforms of tensors along any axes, in any layouts, with SciPy's names and arguments."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public
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
from meshcomm.fft.gradients import transform_vjp
from meshcomm.fft.planning import FFTPlan, plan
from meshcomm.fft.protocols import scipy_backend
from meshcomm.fft.resizing import crop_spectrum, pad_spectrum
from meshcomm.fft.spectra import fftfreq, fftshift, frequencies, ifftshift, rfftfreq
from meshcomm.fft.trigonometric import dct, dctn, dst, dstn, idct, idctn, idst, idstn

__all__ = [
    "FFTPlan",
    "crop_spectrum",
    "dct",
    "dctn",
    "dst",
    "dstn",
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "frequencies",
    "hfft",
    "hfft2",
    "hfftn",
    "idct",
    "idctn",
    "idst",
    "idstn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "pad_spectrum",
    "plan",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
    "scipy_backend",
    "transform_vjp",
]

# What makes the module itself a backend for ``scipy.fft.set_backend``.
__ua_domain__, __ua_function__ = scipy_backend.__ua_domain__, scipy_backend.__ua_function__

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
