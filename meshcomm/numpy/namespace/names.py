"""What each name of `meshcomm.numpy` is: NumPy's own, one of ours, or an error that says what to use."""

from importlib import import_module

from meshcomm.blocks.tensor_numpy import untyped_np
from meshcomm.core.arrays.scripted import is_alone
from meshcomm.numpy.namespace import creation, files, grids, growing  # noqa: F401 - growing registers its functions
from meshcomm.numpy.namespace.arrays import WholeArray

SUBMODULES = ("fft", "linalg", "random", "testing")
"""Modules of NumPy that are modules here, too."""


OWN_MEMBERS = {**creation.OWN_FUNCTIONS, **files.OWN_FUNCTIONS, "ndarray": WholeArray}
"""What is ours, by NumPy's names."""


def member_named(name: str) -> object:
    """Return what *name* of NumPy is here. In a script on one rank, no array is cut, and all are NumPy's own."""
    if is_alone() and name != "random":
        return getattr(untyped_np, name)
    if name in SUBMODULES:
        return import_module(f"meshcomm.numpy.{name}")
    if name in OWN_MEMBERS:
        return OWN_MEMBERS[name]
    if name in ("mgrid", "ogrid"):
        return grids.CoordinateGrid(name)
    if name in ("r_", "c_"):
        return grids.Joined(name)
    return getattr(untyped_np, name)
