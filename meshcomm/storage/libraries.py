"""Packages that some formats need, which are imported when they are needed, and what their arrays have in common."""

from importlib import import_module
from types import ModuleType
from typing import Protocol

from meshcomm.core._types import Array, DType, Shape


class Sliced(Protocol):
    """An array of a library: slices along all its axes read what they take."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> DType: ...

    def __getitem__(self, index: tuple[slice, ...]) -> Array: ...


def library(name: str, needs: str) -> ModuleType:
    """Return the package *name*; ``ImportError`` says what *needs* it, and how to get it."""
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(f"{needs}: pip install {name}") from None
