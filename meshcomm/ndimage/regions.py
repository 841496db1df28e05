"""Regions of a tensor that each rank chooses for itself: the box of the input that its block of the output needs."""

from collections.abc import Callable

from meshcomm.blocks.reduce import group_along
from meshcomm.blocks.rules import sharding
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.boxes import Box, box_shape, box_size
from meshcomm.core.layouts.cyclic import CyclicCut
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.memory.copies import contiguous
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import agree_on, collective
from meshcomm.core.ranks.meshes import location_text
from meshcomm.core.transport.choose import exchange, on_arrays
from meshcomm.core.transport.exchange import ExchangeSpec, from_boxes
from meshcomm.errors import LayoutError


def read(tensor: DTensor, find: Callable[[], Box], call: str) -> tuple[Array | None, Box]:
    """Return the elements of *tensor* in the box that *find* returns, and that box. Collective if it is sharded.

    Ranks may read different boxes, which may overlap, or be empty. What *find* raises on one rank, all raise.

    Parameters
    ----------
    tensor: in consecutive blocks
    find: returns the box, in global indices. A rank outside of the mesh does not call it
    call: what the ranks compare
    """
    refuse_cyclic(tensor)
    if tensor.local is None:
        return None, ((0, 0),) * tensor.ndim
    names = sharding(tensor.mesh, [name for spec in tensor.layout.axes for name in spec])
    if not names:
        box = find()
        return contiguous(cut_out(tensor.local, box)), box
    text = f"{call} of {tensor.shape} {tensor.dtype} in {specs_text(tensor.layout.sharding_specs)} on "
    text += location_text(tensor.mesh)
    with collective(call.partition("(")[0], tensor.mesh) as here:
        assert here is not None
        group, position = group_along(here, tensor.mesh, names)
        box = agree_on(here.team, text, find)
        targets = [tuple(map(tuple, each)) for each in group.communicator().told(box)]
        devices = [tensor.mesh.ranks.index(rank) for rank in group.members]
        sources = [tensor.layout.block_box(tensor.shape, device) for device in devices]
        most = max(map(box_size, (*sources, *targets))) * tensor.dtype.itemsize
        terms = ExchangeSpec(fingerprint(text), most, rounds=max(1, -(-2 * most // DEFAULT_SCRATCH)))
        whole = from_boxes(tensor.dtype.itemsize, position, sources, targets)
        found = on_arrays(exchange(group, [whole], terms), box_shape(box))(contiguous(tensor.local))
    return found, box


def refuse_cyclic(tensor: DTensor) -> None:
    """Raise ``LayoutError`` if an axis is `Cyclic`: its blocks are no boxes."""
    for axis, n in enumerate(tensor.shape):
        if isinstance(tensor.layout.cut(axis, n), CyclicCut):
            names = " + ".join(tensor.layout.axes[axis])
            raise LayoutError(f"axis {axis} is Cyclic: relayout the tensor first, for example to '{names}' there")
