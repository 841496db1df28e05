"""Checks of arguments: each returns the argument in a standard form, or raises an error that says what is wrong.

Arguments are typed as ``object`` if a check takes anything.
"""

import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._foreign import as_numpy, is_foreign
from meshcomm.core._types import Array, DType, Shape
from meshcomm.errors import AxisError, DTypeError, GroupError, IntegerError, MeshError, ShapeError

T = TypeVar("T")

ndim_of: Callable[[object], int] = np.ndim  # type: ignore[assignment]  # it takes anything
"""`numpy.ndim`, of any argument that NumPy takes."""

index_of: Callable[[object], int] = operator.index  # type: ignore[assignment]  # as ndim_of
"""`operator.index`: ``TypeError`` for an argument that is no integer."""


def quote(value: object) -> str:
    """Return ``repr(value)`` for an error message, shortened if it is long; without the elements of large arrays.

    >>> quote("x"), len(quote("x" * 10**6)), quote((np.zeros((50, 4)), 1))
    ("'x'", 200, '(an array of (50, 4) float64, 1)')
    """
    if isinstance(value, np.ndarray) and value.size > 16:
        return f"an array of {value.shape} {value.dtype}"
    try:
        summary = getattr(type(value), "_summary", None)  # of tensors
        if type(value) is tuple:
            text = f"({', '.join(map(quote, value[:100]))}{',' * (len(value) == 1)})"
        else:
            text = str(summary.__get__(value)) if isinstance(summary, property) else repr(value)
    except Exception:  # an integer of thousands of digits, or a class of the caller
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else text[:197] + "..."


def listed_briefly(values: Sequence[object]) -> str:
    """Return the reprs of *values* with commas between them; if there are many, only the first and the last.

    >>> listed_briefly("ab"), listed_briefly(range(5)), listed_briefly((4,))
    ("'a', 'b'", '0, ..., 4', '4')
    """
    if len(values) <= 4:
        return ", ".join(map(repr, values))
    return f"{values[0]!r}, ..., {values[-1]!r}"


def counted(count: int, noun: str) -> str:
    """Return *count* with *noun*, in the plural if needed, for a message.

    >>> counted(1, "axis"), counted(2, "axis"), counted(0, "rank"), counted(3, "entry")
    ('1 axis', '2 axes', '0 ranks', '3 entries')
    """
    return f"{count} {noun if count == 1 else _PLURALS.get(noun) or f'{noun}s'}"


_PLURALS = {"axis": "axes", "entry": "entries"}


def as_integer(value: object, noun: str, error: type[Exception] = MeshError) -> int:
    """Return *value* as an int, or raise *error*, which names it by *noun*; a bool is no integer here.

    >>> as_integer(np.int8(3), "size")
    3
    """
    if type(value) is int:
        return value
    try:
        if isinstance(value, SupportsIndex) and not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise error(f"{noun} {quote(value)} is a {type(value).__name__}; it must be an integer")


NO_VALUE: Any = getattr(np, "_NoValue", None)
"""NumPy's default for arguments that were not passed, where None is a value."""


def scratch_limit(value: int | None) -> int | None:
    """Return *value*, the argument max_scratch_bytes of a call; ``ShapeError`` if it is no number of bytes."""
    if value is None:
        return None
    number = as_integer(value, "max_scratch_bytes", ShapeError)
    if number < 0:
        raise ShapeError(f"max_scratch_bytes must be zero or more, not {quote(value)}")
    return number


def as_shape(shape: object) -> Shape:
    """Return *shape*, one length or several, as a tuple; ``ShapeError`` if it is no shape."""
    try:
        lengths = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise IntegerError(f"a shape is a sequence of lengths, not {quote(shape)}") from None
    if any(n < 0 for n in lengths):
        raise ShapeError(f"shape {quote(lengths)} has a negative length")
    if any(n >= 2**63 for n in lengths):
        raise ShapeError(f"shape {quote(lengths)} has a length of 2**63 or more")
    return lengths


def check_size(shape: Shape, dtype: DType) -> None:
    """Raise ``ShapeError`` if an array of *shape* and *dtype* has more bytes than can be counted."""
    if prod(n or 1 for n in shape) * max(1, dtype.itemsize) >= 2**63:
        raise ShapeError(f"an array of shape {shape} and dtype {dtype} has 2**63 bytes or more")


def as_path(path: object, call: str) -> Path:
    """Return *path* as a Path; ``TypeError`` if it is none, with *call* as an example of the right call.

    >>> as_path(3, "open(path)")
    Traceback (most recent call last):
    TypeError: a path is a text or a Path, not 3: write mc.open(path)
    """
    with suppress(TypeError):
        if isinstance(path, str | os.PathLike):
            return Path(path)
    raise TypeError(f"a path is a text or a Path, not {quote(path)}: write mc.{call}")


def as_dtype(dtype: DTypeLike) -> DType:
    """Return *dtype* as a NumPy dtype; ``DTypeError`` if it holds Python objects."""
    try:
        result = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"{dtype!r} is not a dtype: {error}") from None
    if result.hasobject:
        raise DTypeError(f"arrays of dtype {result} hold references to Python objects and cannot be sharded")
    if has_zero_date_step(result):
        raise DTypeError(f"{result} has dates in steps of 0 units, which no calculation bears")
    return result


def has_zero_date_step(dtype: DType) -> bool:
    """Return whether *dtype* is, or has, a date or time in steps of 0 units. NumPy allows it, and divides by the 0."""
    if dtype.kind in "mM":
        return np.datetime_data(dtype)[1] == 0
    if dtype.subdtype is not None:
        return has_zero_date_step(dtype.subdtype[0])
    return any(has_zero_date_step(field[0]) for field in (dtype.fields or {}).values())


def refuse_masked(x: object) -> None:
    """Raise ``DTypeError`` for a masked array, also for one without axes."""
    # np.ma would import the module: two threads at once would find NumPy half imported, and get a RecursionError.
    if isinstance(x, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise DTypeError("a masked array would lose its mask: fill it, or pass its data and its mask")


def as_array(x: object) -> Array:
    """Return *x* as a NumPy array that can be sharded; ``ShapeError`` or ``DTypeError`` if it is none.

    The result shares the memory of an array of another library, if that is in the memory of the host.
    """
    refuse_masked(x)
    if not isinstance(x, np.ndarray) and type(getattr(x, "layout", None)).__module__ == "meshcomm":
        raise DTypeError(
            "this is a DTensor, not a plain array: pass its t.local, or use relayout; t.sum() and others reduce it"
        )
    if is_foreign(x):
        return as_numpy(x)
    try:
        array: Array = np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"this is not an array: {error}") from None
    if array.dtype.hasobject:
        if x is None:
            raise DTypeError("this is None, not an array; on ranks outside of a mesh, t.local is None")
        as_dtype(array.dtype)  # raises the error
    return array


def plain_value(value: T) -> T | int:
    """Return an integer of NumPy as one of Python; return other values as they are."""
    return int(value) if isinstance(value, np.integer) else value


def check_integer(noun: str, value: object) -> None:
    """Raise ``GroupError`` if *value* is no integer; the message names it by *noun*."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise GroupError(f"{noun} must be an integer, not {quote(value)}")


def check_axis(noun: str, axis: int, shape: Shape) -> None:
    """Raise ``GroupError`` if *axis* is no integer, ``ShapeError`` if *shape* has no such axis, counted from 0."""
    check_integer(noun, axis)
    if not 0 <= axis < len(shape):
        raise ShapeError(f"{noun} {quote(axis)} is out of range of input rank {len(shape)}")


def quote_briefly(value: object) -> str:
    """Return ``repr(value)``, shortened if it is longer than 80 characters."""
    text = quote(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def normalised_axes(axis: object, ndim: int) -> tuple[int, ...]:
    """Return *axis* as a tuple of axes from 0, ascending; None is all axes.

    ``ShapeError`` if a tensor with *ndim* axes has no such axis, or if an axis is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        axis_list = [operator.index(a) for a in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise IntegerError(f"axis must be an integer, a tuple of integers, or None, not {axis!r}") from None
    for a in axis_list:
        if not -ndim <= a < ndim:
            raise AxisError(f"axis {quote(a)} is out of range for a tensor with {counted(ndim, 'axis')}")
    axes = tuple(sorted({a % ndim for a in axis_list}))
    if len(axes) < len(axis_list):
        raise ShapeError(f"axis {axis} names an axis twice")
    return axes


def reduced_axes(axis: object, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction as `normalised_axes` does; ``TypeError`` for a list, as in NumPy."""
    if isinstance(axis, list):
        raise IntegerError(f"axis must be an integer, a tuple of integers, or None, not the list {quote(axis)}")
    return normalised_axes(axis, ndim)
