"""Views: tensors that share memory with another one where NumPy's arrays do. Nothing moves, and nothing is compared.

NumPy itself decides what a view is. The `abstract_array` of a tensor is an array with the shape, the dtype and the
strides of NumPy's global array, and no memory. A function of it returns the shape, dtype, strides and flags of NumPy's
result. So all ranks decide alike. Blocks could not decide: an axis with one local element, or none, fits every shape.

**An abstract array must never be read, printed or copied:** it has no elements. So only functions that always return
views take one, and an index begins with an ellipsis, or it would read an element.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._recipes import Call, OfView
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.spec import TensorSpec, View
from meshcomm.core.arrays.views import memory_order, refusal
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.slicing import AxisSlice, Items


def abstract_array(tensor: DTensor) -> Array:
    """Return NumPy's global array of *tensor* without memory: its shape, dtype, strides and writeable flag.

    >>> import numpy as np, meshcomm as mc
    >>> t = mc.zeros((2, 3), "f8", mc.Layout.replicated(mc.create_mesh([("x", 1)]), 2))
    >>> abstract_array(t).strides, abstract_array(t.T).strides, abstract_array(t[:, ::2]).shape
    ((24, 8), (8, 24), (2, 2))
    """
    view = tensor._view
    return _abstract(tensor.shape, tensor.dtype) if view is None else _abstract(tensor.shape, tensor.dtype, *view[1:3])


@lru_cache(maxsize=1024)
def _abstract(shape: Shape, dtype: DType, strides: Shape | None = None, writeable: bool = True) -> Array:
    """Return an array that has no memory; in C order if *strides* is None."""
    if strides is None:
        strides = tuple(dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return as_strided(np.empty(1, dtype), shape, strides, writeable=writeable)


def reshaped_abstract_array(tensor: DTensor, shape: Shape) -> Array | None:
    """Return the `abstract_array` of *tensor* in another *shape* of equal size; None if NumPy would have to copy."""
    try:
        return abstract_array(tensor).reshape(shape, copy=False)
    except ValueError:
        return None


def sliced_abstract_array(tensor: DTensor, items: Items) -> Array:
    """Return the `abstract_array` of a slice of *tensor*."""
    return abstract_array(tensor)[(..., *(item.slice if isinstance(item, AxisSlice) else item for item in items))]


def abstract_array_like(tensor: DTensor) -> Array:
    """Return the abstract array of a new array that NumPy makes like *tensor*, e.g. the imaginary part of a real one.

    It is in Fortran's order if that of *tensor* is, and must not be written to.
    """
    flags, shape = abstract_array(tensor).flags, tensor.shape
    result = _abstract(shape[::-1], tensor.dtype).T if flags.fnc else _abstract(shape, tensor.dtype)
    return np.broadcast_to(result, shape)


def viewing(
    take: Callable[[Array], Array], tensor: DTensor, layout: Layout, abstract_view: Array | None = None
) -> DTensor | Call:
    """Return a view of *tensor*, or the call that makes it: *take* depends on the signature of the call only.

    The parameters are those of `viewed`.
    """
    abstract_view = take(abstract_array(tensor)) if abstract_view is None else abstract_view
    if not abstract_view.flags.writeable:
        return viewed(take, tensor, layout, abstract_view)
    spec = TensorSpec(layout, abstract_view.shape, _dtype_of(abstract_view, tensor))
    return Call(OfView(take, spec, abstract_view.strides, offset_of(abstract_view, tensor)), (tensor,))


def viewed(
    take: Callable[[Array], Array], tensor: DTensor, layout: Layout, abstract_view: Array | None = None
) -> DTensor:
    """Return a view of *tensor*.

    Parameters
    ----------
    take: function from the block to a view of it, the block of the result
    tensor: tensor whose memory the view shares
    layout: layout of the result
    abstract_view: the `abstract_array` of the result, by default *take* of that of *tensor*
    """
    abstract_view = take(abstract_array(tensor)) if abstract_view is None else abstract_view
    return sharing(take, tensor, layout, abstract_view, offset_of(abstract_view, tensor))


def sharing(
    take: Callable[[Array], Array], tensor: DTensor, layout: Layout, abstract_view: Array, offset: int
) -> DTensor:
    """Return a view whose block is *take* of the block of *tensor*; it begins *offset* bytes behind it, globally."""
    view, writeable = tensor._view, abstract_view.flags.writeable
    root, begin = (tensor, 0) if view is None else (tensor if view.root is None else view.root, view.begin)
    local = None if not tensor._has_block else marked_read_only(take(tensor._block), writeable)
    return DTensor(
        local,
        layout,
        abstract_view.shape,
        _dtype_of(abstract_view, tensor),
        View(root, abstract_view.strides, writeable, begin + offset),
    )


def _dtype_of(abstract_view: Array, tensor: DTensor) -> DType:
    # The tensor's dtype may have metadata.
    return tensor.dtype if abstract_view.dtype == tensor.dtype else abstract_view.dtype


def offset_of(abstract_view: Array, tensor: DTensor) -> int:
    """Return the byte offset of a view from the first element of *tensor* in NumPy's global array.

    *abstract_view* is a view of the `abstract_array` of *tensor*.
    """
    return int(abstract_view.ctypes.data - abstract_array(tensor).ctypes.data) if abstract_view.size else 0


def marked_read_only(local: Array | None, writeable: bool) -> Array | None:
    """Return a block that NumPy refuses to write to, unless *writeable*."""
    if local is None or writeable or not local.flags.writeable:
        return local
    local = local.view()
    local.flags.writeable = False
    return local


def axes_in_memory(tensor: DTensor) -> Shape | None:
    """Return the position of each axis in the memory order of a contiguous block; None if the block may have gaps.

    It is the same on all ranks, which read each other's blocks.
    """
    return tuple(range(tensor.ndim)) if tensor._view is None else memory_order(tensor)


def tensor_of_inner_blocks(
    local: Array | None, layout: Layout, shape: Shape, dtype: DType, outer_shape: Shape
) -> DTensor:
    """Return a tensor whose blocks are boxes of larger blocks, which no tensor owns; *outer_shape* is their shape."""
    return DTensor(local, layout, shape, dtype, View(None, _abstract(outer_shape, dtype).strides))


def with_strides(tensor: DTensor, abstract_view: Array) -> DTensor:
    """Return *tensor*, which shares no memory, with the strides and the flags of an abstract array."""
    view = View[DTensor](None, abstract_view.strides, abstract_view.flags.writeable)
    return DTensor(
        marked_read_only(tensor._block, abstract_view.flags.writeable), tensor.layout, tensor.shape, tensor.dtype, view
    )


def check_writable(name: str, tensor: DTensor, error: type[Exception] = ValueError, index: object = None) -> None:
    """Raise an *error* on all ranks if *tensor* must not be written to. *name* is the operation, or the argument.

    *index* says where it is written, if not everywhere.
    """
    reason = refusal(tensor, index)
    if reason is not None:
        raise error(f"{name}: {reason}")
