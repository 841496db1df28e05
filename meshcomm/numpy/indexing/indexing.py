"""Indexing: ``t[index]``, ``t[index] = value``, and masks.

:mod:`meshcomm.numpy.indexing.slicing` says how a slice keeps its elements where they are. Such a slice sends nothing,
and its block is a view of the block of the tensor. An assignment relays the value to the layout of the slice, and then
copies it.
"""

import operator
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.align import agree_on_plain, note, relaid
from meshcomm.blocks.edges import IntervalExchange, interval_exchange_for_axes, unshared_pieces
from meshcomm.blocks.make import as_sharded, map_into, mapped, on_blocks
from meshcomm.blocks.moved import is_moved, is_same_view, moved_view
from meshcomm.blocks.rules import Operand, aligned_axes, is_operand, shape_of
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.blocks.views import check_writable, offset_of, sliced_abstract_array, viewed
from meshcomm.core._arguments import as_array, ndim_of, refuse_masked
from meshcomm.core._callers import call_warning_at_program, warning_at_program
from meshcomm.core._types import Array, Shape, Slices
from meshcomm.core.arrays._indices import At
from meshcomm.core.arrays._recipes import Assignment, Call, OfSlice, Recipe, completed, write_pieces
from meshcomm.core.arrays._storage import count_write, strides_of, write_back
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.slicing import AxisSlice, Item, Items, parsed_index
from meshcomm.core.memory.copies import exact_copy, is_same_memory, opaque
from meshcomm.errors import DTypeError, ShapeError
from meshcomm.numpy.elementwise.signatures import implements, operation
from meshcomm.numpy.indexing import elements, fields, index_arrays, masks, shares
from meshcomm.numpy.indexing.index_arrays import has_arrays
from meshcomm.numpy.indexing.masks import GET_NAME, SET_NAME
from meshcomm.numpy.indexing.nonzero import indices_of_mask
from meshcomm.numpy.indexing.pages import PAGES
from meshcomm.numpy.indexing.slicing import LocalSlice, index_text, local_slice_of, result_shape, slice_in_block


@implements(operator.getitem)
def getitem(tensor: DTensor, index: object) -> DTensor:
    """Return ``tensor[index]``. Collective over the mesh if elements have to move; masks are Collective."""
    names = fields.names_in(tensor, index)
    if names is not None:
        if not isinstance(names, str):
            return fields.fields(tensor, names)
        field_view = fields.field(tensor, names)
        # A field of a single record is no view, as in NumPy.
        return field_view if tensor.ndim or field_view.ndim else field_view.copy()
    if has_arrays(index):
        mask = masks.mask_in(index, tensor.shape)
        if mask is not None:
            return masks.compressed(tensor, mask)
        return indexed(GET_NAME, tensor, index)
    return completed(slice_of(tensor, index))


def slice_of(tensor: DTensor, index: object) -> Call | DTensor:
    """Return the elements that an *index* without arrays selects, or the call that returns them.

    Collective over the mesh if elements have to move.
    """
    items = parsed_index(index, tensor.shape)
    # Like the fast path, which other ranks may use.
    if elements.is_element_index(items, tensor) and not _has_ellipsis(index):
        element: DTensor | None = elements.element_of(tensor, items)
        if element is not None:
            return element
    if not result_shape(items) and not _has_ellipsis(index) and tensor.dtype.names is None:
        # One element is no view, as in NumPy, unless it is a record.
        return mapped(np.array, _slice_of(tensor, items))
    return _slice_or_call(tensor, items)


def _has_ellipsis(index: object) -> bool:
    return any(item is Ellipsis for item in index) if isinstance(index, tuple) else index is Ellipsis


def indexed(name: str, tensor: DTensor, index: object) -> DTensor:
    """Return the elements that an *index* with arrays selects, by `index_arrays.get`. Collective over the mesh."""
    query = index_arrays.request(name, tensor, index, indices_of_mask)
    return index_arrays.get(name, _slice_of(tensor, query.items), query)


def _slice_of(tensor: DTensor, items: Items) -> DTensor:
    return completed(_slice_or_call(tensor, items))


def _slice_or_call(tensor: DTensor, items: Items) -> Call | DTensor:
    """Return the slice that *items* select, or the call that returns it: a view, which is writeable if NumPy's is."""
    device = tensor.mesh.rank
    local_slice = local_slice_of(tensor.layout, tensor.shape, items, device)
    abstract_view = sliced_abstract_array(tensor, items)
    if local_slice is None:
        return moved_view(tensor, _moved_slice(tensor, items), abstract_view)
    if abstract_view.flags.writeable:
        spec, position = (
            TensorSpec(local_slice.layout, abstract_view.shape, tensor.dtype),
            _slice_positions(tensor._spec, items, local_slice, device),
        )
        offset, step_bytes = offset_of(abstract_view, tensor), _step_bytes(tensor, items)
        return Call(OfSlice(position, spec, abstract_view.strides, offset, local_slice.lengths, step_bytes), (tensor,))
    block_index: Slices = (..., *local_slice.block)

    def take(block: Array) -> Array:
        block_view: Array = block[block_index]
        return block_view.reshape(local_slice.lengths)  # only axes of length 1 come and go

    return viewed(take, tensor, local_slice.layout, abstract_view)


def _step_bytes(tensor: DTensor, items: Items) -> Shape:
    """Return, for each axis, the bytes by which a slice begins later if its index along the axis grows by one."""
    return strides_of(tensor) if 0 not in result_shape(items) else (0,) * tensor.ndim


def _slice_positions(spec: TensorSpec, items: Items, local_slice: LocalSlice, device: int | None) -> At:
    """Return where slices with the signature of *items* are in the block of *device*.

    *local_slice* is the first slice of this signature.
    """
    block_starts = list[int | None]()
    axis_items = [item for item in items if item is not None]
    block_numbers = (0,) * len(axis_items) if device is None else spec.layout.block_numbers(device)
    for item, starts, block_number in zip(axis_items, spec.cuts or spec.find_cuts(), block_numbers, strict=True):
        if starts is None:
            block_starts.append(0)
        elif starts and isinstance(item, int) and starts[block_number] <= item < starts[block_number + 1]:
            block_starts.append(starts[block_number])
        else:
            block_starts.append(None)  # the signature says which elements are in the block, if any
    lengths = tuple([1 if isinstance(item, int) else item.length for item in axis_items])
    steps = tuple([1 if isinstance(item, int) else item.step for item in axis_items])
    return At(local_slice.block, tuple(block_starts), lengths, steps)


# -- slices whose elements move ---------------------------------------------------------------------------------------


def _moved_slice(tensor: DTensor, items: Items) -> DTensor:
    """Return a slice whose elements have to move. Collective over the mesh."""
    reversed_axes = [axis for axis, item in enumerate(_result_items(items)) if item is not None and item.step < 0]
    if reversed_axes:
        return tensor_np.flip(_slice_of(tensor, tuple(map(_forward_slice, items))), tuple(reversed_axes))
    axis_items = [item for item in items if item is not None]
    outer_items, inner_items = list[Item](), list[Item]()
    axes = list(tensor.layout.axes)
    for axis, item in enumerate(axis_items):
        cut = tensor.layout.cut(axis, tensor.shape[axis])
        if isinstance(item, int):
            outer_items.append(AxisSlice(item, 1))
            inner_items.append(0)
            axes[axis] = ()  # every device along these mesh dimensions gets the elements
            continue
        outer, inner = _slice_around(cut, item)
        outer_items.append(outer)
        inner_items.append(inner)
        if not cut.is_consecutive:
            axes[axis] = tuple(axes[axis])
    relaid_slice = relaid(_slice_of(tensor, tuple(outer_items)), tuple(axes), f"t{index_text(items)}")
    remaining_items = iter(inner_items)
    return _slice_of(relaid_slice, tuple(None if item is None else next(remaining_items) for item in items))


def _result_items(items: Items) -> list[AxisSlice | None]:
    return [item for item in items if not isinstance(item, int)]


def _forward_slice(item: Item) -> Item:
    """Return the slice of the same elements with a positive step."""
    if not isinstance(item, AxisSlice) or item.step > 0:
        return item
    if not item.length:
        return AxisSlice(0, 0)
    return AxisSlice(item.start + (item.length - 1) * item.step, item.length, -item.step)


def _slice_around(cut: AnyCut, item: AxisSlice) -> tuple[AxisSlice, AxisSlice]:
    """Return an outer slice that contains *item* and can stay where it is, and *item* as a slice of the outer one."""
    end = item.start + (item.length - 1) * item.step + 1 if item.length else item.start
    begin, end = cut.around(item.start, end)
    return AxisSlice(begin, end - begin), AxisSlice(item.start - begin, item.length, item.step)


# -- assignment -------------------------------------------------------------------------------------------------------


@operation(operator.setitem)
def setitem(tensor: DTensor, index: object, value: object) -> Call | None:
    """Decide how to run ``tensor[index] = value``. Collective over the mesh, unless *value* is a number.

    In ``t[index] += 1``, a view whose elements had to move has already written them back: there is nothing left to do.
    """
    names = fields.names_in(tensor, index)
    if isinstance(names, str):
        setitem(fields.field(tensor, names), Ellipsis, value)
        return None
    if names is not None:
        fields.set_fields(tensor, names, value, lambda target, field_value: setitem(target, Ellipsis, field_value))
        return None
    check_writable(SET_NAME, tensor, index=index)
    source = unwrapped(value)
    if isinstance(source, DTensor) and is_moved(source) and not has_arrays(index):
        abstract_view = sliced_abstract_array(tensor, parsed_index(index, tensor.shape))
        if is_same_view(source, tensor, abstract_view):
            return None
    is_record = tensor.dtype.names is not None and isinstance(source, tuple | list)
    if is_record or (isinstance(source, str | bytes) and tensor.dtype.kind in "mMSU"):
        source = np.asarray(source, tensor.dtype)
    if not is_operand(source):
        raise TypeError(f"{SET_NAME}: a {type(source).__name__} is no number, array or tensor")
    _check_kind(tensor, source)
    (operand,) = agree_on_plain(SET_NAME, [source], tensor.mesh)
    return _assignment(tensor, index, operand)


def write_whole(tensor: DTensor, index: object, value: Array) -> bool:
    """Write an array that each rank has whole to a slice, if blocks are consecutive; return whether it is written.

    A loop may use a new slice shape in each turn: this function caches nothing by shapes.
    """
    shape, cuts = tensor.shape, tensor._spec.cuts or tensor._spec.find_cuts()
    if value.dtype.kind not in "biufc" or not np.can_cast(value.dtype, tensor.dtype, "same_kind"):
        return False
    if () in cuts or is_moved(tensor) or not (is_scripted() or hasattr(value, "as_tensor")):
        return False
    items = parsed_index(index, shape)
    shape, array = result_shape(items), value.view(np.ndarray)
    extra = array.ndim - len(shape)
    if any(n != 1 for n in array.shape[: max(extra, 0)]) or any(type(x) is AxisSlice and x.step < 0 for x in items):
        return False
    array = array.reshape(array.shape[extra:] if extra > 0 else (1,) * -extra + array.shape)
    if any(n not in (1, m) for n, m in zip(array.shape, shape, strict=True)) or not count_write(tensor, index):
        return False
    note(array, tensor.mesh)
    pages = PAGES.get(id(tensor))
    if pages is not None:
        call_warning_at_program(pages.write_slice, (index, array), {})
    if not tensor._has_block:
        return True
    overlap = slice_in_block(tensor._spec, items, tensor.mesh.rank or 0)
    block: Array = tensor._block
    if overlap is not None:
        value_index = tuple(
            slice(None) if n == 1 else axis_slice for n, axis_slice in zip(array.shape, overlap[1], strict=True)
        )
        call_warning_at_program(_copy, (block[(*overlap[0], ...)], array[value_index]), {})
    return True


def _assignment(tensor: DTensor, index: object, operand: Operand) -> Call | None:
    if not has_arrays(index):
        return _slice_assignment(tensor, parsed_index(index, tensor.shape), operand)
    mask = masks.mask_in(index, tensor.shape)
    if mask is not None:
        _assign_where(tensor, mask, operand)
    else:
        update(SET_NAME, tensor, index, operand)
    return None


def update(name: str, tensor: DTensor, index: object, value: Operand | None, ufunc: np.ufunc | None = None) -> None:
    """Write *value* to the elements that an *index* with arrays selects. Collective over the mesh.

    Arguments are those of `index_arrays.put`.
    """
    query = index_arrays.request(name, tensor, index, indices_of_mask)
    base = _slice_of(tensor, query.items)
    if ufunc is None or value is None or not shares.combine_in_shares(name, base, query, value, ufunc):
        index_arrays.put(name, base, query, value, ufunc)
    count_write(base)
    write_back(base)  # if its elements had to move


def _check_kind(tensor: DTensor, value: object) -> None:
    """Raise NumPy's error for a value that the tensor cannot hold, on all ranks, also on ranks without elements."""
    if isinstance(value, DTensor):
        if value.dtype.kind in "SUV" and value.dtype != tensor.dtype:
            raise DTypeError(f"{SET_NAME}: a tensor of {value.dtype} does not convert to {tensor.dtype}")
    elif ndim_of(value) == 0:
        refuse_masked(value)
        np.empty(1, tensor.dtype)[...] = value
    else:
        array = as_array(value)
        if array.dtype.kind in "SU" and tensor.dtype.kind not in "SU":
            array.astype(tensor.dtype)


def _assign(tensor: DTensor, items: Items, value: Operand) -> None:
    completed(_slice_assignment(tensor, items, value))


def _slice_assignment(tensor: DTensor, items: Items, value: Operand) -> Call | None:
    """Copy *value* to the slice, or return the call that does so.

    The slice is written with positive steps, and with axes of length 1 for integers.
    """
    if elements.is_element_index(items, tensor):
        target = elements.to_set(tensor, items, value)
        if target is not None:
            _copy(target[0][(..., *target[1])], value._block if isinstance(value, DTensor) else value)
            return None
    shape, name = result_shape(items), f"t{index_text(items)} = value"
    if not any(isinstance(item, AxisSlice) and item.step < 0 for item in items):
        plan = _Assigning.of(name, tensor, items, value)
        if plan is not None:
            return Call(plan.recipe(), (tensor, value))
    forward_items = tuple(
        _forward_slice(AxisSlice(item, 1) if isinstance(item, int) else item) for item in items if item is not None
    )
    if isinstance(value, DTensor) or shape_of(value):
        value = _aligned_value(value, items, shape)
    if local_slice_of(tensor.layout, tensor.shape, forward_items, tensor.mesh.rank) is not None:
        _copy_to(_slice_of(tensor, forward_items), value, name)
        return None
    # The slice begins within a cyclic block: relay an interval that begins with a block to the usual cut, and back.
    slices = [item for item in forward_items if isinstance(item, AxisSlice)]  # all items are slices
    pairs = [_slice_around(tensor.layout.cut(axis, tensor.shape[axis]), item) for axis, item in enumerate(slices)]
    outer_view = _slice_of(tensor, tuple(outer for outer, _ in pairs))
    relaid_view = relaid(outer_view, outer_view.layout.default_cut(range(outer_view.ndim)).axes, name)
    _copy_to(_slice_of(relaid_view, tuple(inner for _, inner in pairs)), value, name)
    _copy_to(outer_view, relaid_view)
    return None


class _Assigning(NamedTuple):
    """How a number, or a tensor of the slice's shape, is written to a slice whose elements stay where they are.

    Parameters
    ----------
    name: name of the call
    position, lengths: position of the slice in the block, and its shape there
    axes: sharding specs of the slice; None if the value is a number
    edges: moved edges of the value, if only elements next to cuts move
    is_plain_copy: whether nothing moves, and both dtypes are plain numbers
    device: device of this rank
    """

    name: str
    position: At
    lengths: Shape
    axes: Axes | None
    edges: IntervalExchange | None
    is_plain_copy: bool
    device: int | None

    @classmethod
    def of(cls, name: str, tensor: DTensor, items: Items, value: Operand) -> "_Assigning | None":
        """Return how *value* is written to the slice of *items*; None if this class cannot write it."""
        value_shape, device = shape_of(value), tensor.mesh.rank
        if value_shape and not (isinstance(value, DTensor) and value_shape == result_shape(items)):
            return None
        if isinstance(value, DTensor) and value.mesh is not tensor.mesh:
            return None
        local_slice = local_slice_of(tensor.layout, tensor.shape, items, device)
        if local_slice is None:
            return None
        axes, edges, is_local = None, None, True
        if isinstance(value, DTensor) and value_shape:
            axes = local_slice.layout.axes
            is_local = value.layout.axes == axes
            edges = None if is_local else interval_exchange_for_axes(value._spec, axes)
            is_local = is_local and value.dtype.kind in "biufc" and tensor.dtype.kind in "biufc"
        position = _slice_positions(tensor._spec, items, local_slice, device)
        return cls(name, position, local_slice.lengths, axes, edges, is_local, device)

    def recipe(self) -> Recipe:
        """Return the recipe of assignments like this one."""
        return Assignment(self.position, self.lengths) if self.is_plain_copy else Recipe(self.run)

    def run(self, tensor: DTensor, value: Operand, starts: list[int] | None = None, out: object = None) -> DTensor:
        """Write *value* to the slice, and return *tensor*. Collective if elements have to move.

        The slice begins at *starts* along each axis of the tensor; None for the first slice of its signature.
        """
        pieces = None
        source: Operand = value
        if isinstance(value, DTensor):
            if self.edges is not None:
                pieces = None if self.device is None else self.edges.lazy_pieces(value, self.name, self.device)
            else:
                source = (value if self.axes is None else relaid(value, self.axes, self.name))._block
        if self.device is None:
            return tensor
        # A view: only axes of length 1 come and go.
        block = tensor._block[self.position.of(starts)].reshape(self.lengths)
        if pieces is None:
            _copy(block, source)
        elif pieces.waits:
            write_pieces(block, pieces, value)
        else:
            leading_slices = (slice(None),) * pieces.axis
            for start, stop, piece in unshared_pieces(pieces.parts, block):
                _copy(block[(*leading_slices, slice(start, stop))], piece)
        return tensor


def _aligned_value(value: Operand, items: Items, shape: Shape) -> Operand:
    """Return *value* with one axis for each axis of the tensor, in order; length 1 if the value repeats along it."""
    value_shape = shape_of(value)
    extra = len(value_shape) - len(shape)
    lengths = (1,) * -extra + value_shape[max(extra, 0) :]
    fits = all(n in (1, m) for n, m in zip(lengths, shape, strict=True))
    if not fits or any(n != 1 for n in value_shape[: max(extra, 0)]):
        raise ShapeError(
            f"{SET_NAME}: a value of shape {value_shape} does not broadcast to the shape {shape} of the slice"
        )
    axes: list[int | None] = []  # for each axis of the tensor, the axis of *lengths*; None if the index drops it
    value_axis, reversed_axes = 0, []
    for item in items:
        if isinstance(item, int):
            axes.append(None)
            continue
        if item is not None:
            axes.append(value_axis)
            if item.step < 0 and lengths[value_axis] > 1:
                reversed_axes.append(len(axes) - 1)
        value_axis += 1
    full_shape = tuple(1 if axis is None else lengths[axis] for axis in axes)
    if isinstance(value, DTensor):
        value_axes = [None if axis is None or axis + extra < 0 else axis + extra for axis in axes]
        sharded_axes = {axis for axis in value_axes if axis is not None and shape[axis - extra] == value_shape[axis]}
        value = _with_length_1_axes(value, full_shape, value_axes, sharded_axes)
    else:
        value = np.asarray(value).reshape(full_shape)
    return np.flip(value, tuple(reversed_axes)) if reversed_axes else value


def _with_length_1_axes(value: DTensor, shape: Shape, axes: list[int | None], sharded_axes: set[int]) -> DTensor:
    """Return *value* with axes of length 1 added and removed.

    Parameters
    ----------
    value: tensor
    shape: shape of the result
    axes: axis of *value* for each axis of the result; None for a new one
    sharded_axes: axes of *value* that stay sharded; the others have length 1
    """
    relaid_value = relaid(value, value.layout.only(sharded_axes).axes, SET_NAME)
    layout = Layout([() if axis is None else relaid_value.layout.axes[axis] for axis in axes], value.mesh)

    def reshape_block(block: Array) -> Array:
        return block.reshape([1 if axis is None else block.shape[axis] for axis in axes])

    return mapped(reshape_block, relaid_value, layout=layout, shape=shape)


def _copy_to(target: DTensor, value: Operand, name: str = SET_NAME) -> None:
    """Copy *value*, a number, or a tensor or array with as many axes as *target*, to the block of *target*."""
    source: Operand | None = value
    if isinstance(value, DTensor):
        source = relaid(value, aligned_axes(value.shape, target.shape, target.layout), name, target.mesh)._block
    elif isinstance(value, np.ndarray) and value.ndim > 0:
        source = as_sharded(value, Layout(aligned_axes(value.shape, target.shape, target.layout), target.mesh))._block
    on_blocks(lambda block: _copy(block, source), target)


def _copy(block: Array, value: Operand | None) -> None:
    if isinstance(value, np.ndarray) and np.may_share_memory(block, value):
        if is_same_memory(block, value):  # as in t[index] += value
            return
        value = exact_copy(value)  # NumPy's own copy of overlapping arrays of one axis may be wrong
    if isinstance(value, np.ndarray) and value.dtype == block.dtype:
        np.copyto(opaque(block), opaque(value))
    elif isinstance(value, np.ndarray) and value.dtype.kind == "c" and block.dtype.kind != "c":  # NumPy warns
        warning_at_program(block.__setitem__)(..., value)
    else:
        block[...] = value


# -- masks ------------------------------------------------------------------------------------------------------------


def _assign_where(tensor: DTensor, mask: DTensor | Array, value: Operand) -> None:
    """Run ``tensor[mask] = value``. Collective over the mesh if *mask* has to move, or *value* has axes."""
    if not isinstance(value, DTensor) and not shape_of(value):
        block_mask = masks.block_of_mask(mask, tensor)
        on_blocks(lambda block: operator.setitem(block, block_mask, value), tensor)
        return
    rows, block_mask = masks.in_rows(tensor, mask)
    selected_rows = masks.select_rows(rows, block_mask, mask.ndim)
    _assign(selected_rows, parsed_index(Ellipsis, selected_rows.shape), value)
    map_into(lambda block, new_values: operator.setitem(block, block_mask, new_values), rows, selected_rows)
    if rows is not tensor:
        _copy_to(tensor, rows)
