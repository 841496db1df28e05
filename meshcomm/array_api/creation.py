"""The creation functions of the array API standard.

Each takes ``device=``, a mesh or a layout: see :func:`meshcomm.array_api.devices.layout_on`. Every rank passes
the same arguments and makes its own block; nothing is sent, and no rank makes the global array.
"""

from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.array_api.devices import Device, layout_on, moved
from meshcomm.array_api.functions import astype, target_on
from meshcomm.core._arguments import as_dtype, as_shape, integer, quote
from meshcomm.core._types import Array, DType, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import DTypeError, ShapeError

Real: TypeAlias = int | float
Scalar: TypeAlias = int | float | complex


def asarray(
    obj: DTensor | ArrayLike,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    copy: bool | None = None,
) -> DTensor:
    """Return *obj* as a tensor. Collective over the meshes if *obj* is a tensor that moves to another *device*.

    A tensor stays in its layout on its own mesh, and comes back as it is if nothing changes. Of an array, a number or
    nested lists, which every rank passes, each rank keeps a copy of its block. ``ValueError`` for ``copy=False``
    where a copy is needed.
    """
    if isinstance(obj, DTensor):
        return _as_tensor(obj, dtype, device, copy)
    if copy is False:
        raise ValueError(f"asarray: a tensor does not share memory with a {type(obj).__name__}; copy=False cannot be")
    array = np.asarray(obj, dtype=dtype)
    return create.distribute(array, layout_on(device, array.ndim))


def _as_tensor(tensor: DTensor, dtype: DTypeLike | None, device: Device | None, copy: bool | None) -> DTensor:
    layout = target_on(tensor.layout, device)
    other_dtype = dtype is not None and tensor.dtype != dtype
    stays = layout == tensor.layout
    if copy is False and (other_dtype or not stays):
        specs = layout.specs_text
        wanted = f"dtype {np.dtype(dtype)}" if other_dtype else f"layout {specs} on the {layout.mesh}"
        raise ValueError(f"asarray: a tensor in {wanted} is a copy; copy=False cannot be")
    result = tensor if stays else relayout(tensor, layout)
    if dtype is not None and other_dtype:
        return astype(result, dtype)
    return result.copy() if copy and result is tensor else result


def from_dlpack(x: object, /, *, device: Device | None = None, copy: bool | None = None) -> DTensor:
    """Return an array of another library as a tensor, by way of DLPack. Every rank passes the whole array.

    ``ValueError`` for ``copy=False``: each rank keeps a copy of its block.
    """
    return asarray(np.from_dlpack(x), device=device, copy=copy)  # type: ignore[arg-type]  # has __dlpack__


def empty(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor with any content."""
    return create.empty(shape, _or_float(dtype), _layout(shape, device))


def zeros(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor of zeros."""
    return create.zeros(shape, _or_float(dtype), _layout(shape, device))


def ones(shape: ShapeLike, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor of ones."""
    return create.ones(shape, _or_float(dtype), _layout(shape, device))


def full(
    shape: ShapeLike, fill_value: Scalar, *, dtype: DTypeLike | None = None, device: Device | None = None
) -> DTensor:
    """Return a tensor of *fill_value*; its dtype is by default that of the number."""
    return create.full(shape, fill_value, dtype, _layout(shape, device))


def empty_like(x: DTensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor with any content, with the shape of *x*, and by default its dtype and its layout."""
    return create.empty(x.shape, x.dtype if dtype is None else dtype, moved(x.layout, device))


def zeros_like(x: DTensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor of zeros, with the shape of *x*, and by default its dtype and its layout."""
    return create.zeros(x.shape, x.dtype if dtype is None else dtype, moved(x.layout, device))


def ones_like(x: DTensor, /, *, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return a tensor of ones, with the shape of *x*, and by default its dtype and its layout."""
    return create.ones(x.shape, x.dtype if dtype is None else dtype, moved(x.layout, device))


def full_like(
    x: DTensor, /, fill_value: Scalar, *, dtype: DTypeLike | None = None, device: Device | None = None
) -> DTensor:
    """Return a tensor of *fill_value*, with the shape of *x*, and by default its dtype and its layout."""
    return create.full(x.shape, fill_value, x.dtype if dtype is None else dtype, moved(x.layout, device))


def arange(
    start: Real,
    /,
    stop: Real | None = None,
    step: Real = 1,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
) -> DTensor:
    """Return the numbers from *start* up to *stop*, *step* apart, with the bits of ``numpy.arange``.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: arange(5, device=mc.create_mesh()).local.tolist()))
    [[0, 1, 2], [3, 4]]
    """
    first, last = (0, start) if stop is None else (start, stop)
    kind = np.asarray([first, last, step]).dtype if dtype is None else as_dtype(dtype)
    if kind.kind not in "iufc":
        raise DTypeError(f"arange makes integers or floating-point numbers, not {kind}")
    count = max(0, _steps(first, last, step))
    # As in NumPy, the first two numbers are exact, and the others go on from them.
    seeds = np.array([first, first + step][:count], dtype=kind)
    wide = np.dtype(np.float32) if kind == np.float16 else kind

    def some(slices: tuple[slice, ...]) -> Array:
        index = np.arange(slices[0].start, slices[0].stop)
        if count < 2 or not index.size:
            return seeds[slices[0]]
        base, second = seeds.astype(wide)
        with np.errstate(over="ignore"):  # unsigned integers that go down wrap round
            numbers = (base + index.astype(wide) * (second - base)).astype(kind)
        numbers[index < 2] = seeds[index[index < 2]]
        block: Array = numbers
        return block

    return create.from_callback(count, kind, layout_on(device, 1), some)


def _steps(first: Real, last: Real, step: Real) -> int:
    """Return how many steps from *first* stay before *last*; negative if they lead away."""
    if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
        return -((first - last) // step)
    return ceil((last - first) / step)


def linspace(
    start: Scalar,
    stop: Scalar,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
    endpoint: bool = True,
) -> DTensor:
    """Return *num* numbers from *start* to *stop*, evenly spaced, with the bits of ``numpy.linspace``.

    ``ShapeError`` if *num* is negative.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: linspace(0, 1, 3, device=mc.create_mesh()).local.tolist()))
    [[0.0, 0.5], [1.0]]
    """
    if num < 0:
        raise ShapeError(f"linspace: num is {quote(num)}; it must not be negative")
    ends = np.linspace(start, stop, 2, dtype=dtype)  # checks the arguments
    first, gaps = np.asarray(start) * 1.0, num - 1 if endpoint else num
    delta = np.asarray(stop) - first
    step = delta / gaps if gaps > 0 else delta

    def block(slices: tuple[slice, ...]) -> Array:
        index = np.arange(slices[0].start, slices[0].stop).astype(step.dtype)
        numbers: Array = (index / gaps * delta if gaps > 0 and step == 0 else index * step) + first
        if endpoint and num > 1:
            numbers[slices[0].stop - slices[0].start - 1 :] = stop if slices[0].stop == num else numbers[-1:]
        return (np.floor(numbers) if ends.dtype.kind in "iu" else numbers).astype(ends.dtype)

    return create.from_callback(num, ends.dtype, layout_on(device, 1), block)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: Device | None = None,
) -> DTensor:
    """Return a matrix with ones on its diagonal number *k*, and zeros elsewhere.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: eye(3, 2, device=mc.create_mesh()).local.tolist()))
    [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0]]]
    """
    kind = _or_float(dtype)

    def block(slices: tuple[slice, ...]) -> Array:
        rows, columns = slices
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        return np.eye(*shape, k=k + rows.start - columns.start, dtype=kind)

    return create.from_callback((n_rows, n_rows if n_cols is None else n_cols), kind, layout_on(device, 2), block)


def _or_float(dtype: DTypeLike | None) -> DType:
    return np.dtype(float) if dtype is None else as_dtype(dtype)


def _layout(shape: ShapeLike, device: Device | None) -> Layout:
    return layout_on(device, len(as_shape(shape)))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return the frequencies of the elements of a spectrum of *n* elements."""
    return _frequencies(np.fft.fftfreq(integer(n, "n", ShapeError), d), dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None) -> DTensor:
    """Return the frequencies of the elements of the first half of a spectrum of *n* elements."""
    return _frequencies(np.fft.rfftfreq(integer(n, "n", ShapeError), d), dtype, device)


def _frequencies(values: Array, dtype: DTypeLike | None, device: Device | None) -> DTensor:
    kind = values.dtype if dtype is None else as_dtype(dtype)
    return create.from_callback(values.shape, kind, layout_on(device, 1), lambda slices: values[slices])
