"""The members of `meshcomm.numpy` by name: NumPy's own, or one of ours."""

from importlib import import_module

from meshcomm.blocks.tensor_numpy import untyped_np
from meshcomm.core.arrays.scripted import is_alone
from meshcomm.numpy.namespace import creation, files, grids, growing  # noqa: F401 - growing registers its functions
from meshcomm.numpy.namespace.arrays import WholeArray

SUBMODULES = ("fft", "linalg", "random", "testing")
"""Modules of NumPy with a module of ours."""


OWN_MEMBERS = {**creation.OWN_FUNCTIONS, **files.OWN_FUNCTIONS, "ndarray": WholeArray}
"""Our functions and classes, by NumPy's names."""


def member_named(name: str) -> object:
    """Return the member *name* of `meshcomm.numpy`. In a script on one rank no array is cut: all are NumPy's own."""
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
