"""Diagonals of tensors: views, as NumPy's."""

from typing import SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.moved import moved_from
from meshcomm.blocks.views import outline, viewed
from meshcomm.core._arguments import integer
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.diagonal import kept_diagonal
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.reductions.reductions import sum
from meshcomm.numpy.shapes.shaping import axis_of


@implements(np.diagonal, partly=True)
def diagonal(a: DTensor, offset: int = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1) -> DTensor:
    """Return the diagonals of matrices along the last axis: a view that cannot be written to.

    Each element stays on its device, in `Cuts` over the mesh dimensions of both axes. The result is a copy, and this
    Collective, if one of the axes has blocks dealt round.

    Parameters
    ----------
    a: a tensor of two axes or more
    offset: how many columns the diagonal is right of the main one
    axis1, axis2: the axis of the rows, and that of the columns

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
    rows, columns = axis_of(axis1, tensor.ndim), axis_of(axis2, tensor.ndim)
    if rows == columns:
        raise ShapeError(f"diagonal: axis1 and axis2 are both {rows}; they must be two axes")
    offset = integer(offset, "offset", TypeError)
    return _viewed(tensor, rows, columns, offset, np.diagonal(outline(tensor), offset, rows, columns))


def main_diagonal(tensor: DTensor, axes: tuple[int, int]) -> DTensor:
    """Return the main diagonals along the last axis, as numpy.einsum makes them: a view that can be written to."""
    return _viewed(tensor, *axes, 0, _writeable(outline(tensor), *axes))


def _viewed(tensor: DTensor, rows: int, columns: int, offset: int, of: Array) -> DTensor:
    found = _kept(tensor, rows, columns, offset)
    if found is not None:
        return viewed(lambda _: found.local, tensor, found.layout, of)
    moved = _kept(relaid(tensor, tensor.layout.undealt((rows, columns)), "diagonal"), rows, columns, offset)
    assert moved is not None
    return moved_from(tensor, moved, of)


def _writeable(array: Array, rows: int, columns: int) -> Array:
    """Return a view of the main diagonals of *array* along the last axis."""
    axes = [rows if axis == columns else axis for axis in range(array.ndim)]
    view: Array = np.einsum(array, axes, [*(axis for axis in axes if axis != rows), rows])
    return view


def _kept(tensor: DTensor, rows: int, columns: int, offset: int) -> DTensor | None:
    """Return a diagonal that stays where it is, or None."""
    found = kept_diagonal(tensor.layout, tensor.shape, (rows, columns), offset, tensor.mesh.rank)
    if found is None:
        return None
    others = [axis for axis in range(tensor.ndim) if axis not in (rows, columns)]
    layout = Layout([*(tensor.layout.axes[axis] for axis in others), found.spec], tensor.mesh)
    taken = [slice(None)] * tensor.ndim
    taken[rows], taken[columns] = found.rows, found.columns
    local = on_blocks(lambda block: _writeable(block[tuple(taken)], rows, columns), tensor)
    return make(local, layout, (*(tensor.shape[axis] for axis in others), found.length), tensor.dtype)


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
