"""The namespace of a mesh: what ``x.__array_namespace__()`` is for its tensors.

It has the standard's names, bound to the mesh if they create tensors, and NumPy's functions that take tensors. The
namespaces of equal meshes are equal. A mesh has one namespace object while a program holds it.
"""

import inspect
from functools import cache, partial, update_wrapper
from types import ModuleType
from weakref import WeakValueDictionary

import numpy as np

import meshcomm.array_api as standard
from meshcomm.array_api.info import Info
from meshcomm.core import _hooks
from meshcomm.core._mistakes import missing_attribute
from meshcomm.core._types import AnyFunction
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.numpy.namespace.creation import OWN_FUNCTIONS
from meshcomm.numpy.namespace.devices import Device, Everywhere
from meshcomm.numpy.protocols import takes_tensors

_DTYPE_NAMES = ("dtype", "errstate", "issubdtype", "promote_types")
"""NumPy's names about dtypes that programs also use."""

# By the id of the mesh, which the namespace keeps alive.
_namespaces: "WeakValueDictionary[int, Namespace]" = WeakValueDictionary()


@_hooks.provides("namespace")
def namespace_of(mesh: Mesh) -> "Namespace":
    """Return the names of the standard bound to *mesh*: the same object while a program holds it."""
    namespace = _namespaces.get(id(mesh))
    if namespace is None:
        namespace = _namespaces[id(mesh)] = Namespace(standard, np, mesh)
    return namespace


class Namespace(ModuleType):
    """The names of the array API standard and NumPy's functions, for the tensors of one mesh.

    A tensor created without a device is replicated on the mesh.

    Parameters
    ----------
    standard: a module with the standard's names; they come first
    numpy_module: the corresponding module of NumPy, for names that the standard lacks
    mesh: the mesh of created tensors
    """

    def __init__(self, standard: ModuleType, numpy_module: ModuleType, mesh: Mesh) -> None:
        super().__init__(standard.__name__, f"{standard.__name__} on the {mesh}.\n\n{standard.__doc__}")
        self._standard, self._numpy_module, self._mesh = standard, numpy_module, mesh

    def __getattr__(self, name: str) -> object:
        if name in self._standard.__all__:
            value = self._of_standard(name)
        elif self._numpy_module is np and name in OWN_FUNCTIONS:
            value = _bound_to(OWN_FUNCTIONS[name], Everywhere(self._mesh))
        elif name[0] != "_" and _is_exported(self._numpy_module, name):
            value = getattr(self._numpy_module, name)
        elif name == "lib" and self._numpy_module is np:
            value = np.lib  # xarray rolls windows by its stride_tricks, which tensors have, too
        else:
            raise missing_attribute(f"module {self.__name__!r}", name, {}, dir(self), self)
        self.__dict__[name] = value
        return value

    def _of_standard(self, name: str) -> object:
        value = getattr(self._standard, name)
        if isinstance(value, ModuleType):
            return Namespace(value, getattr(self._numpy_module, name), self._mesh)
        if name == "__array_namespace_info__":
            return partial(Info, self._mesh)
        if not inspect.isfunction(value):
            return value
        if _makes_tensors(value):
            return _bound_to(value, Everywhere(self._mesh))
        return _with_fallback(value, getattr(self._numpy_module, name, None))

    def __dir__(self) -> list[str]:
        numpy_names = (
            name for name in dir(self._numpy_module) if name[0] != "_" and _is_exported(self._numpy_module, name)
        )
        return sorted({*self._standard.__all__, *numpy_names, *(OWN_FUNCTIONS if self._numpy_module is np else ())})

    def __repr__(self) -> str:
        return f"<{self.__name__} on the {self._mesh}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Namespace):
            return NotImplemented
        return self.__name__ == other.__name__ and self._mesh == other._mesh

    def __hash__(self) -> int:
        return hash((self.__name__, self._mesh))


def _is_exported(numpy_module: ModuleType, name: str) -> bool:
    """Return whether NumPy's *name* is a function that takes tensors, or a name for dtypes."""
    value = getattr(numpy_module, name, None)
    if isinstance(value, type):
        return issubclass(value, np.generic) or name in _DTYPE_NAMES
    return callable(value) and (name in _DTYPE_NAMES or takes_tensors(value))


def _makes_tensors(function: AnyFunction) -> bool:
    """Return whether *function* has a parameter *device*; functions of a tensor keep its layout by default."""
    return "device" in inspect.signature(function, follow_wrapped=False).parameters


def _bound_to(function: AnyFunction, device: Device) -> AnyFunction:
    """Return *function* with results on *device*, unless a call passes a device or a layout."""
    argument = "device" if _makes_tensors(function) else "layout"

    def wrapper(*args: object, **kwargs: object) -> object:
        if kwargs.get("device") is None and kwargs.get("layout") is None:
            kwargs[argument] = device
        return function(*args, **kwargs)

    return update_wrapper(wrapper, function)


@cache
def _with_fallback(function: AnyFunction, numpy_function: AnyFunction | None) -> AnyFunction:
    """Return *function* of the standard, which leaves calls that it does not define to *numpy_function*."""
    if numpy_function is None:
        return function
    signature = inspect.signature(function)

    def wrapper(*args: object, **kwargs: object) -> object:
        try:
            signature.bind(*args, **kwargs)
        except TypeError:
            return numpy_function(*args, **kwargs)
        return function(*args, **kwargs)

    return update_wrapper(wrapper, function)
