"""Small data: gathered to all ranks, broadcast from one of them, or computed by each and compared.

:mod:`meshcomm.core.arrays.short` sends short tensors without a plan.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import refuse_masked
from meshcomm.core._tuning import MAX_UNPLANNED_BYTES, SMALL_MESHES, SMALL_MESSAGE
from meshcomm.core._types import Array, Names
from meshcomm.core.arrays import short
from meshcomm.core.arrays.create import broadcast_from_root, from_local
from meshcomm.core.arrays.dtensor import DTensor, check_root, unwrapped
from meshcomm.core.arrays.short import gather_counts
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import cut_at
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.agreement import agree, fingerprint
from meshcomm.core.ranks.calls import agree_on, collective
from meshcomm.core.ranks.meshes import mesh_description

R = TypeVar("R")


def allgather_array(name: str, x: DTensor | ArrayLike) -> Array:
    """Return all elements of a small operand on every rank. Collective over its mesh. *name* is the operation."""
    tensor = unwrapped(x)
    if not isinstance(tensor, DTensor):
        refuse_masked(tensor)
        return np.asarray(tensor)
    with collective(name, tensor.mesh):
        array = tensor.to_numpy()
    return np.zeros(tensor.shape, tensor.dtype) if array is None else array  # on a rank outside of the mesh


def agree_on_result(operation: str, mesh: Mesh, call: str | Callable[[R], str], function: Callable[[], R]) -> R:
    """Return the local result of *function*; all ranks raise if it raises on one, or *call* differs. Collective.

    Parameters
    ----------
    operation: name of the operation for messages and the watchdog
    mesh: the ranks that agree; a rank outside of it agrees with nobody
    call: text that they compare, or a function from the local result to that text
    function: function that runs on each rank
    """
    with collective(operation, mesh) as location:
        return function() if location is None else agree_on(location.rank_set, call, function)


def compare_call(operation: str, mesh: Mesh, call: str) -> None:
    """Add *call* to the digest that the next exchange compares; compare it now if every call is checked.

    *operation* is its name for messages and the watchdog. Collective over the mesh.
    """
    with collective(operation, mesh) as location:
        if location is not None:
            if agreement.checks_every_call():
                agree(location.rank_set, call)
            else:
                location.rank_set.note(fingerprint(call))


def broadcast_from_device(operation: str, mesh: Mesh, call: str, function: Callable[[], R], root: int = 0) -> R | None:
    """Return the result of *function* on device *root*, sent as JSON; None outside of the mesh. Collective over it.

    If it raises there, all ranks raise.

    Parameters
    ----------
    operation: name of the operation for messages and the watchdog
    mesh: mesh of *root*
    call: text of the call, which the ranks compare before it
    function: function that runs on *root* only; JSON can hold its result
    root: the device that runs it; ``MeshError`` if the mesh has no such device
    """
    with collective(operation, mesh) as location:
        check_root(root, mesh)
        return None if location is None else broadcast_from_root(root, function, call, mesh, location)


def tensor_of_lengths(name: str, block: Array | None, mesh: Mesh, specs: Sequence[Names]) -> DTensor:
    """Return the tensor of blocks of any lengths, which the ranks exchange. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    block: block of this rank; None outside of the mesh
    specs: the mesh dimensions along which the blocks of each axis lie one after the other
    """
    with collective(name, mesh):
        return from_local(block, "cuts", mesh=mesh, sharding_specs=list(specs))


def tensor_of_rows(name: str, block: Array | None, mesh: Mesh, names: Names) -> DTensor:
    """Return the tensor of blocks with any number of rows, which the ranks exchange. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    block: block of this rank; None outside of the mesh
    names: the mesh dimensions along which the blocks of the first axis lie one after the other
    """
    if block is None or mesh.size > SMALL_MESHES:
        return tensor_of_lengths(name, block, mesh, [names, *((),) * (0 if block is None else block.ndim - 1)])
    row_shape = block.shape[1:]
    layout = Layout([tuple(names), *((),) * len(row_shape)], mesh)
    call = f"{name}: blocks with rows of {row_shape} {block.dtype} along {names} on {mesh_description(mesh)}"
    ends = row_ends_of(name, call, layout, len(block))
    return DTensor(np.ascontiguousarray(block), cut_by_ends(layout, ends), (ends[-1], *row_shape), block.dtype)


def row_ends_of(name: str, call: str, layout: Layout, count: int) -> tuple[int, ...]:
    """Return 0, and the index where the rows of each block end, in the order of the blocks. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    call: text of the call, which the ranks compare
    layout: layout whose first axis has the rows
    count: number of rows of this rank
    """
    mesh = layout.mesh
    with collective(name, mesh) as location:
        assert location is not None
        if layout.num_shards(0) == 1:
            return 0, count
        counts = gather_counts(location.rank_set, call, count)
        counts_by_block = {
            layout.block_numbers(device)[0]: counts[location.rank_set.ranks.index(rank)]
            for device, rank in enumerate(mesh.ranks)
        }
        return 0, *accumulate(counts_by_block[number] for number in range(len(counts_by_block)))


def cut_by_ends(layout: Layout, ends: Sequence[int]) -> Layout:
    """Return *layout* with the first axis cut where the rows of its blocks end, as `row_ends_of` says."""
    names, *other_names = layout.axes
    return layout._recut((cut_at(tuple(names), ends, ends[-1]) if len(ends) > 2 else names, *other_names))


def is_short_view(tensor: DTensor) -> bool:
    """Return whether a tensor is a short view, such as one of many slices of different lengths that a loop takes."""
    return tensor._view is not None and is_short(tensor)


def is_short(tensor: DTensor) -> bool:
    """Return whether a tensor of at most one axis is short enough to go to all devices without a plan."""
    if tensor.ndim > 1 or not 0 < tensor.nbytes <= MAX_UNPLANNED_BYTES or tensor.mesh.size > SMALL_MESHES:
        return False
    return not any(map(tensor.layout.cyclic, range(tensor.ndim)))


def to_all(tensor: DTensor, name: str) -> DTensor:
    """Return a small tensor replicated on each device. Collective over the mesh. *name* is the operation."""
    target = tensor.layout._recut(((),) * tensor.ndim)
    with collective(name, tensor.mesh) as location:
        local = None if location is None else short.gather_short(name, tensor._spec, tensor._block, location.rank_set)
    return DTensor(local, target, tensor.shape, tensor.dtype)


def broadcast_bytes(name: str, spec: TensorSpec, number: int, data: bytes, device: int) -> bytes:
    """Return the bytes *data* of one device, on all devices of a mesh. Collective over it.

    Parameters
    ----------
    name: name of the operation
    spec, number: spec of the tensor, and the number of the call, the same on all ranks
    data: the bytes of one element on *device*; ignored on other devices
    device: device whose bytes are returned
    """
    return allgather_bytes(name, spec, number, data, SMALL_MESSAGE - short.HEADER_BYTES)(device)[: spec.dtype.itemsize]


def allgather_bytes(name: str, spec: TensorSpec, number: int, data: bytes, max_bytes: int) -> Callable[[int], bytes]:
    """Return a function from a device to its *data*, padded to *max_bytes*. Collective over the mesh.

    Other arguments are those of `broadcast_bytes`.
    """
    size = short.HEADER_BYTES + max_bytes
    with collective(name, spec.mesh) as location:
        assert location is not None
        messages = short.exchange_messages(
            location.rank_set, number ^ short.operation_fingerprint("t[index]", spec), lambda: name, data, size
        )
        positions = location.rank_set.ranks

    def data_of(device: int) -> bytes:
        begin = positions.index(spec.mesh.ranks[device]) * size
        return messages[begin + short.HEADER_BYTES : begin + size]

    return data_of
