"""Floating-point errors of NumPy's functions on blocks, at the line of the program that has called meshcomm."""

import sys
from collections.abc import Callable

import numpy as np

from meshcomm._callers import warn

_MODES = {"divide by zero": "divide", "overflow": "over", "underflow": "under", "invalid value": "invalid"}
"""For each error, as NumPy calls it in messages, its name for ``numpy.errstate``."""


def computed(name: str, function: Callable[..., object], *blocks: object, **options: object) -> object:
    """Return ``function(*blocks, **options)``; what is wrong with numbers is told as ``numpy.errstate`` says.

    NumPy's own warning would point to this line. Python shows the first warning of a line only, so a program would
    see none of the others. *name* is that of the function.
    """
    found: dict[str, int] = {}
    with np.errstate(all="call", call=found.__setitem__):
        made = function(*blocks, **options)
    if found:
        _tell(name, found)
    return made


def _tell(name: str, found: dict[str, int]) -> None:
    modes, user = np.geterr(), np.geterrcall()
    for error, flag in found.items():
        mode, text = modes[_MODES[error]], f"{error} encountered in {name.removeprefix('numpy.')}"  # type: ignore[literal-required]
        if mode == "raise":
            raise FloatingPointError(text)
        if mode == "warn":
            warn(text, RuntimeWarning)
        elif mode == "print":
            print(f"Warning: {text}", file=sys.stderr)
        elif mode == "call" and callable(user):
            user(error, flag)
        elif mode == "log" and user is not None:
            user.write(f"Warning: {text}\n")  # type: ignore[union-attr]
