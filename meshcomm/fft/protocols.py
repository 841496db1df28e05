"""numpy.fft and scipy.fft, called with tensors.

NumPy's protocol calls ours for functions of numpy.fft. SciPy's protocol, uarray, does so for functions of scipy.fft
after ``scipy.fft.set_backend(mc.fft)``.
"""

from collections.abc import Mapping
from inspect import signature

import numpy as np

from meshcomm.core._tracing import untraced
from meshcomm.core._types import Axis
from meshcomm.core.arrays.dtensor import DTensor, is_dtensor
from meshcomm.fft import fourier, spectra, trigonometric
from meshcomm.fft.apply import one_axis, transform_as_scipy
from meshcomm.fft.calls import Ints, axes_of, listed
from meshcomm.fft.execute import FFTOptions
from meshcomm.fft.kinds import full_name
from meshcomm.numpy.elementwise.signatures import Function, implements


def _along_one(name: str) -> Function:
    def transform(a: DTensor, n: int | None = None, axis: int = -1, norm: str | None = None) -> DTensor:
        return transform_as_scipy(name, a, one_axis(n, axis), FFTOptions(), None, norm=norm)

    return transform


def _along_several(name: str, default_axes: Axis = None) -> Function:
    kind = full_name(name)

    def transform(a: DTensor, s: Ints = None, axes: Ints = default_axes, norm: str | None = None) -> DTensor:
        axis_numbers = axes_of(axes, None if s is None else listed(s), np.ndim(a))
        lengths = [untraced(a).shape[axis] for axis in axis_numbers] if s is None else listed(s)
        if s is None and axis_numbers and kind == "irfftn":
            lengths[-1] = 2 * (lengths[-1] - 1)  # 0 for one frequency: NumPy refuses it, SciPy does not
            s, axes = lengths, axis_numbers
        if len(set(axis_numbers)) == len(axis_numbers):
            return transform_as_scipy(name, a, (s, axes), FFTOptions(), None, norm=norm)
        # NumPy transforms a repeated axis twice, in reverse order of the list, both times to the length that the array
        # had before.
        result, passes = a, list(zip(lengths, axis_numbers, strict=True))
        for number, (n, axis) in enumerate(passes if kind == "irfftn" else passes[::-1]):
            is_real_pass = {"rfftn": number == 0, "irfftn": number == len(passes) - 1}.get(kind, True)
            pass_kind = kind if is_real_pass else kind.replace("r", "", 1)
            result = transform_as_scipy(pass_kind, result, (n, axis), FFTOptions(), None, norm=norm)
        return result

    return transform


for _name in ("fft", "ifft", "rfft", "irfft"):
    implements(getattr(np.fft, _name), partly=True)(_along_one(_name))
    implements(getattr(np.fft, f"{_name}2"), partly=True)(_along_several(f"{_name}2", (-2, -1)))
    implements(getattr(np.fft, f"{_name}n"), partly=True)(_along_several(f"{_name}n"))
implements(np.fft.hfft, partly=True)(_along_one("hfft"))
implements(np.fft.ihfft, partly=True)(_along_one("ihfft"))
implements(np.fft.fftshift, partly=True)(spectra.fftshift)
implements(np.fft.ifftshift, partly=True)(spectra.ifftshift)


class ScipyBackend:
    """Lets the functions of scipy.fft take tensors: ``with scipy.fft.set_backend(mc.fft): ...``."""

    __ua_domain__ = "numpy.scipy.fft"

    def __ua_function__(self, method: Function, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Return the result of *method*, a function of scipy.fft, for a tensor; NotImplemented for arrays."""
        arguments = signature(method).bind(*args, **kwargs).arguments
        name = getattr(method, "__name__", "")
        modules = (fourier, trigonometric, spectra)
        function = next((vars(module)[name] for module in modules if name in vars(module)), None)
        if function is None or not is_dtensor(untraced(arguments.get("x"))):
            return NotImplemented
        if arguments.pop("plan", None) is not None:
            raise NotImplementedError(f"scipy.fft.{name} of DTensors takes no plan=; see meshcomm.fft.plan")
        return function(**arguments)


scipy_backend = ScipyBackend()
"""For ``scipy.fft.set_backend``, as the module meshcomm.fft itself is."""
