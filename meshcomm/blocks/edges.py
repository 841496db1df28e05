"""Interval exchanges: each block gets intervals of an axis; only elements that other blocks hold move.

            block 0      block 1
    has     0 1 2 3 4    5 6 7 8 9
    wants   0 1 2 3 4 5  6 7 8 9        5 moves; 0 to 4, and 6 to 9, stay where they are

A new block consists of *pieces* along the axis: views of the block's own intervals, and received arrays. One exchange
moves the elements of all tensors and intervals: each rank sends at most one message to each other rank.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.reduce import group_along
from meshcomm.blocks.rules import dims_that_cut, without
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import DEFAULT_SCRATCH, PACKED_AT_ONCE
from meshcomm.core._types import Array, Bytes, Shape
from meshcomm.core.arrays._evaluation import array_of
from meshcomm.core.arrays._expressions import Expression, Pieces, part_of
from meshcomm.core.arrays._storage import lazy_block_of
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.replicas import comparing_replicas
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.boxes import Box, Boxes
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.partition import Interval
from meshcomm.core.memory.blocks import NOTHING, as_bytes, new_bytes
from meshcomm.core.memory.copies import Strided, contiguous, exact_copy
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import Collective, leave_with
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.core.transport.choose import exchange
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec

BlockPiece: TypeAlias = tuple[int, int, Array]
"""Start and stop along the axis of a block, and the elements."""

Slices: TypeAlias = tuple[slice, ...]

TensorInterval: TypeAlias = tuple[int, int, int]
"""An interval of an axis: index of the tensor, start and stop."""

BlockIntervals: TypeAlias = tuple[tuple[TensorInterval, ...], ...]
"""For each block, by its number along the axis: the intervals that it needs, in order."""


class _EdgePlan(NamedTuple):
    """What one device sends, keeps and receives.

    Parameters
    ----------
    sends: index of a tensor and slices into its block, for each piece to send, in the order of sending
    pieces: for each piece of the new block, its start and stop, the index of its tensor, and slices into that block
        (None if the piece is received)
    receives: byte offset of each received piece in the received data, and its shape
    """

    sends: tuple[tuple[int, Slices], ...]
    pieces: tuple[tuple[int, int, int, Slices | None], ...]
    receives: tuple[tuple[int, Shape], ...]


class IntervalExchange:
    """An exchange along one axis that gives each block the intervals that it needs of some tensors.

    Two instances are equal if all ranks may use either of them.

    Parameters
    ----------
    specs: specs of the tensors, on one mesh. They differ only in their length and cut along the axis: there each is
        unsharded, or cut into consecutive blocks over the same mesh dimensions
    layout: layout of the result; other axes are cut as those of the tensors
    axis: axis of the intervals
    block_intervals: intervals that each block needs
    """

    def __init__(
        self, specs: tuple[TensorSpec, ...], layout: Layout, axis: int, block_intervals: BlockIntervals
    ) -> None:
        self.axis, self.specs, self.layout, self.block_intervals = axis, specs, layout, block_intervals
        self._value = axis, layout, block_intervals, tuple((spec.layout, spec.shape, spec.dtype) for spec in specs)
        self._hash = hash(self._value)
        self._starts: list[list[int] | None] = []
        for spec in specs:
            cut = spec.layout.cut(axis, spec.shape[axis])
            self._starts.append(cut.all_starts() if cut.is_consecutive and cut.blocks > 1 else None)
        self.messages = Counter[tuple[int, int]]()
        """Number of elements along the axis that move, by the block numbers of sender and receiver."""
        for number in range(len(block_intervals)):
            for _, start, stop, owner in self._intervals(number):
                if owner != number:
                    self.messages[owner, number] += stop - start
        self._plans: dict[int, _EdgePlan] = {}

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalExchange) and self._value == other._value

    @property
    def num_moved(self) -> int:
        """The number of elements along the axis that move."""
        return self.messages.total()

    @property
    def max_row_elements(self) -> int:
        """The largest number of elements that a block has at one index of the axis."""
        spec = self.specs[0]
        return prod(spec.layout.cut(a, n).longest for a, n in enumerate(spec.shape) if a != self.axis)

    @property
    def max_elements(self) -> int:
        """The largest number of elements that a rank sends or receives."""
        sent, received = Counter[int](), Counter[int]()
        for (owner, receiver), count in self.messages.items():
            sent[owner] += count
            received[receiver] += count
        return max([0, *sent.values(), *received.values()]) * self.max_row_elements

    @property
    def is_cheaper_than_relayout(self) -> bool:
        """Whether this costs no more than a relayout: few bytes move, or at most half of the requested elements."""
        total = sum(stop - start for intervals in self.block_intervals for _, start, stop in intervals)
        return 2 * self.num_moved <= total or self.max_elements * self.specs[0].dtype.itemsize <= PACKED_AT_ONCE

    def pieces_of_one(self, tensor: DTensor, name: str, device: int | None) -> list[BlockPiece] | None:
        """Return the `pieces` of one tensor for the block of a *device*; None outside of the mesh."""
        return None if device is None else self.pieces([tensor], name, device)

    def lazy_pieces(self, tensor: DTensor, name: str, device: int) -> Pieces:
        """Return the pieces as `pieces_of_one` does; local ones are expressions if the block of *tensor* is one."""
        return Pieces(self.axis, self._pieces([lazy_block_of(tensor)], name, device))

    def pieces(self, tensors: Sequence[DTensor], name: str, device: int) -> list[BlockPiece]:
        """Return the pieces along the axis for the block of *device*. Collective if something moves.

        *name* is the operation, *device* that of this rank. An empty block has no pieces.
        """
        return self._pieces([tensor._block for tensor in tensors], name, device)

    def _pieces(self, blocks: Sequence[Expression | Array], name: str, device: int) -> list[tuple[int, int, Value]]:
        plan = self._plans.get(device) or self._plan_for(device)
        received, received_pieces = NOTHING, iter(plan.receives)
        if self.messages:
            mesh, call = self.layout.mesh, (name, self)
            data = _EXCHANGE(name, (mesh, mesh), call, call, (self._sent_bytes(plan, blocks),))
            assert data is not None
            received = data
        dtype, pieces = self.specs[0].dtype, list[tuple[int, int, object]]()
        for start, stop, tensor_index, slices in plan.pieces:
            if slices is None:
                byte_offset, shape = next(received_pieces)
                pieces.append((start, stop, np.ndarray(shape, dtype, received, byte_offset)))
            else:
                pieces.append((start, stop, _sliced(blocks[tensor_index], slices)))
        return pieces

    def _sent_bytes(self, plan: _EdgePlan, blocks: Sequence[Expression | Array]) -> Bytes:
        pieces = [array_of(_sliced(blocks[tensor_index], slices)) for tensor_index, slices in plan.sends]
        if len(pieces) < 2:
            return as_bytes(contiguous(pieces[0])) if pieces else NOTHING
        # Join bytes: elements would be converted to native byte order.
        return np.concatenate([as_bytes(contiguous(piece)) for piece in pieces])

    def _intervals(self, number: int) -> Iterator[tuple[int, int, int, int]]:
        """Return the intervals that a block needs, cut at the starts of blocks, and the block number of each owner."""
        for tensor_index, start, stop in self.block_intervals[number]:
            starts = self._starts[tensor_index]
            while start < stop:
                owner = number if starts is None else bisect_right(starts, start) - 1
                end = stop if starts is None else min(stop, starts[owner + 1])
                yield tensor_index, start, end, owner
                start = end

    def _plan_for(self, device: int) -> _EdgePlan:
        """Return the plan of a *device*, and keep it."""
        axis, number, spec = self.axis, self.layout.block_numbers(device)[self.axis], self.specs[0]
        leading_slices, shape = (slice(None),) * axis, list(spec.layout.block_shape(spec.shape, device))
        row_bytes = spec.dtype.itemsize * prod(shape[:axis] + shape[axis + 1 :])

        def interval_slices(tensor_index: int, start: int, stop: int) -> Slices:
            starts = self._starts[tensor_index]
            block_start = 0 if starts is None else starts[number]
            return (*leading_slices, slice(start - block_start, stop - block_start))

        senders = sorted(owner for owner, receiver in self.messages if receiver == number)
        lengths = [self.messages[owner, number] for owner in senders]
        receive_offsets = dict(zip(senders, accumulate(lengths, initial=0), strict=False))
        pieces, receives, offset = list[tuple[int, int, int, Slices | None]](), list[tuple[int, Shape]](), 0
        for tensor_index, start, stop, owner in self._intervals(number):
            end = offset + stop - start
            if owner == number:
                pieces.append((offset, end, tensor_index, interval_slices(tensor_index, start, stop)))
            else:
                pieces.append((offset, end, tensor_index, None))
                receives.append(
                    (receive_offsets[owner] * row_bytes, (*shape[:axis], end - offset, *shape[axis + 1 :]))
                )
                receive_offsets[owner] += end - offset
            offset = end
        receivers = sorted(receiver for owner, receiver in self.messages if owner == number)
        sends = [
            (tensor_index, interval_slices(tensor_index, start, stop))
            for receiver in receivers
            for tensor_index, start, stop, owner in self._intervals(receiver)
            if owner == number
        ]
        plan = self._plans[device] = _EdgePlan(tuple(sends), tuple(pieces), tuple(receives))
        return plan

    def piece_ends(self, device: int) -> list[int]:
        """Return the start and stop of each piece of a *device*."""
        plan = self._plans.get(device) or self._plan_for(device)
        return [end for piece in plan.pieces for end in piece[:2]]


def _sliced(block: Expression | Array, slices: Slices) -> Expression | Array:
    """Return the slice of a block or an expression; only the last of *slices* cuts."""
    if isinstance(block, np.ndarray):
        return block[slices]
    return part_of(block, len(slices) - 1, slices[-1].start, slices[-1].stop)


@lru_cache(maxsize=1024)
def interval_exchange_for_axes(spec: TensorSpec, axes: Axes) -> IntervalExchange | None:
    """Return the exchange that cuts tensors of *spec* as *axes* say; None if a relayout is preferable.

    The exchange is preferable if exactly one axis differs, it is cut into consecutive blocks over the same mesh
    dimensions before and after, and at least half of its elements stay.
    """
    layout, shape = spec.layout, spec.shape
    differing_axes = [a for a, (old, new) in enumerate(zip(layout.axes, axes, strict=True)) if old != new]
    if len(differing_axes) != 1 or 0 in shape:
        return None
    (axis,) = differing_axes
    target = layout._recut(axes)
    cut = target.cut(axis, shape[axis])
    if not cut.is_consecutive or not _are_compatible([spec], target, axis):
        return None
    block_intervals = tuple(((0, start, stop),) for start, stop in pairwise(cut.all_starts()))
    edges = IntervalExchange((spec,), target, axis, block_intervals)
    return edges if 2 * edges.num_moved <= shape[axis] else None


@lru_cache(maxsize=1024)
def interval_exchange_between(
    specs: tuple[TensorSpec, ...], layout: Layout, axis: int, block_intervals: BlockIntervals
) -> IntervalExchange | None:
    """Return the exchange that gives blocks of *layout* intervals of tensors; None if the tensors are incompatible."""
    return IntervalExchange(specs, layout, axis, block_intervals) if _are_compatible(specs, layout, axis) else None


def _are_compatible(specs: Sequence[TensorSpec], layout: Layout, axis: int) -> bool:
    """Return whether tensors differ from each other, and from *layout*, only as `IntervalExchange` says."""
    names, first_spec = tuple(layout.axes[axis]), specs[0]
    other_axes = [a for a in range(layout.ndim) if a != axis]
    for spec in specs:
        cut = spec.layout.cut(axis, spec.shape[axis])
        if spec.layout.mesh is not layout.mesh or spec.dtype != first_spec.dtype:
            return False
        if cut.blocks > 1 and not (tuple(spec.layout.axes[axis]) == names and cut.is_consecutive):
            return False
        if any(spec.layout.axes[a] != layout.axes[a] or spec.shape[a] != first_spec.shape[a] for a in other_axes):
            return False
    return True


# -- the exchange -----------------------------------------------------------------------------------------------------


class _Message(NamedTuple):
    """A message from one rank to another, given by their positions: the elements from *start* to *stop*.

    These indices number the elements of all messages, ordered by sender. *target_start* is the index of the first one
    among the elements that the receiver gets.
    """

    sender: int
    receiver: int
    start: int
    stop: int
    target_start: int


@dataclass(frozen=True)
class _Messages(BoxExchange):
    """Messages of any lengths, in indices of all sent elements; *target_starts* maps *start* to *target_start*."""

    target_starts: dict[int, int] = field(default_factory=dict)

    def corners_in_target(self, start: list[int], stop: list[int]) -> tuple[list[int], list[int]]:
        target_start = self.target_starts[start[0]]
        return [target_start], [target_start + stop[0] - start[0]]

    def in_target(self, position: int, region: int, boxes: Boxes) -> Strided:
        begins = np.array([self.target_starts[start] for (start,) in boxes.starts.tolist()], np.intp)
        regions, steps = np.full(len(begins), region, np.intp), np.full_like(boxes.starts, self.itemsize)
        return Strided(regions, begins * self.itemsize, steps, boxes.stops - boxes.starts)


def _exchange_of(messages: Sequence[_Message], itemsize: int, position: int) -> _Messages:
    """Return the exchange of *messages*, which are in the order of their senders."""

    def source(sender: int) -> Box:
        sent = [message for message in messages if message.sender == sender]
        return ((sent[0].start, sent[-1].stop) if sent else (0, 0),)

    def target(receiver: int) -> Box:
        return ((0, sum(message.stop - message.start for message in messages if message.receiver == receiver)),)

    def boxes(subset: list[_Message], peers: list[int]) -> Boxes:
        starts, stops = (np.array([[message[i]] for message in subset], np.intp).reshape(-1, 1) for i in (2, 3))
        return Boxes(np.array(peers, np.intp), np.arange(len(subset), dtype=np.intp), starts, stops)

    def sends(sender: int) -> Boxes:
        sent = [message for message in messages if message.sender == sender]
        return boxes(sent, [message.receiver for message in sent])

    def receives(receiver: int) -> Boxes:
        received = [message for message in messages if message.receiver == receiver]
        return boxes(received, [message.sender for message in received])

    return _Messages(
        itemsize,
        position,
        source,
        target,
        sends,
        receives,
        target_starts={message.start: message.target_start for message in messages},
    )


def _edges_text(name: str, edges: IntervalExchange) -> str:
    tensors_text = ", ".join(f"{spec.shape} {spec.dtype} in {spec.layout.specs_text}" for spec in edges.specs)
    target_text = f"{mesh_description(edges.layout.mesh)}, for blocks in {edges.layout.specs_text}"
    has_several = len(edges.specs) > 1
    intervals_text = "; ".join(
        ", ".join(f"{f'of {number} ' if has_several else ''}{start}:{stop}" for number, start, stop in intervals)
        for intervals in edges.block_intervals
    )
    return f"{name} of {tensors_text} on {target_text} that take {intervals_text} along axis {edges.axis}"


def _edge_exchange(name: str, edges: IntervalExchange, location: Location) -> Callable[[Bytes], Bytes]:
    """Return a function that sends the bytes of this rank, and returns the received bytes."""
    layout, axis, spec = edges.layout, edges.axis, edges.specs[0]
    mesh, itemsize = layout.mesh, spec.dtype.itemsize
    names = dims_that_cut(mesh, layout.axes[axis])
    group, position = group_along(location, mesh, names)
    devices = [mesh.ranks.index(rank) for rank in group.members]
    positions = {layout.block_numbers(device)[axis]: i for i, device in enumerate(devices)}
    row_elements = prod(without(spec.layout.block_shape(spec.shape, location.device), [axis]))
    messages, end, received = list[_Message](), 0, Counter[int]()
    for (owner, receiver), count in sorted(edges.messages.items()) if row_elements * itemsize else ():
        start, end = end, end + count * row_elements
        messages.append(_Message(positions[owner], positions[receiver], start, end, received[receiver]))
        received[receiver] += count * row_elements
    max_bytes = edges.max_elements * itemsize
    number = fingerprint(f"edges of {itemsize} bytes along {names}: {sorted(edges.messages.items())}")
    exchange_spec = ExchangeSpec(number, max_bytes, rounds=max(1, -(-2 * max_bytes // DEFAULT_SCRATCH)))
    box_exchange = _exchange_of(messages, itemsize, position)
    operation, size = exchange(group, [box_exchange], exchange_spec), box_exchange.target_bytes(position)

    def run(sent: Array | None) -> Bytes:
        assert sent is not None
        try:
            data = new_bytes(size)
            operation.run([sent], [data])
        except BaseException as error:
            leave_with(error, location.rank_set)
            raise
        return data

    return comparing_replicas(run, name, spec.shape, spec.layout, location)


def _exchange_form(name: str, edges: IntervalExchange) -> Hashable:
    """Return a key of the data that move, independent of the block lengths: calls with equal keys exchange alike."""
    axis, spec, layout = edges.axis, edges.specs[0], edges.layout
    other_axes = without(layout.axes, [axis]), without(spec.shape, [axis])
    messages = tuple(sorted(edges.messages.items()))
    return "edges", layout.mesh, tuple(layout.axes[axis]), messages, axis, other_axes, spec.dtype.itemsize


_EXCHANGE = Collective[Bytes](_edges_text, _edge_exchange, form=_exchange_form)
"""An exchange of edges, from the bytes that this rank sends to the received ones. Subject: a name and the exchange."""


# -- functions of pieces ----------------------------------------------------------------------------------------------


def apply_piecewise(
    function: Callable[..., object],
    blocks: Sequence[Array | list[BlockPiece] | object],
    out: Array,
    axis: int,
    ends: list[int],
) -> None:
    """Apply a universal *function* to *blocks*, some of them in pieces along *axis*, and write the result to *out*.

    *ends* are the indices where pieces begin or end, ascending.
    """
    leading_slices = (slice(None),) * axis
    for interval in pairwise(ends):
        slices = (*leading_slices, slice(*interval))
        function(*[_operand_interval(block, interval, axis, out.ndim) for block in blocks], out=out[slices])


def _operand_interval(block: object, interval: Interval, axis: int, ndim: int) -> object:
    """Return the part of an operand for an *interval* of the result, which has *ndim* axes."""
    if isinstance(block, list):
        for start, stop, piece in block:
            if start <= interval[0] and interval[1] <= stop:
                return piece[(slice(None),) * axis + (slice(interval[0] - start, interval[1] - start),)]
    if not isinstance(block, np.ndarray):
        return block
    block_axis = axis - (ndim - block.ndim)
    if block_axis < 0 or block.shape[block_axis] == 1:
        return block
    return block[(slice(None),) * block_axis + (slice(*interval),)]


def unshared_pieces(pieces: list[BlockPiece], target: Array) -> list[BlockPiece]:
    """Return *pieces* that share no memory with *target*."""
    return [
        (start, stop, exact_copy(piece) if np.may_share_memory(piece, target) else piece)
        for start, stop, piece in pieces
    ]
