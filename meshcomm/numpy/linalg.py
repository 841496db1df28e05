"""numpy.linalg, whose functions take tensors."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

import numpy.linalg as _numpys

if _TYPE_CHECKING:
    from numpy.linalg import *  # noqa: F403
else:
    __all__ = list(_numpys.__all__)

    def __getattr__(name: str) -> object:
        return getattr(_numpys, name)


def __dir__() -> list[str]:
    return sorted(_numpys.__all__)
