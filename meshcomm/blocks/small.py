"""What is small: gathered to all ranks, looked up by one of them, or computed by each and compared."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import told_by_root
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.calls import collective, made_by_all


def gathered(name: str, x: DTensor | ArrayLike) -> Array:
    """Return all elements of a small operand on every rank. Collective over its mesh. *name* is the operation."""
    tensor = unwrapped(x)
    if not isinstance(tensor, DTensor):
        return np.asarray(tensor)
    with collective(name, tensor.mesh):
        found = tensor.to_numpy()
    return np.zeros(tensor.shape, tensor.dtype) if found is None else found  # on a rank outside of the mesh


together = made_by_all
"""``together(operation, mesh, call, make)`` returns what *make* makes of what this rank has: `made_by_all`.

What it raises on one rank, all ranks raise. Collective over the mesh.
"""


def looked_up(operation: str, mesh: Mesh, call: str, look: Callable[[], object], root: int = 0) -> Value:
    """Return what *look* returns on device *root*, as JSON holds it; None outside of the mesh. Collective over it.

    What it raises there, all ranks raise.

    Parameters
    ----------
    operation: what messages and the watchdog call it
    mesh: that of *root*
    call: what the ranks compare before it
    look: returns what JSON can hold; runs on *root* only
    root: the device that looks
    """
    with collective(operation, mesh) as here:
        return None if here is None else told_by_root(root, look, call, mesh, here)
