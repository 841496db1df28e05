"""Who has the public names of a package, without importing any of them."""

import sys
from types import SimpleNamespace
from typing import Any


def modules_of(package: str) -> dict[str, str]:
    """Return the module that has each public name of a *package*; of a public module, the package itself.

    The imports of the package's ``_public`` say so. Here they run and import nothing: this also works where there are
    no sources.

    >>> modules_of("meshcomm")["zeros"], modules_of("meshcomm")["fft"]
    ('meshcomm.core.arrays.create', 'meshcomm')
    """
    modules: dict[str, str] = {}

    def note(module: str, _globals: object, _locals: object, names: tuple[str, ...], _level: int) -> object:
        modules.update(dict.fromkeys(names, module))
        return SimpleNamespace(**dict.fromkeys(names))

    public, path = f"{package}._public", sys.modules[package].__path__
    specs = (finder.find_spec(public, path) for finder in sys.meta_path)
    loader: Any = next(spec for spec in specs if spec).loader
    exec(loader.get_code(public), {"__builtins__": {"__import__": note}})
    return dict(sorted(modules.items()))
