"""The fft extension of the array API standard: numpy.fft's functions, called with tensors by NumPy's protocol.

The layout of a result is that after the last local transform: see docs/fft.md.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.array_api.devices import Device, layout_on
from meshcomm.core._arguments import as_dtype, integer
from meshcomm.core._types import Array, Axis
from meshcomm.core.arrays.create import from_callback
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.errors import ShapeError

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

Norm = Literal["backward", "ortho", "forward"]
Lengths = Sequence[int] | None
Axes = Sequence[int] | None


def _call(function: Callable[..., object], *args: object) -> DTensor:
    made: DTensor = function(*args)  # type: ignore[assignment]  # by NumPy's protocol
    return made


def fft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the Fourier transform along one axis. Collective if it is sharded."""
    return _call(np.fft.fft, x, n, axis, norm)


def ifft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the inverse of `fft`. Collective if it is sharded."""
    return _call(np.fft.ifft, x, n, axis, norm)


def rfft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the first half of the Fourier transform of real numbers along one axis. Collective if it is sharded."""
    return _call(np.fft.rfft, x, n, axis, norm)


def irfft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the inverse of `rfft`. Collective if it is sharded."""
    return _call(np.fft.irfft, x, n, axis, norm)


def hfft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the real Fourier transform of a Hermitian signal along one axis. Collective if it is sharded."""
    return _call(np.fft.hfft, x, n, axis, norm)


def ihfft(x: DTensor, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> DTensor:
    """Return the inverse of `hfft`. Collective if it is sharded."""
    return _call(np.fft.ihfft, x, n, axis, norm)


def fftn(x: DTensor, /, *, s: Lengths = None, axes: Axes = None, norm: Norm = "backward") -> DTensor:
    """Return the Fourier transform along some axes. Collective if one of them is sharded."""
    return _call(np.fft.fftn, x, s, axes, norm)


def ifftn(x: DTensor, /, *, s: Lengths = None, axes: Axes = None, norm: Norm = "backward") -> DTensor:
    """Return the inverse of `fftn`. Collective if one of them is sharded."""
    return _call(np.fft.ifftn, x, s, axes, norm)


def rfftn(x: DTensor, /, *, s: Lengths = None, axes: Axes = None, norm: Norm = "backward") -> DTensor:
    """Return the Fourier transform of real numbers; the last axis is halved. Collective if one is sharded."""
    return _call(np.fft.rfftn, x, s, axes, norm)


def irfftn(x: DTensor, /, *, s: Lengths = None, axes: Axes = None, norm: Norm = "backward") -> DTensor:
    """Return the inverse of `rfftn`. Collective if one of them is sharded."""
    return _call(np.fft.irfftn, x, s, axes, norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return the frequencies of the elements of a spectrum of *n* elements."""
    return _frequencies(np.fft.fftfreq(integer(n, "n", ShapeError), d), dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return the frequencies of the elements of the first half of a spectrum of *n* elements."""
    return _frequencies(np.fft.rfftfreq(integer(n, "n", ShapeError), d), dtype, device)


def _frequencies(values: Array, dtype: DTypeLike | None, device: Device | None) -> DTensor:
    kind = values.dtype if dtype is None else as_dtype(dtype)
    return from_callback(values.shape, kind, layout_on(device, 1), lambda slices: values[slices])


def fftshift(x: DTensor, /, *, axes: Axis = None) -> DTensor:
    """Return a spectrum with frequency zero in the middle. Collective if a shifted axis is sharded."""
    return _call(np.fft.fftshift, x, axes)


def ifftshift(x: DTensor, /, *, axes: Axis = None) -> DTensor:
    """Return the inverse of `fftshift`. Collective if a shifted axis is sharded."""
    return _call(np.fft.ifftshift, x, axes)
