"""Linear algebra by libraries that are found at run time; each is loaded at its first use.

:mod:`meshcomm.linalg.scalapack` calls ScaLAPACK on tensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from meshcomm._mistakes import only_public

if TYPE_CHECKING:
    from meshcomm.linalg import scalapack

__all__ = ["scalapack"]

if not TYPE_CHECKING:  # checkers know the import above, and see misspelt names
    _missing, __dir__ = only_public(__name__, __all__)

    def __getattr__(name: str) -> object:
        if name in __all__:
            return import_module(f"meshcomm.linalg.{name}")
        return _missing(name)
