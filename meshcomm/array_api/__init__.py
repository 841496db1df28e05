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
from meshcomm.array_api.functions import One as _One
from meshcomm.array_api.functions import Several as _Several
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

_numpys: _Any = _np  # called with tensors, by NumPy's protocol

abs: _One = _numpys.abs
acos: _One = _numpys.acos
acosh: _One = _numpys.acosh
add: _One = _numpys.add
all: _One = _numpys.all
any: _One = _numpys.any
arange: _One = _functions.creating(_creation.arange)
argmax: _One = _numpys.argmax
argmin: _One = _numpys.argmin
argsort = _functions.argsort
asarray: _One = _functions.creating(_creation.asarray)
asin: _One = _numpys.asin
asinh: _One = _numpys.asinh
astype = _functions.astype
atan: _One = _numpys.atan
atan2: _One = _numpys.atan2
atanh: _One = _numpys.atanh
bitwise_and: _One = _numpys.bitwise_and
bitwise_invert: _One = _numpys.bitwise_invert
bitwise_left_shift: _One = _numpys.bitwise_left_shift
bitwise_or: _One = _numpys.bitwise_or
bitwise_right_shift: _One = _numpys.bitwise_right_shift
bitwise_xor: _One = _numpys.bitwise_xor
broadcast_arrays: _Several = _numpys.broadcast_arrays
broadcast_shapes: _Any = _numpys.broadcast_shapes
broadcast_to: _One = _numpys.broadcast_to
can_cast: _Any = _numpys.can_cast
ceil: _One = _numpys.ceil
clip = _functions.clip
concat: _One = _numpys.concat
conj: _One = _numpys.conj
copysign: _One = _numpys.copysign
cos: _One = _numpys.cos
cosh: _One = _numpys.cosh
count_nonzero: _One = _numpys.count_nonzero
cumulative_prod: _One = _numpys.cumulative_prod
cumulative_sum: _One = _numpys.cumulative_sum
diff: _One = _numpys.diff
divide: _One = _numpys.divide
empty: _One = _functions.creating(_creation.empty)
empty_like: _One = _functions.creating(_creation.empty_like)
equal: _One = _numpys.equal
exp: _One = _numpys.exp
expand_dims: _One = _numpys.expand_dims
expm1: _One = _numpys.expm1
eye: _One = _functions.creating(_creation.eye)
finfo = _functions.finfo
flip: _One = _numpys.flip
floor: _One = _numpys.floor
floor_divide: _One = _numpys.floor_divide
from_dlpack: _One = _functions.creating(_creation.from_dlpack)
full: _One = _functions.creating(_creation.full)
full_like: _One = _functions.creating(_creation.full_like)
greater: _One = _numpys.greater
greater_equal: _One = _numpys.greater_equal
hypot: _One = _numpys.hypot
iinfo = _functions.iinfo
imag: _One = _numpys.imag
isdtype: _Any = _numpys.isdtype
isfinite: _One = _numpys.isfinite
isin: _One = _numpys.isin
isinf: _One = _numpys.isinf
isnan: _One = _numpys.isnan
less: _One = _numpys.less
less_equal: _One = _numpys.less_equal
linspace: _One = _functions.creating(_creation.linspace)
log: _One = _numpys.log
log10: _One = _numpys.log10
log1p: _One = _numpys.log1p
log2: _One = _numpys.log2
logaddexp: _One = _numpys.logaddexp
logical_and: _One = _numpys.logical_and
logical_not: _One = _numpys.logical_not
logical_or: _One = _numpys.logical_or
logical_xor: _One = _numpys.logical_xor
matmul: _One = _numpys.matmul
matrix_transpose: _One = _numpys.matrix_transpose
max: _One = _numpys.max
maximum: _One = _numpys.maximum
mean: _One = _numpys.mean
meshgrid: _Several = _numpys.meshgrid
min: _One = _numpys.min
minimum: _One = _numpys.minimum
moveaxis: _One = _numpys.moveaxis
multiply: _One = _numpys.multiply
negative: _One = _numpys.negative
nextafter: _One = _numpys.nextafter
nonzero: _Several = _numpys.nonzero
not_equal: _One = _numpys.not_equal
ones: _One = _functions.creating(_creation.ones)
ones_like: _One = _functions.creating(_creation.ones_like)
permute_dims: _One = _numpys.permute_dims
positive: _One = _numpys.positive
pow: _One = _numpys.pow
prod: _One = _numpys.prod
real: _One = _numpys.real
reciprocal: _One = _numpys.reciprocal
remainder: _One = _numpys.remainder
repeat: _One = _numpys.repeat
reshape: _One = _numpys.reshape
result_type: _Any = _numpys.result_type
roll: _One = _numpys.roll
round: _One = _numpys.round
searchsorted: _One = _numpys.searchsorted
sign: _One = _numpys.sign
signbit: _One = _numpys.signbit
sin: _One = _numpys.sin
sinh: _One = _numpys.sinh
sort = _functions.sort
sqrt: _One = _numpys.sqrt
square: _One = _numpys.square
squeeze: _One = _numpys.squeeze
stack: _One = _numpys.stack
std: _One = _numpys.std
subtract: _One = _numpys.subtract
sum: _One = _numpys.sum
take: _One = _numpys.take
take_along_axis = _functions.take_along_axis
tan: _One = _numpys.tan
tanh: _One = _numpys.tanh
tensordot: _One = _numpys.tensordot
tile: _One = _numpys.tile
tril: _One = _numpys.tril
triu: _One = _numpys.triu
trunc: _One = _numpys.trunc
unique_all: _Any = _numpys.unique_all
unique_counts: _Any = _numpys.unique_counts
unique_inverse: _Any = _numpys.unique_inverse
unique_values: _One = _numpys.unique_values
unstack: _Several = _numpys.unstack
var: _One = _numpys.var
vecdot: _One = _numpys.vecdot
where: _One = _numpys.where
zeros: _One = _functions.creating(_creation.zeros)
zeros_like: _One = _functions.creating(_creation.zeros_like)

if not _typing.TYPE_CHECKING:
    __all__ = ["__array_api_version__", "__array_namespace_info__", "fft", "linalg"]
    __all__ += [name for name, value in [*globals().items()] if name[0] != "_" and not _ismodule(value)]
    __getattr__, __dir__ = _only_public(__name__, __all__)
