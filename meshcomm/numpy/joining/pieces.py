"""Results that are assembled from pieces: each piece is written to a slice of the result."""

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.slicing import parsed_index
from meshcomm.core.memory.copies import opaque
from meshcomm.numpy.indexing.indexing import getitem, setitem
from meshcomm.numpy.indexing.slicing import local_slice_of


def put(name: str, result: DTensor, slices: tuple[slice, ...], piece: DTensor) -> None:
    """Run ``result[slices] = piece`` for a piece of this shape and dtype. Collective if an element has to move.

    Only elements that are on other devices move. *name* is the operation.
    """
    if local_slice_of(result.layout, result.shape, parsed_index(slices, result.shape), result.mesh.rank) is None:
        setitem(result, slices, piece)  # a slice that begins within a cyclic block has no layout
        return
    view = getitem(result, slices)
    relaid_piece = relaid(piece, view.layout.axes, name, result.mesh)
    map_into(lambda block, piece_block: np.copyto(opaque(block), opaque(piece_block)), view, relaid_piece)
