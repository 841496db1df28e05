"""A relayout that also puts the axes in another order, in one copy of the data."""

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.moving import RELAYOUT
from meshcomm.core.arrays.views import in_memory_order
from meshcomm.core.layouts.layout import Layout


def relayout_transposed(tensor: DTensor, order: tuple[int, ...], layout: Layout) -> DTensor:
    """Return *tensor* with its axes in this *order*, in *layout*. Collective over the meshes of both.

    The blocks are not transposed first: the relayout copies from where the elements lie.
    """
    local, memory_order = in_memory_order(tensor)
    source = Layout([tensor.layout.axes[axis] for axis in order], tensor.mesh)
    shape = tuple(tensor.shape[axis] for axis in order)
    order = order if memory_order is None else tuple(memory_order[axis] for axis in order)  # of the axes in memory
    key = "transpose", shape, tensor.dtype, source, layout, None, order
    block = RELAYOUT("transpose", (source.mesh, layout.mesh), key, (key,), (local, None))
    return DTensor(block, layout.matched(source), shape, tensor.dtype)
