"""In a script of NumPy: read-only copies of all elements of a tensor, for libraries that expect an array.

All ranks of such a script make all its calls, so access may be Collective, as `numpy.asarray` of a tensor is: by
Python's buffers, by ``__array_interface__``, and by operators with an operand of a class that has its own.
"""

import operator
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.typed import TypedTensor

TO_NUMPY_ADVICE = (
    "x.to_numpy() is an array with a copy of all elements, to be read and written; x[...] = array writes it back"
)
"""Advice in error texts, where a library does not take a tensor."""


def exported_array(tensor: TypedTensor) -> Array:
    """Return all elements of a tensor for Python's buffers, read-only. Collective.

    ``BufferError`` for a dtype that a buffer cannot describe, such as dates: then NumPy asks for the array.
    """
    if not _has_buffers(tensor.dtype):
        raise BufferError(f"elements of dtype {tensor.dtype} have no buffer of Python: {TO_NUMPY_ADVICE}")
    return tensor.__array__()


@cache
def _has_buffers(dtype: DType) -> bool:
    try:
        return np.asarray(np.empty(1, dtype).data).dtype == dtype
    except (ValueError, RuntimeError, BufferError):
        return False


def _array_interface(tensor: TypedTensor) -> dict[str, object]:
    array = tensor.__array__()
    interface = dict(array.__array_interface__)
    if array.dtype.names is not None and np.dtype(interface["descr"]) != array.dtype:
        raise AttributeError(f"the fields of {array.dtype} have no descr that says where they are", name="descr")
    # An object that alone holds the memory, and that has no items which could be taken for an address.
    return interface | {"data": np.ndarray((), f"V{array.nbytes}", array).data}


SCRIPT_ATTRIBUTES: dict[str, Callable[[TypedTensor], object]] = {
    "__array_interface__": _array_interface,
    "data": lambda tensor: exported_array(tensor).data,
}
"""Attributes of NumPy's arrays that a tensor has in a script only. Collective."""


def refuse_windows() -> None:
    """Raise ``ValueError`` if NumPy's ``as_strided`` asks for an array: the result would be no view of the tensor."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(4):
        if frame is None:
            return
        if frame.f_code is as_strided.__code__:
            raise ValueError(f"as_strided: {NO_VIEW_TEXT}")
        frame = frame.f_back


NO_VIEW_TEXT = (
    "an array that is cut over the ranks has no memory in one piece. Slices, x.reshape, x.view(dtype) and "
    "np.lib.stride_tricks.sliding_window_view are views of it; x.to_numpy() is a copy in one piece"
)


def view_as_class(tensor: TypedTensor, cls: type) -> Value:
    """Return the result of ``x.view(cls)`` in a script, for a class of NumPy's arrays. Collective.

    For a subclass of `numpy.ndarray` it is a read-only copy.
    """
    return tensor.view() if cls.__module__ == "numpy" and cls.__name__ == "ndarray" else tensor.__array__().view(cls)


# -- operators --------------------------------------------------------------------------------------------------------


def apply_operator(name: str, tensor: TypedTensor, other: object) -> Value:
    """Return the result of the operator *name*, such as ``__radd__``, on all elements. Collective."""
    if name in _REVERSED:
        return _REVERSED[name](other, tensor.__array__())
    is_in_place = name.startswith("__i") and name != "__invert__"
    array = tensor.__array__(copy=is_in_place or None)
    result = _operator(name)(array, other)
    if result is array:
        tensor[...] = array
        return tensor
    return result


def _operator(name: str) -> Callable[..., object]:
    return divmod if name == "__divmod__" else getattr(operator, name)


_REVERSED: dict[str, Callable[..., object]] = {
    f"__r{name}__": _operator(f"__{name}__")
    for name in (
        *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
        *("and", "xor", "or"),
    )
}
