"""Filters that multiply a spectrum: scipy.ndimage's fourier_* on blocks, each with the factors of its own indices.

The spectrum is a result of `mc.fft`, in any layout. Nothing is exchanged.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from meshcomm.blocks.make import indices_along, map_to_new
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.halos.boundaries import axis_of
from meshcomm.ndimage.arguments import Output, Reals
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.calls import input_tensor, scipy_ndimage, write_output
from meshcomm.numpy.elementwise.families import family


def _times_factors(name: str, input: TensorLike, argument: Reals, n: int, axis: int, output: Output) -> DTensor:
    """Return a spectrum times the product of factors along the axes, or times the factors of an ellipsoid."""
    tensor, function = input_tensor(name, input), getattr(scipy_ndimage(), name)
    is_ellipsoid = name == "fourier_ellipsoid"
    output_type = output.dtype.type if isinstance(output, DTensor) else output
    halved_axis = axis_of(axis, tensor.ndim)
    amounts = per_axis(argument, tensor.ndim, "argument")
    dtype = function(np.zeros((1,) * tensor.ndim, tensor.dtype), argument, n, axis, output_type).dtype

    def multiply(out: Array, block: Array) -> None:
        rows = []
        for a, (length, amount) in enumerate(zip(tensor.shape, amounts, strict=True)):
            row = (_angles if is_ellipsoid else function)(np.ones(length), amount, n if a == halved_axis else -1)
            rows.append(row[indices_along(tensor.layout, tensor.shape, a)])
        with np.errstate(all="ignore"):
            out[...] = np.multiply(block, _ellipsoid(rows) if is_ellipsoid else reduce(np.multiply, rows))

    return write_output(map_to_new(multiply, tensor, dtype=dtype), output)


def _angles(ones: Array, size: float, n: int) -> Array:
    """Return the squares of the angles of the frequencies of an axis."""
    length = len(ones)
    full_length = length if n < 0 else n
    index = np.arange(length)
    if n < 0:
        index = np.where(index < (length + 1) // 2, index, index - length)
    return np.asarray((np.pi * size / full_length * index) ** 2)


def _ellipsoid(squares: Sequence[Array]) -> Array:
    """Return the transform of a ball with one axis for each array of squares."""
    import scipy.special

    radius = np.sqrt(reduce(np.add, squares))
    if len(squares) == 1:
        transform = np.sin(radius) / radius
    elif len(squares) == 2:
        transform = 2 * scipy.special.j1(radius) / radius
    else:
        transform = 3 * (np.sin(radius) - radius * np.cos(radius)) / radius**3
    return np.where(radius > 0, transform, 1.0)


@family("scipy.ndimage")
def _fourier_filter(
    name: str, input: TensorLike, sigma: Reals, n: int = -1, axis: int = -1, output: Output = None
) -> DTensor:
    """Return a spectrum times that of a Gaussian.

    Parameters
    ----------
    input: a spectrum, a result of `mc.fft`
    sigma: the standard deviation in elements, or one for each axis
    n: if not negative, the length of *axis* before a transform of real numbers
    axis: the axis that a transform of real numbers has halved
    output: a dtype for the result, or a tensor to write into and return

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.fourier_gaussian(mc.ones(4, layout=rows), 1).local.round(3).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1.0, 0.291], [0.007, 0.291]]
    """
    return _times_factors(name, input, sigma, n, axis, output)


@family("scipy.ndimage")
def _fourier_sized(
    name: str, input: TensorLike, size: Reals, n: int = -1, axis: int = -1, output: Output = None
) -> DTensor:
    """Return a spectrum times that of a box.

    Parameters
    ----------
    input: a spectrum, a result of `mc.fft`
    size: the lengths of the box in elements, or one for all axes
    n: if not negative, the length of *axis* before a transform of real numbers
    axis: the axis that a transform of real numbers has halved
    output: a dtype for the result, or a tensor to write into and return
    """
    return _times_factors(name, input, size, n, axis, output)


@family("scipy.ndimage")
def _shift(name: str, input: TensorLike, shift: Reals, n: int = -1, axis: int = -1, output: Output = None) -> DTensor:
    """Return the spectrum of shifted elements.

    Parameters
    ----------
    input: a spectrum, a result of `mc.fft`
    shift: shift in elements along each axis, or one for all axes
    n: if not negative, the length of *axis* before a transform of real numbers
    axis: the axis that a transform of real numbers has halved
    output: a dtype for the result, or a tensor to write into and return
    """
    return _times_factors(name, input, shift, n, axis, output)


fourier_gaussian = _fourier_filter("fourier_gaussian")
fourier_uniform = _fourier_sized("fourier_uniform")
fourier_ellipsoid = _fourier_sized("fourier_ellipsoid", "Return a spectrum times that of an ellipsoid.")
fourier_shift = _shift("fourier_shift")
