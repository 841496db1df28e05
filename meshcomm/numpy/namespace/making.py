"""Tensors on the default mesh: of arrays that all ranks have, and of what each rank makes of its own block."""

from collections.abc import Callable
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import make
from meshcomm.blocks.small import together
from meshcomm.core._arguments import as_shape
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_BELOW
from meshcomm.core._types import Array, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks.agreement import checks_every_call
from meshcomm.core.ranks.meshes import location_in, mesh_of_program
from meshcomm.numpy.namespace.devices import Device, layout_on


class Home:
    """Where small arrays lie: on all ranks of a mesh, in layouts that are made once."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.everyone: bool = mesh.size == mesh.world.size
        self.whole = [Layout.replicated(mesh, ndim) for ndim in range(65)]
        here = location_in(mesh)
        self._team = None if here is None or len(here.team.ranks) == 1 else here.team

    def made(self, array: Array) -> Value:
        """Return what the program gets of an array that all ranks have: the array in a script, else its tensor."""
        return array if has_arrays(self.mesh) else self.make(array)

    def make(self, array: Array) -> DTensor:
        """Return the tensor of a small array, whose memory it takes."""
        block = array if type(array) is np.ndarray and array.flags.c_contiguous else np.array(array, order="C")
        outside = not self.everyone and location_in(self.mesh) is None
        return make(None if outside else block, self.whole[block.ndim], block.shape, block.dtype)

    def noted(self, array: Array) -> Value:
        """Return what `made` does, and note what the array holds, as `note` does, in less time."""
        if watch.any_closed or watch.simulated is not None or checks_every_call():
            note(array, self.mesh)
        elif self._team is not None:
            self._team.note(crc32(array.tobytes()))
        return self.made(array)


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


def has_arrays(mesh: Mesh) -> bool:
    """Return whether what is whole on each rank of *mesh* is an array of NumPy: in a script, on its only rank."""
    return is_scripted() and mesh.size == mesh.world.size == 1


def for_program(tensor: DTensor) -> Value:
    """Return what the program gets for a tensor in the layout of the rule: of a whole one, a script gets the array."""
    return tensor.local if has_arrays(tensor.mesh) and tensor.layout.is_fully_replicated() else tensor


def is_home(mesh: Mesh) -> bool:
    """Return whether the program has made arrays on *mesh* by the rule of creation."""
    return id(mesh) in _homes


def of_array(array: Array, where: Device | None = None) -> Value:
    """Return an array that all ranks have, and that is the tensor's from now on, as a tensor.

    An array of objects stays as it is, as tensors have none.
    """
    if where is None:
        if array.dtype.hasobject:
            return array
        if array.nbytes < WHOLE_BELOW or layout_on(None, array.shape, array.dtype).is_fully_replicated():
            return home().made(array)
    return create.distribute(array, layout_on(where, array.shape, array.dtype))


def of_data(array: Array, where: Device | None = None) -> Value:
    """Return an array as `of_array` does, and note what it holds: the next collective call compares it.

    ``CollectiveMismatch`` there if the arrays of the ranks differ.
    """
    if where is None and array.nbytes < WHOLE_BELOW and not array.dtype.hasobject:
        return home().noted(array)
    made = of_array(array, where)
    if isinstance(made, DTensor):
        note(array, made.mesh)
    return made


def note(array: Array, mesh: Mesh) -> None:
    """Let the next collective call compare what an array holds that all ranks pass."""
    here = location_in(mesh)
    if here is None or len(here.team.ranks) == 1:
        return
    if checks_every_call():
        together("numpy.array", mesh, lambda _: f"numpy.array of {create.plain_text(array)}", lambda: None)
    else:  # a checksum: it is to find what differs, not to keep anybody out, and small arrays are made fast
        here.team.note(crc32(as_bytes(np.ascontiguousarray(array)).data))


def by_blocks(
    shape: ShapeLike, dtype: DTypeLike, where: Device | None, block: Callable[[tuple[slice, ...]], Array]
) -> Value:
    """Return the tensor whose block is what *block* makes of its slices, on each rank.

    Parameters
    ----------
    shape, dtype: of the global array
    where: by default where the rule says
    block: takes the slices of the global array that a rank holds
    """
    lengths, kind = as_shape(shape), np.dtype(dtype)
    tensor = create.from_callback(lengths, kind, layout_on(where, lengths, kind), block)
    return for_program(tensor) if where is None else tensor
