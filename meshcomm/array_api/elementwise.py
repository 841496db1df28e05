"""The elementwise functions of the array API standard: NumPy's universal functions, by their names there."""

from typing import Protocol, TypeAlias, cast

import numpy as np

from meshcomm.core.arrays.dtensor import DTensor

Operand: TypeAlias = DTensor | complex


class OfOne(Protocol):
    """What such a function of one tensor is for type checkers: NumPy's own stubs promise an array of NumPy."""

    def __call__(self, x: DTensor, /) -> DTensor:
        """Return the function of each element."""


class OfTwo(Protocol):
    """The same of two tensors, of which one may be a number."""

    def __call__(self, x1: Operand, x2: Operand, /) -> DTensor:
        """Return the function of each pair of elements."""


def of_one(function: np.ufunc) -> OfOne:
    """Return *function* as one of a tensor."""
    return cast(OfOne, function)


def of_two(function: np.ufunc) -> OfTwo:
    """Return *function* as one of two tensors."""
    return cast(OfTwo, function)


abs = of_one(np.absolute)
acos = of_one(np.arccos)
acosh = of_one(np.arccosh)
add = of_two(np.add)
asin = of_one(np.arcsin)
asinh = of_one(np.arcsinh)
atan = of_one(np.arctan)
atan2 = of_two(np.arctan2)
atanh = of_one(np.arctanh)
bitwise_and = of_two(np.bitwise_and)
bitwise_invert = of_one(np.invert)
bitwise_left_shift = of_two(np.left_shift)
bitwise_or = of_two(np.bitwise_or)
bitwise_right_shift = of_two(np.right_shift)
bitwise_xor = of_two(np.bitwise_xor)
ceil = of_one(np.ceil)
conj = of_one(np.conjugate)
copysign = of_two(np.copysign)
cos = of_one(np.cos)
cosh = of_one(np.cosh)
divide = of_two(np.divide)
equal = of_two(np.equal)
exp = of_one(np.exp)
expm1 = of_one(np.expm1)
floor = of_one(np.floor)
floor_divide = of_two(np.floor_divide)
greater = of_two(np.greater)
greater_equal = of_two(np.greater_equal)
hypot = of_two(np.hypot)
isfinite = of_one(np.isfinite)
isinf = of_one(np.isinf)
isnan = of_one(np.isnan)
less = of_two(np.less)
less_equal = of_two(np.less_equal)
log = of_one(np.log)
log10 = of_one(np.log10)
log1p = of_one(np.log1p)
log2 = of_one(np.log2)
logaddexp = of_two(np.logaddexp)
logical_and = of_two(np.logical_and)
logical_not = of_one(np.logical_not)
logical_or = of_two(np.logical_or)
logical_xor = of_two(np.logical_xor)
maximum = of_two(np.maximum)
minimum = of_two(np.minimum)
multiply = of_two(np.multiply)
negative = of_one(np.negative)
nextafter = of_two(np.nextafter)
not_equal = of_two(np.not_equal)
positive = of_one(np.positive)
pow = of_two(np.power)
reciprocal = of_one(np.reciprocal)
remainder = of_two(np.remainder)
sign = of_one(np.sign)
signbit = of_one(np.signbit)
sin = of_one(np.sin)
sinh = of_one(np.sinh)
sqrt = of_one(np.sqrt)
square = of_one(np.square)
subtract = of_two(np.subtract)
tan = of_one(np.tan)
tanh = of_one(np.tanh)
trunc = of_one(np.trunc)
