"""Spectra: the frequencies of their elements, their order, and spectra of longer or shorter arrays."""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from meshcomm._arguments import counted, integer, quote
from meshcomm._tracing import Value
from meshcomm._types import Array, Axis, DType, Shape
from meshcomm.arrays.create import empty
from meshcomm.arrays.dtensor import DTensor
from meshcomm.errors import ShapeError
from meshcomm.fft.calls import Some, axes_of, listed
from meshcomm.fft.fitting import longer_zeros, span
from meshcomm.fft.kinds import KINDS, NORMS, full_name
from meshcomm.layouts.layout import Layout
from meshcomm.ops.indexing import getitem
from meshcomm.ops.pieces import put
from meshcomm.ops.rolling import flip, roll
from meshcomm.ops.rules import as_tensor

# -- frequencies ------------------------------------------------------------------------------------------------------


def fftfreq(n: int, d: float = 1.0, *, layout: Layout | None = None, dtype: DTypeLike = float) -> DTensor:
    """Return the frequencies of the elements of a spectrum of *n* elements, as a tensor of one axis.

    Without *layout* it is replicated on the mesh of `default_mesh`. Source: scipy.fft.fftfreq.

    Parameters
    ----------
    n: the elements that were transformed
    d: the distance of two of them, in any unit; frequencies are in cycles of that
    layout: of the result
    dtype: of the result

    >>> import meshcomm as mc
    >>> def program():
    ...     return mc.fft.fftfreq(4, layout=mc.Layout(["x"], mc.create_mesh([("x", 2)]))).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 0.25], [-0.5, -0.25]]
    """
    count = integer(n, "n", ShapeError)
    return _on_axis(empty((count,), dtype, layout), 0, (count, d))


def rfftfreq(n: int, d: float = 1.0, *, layout: Layout | None = None, dtype: DTypeLike = float) -> DTensor:
    """Return the frequencies of the ``n // 2 + 1`` elements of the half of a spectrum; arguments as in `fftfreq`.

    Source: scipy.fft.rfftfreq.
    """
    count = integer(n, "n", ShapeError)
    return _on_axis(empty((count // 2 + 1,), dtype, layout), 0, (count, d), halved=True)


def frequencies(
    t_hat: DTensor,
    axes: Some = None,
    d: float | Sequence[float] = 1.0,
    *,
    s: Some = None,
    kind: str = "fftn",
) -> tuple[DTensor, ...]:
    """Return the frequencies along each axis of a spectrum, as tensors that broadcast with it and are sharded alike.

    Nothing is sent, and nothing moves when they are combined with the spectrum: k-space code is local.

    Parameters
    ----------
    t_hat: the spectrum
    axes: the axes that were transformed; by default all
    d: the distance of two elements of the array, along all axes or for each of them; with ``d=1/n`` frequencies are
        whole numbers, up to rounding
    s: the lengths of the array along the axes. By default those of the spectrum, and an even one for a halved axis
    kind: what made the spectrum: after "rfftn" the last of the axes is halved

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
    chosen = axes_of(axes, None, tensor.ndim)
    lengths = _lengths(tensor, chosen, s, kind, "s")
    distances = distances_of("fft.frequencies", d, len(chosen))
    each = list(zip(chosen, lengths, distances, strict=True))
    return along_axes(tensor.layout, tensor.shape, tensor.dtype, each, chosen[-1] if _halves(kind) else None)


def along_axes(
    layout: Layout, shape: Shape, dtype: DType, axes: Sequence[tuple[int, int, float]], halved: int | None
) -> tuple[DTensor, ...]:
    """Return the frequencies along some axes of a spectrum.

    Parameters
    ----------
    layout, shape, dtype: of the spectrum
    axes: for each axis its number, the length of the array along it, and the distance of two elements
    halved: the axis along which there is only the first half; None if there is none
    """
    found = []
    for axis, n, distance in axes:
        only = tuple(shape[a] if a == axis else 1 for a in range(len(shape)))
        names = tuple(spec if a == axis else () for a, spec in enumerate(layout.axes))
        like = empty(only, np.empty(0, dtype).real.dtype, Layout(names, layout.mesh))
        found.append(_on_axis(like, axis, (n, distance), halved=axis == halved))
    return tuple(found)


def _lengths(tensor: DTensor, axes: list[int], s: Some, kind: str, argument: str) -> list[int]:
    """Return the lengths of the array of which *tensor* is the spectrum."""
    halves = _halves(kind)
    usual = [tensor.shape[a] for a in axes]
    if halves and axes:
        usual[-1] = 2 * (usual[-1] - 1)
    lengths = usual if s is None else [integer(n, argument, ShapeError) for n in listed(s)]
    if len(lengths) != len(axes):
        raise ShapeError(f"{argument} has {counted(len(lengths), 'length')} for {counted(len(axes), 'axis')}")
    for number, (axis, n) in enumerate(zip(axes, lengths, strict=True)):
        has = n // 2 + 1 if halves and number == len(axes) - 1 else n
        if has != tensor.shape[axis]:
            wrong = (
                f"{counted(n, 'element')} along axis {axis} have {has} in the spectrum, which has {tensor.shape[axis]}"
            )
            raise ShapeError(f"{argument}: {wrong}")
    return lengths


def _halves(kind: str) -> bool:
    check_has_frequencies("a spectrum", kind)
    return KINDS[full_name(kind)].change == "halves"


def check_has_frequencies(name: str, kind: str) -> None:
    """Raise ``ShapeError`` for a kind whose result is no spectrum of complex waves."""
    found = KINDS[full_name(kind)]
    if found.change not in ("complex", "halves"):
        raise ShapeError(f'{name} is for Fourier transforms, "fftn" or "rfftn"; {found.name} has no such frequencies')


def distances_of(name: str, d: object, count: int) -> list[float]:
    """Return the distances of elements along so many axes; ``ShapeError`` for what are none."""
    given: list[Value] = list(d) if isinstance(d, Sequence | np.ndarray) and not isinstance(d, str) else [d] * count
    if len(given) != count:
        raise ShapeError(f"{name}: {counted(len(given), 'distance')} in d for {counted(count, 'axis')}")
    for each in given:
        if isinstance(each, bool) or not isinstance(each, int | float | np.number) or not abs(float(each)) > 0:
            raise ShapeError(f"{name}: d must be a distance other than zero, or one for each axis, not {quote(each)}")
    return given


def _on_axis(result: DTensor, axis: int, grid: tuple[int, float], *, halved: bool = False) -> DTensor:
    """Fill *result* with the frequencies along *axis*, of a *grid* of n elements in distances of d, and return it."""
    n, d = grid
    if n < 1:
        raise ShapeError(f"frequencies of {counted(n, 'element')}: there must be 1 or more")
    if result.local is not None and result.mesh.rank is not None:
        index = result.layout.global_indices(result.shape, result.mesh.rank, axis)
        # The second half of a whole spectrum has negative frequencies.
        signed = index if halved else np.where(index < (n + 1) // 2, index, index - n)
        result.local[...] = (signed * (1.0 / (n * d))).reshape([-1 if a == axis else 1 for a in range(result.ndim)])
    return result


# -- order ------------------------------------------------------------------------------------------------------------


def fftshift(x: DTensor, axes: Axis = None) -> DTensor:
    """Return a spectrum with the element of frequency zero in the middle. Collective if a shifted axis is sharded.

    Only elements that get to another block move, and the layout stays. Source: scipy.fft.fftshift.
    """
    return _shifted("fft.fftshift", x, axes, 1)


def ifftshift(x: DTensor, axes: Axis = None) -> DTensor:
    """Return the inverse of `fftshift`. Collective if a shifted axis is sharded. Source: scipy.fft.ifftshift."""
    return _shifted("fft.ifftshift", x, axes, -1)


def _shifted(name: str, x: DTensor, axes: Axis, sign: int) -> DTensor:
    tensor = as_tensor(name, x)
    chosen = axes_of(axes, None, tensor.ndim)
    return roll(tensor, [sign * (tensor.shape[a] // 2) for a in chosen], tuple(chosen))


# -- longer and shorter spectra ---------------------------------------------------------------------------------------


def pad_spectrum(
    t_hat: DTensor, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor:
    """Return the spectrum of the same field on a finer grid: zeros at the high frequencies. Collective if they move.

    The element at half the sampling frequency, which an even length has, is shared out evenly to both signs. With
    lengths of 3/2 times the old ones, products of fields have no aliases: the 3/2 rule. The axes keep their specs.
    Source: S. A. Orszag, 1971; mpi4py-fft's padding.

    Parameters
    ----------
    t_hat: the spectrum
    s: the lengths of the finer grid, for each of the axes
    axes: the axes that were transformed; by default the last ones
    kind: what made the spectrum: after "rfftn" the last of the axes is halved
    was: the lengths of the old grid; by default those of the spectrum, and an even one for a halved axis
    norm: as in the transforms: values of the field stay the same

    ``ShapeError`` for lengths below the old ones.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     wave = mc.distribute(np.cos(2 * np.pi * np.arange(4) / 4), rows)
    ...     finer = mc.fft.pad_spectrum(mc.fft.fft(wave), 6)
    ...     return mc.fft.ifft(finer, layout=rows).to_numpy().real.round(3).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1.0, 0.5, -0.5, -1.0, -0.5, 0.5]
    """
    return _resized("fft.pad_spectrum", t_hat, (s, axes, was), kind, norm)


def crop_spectrum(
    t_hat: DTensor, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor:
    """Return the spectrum of the same field on a coarser grid: without high frequencies. Collective if elements move.

    It is the inverse of `pad_spectrum`, whose arguments it has; *s* are the lengths of the coarser grid.
    """
    return _resized("fft.crop_spectrum", t_hat, (s, axes, was), kind, norm)


def _resized(name: str, t_hat: DTensor, grids: tuple[Some, Some, Some], kind: str, norm: str | None) -> DTensor:
    tensor, (s, axes, was) = as_tensor(name, t_hat), grids
    if s is None:
        raise ShapeError(f"{name}: s must be the lengths of the new grid, not None")
    after = [integer(n, "s", ShapeError) for n in listed(s)]
    chosen = axes_of(axes, list(after), tensor.ndim)
    if len(after) != len(chosen):
        raise ShapeError(f"{name}: {counted(len(after), 'length')} in s for {counted(len(chosen), 'axis')}")
    if norm not in NORMS:
        raise ShapeError(f'invalid norm value {quote(norm)}, should be "backward", "ortho" or "forward"')
    before = _lengths(tensor, chosen, was, kind, "was")
    grows = name.endswith("pad_spectrum")
    for axis, n, m in zip(chosen, before, after, strict=True):
        if (m < n) if grows else not 1 <= m <= n:
            raise ShapeError(f"{name}: {counted(m, 'element')} along axis {axis}, where the old grid has {n}")
    found = tensor
    each = list(zip(chosen, before, after, strict=True))
    # The array is small before it is padded, and after it is cropped: what is sent goes then.
    for axis, n, m in sorted(each, key=lambda of_axis: (tensor.layout.num_shards(of_axis[0]) == 1) == grows):
        halved = _halves(kind) and axis == chosen[-1]
        if n != m:
            if found.layout.num_shards(axis) == 1 and (grows or not halved):
                found = _whole_axis(found, axis, n, m, halved=halved)
            elif grows:
                found = _padded(found, axis, n, m, halved=halved)
            else:
                found = _cropped(found, axis, (n, m), chosen[:-1] if halved else None)
    ratio = prod(after) / prod(before)
    scale = {"ortho": ratio**0.5, "forward": 1.0}.get(norm or "", ratio)
    local = None if found.local is None else np.multiply(found.local, scale, dtype=found.dtype)
    return DTensor(local, found.layout, found.shape, found.dtype)


def _padded(tensor: DTensor, axis: int, n: int, m: int, *, halved: bool) -> DTensor:
    ndim, positive, negative = tensor.ndim, (n + 1) // 2, (n - 1) // 2
    result = longer_zeros(tensor, axis, m // 2 + 1 if halved else m)
    _take(result, span(ndim, axis, 0, positive), tensor, span(ndim, axis, 0, positive))
    if not halved:
        _take(result, span(ndim, axis, m - negative, m), tensor, span(ndim, axis, n - negative, n))
    if n % 2 == 0:
        middle = span(ndim, axis, n // 2, n // 2 + 1)
        half = _scaled(getitem(tensor, middle), 0.5)
        put("pad_spectrum", result, middle, half)
        if not halved:
            put("pad_spectrum", result, span(ndim, axis, m - n // 2, m - n // 2 + 1), half)
    return result


def _cropped(tensor: DTensor, axis: int, grids: tuple[int, int], others: list[int] | None) -> DTensor:
    """Crop *axis* from the old to the new one of two *grids*; *others* are the other axes if this one is halved."""
    (n, m), ndim = grids, tensor.ndim
    positive, negative = (m + 1) // 2, (m - 1) // 2
    result = longer_zeros(tensor, axis, m if others is None else m // 2 + 1)
    _take(result, span(ndim, axis, 0, positive), tensor, span(ndim, axis, 0, positive))
    if others is None:
        _take(result, span(ndim, axis, m - negative, m), tensor, span(ndim, axis, n - negative, n))
    if m % 2 == 0:
        middle = span(ndim, axis, m // 2, m // 2 + 1)
        one: Value = getitem(tensor, middle)
        if others is None:
            other = getitem(tensor, span(ndim, axis, n - m // 2, n - m // 2 + 1))
        else:
            other = _mirrored(one, others)
        put("crop_spectrum", result, middle, one + other)
    return result


def _whole_axis(tensor: DTensor, axis: int, n: int, m: int, *, halved: bool) -> DTensor:
    """Return the spectrum padded along an axis that is whole on every device, or cropped if the axis is not halved."""
    result = longer_zeros(tensor, axis, m // 2 + 1 if halved else m)
    old, new = tensor.local, result.local
    if old is None or new is None:
        return result
    least, ndim = min(n, m), tensor.ndim
    low = span(ndim, axis, 0, (least + 1) // 2)
    new[low] = old[low]
    negative = 0 if halved else (least - 1) // 2
    new[span(ndim, axis, m - negative, m)] = old[span(ndim, axis, n - negative, n)]
    if least % 2 == 0:
        middle = span(ndim, axis, least // 2, least // 2 + 1)
        if m > n:
            new[middle] = old[middle] * 0.5
            if not halved:
                other = m - least // 2
                new[span(ndim, axis, other, other + 1)] = new[middle]
        else:
            other = n - least // 2
            new[middle] = old[middle] + old[span(ndim, axis, other, other + 1)]
    return result


def _mirrored(tensor: DTensor, axes: list[int]) -> DTensor:
    """Return the elements of the opposite frequencies, of which the half of a spectrum has only the conjugates."""
    turned = roll(flip(tensor.copy(), tuple(axes)), [1] * len(axes), tuple(axes)) if axes else tensor
    local = None if turned.local is None else np.conj(turned.local)
    return DTensor(local, turned.layout, turned.shape, turned.dtype)


def _take(result: DTensor, where: tuple[slice, ...], tensor: DTensor, taken: tuple[slice, ...]) -> None:
    put("pad_spectrum", result, where, getitem(tensor, taken))


def _scaled(tensor: DTensor, factor: float) -> DTensor:
    local: Array | None = None if tensor.local is None else np.multiply(tensor.local, factor, dtype=tensor.dtype)
    return DTensor(local, tensor.layout, tensor.shape, tensor.dtype)
