"""Filters that look at a window around each element: SciPy's, run on blocks with the ghosts that it needs."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from meshcomm.blocks.make import changed, filled, mapped
from meshcomm.blocks.small import compare_call
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import counted, normalised_axes, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.errors import LayoutError, MeshcommError, ShapeError
from meshcomm.halos.boundaries import Boundary, as_boundary, axis_of, holds
from meshcomm.halos.make import halo
from meshcomm.halos.widths import Width

Output: TypeAlias = Value
"""A dtype, a tensor to write into, or None, as SciPy's *output*."""

Run: TypeAlias = Callable[[Array, object], Array]
"""From a block and a dtype, or None, to the filtered block."""

Widths: TypeAlias = list[Width]
"""Numbers of elements before and after a block, for each axis."""

T = TypeVar("T")

FLIPPED = ("convolve", "convolve1d", "grey_dilation", "binary_dilation")
"""Filters whose windows are turned round."""

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")


class SequenceError(ShapeError, RuntimeError):
    """A sequence has not one entry for each axis: SciPy raises ``RuntimeError``."""

    __module__ = "meshcomm"


def scipy_ndimage() -> Value:
    """Return scipy.ndimage; ``MeshcommError`` if SciPy is not installed."""
    try:
        return importlib.import_module("scipy.ndimage")
    except ImportError:
        raise MeshcommError("mc.ndimage runs SciPy on each block: pip install scipy") from None


@dataclass(frozen=True)
class Edges:
    """SciPy's *mode*, one or one for each axis, and *cval*."""

    mode: Value = "reflect"
    cval: Value = 0.0

    def of(self, axis: int, ndim: int) -> "Edges":
        """Return those of one of *ndim* axes."""
        return Edges(self.modes(ndim)[axis], self.cval)

    def modes(self, ndim: int) -> list[Value]:
        """Return the mode of each of *ndim* axes."""
        return per_axis(self.mode, ndim, "mode")

    def boundaries(self, ndim: int) -> tuple[Boundary, ...]:
        """Return the boundaries of *ndim* axes."""
        for mode in self.modes(ndim):
            if mode not in MODES:
                raise ShapeError(f"mode {quote(mode)} is none of SciPy's: {', '.join(MODES)}")
        return tuple(as_boundary(mode, self.cval) for mode in self.modes(ndim))


def per_axis(given: Value, count: int, what: str) -> list[Value]:
    """Return what is *given* for each of *count* axes: one for all, or a sequence."""
    if isinstance(given, str) or not np.iterable(given):
        return [given] * count
    found = list(given)
    if len(found) != count:
        raise SequenceError(
            f"sequence argument must have length equal to input rank: {what} {quote(given)} has "
            f"{counted(len(found), 'entry')} for {counted(count, 'axis')}"
        )
    return found


def spread(values: Iterable[T], axes: Iterable[int], ndim: int, rest: T) -> list[T]:
    """Return *values*, of which each is that of one of *axes*, for all axes; those that are not named have *rest*.

    >>> spread([3, 5], (2, 0), 3, 1)
    [5, 1, 3]
    """
    by_axis = [rest] * ndim
    for axis, value in zip(axes, values, strict=True):
        by_axis[axis] = value
    return by_axis


def ordered_axes(axes: Value, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, in the order that is given."""
    if axes is None:
        return tuple(range(ndim))
    normalised_axes(axes, ndim)
    return tuple(axis_of(axis, ndim) for axis in (axes if np.iterable(axes) else (axes,)))


def settings_along(axes: Value, ndim: int, **settings: Value) -> Iterator[tuple[Value, ...]]:
    """Go through *axes* in the order that is given: each with its own of the *settings*.

    >>> list(settings_along((1, 0), 2, size=3, mode=["wrap", "mirror"]))
    [(1, 3, 'wrap'), (0, 3, 'mirror')]
    """
    ordered = ordered_axes(axes, ndim)
    return zip(ordered, *(per_axis(value, len(ordered), name) for name, value in settings.items()), strict=True)


def window(size: int, origin: int = 0, *, flipped: bool = False) -> Width:
    """Return how many elements before and after it a filter of *size* looks at.

    It is *flipped* for convolutions and dilations.

    >>> window(3), window(4), window(4, flipped=True), window(5, 2)
    ((1, 1), (2, 1), (1, 2), (4, 0))
    """
    low, high = size // 2, size - 1 - size // 2
    return (high - int(origin), low + int(origin)) if flipped else (low + int(origin), high - int(origin))


def widths_along(name: str, axes: Sequence[int], ndim: int, lengths: Sequence[int], origins: Sequence[int]) -> Widths:
    """Return how many elements the filter *name* looks at, along *ndim* axes: its window has these *lengths*."""
    sizes = zip(map(int, lengths), origins, strict=True)
    return spread([window(n, origin, flipped=name in FLIPPED) for n, origin in sizes], axes, ndim, (0, 0))


def ghosts_of(tensor: DTensor, widths: Sequence[Width]) -> Widths:
    """Return which of these *widths* blocks of *tensor* need from others: those along sharded axes."""
    sharded = (tensor.layout.cut(axis, n).blocks > 1 for axis, n in enumerate(tensor.shape))
    return [width if cut else (0, 0) for width, cut in zip(widths, sharded, strict=True)]


def held(name: str, given: object) -> DTensor:
    """Return the tensor of a filter; ``LayoutError`` if it is none."""
    tensor = unwrapped(given)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"ndimage.{name} takes a DTensor, not {type(tensor).__name__}: call distribute first")
    return tensor


def refuse_cyclic(tensor: DTensor) -> None:
    """Raise ``LayoutError`` if an axis is `Cyclic`: its blocks are no boxes."""
    for axis, n in enumerate(tensor.shape):
        if not tensor.layout.cut(axis, n).is_consecutive:
            names = " + ".join(tensor.layout.axes[axis])
            raise LayoutError(f"axis {axis} is Cyclic: relayout the tensor first, for example to '{names}' there")


def dtype_asked(output: Output) -> Value:
    """Return the dtype that SciPy's *output* asks for: that of a tensor to write into; or None."""
    return output.dtype if isinstance(output, DTensor) else output


def result_dtype(tensor: DTensor, run: Run, output: Output) -> DType:
    """Return the dtype of a result, as SciPy finds it for one element; raise what SciPy raises."""
    one = (1,) * tensor.ndim
    given = np.zeros(one, output.dtype) if isinstance(output, DTensor) else output
    return run(np.zeros(one, tensor.dtype), given).dtype


def windowed(tensor: DTensor, widths: Sequence[Width], edges: Edges, run: Run, dtype: DType, *, call: str) -> DTensor:
    """Return the tensor that *run* makes, in the layout of *tensor*. Collective if a sharded axis needs ghosts.

    *run* gets blocks with ghosts along those axes only; along the others, SciPy extends the block by itself. *call* is
    what the ranks compare if they communicate: a filter and its arguments, also those that change no message.
    """
    boundaries = edges.boundaries(tensor.ndim)
    ghosts = ghosts_of(tensor, widths)
    if any(each.name == "constant" for each in boundaries) and not holds(tensor.dtype, edges.cval):
        tensor = _in_double_precision(tensor, edges.cval)
    if not tensor.size or not any(map(any, ghosts)):
        return filtered(tensor, lambda block: run(block, dtype), dtype)
    compare_call("filter", tensor.mesh, f"{call} as {dtype}")
    around = halo(tensor, ghosts, list(boundaries))
    return filtered(tensor, lambda block: run(around.local, dtype)[around.inner_slices], dtype)


def filtered(tensor: DTensor, run: Callable[[Array], Array], dtype: DType) -> DTensor:
    """Return the tensor whose blocks *run* makes, of this dtype; it is not called for one without elements."""
    return mapped(lambda block: run(block) if block.size else np.empty(block.shape, dtype), tensor, dtype=dtype)


def call_text(name: str, arguments: Mapping[str, Value]) -> str:
    """Return the text of a call that ranks compare: arrays stand for their bytes, other objects for their classes.

    >>> call_text("convolve", {"weights": [1, -1], "mode": "nearest"})
    'convolve(weights=(1, -1), mode=nearest)'
    """
    return f"{name}({', '.join(f'{key}={_text(value)}' for key, value in arguments.items())})"


def _text(value: Value) -> str:
    if callable(value):
        return "a function"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int | float | complex | None):
        return str(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {value.dtype} {value.tobytes().hex()}"
    return type(value).__name__


def _in_double_precision(tensor: DTensor, cval: Value) -> DTensor:
    """Return *tensor* as SciPy computes with it: blocks of it can hold *cval*."""
    dtype = np.dtype(np.complex128 if tensor.dtype.kind == "c" or isinstance(cval, complex) else np.float64)
    return mapped(lambda block: block.astype(dtype), tensor, dtype=dtype)


def as_dtype_of(tensor: DTensor, dtype: DType) -> DTensor:
    """Return a copy of *tensor* with this dtype."""
    with np.errstate(all="ignore"):
        return filled(lambda new, block: np.copyto(new, block, casting="unsafe"), tensor, dtype=dtype)


def stored(result: DTensor, output: Output) -> DTensor:
    """Return *result*, or *output* with its elements if that is a tensor. Collective if they have to move."""
    if not isinstance(output, DTensor):
        return result
    check_writable("output", output)
    if output.shape != result.shape:
        raise ShapeError(f"output has shape {output.shape}, but the result has {result.shape}")
    moved = result if result.layout == output.layout else relayout(result, output.layout)
    return changed(lambda block, given: np.copyto(block, given, casting="unsafe"), output, moved)
