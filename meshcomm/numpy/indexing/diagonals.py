"""Diagonals of tensors: views, as NumPy's, in a layout that keeps every element on the device that has it.

Of an axis of rows and one of columns, each cut into consecutive blocks, a diagonal runs through blocks from the upper
left to the lower right. So in the order of these blocks, row by row, their intervals of the diagonal follow each
other: the diagonal has `Cuts` over the mesh dimensions of both axes. Most of its intervals are empty.

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
from meshcomm.blocks.moved import moved_from
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
    rows, columns: slices of the rows and columns of the block of a device that it crosses, of equal lengths
    """

    spec: Names
    length: int
    rows: slice
    columns: slice


def kept_diagonal(
    layout: Layout, shape: Shape, axes: tuple[int, int], offset: int, device: int | None
) -> Diagonal | None:
    """Return the diagonal of an array of *shape* in *layout* on *device*; None if elements must move.

    They must if one of the axes is cyclic.

    Parameters
    ----------
    layout, shape: layout and shape of the array
    axes: axis of the rows and axis of the columns
    offset: number of columns by which the diagonal is right of the main one
    device: device that has the block; None for a rank outside of the mesh

    >>> from meshcomm import Mesh
    >>> layout = Layout(["x", "y"], Mesh(range(4), {"x": 2, "y": 2}))
    >>> found = kept_diagonal(layout, (6, 6), (0, 1), 0, 3)
    >>> found.spec, found.rows, found.columns
    (Cuts(('x', 'y'), (0, 3, 3, 3, 6)), slice(0, 3, None), slice(0, 3, None))
    """
    cuts = [layout.cut(axis, shape[axis]) for axis in axes]
    if not all(cut.is_consecutive or cut.blocks == 1 for cut in cuts):
        return None
    first = max(-offset, 0), max(offset, 0)  # the row and the column where the diagonal begins
    length = max(0, min(shape[axis] - begin for axis, begin in zip(axes, first, strict=True)))
    spans = [_spans(cut, begin, length) for cut, begin in zip(cuts, first, strict=True)]
    intervals = [(max(a, c), min(b, d)) for (a, b), (c, d) in product(*spans)]
    bounds = [0, *accumulate(max(0, stop - start) for start, stop in intervals)]
    spec = cut_at((*layout.axes[axes[0]], *layout.axes[axes[1]]), bounds, length)
    if device is None:
        return Diagonal(spec, length, slice(0, 0), slice(0, 0))
    numbers = [layout.block_numbers(device)[axis] for axis in axes]
    start, stop = intervals[numbers[0] * len(spans[1]) + numbers[1]]
    count = max(0, stop - start)
    begins = [
        start + begin - (cut.start(number) if cut.is_consecutive else 0) if count else 0
        for cut, begin, number in zip(cuts, first, numbers, strict=True)
    ]
    return Diagonal(spec, length, *(slice(begin, begin + count) for begin in begins))


def _spans(cut: AnyCut, begin: int, length: int) -> list[tuple[int, int]]:
    """Return what each block of an axis has of a diagonal that begins at the index *begin*."""
    ends = cut.all_starts() if cut.is_consecutive else [0, cut.length]
    within = [min(max(end - begin, 0), length) for end in ends]
    return list(pairwise(within))


@implements(np.diagonal, partly=True)
def diagonal(a: DTensor, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> DTensor:
    """Return the diagonals of matrices along the last axis: a view that cannot be written to.

    Each element stays on its device, in `Cuts` over the mesh dimensions of both axes. The result is a copy, and this
    Collective, if one of the axes is cyclic.

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
    """Return the main diagonals along the last axis, as numpy.einsum makes them: a view that can be written to."""
    return _diagonal_view(tensor, *axes, 0, _writeable_diagonal(abstract_array(tensor), *axes))


def _diagonal_view(tensor: DTensor, rows: int, columns: int, offset: int, of: Array) -> DTensor:
    kept_view = _local_diagonal(tensor, rows, columns, offset)
    if kept_view is not None:
        return viewed(lambda _: kept_view._block, tensor, kept_view.layout, of)
    moved = _local_diagonal(relaid(tensor, tensor.layout.undealt((rows, columns)), "diagonal"), rows, columns, offset)
    assert moved is not None
    return moved_from(tensor, moved, of)


def _writeable_diagonal(array: Array, rows: int, columns: int) -> Array:
    """Return a view of the main diagonals of *array* along the last axis."""
    axes = [rows if axis == columns else axis for axis in range(array.ndim)]
    return np.einsum(array, axes, [*(axis for axis in axes if axis != rows), rows])


def _local_diagonal(tensor: DTensor, rows: int, columns: int, offset: int) -> DTensor | None:
    """Return a diagonal that stays where it is, or None."""
    part = kept_diagonal(tensor.layout, tensor.shape, (rows, columns), offset, tensor.mesh.rank)
    if part is None:
        return None
    others = [axis for axis in range(tensor.ndim) if axis not in (rows, columns)]
    layout = Layout([*(tensor.layout.axes[axis] for axis in others), part.spec], tensor.mesh)
    taken = [slice(None)] * tensor.ndim
    taken[rows], taken[columns] = part.rows, part.columns
    local = on_blocks(lambda block: _writeable_diagonal(block[tuple(taken)], rows, columns), tensor)
    return make(local, layout, (*(tensor.shape[axis] for axis in others), part.length), tensor.dtype)


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
def _of_last_axes(x: DTensor, offset: int = 0) -> DTensor:
    return diagonal(x, offset, -2, -1)


@implements(getattr(np.linalg, "trace", None))
def _trace_of_last_axes(x: DTensor, offset: int = 0, dtype: DTypeLike | None = None) -> DTensor:
    return trace(x, offset, -2, -1, dtype)
