"""NumPy's functions that make arrays: here they make tensors, and take ``layout=`` beside NumPy's arguments.

Without ``layout=`` the rule of `meshcomm.numpy.namespace.rule` says how a tensor is cut. All ranks pass the same
arguments, and nothing is sent.
"""

from collections.abc import Callable
from functools import wraps
from inspect import getdoc
from math import ceil, prod
from operator import setitem
from textwrap import indent
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.make import map_into
from meshcomm.blocks.tensor_numpy import untyped_np
from meshcomm.core._arguments import as_shape
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.scripted import refuse_as_buffer
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.numpy.namespace.arrays import WholeArray
from meshcomm.numpy.namespace.devices import Device, layout_moved_to, layout_on
from meshcomm.numpy.namespace.making import create_by_blocks, for_program, of_array, of_data, small
from meshcomm.numpy.namespace.rule import WHOLE_BELOW

CreationFunction = TypeVar("CreationFunction", bound=Callable[..., object])

OWN_FUNCTIONS: dict[str, Callable[..., object]] = {}
"""The functions here, by NumPy's names."""

_FEW = WHOLE_BELOW // 16  # numbers of any dtype, which are made at once


def register(function: CreationFunction) -> CreationFunction:
    """Register *function*, and give it the text of NumPy's function of this name."""
    name = function.__name__
    OWN_FUNCTIONS[name] = function
    function.__module__, function.__qualname__ = "meshcomm.numpy", name
    numpys = (getdoc(getattr(np, name)) or "").partition("\nExamples\n")[0].partition(">>>")[0]
    function.__doc__ = f"{function.__doc__}\n\nNumPy says::\n\n{indent(numpys, '    ')}"
    return function


# -- filled with one value --------------------------------------------------------------------------------------------


def _filled(
    name: str, shape: ShapeLike, dtype: DTypeLike | None, where: Device | None, order: str = "C"
) -> Array | DTensor:
    make: Callable[..., DTensor] = getattr(create, name)
    try:
        probe = untyped_np.empty(shape, dtype)  # NumPy's errors; of a large array, no memory is touched
    except MemoryError:
        lengths, kind = as_shape(shape), np.dtype(dtype)
        return make(lengths, kind, layout_on(where, lengths, kind))
    if where is None and (probe.nbytes < WHOLE_BELOW or probe.dtype.hasobject):
        return of_array(getattr(untyped_np, "zeros" if name == "empty" else name)(shape, dtype, order=order))
    tensor = make(probe.shape, probe.dtype, layout_on(where, probe.shape, probe.dtype))
    return for_program(tensor) if where is None else tensor


def _creator(name: str, text: str) -> Callable[..., Array | DTensor]:
    # A small array without a given content has zeros: other contents could differ between ranks.
    create_array: Callable[..., Array] = np.zeros if name == "empty" else getattr(np, name)

    def create(
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        order: str = "C",
        *,
        device: Device | None = None,
        like: object = None,
        layout: Layout | None = None,
    ) -> Array | DTensor:
        where = device if layout is None else layout
        if where is None and (type(shape) is int or type(shape) is tuple):
            size = shape if isinstance(shape, int) else prod(shape)
            if size < _FEW and (few := create_array(shape, dtype, order)).nbytes < WHOLE_BELOW:
                return small(few)
        return _filled(name, shape, dtype, where, order)

    create.__name__, create.__doc__ = name, text
    return register(create)


zeros, ones = _creator("zeros", "Return a tensor of zeros."), _creator("ones", "Return a tensor of ones.")
empty = _creator("empty", "Return a tensor with any content.")
type(WholeArray).empty = staticmethod(empty)  # np.ndarray(shape, dtype)


@register
def full(
    shape: ShapeLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    device: Device | None = None,
    like: object = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return a tensor of *fill_value*: a number, or what broadcasts to *shape*."""
    kind = np.dtype(dtype) if dtype is not None else untyped_np.asarray(fill_value).dtype
    return _with_value(_filled("empty", shape, kind, device if layout is None else layout, order), fill_value)


def _with_value(target: Array | DTensor, fill_value: ArrayLike) -> Array | DTensor:
    if isinstance(target, DTensor) and np.ndim(fill_value) == 0:
        number = _as_number(fill_value)
        map_into(lambda block: setitem(block, ..., number), target)
    else:
        target[...] = fill_value
    return target


def _filled_like(name: str, a: Value, dtype: DTypeLike | None, shape: ShapeLike | None, where: Device | None) -> Value:
    if where is None or not isinstance(a, DTensor):
        like = "zeros" if name == "empty" and not isinstance(a, DTensor) else name
        return as_tensors(getattr(untyped_np, f"{like}_like")(a, dtype, shape=shape), where)
    return _filled(name, a.shape if shape is None else shape, dtype or a.dtype, layout_moved_to(a.layout, where))


def _like_of(name: str, text: str) -> Callable[..., Value]:
    def create_like(
        a: Value,
        dtype: DTypeLike | None = None,
        order: str = "K",
        subok: bool = True,
        shape: ShapeLike | None = None,
        *,
        device: Device | None = None,
        layout: Layout | None = None,
    ) -> Value:
        return _filled_like(name, a, dtype, shape, device if layout is None else layout)

    create_like.__name__ = f"{name}_like"
    create_like.__doc__ = f"{text}, with the shape of *a*; of a tensor, by default with its layout."
    return register(create_like)


zeros_like, ones_like = _like_of("zeros", "Return a tensor of zeros"), _like_of("ones", "Return a tensor of ones")


@register
def empty_like(
    prototype: ArrayLike,
    /,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: Device | None = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return a tensor with any content, with the shape of *prototype*; of a tensor, by default with its layout."""
    return _filled_like("empty", prototype, dtype, shape, device if layout is None else layout)


@register
def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: Device | None = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return a tensor of *fill_value*, with the shape of *a*; of a tensor, by default with its layout."""
    return _with_value(empty_like(a, dtype, shape=shape, device=device, layout=layout), fill_value)


# -- from arrays ------------------------------------------------------------------------------------------------------


@register
def array(
    object: object,
    dtype: DTypeLike | None = None,
    *,
    copy: bool | None = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    ndmax: int = 0,
    like: object = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return a tensor of an array, of lists, or of tensors. Collective if there are tensors in lists."""
    if layout is None and isinstance(object, np.ndarray):
        return _of_numpys(
            object, untyped_np.array(object, dtype, copy=copy, order=order, subok=subok, ndmin=ndmin), None
        )
    if isinstance(object, DTensor):
        result = _of_tensor(object, dtype, copy, layout)
    elif _has_tensors(object):
        result = _stacked_list(object, dtype, layout)
    else:
        data = untyped_np.array(
            object, dtype, order="C" if order != "F" else order, **({"ndmax": ndmax} if ndmax else {})
        )
        result = of_data(data, layout)
    return result[(None,) * (ndmin - result.ndim)] if result.ndim < ndmin else result


@register
def asarray(
    a: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    device: Device | None = None,
    copy: bool | None = None,
    like: object = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return *a* as a tensor; a tensor as it is. Of a small array, it shares the memory of that.

    Collective if a tensor moves to another *device* or *layout*. ``ValueError`` for ``copy=False`` where each rank
    keeps a copy of its block.
    """
    where = device if layout is None else layout
    if isinstance(a, DTensor):
        return _of_tensor(a, dtype, copy, where)
    if _has_tensors(a):
        return _stacked_list(a, dtype, where)
    data: Array = (
        untyped_np.asanyarray(a, dtype, order, copy=copy)
        if type(a) is WholeArray
        else untyped_np.asarray(a, dtype, order, copy=copy)
    )
    if data is a and type(a) is WholeArray and where is None:
        return data
    if copy is False and (where is not None or data.nbytes >= WHOLE_BELOW):
        raise ValueError(f"asarray: a tensor does not share memory with a {type(a).__name__}; copy=False cannot be")
    return of_data(data, where)


_target = refusable(layout_moved_to)  # where a tensor has to move: another rank may move it


def _of_tensor(tensor: DTensor, dtype: DTypeLike | None, copy: bool | None, where: Device | None) -> Array | DTensor:
    layout = tensor.layout if where is None else _target(tensor.layout, where)
    other_dtype = dtype is not None and tensor.dtype != np.dtype(dtype)
    stays = layout == tensor.layout
    if copy is False and (other_dtype or not stays):
        other = f"dtype {np.dtype(dtype)}" if other_dtype else f"layout {layout.specs_text} on the {layout.mesh}"
        raise ValueError(f"asarray: a tensor in {other} is a copy; copy=False cannot be")
    result = tensor if stays else relayout(tensor, layout)
    if other_dtype:
        return result.astype(np.dtype(dtype))
    return result.copy() if copy and result is tensor else result


def _stacked_list(x: Value, dtype: DTypeLike | None, where: Device | None) -> Array | DTensor:
    """Return the tensor of a list of tensors; an array of objects if that is the *dtype*, as no tensor has objects."""
    if dtype is not None and untyped_np.dtype(dtype).hasobject:
        if len({untyped_np.shape(item) for item in x}) == 1:
            return np.array([np.asarray(item) for item in x], dtype)
        objects = np.empty(len(x), dtype)
        for number, item in enumerate(x):
            objects[number] = item
        return objects
    return _of_tensor(untyped_np.stack([array(item) for item in x]), dtype, None, where)


def _has_tensors(x: object) -> bool:
    """Return whether lists have tensors in them: looked for in the first list of each depth."""
    while isinstance(x, list | tuple) and x:
        if any(isinstance(item, DTensor) for item in x):
            return True
        x = x[0]
    return False


def _of_numpys(x: object, result: Array, where: Device | None) -> Array | DTensor:
    """Return what the program gets of what NumPy made of *x*: a masked array, for example, stays one."""
    is_plain = type(result) is np.ndarray or (type(result) is WholeArray and result is not x)
    if where is None and not is_plain:
        return result
    return of_data(np.asarray(result), where)


def _as_asarray(name: str) -> Callable[..., Array | DTensor]:
    numpys = getattr(np, name)

    @wraps(numpys)
    def convert(
        a: Value, *args: Value, device: Device | None = None, layout: Layout | None = None, **kwargs: Value
    ) -> Value:
        where = device if layout is None else layout
        if isinstance(a, DTensor) or _has_tensors(a):
            tensor = asarray(a, args[0] if args else kwargs.get("dtype"), device=where, copy=kwargs.get("copy"))
            is_asked = name in ("ascontiguousarray", "require") and isinstance(tensor, DTensor)
            return tensor.copy() if is_asked and not tensor.flags.c_contiguous else tensor
        return _of_numpys(a, numpys(a, *args, **kwargs), where)

    convert.__doc__ = f"Return what numpy.{name} returns; of a tensor a tensor, in C order."
    return register(convert)


asanyarray, ascontiguousarray = _as_asarray("asanyarray"), _as_asarray("ascontiguousarray")
asfortranarray, require = _as_asarray("asfortranarray"), _as_asarray("require")


@register
def asarray_chkfinite(a: ArrayLike, dtype: DTypeLike | None = None, order: str | None = None) -> Array | DTensor:
    """Return *a* as a tensor; ``ValueError`` if it has an infinity or a NaN. Collective."""
    result = asarray(a, dtype)
    if result.dtype.kind in "fc" and not untyped_np.isfinite(result).all():
        raise ValueError("array must not contain infs or NaNs")
    return result


@register
def from_dlpack(
    x: object, /, *, device: Device | None = None, copy: bool | None = None, layout: Layout | None = None
) -> Array | DTensor:
    """Return an array of another library as a tensor, by way of DLPack. Every rank passes the whole array."""
    return asarray(untyped_np.from_dlpack(x), device=device, copy=copy, layout=layout)


# -- numbers in a row -------------------------------------------------------------------------------------------------


@register
def arange(
    start_or_stop: ArrayLike | None = None,
    /,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    start: ArrayLike | None = None,
    device: Device | None = None,
    like: object = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return the numbers from *start* up to *stop*, *step* apart, with NumPy's bits."""
    where = device if layout is None else layout
    if stop is step is start is where is None and type(start_or_stop) is int and start_or_stop <= _FEW:
        return small(untyped_np.arange(start_or_stop, dtype=dtype))
    begin = start_or_stop if start is None else start
    if (start is None and begin is None) or (stop is None and start is not None):  # NumPy's errors
        arguments = {"start": start, "stop": stop, "step": step, "dtype": dtype}
        return of_array(
            untyped_np.arange(**{key: value for key, value in arguments.items() if value is not None}), where
        )
    first, last = map(_as_number, (0, begin) if stop is None else (begin, stop))
    by = 1 if step is None else _as_number(step)
    count = _count(first, last, by)
    if count * 8 < WHOLE_BELOW or (dtype is not None and np.dtype(dtype).kind not in "iuf"):
        few = (last,) if stop is step is None else (first, last) if step is None else (first, last, by)
        return of_array(untyped_np.arange(*few, dtype=dtype), where)
    # As in NumPy, the first two numbers are exact, and the others go on from them.
    kind = np.dtype(dtype) if dtype is not None else np.asarray([first, last, by]).dtype
    seeds, wide = np.array([first, first + by]).astype(kind), np.dtype(np.float32) if kind == np.float16 else kind
    base, second = seeds.astype(wide)

    def numbers_of_block(slices: tuple[slice, ...]) -> Array:
        index = untyped_np.arange(slices[0].start, slices[0].stop)
        with np.errstate(over="ignore"):  # unsigned integers that go down wrap round
            block: Array = (base + index.astype(wide) * (second - base)).astype(kind)
        block[index < 2] = seeds[index[index < 2]]
        return block

    return create_by_blocks((count,), kind, where, numbers_of_block)


def _count(first: object, last: Value, step: object) -> int:
    """Return how many steps from *first* stay before *last*; 0 if these are no common numbers."""
    if all(isinstance(x, int) for x in (first, last, step)) and step:
        return -((first - last) // step)
    are_numbers = all(isinstance(x, int | float | np.int64) for x in (first, last, step)) and step
    return ceil((last - first) / step) if are_numbers else 0


def _as_number(x: object) -> Value:
    return x.item() if isinstance(x, DTensor) else x


_OF_DATA = frozenset(
    (
        *("frombuffer", "fromiter", "fromregex", "fromstring", "fromfile", "loadtxt", "genfromtxt"),
        *("tile", "repeat", "copy"),
    )
)
"""Functions of data that may differ between ranks."""


def _by_all_ranks(name: str) -> Callable[..., Value]:
    """Return NumPy's function *name*, which each rank calls for all of its result: that is made into tensors."""
    numpys = getattr(np, name)

    @wraps(numpys)
    def create(*args: Value, layout: Layout | None = None, **kwargs: Value) -> Value:
        kwargs.pop("like", None)
        if name == "frombuffer":
            refuse_as_buffer("numpy.frombuffer", args)
        return as_tensors(numpys(*args, **kwargs), layout, of_data if name in _OF_DATA else of_array)

    create.__doc__ = (
        f"Return what numpy.{name} returns, as tensors. Each rank makes all of it, unless it takes tensors."
    )
    return register(create)


def as_tensors(result: Value, where: Device | None = None, make: Callable[..., object] = of_array) -> Value:
    """Return what NumPy has made with its arrays as tensors, which *make* makes, also in tuples and lists."""
    if type(result) is np.ndarray or (type(result) is WholeArray and where is not None):
        return make(result, where)
    if type(result) in (tuple, list):
        return type(result)(as_tensors(item, where, make) for item in result)
    return result


@register
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: Device | None = None,
    layout: Layout | None = None,
) -> Value:
    """Return *num* numbers from *start* to *stop*, evenly spaced, with NumPy's bits."""
    where = device if layout is None else layout
    if num <= _FEW and type(start) in (int, float) and type(stop) in (int, float):
        return as_tensors(untyped_np.linspace(start, stop, num, endpoint, retstep, dtype, axis), where)
    first, last = (_as_number(x) if np.ndim(x) == 0 else np.asarray(x) for x in (start, stop))
    few, scalars = num * 8 < WHOLE_BELOW, np.ndim(first) == 0 and np.ndim(last) == 0
    if few or not scalars or not np.isscalar(first):
        return as_tensors(untyped_np.linspace(first, last, num, endpoint, retstep, dtype, axis), where)
    ends, step = untyped_np.linspace(first, last, 2, endpoint, True, dtype)  # checks the arguments
    begin, gaps = np.asarray(first) * 1.0, num - 1 if endpoint else num
    delta = np.asarray(last) - begin
    step = delta / gaps

    def block(slices: tuple[slice, ...]) -> Array:
        index = untyped_np.arange(slices[0].start, slices[0].stop).astype(step.dtype)
        numbers: Array = (index / gaps * delta if step == 0 else index * step) + begin
        if endpoint and slices[0].stop == num:
            numbers[-1:] = last
        return (np.floor(numbers) if ends.dtype.kind in "iu" else numbers).astype(ends.dtype)

    samples = create_by_blocks((num,), ends.dtype, where, block)
    return (samples, step) if retstep else samples


# -- grids ------------------------------------------------------------------------------------------------------------


@register
def eye(
    N: int,  # noqa: N803 - NumPy's name
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DTypeLike = float,
    order: str = "C",
    *,
    device: Device | None = None,
    like: object = None,
    layout: Layout | None = None,
) -> Array | DTensor:
    """Return a matrix with ones on its diagonal number *k*, and zeros elsewhere."""
    where = device if layout is None else layout
    shape, kind = (int(N), int(N if M is None else M)), np.dtype(dtype)

    def block(slices: tuple[slice, ...]) -> Array:
        rows, columns = slices
        lengths = (rows.stop - rows.start, columns.stop - columns.start)
        return np.eye(*lengths, k=k + rows.start - columns.start, dtype=kind)

    if kind.hasobject or prod(shape) * kind.itemsize < WHOLE_BELOW:
        return of_array(untyped_np.eye(*shape, k, kind), where)
    return create_by_blocks(shape, kind, where, block)


@register
def identity(
    n: int, dtype: DTypeLike | None = None, *, like: object = None, layout: Layout | None = None
) -> Array | DTensor:
    """Return the identity matrix of *n* rows."""
    return eye(n, dtype=float if dtype is None else dtype, layout=layout)


# -- what each rank makes all of, and then cuts -----------------------------------------------------------------------

for _name in (
    *("bartlett", "blackman", "hamming", "hanning", "kaiser", "geomspace", "logspace", "tri", "vander", "diag"),
    *("diagflat", "frombuffer", "fromiter", "fromregex", "fromstring", "fromfile", "loadtxt"),
    *("genfromtxt", "tile", "repeat", "kron", "outer", "pad", "resize", "ix_", "diag_indices", "tril_indices"),
    *("triu_indices", "mask_indices", "unravel_index", "broadcast_to", "copy"),
    *("block", "concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"),
    *("concat", "unpackbits", "array_split"),
):
    _by_all_ranks(_name)
