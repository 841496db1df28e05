"""Tensors with more elements around them: pad.

The elements of the tensor stay on their devices: the first and the last block along a padded axis grow. These two
devices get what they need of the others, in one exchange. A cyclic axis gets the usual cut first.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.assemble import assembling, join_blocks
from meshcomm.blocks.make import make, on_device
from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import Array, Indices, Kwargs
from meshcomm.core.arrays._recipes import Call, Recipe
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.memory.blocks import new_block
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import operation
from meshcomm.numpy.indexing.taking import elements_along
from meshcomm.numpy.joining.padding_values import STATISTICS, mirrored, pairs, ramps, statistics
from meshcomm.numpy.shapes.shaping import normalised_axis

Width: TypeAlias = tuple[int, int]

Options: TypeAlias = Kwargs

MODES: dict[str, Callable[[Indices, int], Indices]] = {
    "edge": lambda at, n: np.clip(at, 0, n - 1),
    "reflect": lambda at, n: _folded(at, max(2 * n - 2, 1), n, 2 * n - 2),
    "symmetric": lambda at, n: _folded(at, 2 * n, n, 2 * n - 1),
    "wrap": lambda at, n: at % n,
}
"""Modes, and which of *n* elements is at an index outside of them."""


def _folded(at: Indices, period: int, n: int, last: int) -> Indices:
    within = at % period
    return np.where(within < n, within, last - within)


@operation(np.pad)
def pad(array: DTensor, pad_width: object, mode: Any = "constant", **options: Any) -> Call | DTensor:
    """Return the tensor with more elements around it, as numpy.pad. Collective if what they are has to move.

    Blocks stay where they are; the first and the last one of a padded axis grow (`Cuts`).
    """
    tensor = as_tensor("pad", array)
    widths = _widths(pad_width, tensor.ndim)
    options = _options(mode, options)
    cuts = [tensor.layout.cut(axis, n) for axis, n in enumerate(tensor.shape)]
    usual = tensor.layout.usual_cut(a for a, cut in enumerate(cuts) if any(widths[a]) and not cut.is_consecutive)
    tensor = relaid(tensor, usual.axes, "pad")
    if mode in ("constant", "empty"):
        return _with_constants(tensor, widths, options.get("constant_values", 0))
    empty = next((axis for axis, width in enumerate(widths) if any(width) and not tensor.shape[axis]), None)
    if empty is not None:
        raise ShapeError(f"pad with mode {mode!r} along axis {empty}, which has no elements to repeat")
    if mode in STATISTICS:
        np.pad(np.zeros((1,) * tensor.ndim, tensor.dtype), 0, mode, **options)  # raises on all ranks what NumPy raises

    def run(tensor: DTensor) -> DTensor:
        for axis, width in enumerate(widths):
            if any(width):
                tensor = _pad_axis(tensor, axis, width, mode, options)
        return tensor if any(map(any, widths)) else tensor.copy()

    return Call(Recipe(run), (tensor,))


def _options(mode: object, options: Options) -> Options:
    """Return the options of a mode. ``TypeError`` and ``ValueError`` for others, as NumPy raises them."""
    options_of: dict[str, tuple[str, ...]] = {
        "constant": ("constant_values",),
        "empty": (),
        "linear_ramp": ("end_values",),
        **dict.fromkeys(STATISTICS, ("stat_length",)),
        **dict.fromkeys(MODES, ()),
        "reflect": ("reflect_type",),
        "symmetric": ("reflect_type",),
    }
    if not isinstance(mode, str) or mode not in options_of:
        what = "a function is not supported" if callable(mode) else f"{quote(mode)} is unknown"
        error = TypeError if callable(mode) else ValueError
        raise error(f"numpy.pad: mode {what} for DTensors; it is {', '.join(options_of)}")
    wrong = [name for name in options if name not in options_of[mode]]
    if wrong:
        raise ValueError(f"unsupported keyword arguments for mode {mode!r}: {', '.join(wrong)}")
    return options


def _pad_axis(tensor: DTensor, axis: int, width: Width, mode: str, options: Options) -> DTensor:
    """Return the tensor padded along one axis. Collective if elements move."""
    if mode in MODES:
        padded = _padded(tensor, axis, width, mode)
        if options.get("reflect_type", "even") == "even":
            return padded
        ends = mirrored(tensor, padded, axis, width, mode)
    else:
        values_of = {name: pairs(value, tensor.ndim, name)[axis] for name, value in options.items()}
        if mode in STATISTICS:
            ends = statistics(tensor, axis, mode, values_of.get("stat_length", (None, None)))
        else:
            ends = ramps(tensor, axis, width, values_of.get("end_values", (0, 0)))
        padded = _with_constants(tensor, [width if a == axis else (0, 0) for a in range(tensor.ndim)], 0).run()
    n, (before, after) = tensor.shape[axis], width
    for count, start, values in ((before, 0, ends[0]), (after, before + n, ends[1])):
        if count:
            padded[(slice(None),) * axis + (slice(start, start + count),)] = values
    return padded


def _widths(pad_width: object, ndim: int) -> list[Width]:
    """Return the elements before and after each axis, from what NumPy takes."""
    if isinstance(pad_width, dict):
        listed: list[object] = [(0, 0)] * ndim
        for axis, width in pad_width.items():
            listed[normalised_axis(axis, ndim)] = width if isinstance(width, tuple | list) else (width, width)
        pad_width = listed if ndim else 0
    try:
        pairs = np.broadcast_to(np.asarray(pad_width), (ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(
            f"pad_width {quote(pad_width)} for {counted(ndim, 'axis')}: it is a number, (before, after), "
            "or a pair for each axis"
        ) from None
    widths = [(as_integer(a, "pad_width", TypeError), as_integer(b, "pad_width", TypeError)) for a, b in pairs]
    if any(n < 0 for width in widths for n in width):
        raise ShapeError(f"pad_width {quote(pad_width)} is negative; use a slice")
    return widths


def _padded_layout(tensor: DTensor, widths: list[Width]) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout and the shape of a tensor of which the first and the last blocks are larger."""
    layout = tensor.layout
    for axis, (before, after) in enumerate(widths):
        cut = tensor.layout.cut(axis, tensor.shape[axis]).consecutive
        if cut.blocks > 1 and (before or after):
            inner = [start + before for start in cut.all_starts()[1:-1]]
            boundaries = [0, *inner, cut.length + before + after]
            layout = layout.replace(axis, Cuts(tuple(layout.axes[axis]), boundaries))
    shape = tuple(n + before + after for n, (before, after) in zip(tensor.shape, widths, strict=True))
    return layout, shape


def _with_constants(tensor: DTensor, widths: list[Width], values: ArrayLike) -> Call:
    layout, shape = _padded_layout(tensor, widths)
    try:
        np.broadcast_to(np.asarray(values), (tensor.ndim, 2))
    except ValueError:
        raise ShapeError(
            f"constant_values {quote(values)} for {counted(tensor.ndim, 'axis')}: it is a number, "
            "(before, after), or a pair for "
            "each axis"
        ) from None
    np.pad(
        np.empty((0,) * tensor.ndim, tensor.dtype), 1, constant_values=values
    )  # raises on all ranks what NumPy raises

    def padded(device: int, tensor: DTensor) -> Array:
        numbers = zip(tensor.layout.block_numbers(device), tensor.layout.shape, strict=True)
        mine = [
            (before if number == 0 else 0, after if number == blocks - 1 else 0)
            for (before, after), (number, blocks) in zip(widths, numbers, strict=True)
        ]
        return np.pad(tensor._block, mine, constant_values=values) if mine else tensor._block.copy()

    def run(tensor: DTensor) -> DTensor:
        return make(on_device(tensor.mesh, lambda device: padded(device, tensor)), layout, shape, tensor.dtype)

    return Call(Recipe(run), (tensor,))


def _padded(tensor: DTensor, axis: int, width: Width, mode: str) -> DTensor:
    """Return *tensor* padded along one axis. Collective if elements move."""
    n, (before, after), dtype = tensor.shape[axis], width, tensor.dtype
    ends = [MODES[mode](np.arange(*interval, dtype=np.intp), n) for interval in ((-before, 0), (n, n + after))]
    spans = [(int(at.min()), int(at.max()) + 1) if len(at) else (0, 0) for at in ends]
    cut = tensor.layout.cut(axis, n).consecutive
    layout, shape = _padded_layout(tensor, [width if a == axis else (0, 0) for a in range(tensor.ndim)])

    def source_intervals(number: int) -> list[Interval]:
        """Return the intervals with what lies before a block, its own, and what lies behind."""
        low, high = spans[0] if number == 0 else (0, 0), spans[1] if number == cut.blocks - 1 else (0, 0)
        return [low, cut.interval(number), high]

    def put_together(pieces: list[Array], number: int) -> Array:
        parts, rest = list[Array](), iter(pieces)
        for (start, stop), at in zip(source_intervals(number), (ends[0], None, ends[1]), strict=True):
            arrays = list[Array]()
            while sum(array.shape[axis] for array in arrays) < stop - start:
                arrays.append(next(rest))
            parts += (
                arrays
                if at is None or not arrays
                else [elements_along(join_blocks(arrays, axis, dtype), at - start, axis)]
            )
        return join_blocks(parts, axis, dtype) if parts else new_block(layout.block_shape(shape), dtype)

    wanted = tuple(tuple((0, *interval) for interval in source_intervals(number)) for number in range(cut.blocks))
    return assembling("pad", [tensor], axis, wanted, layout, shape=shape, compute=put_together).run()
