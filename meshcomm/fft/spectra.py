"""Spectra: the frequencies of their elements, and their order."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.make import indices_along, map_into
from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._types import Array, Axis, DType, Shape
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.fft.calls import Ints, axes_of, listed
from meshcomm.fft.kinds import KINDS, full_name
from meshcomm.numpy.joining.rolling import roll

# -- frequencies ------------------------------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, *, layout: Layout | None = None, dtype: DTypeLike = float) -> DTensor:
    """Return the frequencies of the elements of a spectrum of *n* elements, as a tensor of one axis.

    Without *layout* it is replicated on the mesh of `default_mesh`. Source: scipy.fft.fftfreq.

    Parameters
    ----------
    n: number of transformed elements
    d: distance of two elements, in any unit; frequencies are in cycles per unit
    layout: layout of the result
    dtype: dtype of the result

    >>> import meshcomm as mc
    >>> def program():
    ...     return mc.fft.fftfreq(4, layout=mc.Layout(["x"], mc.create_mesh([("x", 2)]))).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 0.25], [-0.5, -0.25]]
    """
    count = as_integer(n, "n", ShapeError)
    return _on_axis(empty((count,), dtype, layout), 0, (count, d))


def rfftfreq(n: int, d: float = 1.0, *, layout: Layout | None = None, dtype: DTypeLike = float) -> DTensor:
    """Return the frequencies of the ``n // 2 + 1`` elements of the half of a spectrum.

    Arguments are those of `fftfreq`. Source: scipy.fft.rfftfreq.
    """
    count = as_integer(n, "n", ShapeError)
    return _on_axis(empty((count // 2 + 1,), dtype, layout), 0, (count, d), halved=True)


def frequencies(
    t_hat: DTensor, axes: Ints = None, d: float | Sequence[float] = 1.0, *, s: Ints = None, kind: str = "fftn"
) -> tuple[DTensor, ...]:
    """Return the frequencies along each axis of a spectrum, as tensors that broadcast with it and are sharded alike.

    Nothing is sent, and nothing moves when they are combined with the spectrum: k-space code is local.

    Parameters
    ----------
    t_hat: the spectrum
    axes: the transformed axes; by default all
    d: distance of two elements of the array, one for all axes or for each of them; with ``d=1/n`` frequencies are
        whole numbers, up to rounding
    s: lengths of the array along the axes; by default those of the spectrum, and an even length for a halved axis
    kind: transform of the spectrum: after "rfftn" the last of the axes is halved

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     t_hat = mc.fft.rfftn(mc.ones((4, 6), float, rows))
    ...     ky, kx = mc.fft.frequencies(t_hat, d=(1 / 4, 1 / 6), kind="rfftn")
    ...     return kx.shape, kx.local.tolist(), (1j * kx * t_hat).layout == t_hat.layout
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [((1, 4), [[0.0, 1.0]], True), ((1, 4), [[2.0, 3.0]], True)]
    """
    tensor = as_tensor("fft.frequencies", t_hat)
    axis_numbers = axes_of(axes, None, tensor.ndim)
    lengths = lengths_of(tensor, axis_numbers, s, kind, "s")
    distances = distances_of("fft.frequencies", d, len(axis_numbers))
    grids = list(zip(axis_numbers, lengths, distances, strict=True))
    return along_axes(tensor.layout, tensor.shape, tensor.dtype, grids, axis_numbers[-1] if halves(kind) else None)


def along_axes(
    layout: Layout, shape: Shape, dtype: DType, axes: Sequence[tuple[int, int, float]], halved: int | None
) -> tuple[DTensor, ...]:
    """Return the frequencies along some axes of a spectrum.

    Parameters
    ----------
    layout, shape, dtype: layout, shape and dtype of the spectrum
    axes: for each axis its number, the length of the array along it, and the distance of two elements
    halved: the axis that stores only the first half of the spectrum; None if there is none
    """
    results = []
    for axis, n, distance in axes:
        line_shape = tuple(shape[a] if a == axis else 1 for a in range(len(shape)))
        line = empty(line_shape, np.empty(0, dtype).real.dtype, layout.only(axis))
        results.append(_on_axis(line, axis, (n, distance), halved=axis == halved))
    return tuple(results)


def lengths_of(tensor: DTensor, axes: list[int], s: Ints, kind: str, argument: str) -> list[int]:
    """Return the lengths of the array with the spectrum *tensor* along *axes*."""
    is_halved = halves(kind)
    default_lengths = [tensor.shape[a] for a in axes]
    if is_halved and axes:
        default_lengths[-1] = 2 * (default_lengths[-1] - 1)
    lengths = default_lengths if s is None else [as_integer(n, argument, ShapeError) for n in listed(s)]
    if len(lengths) != len(axes):
        raise ShapeError(f"{argument} has {counted(len(lengths), 'length')} for {counted(len(axes), 'axis')}")
    for number, (axis, n) in enumerate(zip(axes, lengths, strict=True)):
        stored = n // 2 + 1 if is_halved and number == len(axes) - 1 else n
        if stored != tensor.shape[axis]:
            mismatch = (
                f"{counted(n, 'element')} along axis {axis} have {stored} in the spectrum, which has "
                f"{tensor.shape[axis]}"
            )
            raise ShapeError(f"{argument}: {mismatch}")
    return lengths


def halves(kind: str) -> bool:
    """Return whether a spectrum of this kind has only the first half of its last axis."""
    check_has_frequencies("a spectrum", kind)
    return KINDS[full_name(kind)].change == "halves"


def check_has_frequencies(name: str, kind: str) -> None:
    """Raise ``ShapeError`` unless the result of *kind* is a spectrum of complex waves."""
    transform = KINDS[full_name(kind)]
    if transform.change not in ("complex", "halves"):
        raise ShapeError(
            f'{name} is for Fourier transforms, "fftn" or "rfftn"; {transform.name} has no such frequencies'
        )


def distances_of(name: str, d: object, count: int) -> list[float]:
    """Return the distances of elements along *count* axes; ``ShapeError`` if *d* is something else."""
    distances = [cast("float", d)] * count  # the loop below checks them
    if isinstance(d, Sequence | np.ndarray) and not isinstance(d, str):
        distances = list(d)
    if len(distances) != count:
        raise ShapeError(f"{name}: {counted(len(distances), 'distance')} in d for {counted(count, 'axis')}")
    for x in distances:
        if isinstance(x, bool) or not isinstance(x, int | float | np.number) or not abs(float(x)) > 0:
            raise ShapeError(f"{name}: d must be a distance other than zero, or one for each axis, not {quote(x)}")
    return distances


def _on_axis(result: DTensor, axis: int, grid: tuple[int, float], *, halved: bool = False) -> DTensor:
    """Fill *result* with the frequencies along *axis*, for a *grid* of n elements at distance d, and return it."""
    n, d = grid
    if n < 1:
        raise ShapeError(f"frequencies of {counted(n, 'element')}: there must be 1 or more")

    def fill(block: Array) -> None:
        index = indices_along(result.layout, result.shape, axis)
        # The second half of a whole spectrum has negative frequencies.
        frequency_index = index if halved else np.where(index < (n + 1) // 2, index, index - n)
        block[...] = frequency_index * (1.0 / (n * d))

    return map_into(fill, result)


# -- order ------------------------------------------------------------------------------------------------------------


@refusable
def fftshift(x: DTensor, axes: Axis = None) -> DTensor:
    """Return a spectrum with the element of frequency zero in the middle. Collective if a shifted axis is sharded.

    Only elements of other blocks move, and the layout stays the same. Source: scipy.fft.fftshift.
    """
    return _shifted("fft.fftshift", x, axes, 1)


@refusable
def ifftshift(x: DTensor, axes: Axis = None) -> DTensor:
    """Return the inverse of `fftshift`. Collective if a shifted axis is sharded. Source: scipy.fft.ifftshift."""
    return _shifted("fft.ifftshift", x, axes, -1)


def _shifted(name: str, x: DTensor, axes: Axis, sign: int) -> DTensor:
    tensor = as_tensor(name, x)
    axis_numbers = axes_of(axes, None, tensor.ndim)
    return roll(tensor, [sign * (tensor.shape[a] // 2) for a in axis_numbers], tuple(axis_numbers))
