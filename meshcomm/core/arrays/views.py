"""How a tensor shares memory with another one: what NumPy gives as a view is a view, or refuses to be written to.

A tensor that owns its block has None as its `_view`. Others have a `View` (`spec.py`). It knows the strides that
NumPy's global array would have: NumPy's array is C-ordered, a transpose permutes its strides, a slice multiplies them
by its steps. So all ranks find alike whether NumPy would return a view or a copy. The strides of a block do not tell
this: an axis of which a rank has one element, or none, fits every shape.

Where elements had to move, a tensor is a copy of what NumPy gives as a view. A write to it would be lost for the
tensor that it was taken from. So it is an error while that tensor is still there; after that, the copy is a tensor
like others.
"""

import numpy as np

from meshcomm.core._types import Array
from meshcomm.core.arrays._tensor import count_write
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.memory.copies import opaque

READ_ONLY = "assignment destination is read-only"
IS_COPY = (
    "the elements had to move, so this is a copy, and a write would be lost: write to the tensor that it was taken "
    "from, or to a copy() of this one"
)


# -- writes -----------------------------------------------------------------------------------------------------------


def refusal(tensor: DTensor) -> str | None:
    """Return why *tensor* must not be written to, or None: the same on all ranks. A call that writes asks first."""
    count_write(tensor)
    view = tensor._view
    if view is None:
        return None
    if not view.writeable:
        return READ_ONLY
    return IS_COPY if any(origin() is not None for origin in view.origins) else None


def at_once(out: DTensor | None) -> Array | None:
    """Return the block of *out* if an exchange can write to it: it is in one piece. Else see `filled`."""
    return None if out is None or out.local is None or not out.local.flags.c_contiguous else out.local


def filled(out: DTensor, block: Array | None) -> DTensor:
    """Return *out* with the elements of *block*, which may be its own block."""
    if block is not None and block is not out.local:
        np.copyto(opaque(out.local), opaque(block))
    return out


def memory_order(tensor: DTensor) -> tuple[int, ...] | None:
    """Return which axis of its memory each axis of *tensor* is, if all of its memory is only transposed; else None.

    >>> import meshcomm as mc
    >>> t = mc.zeros((2, 3, 4), layout=mc.Layout.replicated(mc.create_mesh([("x", 1)]), 3))
    >>> memory_order(t), memory_order(t.transpose(2, 0, 1)), memory_order(t[:, ::2])
    (None, (2, 0, 1), None)
    """
    view = tensor._view
    if view is None or view.root is None or view.root.dtype != tensor.dtype:
        return None
    by_stride, step = sorted(range(tensor.ndim), key=lambda axis: -view.strides[axis]), tensor.dtype.itemsize
    for axis in reversed(by_stride):
        if tensor.shape[axis] not in (1, 0) and view.strides[axis] != step:
            return None
        step *= tensor.shape[axis]
    order = tuple(by_stride.index(axis) for axis in range(tensor.ndim))
    return order if step and order != tuple(range(tensor.ndim)) else None


def in_memory_order(tensor: DTensor) -> tuple[Array | None, tuple[int, ...] | None]:
    """Return the block of *tensor*, with axes as they are in memory, and the `memory_order` if it has one."""
    order = memory_order(tensor)
    if order is None or tensor.local is None:
        return tensor.local, order
    return tensor.local.transpose(np.argsort(order)), order
