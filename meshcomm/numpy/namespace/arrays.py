"""The arrays that each rank has whole: NumPy's own, whose large results are cut.

NumPy computes with them, and libraries take them for its arrays. Two things are ours. A large result of small arrays,
such as that of a row and a column, becomes a tensor (`meshcomm.numpy.namespace._arrays`). And ``ndarray`` of
`meshcomm.numpy` is their class, which also takes tensors for its instances.
"""

import sys
import types
from abc import ABCMeta
from collections.abc import Callable
from functools import wraps
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._types import Array, ShapeLike
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import refuse_as_buffer
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import mesh_of_program
from meshcomm.numpy.namespace._arrays import Operated, array_function, array_wrap
from meshcomm.numpy.namespace.small_arrays import small_arrays


class _WholeArrayType(ABCMeta):
    """What ``isinstance(x, ndarray)``, ``type(x) == ndarray``, ``ndarray(shape)`` and ``class C(ndarray)`` do."""

    empty: Callable[..., object]  # makes a new one; `creation` sets it, which imports this

    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, object], **options: object) -> type:
        if WholeArray not in bases:
            return super().__new__(cls, name, bases, names, **options)
        names.setdefault("__module__", sys._getframe(1).f_globals.get("__name__"))
        kinds = tuple(np.ndarray if base is WholeArray else base for base in bases)
        metaclass, _, options = types.prepare_class(name, kinds, options)
        return metaclass(name, kinds, names, **options)  # a class of NumPy's arrays, which does not know ours

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, np.ndarray | DTensor)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, np.ndarray | DTensor)

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is np.ndarray or other is DTensor

    def __hash__(cls) -> int:
        return hash(np.ndarray)

    def __call__(cls, shape: ShapeLike, dtype: DTypeLike = float, *args: object, **kwargs: object) -> object:
        if args or kwargs:
            refuse_as_buffer("numpy.ndarray", (*args, *kwargs.values()))
            return super().__call__(shape, dtype, *args, **kwargs)
        return cls.empty(shape, dtype)


WholeArray: Any = None


class _WholeArray(Operated, metaclass=_WholeArrayType):
    """An array that each rank has whole."""

    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = -1.0  # other classes of arrays decide what the result is, as they do with NumPy's arrays
    _baseclass = np.ndarray  # of masked arrays that are made of it
    __array_wrap__, __array_function__ = array_wrap, array_function  # type: ignore[assignment]  # Any, not mappings

    @property
    def layout(self) -> Layout:
        """The layout of the tensor as which it takes part in a call with tensors."""
        return Layout.replicated(self.mesh, self.ndim)

    @property
    def mesh(self) -> Mesh:
        """The default mesh."""
        return mesh_of_program()

    @property
    def local(self) -> Array:
        """What this rank has: all of it."""
        return np.asarray(self)

    def to_numpy(self, dtype: DTypeLike | None = None, **kwargs: object) -> Array:
        """Return a copy. pandas passes more arguments, which say what is missing."""
        return np.array(self, dtype)

    def as_tensor(self) -> DTensor:
        """Return the tensor that shares the memory, whole on each rank. Functions of tensors only take this one."""
        return small_arrays().make(self)

    @property
    def base(self) -> Array | None:
        """The array whose memory this one shares; None if it has its own."""
        base = np.ndarray.base.__get__(self)
        is_own = type(base) is np.ndarray and base.base is None and base.nbytes == self.nbytes
        return None if is_own else base

    def __repr__(self) -> str:
        return np.ndarray.__repr__(np.asarray(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return np.ndarray.__reduce_ex__(np.asarray(self), protocol)

    def __deepcopy__(self, memo: dict[int, object] | None) -> "_WholeArray":
        return np.ndarray.__deepcopy__(self, memo).view(WholeArray)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the elements to a file, once, as `numpy.ndarray.tofile` does."""
        self.as_tensor().tofile(fid, sep, format)


def _by_function(name: str) -> Callable[..., object]:
    """Return a method that calls NumPy's function of this name, which also takes tensors, and cuts large results."""
    function = getattr(np, name)

    @wraps(getattr(np.ndarray, name))
    def method(self: _WholeArray, *args: object, **kwargs: object) -> object:
        return function(self, *args, **kwargs)

    return method


for _name in ("dot", "repeat", "searchsorted", "take"):
    setattr(_WholeArray, _name, _by_function(_name))

WholeArray = _WholeArray
WholeArray.__module__, WholeArray.__name__, WholeArray.__qualname__ = "numpy", "ndarray", "ndarray"
