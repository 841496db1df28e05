"""Scripts of NumPy, which expect no tensors: results without axes are numbers there, as from NumPy's functions.

All ranks of such a script make all its calls. So ``repr`` and ``str`` of a tensor may be Collective.
"""

import sys
from types import FrameType

import numpy as np

from meshcomm.core import _hooks
from meshcomm.core._tracing import Value
from meshcomm.core.arrays import _tensor, libraries, operators
from meshcomm.core.arrays._buffers import set_buffers
from meshcomm.core.arrays._tensor import TensorBase
from meshcomm.core.arrays.operators import LIKE_FUNCTIONS

_ARRAY_FUNCTIONS = frozenset(
    (
        *(np.reshape, np.squeeze, np.transpose, np.copy, np.broadcast_to, np.empty_like, np.zeros_like, np.ones_like),
        *(np.full_like, np.where, np.real, np.imag, np.ravel, np.ndarray.astype, np.ndarray.view, *LIKE_FUNCTIONS),
    )
)
"""Functions whose results are arrays even without axes."""

_METHOD_MODULES = frozenset(
    (
        "meshcomm.numpy.namespace.arrays",
        *(
            f"meshcomm.core.arrays.{name}"
            for name in ("conditions", "contents", "dtensor", "methods", "operators", "scripted", "standard")
        ),
    )
)
"""Modules with methods of tensors that a program calls."""

_is_scripted = _is_alone = False
_tensor_classes = list[type]()


def set_scripted(enabled: bool, alone: bool = False) -> None:
    """Set whether the program is a script of NumPy, whose calls all ranks make, and whether it has one rank only."""
    global _is_scripted, _is_alone
    _is_scripted, _is_alone = enabled, enabled and alone
    _tensor.script = for_script if enabled else None
    operators.operate_by_other_class = libraries.apply_operator if enabled else None
    for tensor_class in _tensor_classes:
        set_buffers(tensor_class, libraries.exported_array if enabled else None)


def set_kind(tensor_class: type) -> None:
    """Set the class of tensors."""
    _tensor_classes.append(tensor_class)
    set_scripted(_is_scripted, _is_alone)


def is_scripted() -> bool:
    """Return whether the program is a script of NumPy, whose calls all ranks make."""
    return _is_scripted


def is_alone() -> bool:
    """Return whether the program is a script of NumPy on one rank: then NumPy's names are NumPy's own."""
    return _is_alone


def refuse_as_buffer(name: str, arguments: tuple[object, ...]) -> None:
    """Raise ``ValueError`` if one of *arguments*, whose memory an array would use, is a tensor."""
    if any(isinstance(x, TensorBase) for x in arguments):
        raise ValueError(f"{name}: {libraries.NO_VIEW_TEXT}")


def for_script(result: object, function: object = None, index: object = None) -> Value:
    """Return *result* as a script gets it: a number for a tensor without axes. Our own functions get the tensor.

    Parameters
    ----------
    result: result of the call
    function: function of NumPy, if it is no universal function
    index: index of an element or a slice
    """
    if isinstance(result, np.generic):
        return result
    if isinstance(result, TensorBase):
        if not result.layout.is_fully_replicated() or not _is_called_by_program():
            return result
        is_array = function in _ARRAY_FUNCTIONS or _has_ellipsis(index)
        return _hooks.call("whole", result) if is_array or result.shape != () else _script_value(result)
    if (
        not isinstance(result, tuple | list)
        or not any(isinstance(x, TensorBase) for x in result)
        or not _is_called_by_program()
    ):
        return result
    results = [_script_value(x) for x in result]
    return type(result)(*results) if hasattr(result, "_fields") else type(result)(results)


def _script_value(x: object) -> Value:
    """Return the number for a tensor without axes; other tensors as a script gets them."""
    if not isinstance(x, TensorBase):
        return x
    if x.shape != () or not x._has_block:
        return _hooks.call("whole", x)
    if x.dtype.names is None:
        return x._block[()]
    if x._view is not None and x._view.writeable:
        return x  # NumPy's record is a view
    record = x._block.copy()
    record.flags.writeable = False
    return record[()]


def _has_ellipsis(index: object) -> bool:
    return index is Ellipsis or (type(index) is tuple and any(item is Ellipsis for item in index))


def _is_called_by_program() -> bool:
    """Return whether the program made this call, directly or through NumPy, and not a function of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name not in _METHOD_MODULES and not name.startswith("numpy."):
            return not name.startswith("meshcomm.")
        frame = frame.f_back
    return True
