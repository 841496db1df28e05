"""Which functions a fused function may call, what dtype each gives, and how each writes to a buffer."""

from collections.abc import Callable, Hashable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType
from meshcomm.fusing.lines import refused

Function: TypeAlias = Callable[..., Any]

ELEMENTWISE: set[Function] = {
    *(np.where, np.clip, np.round, np.around, np.nan_to_num, np.copy, np.ndarray.astype, np.astype),
    *(np.real, np.imag, np.angle, np.sinc, np.fix, np.isclose, np.isreal, np.iscomplex, np.isposinf, np.isneginf),
    *(np.zeros_like, np.ones_like, np.full_like),
}
"""Functions besides ufuncs that make each element by itself."""

TOTALS: dict[Function, tuple[np.ufunc, str]] = {
    np.sum: (np.add, "sum"),
    np.mean: (np.add, "sum"),
    np.prod: (np.multiply, "prod"),
    np.max: (np.maximum, "max"),
    np.min: (np.minimum, "min"),
    np.any: (np.logical_or, "max"),
    np.all: (np.logical_and, "min"),
}
"""Reductions of all elements that go over pieces: what reduces a piece, and how devices reduce what they have."""

WHOLE: set[Function] = {
    *TOTALS,
    *(np.std, np.var, np.ptp, np.argmax, np.argmin, np.count_nonzero, np.cumsum, np.cumprod, np.average),
    *(np.nansum, np.nanmean, np.nanmax, np.nanmin, np.nanstd, np.nanvar),
    *(np.reshape, np.ravel, np.transpose, np.swapaxes, np.moveaxis, np.squeeze, np.expand_dims, np.broadcast_to),
    *(np.roll, np.flip, np.diff, np.concatenate, np.stack),
}
"""Functions of whole arrays: these are computed first, and NumPy's function, or that of tensors, gets them."""

ATTRIBUTES: dict[Function, str] = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}
"""Functions that ask for an attribute."""

INSTEAD = {
    "out": "use the result",
    "where": "use numpy.where",
    **dict.fromkeys(("shape", "order", "subok", "device", "like"), "leave it out"),
}
"""Arguments that elementwise functions do not take here, and what to do instead."""


class Alone(NamedTuple):
    """The kind of a number of NumPy, and of an array without axes."""

    dtype: DType


class Given(NamedTuple):
    """The kind of an argument that is no number: a text, a dtype, None."""

    value: Hashable


Kind: TypeAlias = DType | type[complex] | Alone | Given
"""What the dtype of a result depends on: the dtype of an array, the class of a number of Python, and the like."""


def _sample(kind: Kind) -> Value:
    """Return an operand of this kind with little or nothing in it."""
    if isinstance(kind, np.dtype):
        return np.empty(0, kind)
    if isinstance(kind, Alone):
        return np.ones((), kind.dtype)[()]
    return kind.value if isinstance(kind, Given) else kind(1)


@lru_cache(maxsize=4096)
def result_dtypes(function: Function, kinds: tuple[Kind, ...], names: tuple[str, ...] = ()) -> tuple[DType, ...]:
    """Return the dtypes of what *function* makes of operands of these *kinds*, the last of which have *names*.

    NumPy is asked with arrays of no elements; what it raises for the kinds is raised here.

    >>> result_dtypes(np.add, (np.dtype("f4"), float)), result_dtypes(np.divmod, (np.dtype("i2"), np.dtype("i4")))
    ((dtype('float32'),), (dtype('int32'), dtype('int32')))
    """
    samples = [*map(_sample, kinds)]
    if is_cast(function):
        samples[0] = samples[0].real  # else NumPy warns of imaginary parts here, too
    count = len(samples) - len(names)
    with np.errstate(all="ignore"):
        made = function(*samples[:count], **dict(zip(names, samples[count:], strict=True)))
    found = tuple(np.asarray(each).dtype for each in (made if isinstance(made, tuple) else (made,)))
    texts = is_cast(function) and {samples[0].dtype.kind, found[0].kind} & {*"SUV"}
    if texts or any(each.hasobject for each in found):
        raise refused("a fused function makes no objects, and converts no texts")
    return found


@cache
def output_of(function: Function, number: int) -> Function:
    """Return a function that makes one of several results of *function*; the same one for the same result."""
    return lambda *operands, **named: function(*operands, **named)[number]


def is_cast(function: Function) -> bool:
    """Return whether *function* converts elements to another dtype."""
    return function in (np.ndarray.astype, np.astype)


def writing(function: Function, names: tuple[str, ...]) -> Callable[..., object]:
    """Return *function* as one that takes all operands by position, the last of which have *names*, and ``out=``.

    >>> found = np.zeros(2)
    >>> _ = writing(np.round, ("decimals",))(np.array([0.123, 0.456]), 1, out=found)
    >>> found
    array([0.1, 0.5])
    """
    if is_cast(function):
        return _cast
    takes_out = function is np.clip or isinstance(function, np.ufunc)
    if takes_out and not names:
        return function

    def write(*operands: object, out: Array) -> None:
        count = len(operands) - len(names)
        named = dict(zip(names, operands[count:], strict=True))
        if takes_out:
            function(*operands[:count], out=out, **named)
        else:
            np.copyto(out, function(*operands[:count], **named))

    return write


def _cast(x: Array, *others: object, out: Array) -> None:
    real = x.dtype.kind == "c" and out.dtype.kind not in "cb"
    np.copyto(out, x.real if real else x, casting="unsafe")
