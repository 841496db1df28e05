"""Loads the adapter of another library when a program imports that library."""

import importlib
import sys
from typing import TYPE_CHECKING

from meshcomm.core._callers import warn

if TYPE_CHECKING:  # ``import meshcomm`` imports this file, and so it imports little
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

LIBRARIES = {
    "autograd": "gradients do not go through meshcomm",
    "json": "a tensor without axes is no number there",
    "pandas": "arrays that are cut over the ranks of a script are no masks, groups or operands",
    "scipy.integrate": "functions of a script may return no arrays that are cut over its ranks",
    "scipy.optimize": "functions of a script may return no arrays that are cut over its ranks",
    "scipy.ndimage": "filters do not write into arrays that are cut over the ranks of a script",
    "scipy.sparse.linalg": "solvers take no arrays that are cut over the ranks of a script",
    "sklearn.utils._param_validation": "scikit-learn refuses arrays that are cut over the ranks of a script",
    "zarr": "it takes no arrays that are cut over the ranks of a script",
    "xarray": "index arrays or groups of tensors do not work as they should",
}
"""Libraries with an adapter of the same name, with _ for a dot, and the text of a warning if it cannot be loaded."""


class _Finder:
    """A finder of modules that loads the adapter after the import of a library."""

    _is_searching = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in LIBRARIES or self._is_searching:
            return None
        from importlib.util import find_spec

        self._is_searching = True
        try:
            spec = find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                _load_adapter(name)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _load_adapter(name: str) -> None:
    try:
        importlib.import_module(f"meshcomm.adapters.{name.replace('.', '_')}")
    except (ImportError, AttributeError) as error:
        warn(f"{LIBRARIES[name]} with this version of {name}: {error}")


for _name in LIBRARIES:
    if _name in sys.modules:
        _load_adapter(_name)
sys.meta_path.insert(0, _Finder())
