"""Rows that a loop of a script reads: ``a[i] @ a[j]``, ``a[:, j].sum()``, ``a[i, j:] -= x``.

A short slice of a cut array lies on some of the ranks, and each product or sum of it is a message. Where a loop makes
many, all ranks get a copy of the whole array, and compute with slices of it: so nothing is sent any more. What the
script writes to elements and slices, each rank writes to its copy, too.
"""
# Why all ranks have the same copy
# ================================
#
# All ranks of a script make the same calls. Whether a call sends something, they know alike: it is Collective. The
# copy belongs to a version of the storage, which counts the calls that write, and is as new as the blocks: calls that
# write to elements and slices write to both, what they write being known on all ranks; after any other write, such as
# ``a += 1``, the copy is dropped.
#
# When it is fetched
# ==================
#
# When the calls with rows have taken as long as to send all elements takes. So a program never waits for more than
# twice what it would have waited without, whatever comes then. A copy that was dropped before it was worth it makes
# the next one twice as late.

import operator

import numpy as np

from meshcomm.blocks.small import is_short, to_all
from meshcomm.core._callers import call_naming_callers
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import MAX_UNPLANNED_BYTES
from meshcomm.core._types import Array
from meshcomm.core.arrays._storage import count_write
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.indexing.pages import PAGES, Pages, pages_of

_COMPUTING = frozenset(
    (
        *(np.dot, np.vdot, np.inner, np.linalg.norm, np.sum, np.mean, np.std, np.var, np.prod, np.max, np.min),
        *(np.any, np.all, np.argmax, np.argmin, np.count_nonzero, np.median, np.clip, np.cumsum, np.sort, np.argsort),
    )
)
"""Functions of NumPy whose result is no view of an argument."""

_kind: type = np.ndarray


def set_kind(kind: type) -> None:
    """Set the class of a script's arrays that each rank has whole."""
    global _kind
    _kind = kind


def note_call(operands: tuple[object, ...]) -> None:
    """Count a call with rows that has sent something, for the array of each. Collective if one comes to all ranks."""
    for x in operands:
        array = _array_of(x)
        if array is not None and array.mesh.size == array.mesh.world.size:
            pages_of(array).count_call(array)


def note_written(target: object, index: object = None, value: object = None) -> None:
    """Note that a call has written to *target*: a row, or a tuple of one, as ``out=`` may be.

    With *index*, it has written *value*, a number or a tensor, to a slice of the tensor *target*.
    """
    array = target[0] if isinstance(target, tuple) and len(target) == 1 else target
    if not isinstance(array, DTensor):
        return
    root = array if index is not None or array._view is None else array._view.root
    pages = PAGES.get(id(root))
    if pages is None:
        return
    if isinstance(value, DTensor):
        is_own = _array_of(value) is root and pages.whole is not None
        value = _row_elements(value, pages) if is_own else None
    pages.write_slice(index, value)


def run_local(function: Value, method: str | None, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Return what a call makes of rows, of which this rank has a copy; NotImplemented if it is to go its usual way.

    The arguments are those of NumPy's protocols.
    """
    out = kwargs.get("out")
    if out is not None:
        out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        kwargs = {name: x for name, x in kwargs.items() if name != "out"}
    others = (*args[2:], *kwargs.values())  # out= may be the third argument of NumPy's functions
    if not _is_new(function, method) or any(isinstance(x, DTensor) for x in others):
        return NotImplemented
    copies = [_copy_of(x) for x in args]
    if out is None:
        if any(copy is None and isinstance(x, DTensor) for x, copy in zip(args, copies, strict=True)):
            return NotImplemented
        arrays = [x if copy is None else _row_elements(x, copy) for x, copy in zip(args, copies, strict=True)]
        return call_naming_callers(function if method is None else getattr(function, method), tuple(arrays), kwargs)
    copy = _copy_of(out)
    if copy is None or method != "__call__" or not all(is_short(x) for x in args if isinstance(x, DTensor)):
        return NotImplemented
    if not count_write(out):
        return NotImplemented
    arrays = [_whole_array(x, of) for x, of in zip(args, copies, strict=True)]
    target = _row_elements(out, copy).view(np.ndarray)
    target.flags.writeable = True
    call_naming_callers(function, tuple(arrays), {**kwargs, "out": target})
    out._block[...] = target[out.layout.block_slices(out.shape)]
    copy.version += 1
    return out


def _whole_array(x: Value, copy: Pages | None) -> Value:
    """Return all elements of an operand, as NumPy's array. Collective for a row of which there is no copy."""
    if copy is not None:
        return _row_elements(x, copy).view(np.ndarray)
    return to_all(x, "numpy.ndarray")._block if isinstance(x, DTensor) else x


def _is_new(function: object, method: str | None) -> bool:
    """Return whether what a function makes is one array or number, and no view of an argument."""
    if isinstance(function, np.ufunc):
        return method in ("__call__", "reduce") and function.nout == 1
    return function is operator.getitem or function in _COMPUTING


def _array_of(row: object) -> DTensor | None:
    """Return the array of a row; None if that is no view, or one of an array whose memory is not as that of a copy."""
    root = row._view.root if isinstance(row, DTensor) and row._view is not None else None
    return root if isinstance(root, DTensor) and root._view is None else None


def _copy_of(row: Value) -> Pages | None:
    """Return the pages that have all elements of the array of a row, as they are now."""
    array = _array_of(row)
    if array is None or row.ndim != 1 or row.nbytes > MAX_UNPLANNED_BYTES:
        return None
    pages = PAGES.get(id(array))
    if pages is None or pages.whole is None or pages.version != pages.storage.version:
        return None
    pages.rows += 1
    return pages


def _row_elements(row: DTensor, copy: Pages) -> Array:
    """Return the elements of a row in the copy of its array."""
    view = row._view
    assert view is not None
    array: Array = np.ndarray(row.shape, row.dtype, copy.whole, view.begin, view.strides).view(_kind)
    array.flags.writeable = False
    return array
