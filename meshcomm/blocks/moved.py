"""Views whose elements had to move: copies that show what is written to their base, and write back what they get.

NumPy's view of an array is a byte at which it begins, and a stride for each axis. Whatever calls have made the view,
these say where its elements are in the array that owns the memory, its *base*. So a view of a view has the same base,
and a loop that turns an array around in each step keeps one base, not one for each step.
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


def moved_from(
    tensor: DTensor,
    copied: DTensor,
    of: Array,
    fetch: Callable[[DTensor], DTensor] | None = None,
    send: Callable[[DTensor, DTensor], object] | None = None,
) -> DTensor:
    """Return a view of *tensor* whose elements had to move.

    Parameters
    ----------
    tensor: tensor of which NumPy has a view
    copied: the elements
    of: the `abstract_array` of NumPy's view
    fetch: function from *tensor* to the elements; by default the strides of *of* find them. Collective
    send: function that writes the elements of the view, its second argument, to *tensor*. Collective
    """
    local = None if not copied._has_block else contiguous(copied._block)  # to be reshaped as NumPy's array can be
    begin = _view_begin(tensor) + offset_of(of, tensor)
    base = tensor
    if fetch is None:
        base = _base_of(tensor)
        where = _ViewRegion(begin - _view_begin(base), of.shape, of.strides, copied.layout)
        fetch, send = where.fetch, where.send
    first, end = np.lib.array_utils.byte_bounds(of)
    low, size = begin - (of.ctypes.data - first), end - first
    source = Source(base, low, low + size, fetch, partial(_write_back, send)) if of.size else None
    view = View[DTensor](None, of.strides, of.flags.writeable, begin)
    return DTensor(
        marked_read_only(local, of.flags.writeable), copied.layout, copied.shape, copied.dtype, view, Storage(source)
    )


def refreshed_by(fetch: Callable[[DTensor], DTensor], tensor: DTensor, copied: DTensor) -> DTensor:
    """Return *copied*, elements of *tensor* that views share, with them up to date: *fetch* copies them again."""
    low, high = bounds_of(tensor)
    view = View[DTensor](None, strides_of(copied), False, _view_begin(tensor))
    storage = Storage(Source(tensor, low, high, fetch, None))
    return DTensor(copied._block, copied.layout, copied.shape, copied.dtype, view, storage)


def is_moved(tensor: DTensor) -> bool:
    """Return whether *tensor* is a view, or shares memory with one, whose elements had to move."""
    return tensor._storage.source is not None


def is_same_view(view: DTensor, tensor: DTensor, of: Array) -> bool:
    """Return whether *view*, whose elements had to move, is the view of *tensor* whose `abstract_array` is *of*."""
    source = view._storage.source
    if source is None or source.base._storage is not tensor._storage or view._view is None:
        return False
    is_there = view._view.begin == _view_begin(tensor) + offset_of(of, tensor)
    return is_there and (view.shape, view._view.strides, view.dtype) == (of.shape, of.strides, of.dtype)


def _write_back(send: Callable[[DTensor, DTensor], object] | None, base: DTensor, view: DTensor) -> None:
    """Write the elements of *view* to *base*, as those of a tensor that is no view of it."""
    assert send is not None
    send(base, DTensor(view._block, view.layout, view.shape, view.dtype))


def _view_begin(tensor: DTensor) -> int:
    return 0 if tensor._view is None else tensor._view.begin


def _base_of(tensor: DTensor) -> DTensor:
    """Return the tensor whose elements a view of *tensor* has: what NumPy calls its base, if that has the dtype."""
    source, view = tensor._storage.source, tensor._view
    base = tensor if view is None or view.root is None else view.root
    if source is not None:
        base = source.base
    return base if base.dtype == tensor.dtype else tensor


class _ViewRegion(NamedTuple):
    """Which elements of its base a view has.

    Parameters
    ----------
    begin: the byte of NumPy's global array of the base where the first one is
    shape, strides: shape of NumPy's view, and its strides in bytes
    layout: layout of the view
    """

    begin: int
    shape: Shape
    strides: Shape
    layout: Layout

    def fetch(self, base: DTensor) -> DTensor:
        """Return the elements, in the layout of the view. Collective over the mesh."""
        way = self._view_in(base)
        return relaid(way.elements(), self.layout.axes, "a view", self.layout.mesh)

    def send(self, base: DTensor, values: DTensor) -> None:
        """Write *values* to *base*. Collective over the mesh."""
        self._view_in(base).put(values)

    def _view_in(self, base: DTensor) -> "_SliceView | _FlatView | _ListedView":
        return _SliceView.of(base, self) or _FlatView.of(base, self) or _ListedView.of(base, self)


class _SliceView(NamedTuple):
    """Elements that are a slice of the base, with its axes in another order."""

    base: DTensor
    items: tuple[int | slice | EllipsisType, ...]
    order: tuple[int, ...]
    added: tuple[slice | None, ...]
    shape: Shape

    @classmethod
    def of(cls, base: DTensor, where: _ViewRegion) -> "_SliceView | None":
        steps = strides_of(base)
        starts = _index_at(where.begin, base.shape, steps)
        if starts is None:
            return None
        items: list[int | slice] = [int(start) for start in starts]
        by_stride = sorted((k for k, n in enumerate(base.shape) if n > 1), key=lambda k: -abs(steps[k]))
        axes = list[int]()
        for n, stride in zip(where.shape, where.strides, strict=True):
            if n == 1 or not stride:
                continue
            options = (k for k in by_stride if steps[k] and not stride % steps[k] and k not in axes)
            axis = next((k for k in options if 0 <= starts[k] + (n - 1) * (stride // steps[k]) < base.shape[k]), None)
            if axis is None:
                return None
            step, start = stride // steps[axis], int(starts[axis])
            stop = start + n * step
            items[axis] = slice(start, None if stop < 0 else stop, step)
            axes.append(axis)
        order = tuple(sorted(range(len(axes)), key=axes.__getitem__))
        pairs = zip(where.shape, where.strides, strict=True)
        added = tuple(None if n == 1 or not stride else slice(None) for n, stride in pairs)
        return cls(base, (*items, ...), order, added, where.shape)

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        turned = np.transpose(self.base[self.items], np.argsort(self.order).tolist())
        taken = turned[(*self.added, ...)]
        return _as_tensor(taken if taken.shape == self.shape else np.broadcast_to(taken, self.shape))

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        long = tuple(n for n in values.shape if n > 1)
        self.base[self.items] = np.transpose(values.reshape(long), self.order)


class _FlatView(NamedTuple):
    """Elements that have one distance in the memory of a base in C order."""

    base: DTensor
    items: slice
    shape: Shape

    @classmethod
    def of(cls, base: DTensor, where: _ViewRegion) -> "_FlatView | None":
        size, itemsize = prod(where.shape), base.dtype.itemsize
        if where.begin % itemsize or not abstract_array(base).flags.c_contiguous:
            return None
        step = itemsize
        for n, stride in zip(reversed(where.shape), reversed(where.strides), strict=True):
            if n != 1 and stride != step:
                break
            step *= n
        else:
            return cls(base, slice(where.begin // itemsize, where.begin // itemsize + size), where.shape)
        if len(where.shape) != 1 or where.strides[0] % itemsize:
            return None
        start, step = where.begin // itemsize, where.strides[0] // itemsize
        stop = start + size * step
        return cls(base, slice(start, None if stop < 0 else stop, step), where.shape)

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        if self.items == slice(0, self.base.size):
            return _as_tensor(self.base.reshape(self.shape))
        return _as_tensor(self.base.reshape(-1)[self.items].reshape(self.shape))

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        if self.items == slice(0, self.base.size):
            self.base[...] = values.reshape(self.base.shape)
        else:
            self.base.reshape(-1)[self.items] = values.reshape(-1)


class _ListedView(NamedTuple):
    """Elements of which each has its index in the base: diagonals, windows, slices of a reshaped array."""

    base: DTensor
    indices: tuple[DTensor, ...]

    @classmethod
    def of(cls, base: DTensor, where: _ViewRegion) -> "_ListedView":
        steps = strides_of(base)

        def numbers(axis: int) -> Callable[[tuple[slice, ...]], Array]:
            def block(slices: tuple[slice, ...]) -> Array:
                terms = [np.arange(n)[cut] * s for n, cut, s in zip(where.shape, slices, where.strides, strict=True)]
                offsets: Array = np.asarray(reduce(np.add.outer, terms, np.asarray(where.begin)), np.intp)
                digits = _index_at(offsets, base.shape, steps)
                assert digits is not None
                return np.broadcast_to(np.asarray(digits[axis], np.intp), offsets.shape)

            return block

        layout = where.layout
        return cls(base, tuple(from_callback(where.shape, np.intp, layout, numbers(k)) for k in range(base.ndim)))

    def elements(self) -> DTensor:
        """Return the elements, in the shape of the view."""
        return _as_tensor(self.base[self.indices])

    def put(self, values: DTensor) -> None:
        """Write *values*, which have the shape of the view."""
        self.base[self.indices] = values


def _as_tensor(x: object) -> DTensor:
    """Return what a call gives, which is an array in a script if each rank has all of it, as a tensor."""
    return as_tensor("a view", x)


def _index_at(offset: Value, shape: Shape, strides: Shape) -> list[Value] | None:
    """Return the index along each axis of what is *offset* bytes from the first element; None if there is none."""
    digits: list[Value] = [0] * len(shape)
    long = [axis for axis, n in enumerate(shape) if n > 1 and strides[axis]]
    offset = offset - sum(
        (shape[axis] - 1) * strides[axis] for axis in long if strides[axis] < 0
    )  # from the lowest byte
    for axis in sorted(long, key=lambda axis: -abs(strides[axis])):
        digit = np.minimum(offset // abs(strides[axis]), shape[axis] - 1)  # windows: the axis after it has the rest
        offset = offset - digit * abs(strides[axis])
        digits[axis] = digit if strides[axis] > 0 else shape[axis] - 1 - digit
    is_there = all(np.all((digits[axis] >= 0) & (digits[axis] < shape[axis])) for axis in long)
    return digits if is_there and not np.any(offset) else None
