"""Filters by functions of the caller: along lines, on many windows at once, and by derivatives.

For arguments and errors, see :mod:`meshcomm.ndimage.filters`.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make, mapped
from meshcomm.blocks.regions import read_box
from meshcomm.blocks.small import allgather_array, compare_call
from meshcomm.blocks.whole import of_whole_blocks
from meshcomm.core._types import Array, ShapeLike
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.halos.boundaries import axis_of
from meshcomm.halos.make import halo
from meshcomm.ndimage.arguments import Axes, Ints, Modes, Number, Output
from meshcomm.ndimage.axes import FilterEdges, ordered_axes, per_axis, spread_over_axes
from meshcomm.ndimage.calls import call_text, input_tensor, refuse_cyclic, requested_dtype, scipy_ndimage, write_output
from meshcomm.ndimage.interpolation import output_layout
from meshcomm.ndimage.separable import sum_derivatives
from meshcomm.ndimage.windows import filter_blocks, widths_along
from meshcomm.numpy.elementwise.families import family


@refusable
def generic_filter1d(
    input: TensorLike,
    function: Callable[..., object],
    filter_size: int,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: Number = 0.0,
    origin: int = 0,
    extra_arguments: Sequence[object] = (),
    extra_keywords: Mapping[str, object] | None = None,
) -> DTensor:
    """Return *function* of each line along *axis*. Collective over the mesh if that is sharded.

    The function gets whole lines, so *axis* is unsharded for it. Source: scipy.ndimage.generic_filter1d.

    Other arguments are those of `convolve1d`.

    Parameters
    ----------
    function: function of a line with *filter_size* - 1 more elements, and of the line of the output to fill
    filter_size: length of the window
    extra_arguments: further arguments for *function*
    extra_keywords: further arguments for *function*, by name

    >>> import numpy as np, meshcomm as mc
    >>> def double(line, output):
    ...     output[...] = line[1:-1] * 2
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.generic_filter1d(mc.distribute(np.arange(4.0), rows), double, 3).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 2.0], [4.0, 6.0]]
    """
    tensor = input_tensor("generic_filter1d", input)
    refuse_cyclic(tensor)
    filter_axis, scipy_filter = axis_of(axis, tensor.ndim), scipy_ndimage().generic_filter1d
    boundary_arguments, empty = (
        (mode, cval, origin, extra_arguments, extra_keywords),
        np.zeros((0,) * tensor.ndim, tensor.dtype),
    )
    dtype = scipy_filter(empty, function, filter_size, filter_axis, requested_dtype(output), *boundary_arguments).dtype

    def filter_lines(block: Array) -> Array:
        result = np.empty(block.shape, dtype)
        if result.size:
            scipy_filter(block, function, filter_size, filter_axis, result, *boundary_arguments)
        return result

    result = make(*of_whole_blocks(tensor, (filter_axis,), "generic_filter1d", filter_lines), tensor.shape, dtype)
    return write_output(relaid(result, tensor.layout.axes, "generic_filter1d"), output)


@family("scipy.ndimage")
def _of_derivatives(
    name: str,
    input: TensorLike,
    derivative2: Callable[..., DTensor],
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    extra_arguments: Sequence[object] = (),
    extra_keywords: Mapping[str, object] | None = None,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the sum of second derivatives by a function. Collective over the mesh.

    Other arguments are those of `convolve`.

    Parameters
    ----------
    derivative2: function of the tensor, an axis, a dtype or None, *mode* and *cval*; it returns a new tensor. For
        `generic_gradient_magnitude` it is the first derivative, *derivative*
    extra_arguments: further arguments for the function
    extra_keywords: further arguments for the function, by name

    >>> import numpy as np, meshcomm as mc
    >>> def second(t, axis, output, mode, cval):
    ...     return mc.ndimage.correlate1d(t, [1, -2, 1], axis, output, mode, cval)
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.generic_laplace(mc.distribute(np.arange(6) ** 2, rows), second).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 2, 2], [2, 2, -9]]
    """
    tensor, squares = input_tensor(name, input), name == "generic_gradient_magnitude"

    def derivative(*arguments: object) -> DTensor:
        return derivative2(tensor, *arguments, *extra_arguments, **(extra_keywords or {}))

    return sum_derivatives(tensor, derivative, FilterEdges(mode, cval), output, axes, squares=squares)


generic_laplace = _of_derivatives("generic_laplace")


@refusable
def generic_gradient_magnitude(
    input: TensorLike,
    derivative: Callable[..., DTensor],
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    extra_arguments: Sequence[object] = (),
    extra_keywords: Mapping[str, object] | None = None,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the length of the gradient by a function for derivatives. Collective over the mesh.

    Source: scipy.ndimage.generic_gradient_magnitude.

    Other arguments are those of `generic_laplace`.

    Parameters
    ----------
    derivative: function of the tensor, an axis, a dtype or None, *mode* and *cval*; it returns a new tensor
    """
    return _magnitude(input, derivative, output, mode, cval, extra_arguments, extra_keywords, axes=axes)


_magnitude = _of_derivatives("generic_gradient_magnitude", "Return the length of the gradient. Collective.")

_HALO_MODES = {"grid-mirror": "mirror", "grid-constant": "constant", "grid-wrap": "wrap"}
"""Other meanings of SciPy's modes in `vectorized_filter`: its "grid-mirror" is the "mirror" of other filters."""


@refusable
def vectorized_filter(
    input: TensorLike,
    function: Callable[..., Array],
    *,
    size: ShapeLike | None = None,
    footprint: ArrayLike | None = None,
    output: Output = None,
    mode: str = "reflect",
    cval: Number | None = None,
    origin: Ints | None = None,
    axes: Axes = None,
    batch_memory: int = 2**30,
) -> DTensor:
    """Return *function* of many windows at once. Collective over the mesh.

    Source: scipy.ndimage.vectorized_filter.

    Other arguments are those of `median_filter`.

    Parameters
    ----------
    function: function of an array of windows and *axis*; it reduces these axes, as numpy.mean does
    mode: boundary, or "valid" for windows within the tensor only
    cval: the value beyond the edges, with the mode "constant" only
    batch_memory: bytes of windows that *function* may get at once

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     found = mc.ndimage.vectorized_filter(mc.distribute(np.arange(6.0), rows), np.mean, size=3)
    ...     return found.local.round(2).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.33, 1.0, 2.0], [3.0, 4.0, 4.67]]
    """
    tensor, scipy_filter = input_tensor("vectorized_filter", input), scipy_ndimage().vectorized_filter
    footprint_array = None if footprint is None else allgather_array("vectorized_filter", footprint)
    window = {"size": size, "footprint": footprint_array}
    window_axes = ordered_axes(axes, tensor.ndim)
    batch = {"axes": window_axes if axes is not None else None, "batch_memory": batch_memory}
    boundary = {"mode": mode, "cval": cval, "origin": origin}
    sizes = size if footprint_array is None else footprint_array.shape
    sizes = per_axis(1 if sizes is None or not np.size(sizes) else sizes, len(window_axes), "size")
    lengths = spread_over_axes([max(1, int(n)) for n in sizes], window_axes, tensor.ndim, 1)
    # Raises SciPy's errors.
    sample = scipy_filter(np.zeros(lengths, tensor.dtype), function, **window, **boundary, **batch)
    if 0 in tensor.shape:
        return write_output(tensor.copy(), output)
    dtype = output.dtype if isinstance(output, DTensor) else sample.dtype
    call = call_text("vectorized_filter", {**window, **boundary, **batch})

    def filter_valid(block: Array) -> Array:
        return np.asarray(scipy_filter(block, function, **window, mode="valid", **batch)).astype(dtype, copy=False)

    if mode == "valid":
        return write_output(_valid(tensor, lengths, filter_valid, dtype, call), output)
    origins = spread_over_axes(per_axis(origin or 0, len(window_axes), "origin"), window_axes, tensor.ndim, 0)
    widths = widths_along("vectorized_filter", range(tensor.ndim), tensor.ndim, lengths, origins)
    boundaries = FilterEdges(_HALO_MODES.get(mode, mode), 0.0 if cval is None else cval).boundaries(tensor.ndim)
    compare_call("filter", tensor.mesh, call)
    tensor_halo = halo(tensor, widths, list(boundaries))
    return write_output(filter_blocks(tensor, lambda block: filter_valid(tensor_halo.local), dtype), output)


def _valid(
    tensor: DTensor, lengths: list[int], filter_valid: Callable[[Array], Array], dtype: np.dtype, call: str
) -> DTensor:
    """Return *filter_valid* of all windows of *lengths* within the tensor. Collective."""
    refuse_cyclic(tensor)
    shape = tuple(max(0, n - length + 1) for n, length in zip(tensor.shape, lengths, strict=True))
    layout = output_layout(tensor, shape)

    def needed_box() -> Box:
        box = layout.block_box(shape)
        is_empty = any(start == stop for start, stop, *_ in box)
        return tuple(
            (start, start if is_empty else stop + n - 1) for (start, stop, *_), n in zip(box, lengths, strict=True)
        )

    def filter_block(block: Array) -> Array:
        elements = read_box(tensor, needed_box, call)
        return filter_valid(elements) if elements.size else np.empty(layout.block_shape(shape), dtype)

    return mapped(filter_block, tensor, layout=layout, shape=shape, dtype=dtype)
