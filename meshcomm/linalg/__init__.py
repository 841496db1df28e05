"""Linear algebra by libraries that are found at run time; each is loaded at its first use.

:mod:`meshcomm.linalg.scalapack` calls ScaLAPACK on tensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshcomm.linalg import scalapack

__all__ = ["scalapack"]

if not TYPE_CHECKING:  # checkers know the import above, and see misspelt names

    def __getattr__(name: str) -> object:
        if name in __all__:
            return import_module(f"meshcomm.linalg.{name}")
        raise AttributeError(f"module 'meshcomm.linalg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
