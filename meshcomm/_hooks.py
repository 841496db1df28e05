"""What a method of an early module does when its work lives in a later one.

Modules import only from those above them. ``Mesh.world`` or ``Plan.execute`` read best as methods, yet need modules
far below; each of those registers its part here once, when it is imported.
"""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


_hooked: dict[str, Callable[..., Any]] = {}


def provides(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as the part called *name*. Local."""

    def register(function: F) -> F:
        _hooked[name] = function
        return function

    return register


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the part registered as *name*. Local."""
    return _hooked[name](*args, **kwargs)
