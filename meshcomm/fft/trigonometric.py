"""Cosine and sine transforms of tensors, with SciPy's names and arguments.

They need SciPy, or another backend that has them. What `meshcomm.fft.fourier` says about layouts holds here, too.
"""

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.fft.apply import called, one_axis
from meshcomm.fft.calls import Some
from meshcomm.fft.execute import Options
from meshcomm.fft.planning import Wanted
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
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete cosine transform along one axis. Collective if it is sharded.

    Parameters
    ----------
    x: a tensor of numbers
    type: 1 to 4, as SciPy numbers them
    n: elements that are transformed: the axis is cropped to them, or zeros are added; by default all
    axis: which axis
    norm: "backward", "ortho" or "forward"
    orthogonalize: whether the factors are those of the orthogonal transform; by default if *norm* is "ortho"
    layout, overwrite_x, workers, backend: as in `fft`

    Errors are those of `fft`.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called(name, x, one_axis(n, axis), options, layout, norm=norm, **others)


dct = _along_one("dct")
idct = _along_one("idct", "Return the inverse of `dct`. Collective, as `dct`.")
dst = _along_one("dst", "Return the discrete sine transform along one axis. Collective, as `dct`.")
idst = _along_one("idst", "Return the inverse of `dst`. Collective, as `dct`.")


@family("scipy.fft")
def _along_some(
    name: str,
    x: DTensor,
    type: int = 2,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    orthogonalize: bool | None = None,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete cosine transform along some axes. Collective, as `dct`.

    Other arguments are those of `dct`.

    Parameters
    ----------
    s: elements that are transformed, for each of the axes; by default all
    axes: which axes; by default all, or the last ones if *s* is given
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called(name, x, (s, axes), options, layout, norm=norm, **others)


dctn = _along_some("dctn")
idctn = _along_some("idctn", "Return the inverse of `dctn`. Collective, as `dct`.")
dstn = _along_some("dstn", "Return the discrete sine transform along some axes. Collective, as `dct`.")
idstn = _along_some("idstn", "Return the inverse of `dstn`. Collective, as `dct`.")
