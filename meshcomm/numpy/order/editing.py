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
from meshcomm.numpy.indexing.nonzero import where_true
from meshcomm.numpy.indexing.taking import repeated
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.order.order import argsort
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped


def _line_or(name: str, tensor: DTensor, axis: int | None) -> tuple[DTensor, int]:
    """Return the tensor and the axis, or the flattened tensor and its only axis."""
    if axis is None:
        return (tensor if tensor.ndim == 1 else regrouped(tensor, (tensor.size,), name=name)), 0
    return tensor, normalised_axis(axis, tensor.ndim)


@implements(np.delete, partly=True)
def delete(arr: DTensor, obj: slice | DTensor | ArrayLike, axis: int | None = None) -> DTensor:
    """Return the tensor without the elements at *obj* along *axis*, or flattened, as numpy.delete. Collective.

    The others stay where they are, unless they are cyclic: the axis has `Cuts`.

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
    tensor, axis = _line_or(name, tensor, axis)
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
        (agreed,) = (
            agree_on_plain(name, [index.reshape(1)], tensor.mesh) if not isinstance(index, DTensor) else (index,)
        )
        assign(name, mask, agreed, value=False)
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
    tensor, axis = _line_or(name, tensor, axis)
    n = tensor.shape[axis]
    where = _insertions(name, obj, n)
    added = unwrapped(values)
    if not isinstance(added, DTensor):
        added = as_array(added) if tensor.dtype.names is None else np.asarray(added, tensor.dtype)
    if where.size == 1:
        number = _single_index(name, where, axis, n)
        if added.ndim < tensor.ndim:
            wide = (1,) * (tensor.ndim - added.ndim) + added.shape
            added = regrouped(added, wide, name=name) if isinstance(added, DTensor) else added.reshape(wide)
        if not where.ndim:
            added = tensor_np.moveaxis(added, 0, axis)
        where = np.full(added.shape[axis], number, np.intp)
    if isinstance(where, DTensor) or isinstance(added, DTensor) or tensor.layout.cyclic(axis):
        return _inserted(name, tensor, axis, _moved_on(name, where, n), added)
    return _inserted_here(name, tensor, axis, _from_0_on(name, where, axis, n), added)


def _insertions(name: str, obj: object, n: int) -> IndexArray:
    """Return before which of *n* elements something is inserted. Collective if *obj* is a mask that is a tensor."""
    index = unwrapped(obj)
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.intp)
    indices = index if isinstance(index, DTensor) else as_array(index)
    if indices.dtype == bool:
        if indices.ndim != 1:
            raise ShapeError(f"{name}: a mask has one axis, not shape {indices.shape}")
        return where_true(name, indices)[0] if isinstance(indices, DTensor) else np.flatnonzero(indices)
    if indices.ndim > 1:
        raise ShapeError(f"{name}: indices have one axis or none, not shape {indices.shape}")
    if not indices.size and not isinstance(index, DTensor | np.ndarray):
        return np.zeros(0, np.intp)
    if indices.dtype.kind not in "iu":
        raise IndexError(f"{name}: indices are integers, not {indices.dtype}")
    return indices


def _single_index(name: str, where: IndexArray, axis: int, n: int) -> int:
    """Return the only index, from 0 on; ``IndexError`` if it is out of bounds. Collective if it is a tensor."""
    whole = where.to_numpy() if isinstance(where, DTensor) else where
    if whole is None:
        raise ShapeError(f"{name}: a rank outside of the mesh cannot know where elements are inserted")
    (number,) = whole.reshape(-1).tolist()
    if not -n <= number <= n:
        raise IndexError(f"{name}: index {number} is out of bounds for axis {axis} with size {n}")
    return number + n if number < 0 else number


def _from_0_on(name: str, where: Indices, axis: int, n: int) -> Indices:
    """Return indices from 0 to *n*; ``IndexError`` for one that is out of bounds."""
    wrong = where[(where < -n) | (where > n)]
    if len(wrong):
        raise IndexError(f"{name}: index {wrong[0]} is out of bounds for axis {axis} with size {n}")
    return np.where(where < 0, where + n, where).astype(np.intp)


def _inserted_here(name: str, tensor: DTensor, axis: int, where: Indices, values: Array) -> DTensor:
    """Return *tensor* with *values* before the elements *where*: each rank inserts what comes to its block.

    All ranks know both, and so the lengths of all new blocks. Then the usual cut moves their edges. Collective.
    """
    n, layout, mesh = tensor.shape[axis], tensor.layout, tensor.mesh
    agree_on_plain(name, [tensor, where, values], mesh)
    shape = tuple(n + len(where) if a == axis else m for a, m in enumerate(tensor.shape))
    rows = np.broadcast_to(values, (*shape[:axis], len(where), *shape[axis + 1 :]))
    starts = layout.cut(axis, n).consecutive.all_starts()
    order = np.argsort(where, kind="stable")
    ends = [*np.searchsorted(where[order], starts[:-1]).tolist(), len(where)]  # what comes before each block

    def inserted(block: Array) -> Array:
        number = layout.block_numbers(mesh.rank or 0)[axis]
        local = np.sort(order[ends[number] : ends[number + 1]])  # of equal indices, the first stays first
        box = layout.block_box(tensor.shape)
        local_rows = np.take(cut_out(rows, (*box[:axis], (0, len(where)), *box[axis + 1 :])), local, axis)
        return np.insert(block, where[local] - starts[number], local_rows, axis)

    names = tuple(layout.axes[axis])
    spec = Cuts(names, [start + end for start, end in zip(starts, ends, strict=True)]) if len(starts) > 2 else names
    result = mapped(inserted, tensor, layout=layout.replace(axis, spec), shape=shape)
    return relaid(result, layout.usual_cut(axis).axes, name)


def _moved_on(name: str, where: IndexArray, n: int) -> IndexArray:
    """Return where elements that are inserted are in the result. Collective if they are a tensor."""
    count = where.shape[0]
    if not isinstance(where, DTensor):
        positions = np.where(where < 0, where + n, where).astype(np.intp)
        positions[np.argsort(positions, kind="stable")] += np.arange(count, dtype=np.intp)
        return positions
    shifted = elementwise(name, lambda block: np.where(block < 0, block + n, block).astype(np.intp), [where])
    order = argsort(shifted, kind="stable")
    later = numbers(shifted.mesh, 0, 1, order.layout.axes[0], count)
    assign(name, shifted, order, indexed(name, shifted, order) + later)
    return shifted


def _inserted(name: str, tensor: DTensor, axis: int, at: IndexArray, values: object) -> DTensor:
    """Return *tensor* with *values* at the indices *at* of the result. Collective over the mesh."""
    layout = tensor.layout.usual_cut(axis)
    n, before = tensor.shape[axis] + at.shape[0], (slice(None),) * axis
    result = empty(tuple(n if a == axis else m for a, m in enumerate(tensor.shape)), tensor.dtype, layout)
    old = full((n,), fill_value=True, dtype=bool, layout=layout.take([axis]))
    assign(name, old, at, value=False)
    assign(name, result, (*before, where_true(name, old)[0]), tensor)
    assign(name, result, (*before, at), values)
    return result


@implements(np.append, partly=True)
def append(arr: DTensor, values: DTensor | ArrayLike, axis: int | None = None) -> DTensor:
    """Return *values* after *arr* along *axis*, or both flattened, as numpy.append. Collective as `concatenate`."""
    return concatenate([arr, values], axis)
