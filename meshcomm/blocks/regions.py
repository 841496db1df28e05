"""Regions of a tensor that each rank chooses for itself: the box of the input that its block of the output needs."""

from collections.abc import Callable

from meshcomm.blocks.reduce import group_along
from meshcomm.blocks.rules import dims_that_cut
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.boxes import Box, box_shape, box_size
from meshcomm.core.memory.copies import contiguous
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import agree_on, collective
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.transport.choose import exchange, on_arrays
from meshcomm.core.transport.exchange import ExchangeSpec, from_boxes


def read_box(tensor: DTensor, find_box: Callable[[], Box], call: str) -> Array:
    """Return the elements of *tensor* in the box that *find_box* returns. Collective if it is sharded.

    A function passed to `mapped` may call it: ranks outside of the mesh take no part. Ranks may read different boxes,
    which may overlap or be empty. An error of *find_box* on one rank is raised on all.

    Parameters
    ----------
    tensor: tensor in consecutive blocks
    find_box: function that returns the box in global indices, start and stop for each axis
    call: text of the call, which the ranks compare
    """
    names = dims_that_cut(tensor.mesh, [name for spec in tensor.layout.axes for name in spec])
    if not names:
        return contiguous(cut_out(tensor._block, find_box()))
    text = f"{call} of {tensor.shape} {tensor.dtype} in {tensor.layout.specs_text} on "
    text += mesh_description(tensor.mesh)
    with collective(call.partition("(")[0], tensor.mesh) as location:
        assert location is not None
        group, position = group_along(location, tensor.mesh, names)
        box = agree_on(location.rank_set, text, find_box)
        all_boxes = group.communicator().allgather_json(box)
        targets = [tuple((begin, end) for begin, end, *_ in peer_box) for peer_box in all_boxes]
        devices = [tensor.mesh.ranks.index(rank) for rank in group.members]
        sources = [tensor.layout.block_box(tensor.shape, device) for device in devices]
        max_bytes = max(map(box_size, (*sources, *targets))) * tensor.dtype.itemsize
        exchange_spec = ExchangeSpec(fingerprint(text), max_bytes, rounds=max(1, -(-2 * max_bytes // DEFAULT_SCRATCH)))
        box_exchange = from_boxes(tensor.dtype.itemsize, position, sources, targets)
        return on_arrays(exchange(group, [box_exchange], exchange_spec), box_shape(box))(contiguous(tensor._block))
