"""Linear algebra on tensors with NumPy's and SciPy's names; :mod:`meshcomm.linalg.scalapack` calls ScaLAPACK itself.

The functions of numpy.linalg take tensors, too. Those here also take ``layout=``. `plan` tells which way they go.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from meshcomm.core._lazy import homes
from meshcomm.core._mistakes import only_public

if TYPE_CHECKING:
    from meshcomm.linalg._public import *  # noqa: F403
else:  # checkers know these names, and see misspelt ones
    _HOME_OF = homes(__name__)
    __all__ = list(_HOME_OF)
    _missing, __dir__ = only_public(__name__, __all__)

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for."""
        if name not in _HOME_OF:
            return _missing(name)
        home = _HOME_OF[name]
        return import_module(f"{home}.{name}") if home == __name__ else getattr(import_module(home), name)
