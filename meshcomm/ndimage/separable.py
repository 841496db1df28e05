"""Filters along axes, one after the other: scipy.ndimage's on blocks with ghosts along one axis at a time.

They are composed as in SciPy, so that elements are rounded at the same steps. For arguments and errors, see
:mod:`meshcomm.ndimage.filters`.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.make import map_into
from meshcomm.core._tracing import Value
from meshcomm.core._types import DType
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.halos.boundaries import axis_of
from meshcomm.halos.widths import Width
from meshcomm.ndimage.arguments import Axes, Ints, Modes, Number, Output, Reals
from meshcomm.ndimage.axes import FilterEdges, ordered_axes, per_axis, settings_along, spread_over_axes
from meshcomm.ndimage.calls import ScipyCall, as_dtype_of, input_tensor, output_dtype, requested_dtype, write_output
from meshcomm.ndimage.windows import FLIPPED, run_on_windows, window
from meshcomm.numpy.elementwise.families import family


class _AxisFilter:
    """A filter of SciPy along one axis, with *width* elements before and after each element."""

    def __init__(self, name: str, axis: int, width: Width, edges: FilterEdges, **arguments: object) -> None:
        self._axis, self._width, self._edges = axis, width, edges
        self.run = ScipyCall(name, axis=axis, mode=edges.mode, cval=edges.cval, **arguments)

    def apply(self, tensor: DTensor, dtype: DType) -> DTensor:
        """Return the filtered tensor. Collective if the axis is sharded."""
        widths = spread_over_axes([self._width], [self._axis], tensor.ndim, (0, 0))
        return run_on_windows(tensor, widths, self._edges, self.run, dtype)


def _apply_1d(
    length: int,
    name: str,
    input: TensorLike,
    axis: int,
    output: Output,
    mode: str,
    cval: Number,
    origin: int,
    **arguments: object,
) -> DTensor:
    """Return the result of one filter along one axis, with a window of *length*. Collective."""
    tensor, width = input_tensor(name, input), window(length, origin, flipped=name in FLIPPED)
    step = _AxisFilter(name, axis_of(axis, tensor.ndim), width, FilterEdges(mode, cval), origin=origin, **arguments)
    return _apply_steps(tensor, [step], output)


@family("scipy.ndimage")
def _convolve1d_like(
    name: str,
    input: TensorLike,
    weights: ArrayLike,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: Number = 0.0,
    origin: int = 0,
) -> DTensor:
    """Return the convolution with *weights* along *axis*. Collective over the mesh.

    Parameters
    ----------
    input: a tensor
    weights: the numbers of the window
    axis: the axis of the filter
    output: a dtype for the result, or a tensor to write into and return
    mode: boundary: "reflect", "constant", "nearest", "mirror", "wrap" or another name of SciPy
    cval: the value beyond the edges if *mode* is "constant"
    origin: shift of the window in elements
    """
    return _apply_1d(int(np.size(weights)), **locals())


convolve1d = _convolve1d_like("convolve1d")
correlate1d = _convolve1d_like(
    "correlate1d", "Return the correlation with *weights* along *axis*. Collective over the mesh."
)


@family("scipy.ndimage")
def _window_filter(
    name: str,
    input: TensorLike,
    size: int,
    axis: int = -1,
    output: Output = None,
    mode: str = "reflect",
    cval: Number = 0.0,
    origin: int = 0,
) -> DTensor:
    """Return the minimum of each window along *axis*. Collective over the mesh.

    Other arguments are those of `convolve1d`.

    Parameters
    ----------
    size: the length of the window
    """
    return _apply_1d(int(size), **locals())


minimum_filter1d = _window_filter("minimum_filter1d")
maximum_filter1d = _window_filter(
    "maximum_filter1d", "Return the maximum of each window along *axis*. Collective over the mesh."
)
uniform_filter1d = _window_filter(
    "uniform_filter1d",
    "Return the mean of each window along *axis*. Collective over the mesh.",
    """
    SciPy adds and subtracts along the axis, so the last digits of floats depend on where a block begins.

    Arguments are those of `minimum_filter1d`.
    """,
)


def _gaussian(axis: int, sigma: float, edges: FilterEdges, **arguments: Value) -> _AxisFilter:
    radius = arguments["radius"]
    lw = max(0, int(arguments["truncate"] * float(sigma) + 0.5) if radius is None else int(radius))
    return _AxisFilter("gaussian_filter1d", axis, (lw, lw), edges, sigma=sigma, **arguments)


@refusable
def gaussian_filter1d(
    input: TensorLike,
    sigma: float,
    axis: int = -1,
    order: int = 0,
    output: Output = None,
    mode: str = "reflect",
    cval: Number = 0.0,
    truncate: float = 4.0,
    *,
    radius: int | None = None,
) -> DTensor:
    """Return the Gaussian filter, or a derivative of it, along *axis*. Collective over the mesh.

    Source: scipy.ndimage.gaussian_filter1d.

    Other arguments are those of `gaussian_filter`.

    Parameters
    ----------
    axis: the axis of the filter
    """
    tensor = input_tensor("gaussian_filter1d", input)
    filter_axis, edges = axis_of(axis, tensor.ndim), FilterEdges(mode, cval)
    return _apply_steps(
        tensor, [_gaussian(filter_axis, sigma, edges, order=order, truncate=truncate, radius=radius)], output
    )


@refusable
def gaussian_filter(
    input: TensorLike,
    sigma: Reals,
    order: Ints = 0,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    truncate: float = 4.0,
    *,
    radius: Ints | None = None,
    axes: Axes = None,
) -> DTensor:
    """Return the Gaussian filter, or derivatives of it, along all *axes*. Collective over the mesh.

    Source: scipy.ndimage.gaussian_filter.

    Other arguments are those of `convolve`.

    Parameters
    ----------
    sigma: the standard deviation in elements, or one for each axis
    order: 0 for the filter, or the order of a derivative; or one for each axis
    truncate: radius of the window in standard deviations
    radius: radius of the window in elements, instead of *truncate*; or one for each axis

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.gaussian_filter(mc.distribute([0.0, 0, 0, 1, 0, 0], rows), 1).local.round(2).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 0.05, 0.24], [0.4, 0.24, 0.06]]
    """
    tensor = input_tensor("gaussian_filter", input)
    settings = settings_along(axes, tensor.ndim, sigma=sigma, order=order, mode=mode, radius=radius)
    steps = [
        _gaussian(axis, sigma, FilterEdges(mode, cval), order=order, truncate=truncate, radius=radius)
        for axis, sigma, order, mode, radius in settings
        if sigma > 1e-15
    ]
    return _apply_steps(tensor, steps, output)


@refusable
def uniform_filter(
    input: TensorLike,
    size: Ints = 3,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    origin: Ints = 0,
    *,
    axes: Axes = None,
) -> DTensor:
    """Return the mean of each window. Collective over the mesh. Source: scipy.ndimage.uniform_filter.

    SciPy adds and subtracts along axes, so the last digits of floats depend on where a block begins.

    Arguments are those of `median_filter`.
    """
    tensor = input_tensor("uniform_filter", input)
    steps = [
        _AxisFilter(
            "uniform_filter1d", axis, window(int(n), origin), FilterEdges(mode, cval), size=int(n), origin=origin
        )
        for axis, n, origin, mode in settings_along(axes, tensor.ndim, size=size, origin=origin, mode=mode)
        if int(n) > 1
    ]
    return _apply_steps(tensor, steps, output)


def _apply_steps(tensor: DTensor, steps: Sequence[_AxisFilter], output: Output) -> DTensor:
    """Return the result of all *steps* on *tensor*, one after the other, or *output* with it. Collective."""
    if not steps:
        output_type = requested_dtype(output)
        return write_output(
            as_dtype_of(tensor, tensor.dtype if output_type is None else np.dtype(output_type)), output
        )
    dtype = output_dtype(tensor, steps[0].run, output)
    for step in steps:
        tensor = step.apply(tensor, dtype)
    return write_output(tensor, output)


SMOOTHING_WEIGHTS = {"sobel": [1, 2, 1], "prewitt": [1, 1, 1]}
"""The weights that smooth a derivative along the other axes."""


@family("scipy.ndimage", like="convolve1d")
def _derivative_filter(
    name: str, input: TensorLike, axis: int = -1, output: Output = None, mode: Modes = "reflect", cval: Number = 0.0
) -> DTensor:
    tensor, edges = input_tensor(name, input), FilterEdges(mode, cval)
    axis, ndim = axis_of(axis, tensor.ndim), tensor.ndim
    steps = []
    for a in (axis, *(other_axis for other_axis in range(ndim) if other_axis != axis)):
        weights = [-1, 0, 1] if a == axis else SMOOTHING_WEIGHTS[name]
        steps.append(_AxisFilter("correlate1d", a, (1, 1), edges.of(a, ndim), weights=weights, origin=0))
    return _apply_steps(tensor, steps, output)


sobel = _derivative_filter("sobel", "Return Sobel's derivative along *axis*. Collective over the mesh.")
prewitt = _derivative_filter("prewitt", "Return Prewitt's derivative along *axis*. Collective over the mesh.")


Derivative = Callable[[int, Output, str, Number], DTensor]
"""A function from an axis, an output, mode and cval to the derivative along the axis."""


def sum_derivatives(
    tensor: DTensor, derivative: Derivative, edges: FilterEdges, output: Output, axes: Axes, *, squares: bool
) -> DTensor:
    """Return the sum of derivatives along *axes*, or the root of the sum of their squares. Collective."""
    if not ordered_axes(axes, tensor.ndim):
        return _apply_steps(tensor, [], output)
    total: DTensor | None = None
    for axis, mode in settings_along(axes, tensor.ndim, mode=edges.mode):
        term = derivative(axis, requested_dtype(output) if total is None else total.dtype, mode, edges.cval)
        if squares:
            map_into(lambda block: np.multiply(block, block, out=block), term)
        total = term if total is None else map_into(lambda block, other: np.add(block, other, out=block), total, term)
    assert total is not None
    if squares:
        map_into(lambda block: np.sqrt(block, out=block, casting="unsafe"), total)
    return write_output(total, output)


@refusable
def laplace(
    input: TensorLike, output: Output = None, mode: Modes = "reflect", cval: Number = 0.0, *, axes: Axes = None
) -> DTensor:
    """Return the sum of second differences. Collective over the mesh. Source: scipy.ndimage.laplace.

    Arguments are those of `convolve`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.laplace(mc.distribute(np.arange(6) ** 2, rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 2, 2], [2, 2, -9]]
    """
    tensor = input_tensor("laplace", input)
    derivative = partial(correlate1d, tensor, [1, -2, 1])
    return sum_derivatives(tensor, derivative, FilterEdges(mode, cval), output, axes, squares=False)


@family("scipy.ndimage")
def _of_gaussian(
    name: str,
    /,
    input: TensorLike,
    sigma: Reals,
    output: Output = None,
    mode: Modes = "reflect",
    cval: Number = 0.0,
    *,
    axes: Axes = None,
    **kwargs: Value,
) -> DTensor:
    """Return the Laplacian of a Gaussian filter. Collective over the mesh.

    Other arguments are those of `gaussian_filter`.

    Parameters
    ----------
    **kwargs: *truncate* and *radius*
    """
    tensor, squares = input_tensor(name, input), name == "gaussian_gradient_magnitude"
    sigmas, filter_axes = sigma, ordered_axes(axes, tensor.ndim)
    if not squares:
        sigmas = spread_over_axes(per_axis(sigma, len(filter_axes), "sigma"), filter_axes, tensor.ndim, 0.0)

    def derivative(axis: int, output: Output, mode: str, cval: Number) -> DTensor:
        orders = [(1 if squares else 2) if a == axis else 0 for a in range(tensor.ndim)]
        return gaussian_filter(tensor, sigmas, orders, output, mode, cval, **kwargs)

    return sum_derivatives(tensor, derivative, FilterEdges(mode, cval), output, axes, squares=squares)


gaussian_laplace = _of_gaussian("gaussian_laplace")
gaussian_gradient_magnitude = _of_gaussian(
    "gaussian_gradient_magnitude",
    "Return the length of the gradient of a Gaussian filter. Collective over the mesh.",
    """
    Other arguments are those of `gaussian_filter`.

    Parameters
    ----------
    **kwargs: *truncate* and *radius*
    """,
)
