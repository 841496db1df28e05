"""Fourier transforms of tensors, with SciPy's names and arguments.

Each function has the result of SciPy's for the global array. It is in the layout after the last local transform, which
saves a relayout each way; ``layout="same"`` relays it to the layout of the input, and ``layout`` may be any other
layout. Functions are Collective over the mesh unless all transformed axes are whole on every device.
"""

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.fft.apply import one_axis, transform_as_scipy
from meshcomm.fft.calls import Ints
from meshcomm.fft.execute import FFTOptions
from meshcomm.fft.planning import ResultLayout
from meshcomm.numpy.elementwise.families import family


@family("scipy.fft")
def _along_one(
    name: str,
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: ResultLayout = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete Fourier transform along one axis. Collective if it is sharded.

    Parameters
    ----------
    x: a tensor of numbers
    n: number of elements to transform: the axis is cropped or padded with zeros; by default its length
    axis: the axis to transform
    norm: "backward" (the default: the inverse is scaled), "ortho" or "forward"
    layout: layout of the result; "same" for the layout of *x*; None for the layout after the last local transform
    overwrite_x: whether the block of *x* may be overwritten
    workers: threads for the transforms on each rank
    backend: library for blocks: "scipy" (the default), "numpy", "pyfftw", "mkl_fft" or "ducc0"

    ``ShapeError``, ``AxisError``, ``DTypeError`` or ``LayoutError`` for arguments that do not fit; ``MeshcommError``
    for a backend that is not installed.
    """
    return transform_as_scipy(name, x, one_axis(n, axis), FFTOptions(backend, workers, overwrite_x), layout, norm=norm)


fft = _along_one("fft")
ifft = _along_one("ifft", "Return the inverse of `fft`. Collective, as `fft`.")
rfft = _along_one(
    "rfft", "Return the first half of the Fourier transform of real numbers along one axis. Collective, as `fft`."
)
irfft = _along_one(
    "irfft",
    "Return the inverse of `rfft`. Collective, as `fft`.",
    """
    The result has *n* elements along the axis, by default ``2 * (m - 1)`` where *x* has m.

    Arguments are those of `fft`.
    """,
)
hfft = _along_one(
    "hfft",
    "Return the real Fourier transform of a Hermitian signal, of which *x* is the first half. Collective, as `fft`.",
)
ihfft = _along_one(
    "ihfft", "Return the inverse of `hfft`: the first half of a Hermitian signal. Collective, as `fft`."
)


@family("scipy.fft")
def _along_some(
    name: str,
    x: DTensor,
    s: Ints = None,
    axes: Ints = None,
    norm: str | None = None,
    *,
    layout: ResultLayout = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete Fourier transform along some axes. Collective if one of them is sharded.

    Other arguments are those of `fft`, and so are the errors.

    Parameters
    ----------
    s: number of elements to transform along each of the axes; by default their lengths
    axes: the axes to transform; by default all, or the last ones if *s* is given

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     t_hat = mc.fft.fftn(mc.distribute(np.eye(4), rows))
    ...     return t_hat.layout.sharding_specs, mc.fft.ifftn(t_hat, layout=rows).local.real.round(12).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (['unsharded', 'x'], [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    """
    return transform_as_scipy(name, x, (s, axes), FFTOptions(backend, workers, overwrite_x), layout, norm=norm)


fftn = _along_some("fftn")
ifftn = _along_some("ifftn", "Return the inverse of `fftn`. Collective, as `fftn`.")
rfftn = _along_some(
    "rfftn", "Return the Fourier transform of real numbers; the last of the axes is halved. Collective, as `fftn`."
)
irfftn = _along_some(
    "irfftn", "Return the inverse of `rfftn`; *s* has the lengths of the result. Collective, as `fftn`."
)
hfftn = _along_some(
    "hfftn", "Return the real Fourier transform of a signal that is Hermitian along some axes. Collective, as `fftn`."
)
ihfftn = _along_some("ihfftn", "Return the inverse of `hfftn`. Collective, as `fftn`.")


@family("scipy.fft", like="fftn")
def _along_two(
    name: str,
    x: DTensor,
    s: Ints = None,
    axes: Ints = (-2, -1),
    norm: str | None = None,
    *,
    layout: ResultLayout = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    return transform_as_scipy(name, x, (s, axes), FFTOptions(backend, workers, overwrite_x), layout, norm=norm)


fft2 = _along_two("fft2", "Return the discrete Fourier transform along two axes. Collective, as `fftn`.")
ifft2 = _along_two("ifft2", "Return the inverse of `fft2`. Collective, as `fftn`.")
rfft2 = _along_two(
    "rfft2", "Return the first half of the Fourier transform of real numbers along two axes. Collective, as `fftn`."
)
irfft2 = _along_two("irfft2", "Return the inverse of `rfft2`. Collective, as `fftn`.")
hfft2 = _along_two(
    "hfft2", "Return the real Fourier transform of a signal that is Hermitian along two axes. Collective, as `fftn`."
)
ihfft2 = _along_two("ihfft2", "Return the inverse of `hfft2`. Collective, as `fftn`.")
