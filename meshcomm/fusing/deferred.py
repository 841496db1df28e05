"""The arrays that a fused function gets instead of large plain ones: elementwise operations wait, as on tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from meshcomm.core._callers import warning_at_program
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._conditions import may_wait
from meshcomm.core.arrays._evaluation import array_of, reduce_pieces
from meshcomm.core.arrays._expressions import Expression
from meshcomm.core.arrays._recipes import is_large
from meshcomm.core.arrays._waiting import compute_waiting, expressed
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.folds import Folding
from meshcomm.core.arrays.operators import power_ufunc

_BY_ELEMENTS: frozenset[object] = frozenset(
    (np.where, np.clip, np.round, np.nan_to_num, np.isclose, np.angle, np.sinc)
)
"""Elementwise functions besides universal ones."""

_TOTALS: dict[Value, np.ufunc] = {
    np.sum: np.add,
    np.mean: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.min: np.minimum,
    np.any: np.logical_or,
    np.all: np.logical_and,
}
"""Reductions computed in the same pass as their operand, and the ufuncs that merge their shares of pieces."""


class Deferred(NDArrayOperatorsMixin):
    """An array, or an operation that waits: it is computed when any but an elementwise operation needs it.

    Parameters
    ----------
    value: the array or expression, with its axes in memory order
    dtype, shape: dtype and shape of the array that this stands for
    order: its axes in memory order; None for C order
    is_reduced: True if a reduction has computed the value without storing it; then the next use stores it
    """

    __slots__ = ("dtype", "is_reduced", "order", "shape", "value")
    __hash__ = None  # type: ignore[assignment]  # as for an array: == is elementwise
    is_fused = True  # NumPy's functions of tensors and this class are left to this class

    def __init__(self, value: Value, dtype: DType, shape: Shape, order: tuple[int, ...] | None) -> None:
        self.value, self.dtype, self.shape, self.order, self.is_reduced = value, dtype, shape, order, False

    def array(self) -> Array:
        """Return the array; compute it if it waits."""
        array: Array = array_of(self.value)
        self.value = array
        return array if self.order is None else array.transpose(np.argsort(self.order))

    def operand_for(self, shape: Shape, order: tuple[int, ...] | None) -> Value:
        """Return the value for an operation of this *shape* and *order*: an expression if both fit, else an array."""
        if self.is_reduced or self.shape != shape or self.order != order:
            return _reordered(self.array(), shape, order)
        return self.value

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def astype(self, dtype: Value, *args: object, **kwargs: object) -> Value:
        """Return the elements in another dtype."""
        new_dtype = np.dtype(dtype)
        if (
            args
            or kwargs
            or not _waits(self.shape, [self.dtype, new_dtype])
            or (self.dtype.kind == "c" and new_dtype.kind != "c")
        ):
            return call_on_arrays(np.ndarray.astype, (self, dtype, *args), kwargs)
        return _deferred_operation(_cast, [self], self.shape, new_dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> Value:
        if method != "__call__" or kwargs or ufunc.nout > 1 or ufunc.signature is not None:
            return call_on_arrays(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)
        return _by_elements(ufunc, inputs, {})

    def __array_function__(
        self, function: Callable[..., object], types: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Value:
        if function in _TOTALS and type(args[0]) is Deferred:
            return _reduced(function, args[0], args[1:], kwargs)
        if function in _BY_ELEMENTS and len(args) > (function is np.where) * 2 and {"out", "where"}.isdisjoint(kwargs):
            return _by_elements(function, args, kwargs)
        return call_on_arrays(function, args, kwargs)

    def __getattr__(self, name: str) -> Value:
        value = getattr(self.array(), name)
        return (lambda *args, **kwargs: call_on_arrays(value, args, kwargs)) if callable(value) else operand(value)

    def __getitem__(self, index: object) -> Value:
        return operand(self.array()[compute_nested(index)])

    def __setitem__(self, index: object, value: object) -> None:
        compute_waiting()
        self.array()[compute_nested(index)] = compute_nested(value)

    def __array__(self, dtype: Value = None, copy: bool | None = None) -> Array:
        compute_waiting()
        return np.array(self.array(), dtype, copy=copy)

    def __pow__(self, exponent: object) -> Value:
        ufunc = power_ufunc(self.dtype, exponent)
        return ufunc(*(self, exponent)[: ufunc.nin])

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[object]:
        return map(operand, self.array())

    def __bool__(self) -> bool:
        return bool(self.array())

    def __repr__(self) -> str:
        return repr(self.array())


def _total_method(function: Callable[..., object]) -> object:
    return lambda self, *args, **kwargs: _reduced(function, self, args, kwargs)


for _function in _TOTALS:
    setattr(Deferred, _function.__name__, _total_method(_function))
for _function in (np.clip, np.round):
    setattr(Deferred, _function.__name__, lambda self, *args, _call=_function, **kwargs: _call(self, *args, **kwargs))
for _name in ("__int__", "__float__", "__complex__", "__index__", "__contains__", "__format__"):
    setattr(Deferred, _name, lambda self, *args, _name=_name: getattr(self.array(), _name)(*args))


def operand(x: object) -> Value:
    """Return a large array of numbers as a `Deferred`, on which operations wait; anything else unchanged."""
    x = x.view(np.ndarray) if type(x) is np.memmap else x
    if type(x) is not np.ndarray or not is_large(x.shape, [x.dtype]):
        return x
    order = None if x.flags.c_contiguous else tuple(sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])))
    order = None if order == (*range(x.ndim),) else order
    return Deferred(_reordered(x, x.shape, order), x.dtype, x.shape, order)


def compute_nested(x: object) -> Value:
    """Replace each `Deferred` in nested tuples, lists and dicts by its array."""
    if type(x) is Deferred:
        return x.array()
    if type(x) is dict:
        return {key: compute_nested(value) for key, value in x.items()}
    if isinstance(x, tuple | list):
        items = [compute_nested(value) for value in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def call_on_arrays(function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> Value:
    """Return the result of a function of arrays. It may write to them: so all that waits is computed first."""
    compute_waiting()
    result = warning_at_program(function)(*compute_nested([*args]), **compute_nested(dict(kwargs)))
    return tuple(map(operand, result)) if type(result) is tuple else operand(result)


def _by_elements(function: Callable[..., Value], args: Sequence[Value], kwargs: Mapping[str, Value]) -> object:
    """Return the result of an elementwise function of arrays and numbers; it waits if it is large."""
    args = [np.asarray(x) if type(x) is list else x[()] if type(x) is np.ndarray and not x.ndim else x for x in args]
    if any(isinstance(x, DTensor | np.ma.MaskedArray) for x in args) or any(map(_is_array, kwargs.values())):
        return call_on_arrays(function, args, kwargs)
    samples = [np.empty((0,) * (x.ndim > 0), x.dtype) if _is_array(x) else x for x in args]
    dtype = np.asarray(function(*samples, **kwargs)).dtype
    shape = np.broadcast_shapes(*[x.shape for x in args if _is_array(x)])
    if not _waits(shape, [dtype, *(x.dtype for x in args if _is_array(x))]):
        return call_on_arrays(function, args, kwargs)
    return _deferred_operation(
        function if isinstance(function, np.ufunc) else _with_out(function, kwargs), args, shape, dtype
    )


def _is_array(x: object) -> bool:
    return isinstance(x, Deferred | np.ndarray)


def _waits(shape: Shape, dtypes: list[DType]) -> bool:
    return may_wait() and is_large(shape, dtypes)


def _deferred_operation(
    function: Callable[..., object], args: Sequence[Value], shape: Shape, dtype: DType
) -> Deferred:
    order = next((x.order for x in args if type(x) is Deferred and x.shape == shape), None)
    values = [
        x.operand_for(shape, order) if type(x) is Deferred else _reordered(x, shape, order) if _is_array(x) else x
        for x in args
    ]
    lengths = shape if order is None else tuple(shape[axis] for axis in order)
    return Deferred(expressed(function, values, lengths, dtype), dtype, shape, order)


def _reordered(x: Array, shape: Shape, order: tuple[int, ...] | None) -> Array:
    """Return *x* broadcast to *shape*, with its axes in *order*."""
    x = x if x.shape == shape else np.broadcast_to(x, shape)
    return x if order is None else x.transpose(order)


def _with_out(function: Callable[..., Value], kwargs: Mapping[str, Value]) -> Callable[..., None]:
    return lambda *operands, out: np.copyto(out, function(*operands, **kwargs))


def _cast(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


def _reduced(
    function: Callable[..., Value], x: Deferred, args: Sequence[Value], kwargs: Mapping[str, Value]
) -> object:
    """Return a reduction of *x*, without storing *x*; the next use of *x* stores it."""
    axis = args[0] if args else kwargs.get("axis")
    is_plain = not args[1:] and kwargs.keys() <= {"axis"} and (axis is None or type(axis) is int)
    if not is_plain or not isinstance(x.value, Expression) or x.is_reduced or (axis is not None and x.order):
        return call_on_arrays(function, (x, *args), kwargs)
    x.is_reduced = True
    axes = (*range(x.ndim),) if axis is None else (axis % x.ndim,)
    reduced_axis, ufunc, count = (None if axis is None else axes[0], _TOTALS[function], prod(x.shape[a] for a in axes))
    dtype = np.asarray(function(np.ones((1,) * x.ndim, x.dtype), axis=reduced_axis)).dtype

    def reduce(block: Array) -> Array:
        return np.asarray(function(block, axis=reduced_axis))

    def share(piece: Array) -> Array:
        return np.asarray(ufunc.reduce(piece, axis=reduced_axis, dtype=dtype))

    def finish(total: Array) -> Array:
        return np.asarray((total[()] / np.intp(count)).astype(dtype)) if function is np.mean else total

    return operand(reduce_pieces(x.value, reduce, axes, dtype, Folding(share, ufunc, axes, dtype, finish))[()])
