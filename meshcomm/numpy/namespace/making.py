"""Tensors on the default mesh: of arrays that all ranks have, and of what each rank makes of its own block."""

from collections.abc import Callable
from functools import lru_cache
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import make
from meshcomm.blocks.small import together
from meshcomm.core._arguments import as_shape
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_BELOW
from meshcomm.core._types import Array, DType, Shape, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks.agreement import checks_every_call
from meshcomm.core.ranks.meshes import common_world, create_mesh, get_default_mesh, location_in
from meshcomm.core.ranks.simulate import current_world
from meshcomm.core.ranks.teams import World
from meshcomm.numpy.namespace.rule import layout_for


def mesh_of_program() -> Mesh:
    """Return the mesh of `meshcomm.default_mesh`; without one, all ranks of the job in one dimension ``x``."""
    return get_default_mesh() or _mesh_of_job(current_world() or common_world())


@lru_cache(maxsize=4)
def _mesh_of_job(world: World) -> Mesh:
    return create_mesh([("x", world.size)])


class Home:
    """Where small arrays lie: on all ranks of a mesh, in layouts that are made once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.everyone: bool = mesh.size == mesh.world.size
        self.whole = [Layout.replicated(mesh, ndim) for ndim in range(65)]

    def make(self, array: Array) -> DTensor:
        """Return the tensor of a small array, whose memory it takes."""
        block = array if type(array) is np.ndarray and array.flags.c_contiguous else np.array(array, order="C")
        outside = not self.everyone and location_in(self.mesh) is None
        return make(None if outside else block, self.whole[block.ndim], block.shape, block.dtype)


_homes: dict[int, Home] = {}  # by the id of the mesh, which they hold


def home() -> Home:
    """Return where small arrays lie now."""
    mesh = mesh_of_program()
    found = _homes.get(id(mesh))
    if found is None:
        if len(_homes) > _MOST_HOMES:
            _homes.clear()
        found = _homes[id(mesh)] = Home(mesh)
    return found


_MOST_HOMES = 16


def layout_of(shape: Shape, dtype: DType, layout: Layout | None = None) -> Layout:
    """Return *layout*, or what the rule says of an array of *shape* and *dtype* on the default mesh."""
    return layout_for(shape, dtype, mesh_of_program()) if layout is None else layout


def of_array(array: Array, layout: Layout | None = None) -> Value:
    """Return an array that all ranks have, and that is the tensor's from now on, as a tensor.

    An array of objects stays as it is, as tensors have none.
    """
    if array.dtype.hasobject:
        return array
    if layout is None and array.nbytes < WHOLE_BELOW:
        return home().make(array)
    where = layout_of(array.shape, array.dtype, layout)
    if layout is None and where.is_fully_replicated():
        return home().make(array)
    return create.distribute(array, where)


def of_data(array: Array, layout: Layout | None = None) -> Value:
    """Return an array as `of_array` does, and note what it holds: the next collective call compares it.

    ``CollectiveMismatch`` there if the arrays of the ranks differ.
    """
    made = of_array(array, layout)
    if isinstance(made, DTensor):
        _note(array, made.mesh)
    return made


def _note(array: Array, mesh: Mesh) -> None:
    here = location_in(mesh)
    if here is None or len(here.team.ranks) == 1:
        return
    if checks_every_call():
        together("numpy.array", mesh, lambda _: f"numpy.array of {create.plain_text(array)}", lambda: None)
    else:  # a checksum: it is to find what differs, not to keep anybody out, and small arrays are made fast
        here.team.note(crc32(as_bytes(np.ascontiguousarray(array)).data))


def by_blocks(
    shape: ShapeLike, dtype: DTypeLike, layout: Layout | None, block: Callable[[tuple[slice, ...]], Array]
) -> DTensor:
    """Return the tensor whose block is what *block* makes of its slices, on each rank.

    Parameters
    ----------
    shape, dtype: of the global array
    layout: by default what the rule says
    block: takes the slices of the global array that a rank holds
    """
    lengths, kind = as_shape(shape), np.dtype(dtype)
    return create.from_callback(lengths, kind, layout_of(lengths, kind, layout), block)
