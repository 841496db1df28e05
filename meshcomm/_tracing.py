"""What autograd follows: the test for such values, and the call of an operation on them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshcomm import _hooks


def is_traced(x: Any) -> bool:
    """Return whether *x* is a value that autograd follows, instead of an array or a DTensor. Local."""
    return not isinstance(x, np.ndarray) and hasattr(x, "_node") and hasattr(x, "_value")


def untraced(x: Any) -> Any:
    """Return what autograd follows as *x*, and anything else as it is. Local."""
    while is_traced(x):
        x = x._value
    return x


def traced(function: Callable[..., Any], operands: Sequence[Any], **options: Any) -> Any:
    """Return what *function* makes of *operands*, of which autograd follows one."""
    return _hooks.call("traced", function, operands, options)
