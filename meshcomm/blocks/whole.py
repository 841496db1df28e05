"""Tensors whose blocks have some axes whole, for functions of NumPy that need all elements along an axis."""

from collections.abc import Callable, Sequence
from math import prod

from meshcomm.blocks.align import relaid
from meshcomm.blocks.rules import dims_that_cut
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.ranks.calls import agree_on, collective


def whole_along(tensor: DTensor, axes: Sequence[int], operation: str = "whole_along") -> DTensor:
    """Return *tensor* in a layout that cuts none of *axes*, or *tensor* itself if its layout cuts none.

    `whole_axes` chooses the layout. Collective over the mesh if one of *axes* is sharded.

    Parameters
    ----------
    tensor: tensor in any layout
    axes: numbers of the axes, from 0
    operation: name of the operation, which the ranks compare, too
    """
    return relaid(tensor, whole_axes(tensor.layout, tensor.shape, axes), operation)


def of_whole_blocks(
    tensor: DTensor, axes: Sequence[int], operation: str, function: Callable[[Array], Array]
) -> tuple[Array | None, Layout]:
    """Return *function* of the block with *axes* unsharded, and the layout of that block.

    Collective over the mesh if one of the axes is sharded; then all ranks raise if *function* raises on one.
    """
    whole = whole_along(tensor, axes, operation)
    local = whole._block
    if whole is tensor:
        return None if local is None else function(local), whole.layout
    with collective(operation, tensor.mesh) as location:
        if location is None or local is None:
            return None, whole.layout
        call = f"{operation} over axes {axes} of {tensor.shape} {tensor.dtype}"
        return agree_on(location.rank_set, call, lambda: function(local)), whole.layout


def whole_axes(layout: Layout, shape: Shape, axes: Sequence[int]) -> Axes:
    """Return how a tensor of *shape* in *layout* is sharded once *axes* are whole.

    The mesh dimensions of *axes* go to the longest unsharded one of the other axes. If all are sharded, they further
    cut the axis with the longest blocks. Devices hold replicas only if the other axes have at most one element.

    >>> from meshcomm import Mesh
    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> whole_axes(Layout(["x", "unsharded", "y"], mesh), (6, 7, 8), (2,))
    (('x',), ('y',), ())
    >>> whole_axes(Layout(["x", "y"], mesh), (6, 7), (1,))
    (('x', 'y'), ())
    """
    moved_names = dims_that_cut(layout.mesh, [name for axis in axes for name in layout.axes[axis]])
    if not moved_names:
        return layout.axes
    result = [() if axis in axes else names for axis, names in enumerate(layout.axes)]
    other_axes = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] > 1]
    unsharded_axes = [axis for axis in other_axes if layout.num_shards(axis) == 1]
    if unsharded_axes:
        result[max(unsharded_axes, key=lambda axis: shape[axis])] = moved_names
    elif other_axes:
        axis = max(other_axes, key=lambda axis: shape[axis] / layout.num_shards(axis))
        result[axis] = (*result[axis], *moved_names)
    return tuple(result)


def is_one_line(shape: Shape, axes: Sequence[int]) -> bool:
    """Return whether all other axes of *shape* than *axes* have length 1, so that no other axis could be cut.

    >>> is_one_line((1, 7), (1,)), is_one_line((2, 7), (1,)), is_one_line((2, 7), (0, 1))
    (True, False, True)
    """
    return prod(length for axis, length in enumerate(shape) if axis not in axes) == 1


def in_flat_order(tensor: DTensor, operation: str) -> DTensor:
    """Return *tensor* with consecutive blocks of its elements in C order. Collective over the mesh if it has to move.

    The first axis with more than one element is cut, over all mesh dimensions that shard the tensor.
    """
    names = dims_that_cut(tensor.mesh, [name for spec in tensor.layout.axes for name in spec])
    cut_axis = next(axis for axis in range(tensor.ndim) if tensor.shape[axis] > 1 or axis == tensor.ndim - 1)
    cut_names = tensor.layout.axes[cut_axis]
    if tuple(cut_names) == names and tensor.layout.cut(cut_axis, tensor.shape[cut_axis]).is_consecutive:
        return tensor  # only this axis is cut
    axes: Axes = tuple(names if axis == cut_axis else () for axis in range(tensor.ndim))
    return relaid(tensor, axes, operation)
