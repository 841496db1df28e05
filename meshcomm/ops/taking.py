"""Chosen or repeated elements along an axis: take, repeat, tile.

A device has some of the elements that are taken from a sharded axis. Sorted by the devices that have them, they are a
tensor with `Cuts`. That is relaid, and then each device puts them in order. So only what is taken moves.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import as_array, counted, integer, quote
from meshcomm._types import Array, Indices, Names
from meshcomm.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.errors import ShapeError
from meshcomm.layouts.cyclic import CyclicCut, local_indices
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.specs import Cuts, Cyclic
from meshcomm.memory.copies import opaque
from meshcomm.ops.elementwise import agree_on_plain, relaid
from meshcomm.ops.rules import ADVICE
from meshcomm.ops.shaping import axis_of, broadcast_to, regrouped
from meshcomm.ops.signatures import Function
from meshcomm.ops.whole import whole_along


def take(a: DTensor, indices: ArrayLike, axis: int | None = None, out: object = None, mode: str = "raise") -> DTensor:
    """Return the elements at *indices* along *axis*. Collective if the axis is sharded, or *indices* is an array.

    The mesh dimensions of a sharded *axis* cut another axis: `meshcomm.ops.whole.whole_axes` says which one. If no
    other axis has elements to cut, the result is replicated along them.
    """
    tensor = as_tensor("take", a)
    if out is not None:
        raise TypeError("numpy.take: out= is not supported for DTensors; assign the result: out[...] = np.take(...)")
    if isinstance(unwrapped(indices), DTensor):
        raise TypeError(f"numpy.take: indices are a plain array that all ranks have, not a DTensor; {ADVICE}")
    _, agreed = agree_on_plain("numpy.take", [tensor, np.atleast_1d(as_array(indices))], tensor.mesh)
    if axis is None:
        tensor, axis = regrouped(tensor, (tensor.size,), name="take"), 0
    axis = axis_of(axis, tensor.ndim)
    chosen = _within(agreed, tensor.shape[axis], mode).reshape(np.shape(indices))
    return chosen_rows(tensor, axis, chosen)


def _within(indices: object, n: int, mode: str) -> Indices:
    """Return *indices* of an axis of *n* elements, from 0 on."""
    listed = as_array(indices).astype(np.intp, casting="same_kind")
    if mode not in ("raise", "wrap", "clip"):
        raise ShapeError(f"numpy.take: mode {quote(mode)}; it is 'raise', 'wrap' or 'clip'")
    if listed.size and not n:
        raise IndexError("numpy.take of indices along an axis that has no elements")
    if mode == "raise":
        wrong = listed[(listed < -n) | (listed >= n)]
        if wrong.size:
            raise IndexError(f"numpy.take: index {wrong[0]} is out of bounds for an axis of {counted(n, 'element')}")
        return np.where(listed < 0, listed + n, listed)
    found: Indices = np.clip(listed, 0, max(n - 1, 0)) if mode == "clip" else listed % max(n, 1)
    return found


def chosen_rows(tensor: DTensor, axis: int, indices: Indices) -> DTensor:
    """Return the elements at *indices* of *axis*, which are all in bounds. Collective if the axis is sharded."""
    ndim = indices.ndim
    if tensor.layout.num_shards(axis) > 1:
        distinct, inverse = np.unique(indices, return_inverse=True)
        tensor = _with_whole_axis(*_owned_rows(tensor, axis, distinct), axis)
        indices = inverse.reshape(indices.shape).astype(np.intp)
    shape = (*tensor.shape[:axis], *indices.shape, *tensor.shape[axis + 1 :])
    layout = Layout((*tensor.layout.axes[:axis], *((),) * ndim, *tensor.layout.axes[axis + 1 :]), tensor.mesh)
    local = None if tensor.local is None else _taken(tensor.local, indices, axis)
    return DTensor(local, layout, shape, tensor.dtype)


def rows_on(tensor: DTensor, axis: int, indices: Indices, number: int) -> DTensor:
    """Return the elements at *indices* of a sharded *axis*, all in the block of this *number*. Collective."""
    distinct, inverse = np.unique(indices, return_inverse=True)
    sorted_rows, order = _owned_rows(tensor, axis, distinct)
    spec = _all_on(tuple(tensor.layout.axes[axis]), tensor.layout.num_shards(axis), len(distinct), number)
    moved = relaid(sorted_rows, _replaced(tensor.layout, axis, spec), "take")
    axes = _replaced(tensor.layout, axis, _all_on(tuple(spec), tensor.layout.num_shards(axis), len(indices), number))
    local = moved.local
    if local is not None:
        held = order[inverse.ravel()] if local.shape[axis] else np.zeros(0, dtype=np.intp)
        local = _taken(local, held, axis)
    shape = (*tensor.shape[:axis], len(indices), *tensor.shape[axis + 1 :])
    return DTensor(local, Layout(axes, tensor.mesh), shape, tensor.dtype)


def _all_on(names: Names, blocks: int, length: int, number: int) -> Cuts:
    """Return the spec of an axis that has all elements in one block."""
    return Cuts(names, [0 if block <= number else length for block in range(blocks + 1)])


def _replaced(layout: Layout, axis: int, names: Names) -> tuple[Names, ...]:
    """Return the axes of *layout* with another spec on one of them, as a layout has them."""
    return Layout([names if a == axis else each for a, each in enumerate(layout.axes)], layout.mesh).axes


def _owned_rows(tensor: DTensor, axis: int, indices: Indices) -> tuple[DTensor, Indices]:
    """Return the elements at ascending *indices* sorted by the devices that have them, and where each one is then."""
    cut = tensor.layout.cut(axis, tensor.shape[axis])
    owners = cut.owners(indices // cut.block) if isinstance(cut, CyclicCut) else cut.blocks_of(indices)
    order = np.argsort(owners, kind="stable")
    boundaries = np.searchsorted(owners[order], np.arange(cut.blocks + 1)).tolist()
    spec = Cuts(tuple(tensor.layout.axes[axis]), boundaries)
    layout = Layout(_replaced(tensor.layout, axis, spec), tensor.mesh)
    shape = (*tensor.shape[:axis], len(indices), *tensor.shape[axis + 1 :])
    local, device = tensor.local, tensor.mesh.rank
    if local is not None and device is not None:
        number = tensor.layout.block_numbers(device)[axis]
        mine = indices[order[boundaries[number] : boundaries[number + 1]]]
        local = _taken(local, local_indices(tensor.layout.block_box(tensor.shape, device)[axis], mine), axis)
    where = np.empty(len(order), dtype=np.intp)
    where[order] = np.arange(len(order))
    return DTensor(local, layout, shape, tensor.dtype), where


def _with_whole_axis(tensor: DTensor, where: Indices, axis: int) -> DTensor:
    """Return *tensor* with all of *axis* on each device, in the order that *where* says. Collective."""
    moved = whole_along(tensor, (axis,), "take")
    local = None if moved.local is None else _taken(moved.local, where, axis)
    return DTensor(local, moved.layout, moved.shape, moved.dtype)


def _taken(block: Array, indices: Indices, axis: int) -> Array:
    listed = opaque(block).take(indices.ravel(), axis=axis).view(block.dtype)
    return listed.reshape((*block.shape[:axis], *indices.shape, *block.shape[axis + 1 :]))


# -- repeat and tile --------------------------------------------------------------------------------------------------


def repeat(a: DTensor, repeats: int | Sequence[int], axis: int | None = None) -> DTensor:
    """Return each element *repeats* times along *axis*, or flattened. One number of repeats moves nothing."""
    tensor = as_tensor("repeat", a)
    if axis is None:
        tensor, axis = regrouped(tensor, (tensor.size,), name="repeat"), 0
    axis = axis_of(axis, tensor.ndim)
    n = tensor.shape[axis]
    counts = np.atleast_1d(as_array(repeats))
    times = [integer(count, "repeats", TypeError) for count in counts.ravel().tolist()]
    if counts.ndim > 1 or len(times) not in (1, n) or any(count < 0 for count in times):
        raise ShapeError(
            f"repeat by {quote(repeats)}: one count, or one for each of {counted(n, 'element')}, and none negative"
        )
    if len(times) != 1:
        agree_on_plain("numpy.repeat", [tensor, counts], tensor.mesh)
        return chosen_rows(tensor, axis, np.repeat(np.arange(n, dtype=np.intp), times))
    axes = _replaced(tensor.layout, axis, _repeated_spec(tensor, axis, times[0]))
    shape = (*tensor.shape[:axis], n * times[0], *tensor.shape[axis + 1 :])
    local = None if tensor.local is None else np.repeat(opaque(tensor.local), times[0], axis).view(tensor.dtype)
    return DTensor(local, Layout(axes, tensor.mesh), shape, tensor.dtype)


def _repeated_spec(tensor: DTensor, axis: int, times: int) -> Names:
    """Return how *axis* is cut if each element is there so many *times*, where it was."""
    names = tensor.layout.axes[axis]
    cut = tensor.layout.cut(axis, tensor.shape[axis])
    if not names or cut.blocks == 1 or not times:
        return tuple(names)
    if isinstance(cut, CyclicCut):
        return Cyclic(tuple(names), cut.block * times, cut.offset)
    return Cuts(tuple(names), [cut.start(number) * times for number in range(cut.blocks + 1)])


def tile(A: DTensor, reps: int | Sequence[int]) -> DTensor:  # noqa: N803 - NumPy's name
    """Return the tensor *reps* times along each axis. Collective if the elements of a sharded axis have to move."""
    tensor = as_tensor("tile", A)
    times = [integer(n, "reps", TypeError) for n in (reps if isinstance(reps, list | tuple | np.ndarray) else [reps])]
    if any(n < 0 for n in times):
        raise ShapeError(f"tile by {quote(reps)}: repetitions are 0 or more")
    ndim = max(len(times), tensor.ndim)
    lengths, times = (1,) * (ndim - tensor.ndim) + tensor.shape, [1] * (ndim - len(times)) + times
    between = regrouped(tensor, tuple(m for n in lengths for m in (1, n)), name="tile")
    wide = broadcast_to(between, tuple(m for n, r in zip(lengths, times, strict=True) for m in (r, n)))
    return regrouped(wide, tuple(n * r for n, r in zip(lengths, times, strict=True)), name="tile")


FUNCTIONS: dict[Function, Function] = {np.take: take, np.repeat: repeat, np.tile: tile}
"""NumPy's functions of this module that are defined for tensors."""
