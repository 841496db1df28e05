"""Views of elements that other ranks hold: copies. Writes to the base refresh them; their changes go to the base.

A NumPy view is the byte offset of its first element, and a stride for each axis. These alone give the position of its
elements in the array that owns the memory, its *base*. So a view of a view has the same base, and a loop that reverses
an array in each step keeps one base, not one for each step.
"""

from collections.abc import Callable
from functools import partial, reduce
from math import prod
from types import EllipsisType
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.views import abstract_array, marked_read_only, offset_of
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays._storage import Source, Storage, bounds_of, strides_of
from meshcomm.core.arrays.create import from_callback
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.spec import View
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import contiguous


def moved_view(
    tensor: DTensor,
    elements: DTensor,
    abstract_view: Array,
    fetch: Callable[[DTensor], DTensor] | None = None,
    write_to_base: Callable[[DTensor, DTensor], object] | None = None,
) -> DTensor:
    """Return a view of *tensor* whose elements had to move.

    Parameters
    ----------
    tensor: tensor that the view is of
    elements: tensor of the moved elements
    abstract_view: the `abstract_array` of NumPy's view
    fetch: function that takes *tensor* and returns the elements; by default, they are found in the base by the
        strides of *abstract_view*. Collective
    write_to_base: function that writes the elements of the view, its second argument, to *tensor*. Collective
    """
    # A contiguous block can be reshaped as NumPy's can.
    block = None if not elements._has_block else contiguous(elements._block)
    begin = _view_begin(tensor) + offset_of(abstract_view, tensor)
    base = tensor
    if fetch is None:
        base = _base_of(tensor)
        region = _ViewRegion(begin - _view_begin(base), abstract_view.shape, abstract_view.strides, elements.layout)
        fetch, write_to_base = region.fetch, region.write_to_base
    low_address, high_address = np.lib.array_utils.byte_bounds(abstract_view)
    low_byte, byte_extent = begin - (abstract_view.ctypes.data - low_address), high_address - low_address
    source = (
        Source(base, low_byte, low_byte + byte_extent, fetch, partial(_write_back, write_to_base))
        if abstract_view.size
        else None
    )
    view_record = View[DTensor](None, abstract_view.strides, abstract_view.flags.writeable, begin)
    return DTensor(
        marked_read_only(block, abstract_view.flags.writeable),
        elements.layout,
        elements.shape,
        elements.dtype,
        view_record,
        Storage(source),
    )


def refreshed_by(fetch: Callable[[DTensor], DTensor], tensor: DTensor, elements: DTensor) -> DTensor:
    """Return *elements*, a copy of elements of *tensor*, as a tensor that *fetch* updates when *tensor* is written."""
    low_byte, high_byte = bounds_of(tensor)
    view_record = View[DTensor](None, strides_of(elements), False, _view_begin(tensor))
    storage = Storage(Source(tensor, low_byte, high_byte, fetch, None))
    return DTensor(elements._block, elements.layout, elements.shape, elements.dtype, view_record, storage)


def is_moved(tensor: DTensor) -> bool:
    """Return whether *tensor* is, or shares memory with, a view whose elements had to move."""
    return tensor._storage.source is not None


def is_same_view(view: DTensor, tensor: DTensor, abstract_view: Array) -> bool:
    """Return whether *view*, whose elements had to move, is the view of *tensor* that *abstract_view* describes."""
    source = view._storage.source
    if source is None or source.base._storage is not tensor._storage or view._view is None:
        return False
    has_same_begin = view._view.begin == _view_begin(tensor) + offset_of(abstract_view, tensor)
    return has_same_begin and (view.shape, view._view.strides, view.dtype) == (
        abstract_view.shape,
        abstract_view.strides,
        abstract_view.dtype,
    )


def _write_back(write_to_base: Callable[[DTensor, DTensor], object] | None, base: DTensor, view: DTensor) -> None:
    """Write the elements of *view* to *base*: *write_to_base* gets a tensor of the same block that is not a view."""
    assert write_to_base is not None
    write_to_base(base, DTensor(view._block, view.layout, view.shape, view.dtype))


def _view_begin(tensor: DTensor) -> int:
    """Return the byte offset of the first element of *tensor* in NumPy's global array of its base."""
    return 0 if tensor._view is None else tensor._view.begin


def _base_of(tensor: DTensor) -> DTensor:
    """Return the base (in NumPy's sense) for a view of *tensor*; *tensor* itself if the base has another dtype."""
    source, view_record = tensor._storage.source, tensor._view
    base = tensor if view_record is None or view_record.root is None else view_record.root
    if source is not None:
        base = source.base
    return base if base.dtype == tensor.dtype else tensor


class _ViewRegion(NamedTuple):
    """The elements of a base that a view has.

    Parameters
    ----------
    begin: byte offset of the first one in NumPy's global array of the base
    shape, strides: shape of NumPy's view, and its strides in bytes
    layout: layout of the view
    """

    begin: int
    shape: Shape
    strides: Shape
    layout: Layout

    def fetch(self, base: DTensor) -> DTensor:
        """Return the elements, in the layout of the view. Collective over the mesh."""
        selection = self._view_in(base)
        return relaid(selection.elements(), self.layout.axes, "a view", self.layout.mesh)

    def write_to_base(self, base: DTensor, values: DTensor) -> None:
        """Write *values* to *base*. Collective over the mesh."""
        self._view_in(base).put(values)

    def _view_in(self, base: DTensor) -> "_SliceView | _FlatView | _ListedView":
        return (
            _SliceView.from_region(base, self)
            or _FlatView.from_region(base, self)
            or _ListedView.from_region(base, self)
        )


class _SliceView(NamedTuple):
    """Elements that are a slice of the base, with axes permuted and inserted.

    Parameters
    ----------
    base: the tensor
    items: index into *base*
    axes_in_base_order: the view's axes longer than 1, in the order that they have in the base
    expanding_index: index that inserts axes of length 1
    shape: shape of the view
    """

    base: DTensor
    items: tuple[int | slice | EllipsisType, ...]
    axes_in_base_order: tuple[int, ...]
    expanding_index: tuple[slice | None, ...]
    shape: Shape

    @classmethod
    def from_region(cls, base: DTensor, region: _ViewRegion) -> "_SliceView | None":
        base_strides = strides_of(base)
        starts = _index_at(region.begin, base.shape, base_strides)
        if starts is None:
            return None
        items: list[int | slice] = [int(start) for start in starts]
        axes_by_stride = sorted((k for k, n in enumerate(base.shape) if n > 1), key=lambda k: -abs(base_strides[k]))
        base_axes = list[int]()
        for n, stride in zip(region.shape, region.strides, strict=True):
            if n == 1 or not stride:
                continue
            candidates = (
                k for k in axes_by_stride if base_strides[k] and not stride % base_strides[k] and k not in base_axes
            )
            axis = next(
                (k for k in candidates if 0 <= starts[k] + (n - 1) * (stride // base_strides[k]) < base.shape[k]), None
            )
            if axis is None:
                return None
            step, start = stride // base_strides[axis], int(starts[axis])
            stop = start + n * step
            items[axis] = slice(start, None if stop < 0 else stop, step)
            base_axes.append(axis)
        axes_in_base_order = tuple(sorted(range(len(base_axes)), key=base_axes.__getitem__))
        pairs = zip(region.shape, region.strides, strict=True)
        expanding_index = tuple(None if n == 1 or not stride else slice(None) for n, stride in pairs)
        return cls(base, (*items, ...), axes_in_base_order, expanding_index, region.shape)

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        transposed = np.transpose(self.base[self.items], np.argsort(self.axes_in_base_order).tolist())
        elements = transposed[(*self.expanding_index, ...)]
        return _as_tensor(elements if elements.shape == self.shape else np.broadcast_to(elements, self.shape))

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        long_lengths = tuple(n for n in values.shape if n > 1)
        self.base[self.items] = np.transpose(values.reshape(long_lengths), self.axes_in_base_order)


class _FlatView(NamedTuple):
    """Equally spaced elements of a base in C order: a slice of the flattened base."""

    base: DTensor
    flat_slice: slice
    shape: Shape

    @classmethod
    def from_region(cls, base: DTensor, region: _ViewRegion) -> "_FlatView | None":
        size, itemsize = prod(region.shape), base.dtype.itemsize
        if region.begin % itemsize or not abstract_array(base).flags.c_contiguous:
            return None
        expected_stride = itemsize
        for n, stride in zip(reversed(region.shape), reversed(region.strides), strict=True):
            if n != 1 and stride != expected_stride:
                break
            expected_stride *= n
        else:
            return cls(base, slice(region.begin // itemsize, region.begin // itemsize + size), region.shape)
        if len(region.shape) != 1 or region.strides[0] % itemsize:
            return None
        start, step = region.begin // itemsize, region.strides[0] // itemsize
        stop = start + size * step
        return cls(base, slice(start, None if stop < 0 else stop, step), region.shape)

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        if self.flat_slice == slice(0, self.base.size):
            return _as_tensor(self.base.reshape(self.shape))
        return _as_tensor(self.base.reshape(-1)[self.flat_slice].reshape(self.shape))

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        if self.flat_slice == slice(0, self.base.size):
            self.base[...] = values.reshape(self.base.shape)
        else:
            self.base.reshape(-1)[self.flat_slice] = values.reshape(-1)


class _ListedView(NamedTuple):
    """Elements given by index arrays into the base: diagonals, windows, slices of a reshaped array."""

    base: DTensor
    indices: tuple[DTensor, ...]

    @classmethod
    def from_region(cls, base: DTensor, region: _ViewRegion) -> "_ListedView":
        base_strides = strides_of(base)

        def indices_of_axis(axis: int) -> Callable[[tuple[slice, ...]], Array]:
            def index_block(slices: tuple[slice, ...]) -> Array:
                terms = [
                    np.arange(n)[axis_slice] * s
                    for n, axis_slice, s in zip(region.shape, slices, region.strides, strict=True)
                ]
                offsets: Array = np.asarray(reduce(np.add.outer, terms, np.asarray(region.begin)), np.intp)
                indices = _index_at(offsets, base.shape, base_strides)
                assert indices is not None
                return np.broadcast_to(np.asarray(indices[axis], np.intp), offsets.shape)

            return index_block

        layout = region.layout
        return cls(
            base, tuple(from_callback(region.shape, np.intp, layout, indices_of_axis(k)) for k in range(base.ndim))
        )

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        return _as_tensor(self.base[self.indices])

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        self.base[self.indices] = values


def _as_tensor(x: object) -> DTensor:
    """Return the result of a call as a tensor; in a script it is an array if each rank has all of it."""
    return as_tensor("a view", x)


def _index_at(offset: Value, shape: Shape, strides: Shape) -> list[Value] | None:
    """Return the index, for each axis, of the element *offset* bytes from the first; None if no element is there."""
    indices: list[Value] = [0] * len(shape)
    long_axes = [axis for axis, n in enumerate(shape) if n > 1 and strides[axis]]
    # Count from the lowest byte.
    offset = offset - sum((shape[axis] - 1) * strides[axis] for axis in long_axes if strides[axis] < 0)
    for axis in sorted(long_axes, key=lambda axis: -abs(strides[axis])):
        # At most the last index: in windows, the remainder belongs to the next axis.
        index = np.minimum(offset // abs(strides[axis]), shape[axis] - 1)
        offset = offset - index * abs(strides[axis])
        indices[axis] = index if strides[axis] > 0 else shape[axis] - 1 - index
    is_in_bounds = all(np.all((indices[axis] >= 0) & (indices[axis] < shape[axis])) for axis in long_axes)
    return indices if is_in_bounds and not np.any(offset) else None
