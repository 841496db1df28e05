"""Reading of JSON values from files and from other ranks, with checks of their types."""

from typing import Any, TypeGuard, TypeVar

from meshcomm.core._arguments import quote

T = TypeVar("T")


def read(kind: type[T], value: object, *keys: str | int) -> T:
    """Return the entry of *value* at *keys*, one inside the other; ``TypeError`` if it is no *kind*.

    Keys that are not there raise the errors of Python's own indexing.

    >>> read(int, {"a": [1, {"b": 2}]}, "a", 1, "b")
    2
    """
    content: Any = value
    for key in keys:
        content = content[key]
    if not isinstance(content, kind):
        raise TypeError(f"{quote(content)} is no {kind.__name__}")
    return content


def are_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether *value* is a list of integers, zero or more."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
