"""Objects that act as the tensor they hold: operators, NumPy's functions, slices, methods and numbers."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshcomm.core import _hooks
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.arrays.dtensor import DTensor, unwrapped

S = TypeVar("S", bound="ActsAsValue")


def _new_value_operator(ufunc: np.ufunc) -> Callable[[S, object], S]:
    """Return the in-place operator of *ufunc*, which assigns a new value."""

    def operator(self: S, other: object) -> S:
        return self.assign(ufunc(self.value, unwrapped(other)))

    return operator


class ActsAsValue(NDArrayOperatorsMixin):
    """An object with a `value` and `assign`, for NumPy the same as its value."""

    __slots__ = ()
    __hash__ = object.__hash__  # a key is compared by identity, though == compares elements, as for tensors of PyTorch

    @property
    def value(self) -> DTensor:
        """The tensor that the object holds."""
        raise NotImplementedError

    __imul__ = _new_value_operator(np.multiply)
    __imatmul__ = _new_value_operator(np.matmul)
    __itruediv__ = _new_value_operator(np.true_divide)
    __ifloordiv__ = _new_value_operator(np.floor_divide)
    __imod__ = _new_value_operator(np.remainder)
    __ipow__ = _new_value_operator(np.power)
    __ilshift__ = _new_value_operator(np.left_shift)
    __irshift__ = _new_value_operator(np.right_shift)
    __iand__ = _new_value_operator(np.bitwise_and)
    __ixor__ = _new_value_operator(np.bitwise_xor)
    __ior__ = _new_value_operator(np.bitwise_or)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: Any) -> object:
        targets: tuple[object, ...] = kwargs.get("out", ())
        arguments = {name: unwrapped(value) for name, value in kwargs.items()}
        if targets:
            arguments["out"] = tuple(map(unwrapped, targets))
        result = completed(_hooks.call("numpy", ufunc, method, inputs, arguments))
        return targets[0] if len(targets) == 1 else result

    def __array_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        arguments = {name: unwrapped(value) for name, value in kwargs.items()}
        result = completed(_hooks.call("numpy", func, None, tuple(map(unwrapped, args)), arguments))
        out = kwargs.get("out")
        return result if out is None or result is not arguments["out"] else out

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the namespace of the value."""
        return self.value.__array_namespace__(api_version=api_version)

    def __getattr__(self, name: str) -> Any:
        if name[0] == "_":  # Python and NumPy ask for many such names
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.value, name)

    def __getitem__(self, index: object) -> DTensor:
        return self.value[index]

    def __setitem__(self, index: object, value: object) -> None:
        self.value[index] = unwrapped(value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[DTensor]:
        return iter(self.value)

    def __contains__(self, value: object) -> bool:
        return unwrapped(value) in self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.value, ndigits)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else str(self)
