"""numpy.fft, whose functions take tensors."""

from numpy.fft import *  # noqa: F403
from numpy.fft import __all__ as __all__
