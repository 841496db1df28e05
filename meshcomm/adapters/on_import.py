"""Loads the adapter of another library when a program imports that library."""

import importlib
import sys
from typing import TYPE_CHECKING

from meshcomm._callers import warn

if TYPE_CHECKING:  # ``import meshcomm`` imports this file, and so it imports little
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _AutogradFinder:
    """Sees autograd being imported, and then teaches it DTensors."""

    _asks_others = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "autograd" or self._asks_others:
            return None
        from importlib.util import find_spec

        self._asks_others = True
        try:
            spec = find_spec(name)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                _teach_autograd()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _teach_autograd() -> None:
    try:
        importlib.import_module("meshcomm.adapters.autograd")
    except (ImportError, AttributeError) as error:
        warn(f"gradients do not go through meshcomm with this version of autograd: {error}")


if "autograd" in sys.modules:
    _teach_autograd()
else:
    sys.meta_path.insert(0, _AutogradFinder())
