"""Alignment of operands to one layout: tensors move, numbers stay, plain arrays are compared and cut."""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.make import as_sharded, make, mapped
from meshcomm.blocks.rules import NUMBERS, Operand, aligned_axes, is_plain, mesh_of
from meshcomm.blocks.small import agree_on_result, is_short_view, to_all
from meshcomm.core._arguments import as_array, as_dtype
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.create import array_text
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.memory.copies import exact_copy
from meshcomm.core.ranks.agreement import checks_every_call
from meshcomm.core.ranks.calls import collective
from meshcomm.core.ranks.meshes import location_in


def agree_on_plain(name: str, operands: Sequence[object], mesh: Mesh) -> list[Operand]:
    """Return *operands* with lists as arrays. Collective over the mesh if one of them is a plain array.

    ``CollectiveMismatch`` if a plain array is not the same on every rank.
    """
    if not any(map(is_plain, operands)):
        return list(operands)  # type: ignore[arg-type]  # tensors and numbers

    def call_text(arrays: list[Operand]) -> str:
        return f"{name} of {', '.join(map(_operand_text, arrays))}; a plain array must be the same on every rank"

    def make_arrays() -> list[Operand]:
        return [as_array(x) if is_plain(x) else x for x in operands]  # type: ignore[misc]

    plain_operands = list(filter(is_plain, operands))
    if is_scripted() or all(hasattr(x, "as_tensor") for x in plain_operands):
        # All ranks make these arrays alike: the next call that communicates compares them.
        arrays = make_arrays()
        for x in arrays:
            if isinstance(x, np.ndarray) and not x.dtype.hasobject:
                note(x, mesh)
        return arrays
    return agree_on_result(name, mesh, call_text, make_arrays)


def note(array: Array, mesh: Mesh) -> None:
    """Let the next collective call compare the elements of an array that all ranks pass."""
    location = location_in(mesh)
    if location is None or len(location.rank_set.ranks) == 1:
        return
    if array.dtype.names:  # padding between the fields may differ
        for name in array.dtype.names:
            note(array[name], mesh)
        return
    if array.dtype.char in "gG":  # so may the unused bytes of a long double
        array = array.astype("f8" if array.dtype.char == "g" else "c16")
    if checks_every_call():
        agree_on_result("numpy.array", mesh, lambda _: f"numpy.array of {array_text(array)}", lambda: None)
    else:  # a fast checksum: it finds mistakes, it need not resist attacks
        location.rank_set.note(crc32(as_bytes(np.ascontiguousarray(array)).data))


def replicated(x: ArrayLike, mesh: Mesh) -> DTensor:
    """Return a tensor of an array or a number, the same on all ranks. It shares the memory, and must only be read."""
    array = np.asarray(x)
    local = None if location_in(mesh) is None else array
    return make(local, Layout.replicated(mesh, array.ndim), array.shape, as_dtype(array.dtype))


def tensors_of(name: str, operands: Sequence[object]) -> list[DTensor]:
    """Return operands as tensors on the mesh of the tensors among them. Collective if one is a plain array.

    *name* is the operation.
    """
    arrays = [unwrapped(x) for x in operands]
    mesh = mesh_of(arrays)
    return [x if isinstance(x, DTensor) else replicated(x, mesh) for x in agree_on_plain(name, arrays, mesh)]


def _operand_text(operand: Operand) -> str:
    """Return the text of an operand that the ranks compare."""
    if isinstance(operand, DTensor):
        return f"a DTensor of {operand.shape} {operand.dtype} in {operand.layout.specs_text}"
    if not isinstance(operand, np.ndarray) or operand.ndim == 0:
        return f"{operand!r}"
    return array_text(operand)


def aligned_blocks(name: str, operands: Sequence[Operand], shape: Shape, layout: Layout) -> list[Value]:
    """Return the blocks (or numbers) of *operands* that match the block of a result of *shape* in *layout*.

    *name* is the operation. Collective if a tensor is in another layout.
    """
    return [aligned_block(name, x, shape, layout) for x in operands]


def aligned_block(name: str, operand: Operand, shape: Shape, layout: Layout) -> Value:
    """Return the block (or number) of *operand* that matches the block of a result of *shape* in *layout*.

    *name* is the operation. Collective if a tensor is in another layout.
    """
    if isinstance(operand, DTensor):
        if operand.shape == shape and operand.layout is layout:
            return operand._block
        return relaid(operand, aligned_axes(operand.shape, shape, layout), name)._block
    if isinstance(operand, NUMBERS) or operand.ndim == 0:
        return operand
    axes = aligned_axes(operand.shape, shape, layout)
    return as_sharded(operand, Layout(axes, layout.mesh))._block


def relaid(tensor: DTensor, axes: Axes, operation: str, mesh: Mesh | None = None) -> DTensor:
    """Return *tensor* with its axes sharded as *axes* say, or *tensor* itself if it is. Collective if it has to move.

    Parameters
    ----------
    tensor: tensor in any layout
    axes: sharding of each axis, in canonical form
    operation: name of the operation, which the ranks compare, too
    mesh: mesh of the result, by default that of *tensor*
    """
    target = tensor.mesh if mesh is None else mesh
    is_same_mesh = target is tensor.mesh or (target == tensor.mesh and target.world is tensor.mesh.world)
    if tensor.layout.axes == axes and is_same_mesh:
        return tensor
    if target is tensor.mesh and tensor._has_block:
        layout = tensor.layout._recut(axes)
        if tensor.layout.is_fully_replicated():
            if not checks_every_call():  # that mode compares replicas
                return cut_by(layout, tensor)
        elif is_short_view(tensor) and not any(map(layout.cyclic, range(layout.ndim))):
            unsharded = to_all(tensor, operation)
            return unsharded if not any(axes) else cut_by(layout, unsharded)
    with collective(operation, tensor.mesh, target):
        return relayout(tensor, Layout(axes, target))


def cut_by(layout: Layout, tensor: DTensor) -> DTensor:
    """Return a fully replicated tensor in *layout*, which is on its mesh. Nothing moves."""
    return mapped(lambda block: exact_copy(cut_out(block, layout.block_box(tensor.shape))), tensor, layout=layout)
