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
    """Return *tensor* in a layout that cuts none of *axes*: itself if it does so. Else Collective over the mesh.

    `whole_axes` says in which layout.

    Parameters
    ----------
    tensor: tensor in any layout
    axes: counted from 0
    operation: name of the operation, which the ranks compare, too
    """
    return relaid(tensor, whole_axes(tensor.layout, tensor.shape, axes), operation)


def of_whole_blocks(
    tensor: DTensor, axes: Sequence[int], operation: str, function: Callable[[Array], Array]
) -> tuple[Array | None, Layout]:
    """Return what *function* makes of the block that has *axes* whole, and the layout of that block.

    Collective over the mesh if one of the axes is sharded; then all ranks raise what *function* raises on one.
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

    The mesh dimensions of *axes* go to the longest of the other axes that are unsharded. If there is none, they cut
    the blocks of another axis once more: the one with the longest blocks. Devices hold replicas only if the other axes
    have one element at most.

    >>> from meshcomm import Mesh
    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> whole_axes(Layout(["x", "unsharded", "y"], mesh), (6, 7, 8), (2,))
    (('x',), ('y',), ())
    >>> whole_axes(Layout(["x", "y"], mesh), (6, 7), (1,))
    (('x', 'y'), ())
    """
    moving = dims_that_cut(layout.mesh, [name for axis in axes for name in layout.axes[axis]])
    if not moving:
        return layout.axes
    result = [() if axis in axes else names for axis, names in enumerate(layout.axes)]
    others = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] > 1]
    free = [axis for axis in others if layout.num_shards(axis) == 1]
    if free:
        result[max(free, key=lambda axis: shape[axis])] = moving
    elif others:
        axis = max(others, key=lambda axis: shape[axis] / layout.num_shards(axis))
        result[axis] = (*result[axis], *moving)
    return tuple(result)


def is_one_line(shape: Shape, axes: Sequence[int]) -> bool:
    """Return whether an array of *shape* has elements along *axes* only, so that no other axis could be cut.

    >>> is_one_line((1, 7), (1,)), is_one_line((2, 7), (1,)), is_one_line((2, 7), (0, 1))
    (True, False, True)
    """
    return prod(length for axis, length in enumerate(shape) if axis not in axes) == 1


def in_flat_order(tensor: DTensor, operation: str) -> DTensor:
    """Return *tensor* with consecutive blocks of its elements in C order. Collective over the mesh if it has to move.

    The first axis with more than one element is cut, over all mesh dimensions that shard the tensor.
    """
    names = dims_that_cut(tensor.mesh, [name for spec in tensor.layout.axes for name in spec])
    first = next(axis for axis in range(tensor.ndim) if tensor.shape[axis] > 1 or axis == tensor.ndim - 1)
    current = tensor.layout.axes[first]
    if tuple(current) == names and tensor.layout.cut(first, tensor.shape[first]).is_consecutive:
        return tensor  # it is cut there only
    axes: Axes = tuple(names if axis == first else () for axis in range(tensor.ndim))
    return relaid(tensor, axes, operation)
