"""New arrays of a program: tensors on the default mesh, of arrays that all ranks have or of each rank's block.

In a script of NumPy, an array that the rule of creation leaves whole is no tensor: each rank has NumPy's array, and NumPy
computes with it. `has_arrays` decides so, and `for_program` and `Home.made` are the doors.
"""

from collections.abc import Callable
from zlib import crc32

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import note
from meshcomm.blocks.make import cut, make
from meshcomm.blocks.rules import aligned_axes
from meshcomm.core import _hooks
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
from meshcomm.core.ranks.agreement import checks_every_call
from meshcomm.core.ranks.meshes import location_in, mesh_of_program
from meshcomm.numpy.namespace._arrays import set_kind
from meshcomm.numpy.namespace.arrays import ScriptArray
from meshcomm.numpy.namespace.devices import Device, layout_on
from meshcomm.numpy.namespace.rule import layout_for


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
        return self.script_array(array) if has_arrays(self.mesh) else self.make(array)

    def script_array(self, array: Array) -> Array:
        """Return an array as that of a script: on several ranks, large results of it are to be cut."""
        return array.view(ScriptArray) if type(array) is np.ndarray and self.mesh.size > 1 else array

    def make(self, array: Array) -> DTensor:
        """Return the tensor of a small array, whose memory it takes."""
        block = np.asarray(array) if array.flags.c_contiguous else np.array(array, order="C")
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
    return home_of(mesh_of_program())


def home_of(mesh: Mesh) -> Home:
    """Return where small arrays lie on *mesh*."""
    found = _homes.get(id(mesh))
    if found is None:
        if len(_homes) > _MOST_HOMES:
            _homes.clear()
        found = _homes[id(mesh)] = Home(mesh)
    return found


_MOST_HOMES = 16


def has_arrays(mesh: Mesh) -> bool:
    """Return whether what is whole on each rank of *mesh*, and so on all ranks, is an array of NumPy: in a script."""
    return is_scripted() and mesh.size == mesh.world.size


@_hooks.provides("whole")
def for_program(tensor: DTensor) -> Value:
    """Return what the program gets for a new tensor: of one that is whole on all ranks, a script gets the array.

    A copy of what NumPy gives as a view stays a tensor, which knows where it came from.
    """
    if not has_arrays(tensor.mesh) or not tensor.layout.is_fully_replicated():
        return tensor
    view = tensor._view
    is_copy = view is None or (view.writeable and not view.origins)
    return home_of(tensor.mesh).script_array(tensor.local) if is_copy and tensor.local is not None else tensor


def is_home(mesh: Mesh) -> bool:
    """Return whether the program has made arrays on *mesh* by the rule of creation."""
    return id(mesh) in _homes


def of_array(array: Array, where: Device | None = None) -> Value:
    """Return an array that all ranks have, and that is the tensor's from now on, as a tensor.

    An array of objects stays as it is, as tensors have none.
    """
    if where is None:
        if array.dtype.hasobject:
            return home().script_array(array) if is_scripted() else array
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


def _grown(ufunc: np.ufunc, a: Array, b: Array) -> Value:
    """Return the result of two arrays of a script, of which each rank makes a block; None if it is not to be cut."""
    mesh = mesh_of_program()
    try:
        dtype = ufunc.resolve_dtypes((a.dtype, b.dtype, None))[-1]
        shape = np.broadcast_shapes(a.shape, b.shape) if ufunc is not np.matmul else (a @ b[..., :0]).shape
    except (TypeError, ValueError):
        return None  # NumPy says so
    layout = layout_for(shape, dtype, mesh)
    if layout.is_fully_replicated() or not has_arrays(mesh):
        return None
    return ufunc(*(cut(np.asarray(x), Layout(aligned_axes(x.shape, shape, layout), mesh)) for x in (a, b)))


def _item(array: Array, index: Value) -> Value:
    """Return what an index with tensors takes of an array of a script."""
    items = index if isinstance(index, tuple) else (index,)
    mesh = next(x.mesh for x in items if isinstance(x, DTensor))
    note(array, mesh)
    return home_of(mesh).make(array)[index]


set_kind(ScriptArray, _grown, of_array, _item)
