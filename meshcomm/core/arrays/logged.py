"""Floating-point errors of operations that were computed later than the program made them."""

import warnings
from functools import lru_cache

import numpy as np
from numpy._core.umath import _extobj_contextvar

from meshcomm.core._callers import CONDITIONS, Line
from meshcomm.core._tracing import Value


@lru_cache(64)
def error_handling(errors: Value) -> dict[str, Value]:
    """Return how NumPy handles floating-point errors, but for ignored ones; *errors* is what it has of errstate."""
    token = _extobj_contextvar.set(errors)
    try:
        return {kind: how for kind, how in np.geterr().items() if how != "ignore"}
    finally:
        _extobj_contextvar.reset(token)


def tell(line: Line, errors: object, filters: object, text: str) -> None:
    """Warn at a *line* of the program of what NumPy has logged, if it warns there.

    Parameters
    ----------
    errors: state of `numpy.errstate` there
    filters: the filters of warnings there
    text: text that NumPy logs
    """
    text = text.removeprefix("Warning: ").rstrip()
    if CONDITIONS[text.partition(" encountered")[0]][0] not in error_handling(errors):
        return
    if warnings.filters is filters:
        line.warn(text, RuntimeWarning)
        return
    with warnings.catch_warnings():
        warnings.filters = filters  # type: ignore[assignment]
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001 - as warnings itself does
        line.warn(text, RuntimeWarning)
