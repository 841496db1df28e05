"""Packages that some formats need, which are imported when they are needed."""

from importlib import import_module
from types import ModuleType


def library(name: str, needs: str) -> ModuleType:
    """Return the package *name*; ``ImportError`` says what *needs* it, and how to get it."""
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(f"{needs}: pip install {name}") from None
