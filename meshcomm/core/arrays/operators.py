"""The operators of tensors: NumPy's, which come back by its protocol, typed for editors and checkers."""

import operator
from functools import cache, lru_cache, wraps
from types import FunctionType
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshcomm.core._tracing import Value, is_traced
from meshcomm.core._types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshcomm.core.arrays.dtensor import DTensor, Tensor


def power_by(dtype: DType, exponent: object) -> np.ufunc:
    """Return which ufunc ``array ** exponent`` calls: for some numbers of Python arrays have another one than power.

    >>> power_by(np.dtype("f8"), 2), power_by(np.dtype("f8"), 3)
    (<ufunc 'square'>, <ufunc 'power'>)
    """
    return _power_by(dtype, exponent) if type(exponent) in (int, float) else np.power


class _Asked(np.ndarray):
    """An array whose operators return the ufunc that they call."""

    def __array_ufunc__(self, ufunc: np.ufunc, *others: object, **named: object) -> Value:
        return ufunc


@lru_cache(maxsize=256, typed=True)
def _power_by(dtype: DType, exponent: Value) -> np.ufunc:
    asked: Value = np.empty(0, dtype).view(_Asked)
    return asked**exponent  # type: ignore[no-any-return]


def decides(x: object) -> bool:
    """Return whether NumPy's arrays leave a result to the class of *x*, or make an array of that class.

    So do matrices, masked arrays and sparse ones. Classes with ``__array_ufunc__`` are asked by NumPy's protocol.
    """
    kind: Value = type(x)
    return _decides(kind)


@cache
def _decides(kind: Value) -> bool:
    known = getattr(kind, "__array_priority__", 0)
    priority = known if isinstance(known, int | float) else 0  # of NumPy's own classes only objects have it
    if issubclass(kind, np.ndarray):
        return kind is not np.ndarray and priority >= 0  # those of scripts and memory maps have less
    return priority > 0 and not hasattr(kind, "__array_ufunc__")


of_libraries: "Callable[..., Value] | None" = None
"""In a script, what operators give if the class of the other operand decides: see meshcomm.core.arrays.libraries."""


class Operators(NDArrayOperatorsMixin):
    """The operators that arrays have; to type checkers each gives a DTensor, which NumPy's stubs do not know."""

    __slots__ = ()

    def __eq__(self, other: object) -> "DTensor":  # type: ignore[override]
        return self._compared(operator.eq, super().__eq__, other)

    def __ne__(self, other: object) -> "DTensor":  # type: ignore[override]
        return self._compared(operator.ne, super().__ne__, other)

    def _compared(
        self, compare: "Callable[..., object]", by_ufunc: "Callable[[object], DTensor]", other: object
    ) -> "DTensor":
        """Return what NumPy's operator makes: its ufunc knows no fields, and no dtypes that are never equal."""
        problem = None
        if self.dtype.type is not np.void:  # type: ignore[attr-defined]
            try:
                return by_ufunc(other)
            except TypeError as error:
                problem = error
        try:
            made: DTensor = self._made_by(compare, other)  # type: ignore[attr-defined]
        except TypeError as error:
            raise (problem or error) from None
        return made

    if TYPE_CHECKING:
        # fmt: off
        def __add__(self, other: "Tensor") -> "DTensor": ...
        def __sub__(self, other: "Tensor") -> "DTensor": ...
        def __mul__(self, other: "Tensor") -> "DTensor": ...
        def __matmul__(self, other: "Tensor") -> "DTensor": ...
        def __truediv__(self, other: "Tensor") -> "DTensor": ...
        def __floordiv__(self, other: "Tensor") -> "DTensor": ...
        def __mod__(self, other: "Tensor") -> "DTensor": ...
        def __pow__(self, other: "Tensor") -> "DTensor": ...
        def __lshift__(self, other: "Tensor") -> "DTensor": ...
        def __rshift__(self, other: "Tensor") -> "DTensor": ...
        def __and__(self, other: "Tensor") -> "DTensor": ...
        def __xor__(self, other: "Tensor") -> "DTensor": ...
        def __or__(self, other: "Tensor") -> "DTensor": ...
        def __radd__(self, other: "Tensor") -> "DTensor": ...
        def __rsub__(self, other: "Tensor") -> "DTensor": ...
        def __rmul__(self, other: "Tensor") -> "DTensor": ...
        def __rmatmul__(self, other: "Tensor") -> "DTensor": ...
        def __rtruediv__(self, other: "Tensor") -> "DTensor": ...
        def __rfloordiv__(self, other: "Tensor") -> "DTensor": ...
        def __rmod__(self, other: "Tensor") -> "DTensor": ...
        def __rpow__(self, other: "Tensor") -> "DTensor": ...
        def __rlshift__(self, other: "Tensor") -> "DTensor": ...
        def __rrshift__(self, other: "Tensor") -> "DTensor": ...
        def __rand__(self, other: "Tensor") -> "DTensor": ...
        def __rxor__(self, other: "Tensor") -> "DTensor": ...
        def __ror__(self, other: "Tensor") -> "DTensor": ...
        def __iadd__(self, other: "Tensor") -> "DTensor": ...
        def __isub__(self, other: "Tensor") -> "DTensor": ...
        def __imul__(self, other: "Tensor") -> "DTensor": ...
        def __imatmul__(self, other: "Tensor") -> "DTensor": ...
        def __itruediv__(self, other: "Tensor") -> "DTensor": ...
        def __ifloordiv__(self, other: "Tensor") -> "DTensor": ...
        def __imod__(self, other: "Tensor") -> "DTensor": ...
        def __ipow__(self, other: "Tensor") -> "DTensor": ...
        def __ilshift__(self, other: "Tensor") -> "DTensor": ...
        def __irshift__(self, other: "Tensor") -> "DTensor": ...
        def __iand__(self, other: "Tensor") -> "DTensor": ...
        def __ixor__(self, other: "Tensor") -> "DTensor": ...
        def __ior__(self, other: "Tensor") -> "DTensor": ...
        def __lt__(self, other: "Tensor") -> "DTensor": ...
        def __le__(self, other: "Tensor") -> "DTensor": ...
        def __gt__(self, other: "Tensor") -> "DTensor": ...
        def __ge__(self, other: "Tensor") -> "DTensor": ...
        def __neg__(self) -> "DTensor": ...
        def __pos__(self) -> "DTensor": ...
        def __abs__(self) -> "DTensor": ...
        def __invert__(self) -> "DTensor": ...
        def __divmod__(self, other: "Tensor") -> "tuple[DTensor, DTensor]": ...
        def __rdivmod__(self, other: "Tensor") -> "tuple[DTensor, DTensor]": ...
        # fmt: on


def _asking_first(name: str) -> "Callable[[Value, Value], Value]":
    """Return the operator *name* of NumPy's protocol, which in a script leaves some results to the other class."""
    by_protocol = getattr(Operators, name)

    @wraps(by_protocol)
    def method(self: Value, other: Value) -> Value:
        if of_libraries is not None and decides(other) and not is_traced(other):
            return of_libraries(name, self, other)
        return by_protocol(self, other)

    return method


for _name, _method in vars(NDArrayOperatorsMixin).items():
    if isinstance(_method, FunctionType) and _method.__code__.co_argcount == 2:
        setattr(Operators, _name, _asking_first(_name))

_MAKERS = (
    *("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "require", "empty", "zeros", "ones"),
    *("full", "arange", "eye", "identity", "tri", "fromfunction", "frombuffer", "fromiter", "fromstring", "fromfile"),
    *("loadtxt", "genfromtxt"),
)
LIKE = frozenset(getattr(np, name) for name in _MAKERS)
"""NumPy's functions that take ``like=``."""
