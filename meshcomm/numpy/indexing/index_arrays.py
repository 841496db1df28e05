"""Index arrays: ``t[[0, 2]]``, ``t[i, j]``, ``t[mask, 1]``, ``t[tensor]``, to get, to set, and to sum up.

    1. slices, new axes and ... are taken first, as a view; the axes with index arrays stay whole: `_Request.base`
    2. the index arrays broadcast to one shape, and say for each of its elements one row of the base
    3. each rank asks the owners of these rows for them, or sends them rows: :mod:`meshcomm.blocks.rows`

The axes of the index are cut as its tensors are. Plain arrays are the same on all ranks: then those axes are cut as
the axes that they replace. Other axes keep their cut.

To set elements, rows travel in the order of the index, so that the last one of equal indices wins, as in NumPy.
"""

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np

from meshcomm._kernels import find_rows
from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.rows import Owned, RowRanks, Write, deliver, fetch, ranks_along
from meshcomm.blocks.rules import Operand, aligned_axes, common_layout, mesh_of, shape_of
from meshcomm.blocks.tensor_numpy import TensorOrArray, tensor_np
from meshcomm.core._arguments import as_array, counted, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Indices, Names, Shape
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import global_indices
from meshcomm.core.layouts.slicing import AxisSlice, Item, Items, parsed_index
from meshcomm.core.layouts.specs import free_names
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import opaque
from meshcomm.errors import DTypeError, ShapeError

Take: TypeAlias = Callable[[DTensor, Items], DTensor]
"""Takes a slice of a tensor."""

IndexArray: TypeAlias = DTensor | Indices

Nonzero: TypeAlias = Callable[[IndexArray], tuple[IndexArray, ...]]
"""Returns where a mask is true."""

_MAX_AXES = 64
"""Axes. NumPy 2 allows no more."""


class IndexRequest(NamedTuple):
    """An index with arrays, in parts.

    Parameters
    ----------
    items: slices and new axes, which are applied first and give the base; axes with index arrays stay whole
    axes: axes of the base that have index arrays, ascending
    indices: index array of each of these axes; integers from 0 on, once they are checked
    shape: shape to which the index arrays broadcast
    at: first axis of the result that is one of the index
    """

    items: Items
    axes: tuple[int, ...]
    indices: tuple[IndexArray, ...]
    shape: Shape
    at: int


def has_arrays(index: object) -> bool:
    """Return whether an *index* has arrays, tensors, lists or masks in it, so that it is no slice."""
    for item in index if isinstance(index, tuple) else (index,):
        if item is None or item is Ellipsis or (isinstance(item, slice | int | np.integer) and not _is_bool(item)):
            continue
        part = as_array_of(unwrapped(item))
        if _is_bool(part) or isinstance(part, list | tuple | range):
            return True
        if isinstance(part, np.ndarray | DTensor) and (part.ndim or part.dtype == bool or part.dtype.kind not in "iu"):
            return True
    return False


def as_array_of(x: object) -> object:
    """Return an array of another library, such as one of pandas or xarray, as one of NumPy; all else as it is."""
    if isinstance(x, np.ndarray | np.generic | DTensor) or not hasattr(x, "__array__"):
        return x
    return np.asarray(x)


def _is_bool(x: object) -> bool:
    return isinstance(x, bool | np.bool_)


# -- from an index to a request ---------------------------------------------------------------------------------------


def request(name: str, tensor: DTensor, index: object, nonzero: Nonzero) -> IndexRequest:
    """Return the *index* of *tensor* in parts. Collective over the mesh if it has plain arrays, or masks.

    Parameters
    ----------
    name: name of the operation
    tensor: indexed tensor
    index: index with arrays
    nonzero: function that returns the indices of the true elements of a mask
    """
    parts = [_parsed_part(item) for item in (index if isinstance(index, tuple) else (index,))]
    plain = [part for part in parts if isinstance(part, np.ndarray)]
    agree_on_plain(name, [tensor, *plain], mesh_of([tensor, *parts]))  # which refuses an index on another mesh
    full = _expanded_parts(index, parts, tensor.shape)
    items: list[Item] = []  # of the base
    arrays: dict[int, IndexArray] = {}
    axis, positions = 0, list[int]()  # positions: where in the index an array is, or an integer
    for position, part in enumerate(full):
        if part is None:
            items.append(None)
        elif _is_mask(part):
            _check_mask(part, tensor.shape, axis)
            index_arrays: tuple[IndexArray, ...] = nonzero(part) if part.ndim else ()
            if not part.ndim:  # true or false for an axis of its own
                items.append(None)
                index_arrays = (np.zeros(int(bool(part)), dtype=np.intp),)
            for number, one in enumerate(index_arrays):
                arrays[len(items) - (not part.ndim)] = one
                if part.ndim:
                    items.append(AxisSlice(0, tensor.shape[axis + number]))
            axis += part.ndim
            positions.append(position)
        elif isinstance(part, np.ndarray | DTensor):
            arrays[len(items)] = part
            items.append(AxisSlice(0, tensor.shape[axis]))
            positions.append(position)
            axis += 1
        else:
            items.append(parsed_index(part, (tensor.shape[axis],))[0])
            if isinstance(items[-1], int):  # an integer is an index array here
                arrays[len(items) - 1] = np.asarray(items[-1], dtype=np.intp)
                items[-1] = AxisSlice(0, tensor.shape[axis])
                positions.append(position)
            axis += 1
    together = positions == list(range(positions[0], positions[0] + len(positions)))
    at = min(arrays) if together else 0
    return IndexRequest(tuple(items), tuple(arrays), tuple(arrays.values()), _broadcast_shape(arrays, len(items)), at)


def _parsed_part(part: object) -> object:
    """Return one part of an index: an integer, slice, None or ..., or an array or a tensor of integers or bools."""
    value = as_array_of(unwrapped(part))
    if value is None or value is Ellipsis or isinstance(value, slice):
        return value
    if _is_bool(value):
        return np.asarray(value)
    if isinstance(value, list | tuple | range):
        array = as_index(value) if len(value) else np.zeros(0, dtype=np.intp)
        value = array.astype(np.intp) if not array.size and array.dtype.kind == "f" else array
    if not isinstance(value, np.ndarray | DTensor):
        return value
    if value.dtype.kind not in "iub":
        raise IndexError(f"index of dtype {value.dtype}: arrays used as indices have integers or bools")
    return operator.index(value) if isinstance(value, np.ndarray) and not value.ndim and value.dtype != bool else value


def as_index(items: Sequence[object]) -> Array:
    """Return a list as an array; ``IndexError`` if it has others than numbers."""
    try:
        return as_array(items)
    except DTypeError:
        raise IndexError(f"a list used as index has integers or bools, not {quote(items)}") from None


def _is_mask(part: object) -> TypeGuard[TensorOrArray]:
    return isinstance(part, np.ndarray | DTensor) and part.dtype == bool


def _axes_of(part: object) -> int:
    """Return how many axes of the tensor a part of an index is for."""
    if part is None:
        return 0
    return part.ndim if _is_mask(part) else 1


def _expanded_parts(index: object, parts: list[object], shape: Shape) -> list[object]:
    """Return the parts of an index, with slices for the axes that ... stands for, or that are left."""
    ellipses = [position for position, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"index {quote(index)} has {len(ellipses)} ellipses (...); one at most")
    taken = sum(_axes_of(part) for part in parts if part is not Ellipsis)
    if taken > len(shape):
        raise IndexError(
            f"too many indices: {quote(index)} is for {taken} of the {counted(len(shape), 'axis')} of shape {shape}"
        )
    at = ellipses[0] if ellipses else len(parts)
    return [*parts[:at], *[slice(None)] * (len(shape) - taken), *parts[at + 1 :]]


def _check_mask(mask: Value, shape: Shape, axis: int) -> None:
    for number, n in enumerate(mask.shape):
        if n != shape[axis + number]:
            raise IndexError(
                f"a mask of shape {mask.shape} for axis {axis} of a tensor of shape {shape}: it has {n} elements "
                f"along its axis {number}, where the tensor has {shape[axis + number]}"
            )


def _broadcast_shape(arrays: dict[int, IndexArray], axes: int) -> Shape:
    """Return the shape that index arrays broadcast to, for a base with so many *axes*."""
    shapes = [array.shape for array in arrays.values()]
    if max(axes, axes - len(shapes) + max(map(len, shapes)), len(shapes) + 1) > _MAX_AXES:
        raise IndexError(
            f"too many indices: an index has fewer than {_MAX_AXES} arrays, and a result at most {_MAX_AXES} axes"
        )
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(map(str, shapes))
        raise IndexError(f"shape mismatch: index arrays could not be broadcast together with shapes {text}") from None


# -- where the rows are -----------------------------------------------------------------------------------------------


class IndexShare(NamedTuple):
    """What this rank needs of an index array, and which box of it that is."""

    array: Indices
    box: Box


class _IndexedAxis(NamedTuple):
    """One axis of the base with an index: how it is cut, how long its blocks are, and who has them in the group."""

    cut: AnyCut
    lengths: Indices  # of the blocks, by their numbers
    positions: Indices  # what the number of a block adds to the position of its owner

    def find(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the numbers of the blocks that have these elements, and where they are in them."""
        return (np.zeros((), dtype=np.intp), indices) if self.cut.blocks == 1 else self.cut.find(indices)


def _indexed_axis(base: DTensor, axis: int, names: Names) -> _IndexedAxis:
    mesh, cut = base.mesh, base.layout.cut(axis, base.shape[axis])
    numbers = np.arange(cut.blocks, dtype=np.intp)
    dims = tuple(base.layout.axes[axis])
    coordinates = (
        dict(zip(dims, np.unravel_index(numbers, [mesh.dim_size(name) for name in dims]), strict=True)) if dims else {}
    )
    positions = np.zeros(cut.blocks, dtype=np.intp)
    stride = 1
    for name in reversed(names):
        if name in coordinates:
            positions += coordinates[name] * stride
        stride *= mesh.dim_size(name)
    return _IndexedAxis(cut, np.asarray(cut.lengths(numbers), dtype=np.intp), positions)


def _row_owners(
    axes: Sequence[_IndexedAxis], indices: Sequence[IndexShare], shape: Shape, of_base: Sequence[int]
) -> Owned:
    """Return who owns the rows, and where: in C order, for *indices* that broadcast to *shape*.

    ``IndexError`` for one that is out of bounds.

    Parameters
    ----------
    axes, indices: axes of the base, and the indices along each of them
    shape: shape of the index on this rank
    of_base: numbers of the axes, for messages
    """
    axis, cut = axes[0], axes[0].cut
    if len(axes) == 1 and cut.blocks == 1:
        in_axis = in_bounds(indices[0], of_base[0], cut.length)
        flat = np.ascontiguousarray(np.broadcast_to(in_axis, shape), dtype=np.intp).reshape(-1)
        return Owned(np.zeros(len(flat), np.int32), flat)
    if len(axes) == 1 and cut.is_consecutive:
        flat = np.ascontiguousarray(np.broadcast_to(indices[0].array, shape), dtype=np.int64).reshape(-1)
        owners, row_numbers = np.empty(len(flat), np.int32), np.empty(len(flat), np.intp)
        boundaries = np.array(cut.all_starts(), dtype=np.int64)
        wrong = find_rows(flat, boundaries, axis.positions.astype(np.int32), owners, row_numbers)
        if wrong < 0:
            return Owned(owners, row_numbers)
    checked = [
        in_bounds(share, number, axis.cut.length) for axis, share, number in zip(axes, indices, of_base, strict=True)
    ]
    owners, row_numbers = np.zeros((), dtype=np.int32), np.zeros((), dtype=np.intp)
    for axis, axis_indices in zip(axes, checked, strict=True):
        numbers, inside = axis.find(axis_indices)
        owners = owners + axis.positions[numbers]
        row_numbers = row_numbers * axis.lengths[numbers] + inside
    return Owned(*[np.ascontiguousarray(np.broadcast_to(array, shape)).reshape(-1) for array in (owners, row_numbers)])


def owned_elements(tensor: DTensor, indices: Indices) -> Owned:
    """Return who owns elements of *tensor*, and where, from their *indices* in C order, which are in bounds.

    The owners are positions in the group along the mesh dimensions that shard it.
    """
    axes = range(tensor.ndim)
    names = _names(tensor, axes)
    shares = [IndexShare(lines, ((0, len(lines)),)) for lines in np.unravel_index(indices, tensor.shape)]
    return _row_owners([_indexed_axis(tensor, axis, names) for axis in axes], shares, indices.shape, axes)


def in_bounds(share: IndexShare, axis: int, length: int) -> Indices:
    """Return indices from 0 on; ``IndexError`` for one that is out of bounds."""
    indices = share.array
    if not indices.size:
        return indices.astype(np.intp)
    if indices.min() >= 0 and indices.max() < length:
        return indices.astype(np.intp, copy=False)
    wrong = (indices < -length) | (indices >= length) if indices.dtype.kind == "i" else indices >= length
    if wrong.any():
        first = [line[:1] for line in np.nonzero(wrong)]
        at = tuple(int(global_indices(span, local)[0]) for span, local in zip(share.box, first, strict=True))
        where = f", at {at} of the index array" if at else ""
        raise IndexError(f"index {indices[wrong][0]} is out of bounds for axis {axis} with size {length}{where}")
    return np.where(indices < 0, indices + length, indices).astype(np.intp)


def index_call_text(name: str, base: DTensor, query: IndexRequest) -> str:
    """Return what the ranks compare about a call with an index."""
    specs = base.layout.specs_text
    index = ", ".join(f"{x.shape} {x.layout.specs_text if isinstance(x, DTensor) else 'plain'}" for x in query.indices)
    return f"{name} of {base.shape} {base.dtype} in {specs} by {index} on {query.axes}"


def _agreed_rows(ranks: RowRanks, base: DTensor, query: IndexRequest, local: tuple[Shape, list[IndexShare]]) -> Owned:
    """Return who owns the rows that this rank needs; ``IndexError`` on all ranks. Collective over the mesh."""

    def make() -> Owned:
        if 0 in query.shape:  # as in NumPy, no index is out of bounds then
            return Owned(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.intp))
        names = _names(base, query.axes)
        return _row_owners([_indexed_axis(base, axis, names) for axis in query.axes], local[1], local[0], query.axes)

    return ranks.agree_on_result(make)


# -- get --------------------------------------------------------------------------------------------------------------


def get(name: str, base: DTensor, query: IndexRequest) -> DTensor:
    """Return the elements that an index with arrays takes. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    base: tensor after the slices of the index
    query: index in parts
    """
    rest = [axis for axis in range(base.ndim) if axis not in query.axes]
    layout = index_layout(base, query, rest)
    index = [local_index(name, array, query.shape, layout) for array in query.indices]
    at, count = query.at, len(query.shape)
    axes = [base.layout.axes[axis] for axis in rest]
    specs = (*axes[:at], *layout.axes, *axes[at:])
    lengths = [base.shape[axis] for axis in rest]
    shape = (*lengths[:at], *query.shape, *lengths[at:])
    result = Layout(specs, base.mesh)
    names = _names(base, query.axes)
    text = index_call_text(name, base, query)

    def fetched(block: Array) -> Array:
        with ranks_along(name, base.mesh, names, text) as ranks:
            block_shape = layout.block_shape(query.shape)
            owned = _agreed_rows(ranks, base, query, (block_shape, index))
            out = new_block(result.block_shape(shape), base.dtype)
            rows = np.moveaxis(out, range(at, at + count), range(count))
            rows = rows.reshape(prod(block_shape), *rows.shape[count:])  # a view: the axes of the index are together
            block = np.moveaxis(block, query.axes, range(len(query.axes)))
            fetch(ranks if names else None, block, len(query.axes), owned, rows)
        return out

    return mapped(fetched, base, layout=result, shape=shape)


def _names(base: DTensor, axes: Sequence[int]) -> Names:
    """Return the mesh dimensions that cut *axes* of the base, in the order of the mesh."""
    return base.layout.dims_along(axes)


def index_layout(base: DTensor, query: IndexRequest, rest: list[int]) -> Layout:
    """Return how the axes of the index are cut, by mesh dimensions that the other axes do not have."""
    used = {name for axis in rest for name in base.layout.axes[axis]}
    tensors = [array for array in query.indices if isinstance(array, DTensor)]
    if tensors:
        common = common_layout(query.shape, tensors)
        return Layout([free_names(names, used) for names in common.axes], base.mesh)
    specs: list[Names] = [()] * len(query.shape)
    for axis, index in zip(query.axes, query.indices, strict=True):
        names = free_names(tuple(base.layout.axes[axis]), used)
        offset = len(query.shape) - index.ndim
        long = [number for number in range(len(query.shape)) if number >= offset and index.shape[number - offset] > 1]
        if names and specs:
            to = long[0] if long else 0
            specs[to] = (*specs[to], *names)
            used.update(names)
    return Layout(specs, base.mesh)


def local_index(name: str, index: IndexArray, shape: Shape, layout: Layout) -> IndexShare:
    """Return the share of an index array that this rank needs. Collective if a tensor has to move."""
    axes, device = aligned_axes(index.shape, shape, layout), layout.mesh.rank or 0
    box = Layout(axes, layout.mesh).block_box(index.shape, device)
    local = relaid(index, axes, name, layout.mesh)._block if isinstance(index, DTensor) else cut_out(index, box)
    return IndexShare(np.asarray(local), box)


# -- set --------------------------------------------------------------------------------------------------------------


def put(name: str, base: DTensor, query: IndexRequest, value: Operand | None, how: np.ufunc | None = None) -> None:
    """Write *value* to the elements that an index with arrays takes. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    base: view of the tensor after the slices of the index
    query: index in parts
    value: number, array or tensor; None for a function of one operand
    how: universal function that combines elements with the value, in the order of the index; by default the value
        replaces them
    """
    rest = [axis for axis in range(base.ndim) if axis not in query.axes]
    names, count = _names(base, query.axes), len(query.axes)
    spread = None if value is None else in_front(name, base, query, rest, value)
    constant = spread is None or all(n == 1 for n in shape_of(spread)[: len(query.shape)])
    plain = not any(isinstance(array, DTensor) for array in query.indices)
    # Each rank may know all indices and rows: then it writes those that it owns, and nothing travels.
    on_all = not names or (plain and (constant or not isinstance(spread, DTensor)))
    layout = _flat_layout(base, query, () if on_all else names)
    index = [local_index(name, array, query.shape, layout) for array in query.indices]
    own_rows: Array | None = None
    if spread is not None:
        cut = [()] * len(query.shape) if constant else layout.axes
        to = Layout((*cut, *(base.layout.axes[axis] for axis in rest)), base.mesh)
        shape = (*((1,) * len(query.shape) if constant else query.shape), *(base.shape[axis] for axis in rest))
        own_rows = local_rows(name, spread, shape, to, base.dtype if how is None else None)
    text = index_call_text(name, base, query)
    if value is not None and not isinstance(value, DTensor) and not shape_of(value):
        text = f"{text}, of {value!r}"

    def delivered(block: Array) -> None:
        with ranks_along(name, base.mesh, names, text) as ranks:
            block_shape = layout.block_shape(query.shape)
            owned = _agreed_rows(ranks, base, query, (block_shape, index))
            block = np.moveaxis(block, query.axes, range(count))
            lines = None if own_rows is None else _own_lines(own_rows, None if constant else block_shape, block, count)
            write = _writer(block, lines if constant else None, how)
            if constant:
                lines = None
            if names and on_all:
                mine = np.flatnonzero(owned.owners == ranks.position)
                owned = Owned(owned.owners[mine], owned.row_numbers[mine])
                lines = None if lines is None else lines[mine]
            deliver(None if on_all else ranks, block.shape[:count], owned, lines, write, sums=how is not None)

    on_blocks(delivered, base)


def _writer(block: Array, constant: Array | None, how: np.ufunc | None) -> Write:
    """Return what writes rows to a block; all of them are *constant* if that is given."""

    def write(index: tuple[Indices, ...], rows: Array | None) -> None:
        values = rows if constant is None else constant
        if not len(index[0]):
            return
        if how is None:
            assert values is not None
            opaque(block)[index] = opaque(values)
        else:
            how.at(block, index, *(() if values is None else (as_combined(how, values, block),)))

    return write


def as_combined(how: np.ufunc, values: Array, block: Array) -> Array:
    """Return *values* in the dtype in which NumPy combines them with elements of *block*.

    NumPy converts them one after the other, which takes ten times as long.
    """
    kinds = how.resolve_dtypes((block.dtype, values.dtype, None))
    return values.astype(kinds[1], copy=False) if kinds[0] == kinds[2] == block.dtype else values


def _own_lines(rows: Array, block_shape: Shape | None, block: Array, count: int) -> Array:
    """Return the rows that this rank has, one after the other, apart from the memory of *block*.

    Parameters
    ----------
    rows: array with the axes of the index first, which have length 1 where rows repeat
    block_shape: shape of the index on this rank; None if all rows are one
    block: block to write to, with its *count* indexed axes first
    """
    row = block.shape[count:]
    if block_shape is None:
        lines = rows.reshape(rows.shape[rows.ndim - len(row) :])
    else:
        lines = np.broadcast_to(rows, (*block_shape, *row)).reshape(prod(block_shape), *row)
    return lines.copy() if np.may_share_memory(lines, block) else lines


def _flat_layout(base: DTensor, query: IndexRequest, names: Names) -> Layout:
    """Return a layout of the index in which *names* cut it into consecutive intervals, in the order of the ranks."""
    first = next((axis for axis, n in enumerate(query.shape) if n > 1), 0)
    return Layout([names if axis == first else () for axis in range(len(query.shape))], base.mesh)


def in_front(name: str, base: DTensor, query: IndexRequest, rest: list[int], value: Operand) -> Operand:
    """Return *value* with the axes of the index first, and those of a row then; some may have length 1."""
    lengths, at, count = [base.shape[axis] for axis in rest], query.at, len(query.shape)
    shape = (*lengths[:at], *query.shape, *lengths[at:])
    value_shape = shape_of(value)
    extra = len(value_shape) - len(shape)
    wide = (1,) * -extra + value_shape[max(extra, 0) :]
    fits = all(n in (1, m) for n, m in zip(wide, shape, strict=True))
    if not fits or any(n != 1 for n in value_shape[: max(extra, 0)]):
        raise ShapeError(
            f"{name}: shape mismatch: a value of shape {value_shape} could not be broadcast to the indexing result of "
            f"shape {shape}"
        )
    if isinstance(value, DTensor):
        value = tensor_np.reshape(value, wide) if value_shape != wide else value
    else:
        value = np.asarray(value).reshape(wide)
    return tensor_np.moveaxis(value, tuple(range(at, at + count)), tuple(range(count)))


def local_rows(name: str, value: Operand, shape: Shape, layout: Layout, dtype: DType | None) -> Array:
    """Return what this rank needs of the *value*, with axes of length 1 where it repeats. Collective if it moves.

    Parameters
    ----------
    name: name of the operation
    value: tensor or array with as many axes as *shape*
    shape, layout: shape and layout of the rows
    dtype: dtype of the returned rows; by default that of the value
    """
    axes = aligned_axes(shape_of(value), shape, layout)
    if isinstance(value, DTensor):
        moved = relaid(value, axes, name, layout.mesh)._block
        local = np.empty(0, value.dtype) if moved is None else moved
    else:
        local = cut_out(np.asarray(value), Layout(axes, layout.mesh).block_box(shape_of(value), layout.mesh.rank or 0))
    return local if dtype is None or local.dtype == dtype else local.astype(dtype)
