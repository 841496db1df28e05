"""Hooks: functions of higher layers that methods of lower layers call.

Modules import from lower layers only. ``Mesh.world`` or ``Plan.execute`` read best as methods, but need modules above
theirs. There are six such calls. The module that provides a hook registers it here when it is imported; the first call
imports it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias, TypeVar

Hook: TypeAlias = Literal[
    "world",  # of a mesh that is bound to none: the simulated one around, else that of COMM_WORLD
    "relayout",  # by a plan, or to a layout, as a method of the plan or of the tensor
    "numpy",  # NumPy's functions and universal functions, called with tensors
    "whole",  # the value that a script of NumPy gets for a tensor that each rank has whole
    "traced",  # an operation on values that autograd follows
    "namespace",  # the array API standard's functions for the tensors of a mesh
]
F = TypeVar("F", bound=Callable[..., object])

_PROVIDERS: dict[Hook, str] = {
    "world": "meshcomm.core.ranks.meshes",
    "relayout": "meshcomm.core.arrays.relayout",
    "numpy": "meshcomm.numpy.protocols",
    "whole": "meshcomm.numpy.namespace.making",
    "traced": "meshcomm.adapters.autograd",
    "namespace": "meshcomm.array_api.bound",
}
"""The module that provides each hook."""


class _HookTable(dict[Hook, Callable[..., object]]):
    def __missing__(self, hook: Hook) -> Callable[..., object]:
        import_module(_PROVIDERS[hook])
        return self[hook]


_registered = _HookTable()


def provides(hook: Hook) -> Callable[[F], F]:
    """Return a decorator that registers a function for *hook*."""

    def register(function: F) -> F:
        _registered[hook] = function
        return function

    return register


def call(hook: Hook, *args: object, **kwargs: object) -> Any:
    """Call the function that is registered for *hook*."""
    return _registered[hook](*args, **kwargs)
