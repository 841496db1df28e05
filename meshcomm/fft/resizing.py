"""Spectra of the same fields on a finer or a coarser grid, in one exchange.

Along an axis, elements of low frequencies stay. Here are a grid of 4 elements and one of 7:

    4       0  1  2     3      the element 2, at half the sampling frequency, is that of both signs
    kept    0  1  2  2  3      so what is kept has it twice
    7       0  1  2  .  .  2  3

Both grids have the elements that are kept in one order. So each device takes those of its block; a relayout cuts them
where the blocks of the new grid begin; and each device copies what it has now to its new block.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias, overload

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import changed, filled, mapped
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
from meshcomm.fft.calls import Some, axes_of, listed
from meshcomm.fft.fitting import span
from meshcomm.fft.kinds import NORMS
from meshcomm.fft.spectra import halves, lengths_of
from meshcomm.numpy.gradients import differentiable, like
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put
from meshcomm.numpy.joining.rolling import flip, roll

Spectra: TypeAlias = Sequence[DTensor]
OneOrMore: TypeAlias = DTensor | Spectra

OPERATION = "fft.spectra on another grid"
"""What the ranks compare, and what messages call it."""


class Run(NamedTuple):
    """Elements that follow each other: where they are, where they go to, and whether they are added there."""

    start: int
    to: int
    length: int
    adds: bool = False


class Grids(NamedTuple):
    """An axis of the old and of the new grid.

    Parameters
    ----------
    axis: which axis
    before, after: the lengths of the two grids
    halved: whether there is only the first half of the spectrum
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
        """The elements that are kept at the beginning."""
        return min(self.before, self.after) // 2 + 1

    @property
    def high(self) -> int:
        """The elements that are kept at the end."""
        return 0 if self.halved else self.low - 1

    @property
    def kept(self) -> int:
        """The elements that are kept; the one in the middle of an even length counts twice."""
        return self.low + self.high

    @property
    def middle(self) -> int | None:
        """The index of the element at half the sampling frequency of the coarser grid; None if there is none."""
        least = min(self.before, self.after)
        return None if least % 2 else least // 2

    def boundaries(self, starts: Sequence[int], length: int) -> list[int]:
        """Return how many of the elements that are kept lie before each of *starts*, on an axis of *length*.

        >>> Grids(0, 4, 7, False).boundaries([0, 2, 4], 4), Grids(0, 4, 7, False).boundaries([0, 4, 7], 7)
        ([0, 2, 5], [0, 3, 5])
        """
        return [min(start, self.low) + max(0, start - (length - self.high)) for start in starts]

    def before_kept(self, kept: int) -> int:
        """Return how many of the elements of the old spectrum lie before so many of those that are kept."""
        return kept if kept < self.low else self.old - (self.kept - kept)

    def runs(self, before: int, after: int) -> list[Run]:
        """Return which elements go where, from an axis of one length to one of another length.

        Each is that of one of the grids, or of the elements that are kept.
        """
        low, high = self.low, self.high
        if before == after:
            return [Run(0, 0, before)]
        found = [Run(0, 0, low)]
        if after < low + high:  # the middle, which comes twice before
            found.append(Run(before - high, after - high, 1, adds=True))
            high -= 1
        return [*found, Run(before - high, after - high, high)]


class Resizing(NamedTuple):
    """From a spectrum to that of the same field on another grid.

    Parameters
    ----------
    grids: the axes that change
    weight: factor of the elements in the middle of the coarser grid
    mirrored: the other axes, if the middle of the halved one also gets the elements of the opposite frequencies
    scale: factor of all elements
    grows: whether the new grid is finer
    """

    grids: tuple[Grids, ...]
    weight: float
    mirrored: tuple[int, ...] | None
    scale: float
    grows: bool


@overload
def pad_spectrum(
    t_hat: DTensor, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor: ...
@overload
def pad_spectrum(
    t_hat: Spectra, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> list[DTensor]: ...
@refusable
def pad_spectrum(
    t_hat: OneOrMore, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor | list[DTensor]:
    """Return the spectrum of the same field on a finer grid: zeros at the high frequencies. Collective if they move.

    The element at half the sampling frequency, which an even length has, is shared out evenly to both signs. With
    lengths of 3/2 times the old ones, products of fields have no aliases: the 3/2 rule. Blocks are cut evenly along
    the axes. Elements move in one exchange. Source: S. A. Orszag, 1971; mpi4py-fft's padding.

    Parameters
    ----------
    t_hat: the spectrum, or a list of spectra, which move in one exchange
    s: the lengths of the finer grid, for each of the axes
    axes: the axes that were transformed; by default the last ones
    kind: what made the spectrum: after "rfftn" the last of the axes is halved
    was: the lengths of the old grid; by default those of the spectrum, and an even one for a halved axis
    norm: that of the transforms: the transform back with the same norm gives the values of the same field

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


@overload
def crop_spectrum(
    t_hat: DTensor, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor: ...
@overload
def crop_spectrum(
    t_hat: Spectra, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> list[DTensor]: ...
@refusable
def crop_spectrum(
    t_hat: OneOrMore, s: Some, axes: Some = None, *, kind: str = "fftn", was: Some = None, norm: str | None = None
) -> DTensor | list[DTensor]:
    """Return the spectrum of the same field on a coarser grid: without high frequencies. Collective if elements move.

    It is the inverse of `pad_spectrum`. An even length along a halved axis takes more exchanges, of one plane, if
    other axes of the transform are sharded: elements of the opposite frequencies are added there.

    Other arguments are those of `pad_spectrum`.

    Parameters
    ----------
    s: the lengths of the coarser grid, for each of the axes
    """
    return _resized("fft.crop_spectrum", t_hat, (s, axes, was), kind, norm)


def _resized(
    name: str, t_hat: OneOrMore, grids: tuple[Some, Some, Some], kind: str, norm: str | None
) -> DTensor | list[DTensor]:
    given: list[Value] = list(t_hat) if isinstance(t_hat, list | tuple) else [t_hat]
    made = [_resizing(name, as_tensor(name, untraced(each)), grids, kind, norm) for each in given]
    if any(is_traced(each) for each in given):
        found = [resized(x, how) for x, how in zip(given, made, strict=True)]
    else:
        found = _all_resized(given, made)
    return found if isinstance(t_hat, list | tuple) else found[0]


def _resizing(name: str, tensor: DTensor, grids: tuple[Some, Some, Some], kind: str, norm: str | None) -> Resizing:
    """Return what a call with these arguments asks for; raise its errors."""
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
    each = zip(chosen, before, after, strict=True)
    return Resizing(
        tuple(Grids(axis, n, m, axis == last) for axis, n, m in each if n != m),
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
    """Return the gradient in the old spectrum: what was copied from it comes back, with the same factors."""
    back = tuple(grids._replace(before=grids.after, after=grids.before) for grids in how.grids)
    return like(resized(grad, how._replace(grids=back, grows=not how.grows)), x)


differentiable(resized, _vjp)


def _all_resized(tensors: Sequence[DTensor], how: Sequence[Resizing]) -> list[DTensor]:
    """Return spectra on other grids, one for each. Collective if elements move: in one exchange."""
    ways = [_Way(tensor, each) for tensor, each in zip(tensors, how, strict=True)]
    moved = _relaid([way.taken() for way in ways], [way.needed for way in ways])
    return [way.put(tensor) for way, tensor in zip(ways, moved, strict=True)]


def _relaid(tensors: list[DTensor], layouts: list[Layout]) -> list[DTensor]:
    """Return *tensors* in other *layouts*. Collective if elements move: in one exchange."""
    found = dict(enumerate(tensors))
    moving = [number for number, tensor in found.items() if tensor.layout.axes != layouts[number].axes]
    if moving:
        with session(OPERATION, found[moving[0]].mesh):
            results = relayout([found[number] for number in moving], [layouts[number] for number in moving])
        found.update(zip(moving, results, strict=True))
    return list(found.values())


class _Way:
    """How one spectrum gets to another grid: what a device takes of its block, and puts into its new one."""

    def __init__(self, tensor: DTensor, how: Resizing) -> None:
        self._how = how
        self._tensor = _consecutive(tensor, how)
        axes, shape, between = list(self._tensor.layout.axes), list(tensor.shape), list(tensor.shape)
        takes, needs = list(axes), list(axes)
        for grids in how.grids:
            axis, blocks = grids.axis, self._tensor.layout.num_shards(grids.axis)
            takes[axis] = needs[axis] = axes[axis] = names = tuple(axes[axis])
            shape[axis] = grids.new
            # An axis that is whole on each device changes where the array is smaller: there less is copied.
            between[axis] = grids.kept if blocks > 1 else min(grids.old, grids.new)
            if blocks > 1:
                cut = self._tensor.layout.cut(axis, grids.old)
                assert cut.is_consecutive
                takes[axis] = cut_at(names, grids.boundaries(cut.all_starts(), grids.old), grids.kept)
                needs[axis] = cut_at(
                    names, grids.boundaries(Cut(grids.new, blocks).all_starts(), grids.new), grids.kept
                )
        self._between, self._shape, mesh = tuple(between), tuple(shape), tensor.mesh
        self._takes, self.needed, self._target = Layout(takes, mesh), Layout(needs, mesh), Layout(axes, mesh)

    def taken(self) -> DTensor:
        """Return the elements that are kept of the old spectrum."""
        return self._copied(self._tensor, self._takes, self._between, 1.0 if self._how.grows else self._how.scale)

    def put(self, kept: DTensor) -> DTensor:
        """Return the new spectrum from the elements that are kept. Collective if the middle is on several devices."""
        found = self._copied(kept, self._target, self._shape, self._how.scale if self._how.grows else 1.0)
        if found is self._tensor:  # nothing changes, and nothing moved
            found = found.copy()
        for grids in self._how.grids:
            if grids.middle is not None:
                self._weigh(found, grids)
        for grids in self._how.grids:
            if grids.middle is not None and grids.halved and self._how.mirrored is not None:
                middle = span(found.ndim, grids.axis, grids.middle, grids.middle + 1)
                plane: Value = getitem(found, middle)
                put(OPERATION, found, middle, plane + _mirrored(plane, self._how.mirrored))
        return found

    def _copied(self, tensor: DTensor, layout: Layout, shape: Shape, scale: float) -> DTensor:
        """Return what each device makes of its block: elements go where the runs of each axis say."""
        if tensor.shape == shape and scale == 1:
            return tensor

        def copy(new: Array, block: Array) -> None:
            source, target = tensor.layout.block_box(tensor.shape), layout.block_box(shape)
            axes = [[Run(0, 0, n)] for n in block.shape]
            for grids in self._how.grids:
                axis = grids.axis
                runs = grids.runs(tensor.shape[axis], shape[axis])
                axes[axis] = list(_within(runs, source[axis][:2], target[axis][0]))
            _copy_runs(block, axes, new, scale)

        return filled(copy, tensor, layout=layout, shape=shape)

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

        changed(weigh, tensor)


def _consecutive(tensor: DTensor, how: Resizing) -> DTensor:
    """Return *tensor* without blocks that are dealt round on axes that change. Collective if there are such."""
    axes = list(tensor.layout.axes)
    for grids in how.grids:
        axis, cut = grids.axis, tensor.layout.cut(grids.axis, grids.old)
        if not cut.is_consecutive:
            # Where the blocks of the new grid begin: then nearly all elements are where they are needed.
            needs = grids.boundaries(Cut(grids.new, cut.blocks).all_starts(), grids.new)
            axes[axis] = cut_at(tuple(axes[axis]), [grids.before_kept(n) for n in needs], grids.old)
    return relaid(tensor, tuple(axes), OPERATION)


def _within(runs: Sequence[Run], source: tuple[int, int], begin: int) -> Iterator[Run]:
    """Yield what a block has of *runs*, in its own indices and in those of the new block.

    Parameters
    ----------
    runs: of the whole axis
    source: the ends of the block
    begin: of the new block
    """
    first, last = source
    for run in runs:
        start, stop = max(run.start, first), min(run.start + run.length, last)
        if start < stop:
            yield Run(start - first, run.to + start - run.start - begin, stop - start, run.adds)


def _copy_runs(block: Array, axes: list[list[Run]], new: Array, scale: float) -> None:
    """Fill the *new* block with the elements of *block* times *scale*, and zeros elsewhere."""
    if any(sum(run.length for run in runs if not run.adds) < n for runs, n in zip(axes, new.shape, strict=True)):
        new[...] = 0
    # What is added comes after what is copied there.
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
    """Return the elements of the opposite frequencies, of which the half of a spectrum has only the conjugates."""
    turned = roll(flip(tensor.copy(), axes), [1] * len(axes), axes) if axes else tensor
    return mapped(np.conj, turned)
