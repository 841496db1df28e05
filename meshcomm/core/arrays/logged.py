"""Floating-point errors of operations that were computed after the program called them."""

import warnings
from functools import lru_cache

import numpy as np
from numpy._core.umath import _extobj_contextvar

from meshcomm.core._callers import FLOAT_ERRORS, Line
from meshcomm.core._tracing import Value


@lru_cache(64)
def error_handling(errors: Value) -> dict[str, Value]:
    """Return NumPy's mode for each kind of floating-point error that is not ignored; *errors* is its errstate."""
    token = _extobj_contextvar.set(errors)
    try:
        return {kind: mode for kind, mode in np.geterr().items() if mode != "ignore"}
    finally:
        _extobj_contextvar.reset(token)


def tell(line: Line, errors: object, filters: object, text: str) -> None:
    """Issue the warning that NumPy has logged at a *line* of the program, if it warns there.

    Parameters
    ----------
    line: line of the program
    errors: state of `numpy.errstate` at this line
    filters: the filters of warnings at this line
    text: text that NumPy has logged
    """
    text = text.removeprefix("Warning: ").rstrip()
    if FLOAT_ERRORS[text.partition(" encountered")[0]][0] not in error_handling(errors):
        return
    if warnings.filters is filters:
        line.warn(text, RuntimeWarning)
        return
    with warnings.catch_warnings():
        warnings.filters = filters  # type: ignore[assignment]
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001 - as warnings itself does
        line.warn(text, RuntimeWarning)
