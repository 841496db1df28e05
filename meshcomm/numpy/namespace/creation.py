"""NumPy's functions that create arrays: here they create tensors, and take ``layout=`` besides NumPy's arguments.

Without ``layout=`` the rule of `meshcomm.numpy.namespace.rule` chooses the layout. All ranks pass the same arguments,
and nothing is sent.
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
from meshcomm.numpy.namespace.making import create_by_blocks, for_program, from_data, from_equal, from_small
from meshcomm.numpy.namespace.rule import WHOLE_BELOW

CreationFunction = TypeVar("CreationFunction", bound=Callable[..., object])

OWN_FUNCTIONS: dict[str, Callable[..., object]] = {}
"""The functions here, by NumPy's names."""

_SMALL_SIZE = WHOLE_BELOW // 16  # elements: fewer of any usual dtype stay below WHOLE_BELOW


def register(function: CreationFunction) -> CreationFunction:
    """Register *function* by its name, and add the docstring of NumPy's function of this name."""
    name = function.__name__
    OWN_FUNCTIONS[name] = function
    function.__module__, function.__qualname__ = "meshcomm.numpy", name
    numpy_doc = (getdoc(getattr(np, name)) or "").partition("\nExamples\n")[0].partition(">>>")[0]
    function.__doc__ = f"{function.__doc__}\n\nNumPy says::\n\n{indent(numpy_doc, '    ')}"
    return function


# -- filled with one value --------------------------------------------------------------------------------------------


def _filled(
    name: str, shape: ShapeLike, dtype: DTypeLike | None, device: Device | None, order: str = "C"
) -> Array | DTensor:
    make: Callable[..., DTensor] = getattr(create, name)
    try:
        probe = untyped_np.empty(shape, dtype)  # NumPy's errors; the memory of a large array is not touched
    except MemoryError:
        lengths, out_dtype = as_shape(shape), np.dtype(dtype)
        return make(lengths, out_dtype, layout_on(device, lengths, out_dtype))
    if device is None and (probe.nbytes < WHOLE_BELOW or probe.dtype.hasobject):
        return from_equal(getattr(untyped_np, "zeros" if name == "empty" else name)(shape, dtype, order=order))
    tensor = make(probe.shape, probe.dtype, layout_on(device, probe.shape, probe.dtype))
    return for_program(tensor) if device is None else tensor


def _creator(name: str, text: str) -> Callable[..., Array | DTensor]:
    # A small array from `empty` has zeros, as arbitrary content could differ between ranks.
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
        target = device if layout is None else layout
        if target is None and (type(shape) is int or type(shape) is tuple):
            size = shape if isinstance(shape, int) else prod(shape)
            if size < _SMALL_SIZE and (small_array := create_array(shape, dtype, order)).nbytes < WHOLE_BELOW:
                return from_small(small_array)
        return _filled(name, shape, dtype, target, order)

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
    """Return a tensor of *fill_value*: a number, or an array that broadcasts to *shape*."""
    out_dtype = np.dtype(dtype) if dtype is not None else untyped_np.asarray(fill_value).dtype
    return _filled_with(_filled("empty", shape, out_dtype, device if layout is None else layout, order), fill_value)


def _filled_with(target: Array | DTensor, fill_value: ArrayLike) -> Array | DTensor:
    if isinstance(target, DTensor) and np.ndim(fill_value) == 0:
        scalar = _as_number(fill_value)
        map_into(lambda block: setitem(block, ..., scalar), target)
    else:
        target[...] = fill_value
    return target


def _filled_like(
    name: str, a: Value, dtype: DTypeLike | None, shape: ShapeLike | None, device: Device | None
) -> Value:
    if device is None or not isinstance(a, DTensor):
        base_name = "zeros" if name == "empty" and not isinstance(a, DTensor) else name
        return as_tensors(getattr(untyped_np, f"{base_name}_like")(a, dtype, shape=shape), device)
    return _filled(name, a.shape if shape is None else shape, dtype or a.dtype, layout_moved_to(a.layout, device))


def _like_creator(name: str, text: str) -> Callable[..., Value]:
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


zeros_like, ones_like = (
    _like_creator("zeros", "Return a tensor of zeros"),
    _like_creator("ones", "Return a tensor of ones"),
)


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
    return _filled_with(empty_like(a, dtype, shape=shape, device=device, layout=layout), fill_value)


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
        return _program_result(
            object, untyped_np.array(object, dtype, copy=copy, order=order, subok=subok, ndmin=ndmin), None
        )
    if isinstance(object, DTensor):
        result = _convert_tensor(object, dtype, copy, layout)
    elif _has_tensors(object):
        result = _stacked_list(object, dtype, layout)
    else:
        data = untyped_np.array(
            object, dtype, order="C" if order != "F" else order, **({"ndmax": ndmax} if ndmax else {})
        )
        result = from_data(data, layout)
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
    """Return *a* as a tensor; a tensor is returned unchanged. The result shares the memory of a small array.

    Collective if a tensor moves to another *device* or *layout*. ``ValueError`` for ``copy=False`` if each rank would
    copy its block.
    """
    target = device if layout is None else layout
    if isinstance(a, DTensor):
        return _convert_tensor(a, dtype, copy, target)
    if _has_tensors(a):
        return _stacked_list(a, dtype, target)
    data: Array = (
        untyped_np.asanyarray(a, dtype, order, copy=copy)
        if type(a) is WholeArray
        else untyped_np.asarray(a, dtype, order, copy=copy)
    )
    if data is a and type(a) is WholeArray and target is None:
        return data
    if copy is False and (target is not None or data.nbytes >= WHOLE_BELOW):
        raise ValueError(f"asarray: a tensor does not share memory with a {type(a).__name__}; copy=False cannot be")
    return from_data(data, target)


_target = refusable(layout_moved_to)  # its error may be on one rank only, while others move the tensor


def _convert_tensor(
    tensor: DTensor, dtype: DTypeLike | None, copy: bool | None, device: Device | None
) -> Array | DTensor:
    layout = tensor.layout if device is None else _target(tensor.layout, device)
    is_cast = dtype is not None and tensor.dtype != np.dtype(dtype)
    is_in_layout = layout == tensor.layout
    if copy is False and (is_cast or not is_in_layout):
        target_text = f"dtype {np.dtype(dtype)}" if is_cast else f"layout {layout.specs_text} on the {layout.mesh}"
        raise ValueError(f"asarray: a tensor in {target_text} is a copy; copy=False cannot be")
    result = tensor if is_in_layout else relayout(tensor, layout)
    if is_cast:
        return result.astype(np.dtype(dtype))
    return result.copy() if copy and result is tensor else result


def _stacked_list(x: Value, dtype: DTypeLike | None, device: Device | None) -> Array | DTensor:
    """Return a list of tensors stacked to one tensor; for a *dtype* of objects an array, as no tensor has objects."""
    if dtype is not None and untyped_np.dtype(dtype).hasobject:
        if len({untyped_np.shape(item) for item in x}) == 1:
            return np.array([np.asarray(item) for item in x], dtype)
        objects = np.empty(len(x), dtype)
        for i, item in enumerate(x):
            objects[i] = item
        return objects
    return _convert_tensor(untyped_np.stack([array(item) for item in x]), dtype, None, device)


def _has_tensors(x: object) -> bool:
    """Return whether nested lists contain tensors; only the first list of each depth is searched."""
    while isinstance(x, list | tuple) and x:
        if any(isinstance(item, DTensor) for item in x):
            return True
        x = x[0]
    return False


def _program_result(x: object, result: Array, device: Device | None) -> Array | DTensor:
    """Return NumPy's *result* for *x* as a tensor or array of the program; a masked array, for example, stays one."""
    is_plain = type(result) is np.ndarray or (type(result) is WholeArray and result is not x)
    if device is None and not is_plain:
        return result
    return from_data(np.asarray(result), device)


def _converter(name: str) -> Callable[..., Array | DTensor]:
    function = getattr(np, name)

    @wraps(function)
    def convert(
        a: Value, *args: Value, device: Device | None = None, layout: Layout | None = None, **kwargs: Value
    ) -> Value:
        target = device if layout is None else layout
        if isinstance(a, DTensor) or _has_tensors(a):
            tensor = asarray(a, args[0] if args else kwargs.get("dtype"), device=target, copy=kwargs.get("copy"))
            must_be_contiguous = name in ("ascontiguousarray", "require") and isinstance(tensor, DTensor)
            return tensor.copy() if must_be_contiguous and not tensor.flags.c_contiguous else tensor
        return _program_result(a, function(a, *args, **kwargs), target)

    convert.__doc__ = f"Return what numpy.{name} returns; of a tensor a tensor, in C order."
    return register(convert)


asanyarray, ascontiguousarray = _converter("asanyarray"), _converter("ascontiguousarray")
asfortranarray, require = _converter("asfortranarray"), _converter("require")


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
    """Return an array of another library as a tensor, by DLPack. Every rank passes the whole array."""
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
    """Return the numbers from *start* up to *stop*, *step* apart, with the same bits as NumPy."""
    target = device if layout is None else layout
    if stop is step is start is target is None and type(start_or_stop) is int and start_or_stop <= _SMALL_SIZE:
        return from_small(untyped_np.arange(start_or_stop, dtype=dtype))
    start_arg = start_or_stop if start is None else start
    if (start is None and start_arg is None) or (stop is None and start is not None):  # NumPy's errors
        arguments = {"start": start, "stop": stop, "step": step, "dtype": dtype}
        return from_equal(
            untyped_np.arange(**{key: value for key, value in arguments.items() if value is not None}), target
        )
    begin, end = map(_as_number, (0, start_arg) if stop is None else (start_arg, stop))
    stride = 1 if step is None else _as_number(step)
    count = _step_count(begin, end, stride)
    if count * 8 < WHOLE_BELOW or (dtype is not None and np.dtype(dtype).kind not in "iuf"):
        limits = (end,) if stop is step is None else (begin, end) if step is None else (begin, end, stride)
        return from_equal(untyped_np.arange(*limits, dtype=dtype), target)
    # As in NumPy, the first two numbers are exact, and the others are extrapolated from them.
    out_dtype = np.dtype(dtype) if dtype is not None else np.asarray([begin, end, stride]).dtype
    seeds, wide_dtype = (
        np.array([begin, begin + stride]).astype(out_dtype),
        np.dtype(np.float32) if out_dtype == np.float16 else out_dtype,
    )
    first, second = seeds.astype(wide_dtype)

    def numbers_of_block(slices: tuple[slice, ...]) -> Array:
        index = untyped_np.arange(slices[0].start, slices[0].stop)
        with np.errstate(over="ignore"):  # descending unsigned integers wrap around
            block: Array = (first + index.astype(wide_dtype) * (second - first)).astype(out_dtype)
        block[index < 2] = seeds[index[index < 2]]
        return block

    return create_by_blocks((count,), out_dtype, target, numbers_of_block)


def _step_count(start: object, stop: Value, step: object) -> int:
    """Return the number of steps from *start* to *stop*; 0 unless all are ordinary numbers."""
    if all(isinstance(x, int) for x in (start, stop, step)) and step:
        return -((start - stop) // step)
    are_numbers = all(isinstance(x, int | float | np.int64) for x in (start, stop, step)) and step
    return ceil((stop - start) / step) if are_numbers else 0


def _as_number(x: object) -> Value:
    return x.item() if isinstance(x, DTensor) else x


_DATA_FUNCTIONS = frozenset(
    (
        *("frombuffer", "fromiter", "fromregex", "fromstring", "fromfile", "loadtxt", "genfromtxt"),
        *("tile", "repeat", "copy"),
    )
)
"""Functions whose data may differ between ranks."""


def _by_each_rank(name: str) -> Callable[..., Value]:
    """Return NumPy's function *name* for tensors: each rank computes the whole result, which then becomes tensors."""
    function = getattr(np, name)

    @wraps(function)
    def create(*args: Value, layout: Layout | None = None, **kwargs: Value) -> Value:
        kwargs.pop("like", None)
        if name == "frombuffer":
            refuse_as_buffer("numpy.frombuffer", args)
        return as_tensors(function(*args, **kwargs), layout, from_data if name in _DATA_FUNCTIONS else from_equal)

    create.__doc__ = (
        f"Return what numpy.{name} returns, as tensors. Each rank makes all of it, unless it takes tensors."
    )
    return register(create)


def as_tensors(result: Value, device: Device | None = None, make: Callable[..., object] = from_equal) -> Value:
    """Return a result of NumPy with its arrays converted to tensors by *make*, also in tuples and lists."""
    if type(result) is np.ndarray or (type(result) is WholeArray and device is not None):
        return make(result, device)
    if type(result) in (tuple, list):
        return type(result)(as_tensors(item, device, make) for item in result)
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
    """Return *num* numbers from *start* to *stop*, evenly spaced, with the same bits as NumPy."""
    target = device if layout is None else layout
    if num <= _SMALL_SIZE and type(start) in (int, float) and type(stop) in (int, float):
        return as_tensors(untyped_np.linspace(start, stop, num, endpoint, retstep, dtype, axis), target)
    begin, end = (_as_number(x) if np.ndim(x) == 0 else np.asarray(x) for x in (start, stop))
    is_small, are_scalars = num * 8 < WHOLE_BELOW, np.ndim(begin) == 0 and np.ndim(end) == 0
    if is_small or not are_scalars or not np.isscalar(begin):
        return as_tensors(untyped_np.linspace(begin, end, num, endpoint, retstep, dtype, axis), target)
    ends, step = untyped_np.linspace(begin, end, 2, endpoint, True, dtype)  # checks the arguments
    offset, gaps = np.asarray(begin) * 1.0, num - 1 if endpoint else num
    delta = np.asarray(end) - offset
    step = delta / gaps

    def block(slices: tuple[slice, ...]) -> Array:
        index = untyped_np.arange(slices[0].start, slices[0].stop).astype(step.dtype)
        numbers: Array = (index / gaps * delta if step == 0 else index * step) + offset
        if endpoint and slices[0].stop == num:
            numbers[-1:] = end
        return (np.floor(numbers) if ends.dtype.kind in "iu" else numbers).astype(ends.dtype)

    samples = create_by_blocks((num,), ends.dtype, target, block)
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
    target = device if layout is None else layout
    shape, out_dtype = (int(N), int(N if M is None else M)), np.dtype(dtype)

    def block(slices: tuple[slice, ...]) -> Array:
        rows, columns = slices
        lengths = (rows.stop - rows.start, columns.stop - columns.start)
        return np.eye(*lengths, k=k + rows.start - columns.start, dtype=out_dtype)

    if out_dtype.hasobject or prod(shape) * out_dtype.itemsize < WHOLE_BELOW:
        return from_equal(untyped_np.eye(*shape, k, out_dtype), target)
    return create_by_blocks(shape, out_dtype, target, block)


@register
def identity(
    n: int, dtype: DTypeLike | None = None, *, like: object = None, layout: Layout | None = None
) -> Array | DTensor:
    """Return the identity matrix of *n* rows."""
    return eye(n, dtype=float if dtype is None else dtype, layout=layout)


# -- computed whole on each rank, then cut ----------------------------------------------------------------------------

for _name in (
    *("bartlett", "blackman", "hamming", "hanning", "kaiser", "geomspace", "logspace", "tri", "vander", "diag"),
    *("diagflat", "frombuffer", "fromiter", "fromregex", "fromstring", "fromfile", "loadtxt"),
    *("genfromtxt", "tile", "repeat", "kron", "outer", "pad", "resize", "ix_", "diag_indices", "tril_indices"),
    *("triu_indices", "mask_indices", "unravel_index", "broadcast_to", "copy"),
    *("block", "concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"),
    *("concat", "unpackbits", "array_split"),
):
    _by_each_rank(_name)
