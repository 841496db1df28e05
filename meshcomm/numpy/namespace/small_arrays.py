"""Where small arrays lie: whole, on all ranks of a mesh."""

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import location_in, mesh_of_program


class SmallArrays:
    """Where small arrays lie: on all ranks of a mesh, in layouts that are made once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.everyone: bool = mesh.size == mesh.world.size
        self.whole = [Layout.replicated(mesh, ndim) for ndim in range(65)]

    def make(self, array: Array) -> DTensor:
        """Return the tensor of a small array, whose memory it takes."""
        block = np.asarray(array) if array.flags.c_contiguous else np.array(array, order="C")
        outside = not self.everyone and location_in(self.mesh) is None
        return make(None if outside else block, self.whole[block.ndim], block.shape, block.dtype)


_by_mesh: dict[int, SmallArrays] = {}  # by the id of the mesh, which they hold


def small_arrays() -> SmallArrays:
    """Return where small arrays lie now."""
    return small_arrays_on(mesh_of_program())


def small_arrays_on(mesh: Mesh) -> SmallArrays:
    """Return where small arrays lie on *mesh*."""
    result = _by_mesh.get(id(mesh))
    if result is None:
        if len(_by_mesh) > _MAX_MESHES:
            _by_mesh.clear()
        result = _by_mesh[id(mesh)] = SmallArrays(mesh)
    return result


_MAX_MESHES = 16
