"""meshcomm: meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.

A `Mesh` names the dimensions of a grid of ranks. A `Layout` says which elements of a global array each rank holds. A
`DTensor` is a global array in a layout, and `relayout` moves it to any other layout.
"""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

try:
    import meshcomm._kernels
except ModuleNotFoundError:
    from meshcomm.core.failures.launchers import reported_by_first

    raise reported_by_first(
        ImportError(
            f"the compiled part of meshcomm is not in {__path__[0]}. If that is a clone of the sources, start Python "
            'in another directory to use the installed package, or build it here: pip install -e ".[mpich]"'
        )
    ) from None

import meshcomm.adapters.on_import  # noqa: F401 - sees autograd being imported
from meshcomm.core._lazy import modules_of as _modules_of
from meshcomm.core._mistakes import OF_THE_PACKAGE as _OF_THE_PACKAGE
from meshcomm.core._mistakes import missing_attribute as _missing_attribute
from meshcomm.core.failures import launchers as _launchers

if _typing.TYPE_CHECKING:
    from meshcomm._public import *  # noqa: F403

__version__ = "0.1.0"

_METHODS = {
    "core.layouts.layout": "tools.pictures.of_layouts",
    "core.layouts.mesh": "tools.pictures.of_meshes",
    "core.plans.plan": "tools.pictures.of_plans",
}
"""Modules that give the classes of another module their last methods, once that one is there."""

_imported = _modules_of(__name__)
_MODULES = [name for name, module in _imported.items() if module == "meshcomm"]
_module_of = {name: module for name, module in _imported.items() if module != "meshcomm"}

if not _typing.TYPE_CHECKING:  # checkers know the names of _public, and see misspelt ones
    __all__ = [name for name in _module_of if name != "open"]  # "import *" leaves Python's own

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for, so that ``import meshcomm`` takes no longer than NumPy."""
        if name in _MODULES:
            value = _import_module(f"meshcomm.{name}")
        elif name in _module_of:
            value = globals()[name] = getattr(_import_module(_module_of[name]), name)
        else:
            raise _missing_attribute("meshcomm", name, _OF_THE_PACKAGE, __dir__(), _sys.modules[__name__])
        for folder, methods in _METHODS.items():
            if f"meshcomm.{folder}" in _sys.modules:
                _import_module(f"meshcomm.{methods}")
        return value


def __dir__() -> list[str]:
    return sorted([*_module_of, *_MODULES, "__version__"])


if (_launchers.launched() or (0, 1))[1] > 1:  # an error ends the job even before the first call
    _import_module("meshcomm.core.ranks.meshes")
if _launchers.folder_in(_launchers.TRACE_FOLDER):
    _import_module("meshcomm.tools.measuring.program").start()
