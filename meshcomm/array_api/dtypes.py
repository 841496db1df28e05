"""The dtypes of the array API standard, its constants, and its functions of dtypes."""

import builtins
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._types import DType
from meshcomm.core.arrays.dtensor import DTensor

if not hasattr(np, "isdtype"):
    raise ImportError(
        f"meshcomm.array_api needs NumPy 2, but this is {np.__version__}: before, the dtype of a result depends on "
        "values, which the array API standard does not allow"
    )

bool = np.bool
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float32, float64 = np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128

e, inf, nan, newaxis, pi = math.e, np.inf, np.nan, None, np.pi

isdtype = np.isdtype
result_type = np.result_type


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


def _dtype_of(x: DTypeLike | DTensor) -> DType:
    return x.dtype if isinstance(x, DTensor) else np.dtype(x)


def can_cast(from_: DTypeLike | DTensor, to: DTypeLike, /) -> builtins.bool:
    """Return whether values of a dtype, or of a tensor's dtype, keep their value in the dtype *to*.

    >>> can_cast(int32, float64), can_cast(float64, int32)
    (True, False)
    """
    return np.can_cast(_dtype_of(from_), to)


def finfo(type: DTypeLike | DTensor, /) -> FloatInfo:
    """Return the limits of a floating-point dtype; those of its real numbers for a complex one.

    >>> finfo(complex64).bits
    32
    """
    found = np.finfo(_dtype_of(type))
    eps, largest, least, normal = map(float, (found.eps, found.max, found.min, found.smallest_normal))
    return FloatInfo(int(found.bits), eps, largest, least, normal, found.dtype)


def iinfo(type: DTypeLike | DTensor, /) -> IntegerInfo:
    """Return the limits of an integer dtype.

    >>> iinfo(int8).max
    127
    """
    found = np.iinfo(_dtype_of(type))
    return IntegerInfo(int(found.bits), int(found.max), int(found.min), found.dtype)
