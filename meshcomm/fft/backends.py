"""Libraries that transform the arrays of one process: SciPy by default, NumPy without it, and others by name."""

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

import numpy as np

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Array
from meshcomm.errors import MeshcommError, ShapeError
from meshcomm.fft.kinds import Transform

_IN_SCIPY = "SciPy has it: backend='scipy', pip install scipy"


class FFTBackend(Protocol):
    """A library that transforms arrays."""

    name: str

    def check(self, transform: Transform) -> None:
        """Raise ``MeshcommError`` if the library lacks the kind of *transform*."""

    def apply(self, transform: Transform, array: Array, overwrite: bool, workers: int | None) -> Array:
        """Return the transform of *array*; with *overwrite*, the result may use its memory."""


class _ScipyLike:
    """A module with the functions of scipy.fft."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name, self._module = name, module

    def check(self, transform: Transform) -> None:
        _function(self._module, self.name, transform.kind, transform.name)

    def apply(self, transform: Transform, array: Array, overwrite: bool, workers: int | None) -> Array:
        options: dict[str, bool | int | None] = {"overwrite_x": overwrite, "workers": workers}
        function = _function(self._module, self.name, transform.kind, transform.name)
        variant = (transform.variant,) if transform.change == "same_dtype" else ()
        if variant and transform.orthogonalize is not None:  # not all libraries know it
            options["orthogonalize"] = transform.orthogonalize
        return np.asarray(function(array, *variant, transform.lengths, transform.axes, transform.norm, **options))


class _Numpy:
    """numpy.fft, which has no cosines and sines."""

    name = "numpy"

    def check(self, transform: Transform) -> None:
        if transform.change == "same_dtype":
            _function(np.fft, self.name, transform.kind, transform.name)

    def apply(self, transform: Transform, array: Array, overwrite: bool, workers: int | None) -> Array:
        lengths, axes, norm = transform.lengths, transform.axes, transform.norm
        dtype = transform.dtype_after(array.dtype)
        opposite_norm = {"forward": "backward", "ortho": "ortho"}.get(norm or "", "forward")
        if transform.kind == "hfftn":
            result = _function(np.fft, self.name, "irfftn")(np.conj(array), lengths, axes, opposite_norm)
        elif transform.kind == "ihfftn":
            result = np.conj(_function(np.fft, self.name, "rfftn")(array, lengths, axes, opposite_norm))
        else:
            result = _function(np.fft, self.name, transform.kind, transform.name)(array, lengths, axes, norm)
        return np.asarray(result).astype(dtype, copy=False)


class _Ducc:
    """ducc0.fft, the C++ library behind SciPy's and NumPy's transforms."""

    name = "ducc0"

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def check(self, transform: Transform) -> None:
        if transform.change == "same_dtype":
            raise MeshcommError(f"the FFT backend 'ducc0' has no {transform.name} here; {_IN_SCIPY}")

    def apply(self, transform: Transform, array: Array, overwrite: bool, workers: int | None) -> Array:
        module, axes, forward = self._module, transform.axes, not transform.kind.startswith("i")
        threads = threads_of(workers)
        inorm = {"ortho": 1, "forward": 2 if forward else 0}.get(transform.norm or "", 0 if forward else 2)
        sizes = list(transform.lengths)
        if transform.change == "doubles":
            sizes[-1] = sizes[-1] // 2 + 1
        padded = _pad_or_crop(array, axes, sizes)
        if transform.change == "complex":
            complex_array = padded.astype(transform.dtype_after(array.dtype), copy=False)
            return np.asarray(module.c2c(complex_array, axes=axes, forward=forward, inorm=inorm, nthreads=threads))
        if transform.change == "halves":
            return np.asarray(module.r2c(padded, axes=axes, forward=forward, inorm=inorm, nthreads=threads))
        options = {"lastsize": transform.lengths[-1], "forward": forward, "inorm": inorm, "nthreads": threads}
        complex_array = padded.astype(np.result_type(array.dtype, np.complex64), copy=False)
        return np.asarray(module.c2r(complex_array, axes=axes, **options))


def threads_of(workers: int | None) -> int:
    """Return the number of threads for *workers*: negative numbers count from all cores of this host, as in SciPy."""
    cores = os.cpu_count() or 1
    threads = 1 if workers is None else as_integer(workers, "workers", ShapeError)
    if not (threads >= 1 or -cores <= threads <= -1):
        raise ShapeError(
            f"workers={workers}: there must be 1 or more, or None for one; below 0 they count from all {cores} cores"
        )
    return threads if threads > 0 else threads + cores + 1


def _pad_or_crop(array: Array, axes: tuple[int, ...], lengths: list[int]) -> Array:
    """Return *array* cropped, or padded with zeros, to *lengths* along *axes*."""
    sizes = dict(zip(axes, lengths, strict=True))
    cropped = array[tuple(slice(sizes.get(axis)) for axis in range(array.ndim))]
    pad_widths = [(0, 0)] * array.ndim
    for axis, n in sizes.items():
        pad_widths[axis] = 0, n - cropped.shape[axis]
    return np.pad(cropped, pad_widths) if any(n for _, n in pad_widths) else cropped


def _function(module: ModuleType, name: str, kind: str, display_name: str = "") -> Callable[..., Array]:
    """Return the function *kind* of the backend *name*; errors call it *display_name*."""
    function: Callable[..., Array] | None = getattr(module, kind, None)
    if function is None:
        raise MeshcommError(f"the FFT backend {name!r} has no {display_name or kind}; {_IN_SCIPY}")
    return function


_MODULES = {"scipy": "scipy.fft", "pyfftw": "pyfftw.interfaces.scipy_fft", "mkl_fft": "mkl_fft.interfaces.scipy_fft"}


_KNOWN = "scipy", "numpy", "pyfftw", "mkl_fft", "ducc0"


def backend_of(name: str | None) -> FFTBackend:
    """Return the library of this name; by default SciPy, or NumPy where SciPy is not installed.

    ``MeshcommError`` for an unknown name, or a library that is not installed.
    """
    if name is not None and not (isinstance(name, str) and name in _KNOWN):
        raise MeshcommError(f"backend must be one of {', '.join(_KNOWN)}, not {quote(name)}")
    return _backend(name)


@lru_cache
def _backend(name: str | None) -> FFTBackend:
    if name is None:
        name = "scipy" if find_spec("scipy") is not None else "numpy"
    if name == "numpy":
        return _Numpy()
    try:
        return (
            _Ducc(import_module("ducc0.fft")) if name == "ducc0" else _ScipyLike(name, import_module(_MODULES[name]))
        )
    except ImportError as error:
        raise MeshcommError(f"the FFT backend {name!r} is not installed ({error}): pip install {name}") from None
