"""The functions of the array API standard that differ from NumPy's of the same name."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.tensor_numpy import tensor_np, untyped_np
from meshcomm.core._arguments import as_dtype
from meshcomm.core._types import DType
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.numpy.namespace.devices import Device, layout_moved_to

Number: TypeAlias = int | float | complex
ReturnsTensor: TypeAlias = Callable[..., DTensor]
ReturnsTensors: TypeAlias = Callable[..., tuple[DTensor, ...]]
"""Types of NumPy functions called with DTensors; NumPy's stubs say they return ndarray."""

# Wrapped in `refusable`: an invalid device on one rank only must not go unnoticed.
layout_on_device = refusable(layout_moved_to)


def functions_named(module: ModuleType, names: str) -> list[ReturnsTensor]:
    """Return the functions of *module* with these *names*, which take tensors."""
    return [getattr(module, name) for name in names.split()]


def returning_tensor(function: ReturnsTensor) -> ReturnsTensor:
    """Return *function* with its result converted to a DTensor."""

    @wraps(function)
    def wrapper(*args: object, **kwargs: object) -> DTensor:
        return as_tensor(function.__name__, function(*args, **kwargs))

    wrapper.__signature__ = signature(function)  # type: ignore[attr-defined]
    return wrapper


def astype(x: DTensor, dtype: DTypeLike, /, *, copy: bool = True, device: Device | None = None) -> DTensor:
    """Return the tensor in another dtype. Collective over the meshes if it moves to another *device*."""
    if not isinstance(x, DTensor):  # xarray passes NumPy's scalars beside tensors
        return np.asarray(x).astype(as_dtype(dtype), copy=copy)
    result = x.astype(as_dtype(dtype), copy=copy)
    layout = layout_on_device(x.layout, device)
    return result if layout == x.layout else relayout(result, layout)


def clip(x: DTensor, /, min: DTensor | Number | None = None, max: DTensor | Number | None = None) -> DTensor:
    """Return the tensor with elements below *min* replaced by *min*, and above *max* by *max*."""
    return tensor_np.clip(x, min, max)


def argsort(x: DTensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> DTensor:
    """Return the indices that sort the tensor along *axis*. Collective over the mesh."""
    if not descending:
        return tensor_np.argsort(x, axis=axis, stable=stable)
    # Stable descending order: argsort the reversed axis, reverse the result, and convert positions back.
    reversed_indices: DTensor = tensor_np.flip(
        tensor_np.argsort(tensor_np.flip(x, axis), axis=axis, stable=stable), axis
    )
    return x.shape[axis] - 1 - reversed_indices


def sort(x: DTensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> DTensor:
    """Return the tensor sorted along *axis*. Collective over the mesh."""
    result = tensor_np.sort(x, axis=axis, stable=stable)
    return tensor_np.flip(result, axis) if descending else result


def take_along_axis(x: DTensor, indices: DTensor, /, *, axis: int = -1) -> DTensor:
    """Return the elements at *indices* along *axis*, with own indices for each 1-D slice. Collective over the mesh."""
    return tensor_np.take_along_axis(x, indices, axis)  # NumPy 2.1 has no default for the axis


def eig(x: DTensor, /) -> tuple[DTensor, DTensor]:
    """Return eigenvalues and eigenvectors of square matrices, as complex numbers. Collective if they are sharded."""
    pairs = untyped_np.linalg.eig(x)
    complex_pairs: tuple[DTensor, DTensor] = pairs._make(map(_as_complex, pairs))  # NumPy's named tuple
    return complex_pairs


def eigvals(x: DTensor, /) -> DTensor:
    """Return the eigenvalues of square matrices, as complex numbers. Collective if they are sharded."""
    return _as_complex(tensor_np.linalg.eigvals(x))


def _as_complex(x: DTensor) -> DTensor:
    return x.astype(np.result_type(x.dtype, np.complex64), copy=False)


def pinv(x: DTensor, /, *, rtol: ArrayLike | DTensor | None = None) -> DTensor:
    """Return the pseudo-inverses of matrices. Collective if they are sharded.

    Singular values up to *rtol* times the largest one count as zero; by default the precision times the longer side.
    """
    return tensor_np.linalg.pinv(x, rtol=rtol)


class FloatInfo(NamedTuple):
    """The limits of a real floating-point dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerInfo(NamedTuple):
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: DTypeLike | DTensor, /) -> FloatInfo:
    """Return the limits of a floating-point dtype; those of its real numbers for a complex one.

    >>> finfo(np.complex64).bits
    32
    """
    info = np.finfo(_dtype_of(type))
    eps, largest, lowest, normal = map(float, (info.eps, info.max, info.min, info.smallest_normal))
    return FloatInfo(int(info.bits), eps, largest, lowest, normal, info.dtype)


def iinfo(type: DTypeLike | DTensor, /) -> IntegerInfo:
    """Return the limits of an integer dtype.

    >>> iinfo(np.int8).max
    127
    """
    info = np.iinfo(_dtype_of(type))
    return IntegerInfo(int(info.bits), int(info.max), int(info.min), info.dtype)


def _dtype_of(x: DTypeLike | DTensor) -> DType:
    return x.dtype if isinstance(x, DTensor) else np.dtype(x)
