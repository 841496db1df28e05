"""Edges: a tensor in a layout that is cut a little elsewhere, of which only what lies next to the cuts moves.

            block 0      block 1
    has     0 1 2 3 4    5 6 7 8 9
    wants   0 1 2 3 4 5  6 7 8 9        5 moves; 0 to 4, and 6 to 9, stay where they are

What moves is a tensor of its own, a thin one: the elements along the axis that some block lacks, in their order. It is
cut by who has them, and relaid to who lacks them. So it goes the way of all relayouts, and a block that lacks some is
its own stretch, as a view, and thin ones before and behind it: *pieces*, along one axis.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.moving import RELAYOUT
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.layouts.specs import cut_at
from meshcomm.core.memory.copies import exact_copy

Piece: TypeAlias = tuple[int, int, Array]
"""Where it is along the axis of a block, from and to, and its elements."""

Index: TypeAlias = tuple[slice, ...]


class _Own(NamedTuple):
    """What the edges of one device are.

    Parameters
    ----------
    sends: the parts of its block that others lack
    nothing: the shape of what it sends if there are none
    pieces: where each piece of the new block is, from and to; whether it came; and which part of that, or of the block
    """

    sends: tuple[Index, ...]
    nothing: Shape
    pieces: tuple[tuple[int, int, bool, Index], ...]


class Edges:
    """What moves of tensors of one spec, for a layout that differs along one axis in where it is cut.

    Parameters
    ----------
    spec: of the tensors
    axis: along which
    shape, source, target: of the tensor that moves
    lacking: for each block, what it lacks before what it has, and behind it: intervals of the axis
    had, wanted: where the blocks begin, before and afterwards
    """

    def __init__(
        self,
        spec: TensorSpec,
        axis: int,
        moved: tuple[Shape, Layout, Layout],
        lacking: tuple[tuple[Interval, Interval], ...],
        begins: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        self.axis, self._dtype, self._mesh, self._moved = axis, spec.dtype, spec.mesh, moved
        self._lacking, (self._had, self._wanted), self._spec = lacking, begins, spec
        self._own: dict[int, _Own] = {}
        self._keys: dict[str, tuple[Hashable, tuple[Hashable]]] = {}  # of calls: one object is found at once

    def taken(self, tensor: DTensor, name: str, device: int | None) -> list[Piece] | None:
        """Return the block of *tensor* in its new layout, in pieces along the axis. Collective if something moves.

        *name* is the operation, *device* that of this rank. None outside of the mesh; an empty block has no pieces.
        """
        if device is None:
            return None
        own, block = self._own.get(device) or self._of(device), tensor.local
        came: Array | None = block
        if self._moved[0][self.axis]:
            sent = self._sent(own, block)
            key, subject = self._keys.get(name) or self._key(name)
            came = RELAYOUT(name, (self._mesh, self._mesh), key, subject, (sent, None))
        assert came is not None
        return [(start, stop, (came if moves else block)[at]) for start, stop, moves, at in own.pieces]

    def _key(self, name: str) -> tuple[Hashable, tuple[Hashable]]:
        shape, source, target = self._moved
        key = name, shape, self._dtype, source, target, None, None
        self._keys[name] = found = key, (key,)
        return found

    def _sent(self, own: _Own, block: Array) -> Array:
        if not own.sends:
            return np.empty(own.nothing, self._dtype)
        if len(own.sends) == 1:
            return np.ascontiguousarray(block[own.sends[0]])
        return np.concatenate([block[at] for at in own.sends], self.axis)

    def _of(self, device: int) -> _Own:
        """Return what the edges of a *device* are."""
        number, before = self._spec.layout.block_numbers(device)[self.axis], (slice(None),) * self.axis
        nothing = list(self._spec.layout.block_shape(self._spec.shape, device))
        nothing[self.axis] = 0
        (left, stop), (first, right) = self._lacking[number]
        (has, has_to), (start, end) = self._had[number : number + 2], self._wanted[number : number + 2]
        at, kept = stop - left, (max(start, has), max(min(end, has_to), max(start, has)))
        pieces = [
            (0, at, True, slice(0, at)),
            (at, at + kept[1] - kept[0], False, slice(kept[0] - has, kept[1] - has)),
            (end - start - (right - first), end - start, True, slice(at, None)),
        ]
        sends = [
            (*before, slice(max(low, has) - has, min(high, has_to) - has))
            for both in self._lacking
            for low, high in both
            if max(low, has) < min(high, has_to)
        ]
        found = [(a, b, moves, (*before, some)) for a, b, moves, some in pieces if a < b]
        own = self._own[device] = _Own(tuple(sends), tuple(nothing), tuple(found))
        return own

    def ends(self, device: int) -> list[int]:
        """Return where the pieces of a *device* begin and end."""
        own = self._own.get(device) or self._of(device)
        return [end for piece in own.pieces for end in piece[:2]]


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
    if names != tuple(axes[axis]) or not (old.is_consecutive and new.is_consecutive):
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
    return Edges(spec, axis, (thin, layout._recut(source), layout._recut(target)), lacking, (had, wanted))


def _lacking(had: Interval, wanted: Interval) -> tuple[Interval, Interval]:
    """Return what a block lacks before what it has, and behind it."""
    (start, stop), (first, last) = had, wanted
    if min(stop, last) <= max(start, first):  # nothing stays
        return (first, last), (last, last)
    return (first, max(start, first)), (min(stop, last), last)


Pieces: TypeAlias = list[Piece]


def in_pieces(
    function: Callable[..., object], blocks: Sequence[Array | Pieces | object], into: Array, axis: int, ends: list[int]
) -> None:
    """Write what a universal *function* makes of *blocks* to *into*: some are in pieces along *axis*.

    *ends* are where the pieces begin and end.
    """
    before = (slice(None),) * axis
    for stretch in pairwise(ends):
        at = (*before, slice(*stretch))
        function(*[_within(block, stretch, axis, into.ndim) for block in blocks], out=into[at])


def _within(block: object, stretch: Interval, axis: int, ndim: int) -> object:
    """Return what a *stretch* of the result needs of an operand; the result has *ndim* axes."""
    if isinstance(block, list):
        for start, stop, piece in block:
            if start <= stretch[0] and stretch[1] <= stop:
                return piece[(slice(None),) * axis + (slice(stretch[0] - start, stretch[1] - start),)]
    if not isinstance(block, np.ndarray):
        return block
    along = axis - (ndim - block.ndim)
    if along < 0 or block.shape[along] == 1:
        return block
    return block[(slice(None),) * along + (slice(*stretch),)]


def apart(pieces: Pieces, target: Array) -> Pieces:
    """Return *pieces* that share no memory with *target*."""
    return [(a, b, exact_copy(piece) if np.may_share_memory(piece, target) else piece) for a, b, piece in pieces]
