"""The modules of the public names of a package, found without importing them."""

import sys
from types import SimpleNamespace
from typing import Any


def modules_of(package: str) -> dict[str, str]:
    """Return the module of each public name of *package*; for a name that is a module, the package.

    The imports of the package's ``_public`` have them. They run here without importing anything: so this works without
    sources, too.

    >>> modules_of("meshcomm")["zeros"], modules_of("meshcomm")["fft"]
    ('meshcomm.core.arrays.create', 'meshcomm')
    """
    modules: dict[str, str] = {}

    def note_import(module: str, _globals: object, _locals: object, names: tuple[str, ...], _level: int) -> object:
        modules.update(dict.fromkeys(names, module))
        return SimpleNamespace(**dict.fromkeys(names))

    public_module, path = f"{package}._public", sys.modules[package].__path__
    specs = (finder.find_spec(public_module, path) for finder in sys.meta_path)
    loader: Any = next(spec for spec in specs if spec).loader
    exec(loader.get_code(public_module), {"__builtins__": {"__import__": note_import}})
    return dict(sorted(modules.items()))
