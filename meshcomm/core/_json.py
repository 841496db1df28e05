"""What JSON of a file or of another rank holds, read by its keys."""

from typing import Any, TypeGuard, TypeVar

from meshcomm.core._arguments import quote
from meshcomm.core._types import Json

T = TypeVar("T")


def at(value: object, *keys: str | int) -> Json:
    """Return what the *keys* lead to in *value*. What they raise is what Python's own indices raise.

    >>> at({"a": [1, {"b": 2}]}, "a", 1, "b")
    2
    """
    content: Any = value
    for key in keys:
        content = content[key]
    result: Json = content
    return result


def read(kind: type[T], value: object, *keys: str | int) -> T:
    """Return what the *keys* lead to in *value*; ``TypeError`` if that is no *kind*.

    >>> read(int, {"a": [1, 2]}, "a", 1)
    2
    """
    result = at(value, *keys)
    if not isinstance(result, kind):
        raise TypeError(f"{quote(result)} is no {kind.__name__}")
    return result


def are_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether *value* is a list of integers, zero or more."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
