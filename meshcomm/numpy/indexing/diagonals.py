"""Diagonals of tensors: views, as NumPy's, in a layout that keeps every element on the device that has it.

If the axes of rows and columns are cut into consecutive blocks, a diagonal runs through blocks from the upper left to
the lower right. In the order of these blocks, row by row, their intervals of the diagonal follow each other: the
diagonal has `Cuts` over the mesh dimensions of both axes. Most of its intervals are empty.

            columns 0-2   columns 3-5
    rows 0-3    0 1 2         3         of a diagonal of 6 elements:
    rows 4-5                4 5         Cuts (0, 3, 4, 4, 6)
"""

from itertools import accumulate, pairwise, product
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.moved import moved_view
from meshcomm.blocks.views import abstract_array, viewed
from meshcomm.core._arguments import as_integer
from meshcomm.core._types import Array, Names, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import cut_at
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.reductions.reductions import sum
from meshcomm.numpy.shapes.shaping import normalised_axis


class Diagonal(NamedTuple):
    """A diagonal that keeps every element on its device.

    Parameters
    ----------
    spec: sharding spec of the diagonal
    length: number of elements of the diagonal
    rows, columns: rows and columns of the block that the diagonal crosses, as slices of equal lengths
    """

    spec: Names
    length: int
    rows: slice
    columns: slice


def local_diagonal(
    layout: Layout, shape: Shape, axes: tuple[int, int], offset: int, device: int | None
) -> Diagonal | None:
    """Return the diagonal of an array of *shape* in *layout* on *device*; None if elements must move.

    Elements must move if one of the axes is cyclic.

    Parameters
    ----------
    layout, shape: layout and shape of the array
    axes: axis of the rows and axis of the columns
    offset: number of columns by which the diagonal is right of the main one
    device: device that has the block; None for a rank outside of the mesh

    >>> from meshcomm import Mesh
    >>> layout = Layout(["x", "y"], Mesh(range(4), {"x": 2, "y": 2}))
    >>> diagonal = local_diagonal(layout, (6, 6), (0, 1), 0, 3)
    >>> diagonal.spec, diagonal.rows, diagonal.columns
    (Cuts(('x', 'y'), (0, 3, 3, 3, 6)), slice(0, 3, None), slice(0, 3, None))
    """
    cuts = [layout.cut(axis, shape[axis]) for axis in axes]
    if not all(cut.is_consecutive or cut.blocks == 1 for cut in cuts):
        return None
    starts = max(-offset, 0), max(offset, 0)  # the row and the column where the diagonal begins
    length = max(0, min(shape[axis] - axis_start for axis, axis_start in zip(axes, starts, strict=True)))
    axis_spans = [_block_spans(cut, axis_start, length) for cut, axis_start in zip(cuts, starts, strict=True)]
    intervals = [(max(a, c), min(b, d)) for (a, b), (c, d) in product(*axis_spans)]
    bounds = [0, *accumulate(max(0, stop - start) for start, stop in intervals)]
    spec = cut_at((*layout.axes[axes[0]], *layout.axes[axes[1]]), bounds, length)
    if device is None:
        return Diagonal(spec, length, slice(0, 0), slice(0, 0))
    block_numbers = [layout.block_numbers(device)[axis] for axis in axes]
    start, stop = intervals[block_numbers[0] * len(axis_spans[1]) + block_numbers[1]]
    count = max(0, stop - start)
    block_starts = [
        start + axis_start - (cut.start(block_number) if cut.is_consecutive else 0) if count else 0
        for cut, axis_start, block_number in zip(cuts, starts, block_numbers, strict=True)
    ]
    return Diagonal(spec, length, *(slice(begin, begin + count) for begin in block_starts))


def _block_spans(cut: AnyCut, start: int, length: int) -> list[tuple[int, int]]:
    """Return the interval of a diagonal in each block of an axis; the diagonal begins at the index *start*."""
    ends = cut.all_starts() if cut.is_consecutive else [0, cut.length]
    bounded_ends = [min(max(end - start, 0), length) for end in ends]
    return list(pairwise(bounded_ends))


@implements(np.diagonal, partly=True)
def diagonal(a: DTensor, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> DTensor:
    """Return the diagonals of matrices along the last axis: a read-only view.

    Each element stays on its device, in `Cuts` over the mesh dimensions of both axes. If one of the axes is cyclic,
    the result is a copy, and the call Collective.

    Parameters
    ----------
    a: a tensor of two axes or more
    offset: number of columns by which the diagonal is right of the main one
    axis1, axis2: axis of the rows and axis of the columns

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return np.diagonal(mc.distribute(np.arange(9).reshape(3, 3), rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 4], [8]]
    """
    tensor = as_tensor("diagonal", a)
    if tensor.ndim < 2:
        raise ShapeError(f"diagonal takes a tensor of 2 axes or more, not of shape {tensor.shape}")
    rows, columns = normalised_axis(axis1, tensor.ndim), normalised_axis(axis2, tensor.ndim)
    if rows == columns:
        raise ShapeError(f"diagonal: axis1 and axis2 are both {rows}; they must be two axes")
    offset = as_integer(offset, "offset", TypeError)
    return _diagonal_view(tensor, rows, columns, offset, np.diagonal(abstract_array(tensor), offset, rows, columns))


def main_diagonal(tensor: DTensor, axes: tuple[int, int]) -> DTensor:
    """Return the main diagonals along the last axis, as numpy.einsum does: a writeable view."""
    return _diagonal_view(tensor, *axes, 0, _writeable_diagonal(abstract_array(tensor), *axes))


def _diagonal_view(tensor: DTensor, rows: int, columns: int, offset: int, abstract_view: Array) -> DTensor:
    local_view = _local_diagonal(tensor, rows, columns, offset)
    if local_view is not None:
        return viewed(lambda _: local_view._block, tensor, local_view.layout, abstract_view)
    relaid_view = _local_diagonal(
        relaid(tensor, tensor.layout.as_consecutive((rows, columns)), "diagonal"), rows, columns, offset
    )
    assert relaid_view is not None
    return moved_view(tensor, relaid_view, abstract_view)


def _writeable_diagonal(array: Array, rows: int, columns: int) -> Array:
    """Return a view of the main diagonals of *array* along the last axis."""
    axes = [rows if axis == columns else axis for axis in range(array.ndim)]
    return np.einsum(array, axes, [*(axis for axis in axes if axis != rows), rows])


def _local_diagonal(tensor: DTensor, rows: int, columns: int, offset: int) -> DTensor | None:
    """Return a diagonal whose elements stay on their devices; None if they must move."""
    block_diagonal = local_diagonal(tensor.layout, tensor.shape, (rows, columns), offset, tensor.mesh.rank)
    if block_diagonal is None:
        return None
    other_axes = [axis for axis in range(tensor.ndim) if axis not in (rows, columns)]
    layout = Layout([*(tensor.layout.axes[axis] for axis in other_axes), block_diagonal.spec], tensor.mesh)
    block_index = [slice(None)] * tensor.ndim
    block_index[rows], block_index[columns] = block_diagonal.rows, block_diagonal.columns
    own_block = on_blocks(lambda block: _writeable_diagonal(block[tuple(block_index)], rows, columns), tensor)
    return make(own_block, layout, (*(tensor.shape[axis] for axis in other_axes), block_diagonal.length), tensor.dtype)


@implements(np.trace, partly=True)
def trace(
    a: DTensor,
    offset: int = 0,
    axis1: SupportsIndex = 0,
    axis2: SupportsIndex = 1,
    dtype: DTypeLike | None = None,
) -> DTensor:
    """Return the sums of `diagonal`. Collective over the mesh if the diagonal is sharded."""
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype)


@implements(getattr(np.linalg, "diagonal", None))
def _last_axes_diagonal(x: DTensor, offset: int = 0) -> DTensor:
    return diagonal(x, offset, -2, -1)


@implements(getattr(np.linalg, "trace", None))
def _last_axes_trace(x: DTensor, offset: int = 0, dtype: DTypeLike | None = None) -> DTensor:
    return trace(x, offset, -2, -1, dtype)
