"""Tensors with some elements more or fewer along an axis: delete, insert, append."""

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.make import mapped
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import as_array
from meshcomm.core._types import Array, Indices
from meshcomm.core.arrays.create import empty, full
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.index_arrays import IndexArray
from meshcomm.numpy.indexing.index_tuples import assign, numbers, on_mesh
from meshcomm.numpy.indexing.indexing import indexed
from meshcomm.numpy.indexing.nonzero import true_indices
from meshcomm.numpy.indexing.taking import repeated
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.order.order import argsort
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped


def _tensor_and_axis(name: str, tensor: DTensor, axis: int | None) -> tuple[DTensor, int]:
    """Return the tensor and its normalised axis; for None the flattened tensor and its only axis."""
    if axis is None:
        return (tensor if tensor.ndim == 1 else regrouped(tensor, (tensor.size,), name=name)), 0
    return tensor, normalised_axis(axis, tensor.ndim)


@implements(np.delete, partly=True)
def delete(arr: DTensor, obj: slice | DTensor | ArrayLike, axis: int | None = None) -> DTensor:
    """Return the tensor without the elements at *obj* along *axis*, or flattened, as numpy.delete. Collective.

    The other elements stay on their devices, unless they are cyclic: the axis has `Cuts`.

    Parameters
    ----------
    arr: a tensor
    obj: integer, slice, integers, or mask; the last two may be tensors
    axis: axis along which to delete; None for the flattened tensor

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(6), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.delete(t, [0, 1, -1]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[2], [3, 4]]
    """
    name = "numpy.delete"
    index = unwrapped(obj)
    tensor = unwrapped(arr)
    if not isinstance(tensor, DTensor):
        tensor, index = on_mesh(name, [tensor, index])
    tensor, axis = _tensor_and_axis(name, tensor, axis)
    n, names = tensor.shape[axis], tuple(tensor.layout.axes[axis])
    if not isinstance(index, DTensor | slice):
        index = as_array(index)
        index = index.astype(np.intp) if not index.size and index.dtype.kind == "f" else index
    if not isinstance(index, slice) and index.dtype == bool and index.shape != (n,):
        raise ShapeError(f"{name}: a mask of shape {index.shape} for an axis of {n}: it has one axis of that length")
    mask = full((n,), fill_value=True, dtype=bool, layout=Layout([names], tensor.mesh))
    if isinstance(index, slice) or index.ndim or index.dtype == bool:
        assign(name, mask, index, value=False)
    else:
        (agreed_index,) = (
            agree_on_plain(name, [index.reshape(1)], tensor.mesh) if not isinstance(index, DTensor) else (index,)
        )
        assign(name, mask, agreed_index, value=False)
    return repeated(name, tensor, mask, axis)


@implements(np.insert, partly=True)
def insert(
    arr: DTensor, obj: slice | DTensor | ArrayLike, values: DTensor | ArrayLike, axis: int | None = None
) -> DTensor:
    """Return the tensor with *values* before the elements at *obj* along *axis*, as numpy.insert. Collective.

    The result is in the layout of *arr*, with the usual cut along *axis*.

    Parameters
    ----------
    arr: a tensor
    obj: integer, slice, integers, or mask; the last two may be tensors
    values: number, array or tensor
    axis: axis along which to insert; None for the flattened tensor

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.insert(t, [0, 3], [7, 8]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[7, 0, 1], [2, 8, 3]]
    """
    name = "numpy.insert"
    tensor = on_mesh(name, [arr, *(x for x in (obj, values) if isinstance(unwrapped(x), DTensor))])[0]
    tensor, axis = _tensor_and_axis(name, tensor, axis)
    n = tensor.shape[axis]
    positions = _insertion_indices(name, obj, n)
    new_values = unwrapped(values)
    if not isinstance(new_values, DTensor):
        new_values = as_array(new_values) if tensor.dtype.names is None else np.asarray(new_values, tensor.dtype)
    if positions.size == 1:
        position = _single_index(name, positions, axis, n)
        if new_values.ndim < tensor.ndim:
            padded_shape = (1,) * (tensor.ndim - new_values.ndim) + new_values.shape
            new_values = (
                regrouped(new_values, padded_shape, name=name)
                if isinstance(new_values, DTensor)
                else new_values.reshape(padded_shape)
            )
        if not positions.ndim:
            new_values = tensor_np.moveaxis(new_values, 0, axis)
        positions = np.full(new_values.shape[axis], position, np.intp)
    if isinstance(positions, DTensor) or isinstance(new_values, DTensor) or tensor.layout.cyclic(axis):
        return _insert_by_assignment(name, tensor, axis, _result_positions(name, positions, n), new_values)
    return _insert_locally(name, tensor, axis, _nonnegative_indices(name, positions, axis, n), new_values)


def _insertion_indices(name: str, obj: object, n: int) -> IndexArray:
    """Return the indices, into *n* elements, before which to insert. Collective if *obj* is a tensor of bool."""
    index = unwrapped(obj)
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.intp)
    indices = index if isinstance(index, DTensor) else as_array(index)
    if indices.dtype == bool:
        if indices.ndim != 1:
            raise ShapeError(f"{name}: a mask has one axis, not shape {indices.shape}")
        return true_indices(name, indices)[0] if isinstance(indices, DTensor) else np.flatnonzero(indices)
    if indices.ndim > 1:
        raise ShapeError(f"{name}: indices have one axis or none, not shape {indices.shape}")
    if not indices.size and not isinstance(index, DTensor | np.ndarray):
        return np.zeros(0, np.intp)
    if indices.dtype.kind not in "iu":
        raise IndexError(f"{name}: indices are integers, not {indices.dtype}")
    return indices


def _single_index(name: str, indices: IndexArray, axis: int, n: int) -> int:
    """Return the only index, counted from 0; ``IndexError`` if it is out of bounds. Collective for a tensor."""
    index_array = indices.to_numpy() if isinstance(indices, DTensor) else indices
    if index_array is None:
        raise ShapeError(f"{name}: a rank outside of the mesh cannot know where elements are inserted")
    (index,) = index_array.reshape(-1).tolist()
    if not -n <= index <= n:
        raise IndexError(f"{name}: index {index} is out of bounds for axis {axis} with size {n}")
    return index + n if index < 0 else index


def _nonnegative_indices(name: str, indices: Indices, axis: int, n: int) -> Indices:
    """Return indices counted from 0, up to *n*; ``IndexError`` for an index out of bounds."""
    wrong_indices = indices[(indices < -n) | (indices > n)]
    if len(wrong_indices):
        raise IndexError(f"{name}: index {wrong_indices[0]} is out of bounds for axis {axis} with size {n}")
    return np.where(indices < 0, indices + n, indices).astype(np.intp)


def _insert_locally(name: str, tensor: DTensor, axis: int, positions: Indices, values: Array) -> DTensor:
    """Return *tensor* with *values* inserted before the elements at *positions*: each rank inserts into its block.

    All ranks know positions and values, and so the lengths of all new blocks. Then a relayout to the usual cut moves
    the edges of the blocks. Collective.
    """
    n, layout, mesh = tensor.shape[axis], tensor.layout, tensor.mesh
    agree_on_plain(name, [tensor, positions, values], mesh)
    shape = tuple(n + len(positions) if other == axis else length for other, length in enumerate(tensor.shape))
    rows = np.broadcast_to(values, (*shape[:axis], len(positions), *shape[axis + 1 :]))
    starts = layout.cut(axis, n).consecutive.all_starts()
    order = np.argsort(positions, kind="stable")
    ends = [*np.searchsorted(positions[order], starts[:-1]).tolist(), len(positions)]  # values before each block

    def inserted(block: Array) -> Array:
        block_number = layout.block_numbers(mesh.rank or 0)[axis]
        # Of values at equal indices, the first one stays first.
        own_order = np.sort(order[ends[block_number] : ends[block_number + 1]])
        box = layout.block_box(tensor.shape)
        block_rows = np.take(cut_out(rows, (*box[:axis], (0, len(positions)), *box[axis + 1 :])), own_order, axis)
        return np.insert(block, positions[own_order] - starts[block_number], block_rows, axis)

    names = tuple(layout.axes[axis])
    spec = Cuts(names, [start + end for start, end in zip(starts, ends, strict=True)]) if len(starts) > 2 else names
    result = mapped(inserted, tensor, layout=layout.replace(axis, spec), shape=shape)
    return relaid(result, layout.default_cut(axis).axes, name)


def _result_positions(name: str, indices: IndexArray, n: int) -> IndexArray:
    """Return the indices of inserted elements in the result. Collective if *indices* is a tensor."""
    count = indices.shape[0]
    if not isinstance(indices, DTensor):
        positions = np.where(indices < 0, indices + n, indices).astype(np.intp)
        positions[np.argsort(positions, kind="stable")] += np.arange(count, dtype=np.intp)
        return positions
    result = elementwise(name, lambda block: np.where(block < 0, block + n, block).astype(np.intp), [indices])
    order = argsort(result, kind="stable")
    shifts = numbers(result.mesh, 0, 1, order.layout.axes[0], count)
    assign(name, result, order, indexed(name, result, order) + shifts)
    return result


def _insert_by_assignment(name: str, tensor: DTensor, axis: int, positions: IndexArray, values: object) -> DTensor:
    """Return *tensor* with *values* at the indices *positions* of the result. Collective over the mesh."""
    layout = tensor.layout.default_cut(axis)
    n, leading_slices = tensor.shape[axis] + positions.shape[0], (slice(None),) * axis
    result = empty(tuple(n if a == axis else length for a, length in enumerate(tensor.shape)), tensor.dtype, layout)
    is_old = full((n,), fill_value=True, dtype=bool, layout=layout.take([axis]))
    assign(name, is_old, positions, value=False)
    assign(name, result, (*leading_slices, true_indices(name, is_old)[0]), tensor)
    assign(name, result, (*leading_slices, positions), values)
    return result


@implements(np.append, partly=True)
def append(arr: DTensor, values: DTensor | ArrayLike, axis: int | None = None) -> DTensor:
    """Return *values* after *arr* along *axis*, or both flattened, as numpy.append. Collective as `concatenate`."""
    return concatenate([arr, values], axis)
