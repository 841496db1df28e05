"""The arrays that each rank has whole: a subclass of NumPy's array, whose large results become tensors.

NumPy computes with them, and libraries accept them as NumPy arrays. They differ in two ways. A large result of small
arrays, such as that of a row and a column, becomes a tensor (`meshcomm.numpy.namespace._arrays`). And their class is
``ndarray`` of `meshcomm.numpy`, which also counts tensors as its instances.
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
    """The metaclass of ``ndarray``: ``isinstance(x, ndarray)``, ``type(x) == ndarray``, calls, and subclasses."""

    empty: Callable[..., object]  # makes a new array; set by `creation`, which imports this module

    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, object], **options: object) -> type:
        if WholeArray not in bases:
            return super().__new__(cls, name, bases, names, **options)
        names.setdefault("__module__", sys._getframe(1).f_globals.get("__name__"))
        numpy_bases = tuple(np.ndarray if base is WholeArray else base for base in bases)
        metaclass, _, options = types.prepare_class(name, numpy_bases, options)
        return metaclass(name, numpy_bases, names, **options)  # a plain subclass of NumPy's array

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
    """An array that each rank has whole: ``ndarray`` of `meshcomm.numpy`."""

    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = -1.0  # other classes of arrays decide the class of a result, as with NumPy arrays
    _baseclass = np.ndarray  # for masked arrays made from it
    __array_wrap__, __array_function__ = array_wrap, array_function  # type: ignore[assignment]  # Any, not mappings

    @property
    def layout(self) -> Layout:
        """The layout that the array has as a tensor in a call with tensors."""
        return Layout.replicated(self.mesh, self.ndim)

    @property
    def mesh(self) -> Mesh:
        """The default mesh."""
        return mesh_of_program()

    @property
    def local(self) -> Array:
        """The array as a NumPy array: each rank has all elements."""
        return np.asarray(self)

    def to_numpy(self, dtype: DTypeLike | None = None, **kwargs: object) -> Array:
        """Return a copy. Other arguments are ignored; pandas passes some for missing values."""
        return np.array(self, dtype)

    def as_tensor(self) -> DTensor:
        """Return a tensor that shares the memory, whole on each rank, for functions that only accept tensors."""
        return small_arrays().make(self)

    @property
    def base(self) -> Array | None:
        """The array whose memory this array shares; None if it has its own."""
        base = np.ndarray.base.__get__(self)
        owns_memory = type(base) is np.ndarray and base.base is None and base.nbytes == self.nbytes
        return None if owns_memory else base

    def __repr__(self) -> str:
        return np.ndarray.__repr__(np.asarray(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return np.ndarray.__reduce_ex__(np.asarray(self), protocol)

    def __deepcopy__(self, memo: dict[int, object] | None) -> "_WholeArray":
        return np.ndarray.__deepcopy__(self, memo).view(WholeArray)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write the elements to a file, once, as `numpy.ndarray.tofile` does."""
        self.as_tensor().tofile(fid, sep, format)


def _method_calling(name: str) -> Callable[..., object]:
    """Return a method that calls NumPy's function *name*, which also accepts tensors, and cuts large results."""
    function = getattr(np, name)

    @wraps(getattr(np.ndarray, name))
    def method(self: _WholeArray, *args: object, **kwargs: object) -> object:
        return function(self, *args, **kwargs)

    return method


for _name in ("dot", "repeat", "searchsorted", "take"):
    setattr(_WholeArray, _name, _method_calling(_name))

WholeArray = _WholeArray
WholeArray.__module__, WholeArray.__name__, WholeArray.__qualname__ = "numpy", "ndarray", "ndarray"
