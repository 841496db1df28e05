"""The Python array API standard, version 2025.12, for tensors: NumPy's functions, and those that differ from them.

What moves, and the layout of a result, is as with NumPy's function: see docs/numpy.md. A device of the standard
is a mesh, or a layout: see docs/array-api.md.
"""

import math as _math
import typing as _typing
from inspect import ismodule as _ismodule
from typing import Any as _Any

import numpy as _np

from meshcomm.array_api import fft, linalg
from meshcomm.array_api import functions as _functions
from meshcomm.array_api import info as _info
from meshcomm.array_api.functions import ReturnsTensors as _ReturnsTensors
from meshcomm.array_api.functions import functions_named as _named
from meshcomm.array_api.functions import returning_tensor as _returning_tensor
from meshcomm.blocks.tensor_numpy import untyped_np as _untyped_np
from meshcomm.core._mistakes import only_public as _only_public
from meshcomm.core.arrays import standard as _standard
from meshcomm.numpy.namespace import creation as _creation

__array_api_version__ = _standard.VERSION
__array_namespace_info__ = _info.__array_namespace_info__

bool = _np.bool
int8, int16, int32, int64 = _np.int8, _np.int16, _np.int32, _np.int64
uint8, uint16, uint32, uint64 = _np.uint8, _np.uint16, _np.uint32, _np.uint64
float32, float64 = _np.float32, _np.float64
complex64, complex128 = _np.complex64, _np.complex128

e, inf, nan, newaxis, pi = _math.e, _np.inf, _np.nan, None, _np.pi

# NumPy's functions, called with tensors by NumPy's protocol.

abs, ceil, floor, round, sign, signbit, trunc = _named(_np, "abs ceil floor round sign signbit trunc")
add, subtract, multiply, divide = _named(_np, "add subtract multiply divide")
floor_divide, remainder, pow = _named(_np, "floor_divide remainder pow")
negative, positive, reciprocal, square, sqrt, hypot = _named(_np, "negative positive reciprocal square sqrt hypot")
acos, acosh, asin, asinh, atan, atan2, atanh = _named(_np, "acos acosh asin asinh atan atan2 atanh")
cos, cosh, sin, sinh, tan, tanh = _named(_np, "cos cosh sin sinh tan tanh")
exp, expm1, log, log10, log1p, log2, logaddexp = _named(_np, "exp expm1 log log10 log1p log2 logaddexp")
conj, imag, real, copysign, nextafter = _named(_np, "conj imag real copysign nextafter")
equal, not_equal, less = _named(_np, "equal not_equal less")
less_equal, greater, greater_equal = _named(_np, "less_equal greater greater_equal")
isfinite, isin, isinf, isnan = _named(_np, "isfinite isin isinf isnan")
logical_and, logical_not, logical_or, logical_xor = _named(_np, "logical_and logical_not logical_or logical_xor")
bitwise_and, bitwise_or, bitwise_xor, bitwise_invert = _named(_np, "bitwise_and bitwise_or bitwise_xor bitwise_invert")
bitwise_left_shift, bitwise_right_shift = _named(_np, "bitwise_left_shift bitwise_right_shift")
maximum, minimum, where = _named(_np, "maximum minimum where")
all, any, count_nonzero, max, min = _named(_np, "all any count_nonzero max min")
mean, prod, std, sum, var = _named(_np, "mean prod std sum var")
cumulative_prod, cumulative_sum, diff = _named(_np, "cumulative_prod cumulative_sum diff")
argmax, argmin, searchsorted, unique_values = _named(_np, "argmax argmin searchsorted unique_values")
broadcast_to, concat, expand_dims, flip, moveaxis = _named(_np, "broadcast_to concat expand_dims flip moveaxis")
permute_dims, repeat, reshape, roll = _named(_np, "permute_dims repeat reshape roll")
squeeze, stack, tile = _named(_np, "squeeze stack tile")
take, tril, triu = _named(_np, "take tril triu")
matmul, matrix_transpose, tensordot, vecdot = _named(_np, "matmul matrix_transpose tensordot vecdot")


broadcast_arrays: _ReturnsTensors = _untyped_np.broadcast_arrays
broadcast_shapes: _Any = _untyped_np.broadcast_shapes
can_cast: _Any = _untyped_np.can_cast
isdtype: _Any = _untyped_np.isdtype
meshgrid: _ReturnsTensors = _untyped_np.meshgrid
nonzero: _ReturnsTensors = _untyped_np.nonzero
result_type: _Any = _untyped_np.result_type
unique_all: _Any = _untyped_np.unique_all
unique_counts: _Any = _untyped_np.unique_counts
unique_inverse: _Any = _untyped_np.unique_inverse
unstack: _ReturnsTensors = _untyped_np.unstack

# Functions that create a tensor on a device.

arange, asarray, eye, from_dlpack = map(_returning_tensor, _named(_creation, "arange asarray eye from_dlpack"))
empty, full, linspace, ones, zeros = map(_returning_tensor, _named(_creation, "empty full linspace ones zeros"))
empty_like, full_like, ones_like, zeros_like = map(
    _returning_tensor, _named(_creation, "empty_like full_like ones_like zeros_like")
)

# Functions that differ from NumPy's of the same name.

argsort = _functions.argsort
astype = _functions.astype
clip = _functions.clip
finfo = _functions.finfo
iinfo = _functions.iinfo
sort = _functions.sort
take_along_axis = _functions.take_along_axis

if not _typing.TYPE_CHECKING:
    __all__ = ["__array_api_version__", "__array_namespace_info__", "fft", "linalg"]
    __all__ += [name for name, value in [*globals().items()] if name[0] != "_" and not _ismodule(value)]
    __getattr__, __dir__ = _only_public(__name__, __all__)
