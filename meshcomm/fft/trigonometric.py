"""Cosine and sine transforms of tensors, with SciPy's names and arguments.

They need SciPy, or another backend that has them. Layouts are as in `meshcomm.fft.fourier`.
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
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
    layout: ResultLayout = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete cosine transform along one axis. Collective if it is sharded.

    Parameters
    ----------
    x: a tensor of numbers
    type: 1 to 4, as SciPy numbers them
    n: number of elements to transform: the axis is cropped or padded with zeros; by default its length
    axis: the axis to transform
    norm: "backward", "ortho" or "forward"
    orthogonalize: whether the factors are those of the orthogonal transform; by default if *norm* is "ortho"
    layout, overwrite_x, workers, backend: see `fft`

    Errors are those of `fft`.
    """
    options, grid = FFTOptions(backend, workers, overwrite_x), one_axis(n, axis)
    return transform_as_scipy(name, x, grid, options, layout, norm=norm, variant=type, orthogonalize=orthogonalize)


dct = _along_one("dct")
idct = _along_one("idct", "Return the inverse of `dct`. Collective, as `dct`.")
dst = _along_one("dst", "Return the discrete sine transform along one axis. Collective, as `dct`.")
idst = _along_one("idst", "Return the inverse of `dst`. Collective, as `dct`.")


@family("scipy.fft")
def _along_some(
    name: str,
    x: DTensor,
    type: int = 2,
    s: Ints = None,
    axes: Ints = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
    layout: ResultLayout = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete cosine transform along some axes. Collective, as `dct`.

    Other arguments are those of `dct`.

    Parameters
    ----------
    s: number of elements to transform along each of the axes; by default their lengths
    axes: the axes to transform; by default all, or the last ones if *s* is given
    """
    options, grid = FFTOptions(backend, workers, overwrite_x), (s, axes)
    return transform_as_scipy(name, x, grid, options, layout, norm=norm, variant=type, orthogonalize=orthogonalize)


dctn = _along_some("dctn")
idctn = _along_some("idctn", "Return the inverse of `dctn`. Collective, as `dct`.")
dstn = _along_some("dstn", "Return the discrete sine transform along some axes. Collective, as `dct`.")
idstn = _along_some("idstn", "Return the inverse of `dstn`. Collective, as `dct`.")
