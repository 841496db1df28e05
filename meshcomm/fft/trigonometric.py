"""Cosine and sine transforms of tensors, with SciPy's names and arguments.

They need SciPy, or another backend that has them. What `meshcomm.fft.fourier` says about layouts holds here, too.
"""

from meshcomm.arrays.dtensor import DTensor
from meshcomm.fft.apply import called, one_axis
from meshcomm.fft.calls import Some
from meshcomm.fft.execute import Options
from meshcomm.fft.planning import Wanted
from meshcomm.ranks.refusals import refusable


@refusable
def dct(
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

    Source: scipy.fft.dct.

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
    return called("dct", x, one_axis(n, axis), options, layout, norm=norm, **others)


@refusable
def idct(
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
    """Return the inverse of `dct`. Collective, as `dct`.

    Arguments are those of `dct`. Source: scipy.fft.idct.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("idct", x, one_axis(n, axis), options, layout, norm=norm, **others)


@refusable
def dst(
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
    """Return the discrete sine transform along one axis. Collective, as `dct`.

    Arguments are those of `dct`. Source: scipy.fft.dst.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("dst", x, one_axis(n, axis), options, layout, norm=norm, **others)


@refusable
def idst(
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
    """Return the inverse of `dst`. Collective, as `dct`.

    Arguments are those of `dct`. Source: scipy.fft.idst.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("idst", x, one_axis(n, axis), options, layout, norm=norm, **others)


@refusable
def dctn(
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

    Other arguments are those of `dct`. Source: scipy.fft.dctn.

    Parameters
    ----------
    s: elements that are transformed, for each of the axes; by default all
    axes: which axes; by default all, or the last ones if *s* is given
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("dctn", x, (s, axes), options, layout, norm=norm, **others)


@refusable
def idctn(
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
    """Return the inverse of `dctn`. Collective, as `dct`.

    Arguments are those of `dctn`. Source: scipy.fft.idctn.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("idctn", x, (s, axes), options, layout, norm=norm, **others)


@refusable
def dstn(
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
    """Return the discrete sine transform along some axes. Collective, as `dct`.

    Arguments are those of `dctn`. Source: scipy.fft.dstn.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("dstn", x, (s, axes), options, layout, norm=norm, **others)


@refusable
def idstn(
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
    """Return the inverse of `dstn`. Collective, as `dct`.

    Arguments are those of `dctn`. Source: scipy.fft.idstn.
    """
    options, others = Options(backend, workers, overwrite_x), {"variant": type, "orthogonalize": orthogonalize}
    return called("idstn", x, (s, axes), options, layout, norm=norm, **others)
