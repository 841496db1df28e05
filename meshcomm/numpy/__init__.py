"""NumPy's names for tensors: ``import meshcomm.numpy as np``, and a NumPy program runs on all ranks of its job.

Functions that make an array in NumPy make a tensor here, on all ranks, cut by the rule of
`meshcomm.numpy.namespace.rule`. Other functions are NumPy's own, which take tensors. All ranks run the same program
with the same numbers.

>>> import meshcomm as mc
>>> import meshcomm.numpy as np
>>> def program():
...     x = np.arange(200_000.0)
...     return x.local.size, float((2 * x).max())
>>> with mc.simulate(2) as world:
...     print(world.run(program))
[(100000, 399998.0), (100000, 399998.0)]
"""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

import numpy as _np

from meshcomm.core._mistakes import missing_attribute as _missing_attribute

if _typing.TYPE_CHECKING:  # checkers take tensors for arrays of NumPy
    from numpy import *  # noqa: F403

__test__: dict[str, str] = {}  # for pytest, which would take numpy.test for a test
_NAMES = "meshcomm.numpy.namespace.names"

if not _typing.TYPE_CHECKING:
    __all__, __version__ = list(_np.__all__), _np.__version__

    def __getattr__(name: str) -> object:
        """Find a name when it is first asked for, so that the import takes no longer than NumPy's."""
        if name not in __all__ and not hasattr(_np, name):  # such as matlib, once it is imported
            raise _missing_attribute(f"module {__name__!r}", name, {}, __all__, _sys.modules[__name__])
        value = globals()[name] = _import_module(_NAMES).member_named(name)
        return value


def __dir__() -> list[str]:
    return sorted(_np.__all__)
