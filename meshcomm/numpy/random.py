"""numpy.random's names: one stream of numbers for all ranks; see `meshcomm.random.names`."""

import typing as _typing
from importlib import import_module as _import_module

import numpy.random as _numpy_random

if _typing.TYPE_CHECKING:
    from numpy.random import *  # noqa: F403
else:
    __all__ = list(_numpy_random.__all__)

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = _import_module("meshcomm.random.names").named(name)
        return value


def __dir__() -> list[str]:
    return sorted(_numpy_random.__all__)
