"""numpy.testing, whose functions take tensors."""

import typing as _typing

import numpy.testing as _numpys

if _typing.TYPE_CHECKING:
    from numpy.testing import *  # noqa: F403
else:
    __all__ = list(_numpys.__all__)

    def __getattr__(name: str) -> object:
        return getattr(_numpys, name)


def __dir__() -> list[str]:
    return sorted(_numpys.__all__)
