"""Blocks assembled from intervals of tensors: one exchange brings the elements that other devices hold.

                block 0      block 1
a               0 1 2 3      4 5 6 7
np.roll(a, 1)   7 0 1 2      3 4 5 6        7 and 3 move
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.edges import BlockIntervals, IntervalExchange, interval_exchange_between
from meshcomm.blocks.make import on_device
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._recipes import Call, Recipe
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import opaque

Compute: TypeAlias = Callable[[list[Array], int], Array]
"""A function from the pieces of a block, along the axis, and the number of the block, to the block."""


def assembling(
    name: str,
    tensors: Sequence[DTensor],
    axis: int,
    block_intervals: BlockIntervals,
    layout: Layout,
    *,
    shape: Shape,
    compute: Compute | None = None,
    dtype: DType | None = None,
) -> Call:
    """Return the call that makes a tensor whose blocks are assembled, or computed, from intervals of *tensors*.

    To run it is Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    tensors: tensors as `IntervalExchange` takes them, on the mesh of *layout*
    axis: axis of the intervals
    block_intervals: intervals that each block needs
    layout, shape: layout and global shape of the result
    compute: function from the pieces of a block to the block; by default it joins them
    dtype: dtype of the result; by default that of the tensors

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     wanted = ((0, 2, 3),), ((0, 0, 1), (0, 3, 4))
    ...     return assembling("f", [t], 0, wanted, t.layout, shape=(3,)).run().local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[2], [0, 3]]
    """
    edges = interval_exchange_between(tuple(tensor._spec for tensor in tensors), layout, axis, block_intervals)
    assert edges is not None
    run = partial(_assembled_block, name, edges, shape, compute, tensors[0].dtype if dtype is None else dtype)
    return Call(Recipe(run), tuple(tensors))


def assembling_if_cheaper(
    name: str, tensors: Sequence[DTensor], axis: int, block_intervals: BlockIntervals, layout: Layout, *, shape: Shape
) -> Call | None:
    """Return the call of `assembling`; None, on all ranks, if that is not possible or a relayout is cheaper."""
    edges = None
    if layout.mesh is tensors[0].mesh:
        edges = interval_exchange_between(tuple(tensor._spec for tensor in tensors), layout, axis, block_intervals)
    if edges is None or not edges.is_cheaper_than_relayout:
        return None
    return assembling(name, tensors, axis, block_intervals, layout, shape=shape)


def _assembled_block(
    name: str, edges: IntervalExchange, shape: Shape, compute: Compute | None, dtype: DType, *tensors: DTensor
) -> DTensor:
    axis, layout = edges.axis, edges.layout

    def make_block(device: int) -> Array:
        pieces = [piece for _, _, piece in edges.pieces(tensors, name, device)]
        if compute is not None:
            return compute(pieces, layout.block_numbers(device)[axis])
        return join_blocks(pieces, axis, dtype) if pieces else new_block(layout.block_shape(shape, device), dtype)

    return DTensor(on_device(layout.mesh, make_block), layout, shape, dtype)


def join_blocks(blocks: Sequence[Array], axis: int, dtype: DType) -> Array:
    """Return blocks of this *dtype* joined along *axis*, bit for bit, in its byte order."""
    shape = list(blocks[0].shape)
    shape[axis] = sum(block.shape[axis] for block in blocks)
    joined = new_block(tuple(shape), dtype)
    np.concatenate([opaque(block) for block in blocks], axis, out=opaque(joined))
    return joined
