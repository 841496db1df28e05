"""Fourier transforms of tensors along any axes, in any layouts, with SciPy's names and arguments."""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.fft.fourier import fft as fft
from meshcomm.fft.fourier import fft2 as fft2
from meshcomm.fft.fourier import fftn as fftn
from meshcomm.fft.fourier import hfft as hfft
from meshcomm.fft.fourier import hfft2 as hfft2
from meshcomm.fft.fourier import hfftn as hfftn
from meshcomm.fft.fourier import ifft as ifft
from meshcomm.fft.fourier import ifft2 as ifft2
from meshcomm.fft.fourier import ifftn as ifftn
from meshcomm.fft.fourier import ihfft as ihfft
from meshcomm.fft.fourier import ihfft2 as ihfft2
from meshcomm.fft.fourier import ihfftn as ihfftn
from meshcomm.fft.fourier import irfft as irfft
from meshcomm.fft.fourier import irfft2 as irfft2
from meshcomm.fft.fourier import irfftn as irfftn
from meshcomm.fft.fourier import rfft as rfft
from meshcomm.fft.fourier import rfft2 as rfft2
from meshcomm.fft.fourier import rfftn as rfftn
from meshcomm.fft.gradients import transform_vjp as transform_vjp
from meshcomm.fft.planning import FFTPlan as FFTPlan
from meshcomm.fft.planning import plan as plan
from meshcomm.fft.protocols import scipy_backend as scipy_backend
from meshcomm.fft.resizing import crop_spectrum as crop_spectrum
from meshcomm.fft.resizing import pad_spectrum as pad_spectrum
from meshcomm.fft.spectra import fftfreq as fftfreq
from meshcomm.fft.spectra import fftshift as fftshift
from meshcomm.fft.spectra import frequencies as frequencies
from meshcomm.fft.spectra import ifftshift as ifftshift
from meshcomm.fft.spectra import rfftfreq as rfftfreq
from meshcomm.fft.trigonometric import dct as dct
from meshcomm.fft.trigonometric import dctn as dctn
from meshcomm.fft.trigonometric import dst as dst
from meshcomm.fft.trigonometric import dstn as dstn
from meshcomm.fft.trigonometric import idct as idct
from meshcomm.fft.trigonometric import idctn as idctn
from meshcomm.fft.trigonometric import idst as idst
from meshcomm.fft.trigonometric import idstn as idstn

# These make the module itself a backend for ``scipy.fft.set_backend``.
__ua_domain__, __ua_function__ = scipy_backend.__ua_domain__, scipy_backend.__ua_function__

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
