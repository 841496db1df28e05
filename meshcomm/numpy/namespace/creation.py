"""NumPy's functions that make arrays: here they make tensors, and take ``layout=`` beside NumPy's arguments.

Without ``layout=`` the rule of `meshcomm.numpy.namespace.rule` says how a tensor is cut. All ranks pass the same
arguments, and nothing is sent.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import getdoc
from math import prod
from operator import setitem
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import changed
from meshcomm.core._arguments import as_shape
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import WHOLE_BELOW
from meshcomm.core._types import Array, DType, Shape, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.namespace.making import by_blocks, layout_of, of_array, of_data

Made = TypeVar("Made", bound=Callable[..., Any])

_numpys: Any = np
OWN: dict[str, Callable[..., Any]] = {}
"""The functions here, by NumPy's names."""

_FEW = WHOLE_BELOW // 16  # numbers of any dtype, which are made at once


def own(function: Made) -> Made:
    """Register *function*, and give it the text of NumPy's function of this name."""
    name = function.__name__
    OWN[name] = function
    function.__module__ = "meshcomm.numpy"
    numpys = (getdoc(getattr(np, name)) or "").partition("\nExamples\n")[0].partition(">>>")[0]
    function.__doc__ = f"{function.__doc__}\n\nNumPy says:\n\n{numpys}"
    return function


def _is_small(shape: Shape, dtype: DType) -> bool:
    """Return whether every rank makes all of an array of *shape* and *dtype*."""
    return prod(shape) * dtype.itemsize < WHOLE_BELOW


# -- filled with one value --------------------------------------------------------------------------------------------


def _filled(name: str, shape: ShapeLike, dtype: DTypeLike | None, layout: Layout | None) -> Value:
    try:
        probe = _numpys.empty(shape, dtype)  # NumPy's errors; of a large array, no memory is touched
    except MemoryError:
        return getattr(create, name)(shape, dtype, layout_of(as_shape(shape), np.dtype(dtype), layout))
    if layout is None and (probe.nbytes < WHOLE_BELOW or probe.dtype.hasobject):
        return of_array(getattr(_numpys, name)(shape, dtype))
    return getattr(create, name)(probe.shape, probe.dtype, layout_of(probe.shape, probe.dtype, layout))


def _filler(name: str, text: str) -> Callable[..., Value]:
    def made(
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        order: str = "C",
        *,
        device: object = None,
        like: object = None,
        layout: Layout | None = None,
    ) -> Value:
        return _filled(name, shape, dtype, layout)

    made.__name__, made.__doc__ = name, text
    return own(made)


zeros, ones = _filler("zeros", "Return a tensor of zeros."), _filler("ones", "Return a tensor of ones.")
empty = _filler("empty", "Return a tensor with any content.")


@own
def full(
    shape: ShapeLike,
    fill_value: Value,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: object = None,
    like: object = None,
    layout: Layout | None = None,
) -> Value:
    """Return a tensor of *fill_value*: a number, or what broadcasts to *shape*."""
    kind = np.dtype(dtype) if dtype is not None else _numpys.asarray(fill_value).dtype
    made = _filled("empty", shape, kind, layout)
    if isinstance(made, DTensor) and np.ndim(fill_value) == 0:
        number = fill_value.item() if isinstance(fill_value, DTensor) else fill_value
        changed(lambda block: setitem(block, ..., number), made)
    else:
        made[...] = fill_value
    return made


# -- from arrays ------------------------------------------------------------------------------------------------------


@own
def array(
    object: Value,
    dtype: DTypeLike | None = None,
    *,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    ndmax: int = 0,
    like: Value = None,
    layout: Layout | None = None,
) -> Value:
    """Return a tensor of an array, of lists, or of tensors. Collective if there are tensors in lists."""
    if isinstance(object, DTensor):
        made = _of_tensor(object, dtype, copy, layout)
    elif _has_tensors(object):
        made = _of_tensor(_numpys.stack([array(each) for each in object]), dtype, None, layout)
    else:
        held = _numpys.array(
            object, dtype, order="C" if order != "F" else order, **({"ndmax": ndmax} if ndmax else {})
        )
        made = of_data(held, layout)
    return made[(None,) * (ndmin - made.ndim)] if made.ndim < ndmin else made


@own
def asarray(
    a: Value,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: object = None,
    copy: bool | None = None,
    like: object = None,
    layout: Layout | None = None,
) -> Value:
    """Return *a* as a tensor; a tensor as it is. Of a small array, it shares the memory of that."""
    if isinstance(a, DTensor):
        return _of_tensor(a, dtype, copy, layout)
    if _has_tensors(a):
        return array(a, dtype, layout=layout)
    return of_data(_numpys.asarray(a, dtype, copy=copy), layout)


def _of_tensor(tensor: DTensor, dtype: DTypeLike | None, copy: bool | None, layout: Layout | None) -> Value:
    made: Value = tensor
    if dtype is not None and tensor.dtype != np.dtype(dtype):
        made = tensor.astype(dtype)
    if layout is not None and made.layout != layout:
        made = relayout(made, layout)
    return made.copy() if copy and made is tensor else made


def _has_tensors(x: Value) -> bool:
    """Return whether lists have tensors in them: looked for in the first list of each depth."""
    while isinstance(x, list | tuple) and x:
        if any(isinstance(each, DTensor) for each in x):
            return True
        x = x[0]
    return False


def _as_asarray(name: str) -> Callable[..., Value]:
    def made(
        a: Value, dtype: DTypeLike | None = None, *args: object, layout: Layout | None = None, **kwargs: Value
    ) -> Value:
        given = {key: kwargs[key] for key in ("copy",) if key in kwargs}
        return asarray(a, dtype, layout=layout, **given)

    made.__name__ = name
    made.__doc__ = "Return *a* as a tensor, as `asarray` does: tensors have C order."
    return own(made)


asanyarray, ascontiguousarray = _as_asarray("asanyarray"), _as_asarray("ascontiguousarray")
asfortranarray, require = _as_asarray("asfortranarray"), _as_asarray("require")


@own
def asarray_chkfinite(a: Value, dtype: DTypeLike | None = None, order: str | None = None) -> Value:
    """Return *a* as a tensor; ``ValueError`` if it has an infinity or a NaN. Collective."""
    made = asarray(a, dtype)
    if made.dtype.kind in "fc" and not _numpys.isfinite(made).all():
        raise ValueError("array must not contain infs or NaNs")
    return made


# -- numbers in a row -------------------------------------------------------------------------------------------------


@own
def arange(*args: Value, dtype: DTypeLike | None = None, layout: Layout | None = None, **kwargs: Value) -> Value:
    """Return the numbers from *start* up to *stop*, *step* apart, with NumPy's bits."""
    if len(args) == 1 and type(args[0]) is int and args[0] <= _FEW and not kwargs and layout is None:
        return of_array(_numpys.arange(args[0], dtype=dtype))
    given = {key: _number(each) for key, each in kwargs.items() if key in ("start", "stop", "step")}
    numbers = [_number(each) for each in args]
    few = [*numbers, *given.values()]
    first, last, step = ([0, *few[:1], 1] if len(few) == 1 else [*few, 1])[:3]
    known = all(isinstance(x, int | float | np.integer | np.floating) for x in few) and step
    count = int(np.ceil((last - first) / step)) if known and not (len(few) > 1 and given) else 0
    if count * 8 < WHOLE_BELOW or (dtype is not None and np.dtype(dtype).kind not in "iuf"):
        return of_array(_numpys.arange(*numbers, dtype=dtype, **given), layout)
    # As in NumPy, the first two numbers are exact, and the others go on from them.
    kind = np.dtype(dtype) if dtype is not None else np.asarray(few).dtype
    seeds, wide = np.array([first, first + step]).astype(kind), np.dtype(np.float32) if kind == np.float16 else kind
    base, second = seeds.astype(wide)

    def some(slices: tuple[slice, ...]) -> Array:
        index = _numpys.arange(slices[0].start, slices[0].stop)
        with np.errstate(over="ignore"):  # unsigned integers that go down wrap round
            block: Array = (base + index.astype(wide) * (second - base)).astype(kind)
        block[index < 2] = seeds[index[index < 2]]
        return block

    return by_blocks((count,), kind, layout, some)


def _number(x: Value) -> Value:
    return x.item() if isinstance(x, DTensor) else x


def _whole(name: str) -> Callable[..., Value]:
    """Return NumPy's function *name*, which each rank calls for all of its result: that is made into tensors."""
    numpys = getattr(np, name)

    @wraps(numpys)
    def made(*args: Value, layout: Layout | None = None, **kwargs: Value) -> Value:
        kwargs.pop("like", None)
        return _tensors(numpys(*args, **kwargs), layout)

    made.__doc__ = f"Return what numpy.{name} returns, as tensors. Each rank makes all of it, unless it takes tensors."
    return own(made)


def _tensors(made: Value, layout: Layout | None = None) -> Value:
    if type(made) is np.ndarray:
        return of_array(made, layout)
    if type(made) in (tuple, list):
        return type(made)(_tensors(each, layout) for each in made)
    return made


@own
def linspace(
    start: Value,
    stop: Value,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: object = None,
    layout: Layout | None = None,
) -> Value:
    """Return *num* numbers from *start* to *stop*, evenly spaced, with NumPy's bits."""
    if num <= _FEW and type(start) in (int, float) and type(stop) in (int, float):
        return _tensors(_numpys.linspace(start, stop, num, endpoint, retstep, dtype, axis), layout)
    first, last = (_number(x) if np.ndim(x) == 0 else np.asarray(x) for x in (start, stop))
    few, scalars = num * 8 < WHOLE_BELOW, np.ndim(first) == 0 and np.ndim(last) == 0
    if few or not scalars or not np.isscalar(first):
        return _tensors(_numpys.linspace(first, last, num, endpoint, retstep, dtype, axis), layout)
    ends, step = _numpys.linspace(first, last, 2, endpoint, True, dtype)  # checks the arguments
    begin, gaps = np.asarray(first) * 1.0, num - 1 if endpoint else num
    delta = np.asarray(last) - begin
    step = delta / gaps

    def block(slices: tuple[slice, ...]) -> Array:
        index = _numpys.arange(slices[0].start, slices[0].stop).astype(step.dtype)
        numbers: Array = (index / gaps * delta if step == 0 else index * step) + begin
        if endpoint and slices[0].stop == num:
            numbers[-1:] = last
        return (np.floor(numbers) if ends.dtype.kind in "iu" else numbers).astype(ends.dtype)

    made = by_blocks((num,), ends.dtype, layout, block)
    return (made, step) if retstep else made


# -- grids ------------------------------------------------------------------------------------------------------------


@own
def eye(
    N: int,  # noqa: N803 - NumPy's name
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DTypeLike = float,
    order: str = "C",
    *,
    device: object = None,
    like: object = None,
    layout: Layout | None = None,
) -> Value:
    """Return a matrix with ones on its diagonal number *k*, and zeros elsewhere."""
    shape, kind = (int(N), int(N if M is None else M)), np.dtype(dtype)

    def block(slices: tuple[slice, ...]) -> Array:
        rows, columns = slices
        lengths = (rows.stop - rows.start, columns.stop - columns.start)
        return _numpys.eye(*lengths, k=k + rows.start - columns.start, dtype=kind)  # type: ignore[no-any-return]

    if kind.hasobject or _is_small(shape, kind):
        return of_array(_numpys.eye(*shape, k, kind), layout)
    return by_blocks(shape, kind, layout, block)


@own
def identity(n: int, dtype: DTypeLike | None = None, *, like: object = None, layout: Layout | None = None) -> Value:
    """Return the identity matrix of *n* rows."""
    return eye(n, dtype=float if dtype is None else dtype, layout=layout)


@own
def indices(
    dimensions: Sequence[int], dtype: DTypeLike = int, sparse: bool = False, layout: Layout | None = None
) -> Value:
    """Return the indices of a grid: a tensor, or with *sparse* a tuple of them."""
    shape = tuple(map(int, dimensions))
    if sparse:
        return _tensors(_numpys.indices(shape, dtype, True), layout)

    def block(slices: tuple[slice, ...]) -> Array:
        inside = [_numpys.arange(each.start, each.stop, dtype=dtype) for each in slices[1:]]
        whole = _numpys.meshgrid(*inside, indexing="ij", copy=False)[slices[0]] if inside else []
        lengths = [each.stop - each.start for each in slices]
        return _numpys.array(whole, dtype).reshape(lengths)  # type: ignore[no-any-return]

    return by_blocks((len(shape), *shape), dtype, layout, block)


@own
def fromfunction(
    function: Callable[..., Value],
    shape: Sequence[int],
    *,
    dtype: DTypeLike = float,
    like: object = None,
    layout: Layout | None = None,
    **kwargs: Value,
) -> Value:
    """Return what *function* makes of the indices of a grid, which are tensors."""
    lengths = tuple(map(int, shape))
    cut = layout_of(lengths, np.dtype(dtype), layout)
    each = [
        by_blocks(lengths, dtype, cut, lambda slices, axis=axis: _along(axis, slices, dtype))  # type: ignore[misc]
        for axis in range(len(lengths))
    ]
    return function(*each, **kwargs)


def _along(axis: int, slices: Sequence[slice], dtype: DTypeLike) -> Array:
    """Return the numbers of the elements along *axis*, for a block of these slices."""
    lengths = [each.stop - each.start for each in slices]
    numbers = _numpys.arange(slices[axis].start, slices[axis].stop, dtype=dtype)
    line = numbers.reshape([-1 if number == axis else 1 for number in range(len(lengths))])
    return np.broadcast_to(line, lengths).copy()


@own
def meshgrid(*xi: Value, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Value:
    """Return the coordinates of the points of a grid, as a tuple of tensors that are cut as the rule says."""
    if sparse or not xi:
        return _tensors(_numpys.meshgrid(*map(asarray, xi), copy=copy, sparse=sparse, indexing=indexing))
    lines = [asarray(x).reshape(-1) for x in xi]
    order = [*range(len(lines))]
    if indexing == "xy":
        order[:2] = reversed(order[:2])
    elif indexing != "ij":
        raise ValueError("Valid values for `indexing` are 'xy' and 'ij'.")
    shape = tuple(lines[axis].size for axis in order)  # the exchange of two axes is its own inverse
    found = []
    for number, line in enumerate(lines):
        made = empty(shape, line.dtype)
        made[...] = line.reshape([-1 if axis == number else 1 for axis in order])
        found.append(made)
    return tuple(found)


class Grid:
    """``mgrid`` and ``ogrid``: the coordinates of the points of a grid, by slices."""

    def __init__(self, name: str) -> None:
        self._numpys: Value = getattr(np, name)
        self.sparse: bool = self._numpys.sparse

    def __getitem__(self, key: Value) -> Value:
        if self.sparse or not isinstance(key, tuple):
            return _tensors(self._numpys[key])
        lines = np.ogrid[key]
        shape = tuple(line.size for line in lines)

        def block(slices: tuple[slice, ...]) -> Array:
            cut = [
                line[tuple(s if n > 1 else slice(None) for s, n in zip(slices[1:], line.shape, strict=True))]
                for line in lines
            ]
            lengths = [each.stop - each.start for each in slices[1:]]
            return np.stack([np.broadcast_to(line, lengths) for line in cut[slices[0]]]).reshape([-1, *lengths])

        return by_blocks((len(lines), *shape), np.result_type(*lines), None, block)


class Joined:
    """``r_`` and ``c_``: rows and columns of numbers, arrays and tensors."""

    def __init__(self, name: str) -> None:
        self._numpys: Value = getattr(np, name)

    def __getitem__(self, key: Value) -> Value:
        return _tensors(self._numpys[key])

    def __len__(self) -> int:
        return 0


# -- what each rank makes all of, and then cuts -----------------------------------------------------------------------

for _name in (
    *("bartlett", "blackman", "hamming", "hanning", "kaiser", "geomspace", "logspace", "tri", "vander", "diag"),
    *("diagflat", "frombuffer", "fromiter", "fromregex", "fromstring", "from_dlpack", "fromfile", "loadtxt"),
    *("genfromtxt", "tile", "repeat", "kron", "outer", "pad", "resize", "ix_", "diag_indices", "tril_indices"),
    *("triu_indices", "mask_indices", "unravel_index", "broadcast_to", "copy", "zeros_like", "ones_like"),
    *("empty_like", "full_like", "block", "concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"),
    *("concat", "unpackbits", "array_split"),
):
    _whole(_name)
