"""Tensors with more elements around them: pad.

The elements of the tensor stay on their devices: the first and the last block along a padded axis grow. The devices
of these two blocks get the elements that they need in one exchange. A cyclic axis gets the usual cut first.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.assemble import assembling, join_blocks
from meshcomm.blocks.make import make, on_device
from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import AnyDict, Array, Indices
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

Options: TypeAlias = AnyDict

MODES: dict[str, Callable[[Indices, int], Indices]] = {
    "edge": lambda indices, n: np.clip(indices, 0, n - 1),
    "reflect": lambda indices, n: _reflected(indices, max(2 * n - 2, 1), n, 2 * n - 2),
    "symmetric": lambda indices, n: _reflected(indices, 2 * n, n, 2 * n - 1),
    "wrap": lambda indices, n: indices % n,
}
"""Modes: from indices, which may be outside of an axis of *n* elements, to the indices of the elements there."""


def _reflected(indices: Indices, period: int, n: int, mirror_sum: int) -> Indices:
    residues = indices % period
    return np.where(residues < n, residues, mirror_sum - residues)


@operation(np.pad)
def pad(array: DTensor, pad_width: object, mode: Any = "constant", **options: Any) -> Call | DTensor:
    """Return the tensor with more elements around it, as numpy.pad. Collective if the values of these have to move.

    Blocks stay on their devices; the first and the last one of a padded axis grow (`Cuts`).
    """
    tensor = as_tensor("pad", array)
    widths = _widths(pad_width, tensor.ndim)
    options = _options(mode, options)
    cuts = [tensor.layout.cut(axis, n) for axis, n in enumerate(tensor.shape)]
    layout = tensor.layout.default_cut(a for a, cut in enumerate(cuts) if any(widths[a]) and not cut.is_consecutive)
    tensor = relaid(tensor, layout.axes, "pad")
    if mode in ("constant", "empty"):
        return _with_constants(tensor, widths, options.get("constant_values", 0))
    empty_axis = next((axis for axis, width in enumerate(widths) if any(width) and not tensor.shape[axis]), None)
    if empty_axis is not None:
        raise ShapeError(f"pad with mode {mode!r} along axis {empty_axis}, which has no elements to repeat")
    if mode in STATISTICS:
        np.pad(np.zeros((1,) * tensor.ndim, tensor.dtype), 0, mode, **options)  # raises on all ranks what NumPy raises

    def run(tensor: DTensor) -> DTensor:
        for axis, width in enumerate(widths):
            if any(width):
                tensor = _pad_axis(tensor, axis, width, mode, options)
        return tensor if any(map(any, widths)) else tensor.copy()

    return Call(Recipe(run), (tensor,))


def _options(mode: object, options: Options) -> Options:
    """Return *options*; ``TypeError`` and ``ValueError`` for unknown modes and options, as NumPy raises them."""
    option_names: dict[str, tuple[str, ...]] = {
        "constant": ("constant_values",),
        "empty": (),
        "linear_ramp": ("end_values",),
        **dict.fromkeys(STATISTICS, ("stat_length",)),
        **dict.fromkeys(MODES, ()),
        "reflect": ("reflect_type",),
        "symmetric": ("reflect_type",),
    }
    if not isinstance(mode, str) or mode not in option_names:
        problem = "a function is not supported" if callable(mode) else f"{quote(mode)} is unknown"
        error_class = TypeError if callable(mode) else ValueError
        raise error_class(f"numpy.pad: mode {problem} for DTensors; it is {', '.join(option_names)}")
    unknown_names = [name for name in options if name not in option_names[mode]]
    if unknown_names:
        raise ValueError(f"unsupported keyword arguments for mode {mode!r}: {', '.join(unknown_names)}")
    return options


def _pad_axis(tensor: DTensor, axis: int, width: Width, mode: str, options: Options) -> DTensor:
    """Return the tensor padded along one axis. Collective if elements move."""
    if mode in MODES:
        padded = _padded_by_indices(tensor, axis, width, mode)
        if options.get("reflect_type", "even") == "even":
            return padded
        edge_values = mirrored(tensor, padded, axis, width, mode)
    else:
        axis_options = {name: pairs(value, tensor.ndim, name)[axis] for name, value in options.items()}
        if mode in STATISTICS:
            edge_values = statistics(tensor, axis, mode, axis_options.get("stat_length", (None, None)))
        else:
            edge_values = ramps(tensor, axis, width, axis_options.get("end_values", (0, 0)))
        padded = _with_constants(tensor, [width if a == axis else (0, 0) for a in range(tensor.ndim)], 0).run()
    n, (before, after) = tensor.shape[axis], width
    for count, start, values in ((before, 0, edge_values[0]), (after, before + n, edge_values[1])):
        if count:
            padded[(slice(None),) * axis + (slice(start, start + count),)] = values
    return padded


def _widths(pad_width: object, ndim: int) -> list[Width]:
    """Return the number of elements to add before and after each axis, from NumPy's argument *pad_width*."""
    if isinstance(pad_width, dict):
        width_list: list[object] = [(0, 0)] * ndim
        for axis, width in pad_width.items():
            width_list[normalised_axis(axis, ndim)] = width if isinstance(width, tuple | list) else (width, width)
        pad_width = width_list if ndim else 0
    try:
        width_pairs = np.broadcast_to(np.asarray(pad_width), (ndim, 2)).tolist()
    except ValueError:
        raise ShapeError(
            f"pad_width {quote(pad_width)} for {counted(ndim, 'axis')}: it is a number, (before, after), "
            "or a pair for each axis"
        ) from None
    widths = [(as_integer(a, "pad_width", TypeError), as_integer(b, "pad_width", TypeError)) for a, b in width_pairs]
    if any(n < 0 for width in widths for n in width):
        raise ShapeError(f"pad_width {quote(pad_width)} is negative; use a slice")
    return widths


def _padded_layout(tensor: DTensor, widths: list[Width]) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout and the shape of the padded tensor: the first and the last block of an axis are larger."""
    layout = tensor.layout
    for axis, (before, after) in enumerate(widths):
        cut = tensor.layout.cut(axis, tensor.shape[axis]).consecutive
        if cut.blocks > 1 and (before or after):
            inner_starts = [start + before for start in cut.all_starts()[1:-1]]
            boundaries = [0, *inner_starts, cut.length + before + after]
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

    def padded_block(device: int, tensor: DTensor) -> Array:
        numbers = zip(tensor.layout.block_numbers(device), tensor.layout.shape, strict=True)
        block_widths = [
            (before if number == 0 else 0, after if number == blocks - 1 else 0)
            for (before, after), (number, blocks) in zip(widths, numbers, strict=True)
        ]
        return np.pad(tensor._block, block_widths, constant_values=values) if block_widths else tensor._block.copy()

    def run(tensor: DTensor) -> DTensor:
        return make(on_device(tensor.mesh, lambda device: padded_block(device, tensor)), layout, shape, tensor.dtype)

    return Call(Recipe(run), (tensor,))


def _padded_by_indices(tensor: DTensor, axis: int, width: Width, mode: str) -> DTensor:
    """Return *tensor* padded along one axis. Collective if elements move."""
    n, (before, after), dtype = tensor.shape[axis], width, tensor.dtype
    edge_indices = [MODES[mode](np.arange(*interval, dtype=np.intp), n) for interval in ((-before, 0), (n, n + after))]
    edge_spans = [(int(indices.min()), int(indices.max()) + 1) if len(indices) else (0, 0) for indices in edge_indices]
    cut = tensor.layout.cut(axis, n).consecutive
    layout, shape = _padded_layout(tensor, [width if a == axis else (0, 0) for a in range(tensor.ndim)])

    def source_intervals(number: int) -> list[Interval]:
        """Return three intervals of sources: of the elements before a block, of the block, and of those after it."""
        before_interval, after_interval = (
            edge_spans[0] if number == 0 else (0, 0),
            edge_spans[1] if number == cut.blocks - 1 else (0, 0),
        )
        return [before_interval, cut.interval(number), after_interval]

    def put_together(pieces: list[Array], number: int) -> Array:
        sections, remaining_pieces = list[Array](), iter(pieces)
        for (start, stop), indices in zip(
            source_intervals(number), (edge_indices[0], None, edge_indices[1]), strict=True
        ):
            arrays = list[Array]()
            while sum(array.shape[axis] for array in arrays) < stop - start:
                arrays.append(next(remaining_pieces))
            sections += (
                arrays
                if indices is None or not arrays
                else [elements_along(join_blocks(arrays, axis, dtype), indices - start, axis)]
            )
        return join_blocks(sections, axis, dtype) if sections else new_block(layout.block_shape(shape), dtype)

    intervals = tuple(tuple((0, *interval) for interval in source_intervals(number)) for number in range(cut.blocks))
    return assembling("pad", [tensor], axis, intervals, layout, shape=shape, compute=put_together).run()
