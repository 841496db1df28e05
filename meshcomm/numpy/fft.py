"""numpy.fft, whose functions take tensors, and the frequencies of spectra as tensors."""

import typing as _typing

import numpy as _np
from numpy.fft import *  # noqa: F403
from numpy.fft import __all__ as __all__

from meshcomm.numpy.namespace.making import from_equal as _from_equal

_Any: _typing.TypeAlias = _typing.Any


def _frequencies(name: str) -> _Any:
    numpy_function = getattr(_np.fft, name)

    def frequencies(n: int, d: float = 1.0, device: _Any = None, *, dtype: _Any = None, layout: _Any = None) -> _Any:
        values = numpy_function(n, d)
        return _from_equal(values if dtype is None else values.astype(dtype), device if layout is None else layout)

    frequencies.__name__, frequencies.__doc__ = name, numpy_function.__doc__.partition(">>>")[0]
    return frequencies


if not _typing.TYPE_CHECKING:
    fftfreq, rfftfreq = _frequencies("fftfreq"), _frequencies("rfftfreq")
