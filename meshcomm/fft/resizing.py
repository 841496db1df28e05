"""Spectra of the same fields on a finer or a coarser grid, in one exchange.

Along an axis, elements of low frequencies are kept. Here are a grid of 4 elements and one of 7:

    4       0  1  2     3      the element 2, at half the sampling frequency, has both signs
    common  0  1  2  2  3      so it is twice in the common elements
    7       0  1  2  .  .  2  3

The common elements have the same order in both grids. So each device takes the common elements of its block, a
relayout cuts them at the starts of the new blocks, and each device copies them to its new block.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into, map_to_new, mapped
from meshcomm.blocks.session import session
from meshcomm.core._arguments import as_integer, counted, quote
from meshcomm.core._tracing import Value, is_traced, traceable, untraced
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import cut_at
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.fft.calls import Ints, axes_of, listed
from meshcomm.fft.kinds import NORMS
from meshcomm.fft.padding import span
from meshcomm.fft.spectra import halves, lengths_of
from meshcomm.numpy.gradients import differentiable, in_layout_of
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put
from meshcomm.numpy.joining.rolling import flip, roll

Spectra = TypeVar("Spectra", DTensor, list[DTensor])
"""A spectrum, or several that move together."""

OPERATION = "fft.spectra on another grid"
"""The text that ranks compare, also for messages."""


class IndexRange(NamedTuple):
    """A range of elements to copy along an axis.

    Parameters
    ----------
    source_start, target_start: index of the first element in the source, and in the target
    length: number of elements
    accumulate: whether to add the elements to those of the target instead of overwriting them
    """

    source_start: int
    target_start: int
    length: int
    accumulate: bool = False


class ResizedAxis(NamedTuple):
    """An axis on the old and on the new grid.

    Parameters
    ----------
    axis: number of the axis
    old_grid_length, new_grid_length: lengths of the two grids
    halved: whether only the first half of the spectrum is stored
    """

    axis: int
    old_grid_length: int
    new_grid_length: int
    halved: bool

    @property
    def num_old(self) -> int:
        """Number of elements of the old spectrum."""
        return self.old_grid_length // 2 + 1 if self.halved else self.old_grid_length

    @property
    def num_new(self) -> int:
        """Number of elements of the new spectrum."""
        return self.new_grid_length // 2 + 1 if self.halved else self.new_grid_length

    @property
    def num_low(self) -> int:
        """Number of common elements at the beginning."""
        return min(self.old_grid_length, self.new_grid_length) // 2 + 1

    @property
    def num_high(self) -> int:
        """Number of common elements at the end."""
        return 0 if self.halved else self.num_low - 1

    @property
    def num_common(self) -> int:
        """Number of common elements of both grids; the Nyquist element of an even length counts twice."""
        return self.num_low + self.num_high

    @property
    def nyquist_index(self) -> int | None:
        """Index of the element at half the sampling frequency of the coarser grid; None if there is none."""
        shorter = min(self.old_grid_length, self.new_grid_length)
        return None if shorter % 2 else shorter // 2

    def boundaries(self, starts: Sequence[int], length: int) -> list[int]:
        """Return the number of common elements before each of *starts*, on an axis of *length*.

        >>> axis = ResizedAxis(0, 4, 7, False)
        >>> axis.boundaries([0, 2, 4], 4), axis.boundaries([0, 4, 7], 7)
        ([0, 2, 5], [0, 3, 5])
        """
        return [min(start, self.num_low) + max(0, start - (length - self.num_high)) for start in starts]

    def old_index(self, number: int) -> int:
        """Return the index in the old spectrum of common element *number*."""
        return number if number < self.num_low else self.num_old - (self.num_common - number)

    def copy_ranges(self, source_length: int, target_length: int) -> list[IndexRange]:
        """Return the ranges of elements to copy from an axis of *source_length* to one of *target_length*.

        Each is `num_old`, `num_new` or `num_common`.
        """
        low, high = self.num_low, self.num_high
        if source_length == target_length:
            return [IndexRange(0, 0, source_length)]
        ranges = [IndexRange(0, 0, low)]
        if target_length < low + high:  # the source has the Nyquist element twice
            ranges.append(IndexRange(source_length - high, target_length - high, 1, accumulate=True))
            high -= 1
        return [*ranges, IndexRange(source_length - high, target_length - high, high)]


class Resizing(NamedTuple):
    """The change from a spectrum to that of the same field on another grid.

    Parameters
    ----------
    resized_axes: the axes that change
    nyquist_factor: factor of the elements at half the sampling frequency of the coarser grid
    conjugate_axes: the full axes to reverse when folding -k onto the Nyquist plane of the halved axis; None when
        padding
    scale: factor of all elements
    grows: whether the new grid is finer
    """

    resized_axes: tuple[ResizedAxis, ...]
    nyquist_factor: float
    conjugate_axes: tuple[int, ...] | None
    scale: float
    grows: bool


@refusable
def pad_spectrum(
    t_hat: Spectra, s: Ints, axes: Ints = None, *, kind: str = "fftn", was: Ints = None, norm: str | None = None
) -> Spectra:
    """Return the spectrum of the same field on a finer grid: zeros at high frequencies. Collective if elements move.

    The element at half the sampling frequency of an even length is split evenly between both signs. With lengths of
    3/2 times the old ones, products of fields have no aliases: the 3/2 rule. Blocks are cut evenly along the axes.
    Elements move in one exchange. Source: S. A. Orszag, 1971; mpi4py-fft's padding.

    Parameters
    ----------
    t_hat: the spectrum, or a list of spectra, which move in one exchange
    s: lengths of the finer grid along the axes
    axes: the transformed axes; by default the last ones
    kind: transform of the spectrum: after "rfftn" the last of the axes is halved
    was: int or sequence of ints, lengths of the old grid; default: the shape of the spectrum, 2*(m - 1) for a
        halved axis of m
    norm: norm of the transforms: the transform back with the same norm gives the values of the same field

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
    return _on_grid("fft.pad_spectrum", t_hat, (s, axes, was), kind, norm)


@refusable
def crop_spectrum(
    t_hat: Spectra, s: Ints, axes: Ints = None, *, kind: str = "fftn", was: Ints = None, norm: str | None = None
) -> Spectra:
    """Return the spectrum of the same field on a coarser grid: without high frequencies. Collective if elements move.

    It is the inverse of `pad_spectrum`. An even length along a halved axis takes more exchanges, of one plane, if
    other axes of the transform are sharded: elements of the opposite frequencies are added there.

    Other arguments are those of `pad_spectrum`.

    Parameters
    ----------
    s: lengths of the coarser grid along the axes
    """
    return _on_grid("fft.crop_spectrum", t_hat, (s, axes, was), kind, norm)


def _on_grid(name: str, t_hat: Spectra, grids: tuple[Ints, Ints, Ints], kind: str, norm: str | None) -> Spectra:
    spectra: list[DTensor] = list(t_hat) if isinstance(t_hat, list | tuple) else [t_hat]
    resizings = [_resizing(name, as_tensor(name, untraced(spectrum)), grids, kind, norm) for spectrum in spectra]
    if any(is_traced(spectrum) for spectrum in spectra):
        results: Value = [resize(x, resizing) for x, resizing in zip(spectra, resizings, strict=True)]
    else:
        results = _resize_all(spectra, resizings)
    return results if isinstance(t_hat, list | tuple) else results[0]


def _resizing(name: str, tensor: DTensor, grids: tuple[Ints, Ints, Ints], kind: str, norm: str | None) -> Resizing:
    """Return the resizing for the arguments of a call; raise the errors of the call.

    *grids* are the lengths of the new grid, the axes, and the lengths of the old grid.
    """
    s, axes_argument, old_s = grids
    if s is None:
        raise ShapeError(f"{name}: s must be the lengths of the new grid, not None")
    new_lengths = [as_integer(n, "s", ShapeError) for n in listed(s)]
    axes = axes_of(axes_argument, list(new_lengths), tensor.ndim)
    if len(new_lengths) != len(axes):
        raise ShapeError(f"{name}: {counted(len(new_lengths), 'length')} in s for {counted(len(axes), 'axis')}")
    if norm not in NORMS:
        raise ShapeError(f'invalid norm value {quote(norm)}, should be "backward", "ortho" or "forward"')
    old_lengths = lengths_of(tensor, axes, old_s, kind, "was")
    grows = name.endswith("pad_spectrum")
    for axis, n, m in zip(axes, old_lengths, new_lengths, strict=True):
        if (m < n) if grows else not 1 <= m <= n:
            raise ShapeError(f"{name}: {m} elements along axis {axis}, where the old grid has {n}")
    ratio, halved_axis = prod(new_lengths) / prod(old_lengths), axes[-1] if halves(kind) and axes else None
    lengths = zip(axes, old_lengths, new_lengths, strict=True)
    return Resizing(
        resized_axes=tuple(ResizedAxis(axis, n, m, axis == halved_axis) for axis, n, m in lengths if n != m),
        nyquist_factor=0.5 if grows else 1.0,
        conjugate_axes=None if grows else tuple(axes[:-1]),
        scale={"ortho": ratio**0.5, "forward": 1.0}.get(norm or "", ratio),
        grows=grows,
    )


# -- blocks -----------------------------------------------------------------------------------------------------------


@traceable()
def resize(x: DTensor, resizing: Resizing) -> DTensor:
    """Return the spectrum *x* on another grid. Collective if elements move."""
    return _resize_all([x], [resizing])[0]


def _vjp(grad: DTensor, x: DTensor, resizing: Resizing) -> DTensor:
    """Return the gradient with respect to the old spectrum: copy elements back, with the same factors."""
    swapped_axes = tuple(
        axis._replace(old_grid_length=axis.new_grid_length, new_grid_length=axis.old_grid_length)
        for axis in resizing.resized_axes
    )
    return in_layout_of(resize(grad, resizing._replace(resized_axes=swapped_axes, grows=not resizing.grows)), x)


differentiable(resize, _vjp)


def _resize_all(tensors: Sequence[DTensor], resizings: Sequence[Resizing]) -> list[DTensor]:
    """Return each spectrum on its new grid. Collective if elements move: in one exchange."""
    resizers = [_Resizer(tensor, resizing) for tensor, resizing in zip(tensors, resizings, strict=True)]
    common_tensors = _relayout_all(
        [resizer.common_elements() for resizer in resizers], [resizer.common_layout for resizer in resizers]
    )
    return [resizer.to_new_grid(tensor) for resizer, tensor in zip(resizers, common_tensors, strict=True)]


def _relayout_all(tensors: list[DTensor], layouts: list[Layout]) -> list[DTensor]:
    """Return *tensors* in other *layouts*. Collective if elements move: in one exchange."""
    spectra = dict(enumerate(tensors))
    moving_numbers = [i for i, tensor in spectra.items() if tensor.layout.axes != layouts[i].axes]
    if moving_numbers:
        with session(OPERATION, spectra[moving_numbers[0]].mesh):
            results = relayout([spectra[i] for i in moving_numbers], [layouts[i] for i in moving_numbers])
        spectra.update(zip(moving_numbers, results, strict=True))
    return list(spectra.values())


class _Resizer:
    """Resizes one spectrum: takes the common elements from each block, and puts them into the new block."""

    def __init__(self, tensor: DTensor, resizing: Resizing) -> None:
        self._resizing = resizing
        self._tensor = _with_consecutive_blocks(tensor, resizing)
        axes, result_shape, common_shape = list(self._tensor.layout.axes), list(tensor.shape), list(tensor.shape)
        source_axes, common_axes = list(axes), list(axes)
        for resized_axis in resizing.resized_axes:
            axis, num_old, num_new = resized_axis.axis, resized_axis.num_old, resized_axis.num_new
            num_common, blocks = resized_axis.num_common, self._tensor.layout.num_shards(axis)
            source_axes[axis] = common_axes[axis] = axes[axis] = names = tuple(axes[axis])
            result_shape[axis] = num_new
            # The common elements of an unsharded axis have the shorter length: so the least is copied.
            common_shape[axis] = num_common if blocks > 1 else min(num_old, num_new)
            if blocks > 1:
                cut = self._tensor.layout.cut(axis, num_old)
                assert cut.is_consecutive
                starts, new_starts = cut.all_starts(), Cut(num_new, blocks).all_starts()
                source_axes[axis] = cut_at(names, resized_axis.boundaries(starts, num_old), num_common)
                common_axes[axis] = cut_at(names, resized_axis.boundaries(new_starts, num_new), num_common)
        self._common_shape, self._result_shape = tuple(common_shape), tuple(result_shape)
        # Layouts of the common elements: cut as the old spectrum, and then as the new one.
        self._source_layout, self.common_layout = Layout(source_axes, tensor.mesh), Layout(common_axes, tensor.mesh)
        self._result_layout = Layout(axes, tensor.mesh)

    def common_elements(self) -> DTensor:
        """Return the common elements of the old spectrum, on the devices that hold them."""
        scale = 1.0 if self._resizing.grows else self._resizing.scale
        return self._copy_elements(self._tensor, self._source_layout, self._common_shape, scale)

    def to_new_grid(self, common: DTensor) -> DTensor:
        """Return the new spectrum from *common* elements. Collective if the Nyquist plane is on several devices."""
        scale = self._resizing.scale if self._resizing.grows else 1.0
        spectrum = self._copy_elements(common, self._result_layout, self._result_shape, scale)
        if spectrum is self._tensor:  # nothing has changed or moved
            spectrum = spectrum.copy()
        for resized_axis in self._resizing.resized_axes:
            self._scale_nyquist(spectrum, resized_axis)
        for resized_axis in self._resizing.resized_axes:
            index = resized_axis.nyquist_index
            if index is not None and resized_axis.halved and self._resizing.conjugate_axes is not None:
                slices = span(spectrum.ndim, resized_axis.axis, index, index + 1)
                plane = getitem(spectrum, slices)
                put(OPERATION, spectrum, slices, plane + _opposite_frequencies(plane, self._resizing.conjugate_axes))
        return spectrum

    def _copy_elements(self, tensor: DTensor, layout: Layout, shape: Shape, scale: float) -> DTensor:
        """Return a tensor of *shape* with the elements of each block copied by the ranges of each axis."""
        if tensor.shape == shape and scale == 1:
            return tensor

        def copy(out: Array, block: Array) -> None:
            source, target = tensor.layout.block_box(tensor.shape), layout.block_box(shape)
            ranges = [[IndexRange(0, 0, n)] for n in block.shape]
            for resized_axis in self._resizing.resized_axes:
                axis = resized_axis.axis
                axis_ranges = resized_axis.copy_ranges(tensor.shape[axis], shape[axis])
                ranges[axis] = list(_in_block(axis_ranges, source[axis][:2], target[axis][0]))
            _copy_block(block, ranges, out, scale)

        return map_to_new(copy, tensor, layout=layout, shape=shape)

    def _scale_nyquist(self, tensor: DTensor, resized_axis: ResizedAxis) -> None:
        """Multiply the elements at half the sampling frequency of the coarser grid by their factor."""
        nyquist_index, factor = resized_axis.nyquist_index, self._resizing.nyquist_factor
        if nyquist_index is None or factor == 1:
            return

        def scale(block: Array) -> None:
            axis = resized_axis.axis
            start, stop, *_ = tensor.layout.block_box(tensor.shape)[axis]
            indices = {nyquist_index} if resized_axis.halved else {nyquist_index, resized_axis.num_new - nyquist_index}
            for index in indices:
                if start <= index < stop:
                    block[span(block.ndim, axis, index - start, index - start + 1)] *= factor

        map_into(scale, tensor)


def _with_consecutive_blocks(tensor: DTensor, resizing: Resizing) -> DTensor:
    """Return *tensor* with consecutive blocks on the axes that change. Collective if some are cyclic."""
    axes = list(tensor.layout.axes)
    for resized_axis in resizing.resized_axes:
        axis, num_old, num_new = resized_axis.axis, resized_axis.num_old, resized_axis.num_new
        cut = tensor.layout.cut(axis, num_old)
        if not cut.is_consecutive:
            # Cut where the blocks of the new grid begin: then nearly all elements are on the right device.
            boundaries = resized_axis.boundaries(Cut(num_new, cut.blocks).all_starts(), num_new)
            axes[axis] = cut_at(tuple(axes[axis]), [resized_axis.old_index(n) for n in boundaries], num_old)
    return relaid(tensor, tuple(axes), OPERATION)


def _in_block(ranges: Sequence[IndexRange], interval: tuple[int, int], target_start: int) -> Iterator[IndexRange]:
    """Yield the parts of *ranges* that are in a block, with local indices of this block and of the new one.

    Parameters
    ----------
    ranges: ranges of the whole axis
    interval: start and stop of the block
    target_start: start of the new block
    """
    for axis_range in ranges:
        start, stop = (
            max(axis_range.source_start, interval[0]),
            min(axis_range.source_start + axis_range.length, interval[1]),
        )
        if start < stop:
            new_start = axis_range.target_start + start - axis_range.source_start - target_start
            yield IndexRange(start - interval[0], new_start, stop - start, axis_range.accumulate)


def _copy_block(block: Array, axes: list[list[IndexRange]], out: Array, scale: float) -> None:
    """Fill *out*, the new block, with the elements of *block* times *scale*, and zeros elsewhere."""
    overwritten = [sum(r.length for r in ranges if not r.accumulate) for ranges in axes]
    if any(count < n for count, n in zip(overwritten, out.shape, strict=True)):
        out[...] = 0
    # Copies come before additions to the same elements.
    for box in sorted(product(*axes), key=lambda box: sum(r.accumulate for r in box)):
        source = block[tuple(slice(r.source_start, r.source_start + r.length) for r in box)]
        target = out[tuple(slice(r.target_start, r.target_start + r.length) for r in box)]
        if any(r.accumulate for r in box):
            target += source * block.dtype.type(scale)
        elif scale == 1:
            np.copyto(target, source)
        else:
            np.multiply(source, scale, out=target, dtype=block.dtype)


def _opposite_frequencies(tensor: DTensor, axes: tuple[int, ...]) -> DTensor:
    """Return the elements at the opposite frequencies, which half a spectrum has as conjugates."""
    reversed_plane = roll(flip(tensor.copy(), axes), [1] * len(axes), axes) if axes else tensor
    return mapped(np.conj, reversed_plane)
