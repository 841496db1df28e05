"""The operators of tensors: NumPy's mixin has them, by the protocol ``__array_ufunc__``; stubs give their types."""

import operator
from collections.abc import Callable
from functools import cache, lru_cache, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshcomm.core._tracing import Value, is_traced
from meshcomm.core._types import DType
from meshcomm.core.arrays.typed import TypedOperand, TypedTensor


def power_ufunc(dtype: DType, exponent: object) -> np.ufunc:
    """Return the ufunc that ``array ** exponent`` calls: for some Python numbers it is not ``power``.

    >>> power_ufunc(np.dtype("f8"), 2), power_ufunc(np.dtype("f8"), 3)
    (<ufunc 'square'>, <ufunc 'power'>)
    """
    return _power_ufunc(dtype, exponent) if type(exponent) in (int, float) else np.power


class _UfuncProbe(np.ndarray):
    """An array whose operators return the ufunc that they call."""

    def __array_ufunc__(self, ufunc: np.ufunc, *inputs: object, **kwargs: object) -> Value:
        return ufunc


@lru_cache(maxsize=256, typed=True)
def _power_ufunc(dtype: DType, exponent: object) -> np.ufunc:
    probe = np.empty(0, dtype).view(_UfuncProbe)
    return probe**exponent


def takes_over_operators(x: object) -> bool:
    """Return whether an operator of an ndarray lets the class of *x* compute the result, or returns that class.

    Examples are matrices, masked arrays and sparse arrays. NumPy's protocol asks classes with ``__array_ufunc__``.
    """
    cls: object = type(x)
    return _takes_over_operators(cls)


@cache
def _takes_over_operators(cls: Value) -> bool:
    attribute = getattr(cls, "__array_priority__", 0)
    # It may be a property, which has a value for objects only.
    priority = attribute if isinstance(attribute, int | float) else 0
    if issubclass(cls, np.ndarray):
        return cls is not np.ndarray and priority >= 0  # arrays of scripts and memory maps have a negative one
    return priority > 0 and not hasattr(cls, "__array_ufunc__")


operate_by_other_class: Callable[..., object] | None = None
"""In a script, the function that operators call if the class of the other operand decides: see libraries.py."""


class Operators(NDArrayOperatorsMixin, TypedTensor):
    """The operators that arrays have; to type checkers each gives a DTensor, which NumPy's stubs do not know."""

    __slots__ = ()

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._compare_elements(operator.eq, super().__eq__, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._compare_elements(operator.ne, super().__ne__, other)

    def _compare_elements(
        self, compare: Callable[..., object], ufunc_operator: Callable[[object], Self], other: object
    ) -> Self:
        """Compare by the ufunc; where it fails (records, dtypes that are never equal), by NumPy's operator."""
        first_error = None
        if self.dtype.type is not np.void:
            try:
                return ufunc_operator(other)
            except TypeError as error:
                first_error = error
        try:
            return self._apply(compare, other)
        except TypeError as error:
            raise (first_error or error) from None

    if TYPE_CHECKING:
        # fmt: off
        def __add__(self, other: TypedOperand) -> Self: ...
        def __sub__(self, other: TypedOperand) -> Self: ...
        def __mul__(self, other: TypedOperand) -> Self: ...
        def __matmul__(self, other: TypedOperand) -> Self: ...
        def __truediv__(self, other: TypedOperand) -> Self: ...
        def __floordiv__(self, other: TypedOperand) -> Self: ...
        def __mod__(self, other: TypedOperand) -> Self: ...
        def __pow__(self, other: TypedOperand) -> Self: ...
        def __lshift__(self, other: TypedOperand) -> Self: ...
        def __rshift__(self, other: TypedOperand) -> Self: ...
        def __and__(self, other: TypedOperand) -> Self: ...
        def __xor__(self, other: TypedOperand) -> Self: ...
        def __or__(self, other: TypedOperand) -> Self: ...
        def __radd__(self, other: TypedOperand) -> Self: ...
        def __rsub__(self, other: TypedOperand) -> Self: ...
        def __rmul__(self, other: TypedOperand) -> Self: ...
        def __rmatmul__(self, other: TypedOperand) -> Self: ...
        def __rtruediv__(self, other: TypedOperand) -> Self: ...
        def __rfloordiv__(self, other: TypedOperand) -> Self: ...
        def __rmod__(self, other: TypedOperand) -> Self: ...
        def __rpow__(self, other: TypedOperand) -> Self: ...
        def __rlshift__(self, other: TypedOperand) -> Self: ...
        def __rrshift__(self, other: TypedOperand) -> Self: ...
        def __rand__(self, other: TypedOperand) -> Self: ...
        def __rxor__(self, other: TypedOperand) -> Self: ...
        def __ror__(self, other: TypedOperand) -> Self: ...
        def __iadd__(self, other: TypedOperand) -> Self: ...
        def __isub__(self, other: TypedOperand) -> Self: ...
        def __imul__(self, other: TypedOperand) -> Self: ...
        def __imatmul__(self, other: TypedOperand) -> Self: ...
        def __itruediv__(self, other: TypedOperand) -> Self: ...
        def __ifloordiv__(self, other: TypedOperand) -> Self: ...
        def __imod__(self, other: TypedOperand) -> Self: ...
        def __ipow__(self, other: TypedOperand) -> Self: ...
        def __ilshift__(self, other: TypedOperand) -> Self: ...
        def __irshift__(self, other: TypedOperand) -> Self: ...
        def __iand__(self, other: TypedOperand) -> Self: ...
        def __ixor__(self, other: TypedOperand) -> Self: ...
        def __ior__(self, other: TypedOperand) -> Self: ...
        def __lt__(self, other: TypedOperand) -> Self: ...
        def __le__(self, other: TypedOperand) -> Self: ...
        def __gt__(self, other: TypedOperand) -> Self: ...
        def __ge__(self, other: TypedOperand) -> Self: ...
        def __neg__(self) -> Self: ...
        def __pos__(self) -> Self: ...
        def __abs__(self) -> Self: ...
        def __invert__(self) -> Self: ...
        def __divmod__(self, other: TypedOperand) -> tuple[Self, Self]: ...
        def __rdivmod__(self, other: TypedOperand) -> tuple[Self, Self]: ...
        # fmt: on


def _deferring_operator(name: str) -> Callable[[object, object], object]:
    """Return the operator *name* of NumPy's protocol; in a script it leaves some results to the other class."""
    protocol_method = getattr(Operators, name)

    @wraps(protocol_method)
    def method(self: object, other: object) -> object:
        if operate_by_other_class is not None and takes_over_operators(other) and not is_traced(other):
            return operate_by_other_class(name, self, other)
        return protocol_method(self, other)

    return method


for _name, _method in vars(NDArrayOperatorsMixin).items():
    if isinstance(_method, FunctionType) and _method.__code__.co_argcount == 2:
        setattr(Operators, _name, _deferring_operator(_name))

_CREATION_FUNCTIONS = (
    *("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "require", "empty", "zeros", "ones"),
    *("full", "arange", "eye", "identity", "tri", "fromfunction", "frombuffer", "fromiter", "fromstring", "fromfile"),
    *("loadtxt", "genfromtxt"),
)
LIKE_FUNCTIONS = frozenset(getattr(np, name) for name in _CREATION_FUNCTIONS)
"""NumPy's functions that take ``like=``."""
