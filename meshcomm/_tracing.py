"""Values that autograd follows: the test for them, and operations that it can follow."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from meshcomm import _hooks

P = ParamSpec("P")
R = TypeVar("R")


def is_traced(x: Any) -> bool:
    """Return whether *x* is a value that autograd follows, instead of an array or a DTensor."""
    return not isinstance(x, np.ndarray) and hasattr(x, "_node") and hasattr(x, "_value")


def untraced(x: Any) -> Any:
    """Return what autograd follows as *x*, and anything else as it is."""
    while is_traced(x):
        x = x._value
    return x


def traced(function: Callable[..., Any], operands: Sequence[Any], **options: Any) -> Any:
    """Return what *function*, one of ours or of NumPy, makes of *operands*, of which autograd follows one."""
    return _hooks.call("trace", function, operands, options)


def traceable(operands: int = 1, twin: Callable[..., Any] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for operations that autograd can follow.

    Parameters
    ----------
    operands: how many of the first arguments are what it may follow
    twin: the function of NumPy that does the same, whose gradients autograd knows; by default the function itself
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        form = signature(function)
        names = list(form.parameters)[:operands]

        @wraps(function)
        def operation(*args: P.args, **kwargs: P.kwargs) -> R:
            given = (*args[:operands], *(kwargs[name] for name in names if name in kwargs))
            if not any(map(is_traced, given)):
                return function(*args, **kwargs)
            if twin is not None:
                return traced(twin, args, **kwargs)  # type: ignore[no-any-return]
            bound = form.bind(*args, **kwargs)
            bound.apply_defaults()
            return traced(operation, bound.args)  # type: ignore[no-any-return]

        return operation

    return decorate
