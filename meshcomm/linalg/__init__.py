"""Linear algebra on tensors with NumPy's and SciPy's names; :mod:`meshcomm.linalg.scalapack` calls ScaLAPACK itself.

The functions of numpy.linalg take tensors, too. Those here also take ``layout=``. `plan` tells which way they go.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from meshcomm.core._lazy import modules_of
from meshcomm.core._mistakes import only_public

if TYPE_CHECKING:
    from meshcomm.linalg._public import *  # noqa: F403
else:  # checkers know these names, and see misspelt ones
    _MODULE_OF = modules_of(__name__)
    __all__ = list(_MODULE_OF)
    _missing, __dir__ = only_public(__name__, __all__)

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for."""
        if name not in _MODULE_OF:
            return _missing(name)
        module = _MODULE_OF[name]
        return import_module(f"{module}.{name}") if module == __name__ else getattr(import_module(module), name)
