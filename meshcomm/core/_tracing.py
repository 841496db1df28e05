"""Values that autograd follows: the test for them, and operations that it can follow."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from meshcomm.core import _hooks

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Value: TypeAlias = Any
"""An array, a DTensor, or the object that autograd follows instead of one; it has the operators of arrays."""


def is_traced(x: object) -> bool:
    """Return whether *x* is a value that autograd follows, instead of an array or a DTensor."""
    # Test the class first: a DTensor that lacks an attribute searches for a hint for the error message.
    return not isinstance(x, np.ndarray) and hasattr(type(x), "_node") and hasattr(x, "_value")


def untraced(x: T) -> T:
    """Return the array or DTensor within *x*, if autograd follows it; else *x*."""
    while is_traced(x):
        x = x._value  # type: ignore[attr-defined]
    return x


def unpacked_traced(x: T) -> T:
    """Return a container that autograd follows as a list, tuple or dict of values that it follows; else *x*."""
    plain: object = untraced(x)
    traced_container: Value = x
    if plain is x:
        return x
    if isinstance(plain, Mapping):
        return cast("T", {key: traced_container[key] for key in plain})
    if isinstance(plain, list | tuple):
        return cast("T", type(plain)(traced_container[number] for number in range(len(plain))))
    return x


def call_traced(function: Callable[..., R], operands: Sequence[object], **options: object) -> R:
    """Return the result of *function*, of meshcomm or NumPy, for *operands*; autograd follows one of them."""
    return _hooks.call("traced", function, operands, options)


def traceable(
    operand_count: int = 1, twin: Callable[..., object] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for operations that autograd can follow.

    Parameters
    ----------
    operand_count: number of arguments, from the first one on, that autograd may follow
    twin: the function of NumPy that does the same, and has a gradient in autograd; by default the function itself
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        call_signature = signature(function)
        names = list(call_signature.parameters)[:operand_count]

        @wraps(function)
        def operation(*args: P.args, **kwargs: P.kwargs) -> R:
            values = args[:operand_count]
            if kwargs and len(values) < operand_count:
                values = (*values, *[kwargs[name] for name in names if name in kwargs])
            for value in values:
                if not isinstance(value, np.ndarray) and is_traced(value):  # inlined: every call comes through here
                    return traced_operation(*args, **kwargs)
            return function(*args, **kwargs)

        def traced_operation(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = call_signature.bind(*args, **kwargs)
            if twin is None:
                bound.apply_defaults()
                return call_traced(operation, bound.args)
            options = {name: value for name, value in bound.arguments.items() if name not in names}
            values = [bound.arguments[name] for name in names]
            # NumPy may have another order of arguments.
            return call_traced(cast("Callable[..., R]", twin), values, **options)

        return operation

    return decorate
