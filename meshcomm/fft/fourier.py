"""Fourier transforms of tensors, with SciPy's names and arguments.

Each function gives what that of scipy.fft gives for the global array. The result is in the layout after the last local
transform, which saves a relayout each way; ``layout="same"`` brings it back to the layout of the input, and any other
layout may be named. Functions are Collective over the mesh unless all transformed axes are whole on every device.
"""

from meshcomm.arrays.dtensor import DTensor
from meshcomm.fft.apply import called, one_axis
from meshcomm.fft.calls import Some
from meshcomm.fft.execute import Options
from meshcomm.fft.planning import Wanted
from meshcomm.ranks.refusals import refusable


@refusable
def fft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete Fourier transform along one axis. Collective if it is sharded.

    Source: scipy.fft.fft.

    Parameters
    ----------
    x: a tensor of numbers
    n: elements that are transformed: the axis is cropped to them, or zeros are added; by default all
    axis: which axis
    norm: "backward" (the default: the inverse is scaled), "ortho" or "forward"
    layout: of the result: a Layout; "same" for that of *x*; None for the one after the last local transform
    overwrite_x: whether the block of *x* may be overwritten
    workers: threads for the transforms on each rank
    backend: what transforms blocks: "scipy" (the default), "numpy", "pyfftw", "mkl_fft" or "ducc0"

    ``ShapeError``, ``AxisError``, ``DTypeError`` or ``LayoutError`` for arguments that do not fit; ``MeshcommError``
    for a backend that is not installed.
    """
    return called("fft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ifft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `fft`. Collective, as `fft`.

    Arguments are those of `fft`. Source: scipy.fft.ifft.
    """
    return called("ifft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def rfft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the first half of the Fourier transform of real numbers along one axis. Collective, as `fft`.

    Arguments are those of `fft`. Source: scipy.fft.rfft.
    """
    return called("rfft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def irfft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `rfft`. Collective, as `fft`.

    The result has *n* elements along the axis, by default ``2 * (m - 1)`` where *x* has m.

    Arguments are those of `fft`. Source: scipy.fft.irfft.
    """
    return called("irfft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def hfft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the real Fourier transform of a Hermitian signal, of which *x* is the first half. Collective, as `fft`.

    Arguments are those of `fft`. Source: scipy.fft.hfft.
    """
    return called("hfft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ihfft(
    x: DTensor,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `hfft`: the first half of a Hermitian signal. Collective, as `fft`.

    Arguments are those of `fft`. Source: scipy.fft.ihfft.
    """
    return called("ihfft", x, one_axis(n, axis), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def fft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete Fourier transform along two axes. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.fft2.
    """
    return called("fft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ifft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `fft2`. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.ifft2.
    """
    return called("ifft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def rfft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the first half of the Fourier transform of real numbers along two axes. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.rfft2.
    """
    return called("rfft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def irfft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `rfft2`. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.irfft2.
    """
    return called("irfft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def hfft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the real Fourier transform of a signal that is Hermitian along two axes. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.hfft2.
    """
    return called("hfft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ihfft2(
    x: DTensor,
    s: Some = None,
    axes: Some = (-2, -1),
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `hfft2`. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.ihfft2.
    """
    return called("ihfft2", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def fftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the discrete Fourier transform along some axes. Collective if one of them is sharded.

    Source: scipy.fft.fftn.

    Parameters
    ----------
    x: a tensor of numbers
    s: elements that are transformed, for each of the axes; by default all
    axes: which axes; by default all, or the last ones if *s* is given
    norm: "backward" (the default: the inverse is scaled), "ortho" or "forward"
    layout: of the result: a Layout; "same" for that of *x*; None for the one after the last local transform
    overwrite_x: whether the block of *x* may be overwritten
    workers: threads for the transforms on each rank
    backend: what transforms blocks: "scipy" (the default), "numpy", "pyfftw", "mkl_fft" or "ducc0"

    ``ShapeError``, ``AxisError``, ``DTypeError`` or ``LayoutError`` for arguments that do not fit; ``MeshcommError``
    for a backend that is not installed.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     t_hat = mc.fft.fftn(mc.distribute(np.eye(4), rows))
    ...     return t_hat.layout.sharding_specs, mc.fft.ifftn(t_hat, layout=rows).local.real.round(12).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (['unsharded', 'x'], [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    """
    return called("fftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ifftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `fftn`. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.ifftn.
    """
    return called("ifftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def rfftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the Fourier transform of real numbers; the last of the axes is halved. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.rfftn.
    """
    return called("rfftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def irfftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `rfftn`; *s* has the lengths of the result. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.irfftn.
    """
    return called("irfftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def hfftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the real Fourier transform of a signal that is Hermitian along some axes. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.hfftn.
    """
    return called("hfftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)


@refusable
def ihfftn(
    x: DTensor,
    s: Some = None,
    axes: Some = None,
    norm: str | None = None,
    *,
    layout: Wanted = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    backend: str | None = None,
) -> DTensor:
    """Return the inverse of `hfftn`. Collective, as `fftn`.

    Arguments are those of `fftn`. Source: scipy.fft.ihfftn.
    """
    return called("ihfftn", x, (s, axes), Options(backend, workers, overwrite_x), layout, norm=norm)
