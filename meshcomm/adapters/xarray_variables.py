"""Functions for the adapters of xarray: its modules in all versions, and whether a variable holds a tensor."""

import importlib
from types import ModuleType

from xarray.core import indexing
from xarray.core.variable import Variable

from meshcomm.core.arrays.dtensor import DTensor


def module_of(new: str, old: str) -> ModuleType:
    """Return a module of xarray by its new name, or by its old one from before 2025.9."""
    try:
        return importlib.import_module(new)
    except ImportError:
        return importlib.import_module(old)


def is_of_ranks(variable: Variable) -> bool:
    """Return whether a variable holds a tensor, or has not been read from a file that all ranks read."""
    data = variable._data  # noqa: SLF001
    while isinstance(data, indexing.ExplicitlyIndexed) and hasattr(data, "array"):
        data = data.array
    return isinstance(data, DTensor) or getattr(data, "read_by_all_ranks", False)
