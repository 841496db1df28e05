"""numpy.linalg, whose functions take tensors."""

import typing as _typing

import numpy.linalg as _numpys

if _typing.TYPE_CHECKING:
    from numpy.linalg import *  # noqa: F403
else:
    __all__ = list(_numpys.__all__)

    def __getattr__(name: str) -> object:
        return getattr(_numpys, name)


def __dir__() -> list[str]:
    return sorted(_numpys.__all__)
