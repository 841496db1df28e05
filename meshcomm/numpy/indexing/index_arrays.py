"""Index arrays: ``t[[0, 2]]``, ``t[i, j]``, ``t[mask, 1]``, ``t[tensor]``, to get, to set, and to sum up.

    1. slices, new axes and ... are applied first, and give a view, the base; axes with index arrays stay complete
    2. the index arrays broadcast to one shape; at each position of it, they select one row of the base
    3. each rank asks the owners of these rows for them, or sends them rows: :mod:`meshcomm.blocks.rows`

The axes of the index are cut as its tensors are. If it has plain arrays only, which are the same on all ranks, they
are cut as the axes that they replace. Other axes keep their cut.

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
from meshcomm.blocks.rows import RowOwners, RowRanks, Write, deliver, fetch, ranks_along
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

IndexArray: TypeAlias = DTensor | Indices

Nonzero: TypeAlias = Callable[[IndexArray], tuple[IndexArray, ...]]
"""Returns where a mask is true."""

_MAX_AXES = 64
"""Axes. NumPy 2 allows no more."""


class IndexRequest(NamedTuple):
    """An index with arrays, in parts.

    Parameters
    ----------
    items: slices and new axes, which are applied first and give the base; axes with index arrays stay complete
    axes: axes of the base that have index arrays, ascending
    indices: index array of each of these axes; integers from 0 on, once they are checked
    shape: shape to which the index arrays broadcast
    first_axis: first axis of the result that belongs to the index
    """

    items: Items
    axes: tuple[int, ...]
    indices: tuple[IndexArray, ...]
    shape: Shape
    first_axis: int


def has_arrays(index: object) -> bool:
    """Return whether an *index* contains arrays, tensors, lists or masks, and so is not a slice."""
    for item in index if isinstance(index, tuple) else (index,):
        if item is None or item is Ellipsis or (isinstance(item, slice | int | np.integer) and not _is_bool(item)):
            continue
        value = as_array_of(unwrapped(item))
        if _is_bool(value) or isinstance(value, list | tuple | range):
            return True
        if isinstance(value, np.ndarray | DTensor) and (
            value.ndim or value.dtype == bool or value.dtype.kind not in "iu"
        ):
            return True
    return False


def as_array_of(x: object) -> object:
    """Return an array of another library, such as pandas or xarray, as a NumPy array; anything else unchanged."""
    if isinstance(x, np.ndarray | np.generic | DTensor) or not hasattr(x, "__array__"):
        return x
    return np.asarray(x)


def _is_bool(x: object) -> bool:
    return isinstance(x, bool | np.bool_)


# -- from an index to a request ---------------------------------------------------------------------------------------


def request(name: str, tensor: DTensor, index: object, nonzero: Nonzero) -> IndexRequest:
    """Return the *index* of *tensor* in parts. Collective over the mesh if it has plain arrays or masks.

    Parameters
    ----------
    name: name of the operation
    tensor: indexed tensor
    index: index with arrays
    nonzero: function that returns the indices of the true elements of a mask
    """
    parts = [_parsed_part(item) for item in (index if isinstance(index, tuple) else (index,))]
    plain_arrays = [part for part in parts if isinstance(part, np.ndarray)]
    # This also refuses an index on another mesh.
    agree_on_plain(name, [tensor, *plain_arrays], mesh_of([tensor, *parts]))
    full_parts = _full_parts(index, parts, tensor.shape)
    items: list[Item] = []  # of the base
    arrays: dict[int, IndexArray] = {}
    axis, positions = 0, list[int]()  # positions of arrays and integers in the index
    for position, part in enumerate(full_parts):
        if part is None:
            items.append(None)
        elif _is_mask(part):
            _check_mask(part, tensor.shape, axis)
            index_arrays: tuple[IndexArray, ...] = nonzero(part) if part.ndim else ()
            if not part.ndim:  # a single bool: an array of length 1 or 0 for a new axis
                items.append(None)
                index_arrays = (np.zeros(int(bool(part)), dtype=np.intp),)
            for mask_axis, index_array in enumerate(index_arrays):
                arrays[len(items) - (not part.ndim)] = index_array
                if part.ndim:
                    items.append(AxisSlice(0, tensor.shape[axis + mask_axis]))
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
    are_adjacent = positions == list(range(positions[0], positions[0] + len(positions)))
    first_axis = min(arrays) if are_adjacent else 0
    return IndexRequest(
        tuple(items), tuple(arrays), tuple(arrays.values()), _broadcast_shape(arrays, len(items)), first_axis
    )


def _parsed_part(item: object) -> object:
    """Return one part of an index: an integer, slice, None or ..., or an array or a tensor of integers or bools."""
    value = as_array_of(unwrapped(item))
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
    """Return a list as an array; ``IndexError`` if it has anything but numbers."""
    try:
        return as_array(items)
    except DTypeError:
        raise IndexError(f"a list used as index has integers or bools, not {quote(items)}") from None


def _is_mask(part: object) -> TypeGuard[TensorOrArray]:
    return isinstance(part, np.ndarray | DTensor) and part.dtype == bool


def _indexed_axis_count(part: object) -> int:
    """Return the number of axes of the tensor that a part of an index indexes."""
    if part is None:
        return 0
    return part.ndim if _is_mask(part) else 1


def _full_parts(index: object, parts: list[object], shape: Shape) -> list[object]:
    """Return the parts of an index, with full slices for the axes that ... stands for, and for missing axes."""
    ellipses = [position for position, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"index {quote(index)} has {len(ellipses)} ellipses (...); one at most")
    axes = sum(_indexed_axis_count(part) for part in parts if part is not Ellipsis)
    if axes > len(shape):
        raise IndexError(
            f"too many indices: {quote(index)} is for {axes} of the {counted(len(shape), 'axis')} of shape {shape}"
        )
    ellipsis_position = ellipses[0] if ellipses else len(parts)
    return [*parts[:ellipsis_position], *[slice(None)] * (len(shape) - axes), *parts[ellipsis_position + 1 :]]


def _check_mask(mask: Value, shape: Shape, axis: int) -> None:
    for mask_axis, n in enumerate(mask.shape):
        if n != shape[axis + mask_axis]:
            raise IndexError(
                f"a mask of shape {mask.shape} for axis {axis} of a tensor of shape {shape}: it has {n} elements "
                f"along its axis {mask_axis}, where the tensor has {shape[axis + mask_axis]}"
            )


def _broadcast_shape(arrays: dict[int, IndexArray], ndim: int) -> Shape:
    """Return the shape that index arrays broadcast to, for a base with *ndim* axes."""
    shapes = [array.shape for array in arrays.values()]
    if max(ndim, ndim - len(shapes) + max(map(len, shapes)), len(shapes) + 1) > _MAX_AXES:
        raise IndexError(
            f"too many indices: an index has fewer than {_MAX_AXES} arrays, and a result at most {_MAX_AXES} axes"
        )
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = " ".join(map(str, shapes))
        raise IndexError(f"shape mismatch: index arrays could not be broadcast together with shapes {text}") from None


# -- where the rows are -----------------------------------------------------------------------------------------------


class LocalIndex(NamedTuple):
    """The elements of an index array that this rank needs, and their box in it."""

    array: Indices
    box: Box


class _IndexedAxis(NamedTuple):
    """One indexed axis of the base: how it is cut, the lengths of its blocks, and their owners in the group."""

    cut: AnyCut
    lengths: Indices  # of the blocks, by their numbers
    positions: Indices  # by the numbers of the blocks: what this axis adds to the position of the owner

    def find(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the numbers of the blocks that have these elements, and the index of each element in its block."""
        return (np.zeros((), dtype=np.intp), indices) if self.cut.blocks == 1 else self.cut.find(indices)


def _indexed_axis(base: DTensor, axis: int, names: Names) -> _IndexedAxis:
    mesh, cut = base.mesh, base.layout.cut(axis, base.shape[axis])
    block_numbers = np.arange(cut.blocks, dtype=np.intp)
    dims = tuple(base.layout.axes[axis])
    coordinates = (
        dict(zip(dims, np.unravel_index(block_numbers, [mesh.dim_size(name) for name in dims]), strict=True))
        if dims
        else {}
    )
    positions = np.zeros(cut.blocks, dtype=np.intp)
    stride = 1
    for name in reversed(names):
        if name in coordinates:
            positions += coordinates[name] * stride
        stride *= mesh.dim_size(name)
    return _IndexedAxis(cut, np.asarray(cut.lengths(block_numbers), dtype=np.intp), positions)


def _row_owners(
    axes: Sequence[_IndexedAxis], indices: Sequence[LocalIndex], shape: Shape, base_axes: Sequence[int]
) -> RowOwners:
    """Return the owner of each row and its index there, in C order, for *indices* that broadcast to *shape*.

    ``IndexError`` for an index out of bounds.

    Parameters
    ----------
    axes, indices: axes of the base, and the indices along each of them
    shape: shape of the index on this rank
    base_axes: numbers of the axes, for messages
    """
    axis, cut = axes[0], axes[0].cut
    if len(axes) == 1 and cut.blocks == 1:
        checked_indices = in_bounds(indices[0], base_axes[0], cut.length)
        flat_indices = np.ascontiguousarray(np.broadcast_to(checked_indices, shape), dtype=np.intp).reshape(-1)
        return RowOwners(np.zeros(len(flat_indices), np.int32), flat_indices)
    if len(axes) == 1 and cut.is_consecutive:
        flat_indices = np.ascontiguousarray(np.broadcast_to(indices[0].array, shape), dtype=np.int64).reshape(-1)
        owners, row_numbers = np.empty(len(flat_indices), np.int32), np.empty(len(flat_indices), np.intp)
        boundaries = np.array(cut.all_starts(), dtype=np.int64)
        wrong_position = find_rows(flat_indices, boundaries, axis.positions.astype(np.int32), owners, row_numbers)
        if wrong_position < 0:
            return RowOwners(owners, row_numbers)
    checked_arrays = [
        in_bounds(index, base_axis, axis.cut.length)
        for axis, index, base_axis in zip(axes, indices, base_axes, strict=True)
    ]
    owners, row_numbers = np.zeros((), dtype=np.int32), np.zeros((), dtype=np.intp)
    for axis, axis_indices in zip(axes, checked_arrays, strict=True):
        block_numbers, offsets = axis.find(axis_indices)
        owners = owners + axis.positions[block_numbers]
        row_numbers = row_numbers * axis.lengths[block_numbers] + offsets
    return RowOwners(
        *[np.ascontiguousarray(np.broadcast_to(array, shape)).reshape(-1) for array in (owners, row_numbers)]
    )


def owned_elements(tensor: DTensor, indices: Indices) -> RowOwners:
    """Return the owners of elements of *tensor*, and their indices there, from flat *indices* that are in bounds.

    The owners are positions in the group along the mesh dimensions that shard the tensor.
    """
    axes = range(tensor.ndim)
    names = _sharding_dims(tensor, axes)
    local_indices = [
        LocalIndex(axis_indices, ((0, len(axis_indices)),)) for axis_indices in np.unravel_index(indices, tensor.shape)
    ]
    return _row_owners([_indexed_axis(tensor, axis, names) for axis in axes], local_indices, indices.shape, axes)


def in_bounds(index: LocalIndex, axis: int, length: int) -> Indices:
    """Return the indices, counted from 0; ``IndexError`` for an index out of bounds."""
    indices = index.array
    if not indices.size:
        return indices.astype(np.intp)
    if indices.min() >= 0 and indices.max() < length:
        return indices.astype(np.intp, copy=False)
    is_wrong = (indices < -length) | (indices >= length) if indices.dtype.kind == "i" else indices >= length
    if is_wrong.any():
        first_wrong = [axis_positions[:1] for axis_positions in np.nonzero(is_wrong)]
        position = tuple(
            int(global_indices(interval, axis_position)[0])
            for interval, axis_position in zip(index.box, first_wrong, strict=True)
        )
        position_text = f", at {position} of the index array" if position else ""
        raise IndexError(
            f"index {indices[is_wrong][0]} is out of bounds for axis {axis} with size {length}{position_text}"
        )
    return np.where(indices < 0, indices + length, indices).astype(np.intp)


def index_call_text(name: str, base: DTensor, query: IndexRequest) -> str:
    """Return the text of a call with an index, which the ranks compare."""
    specs = base.layout.specs_text
    index = ", ".join(f"{x.shape} {x.layout.specs_text if isinstance(x, DTensor) else 'plain'}" for x in query.indices)
    return f"{name} of {base.shape} {base.dtype} in {specs} by {index} on {query.axes}"


def _agreed_row_owners(
    ranks: RowRanks, base: DTensor, query: IndexRequest, shape_and_index: tuple[Shape, list[LocalIndex]]
) -> RowOwners:
    """Return the owners of the rows that this rank needs; ``IndexError`` on all ranks. Collective over the mesh."""

    def find_owners() -> RowOwners:
        if 0 in query.shape:  # as in NumPy, no index is out of bounds then
            return RowOwners(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.intp))
        names = _sharding_dims(base, query.axes)
        return _row_owners(
            [_indexed_axis(base, axis, names) for axis in query.axes],
            shape_and_index[1],
            shape_and_index[0],
            query.axes,
        )

    return ranks.agree_on_result(find_owners)


# -- get --------------------------------------------------------------------------------------------------------------


def get(name: str, base: DTensor, query: IndexRequest) -> DTensor:
    """Return the elements that an index with arrays selects. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    base: tensor after the slices of the index
    query: index in parts
    """
    row_axes = [axis for axis in range(base.ndim) if axis not in query.axes]
    layout = index_layout(base, query, row_axes)
    local_indices = [local_index(name, array, query.shape, layout) for array in query.indices]
    first_axis, index_ndim = query.first_axis, len(query.shape)
    row_specs = [base.layout.axes[axis] for axis in row_axes]
    result_specs = (*row_specs[:first_axis], *layout.axes, *row_specs[first_axis:])
    row_shape = [base.shape[axis] for axis in row_axes]
    result_shape = (*row_shape[:first_axis], *query.shape, *row_shape[first_axis:])
    result_layout = Layout(result_specs, base.mesh)
    names = _sharding_dims(base, query.axes)
    text = index_call_text(name, base, query)

    def fetch_rows(block: Array) -> Array:
        with ranks_along(name, base.mesh, names, text) as ranks:
            block_shape = layout.block_shape(query.shape)
            owned = _agreed_row_owners(ranks, base, query, (block_shape, local_indices))
            out = new_block(result_layout.block_shape(result_shape), base.dtype)
            rows = np.moveaxis(out, range(first_axis, first_axis + index_ndim), range(index_ndim))
            # A view, as the axes of the index are adjacent.
            rows = rows.reshape(prod(block_shape), *rows.shape[index_ndim:])
            block = np.moveaxis(block, query.axes, range(len(query.axes)))
            fetch(ranks if names else None, block, len(query.axes), owned, rows)
        return out

    return mapped(fetch_rows, base, layout=result_layout, shape=result_shape)


def _sharding_dims(base: DTensor, axes: Sequence[int]) -> Names:
    """Return the mesh dimensions that cut *axes* of the base, in the order of the mesh."""
    return base.layout.dims_along(axes)


def index_layout(base: DTensor, query: IndexRequest, row_axes: list[int]) -> Layout:
    """Return how the axes of the index are cut, by mesh dimensions that do not cut *row_axes*."""
    used_names = {name for axis in row_axes for name in base.layout.axes[axis]}
    tensors = [array for array in query.indices if isinstance(array, DTensor)]
    if tensors:
        tensor_layout = common_layout(query.shape, tensors)
        return Layout([free_names(names, used_names) for names in tensor_layout.axes], base.mesh)
    specs: list[Names] = [()] * len(query.shape)
    for axis, index in zip(query.axes, query.indices, strict=True):
        names = free_names(tuple(base.layout.axes[axis]), used_names)
        offset = len(query.shape) - index.ndim
        long_axes = [i for i in range(len(query.shape)) if i >= offset and index.shape[i - offset] > 1]
        if names and specs:
            target_axis = long_axes[0] if long_axes else 0
            specs[target_axis] = (*specs[target_axis], *names)
            used_names.update(names)
    return Layout(specs, base.mesh)


def local_index(name: str, index: IndexArray, shape: Shape, layout: Layout) -> LocalIndex:
    """Return the elements of an index array that this rank needs. Collective if a tensor has to move."""
    axes, device = aligned_axes(index.shape, shape, layout), layout.mesh.rank or 0
    box = Layout(axes, layout.mesh).block_box(index.shape, device)
    block = relaid(index, axes, name, layout.mesh)._block if isinstance(index, DTensor) else cut_out(index, box)
    return LocalIndex(np.asarray(block), box)


# -- set --------------------------------------------------------------------------------------------------------------


def put(name: str, base: DTensor, query: IndexRequest, value: Operand | None, ufunc: np.ufunc | None = None) -> None:
    """Write *value* to the elements that an index with arrays selects. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    base: view of the tensor after the slices of the index
    query: index in parts
    value: number, array or tensor; None for a function of one operand
    ufunc: universal function that combines elements with the value, in the order of the index; by default the value
        replaces them
    """
    row_axes = [axis for axis in range(base.ndim) if axis not in query.axes]
    names, n_axes = _sharding_dims(base, query.axes), len(query.axes)
    aligned_value = None if value is None else with_index_axes_first(name, base, query, row_axes, value)
    is_constant = aligned_value is None or all(n == 1 for n in shape_of(aligned_value)[: len(query.shape)])
    is_plain_index = not any(isinstance(array, DTensor) for array in query.indices)
    # If each rank knows all indices and rows, it writes the rows that it owns, and nothing moves.
    is_known_to_all = not names or (is_plain_index and (is_constant or not isinstance(aligned_value, DTensor)))
    layout = _flat_layout(base, query, () if is_known_to_all else names)
    local_indices = [local_index(name, array, query.shape, layout) for array in query.indices]
    values: Array | None = None
    if aligned_value is not None:
        index_specs = [()] * len(query.shape) if is_constant else layout.axes
        rows_layout = Layout((*index_specs, *(base.layout.axes[axis] for axis in row_axes)), base.mesh)
        shape = (*((1,) * len(query.shape) if is_constant else query.shape), *(base.shape[axis] for axis in row_axes))
        values = local_rows(name, aligned_value, shape, rows_layout, base.dtype if ufunc is None else None)
    text = index_call_text(name, base, query)
    if value is not None and not isinstance(value, DTensor) and not shape_of(value):
        text = f"{text}, of {value!r}"

    def deliver_rows(block: Array) -> None:
        with ranks_along(name, base.mesh, names, text) as ranks:
            block_shape = layout.block_shape(query.shape)
            owned = _agreed_row_owners(ranks, base, query, (block_shape, local_indices))
            block = np.moveaxis(block, query.axes, range(n_axes))
            rows = None if values is None else _flat_rows(values, None if is_constant else block_shape, block, n_axes)
            write = _writer(block, rows if is_constant else None, ufunc)
            if is_constant:
                rows = None
            if names and is_known_to_all:
                own_positions = np.flatnonzero(owned.owners == ranks.position)
                owned = RowOwners(owned.owners[own_positions], owned.row_numbers[own_positions])
                rows = None if rows is None else rows[own_positions]
            deliver(
                None if is_known_to_all else ranks, block.shape[:n_axes], owned, rows, write, sums=ufunc is not None
            )

    on_blocks(deliver_rows, base)


def _writer(block: Array, constant_row: Array | None, ufunc: np.ufunc | None) -> Write:
    """Return the function that writes rows to a block; if *constant_row* is given, it writes this row each time."""

    def write(index: tuple[Indices, ...], rows: Array | None) -> None:
        values = rows if constant_row is None else constant_row
        if not len(index[0]):
            return
        if ufunc is None:
            assert values is not None
            opaque(block)[index] = opaque(values)
        else:
            ufunc.at(block, index, *(() if values is None else (as_combined(ufunc, values, block),)))

    return write


def as_combined(ufunc: np.ufunc, values: Array, block: Array) -> Array:
    """Return *values* in the dtype in which NumPy combines them with elements of *block*.

    NumPy converts them one after the other, which takes ten times as long.
    """
    dtypes = ufunc.resolve_dtypes((block.dtype, values.dtype, None))
    return values.astype(dtypes[1], copy=False) if dtypes[0] == dtypes[2] == block.dtype else values


def _flat_rows(rows: Array, block_shape: Shape | None, block: Array, n_axes: int) -> Array:
    """Return the rows of this rank along one axis, in memory that *block* does not share.

    Parameters
    ----------
    rows: array with the axes of the index first, which have length 1 where rows repeat
    block_shape: shape of the index on this rank; None if all rows are equal
    block: block to write to, with its *n_axes* indexed axes first
    """
    row_shape = block.shape[n_axes:]
    if block_shape is None:
        result = rows.reshape(rows.shape[rows.ndim - len(row_shape) :])
    else:
        result = np.broadcast_to(rows, (*block_shape, *row_shape)).reshape(prod(block_shape), *row_shape)
    return result.copy() if np.may_share_memory(result, block) else result


def _flat_layout(base: DTensor, query: IndexRequest, names: Names) -> Layout:
    """Return a layout of the index in which *names* cut it into consecutive intervals, in the order of the ranks."""
    long_axis = next((axis for axis, n in enumerate(query.shape) if n > 1), 0)
    return Layout([names if axis == long_axis else () for axis in range(len(query.shape))], base.mesh)


def with_index_axes_first(
    name: str, base: DTensor, query: IndexRequest, row_axes: list[int], value: Operand
) -> Operand:
    """Return *value* with the axes of the index first, followed by those of a row; some may have length 1."""
    row_shape, first_axis, index_ndim = [base.shape[axis] for axis in row_axes], query.first_axis, len(query.shape)
    result_shape = (*row_shape[:first_axis], *query.shape, *row_shape[first_axis:])
    value_shape = shape_of(value)
    extra = len(value_shape) - len(result_shape)
    aligned_shape = (1,) * -extra + value_shape[max(extra, 0) :]
    fits = all(n in (1, m) for n, m in zip(aligned_shape, result_shape, strict=True))
    if not fits or any(n != 1 for n in value_shape[: max(extra, 0)]):
        raise ShapeError(
            f"{name}: shape mismatch: a value of shape {value_shape} could not be broadcast to the indexing result of "
            f"shape {result_shape}"
        )
    if isinstance(value, DTensor):
        value = tensor_np.reshape(value, aligned_shape) if value_shape != aligned_shape else value
    else:
        value = np.asarray(value).reshape(aligned_shape)
    return tensor_np.moveaxis(value, tuple(range(first_axis, first_axis + index_ndim)), tuple(range(index_ndim)))


def local_rows(name: str, value: Operand, shape: Shape, layout: Layout, dtype: DType | None) -> Array:
    """Return the rows of *value* that this rank needs; an axis has length 1 if they repeat. Collective if they move.

    Parameters
    ----------
    name: name of the operation
    value: tensor or array with as many axes as *shape*
    shape, layout: shape and layout of the rows
    dtype: dtype of the returned rows; by default that of the value
    """
    axes = aligned_axes(shape_of(value), shape, layout)
    if isinstance(value, DTensor):
        block = relaid(value, axes, name, layout.mesh)._block
        rows = np.empty(0, value.dtype) if block is None else block
    else:
        rows = cut_out(np.asarray(value), Layout(axes, layout.mesh).block_box(shape_of(value), layout.mesh.rank or 0))
    return rows if dtype is None or rows.dtype == dtype else rows.astype(dtype)
