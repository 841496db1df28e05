"""Chosen or repeated elements: take, take_along_axis, compress, extract, repeat, tile.

:mod:`meshcomm.numpy.indexing.index_arrays` finds the elements. In the result, the axes of the indices are cut as a
tensor of indices is; for a plain array, as the axis that they replace. The other axes keep their cut.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.make import mapped, on_blocks, refuse_outside
from meshcomm.blocks.map import with_out
from meshcomm.blocks.rules import aligned_axes
from meshcomm.blocks.small import agree_on_result, tensor_of_rows
from meshcomm.core._arguments import as_array, as_integer, counted, ndim_of, quote
from meshcomm.core._types import Array, Indices, Names
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts, spec_of
from meshcomm.core.memory.copies import opaque
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.index_arrays import IndexArray
from meshcomm.numpy.indexing.index_tuples import (
    along_axis_index,
    along_axis_indices,
    along_axis_shape,
    along_axis_specs,
    flat,
    flat_operand,
    index_along_axis,
    on_mesh,
)
from meshcomm.numpy.indexing.indexing import getitem, indexed
from meshcomm.numpy.indexing.nonzero import true_indices, truth
from meshcomm.numpy.shapes.shaping import broadcast_to, normalised_axis, regrouped


@implements(np.take, partly=True)
def take(
    a: DTensor, indices: DTensor | ArrayLike, axis: int | None = None, out: object = None, mode: str = "raise"
) -> DTensor:
    """Return the elements at *indices* along *axis*, as numpy.take. Collective over the mesh.

    Parameters
    ----------
    a: a tensor
    indices: tensor in any layout, or plain array, the same on all ranks
    axis: axis of the indices; None for the flattened tensor
    out: tensor to write the result to
    mode: treatment of indices out of bounds: ``raise`` an ``IndexError``, ``wrap`` them around, or ``clip`` them

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t, index = (mc.distribute(np.array(x), mc.Layout(["x"], mesh)) for x in ([10, 11, 12], [2, 2, 0, 1]))
    ...     return np.take(t, index).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     print(world.run(program))
    [[12, 12], [10, 11]]
    """
    return with_out("numpy.take", out, _taken_elements("numpy.take", as_tensor("numpy.take", a), indices, axis, mode))


def _taken_elements(name: str, tensor: DTensor, indices: object, axis: int | None, mode: str = "raise") -> DTensor:
    value = unwrapped(indices)
    if not isinstance(value, DTensor) and not ndim_of(value):
        agree_on_plain(name, [tensor, np.atleast_1d(as_array(value))], tensor.mesh)
    if axis is None and not tensor.ndim:
        tensor = regrouped(tensor, (1,), name=name)
    return indexed(name, tensor, index_along_axis(name, tensor, value, axis, mode))


@implements(np.take_along_axis, partly=True)
def take_along_axis(arr: DTensor, indices: DTensor | ArrayLike, axis: int | None = -1) -> DTensor:
    """Return elements by *indices* along *axis* for each line, as numpy.take_along_axis. Collective over the mesh.

    *indices* broadcast with *arr* along the other axes, as those of argsort do. The other axes keep their cut; *axis*
    is cut as the indices are.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.array([[3, 1, 2], [4, 6, 5]]), rows)
    ...     return np.take_along_axis(t, np.argsort(t), 1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1, 2, 3]], [[4, 5, 6]]]
    """
    name = "numpy.take_along_axis"
    tensor, index = unwrapped(arr), unwrapped(indices)
    if not isinstance(tensor, DTensor):
        tensor, index = on_mesh(name, [tensor, index])
    positions, axis_number = along_axis_indices(name, tensor, index, axis)
    if axis_number is None:
        return _taken_elements(name, tensor, positions, None)
    shape, axes = (along_axis_shape(tensor, positions, axis_number), along_axis_specs(tensor, positions, axis_number))
    layout = Layout(axes, tensor.mesh)
    index_axes = aligned_axes(positions.shape, shape, layout)
    if isinstance(positions, DTensor):
        aligned = relaid(positions, index_axes, name)
    else:
        agree_on_plain(name, [tensor, positions], tensor.mesh)
        aligned = distribute(positions, Layout(index_axes, tensor.mesh))
    if not _is_local(tensor, layout, axis_number):
        return indexed(name, tensor, along_axis_index(tensor, aligned, axis_number))
    text = f"{name} of {tensor.shape} {tensor.dtype} by {aligned.shape} {aligned.dtype} on axis {axis_number}"

    def local_elements() -> DTensor:
        return mapped(
            lambda block, rows: np.take_along_axis(block, rows, axis_number),
            tensor,
            aligned,
            layout=layout,
            shape=shape,
        )

    return agree_on_result(name, tensor.mesh, text, local_elements)


def _is_local(tensor: DTensor, layout: Layout, axis: int) -> bool:
    """Return whether each block of a result in *layout* comes from one block of *tensor*, with *axis* unsharded."""
    other_axes = [a for a in range(tensor.ndim) if a != axis]
    is_unsharded = all(tensor.layout.num_shards(a) == 1 for a in range(tensor.ndim) if tensor.shape[a] == 1)
    return (
        tensor.layout.num_shards(axis) == 1
        and is_unsharded
        and all(layout.axes[a] == tensor.layout.axes[a] or tensor.shape[a] == 1 for a in other_axes)
    )


@implements(np.compress, partly=True)
def compress(condition: DTensor | ArrayLike, a: DTensor, axis: int | None = None, out: object = None) -> DTensor:
    """Return the elements along *axis* where *condition* is true, as numpy.compress. Collective over the mesh.

    *condition* has one axis, which may be shorter than that of *a*, or longer if nothing is true beyond it.
    """
    name = "numpy.compress"
    mask = unwrapped(condition)
    if np.ndim(mask) != 1:
        raise ShapeError(f"{name}: condition must have one axis, not shape {np.shape(mask)}")
    tensor = unwrapped(a)
    if not isinstance(tensor, DTensor):
        (tensor, mask) = on_mesh(name, [tensor, mask])
    return with_out(name, out, _taken_elements(name, tensor, _true_indices(name, tensor, mask), axis))


def _true_indices(name: str, tensor: DTensor, condition: object) -> IndexArray:
    """Return the indices where a *condition* of one axis is true. Collective over the mesh."""
    if isinstance(condition, DTensor):
        return true_indices(name, truth(condition))[0]
    (agreed_condition,) = agree_on_plain(name, [as_array(condition)], tensor.mesh)
    return np.flatnonzero(agreed_condition)


@implements(np.extract, partly=True)
def extract(condition: DTensor | ArrayLike, arr: DTensor) -> DTensor:
    """Return the elements of *arr*, in C order, where *condition* is true, as numpy.extract. Collective over the mesh.

    If the shapes are equal, this is ``arr[condition]``.
    """
    name = "numpy.extract"
    mask, tensor = unwrapped(condition), unwrapped(arr)
    if not isinstance(tensor, DTensor):
        (mask, tensor) = on_mesh(name, [mask, tensor])
    if not isinstance(mask, DTensor):
        mask = as_array(mask).astype(bool)
    if mask.shape == tensor.shape and tensor.ndim:
        return getitem(tensor, truth(mask) if isinstance(mask, DTensor) else mask)
    if not tensor.ndim:
        tensor = regrouped(tensor, (1,), name=name)
    index = _true_indices(name, tensor, flat_operand(name, mask))
    return indexed(name, tensor, flat(name, tensor, index))


# -- repeat and tile --------------------------------------------------------------------------------------------------


@implements(np.repeat, partly=True)
def repeat(a: DTensor, repeats: DTensor | ArrayLike, axis: int | None = None) -> DTensor:
    """Return each element *repeats* times along *axis*, or flattened, as numpy.repeat. Elements stay where they are.

    Collective if there are several counts: a tensor, which is relaid to match the elements, or a plain array.
    """
    name = "numpy.repeat"
    tensor = as_tensor("repeat", a)
    counts = unwrapped(repeats)
    if axis is None:
        tensor, axis = regrouped(tensor, (tensor.size,), name="repeat"), 0
    axis = normalised_axis(axis, tensor.ndim)
    n = tensor.shape[axis]
    if not isinstance(counts, DTensor):
        counts = np.atleast_1d(as_array(counts))
        counts = counts if counts.size else counts.astype(np.intp)
    np.empty(0, counts.dtype).astype(np.intp, casting="safe")  # NumPy's error
    if counts.ndim > 1 or counts.size not in (1, n):
        raise ShapeError(
            f"repeat by counts of shape {counts.shape}: one count, or one for each of {counted(n, 'element')}"
        )
    if counts.size != 1 or n == 1:
        return repeated(name, tensor, counts, axis)
    return _repeated_uniformly(tensor, _single_count(name, counts), axis)


def _single_count(name: str, counts: IndexArray) -> int:
    """Return the only element of *counts*. Collective over the mesh of a tensor."""
    array = counts.to_numpy() if isinstance(counts, DTensor) else counts
    if array is None:
        raise ShapeError(f"{name}: a rank outside of the mesh cannot know how often elements are repeated")
    (times,) = array.reshape(-1).tolist()
    if times < 0:
        raise ShapeError(f"repeat by {times}: counts are not negative")
    return int(times)


def repeated(name: str, tensor: DTensor, counts: IndexArray, axis: int) -> DTensor:
    """Return each element repeated by its count, or the elements with count True. Collective over the mesh."""
    names, mesh = tuple(tensor.layout.axes[axis]), tensor.mesh
    tensor = relaid(tensor, tensor.layout.as_consecutive([axis]), "repeat")
    counts_layout = tensor.layout.take([axis])
    if isinstance(counts, DTensor):
        aligned_counts = relaid(flat_operand(name, counts), counts_layout.axes, name)  # type: ignore[arg-type]  # a tensor
    else:
        agree_on_plain(name, [tensor, counts], mesh)
        aligned_counts = distribute(counts, counts_layout)

    def indices(block: Array) -> Indices:
        if block.dtype == bool:
            return np.flatnonzero(block)
        negative_counts = block[block < 0]
        if len(negative_counts):
            raise ShapeError(f"repeat by {negative_counts[0]}: counts are not negative")
        return np.repeat(np.arange(len(block), dtype=np.intp), block)

    text = f"{name} of {tensor.shape} by {aligned_counts.shape} {aligned_counts.dtype} on axis {axis}"
    index = agree_on_result(name, mesh, text, lambda: on_blocks(indices, aligned_counts))
    if isinstance(counts, DTensor):
        refuse_outside(name, mesh, "how often elements are repeated")
        index_tensor = tensor_of_rows(name, index, mesh, names)
        spec, length = index_tensor.layout.axes[0], index_tensor.shape[0]
    else:
        ends, cut = np.concatenate([[0], np.cumsum(counts)]).tolist(), counts_layout.cut(0, len(counts)).consecutive
        spec, length = names, ends[-1]
        if cut.blocks > 1:
            spec = Cuts(names, [ends[start] for start in cut.all_starts()])
    shape = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
    layout = tensor.layout.replace(axis, spec)
    return mapped(
        lambda block: elements_along(block, index, axis),  # type: ignore[arg-type]  # where there is a block, there are counts
        tensor,
        layout=layout,
        shape=shape,
    )


def elements_along(block: Array, indices: Indices, axis: int) -> Array:
    """Return the elements of a block at *indices* of one axis."""
    return opaque(block).take(indices, axis=axis).view(block.dtype)


def _repeated_uniformly(tensor: DTensor, times: int, axis: int) -> DTensor:
    """Return each element repeated *times* times, on the same device."""
    spec = _repeated_spec(tensor, axis, times)
    shape = (*tensor.shape[:axis], tensor.shape[axis] * times, *tensor.shape[axis + 1 :])
    layout = tensor.layout.replace(axis, spec)
    return mapped(
        lambda block: np.repeat(opaque(block), times, axis).view(block.dtype), tensor, layout=layout, shape=shape
    )


def _repeated_spec(tensor: DTensor, axis: int, times: int) -> Names:
    """Return the sharding spec of *axis* if each element is repeated *times* times on the same device."""
    names = tensor.layout.axes[axis]
    cut = tensor.layout.cut(axis, tensor.shape[axis])
    if not names or cut.blocks == 1 or not times:
        return tuple(names)
    return spec_of(tuple(names), cut.repeated(times))


@implements(np.tile)
def tile(A: DTensor, reps: int | Sequence[int]) -> DTensor:  # noqa: N803 - NumPy's name
    """Return the tensor *reps* times along each axis. Collective if the elements of a sharded axis have to move."""
    tensor = as_tensor("tile", A)
    times = [
        as_integer(n, "reps", TypeError) for n in (reps if isinstance(reps, list | tuple | np.ndarray) else [reps])
    ]
    if any(n < 0 for n in times):
        raise ShapeError(f"tile by {quote(reps)}: repetitions are 0 or more")
    ndim = max(len(times), tensor.ndim)
    lengths, times = (1,) * (ndim - tensor.ndim) + tensor.shape, [1] * (ndim - len(times)) + times
    interleaved = regrouped(tensor, tuple(m for n in lengths for m in (1, n)), name="tile")
    expanded = broadcast_to(interleaved, tuple(m for n, r in zip(lengths, times, strict=True) for m in (r, n)))
    tiled = regrouped(expanded, tuple(n * r for n, r in zip(lengths, times, strict=True)), name="tile")
    return tiled if tiled._view is None else tiled.copy()  # NumPy's is never a view
