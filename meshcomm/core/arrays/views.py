"""Views: tensors that share memory with another one, where NumPy returns a view.

A tensor that owns its block has None as its `_view`. Others have a `View` (`spec.py`). It has the strides that
NumPy's global array would have: NumPy's array is C-ordered, a transpose permutes its strides, a slice multiplies them
by its steps. So all ranks find alike whether NumPy would return a view or a copy. The strides of a block are not
enough: an axis with one element on a rank, or none, fits every shape.

Where elements had to move, the block is a copy. Calls keep it up to date, and copy writes to it back to the source:
see `_storage.pyx`.
"""

import numpy as np

from meshcomm.core._types import Array
from meshcomm.core.arrays._storage import count_write, write_back
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.memory.copies import opaque

READ_ONLY = "assignment destination is read-only"


# -- writes -----------------------------------------------------------------------------------------------------------


def refusal(tensor: DTensor, index: object = None) -> str | None:
    """Return the reason why *tensor* must not be written to, or None: the same on all ranks. Calls check this first.

    *index* is the index that the call writes to, None for all elements.
    """
    return None if count_write(tensor, index) else READ_ONLY


def writable_block(out: DTensor | None) -> Array | None:
    """Return the block of *out* if it is contiguous, so an exchange can write to it. Else see `copy_block_into`."""
    return None if out is None or not out._has_block or not out._block.flags.c_contiguous else out._block


def copy_block_into(out: DTensor, block: Array | None) -> DTensor:
    """Return *out* with the elements of *block*, which may be its own block. Collective if *out* had to move."""
    if block is not None and out._has_block and block is not out._block:
        np.copyto(opaque(out._block), opaque(block))
    write_back(out)
    return out


def memory_order(tensor: DTensor) -> tuple[int, ...] | None:
    """Return the axis in memory of each axis of *tensor*, if it is a transpose of its whole memory; else None.

    >>> import meshcomm as mc
    >>> t = mc.zeros((2, 3, 4), layout=mc.Layout.replicated(mc.create_mesh([("x", 1)]), 3))
    >>> memory_order(t), memory_order(t.transpose(2, 0, 1)), memory_order(t[:, ::2])
    (None, (2, 0, 1), None)
    """
    view = tensor._view
    if view is None or view.root is None or view.root.dtype != tensor.dtype:
        return None
    axes, stride = sorted(range(tensor.ndim), key=lambda axis: -view.strides[axis]), tensor.dtype.itemsize
    for axis in reversed(axes):
        if tensor.shape[axis] not in (1, 0) and view.strides[axis] != stride:
            return None
        stride *= tensor.shape[axis]
    order = tuple(axes.index(axis) for axis in range(tensor.ndim))
    return order if stride and order != tuple(range(tensor.ndim)) else None


def in_memory_order(tensor: DTensor) -> tuple[Array | None, tuple[int, ...] | None]:
    """Return the block of *tensor* with its axes in the order of memory, and the `memory_order` or None."""
    order = memory_order(tensor)
    if order is None or not tensor._has_block:
        return tensor._block, order
    return tensor._block.transpose(np.argsort(order)), order
