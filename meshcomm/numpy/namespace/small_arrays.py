"""Small arrays as tensors: whole on all ranks of a mesh."""

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import location_in, mesh_of_program


class ReplicatedMaker:
    """A maker of small replicated tensors on one mesh, whose layouts are made once.

    Parameters
    ----------
    mesh: mesh of the tensors
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.everyone: bool = mesh.size == mesh.world.size
        self.layouts = [Layout.replicated(mesh, ndim) for ndim in range(65)]

    def make(self, array: Array) -> DTensor:
        """Return a small array as a tensor that shares its memory, if that is in C order."""
        block = np.asarray(array) if array.flags.c_contiguous else np.array(array, order="C")
        is_outside = not self.everyone and location_in(self.mesh) is None
        return make(None if is_outside else block, self.layouts[block.ndim], block.shape, block.dtype)


_by_mesh: dict[int, ReplicatedMaker] = {}  # by the id of the mesh, which they hold


def small_arrays() -> ReplicatedMaker:
    """Return the `ReplicatedMaker` of the program's current mesh."""
    return small_arrays_on(mesh_of_program())


def small_arrays_on(mesh: Mesh) -> ReplicatedMaker:
    """Return the `ReplicatedMaker` of *mesh*."""
    result = _by_mesh.get(id(mesh))
    if result is None:
        if len(_by_mesh) > _MAX_MESHES:
            _by_mesh.clear()
        result = _by_mesh[id(mesh)] = ReplicatedMaker(mesh)
    return result


_MAX_MESHES = 16
