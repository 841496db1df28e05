"""Results that are put together from pieces, each of which belongs to an interval of the result."""

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.slicing import parsed_index
from meshcomm.core.memory.copies import opaque
from meshcomm.numpy.indexing.indexing import getitem, setitem
from meshcomm.numpy.indexing.slicing import kept_slice


def put(name: str, result: DTensor, where: tuple[slice, ...], piece: DTensor) -> None:
    """Run ``result[where] = piece`` for a piece of this shape and dtype. Collective if an element has to move.

    Only those move that are on other devices. *name* is the operation.
    """
    if kept_slice(result.layout, result.shape, parsed_index(where, result.shape), result.mesh.rank) is None:
        setitem(result, where, piece)  # from within a cyclic block: there is no layout for it
        return
    region = getitem(result, where)
    moved = relaid(piece, region.layout.axes, name, result.mesh)
    map_into(lambda block, new: np.copyto(opaque(block), opaque(new)), region, moved)
