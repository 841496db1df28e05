"""The values that a fused function gets instead of its arrays: their operations wait until a result is needed."""

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from meshcomm.blocks.make import make
from meshcomm.blocks.rules import broadcast_shape, common_layout, mesh_of
from meshcomm.core._callers import naming_callers, warn
from meshcomm.core._mistakes import missing
from meshcomm.core._tracing import Value
from meshcomm.core._types import Shape
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.operators import power_by
from meshcomm.core.layouts.layout import Layout
from meshcomm.fusing.functions import (
    ATTRIBUTES,
    ELEMENTWISE,
    INSTEAD,
    TOTALS,
    WHOLE,
    Alone,
    Function,
    Given,
    Kind,
    is_cast,
    output_of,
    result_dtypes,
)
from meshcomm.fusing.jobs import Waiting, compute, computed, tick, waiting_in
from meshcomm.fusing.lines import Watch, here, located, refused

_NUMBERS = frozenset((bool, int, float, complex))
_OPERANDS = (
    *(Waiting, DTensor, np.ndarray, np.generic, int, float, complex, str, bytes, date, timedelta),
    *(type, np.dtype, type(None)),
)


class Deferred(Waiting):
    """What a fused function gets instead of an array or a tensor, and what its operations make."""

    __slots__ = ()
    is_fused = True  # tensors leave NumPy's functions of both to this class
    __hash__ = None  # type: ignore[assignment]  # as an array, whose == is elementwise

    # -- what arrays have ---------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def real(self) -> Value:
        """The real parts."""
        return called(np.real, (self,), {})

    @property
    def imag(self) -> Value:
        """The imaginary parts."""
        return called(np.imag, (self,), {})

    @property
    def T(self) -> Value:  # noqa: N802 - NumPy's name
        """The transpose."""
        return called(np.transpose, (self,), {})

    def reshape(self, *shape: Value) -> Value:
        """Return the elements in another shape."""
        return called(np.reshape, (self, shape[0] if len(shape) == 1 else shape), {})

    def transpose(self, *axes: Value) -> Value:
        """Return the value with its axes in another order."""
        return called(np.transpose, (self, (axes[0] if len(axes) == 1 else axes) or None), {})

    def item(self) -> Value:
        """Return the number that is a total."""
        return self.needed("an element").item()

    def __repr__(self) -> str:
        return f"Deferred of {self.shape} {self.dtype}"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Value) -> Value:
        if any(type(each) is Deferred for each in (index if isinstance(index, tuple) else (index,))):
            raise refused("an index is not computed in a fused function: use numpy.where, or index the result")
        return _whole(operator.getitem, (self, index), {})

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Value, **named: Value) -> Value:
        if method == "reduce":
            return _whole(ufunc.reduce, inputs, named)
        if method != "__call__" or ufunc.signature is not None:
            raise _no_elementwise(f"numpy.{ufunc.__name__}" + (f".{method}" if method != "__call__" else ""))
        return deferred(ufunc, inputs, named)

    def __array_function__(
        self, function: Function, types: object, args: tuple[Value, ...], named: dict[str, Value]
    ) -> Value:
        return called(function, args, named)

    if not TYPE_CHECKING:  # a checker is to find what is missing

        def __getattr__(self, name: str) -> NoReturn:
            raise missing(located("a value of a fused function"), name, {}, (), self)

    # -- what needs a number now, and what is refused -----------------------------------------------------------------

    def needed(self, what: str) -> Value:
        """Return the value of a total; an array has none: *what* is asked for."""
        if self.shape:
            raise refused(
                f"{what} of an array is not known in a fused function: numpy.where(condition, a, b) chooses between "
                "values, numpy has the functions of math for arrays, and reductions such as .any() give a number"
            )
        compute([self])
        return self.made

    def __bool__(self) -> bool:
        return bool(self.needed("the truth"))

    def __int__(self) -> int:
        return int(self.needed("a number"))

    def __float__(self) -> float:
        return float(self.needed("a number"))

    def __complex__(self) -> complex:
        return complex(self.needed("a number"))

    def __index__(self) -> int:
        return operator.index(self.needed("a number"))

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise refused("this makes an array of a value that is not there yet: do so with the result")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise refused("a fused function changes no array: numpy.where(condition, new, old) makes another one")


# -- operations that wait ---------------------------------------------------------------------------------------------


def deferred(function: Function, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return what an elementwise *function* makes of arrays and numbers: a value that waits, or several.

    What it makes of numbers alone is computed now, and so are operands that are broadcast to a larger shape.
    """
    for name in INSTEAD.keys() & named:
        raise refused(f"{name}= is not supported in a fused function: {INSTEAD[name]}")
    inputs = [x if type(x) in _NUMBERS else _input(x) for x in (*args, *named.values())]
    arrays = [x for x in inputs if type(x) is Deferred]
    if not arrays:
        tick()
        with Watch([here()]):
            return function(*inputs[: len(args)], **dict(zip(named, inputs[len(args) :], strict=True)))
    shape = arrays[0].shape
    if any(x.shape != shape for x in arrays):
        shape = broadcast_shape(function.__name__, [x.shape for x in arrays])
        compute(x for x in arrays if x.shape != shape)
    kinds, names, layout = tuple(map(_kind, inputs)), tuple(named), _layout(inputs, arrays, shape)
    found = [Deferred(None, dtype, shape, layout) for dtype in result_dtypes(function, kinds, names)]
    for number, each in enumerate(found):
        each.wait(function if len(found) == 1 else output_of(function, number), inputs, kinds, names)
    return found[0] if len(found) == 1 else tuple(found)


def operand(x: Value) -> Value:
    """Return an array or a tensor, also one in a variable, as a value that is there; anything else as it is."""
    x = x.view(np.ndarray) if type(x) is np.memmap else unwrapped(x)
    if (type(x) is np.ndarray or isinstance(x, DTensor)) and x.shape:
        return Deferred(x, x.dtype, x.shape, x.layout if isinstance(x, DTensor) else None)
    return x


def _input(x: Value) -> Value:
    """Return an operand: a value with axes, a number, which a total is by now, or another argument."""
    if type(x) is Deferred:
        return x if x.shape else x.needed("a number")
    x = operand(np.asarray(x) if isinstance(x, list | tuple) else x)
    if (isinstance(x, np.ndarray) and type(x) is not np.ndarray) or not isinstance(x, _OPERANDS):
        raise refused(f"a fused function takes arrays, tensors and numbers, not {type(x).__name__}")
    return x


def _kind(x: Value) -> Kind:
    if type(x) in _NUMBERS:
        return type(x)
    if type(x) is Deferred:
        return x.dtype
    return Alone(x.dtype) if isinstance(x, np.generic | np.ndarray | DTensor) else Given(x)


def _layout(inputs: Sequence[Value], arrays: Sequence[Deferred], shape: Shape) -> Layout | None:
    """Return the layout that a result would have without fusing; None if no operand is a tensor."""
    first = arrays[0].layout
    tensors = [x for x in inputs if isinstance(x, DTensor)]
    if not tensors and all(x.layout is first and x.shape == shape for x in arrays):
        return first
    tensors += [make(None, x.layout, x.shape, x.dtype) for x in arrays if x.layout is not None]
    if not tensors:
        return None
    mesh_of(tensors)
    return common_layout(shape, tensors)


def called(function: Function, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return what a function of NumPy makes of values; ``TypeError`` if it is not elementwise, and no reduction."""
    if function in ATTRIBUTES:
        return getattr(args[0], ATTRIBUTES[function])
    if function in TOTALS and _is_total(args, named):
        dtype = np.asarray(function(np.ones(1, args[0].dtype))).dtype
        total = Deferred(None, dtype, (), args[0].layout)
        total.wait(function, args[:1], (args[0].dtype,))
        return total
    if function in WHOLE:
        return _whole(function, args, named)
    if function not in ELEMENTWISE or (function is np.where and len(args) != 3):
        raise _no_elementwise(f"{function.__module__}.{function.__name__}")
    if function is np.nan_to_num and not dict(zip(("x", "copy"), args, strict=False), **named).get("copy", True):
        raise refused("a fused function changes no array: leave out copy=False")
    made = deferred(function, args, named)
    if is_cast(function) and args[0].dtype.kind == "c" and made.dtype.kind not in "cb":
        tick()  # it warns in each call
        warn("Casting complex values to real discards the imaginary part", np.exceptions.ComplexWarning)
    return made


def _is_total(args: Sequence[Value], named: Mapping[str, Value]) -> bool:
    """Return whether a reduction takes all elements of one value, at least one, with NumPy's defaults."""
    if not args or type(args[0]) is not Deferred or 0 in args[0].shape or args[0].dtype.kind not in "biufc":
        return False
    return all(each is None for each in (*args[1:], *named.values()))


def _no_elementwise(name: str) -> TypeError:
    return refused(f"{name} is not elementwise: call it with what the fused function takes, or returns")


def _whole(function: Function, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
    """Return what *function* makes of whole arrays and tensors, which are computed first."""
    tick()
    values = [*waiting_in((args, named))]
    compute(values)
    plain = all(each.layout is None for each in values)
    made = (naming_callers(function) if plain else function)(*computed(tuple(args)), **computed(dict(named)))
    return tuple(map(operand, made)) if isinstance(made, tuple) else operand(made)


# -- operators and methods --------------------------------------------------------------------------------------------

_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "divmod": np.divmod,
    "pow": np.power,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_OTHERS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}


def _operator(ufunc: np.ufunc) -> Callable[..., Value]:
    return lambda self, *other: deferred(ufunc, (self, *other), {})


def _reflected(ufunc: np.ufunc) -> Callable[..., Value]:
    return lambda self, other: deferred(ufunc, (other, self), {})


def _changed(self: Deferred, other: object) -> NoReturn:
    raise refused("a fused function changes no array: write x = x + y instead of x += y")


def _method(function: Function) -> Callable[..., Value]:
    return lambda self, *args, **named: called(function, (self, *args), named)


def _power(self: Deferred, exponent: Value) -> Value:
    ufunc = power_by(self.dtype, exponent)
    return deferred(ufunc, (self, exponent)[: ufunc.nin], {})


for _name, _ufunc in (_BINARY | _OTHERS).items():
    setattr(Deferred, f"__{_name}__", _operator(_ufunc))
for _name, _ufunc in _BINARY.items():
    setattr(Deferred, f"__r{_name}__", _reflected(_ufunc))
    setattr(Deferred, f"__i{_name}__", _changed)
for _name in (
    *("clip", "round", "copy", "sum", "mean", "prod", "max", "min", "any", "all", "std", "var", "argmax", "argmin"),
    *("cumsum", "cumprod", "ravel", "swapaxes", "squeeze"),
):
    setattr(Deferred, _name, _method(getattr(np, _name)))
for _name, _operation in (
    ("__pow__", _power),
    ("__matmul__", lambda self, other: np.matmul(self, other)),
    ("__rmatmul__", lambda self, other: np.matmul(other, self)),
    ("astype", _method(np.ndarray.astype)),
    ("conj", _operator(np.conjugate)),
    ("conjugate", _operator(np.conjugate)),
):
    setattr(Deferred, _name, _operation)
