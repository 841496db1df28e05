"""New arrays of a program, by the rule of creation: NumPy arrays if each rank has all elements, else tensors.

`becomes_array` and `for_program` decide which. In a script, each array that is whole on all ranks is a NumPy array. In
other programs only small arrays are NumPy arrays, on any number of ranks.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import note
from meshcomm.blocks.make import as_sharded
from meshcomm.blocks.moved import is_moved
from meshcomm.blocks.rules import aligned_axes
from meshcomm.core import _hooks
from meshcomm.core._arguments import as_shape
from meshcomm.core._types import Array, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_alone, is_scripted
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.meshes import get_default_mesh, mesh_of_program
from meshcomm.numpy.namespace._arrays import set_kind
from meshcomm.numpy.namespace.arrays import WholeArray
from meshcomm.numpy.namespace.devices import Device, layout_on
from meshcomm.numpy.namespace.rule import WHOLE_BELOW, layout_for
from meshcomm.numpy.namespace.small_arrays import ReplicatedMaker, small_arrays, small_arrays_on


def _program_array(maker: ReplicatedMaker, array: Array) -> Array | DTensor:
    """Return the array that the program gets for an array on all ranks; a tensor if the mesh lacks some ranks."""
    return whole_array(array) if maker.everyone else maker.make(array)


def whole_array(array: Array) -> Array:
    """Return an array as a `WholeArray`; unchanged in a script on one rank, which has no tensors."""
    return array if type(array) is not np.ndarray or is_alone() else array.view(WholeArray)


def in_script() -> bool:
    """Return whether the program is a script of NumPy."""
    return is_scripted()


def from_small(array: Array) -> Array | DTensor:
    """Return the array or tensor that the program gets for a small array on all ranks."""
    if is_alone():
        return array
    if get_default_mesh() is None:  # as in most programs; faster than `small_arrays`
        return array.view(WholeArray)
    return _program_array(small_arrays(), array)


def new_arrays_are_on_all_ranks() -> bool:
    """Return whether new arrays are on all ranks, so that small ones are NumPy arrays."""
    return is_alone() or get_default_mesh() is None or small_arrays().everyone


def becomes_array(tensor: DTensor) -> bool:
    """Return whether the program gets a NumPy array for a new tensor, because it is whole on all ranks."""
    if not tensor.layout.is_fully_replicated() or tensor.mesh.size != tensor.mesh.world.size:
        return False
    return is_scripted() or tensor.nbytes < WHOLE_BELOW


@_hooks.provides("whole")
def for_program(tensor: DTensor) -> Array | DTensor:
    """Return the array or tensor that the program gets for a new tensor.

    In a script, the results of all calls pass through here, too.

    A view whose elements had to move stays a tensor, which knows where they are in its base.
    """
    is_read_only = tensor._view is not None and not tensor._view.writeable
    if is_read_only or is_moved(tensor) or not tensor._has_block or not becomes_array(tensor):
        return tensor
    return whole_array(tensor._block)


def from_equal(array: Array, device: Device | None = None) -> Array | DTensor:
    """Return a tensor, or a small array, of an array that is equal on all ranks. A tensor may share its memory.

    *device* is a layout, a mesh or another device; None stands for the rule of creation. An array of objects stays an
    array, as tensors have no objects.
    """
    if device is None:
        if array.dtype.hasobject:
            return whole_array(array)
        if array.nbytes < WHOLE_BELOW:
            return from_small(array)
    tensor = create.distribute(np.asarray(array), layout_on(device, array.shape, array.dtype))
    return for_program(tensor) if device is None else tensor


def from_data(array: Array, device: Device | None = None) -> Array | DTensor:
    """Return the same as `from_equal`, and note elements of a tensor: the next collective call compares them.

    That call raises ``CollectiveMismatch`` if the ranks passed different arrays. A result that is a NumPy array is
    compared when a call takes it together with a tensor.
    """
    if device is None and array.nbytes < WHOLE_BELOW and not array.dtype.hasobject:
        return from_small(array)
    result = from_equal(array, device)
    if isinstance(result, DTensor):
        note(array, result.mesh)
    return result


def create_by_blocks(
    shape: ShapeLike, dtype: DTypeLike, device: Device | None, compute_block: Callable[[tuple[slice, ...]], Array]
) -> Array | DTensor:
    """Return the tensor whose block each rank computes by *compute_block*.

    Parameters
    ----------
    shape, dtype: shape and dtype of the global array
    device: layout, mesh or other device of the tensor; by default that of the rule of creation
    compute_block: function of the slices of the global array that a rank holds, which returns its block
    """
    lengths, out_dtype = as_shape(shape), np.dtype(dtype)
    tensor = create.from_callback(lengths, out_dtype, layout_on(device, lengths, out_dtype), compute_block)
    return for_program(tensor) if device is None else tensor


def _ufunc_by_blocks(ufunc: np.ufunc, a: Array, b: Array) -> object:
    """Return the result of a ufunc on two arrays of a script, by blocks; None if the result is not to be cut."""
    mesh = mesh_of_program()
    try:
        dtype = ufunc.resolve_dtypes((a.dtype, b.dtype, None))[-1]
        shape = np.broadcast_shapes(a.shape, b.shape) if ufunc is not np.matmul else (a @ b[..., :0]).shape
    except (TypeError, ValueError):
        return None  # NumPy raises the error
    layout = layout_for(shape, dtype, mesh)
    is_of_objects = dtype.hasobject or a.dtype.hasobject or b.dtype.hasobject
    if is_of_objects or layout.is_fully_replicated() or mesh.size != mesh.world.size:
        return None
    return ufunc(*(as_sharded(np.asarray(x), Layout(aligned_axes(x.shape, shape, layout), mesh)) for x in (a, b)))


def _taken_item(array: Array, index: object) -> object:
    """Return the elements of an array of a script at an index with tensors."""
    items = index if isinstance(index, tuple) else (index,)
    mesh = next(x.mesh for x in items if isinstance(x, DTensor))
    note(array, mesh)
    return small_arrays_on(mesh).make(array)[index]


set_kind(WholeArray, _ufunc_by_blocks, from_equal, _taken_item)
