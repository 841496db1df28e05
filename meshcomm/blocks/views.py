"""Views: tensors that share memory with another one where NumPy's arrays do. Nothing moves, and nothing is compared.

NumPy itself says what a view is. The `abstract_array` of a tensor is an array that has the shape, the dtype and the
strides of NumPy's global array, and no memory. What a function makes of it has those of NumPy's result: also whether
it may be written to. So all ranks find alike what the blocks do not tell, since an axis of which a rank has one
element, or none, fits every shape.

**An abstract array must never be read, printed or copied:** its elements are not there. So only functions that always
return views take one, and an index begins with an ellipsis, or it would take an element.
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
    """Return NumPy's global array of *tensor*, without memory: its shape, dtype, strides, and if they are writeable.

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
    """Return the `abstract_array` of the slice that *items* take."""
    return abstract_array(tensor)[(..., *(item.slice if isinstance(item, AxisSlice) else item for item in items))]


def abstract_array_like(tensor: DTensor) -> Array:
    """Return the abstract array of a new array that NumPy makes like *tensor*, as the imaginary part of real numbers.

    It is in Fortran's order if that of *tensor* is, and must not be written to.
    """
    flags, shape = abstract_array(tensor).flags, tensor.shape
    new = _abstract(shape[::-1], tensor.dtype).T if flags.fnc else _abstract(shape, tensor.dtype)
    return np.broadcast_to(new, shape)


def viewing(
    take: Callable[[Array], Array], tensor: DTensor, layout: Layout, of: Array | None = None
) -> DTensor | Call:
    """Return a view of *tensor*, or the call that makes it: *take* depends on the signature of the call only.

    The parameters are those of `viewed`.
    """
    of = take(abstract_array(tensor)) if of is None else of
    if not of.flags.writeable:
        return viewed(take, tensor, layout, of)
    spec = TensorSpec(layout, of.shape, _dtype_of(of, tensor))
    return Call(OfView(take, spec, of.strides, offset_of(of, tensor)), (tensor,))


def viewed(take: Callable[[Array], Array], tensor: DTensor, layout: Layout, of: Array | None = None) -> DTensor:
    """Return a view of *tensor*.

    Parameters
    ----------
    take: function from the block to a view of it, the block of the result
    tensor: whose memory it is
    layout: layout of the result
    of: the `abstract_array` of the result, if *take* does not make it of that of *tensor*
    """
    of = take(abstract_array(tensor)) if of is None else of
    return sharing(take, tensor, layout, of, offset_of(of, tensor))


def sharing(take: Callable[[Array], Array], tensor: DTensor, layout: Layout, of: Array, offset: int) -> DTensor:
    """Return a view whose block *take* makes of that of *tensor*, *offset* bytes behind it in NumPy's global array."""
    view, writeable = tensor._view, of.flags.writeable
    root, begin = (tensor, 0) if view is None else (tensor if view.root is None else view.root, view.begin)
    local = None if not tensor._has_block else marked_read_only(take(tensor._block), writeable)
    return DTensor(local, layout, of.shape, _dtype_of(of, tensor), View(root, of.strides, writeable, begin + offset))


def _dtype_of(of: Array, tensor: DTensor) -> DType:
    return tensor.dtype if of.dtype == tensor.dtype else of.dtype  # which may have metadata


def offset_of(of: Array, tensor: DTensor) -> int:
    """Return how many bytes behind the first element of *tensor* that of a view is in NumPy's global array.

    *of* is what was made of the `abstract_array` of *tensor*.
    """
    return int(of.ctypes.data - abstract_array(tensor).ctypes.data) if of.size else 0


def marked_read_only(local: Array | None, writeable: bool) -> Array | None:
    """Return a block that NumPy does not write to, unless it is *writeable*."""
    if local is None or writeable or not local.flags.writeable:
        return local
    local = local.view()
    local.flags.writeable = False
    return local


def axes_in_memory(tensor: DTensor) -> Shape | None:
    """Return which axis of a contiguous block in memory each axis is; None for a block that may have gaps.

    It is the same on all ranks, which read each other's blocks.
    """
    return tuple(range(tensor.ndim)) if tensor._view is None else memory_order(tensor)


def tensor_of_inner_blocks(local: Array | None, layout: Layout, shape: Shape, dtype: DType, around: Shape) -> DTensor:
    """Return a tensor whose blocks are parts of larger ones, which no tensor owns: those of a shape *around* it."""
    return DTensor(local, layout, shape, dtype, View(None, _abstract(around, dtype).strides))


def with_strides(tensor: DTensor, of: Array) -> DTensor:
    """Return *tensor*, which shares no memory, with the strides and the flags of the abstract array *of*."""
    view = View[DTensor](None, of.strides, of.flags.writeable)
    return DTensor(
        marked_read_only(tensor._block, of.flags.writeable), tensor.layout, tensor.shape, tensor.dtype, view
    )


def check_writable(name: str, tensor: DTensor, error: type[Exception] = ValueError, index: object = None) -> None:
    """Raise an *error* on all ranks if *tensor* must not be written to. *name* is the operation, or the argument.

    *index* says where it is written, if not everywhere.
    """
    why = refusal(tensor, index)
    if why is not None:
        raise error(f"{name}: {why}")
