"""Pickles: the content of those of frozen dataclasses, and the modules that pickles of version 0.1 name."""

import sys
from importlib import import_module
from types import ModuleType
from typing import ClassVar

HOMES = {
    "_patterns": ("training.patterns",),
    "between": ("plans.cross_mesh",),
    "initializers": ("ops.random",),
    "layout": ("layouts.layout", "layouts.layout_text"),
    "layout_map": ("training.layout_map",),
    "machine": ("layouts.machine",),
    "mesh": ("layouts.mesh", "layouts.dimensions"),
    "plan": ("plans.plan", "plans.search"),
    "steps": ("plans.step",),
    "topology": ("training.topology", "training.assignment"),
}
"""The modules that pickles of version 0.1 name, and for each the modules that have its names now."""


class FieldsOnly:
    """A base of frozen dataclasses: a pickle has their fields, and no cached values such as a hash."""

    __slots__ = ()
    renamed: ClassVar[dict[str, str]] = {}
    """The names that fields had in version 0.1."""

    def __getstate__(self) -> dict[str, object]:
        from dataclasses import fields  # here, as its import takes long

        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, object]) -> None:
        from dataclasses import MISSING, fields

        for field in fields(self):  # type: ignore[arg-type]
            value = state.get(field.name, state.get(self.renamed.get(field.name, ""), field.default))
            if value is MISSING:
                raise AttributeError(f"a pickle of {type(self).__name__} has no {field.name}")
            object.__setattr__(self, field.name, value)


class OldModule(ModuleType):
    """A module of version 0.1 that is gone; its names are looked up in the modules that have them now."""

    def __getattr__(self, name: str) -> object:
        for home in HOMES[self.__name__.removeprefix("meshcomm.")]:
            found = getattr(import_module(f"meshcomm.{home}"), name, None)
            if found is not None:
                return found
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def know_old_modules() -> None:
    """Let pickles of version 0.1 find the modules they name."""
    for name in HOMES:
        sys.modules.setdefault(f"meshcomm.{name}", OldModule(f"meshcomm.{name}"))
