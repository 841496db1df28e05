"""Edges: a tensor in a layout that is cut a little elsewhere, of which only what lies next to the cuts moves.

            block 0      block 1
    has     0 1 2 3 4    5 6 7 8 9
    wants   0 1 2 3 4 5  6 7 8 9        5 moves; 0 to 4, and 6 to 9, stay where they are

What moves is a tensor of its own, a thin one: the elements along the axis that some block lacks, in their order. It is
cut by who has them, and relaid to who lacks them. So it goes the way of all relayouts, and a block that lacks some is
its own part, as a view, and thin parts before and behind it: *pieces*, along one axis.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import make
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.partition import Consecutive, Interval
from meshcomm.core.layouts.specs import cut_at

Piece: TypeAlias = tuple[int, int, Array]
"""Where it is along the axis of a block, from and to, and its elements."""


class Pieces(NamedTuple):
    """A block in pieces along one axis; without any if it is empty."""

    axis: int
    found: list[Piece]

    def between(self, start: int, stop: int) -> Array:
        """Return the elements from *start* to *stop*, which are of one piece."""
        for first, last, piece in self.found:
            if first <= start and stop <= last:
                return piece[(slice(None),) * self.axis + (slice(start - first, stop - first),)]
        raise AssertionError((start, stop, self.axis))


class Edges(NamedTuple):
    """What moves of tensors of one spec, for a layout that differs along one axis in where it is cut.

    Parameters
    ----------
    axis: along which
    shape, source, target: of the tensor that moves
    lacking: for each block, what it lacks before what it has, and behind it: intervals of the axis
    had, wanted: where the blocks begin, before and afterwards
    """

    axis: int
    shape: Shape
    source: Layout
    target: Axes
    lacking: tuple[tuple[Interval, Interval], ...]
    had: tuple[int, ...]
    wanted: tuple[int, ...]

    def taken(self, tensor: DTensor, name: str) -> Pieces | None:
        """Return the block of *tensor* in its new layout; None outside of the mesh. Collective if something moves."""
        thin = make(self._sent(tensor), self.source, self.shape, tensor.dtype)
        came = relaid(thin, self.target, name).local if self.shape[self.axis] else thin.local
        device = tensor.mesh.rank
        if device is None:
            return None
        number, before = self.source.block_numbers(device)[self.axis], (slice(None),) * self.axis
        (left, stop), (first, right) = self.lacking[number]
        start, end = self.wanted[number : number + 2]
        own, at = self.had[number], stop - left
        found = [
            (0, at, came[(*before, slice(0, at))]),
            (at, max(at, first - start), tensor.local[(*before, slice(max(start, own) - own, max(first - own, 0)))]),
            (end - start - (right - first), end - start, came[(*before, slice(at, None))]),
        ]
        return Pieces(self.axis, [piece for piece in found if piece[0] < piece[1]])

    def _sent(self, tensor: DTensor) -> Array | None:
        """Return what this rank has of that which other blocks lack, in order."""
        device = tensor.mesh.rank
        if device is None:
            return None
        number, before = self.source.block_numbers(device)[self.axis], (slice(None),) * self.axis
        start, stop = self.had[number : number + 2]
        parts = [
            tensor.local[(*before, slice(max(first, start) - start, min(last, stop) - start))]
            for both in self.lacking
            for first, last in both
            if max(first, start) < min(last, stop)
        ]
        if not parts:
            shape = list(tensor.local.shape)
            shape[self.axis] = 0
            return np.empty(shape, tensor.dtype)
        return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts, self.axis)


@lru_cache(maxsize=1024)
def edges_of(spec: TensorSpec, axes: Axes) -> Edges | None:
    """Return what moves if tensors of *spec* come to be cut as *axes* say; None if that is better done by a relayout.

    It is, unless one axis differs, which is cut into consecutive blocks over the same mesh dimensions before and
    afterwards, and more than half of the elements stay.
    """
    layout, shape = spec.layout, spec.shape
    differing = [a for a, (old, new) in enumerate(zip(layout.axes, axes, strict=True)) if old != new]
    if len(differing) != 1 or 0 in shape:
        return None
    (axis,) = differing
    length, names = shape[axis], tuple(layout.axes[axis])
    old, new = layout.cut(axis, length), layout._recut(axes).cut(axis, length)
    if names != tuple(axes[axis]) or not isinstance(old, Consecutive) or not isinstance(new, Consecutive):
        return None
    had, wanted = tuple(old.all_starts()), tuple(new.all_starts())
    lacking = tuple(map(_lacking, pairwise(had), pairwise(wanted)))
    counts = [sum(stop - start for start, stop in both) for both in lacking]
    if 2 * sum(counts) > length:
        return None
    moved = np.concatenate([np.arange(*each) for both in lacking for each in both] or [np.arange(0)]).tolist()
    owned = tuple(bisect_left(moved, start) for start in had)
    thin = (*shape[:axis], len(moved), *shape[axis + 1 :])
    ends = (0, *np.cumsum(counts).tolist())
    source, target = ((*axes[:axis], cut_at(names, each, len(moved)), *axes[axis + 1 :]) for each in (owned, ends))
    return Edges(axis, thin, layout._recut(source), target, lacking, had, wanted)


def _lacking(had: Interval, wanted: Interval) -> tuple[Interval, Interval]:
    """Return what a block lacks before what it has, and behind it."""
    (start, stop), (first, last) = had, wanted
    if min(stop, last) <= max(start, first):  # nothing stays
        return (first, last), (last, last)
    return (first, max(start, first)), (min(stop, last), last)


def in_pieces(function: Callable[..., object], blocks: Sequence[object], into: Array) -> None:
    """Write what a universal *function* makes of *blocks* to *into*: some are in `Pieces`, all along one axis."""
    axes = {block.axis for block in blocks if isinstance(block, Pieces)}
    (axis,) = axes
    before = (slice(None),) * axis
    ends = {0, into.shape[axis]}
    for block in blocks:
        if isinstance(block, Pieces):
            ends.update(end for first, last, _ in block.found for end in (first, last))
    for start, stop in pairwise(sorted(ends)):
        some = [_part(block, (start, stop), axis, into.ndim) for block in blocks]
        function(*some, out=into[(*before, slice(start, stop))])


def _part(block: object, part: Interval, axis: int, ndim: int) -> object:
    """Return what a *part* of the result needs of an operand; the result has *ndim* axes."""
    if isinstance(block, Pieces):
        return block.between(*part)
    along = axis if not isinstance(block, np.ndarray) else axis - (ndim - block.ndim)
    if not isinstance(block, np.ndarray) or along < 0 or block.shape[along] == 1:
        return block
    return block[(slice(None),) * along + (slice(*part),)]
