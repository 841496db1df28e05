"""What each name of `meshcomm.numpy` is: NumPy's own, one of ours, or an error that says what to use."""

from importlib import import_module
from typing import Any

import numpy as np

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_alone, is_scripted
from meshcomm.numpy.namespace import creation, files, grids
from meshcomm.numpy.namespace.arrays import ScriptArray

_numpys: Any = np
SUBMODULES = ("fft", "linalg", "random", "testing")
"""Modules of NumPy that are modules here, too."""


class _Arrays(type):
    """What ``isinstance(x, ndarray)`` asks: tensors are arrays, and NumPy's arrays are."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, DTensor | np.ndarray)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, DTensor | np.ndarray)

    def __getattr__(cls, name: str) -> object:
        return getattr(np.ndarray, name)

    def __call__(cls, shape: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> object:
        """Return an array with any content; NumPy's own if it is to lie in a buffer."""
        if args or kwargs.keys() - {"order"}:
            return np.ndarray(shape, dtype, *args, **kwargs)
        return creation.empty(shape, dtype)


class ndarray(metaclass=_Arrays):  # noqa: N801 - NumPy's name
    """Tensors, and NumPy's arrays: for ``isinstance``. A class of its own has NumPy's arrays as its base."""

    __module__ = "meshcomm.numpy"

    def __class_getitem__(cls, item: Any) -> object:
        return np.ndarray[item]

    def __init_subclass__(cls) -> None:
        raise TypeError("tensors have no classes of their own: use numpy.ndarray of NumPy itself as the base")


OWN = {**creation.OWN, **files.OWN, "ndarray": ndarray}
"""What is ours, by NumPy's names."""


def named(name: str) -> object:
    """Return what *name* of NumPy is here. In a script on one rank, no array is cut, and all are NumPy's own."""
    if is_alone() and name != "random":
        return getattr(_numpys, name)
    if is_scripted() and name == "ndarray":
        return ScriptArray
    if name in SUBMODULES:
        return import_module(f"meshcomm.numpy.{name}")
    if name in OWN:
        return OWN[name]
    if name in ("mgrid", "ogrid"):
        return grids.Grid(name)
    if name in ("r_", "c_"):
        return grids.Joined(name)
    return getattr(_numpys, name)
