"""Rows that a loop of a script reads: ``a[i] @ a[j]``, ``a[:, j].sum()``, ``a[i, j:] -= x``.

A short slice of a cut array is on some ranks only, and each product or sum of it costs a message. If a loop makes
many, the whole array is gathered to all ranks, which compute with slices of their copy, without messages. When the
script writes to elements and slices, each rank writes to its copy, too.
"""
# Why all ranks have the same copy
# ================================
#
# All ranks of a script make the same calls, and all know whether a call sends something: it is Collective. The copy
# belongs to a version of the storage, which counts the calls that write, so it is up to date with the blocks. A call
# that writes to elements or slices writes to both, as all ranks know the values. After any other write, such as
# ``a += 1``, the copy is dropped.
#
# When it is fetched
# ==================
#
# When the calls with rows have taken as long as gathering all elements takes. So a program never waits more than twice
# as long as without copies, whatever it does next. If a copy is dropped before it has paid off, the next one comes
# after twice as many calls.

import operator

import numpy as np

from meshcomm.blocks.small import is_short, to_all
from meshcomm.core._callers import call_warning_at_program
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import MAX_UNPLANNED_BYTES
from meshcomm.core._types import Array
from meshcomm.core.arrays._storage import count_write
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.indexing.pages import PAGES, Pages, pages_of

_COPYING_FUNCTIONS = frozenset(
    (
        *(np.dot, np.vdot, np.inner, np.linalg.norm, np.sum, np.mean, np.std, np.var, np.prod, np.max, np.min),
        *(np.any, np.all, np.argmax, np.argmin, np.count_nonzero, np.median, np.clip, np.cumsum, np.sort, np.argsort),
    )
)
"""Functions of NumPy whose result is never a view of an argument."""

_array_class: type = np.ndarray


def set_kind(array_class: type) -> None:
    """Set the class of arrays that each rank of a script has whole."""
    global _kind
    _array_class = array_class


def note_call(operands: tuple[object, ...]) -> None:
    """Count a call that has sent something, for the array of each row. Collective if an array is gathered then."""
    for x in operands:
        array = _base_array(x)
        if array is not None and array.mesh.size == array.mesh.world.size:
            pages_of(array).count_call(array)


def note_written(target: object, index: object = None, value: object = None) -> None:
    """Note that a call has written to *target*: a row, or a tuple of one row, as in ``out=``.

    With *index*, the call has written *value*, a number or a tensor, to a slice of the tensor *target*.
    """
    array = target[0] if isinstance(target, tuple) and len(target) == 1 else target
    if not isinstance(array, DTensor):
        return
    root = array if index is not None or array._view is None else array._view.root
    pages = PAGES.get(id(root))
    if pages is None:
        return
    if isinstance(value, DTensor):
        is_own_row = _base_array(value) is root and pages.whole is not None
        value = _row_elements(value, pages) if is_own_row else None
    pages.write_slice(index, value)


def run_local(function: Value, method: str | None, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    """Return the result of a call on rows, computed from copies; NotImplemented if this rank lacks a copy.

    The arguments are those of NumPy's protocols. Calls that may return a view are NotImplemented, too.
    """
    out = kwargs.get("out")
    if out is not None:
        out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        kwargs = {name: x for name, x in kwargs.items() if name != "out"}
    other_args = (*args[2:], *kwargs.values())  # out= may be the third argument of NumPy's functions
    if not _makes_new_array(function, method) or any(isinstance(x, DTensor) for x in other_args):
        return NotImplemented
    arg_pages = [_pages_with_copy(x) for x in args]
    if out is None:
        if any(pages is None and isinstance(x, DTensor) for x, pages in zip(args, arg_pages, strict=True)):
            return NotImplemented
        arrays = [x if pages is None else _row_elements(x, pages) for x, pages in zip(args, arg_pages, strict=True)]
        return call_warning_at_program(
            function if method is None else getattr(function, method), tuple(arrays), kwargs
        )
    pages = _pages_with_copy(out)
    if pages is None or method != "__call__" or not all(is_short(x) for x in args if isinstance(x, DTensor)):
        return NotImplemented
    if not count_write(out):
        return NotImplemented
    arrays = [_whole_array(x, pages) for x, pages in zip(args, arg_pages, strict=True)]
    target = _row_elements(out, pages).view(np.ndarray)
    target.flags.writeable = True
    call_warning_at_program(function, tuple(arrays), {**kwargs, "out": target})
    out._block[...] = target[out.layout.block_slices(out.shape)]
    pages.version += 1
    return out


def _whole_array(x: Value, pages: Pages | None) -> Value:
    """Return all elements of an operand as a NumPy array. Collective for a row without a copy."""
    if pages is not None:
        return _row_elements(x, pages).view(np.ndarray)
    return to_all(x, "numpy.ndarray")._block if isinstance(x, DTensor) else x


def _makes_new_array(function: object, method: str | None) -> bool:
    """Return whether a function returns one array or number, and no view of an argument."""
    if isinstance(function, np.ufunc):
        return method in ("__call__", "reduce") and function.nout == 1
    return function is operator.getitem or function in _COPYING_FUNCTIONS


def _base_array(row: object) -> DTensor | None:
    """Return the array that *row* is a view of; None if it is no view, or not a view in the array's own memory."""
    root = row._view.root if isinstance(row, DTensor) and row._view is not None else None
    return root if isinstance(root, DTensor) and root._view is None else None


def _pages_with_copy(row: Value) -> Pages | None:
    """Return the pages with a current copy of the array of a row; None if there is no copy, or the row is long."""
    array = _base_array(row)
    if array is None or row.ndim != 1 or row.nbytes > MAX_UNPLANNED_BYTES:
        return None
    pages = PAGES.get(id(array))
    if pages is None or pages.whole is None or pages.version != pages.storage.version:
        return None
    pages.rows += 1
    return pages


def _row_elements(row: DTensor, pages: Pages) -> Array:
    """Return the elements of a row in the copy of its array."""
    view = row._view
    assert view is not None
    array: Array = np.ndarray(row.shape, row.dtype, pages.whole, view.begin, view.strides).view(_array_class)
    array.flags.writeable = False
    return array
