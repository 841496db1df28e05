"""Spectra of the same fields on a finer or a coarser grid, in one exchange.

Along an axis, elements of low frequencies are kept. Here are a grid of 4 elements and one of 7:

    4       0  1  2     3      the element 2, at half the sampling frequency, has both signs
    common  0  1  2  2  3      so it is twice in the common elements
    7       0  1  2  .  .  2  3

The common elements have the same order in both grids. So each device takes the common elements of its block; a
relayout cuts them where the blocks of the new grid begin; and each device copies them to its new block.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into, map_to_new, mapped
from meshcomm.blocks.session import session
from meshcomm.core._arguments import counted, integer, quote
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
from meshcomm.numpy.gradients import differentiable, like
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put
from meshcomm.numpy.joining.rolling import flip, roll

Spectra = TypeVar("Spectra", DTensor, list[DTensor])
"""A spectrum, or several, which move together."""

OPERATION = "fft.spectra on another grid"
"""The text that ranks compare, also for messages."""


class IndexRange(NamedTuple):
    """A range of indices: its start and length, the start of its target, and whether its elements are added there."""

    start: int
    to: int
    length: int
    adds: bool = False


class Grids(NamedTuple):
    """An axis of the old and of the new grid.

    Parameters
    ----------
    axis: number of the axis
    before, after: the lengths of the two grids
    halved: whether only the first half of the spectrum is stored
    """

    axis: int
    before: int
    after: int
    halved: bool

    @property
    def old(self) -> int:
        """The elements of the old spectrum."""
        return self.before // 2 + 1 if self.halved else self.before

    @property
    def new(self) -> int:
        """The elements of the new spectrum."""
        return self.after // 2 + 1 if self.halved else self.after

    @property
    def low(self) -> int:
        """The common elements at the beginning."""
        return min(self.before, self.after) // 2 + 1

    @property
    def high(self) -> int:
        """The common elements at the end."""
        return 0 if self.halved else self.low - 1

    @property
    def common(self) -> int:
        """The common elements of both grids; the middle one of an even length counts twice."""
        return self.low + self.high

    @property
    def middle(self) -> int | None:
        """The index of the element at half the sampling frequency of the coarser grid; None if there is none."""
        least = min(self.before, self.after)
        return None if least % 2 else least // 2

    def boundaries(self, starts: Sequence[int], length: int) -> list[int]:
        """Return the number of common elements before each of *starts*, on an axis of *length*.

        >>> Grids(0, 4, 7, False).boundaries([0, 2, 4], 4), Grids(0, 4, 7, False).boundaries([0, 4, 7], 7)
        ([0, 2, 5], [0, 3, 5])
        """
        return [min(start, self.low) + max(0, start - (length - self.high)) for start in starts]

    def index_before(self, count: int) -> int:
        """Return the index in the old spectrum of common element number *count*."""
        return count if count < self.low else self.old - (self.common - count)

    def runs(self, before: int, after: int) -> list[IndexRange]:
        """Return the ranges of elements to copy from an axis of length *before* to one of length *after*.

        Each is the length of one of the grids, or of the common elements.
        """
        low, high = self.low, self.high
        if before == after:
            return [IndexRange(0, 0, before)]
        runs = [IndexRange(0, 0, low)]
        if after < low + high:  # the middle, which comes twice before
            runs.append(IndexRange(before - high, after - high, 1, adds=True))
            high -= 1
        return [*runs, IndexRange(before - high, after - high, high)]


class Resizing(NamedTuple):
    """From a spectrum to the spectrum of the same field on another grid.

    Parameters
    ----------
    grids: the axes that change
    weight: factor of the elements in the middle of the coarser grid
    mirrored: the other axes, if elements of the opposite frequencies are added to the middle of the halved axis
    scale: factor of all elements
    grows: whether the new grid is finer
    """

    grids: tuple[Grids, ...]
    weight: float
    mirrored: tuple[int, ...] | None
    scale: float
    grows: bool


@refusable
def pad_spectrum(
    t_hat: Spectra,
    s: Ints,
    axes: Ints = None,
    *,
    kind: str = "fftn",
    was: Ints = None,
    norm: str | None = None,
) -> Spectra:
    """Return the spectrum of the same field on a finer grid: zeros at the high frequencies. Collective if they move.

    The element at half the sampling frequency of an even length is split evenly between both signs. With lengths of
    3/2 times the old ones, products of fields have no aliases: the 3/2 rule. Blocks are cut evenly along the axes.
    Elements move in one exchange. Source: S. A. Orszag, 1971; mpi4py-fft's padding.

    Parameters
    ----------
    t_hat: the spectrum, or a list of spectra, which move in one exchange
    s: lengths of the finer grid along the axes
    axes: the transformed axes; by default the last ones
    kind: transform of the spectrum: after "rfftn" the last of the axes is halved
    was: lengths of the old grid; by default those of the spectrum, and an even length for a halved axis
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
    return _resized("fft.pad_spectrum", t_hat, (s, axes, was), kind, norm)


@refusable
def crop_spectrum(
    t_hat: Spectra,
    s: Ints,
    axes: Ints = None,
    *,
    kind: str = "fftn",
    was: Ints = None,
    norm: str | None = None,
) -> Spectra:
    """Return the spectrum of the same field on a coarser grid: without high frequencies. Collective if elements move.

    It is the inverse of `pad_spectrum`. An even length along a halved axis takes more exchanges, of one plane, if
    other axes of the transform are sharded: elements of the opposite frequencies are added there.

    Other arguments are those of `pad_spectrum`.

    Parameters
    ----------
    s: lengths of the coarser grid along the axes
    """
    return _resized("fft.crop_spectrum", t_hat, (s, axes, was), kind, norm)


def _resized(name: str, t_hat: Spectra, grids: tuple[Ints, Ints, Ints], kind: str, norm: str | None) -> Spectra:
    spectra: list[Value] = list(t_hat) if isinstance(t_hat, list | tuple) else [t_hat]
    resizings = [_resizing(name, as_tensor(name, untraced(spectrum)), grids, kind, norm) for spectrum in spectra]
    if any(is_traced(spectrum) for spectrum in spectra):
        results: Value = [resized(x, how) for x, how in zip(spectra, resizings, strict=True)]
    else:
        results = _all_resized(spectra, resizings)
    result: Spectra = results if isinstance(t_hat, list | tuple) else results[0]
    return result


def _resizing(name: str, tensor: DTensor, grids: tuple[Ints, Ints, Ints], kind: str, norm: str | None) -> Resizing:
    """Return the resizing for the arguments of a call; raise the errors of the call."""
    s, axes, was = grids
    if s is None:
        raise ShapeError(f"{name}: s must be the lengths of the new grid, not None")
    after = [integer(n, "s", ShapeError) for n in listed(s)]
    chosen = axes_of(axes, list(after), tensor.ndim)
    if len(after) != len(chosen):
        raise ShapeError(f"{name}: {counted(len(after), 'length')} in s for {counted(len(chosen), 'axis')}")
    if norm not in NORMS:
        raise ShapeError(f'invalid norm value {quote(norm)}, should be "backward", "ortho" or "forward"')
    before = lengths_of(tensor, chosen, was, kind, "was")
    grows = name.endswith("pad_spectrum")
    for axis, n, m in zip(chosen, before, after, strict=True):
        if (m < n) if grows else not 1 <= m <= n:
            raise ShapeError(f"{name}: {m} elements along axis {axis}, where the old grid has {n}")
    ratio, last = prod(after) / prod(before), chosen[-1] if halves(kind) and chosen else None
    lengths = zip(chosen, before, after, strict=True)
    return Resizing(
        tuple(Grids(axis, n, m, axis == last) for axis, n, m in lengths if n != m),
        0.5 if grows else 1.0,
        None if grows else tuple(chosen[:-1]),
        {"ortho": ratio**0.5, "forward": 1.0}.get(norm or "", ratio),
        grows,
    )


# -- blocks -----------------------------------------------------------------------------------------------------------


@traceable()
def resized(x: Value, how: Resizing) -> DTensor:
    """Return the spectrum *x* on another grid. Collective if elements move."""
    return _all_resized([x], [how])[0]


def _vjp(grad: Value, x: Value, how: Resizing) -> Value:
    """Return the gradient in the old spectrum: elements are copied back, with the same factors."""
    back = tuple(grids._replace(before=grids.after, after=grids.before) for grids in how.grids)
    return like(resized(grad, how._replace(grids=back, grows=not how.grows)), x)


differentiable(resized, _vjp)


def _all_resized(tensors: Sequence[DTensor], resizings: Sequence[Resizing]) -> list[DTensor]:
    """Return spectra on other grids, one for each. Collective if elements move: in one exchange."""
    resizers = [_Resizer(tensor, resizing) for tensor, resizing in zip(tensors, resizings, strict=True)]
    moved = _relaid([resizer.taken() for resizer in resizers], [resizer.needed for resizer in resizers])
    return [resizer.put(tensor) for resizer, tensor in zip(resizers, moved, strict=True)]


def _relaid(tensors: list[DTensor], layouts: list[Layout]) -> list[DTensor]:
    """Return *tensors* in other *layouts*. Collective if elements move: in one exchange."""
    spectra = dict(enumerate(tensors))
    moving = [number for number, tensor in spectra.items() if tensor.layout.axes != layouts[number].axes]
    if moving:
        with session(OPERATION, spectra[moving[0]].mesh):
            results = relayout([spectra[number] for number in moving], [layouts[number] for number in moving])
        spectra.update(zip(moving, results, strict=True))
    return list(spectra.values())


class _Resizer:
    """One spectrum on its way to another grid: the elements taken from each block, and those put into the new one."""

    def __init__(self, tensor: DTensor, how: Resizing) -> None:
        self._how = how
        self._tensor = _consecutive(tensor, how)
        axes, shape, between = list(self._tensor.layout.axes), list(tensor.shape), list(tensor.shape)
        takes, needs = list(axes), list(axes)
        for grids in how.grids:
            axis, blocks = grids.axis, self._tensor.layout.num_shards(grids.axis)
            takes[axis] = needs[axis] = axes[axis] = names = tuple(axes[axis])
            shape[axis] = grids.new
            # An unsharded axis changes its length where less is copied: on the smaller side.
            between[axis] = grids.common if blocks > 1 else min(grids.old, grids.new)
            if blocks > 1:
                cut = self._tensor.layout.cut(axis, grids.old)
                assert cut.is_consecutive
                takes[axis] = cut_at(names, grids.boundaries(cut.all_starts(), grids.old), grids.common)
                needs[axis] = cut_at(
                    names, grids.boundaries(Cut(grids.new, blocks).all_starts(), grids.new), grids.common
                )
        self._between, self._shape, mesh = tuple(between), tuple(shape), tensor.mesh
        self._takes, self.needed, self._target = Layout(takes, mesh), Layout(needs, mesh), Layout(axes, mesh)

    def taken(self) -> DTensor:
        """Return the common elements of the old spectrum."""
        return self._copied(self._tensor, self._takes, self._between, 1.0 if self._how.grows else self._how.scale)

    def put(self, common: DTensor) -> DTensor:
        """Return the new spectrum from the *common* elements. Collective if the middle is on several devices."""
        spectrum = self._copied(common, self._target, self._shape, self._how.scale if self._how.grows else 1.0)
        if spectrum is self._tensor:  # nothing changes, and nothing moved
            spectrum = spectrum.copy()
        for grids in self._how.grids:
            if grids.middle is not None:
                self._weigh(spectrum, grids)
        for grids in self._how.grids:
            if grids.middle is not None and grids.halved and self._how.mirrored is not None:
                middle = span(spectrum.ndim, grids.axis, grids.middle, grids.middle + 1)
                plane: Value = getitem(spectrum, middle)
                put(OPERATION, spectrum, middle, plane + _mirrored(plane, self._how.mirrored))
        return spectrum

    def _copied(self, tensor: DTensor, layout: Layout, shape: Shape, scale: float) -> DTensor:
        """Return a tensor of *shape* with the elements of each block copied by the ranges of each axis."""
        if tensor.shape == shape and scale == 1:
            return tensor

        def copy(new: Array, block: Array) -> None:
            source, target = tensor.layout.block_box(tensor.shape), layout.block_box(shape)
            axes = [[IndexRange(0, 0, n)] for n in block.shape]
            for grids in self._how.grids:
                axis = grids.axis
                runs = grids.runs(tensor.shape[axis], shape[axis])
                axes[axis] = list(_within(runs, source[axis][:2], target[axis][0]))
            _copy_runs(block, axes, new, scale)

        return map_to_new(copy, tensor, layout=layout, shape=shape)

    def _weigh(self, tensor: DTensor, grids: Grids) -> None:
        """Multiply the elements in the middle of the coarser grid by the weight."""
        middle, weight = grids.middle, self._how.weight
        if middle is None or weight == 1:
            return

        def weigh(block: Array) -> None:
            start, stop, *_ = tensor.layout.block_box(tensor.shape)[grids.axis]
            for index in {middle} if grids.halved else {middle, grids.new - middle}:
                if start <= index < stop:
                    block[span(block.ndim, grids.axis, index - start, index - start + 1)] *= weight

        map_into(weigh, tensor)


def _consecutive(tensor: DTensor, how: Resizing) -> DTensor:
    """Return *tensor* with consecutive blocks on the axes that change. Collective if some are cyclic."""
    axes = list(tensor.layout.axes)
    for grids in how.grids:
        axis, cut = grids.axis, tensor.layout.cut(grids.axis, grids.old)
        if not cut.is_consecutive:
            # Cut where the blocks of the new grid begin: then nearly all elements are on the right device.
            needs = grids.boundaries(Cut(grids.new, cut.blocks).all_starts(), grids.new)
            axes[axis] = cut_at(tuple(axes[axis]), [grids.index_before(n) for n in needs], grids.old)
    return relaid(tensor, tuple(axes), OPERATION)


def _within(runs: Sequence[IndexRange], source: tuple[int, int], begin: int) -> Iterator[IndexRange]:
    """Yield the parts of *runs* in a block, in its indices and in those of the new block.

    Parameters
    ----------
    runs: ranges of the whole axis
    source: start and stop of the block
    begin: start of the new block
    """
    first, last = source
    for run in runs:
        start, stop = max(run.start, first), min(run.start + run.length, last)
        if start < stop:
            yield IndexRange(start - first, run.to + start - run.start - begin, stop - start, run.adds)


def _copy_runs(block: Array, axes: list[list[IndexRange]], new: Array, scale: float) -> None:
    """Fill the *new* block with the elements of *block* times *scale*, and zeros elsewhere."""
    if any(sum(run.length for run in runs if not run.adds) < n for runs, n in zip(axes, new.shape, strict=True)):
        new[...] = 0
    # Elements are added after others were copied there.
    for runs in sorted(product(*axes), key=lambda runs: sum(run.adds for run in runs)):
        source = block[tuple(slice(run.start, run.start + run.length) for run in runs)]
        target = new[tuple(slice(run.to, run.to + run.length) for run in runs)]
        if any(run.adds for run in runs):
            target += source * block.dtype.type(scale)
        elif scale == 1:
            np.copyto(target, source)
        else:
            np.multiply(source, scale, out=target, dtype=block.dtype)


def _mirrored(tensor: DTensor, axes: tuple[int, ...]) -> DTensor:
    """Return the elements of the opposite frequencies: half a spectrum has only their conjugates."""
    turned = roll(flip(tensor.copy(), axes), [1] * len(axes), axes) if axes else tensor
    return mapped(np.conj, turned)
