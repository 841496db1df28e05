"""scipy.ndimage filters on blocks extended by ghost cells, corners included, along the sharded axes.

Each function takes SciPy's arguments and has SciPy's values, also at the borders of blocks. *input* is a tensor.
*output* is a dtype, or a tensor to write into. All are Collective over the mesh of *input* if an axis of the window is
sharded. ``MeshcommError`` if SciPy is not installed, ``LayoutError`` for plain arrays and for `Cyclic` axes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._arguments import counted, normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import DTypeError, ShapeError
from meshcomm.halos.boundaries import holds
from meshcomm.ndimage.arguments import Axes, Ints, Modes, Number, Output
from meshcomm.ndimage.axes import FilterEdges, per_axis, spread_over_axes
from meshcomm.ndimage.calls import ScipyCall, input_tensor, output_dtype, requested_dtype, write_output
from meshcomm.ndimage.windows import run_on_windows, widths_along
from meshcomm.numpy.elementwise.families import family

RANK_ORDER_FILTERS = (
    *("median_filter", "minimum_filter", "maximum_filter", "rank_filter", "percentile_filter"),
    *("grey_erosion", "grey_dilation"),
)
"""Filters that choose an element of each window by its rank in the sorted window."""

WITHOUT_TRIAL = ("generic_filter",)
"""Filters without a trial run on one element for SciPy's errors and the dtype of the result."""


def _filter_by_scipy(name: str, input: TensorLike, output: Output, axes: Axes, **arguments: Value) -> DTensor:
    """Return the result of the filter *name* of SciPy with these *arguments*. Collective."""
    tensor, call = input_tensor(name, input), ScipyCall(name, **arguments, axes=axes)
    has_trial = name not in WITHOUT_TRIAL
    dtype = output_dtype(tensor, call, output) if has_trial else np.dtype(requested_dtype(output) or tensor.dtype)
    window_axes, mode = normalised_axes(axes, tensor.ndim), arguments["mode"]
    lengths, origins = (
        _window_lengths(arguments, len(window_axes)),
        per_axis(arguments["origin"], len(window_axes), "origin"),
    )
    if len(lengths) != len(window_axes):
        raise ShapeError(f"a window with {counted(len(lengths), 'axis')} for {len(window_axes)} of the tensor")
    widths = widths_along(name, window_axes, tensor.ndim, lengths, origins)
    if not isinstance(mode, str):
        mode = spread_over_axes(per_axis(mode, len(window_axes), "mode"), window_axes, tensor.ndim, "reflect")
    edges = FilterEdges(mode, arguments["cval"])
    has_constant = any(boundary.name == "constant" for boundary in edges.boundaries(tensor.ndim))
    if (
        has_constant
        and name in RANK_ORDER_FILTERS
        and tensor.dtype.kind in "biu"
        and not holds(tensor.dtype, edges.cval)
    ):
        raise DTypeError(
            f"ndimage.{name}: cval {edges.cval!r} is no {tensor.dtype}. SciPy rounds it in some of these filters and "
            "not in others: convert the tensor, or take another cval"
        )
    return write_output(run_on_windows(tensor, widths, edges, call, dtype), output)


def _window_lengths(arguments: dict[str, Value], count: int) -> Sequence[SupportsIndex]:
    """Return the lengths of a window: the shape of its array, else its size along *count* axes."""
    for array in ("weights", "footprint", "structure"):
        if arguments.get(array) is not None:
            return np.shape(arguments[array])
    return per_axis(1 if (size := arguments.get("size")) is None else size, count, "size")


# template: see `family`
@family("scipy.ndimage")
def _convolve_like(
    name: str,
    input: TensorLike,
    weights: ArrayLike,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the convolution with *weights*. Collective over the mesh.

    Parameters
    ----------
    input: a tensor
    weights: array_like with len(axes) dimensions
    output: a dtype for the result, or a tensor to write into and return
    mode: boundary: "reflect", "constant", "nearest", "mirror", "wrap" or another name of SciPy; or one for each axis
    cval: the value beyond the edges if *mode* is "constant"
    origin: shift of the window in elements; or one for each axis
    axes: the axes of the window; by default all

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.convolve(mc.distribute(np.arange(5), rows), [1, 0, -1]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 2, 2], [2, 1]]
    """
    return _filter_by_scipy(**locals())


convolve = _convolve_like("convolve")
correlate = _convolve_like("correlate", "Return the correlation with *weights*. Collective over the mesh.")


# template: see `family`
@family("scipy.ndimage")
def _median_like(
    name: str,
    input: TensorLike,
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the median of each window. Collective over the mesh.

    Other arguments are those of `convolve`.

    Parameters
    ----------
    size: the length of the window, or one for each axis
    footprint: array of booleans that selects elements of the window, instead of *size*
    """
    return _filter_by_scipy(**locals())


median_filter = _median_like("median_filter")
minimum_filter = _median_like("minimum_filter", "Return the minimum of each window. Collective over the mesh.")
maximum_filter = _median_like("maximum_filter", "Return the maximum of each window. Collective over the mesh.")


@refusable
def rank_filter(
    input: TensorLike,
    rank: int,
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the element of this *rank* in each sorted window. Collective over the mesh.

    Source: scipy.ndimage.rank_filter.

    Other arguments are those of `median_filter`.

    Parameters
    ----------
    rank: number of the element: 0 is the least one, and -1 the largest
    """
    return _filter_by_scipy("rank_filter", **locals())


@refusable
def percentile_filter(
    input: TensorLike,
    percentile: float,
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return this percentile of each window. Collective over the mesh.

    Source: scipy.ndimage.percentile_filter.

    Other arguments are those of `median_filter`.

    Parameters
    ----------
    percentile: 0 to 100, or -100 to 0, which counts from the largest element
    """
    return _filter_by_scipy("percentile_filter", **locals())


# template: see `family`
@family("scipy.ndimage")
def _erosion_like(
    name: str,
    input: TensorLike,
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    structure: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the greyscale erosion. Collective over the mesh.

    Other arguments are those of `median_filter`.

    Parameters
    ----------
    structure: array_like with the shape of the window: subtracted from its elements by an erosion, added by a
        dilation
    """
    return _filter_by_scipy(**locals())


grey_erosion = _erosion_like("grey_erosion")
grey_dilation = _erosion_like("grey_dilation", "Return the greyscale dilation. Collective over the mesh.")


@refusable
def generic_filter(
    input: TensorLike,
    function: Callable[..., object],
    size: Ints | None = None,
    footprint: ArrayLike | None = None,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    extra_arguments: Sequence[object] = (),
    extra_keywords: Mapping[str, object] | None = None,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return *function* of each window. Collective over the mesh. Source: scipy.ndimage.generic_filter.

    Each rank calls *function* also for windows around ghosts, and drops the results.

    Other arguments are those of `median_filter`.

    Parameters
    ----------
    function: function of the elements of a window, an array of one axis; it returns a number
    extra_arguments: further arguments for *function*
    extra_keywords: further arguments for *function*, by name
    """
    return _filter_by_scipy("generic_filter", **locals())
