"""The boxes, of one or several tensors, that the ranks of a group exchange.

A `BoxExchange` describes this for one tensor, once for every transport: which box of the global array each position
of the group holds before and after, and which boxes go to which positions. Boxes stay in global indices until
`BoxExchange.in_source` and `BoxExchange.in_target` lay them out in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Bytes, Indices
from meshcomm.core.layouts.boxes import Box, Boxes, box_shape, in_block, intersections, with_peers
from meshcomm.core.memory.blocks import block_bytes
from meshcomm.core.memory.copies import BoxLoops, Strided, as_byte_boxes, strided
from meshcomm.errors import ShapeError

T = TypeVar("T")
BoxOf: TypeAlias = Callable[[int], Box | None]
BoxesOf: TypeAlias = Callable[[int], Boxes]
Order: TypeAlias = tuple[int, ...] | None
"""For each axis of a box, the axis of the block in memory; None if the axes are in the same order."""


class Transport(Protocol):
    """A way of moving boxes from blocks to new blocks. Collective over its group, if it has one."""

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new blocks *targets* from the blocks *sources*.

        Several new blocks lie in one *allocation*, at the offsets that `block_offsets` returns.
        """


UncopiedPeers: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Senders and receivers, as indices of local peers, whose bytes no copy can move: neither block is shared."""


class Remaining(Protocol):
    """An exchange of the boxes that copies in shared memory cannot move."""

    def run(self, peers: UncopiedPeers, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Exchange boxes with local *peers* that copies cannot move. Collective over these pairs."""


@dataclass(frozen=True)
class BoxExchange:
    """The boxes of one tensor that the ranks of a group exchange, in global indices.

    Parameters
    ----------
    itemsize: bytes of an element
    position: position of this rank in the group
    source, target: functions from a position to the box of its block before and after; None if it has no block
    sends_of, receives_of: functions from a position to the boxes that it sends and receives, those to itself too
    order: order of the axes of the blocks before; blocks after have the order of the boxes
    """

    itemsize: int
    position: int
    source: BoxOf
    target: BoxOf
    sends_of: BoxesOf
    receives_of: BoxesOf
    order: Order = None

    @property
    def is_in_order(self) -> bool:
        """Whether the axes of blocks in memory are in the order of their boxes."""
        return self.order is None and type(self).in_source is BoxExchange.in_source

    @cached_property
    def sends(self) -> Boxes:
        """The boxes that this rank sends."""
        return self.sends_of(self.position)

    @cached_property
    def receives(self) -> Boxes:
        """The boxes that this rank receives."""
        return self.receives_of(self.position)

    def between(self, senders: Indices, receivers: Indices) -> "BoxExchange":
        """Return the part of the exchange that this rank receives from *senders* and sends to *receivers*."""
        return replace(
            self,
            sends_of=lambda position: with_peers(self.sends_of(position), receivers),
            receives_of=lambda position: with_peers(self.receives_of(position), senders),
        )

    @cached_property
    def _block_bytes(self) -> tuple[dict[int, int], dict[int, int]]:
        """A cache of the bytes of the blocks before and after, by position."""
        return {}, {}

    def source_bytes(self, position: int) -> int:
        """Return the bytes of the block of *position* before."""
        sizes = self._block_bytes[0]
        if position not in sizes:
            sizes[position] = _box_bytes(self.source(position), self.itemsize)
        return sizes[position]

    def target_bytes(self, position: int) -> int:
        """Return the bytes of the block of *position* after."""
        sizes = self._block_bytes[1]
        if position not in sizes:
            sizes[position] = _box_bytes(self.target(position), self.itemsize)
        return sizes[position]

    def corners_in_target(self, start: list[int], stop: list[int]) -> tuple[list[int], list[int]]:
        """Return the corners *start* and *stop* of a box in the indices of the blocks after."""
        return start, stop

    def in_source(self, position: int, region: int, boxes: Boxes) -> Strided:
        """Return where *boxes* lie in the block of *position* before, which is this *region* of memory."""
        return _in_block(self.source(position), region, self.itemsize, boxes, order=self.order)

    def in_target(self, position: int, region: int, boxes: Boxes) -> Strided:
        """Return where *boxes* lie in the block of *position* after, which is this *region* of memory."""
        return _in_block(self.target(position), region, self.itemsize, boxes)


@dataclass(frozen=True)
class ExchangeSpec:
    """The specification of an exchange, the same on all ranks, by which its transport is chosen.

    Parameters
    ----------
    fingerprint: hash of the exchange, the same on all ranks, and different for other exchanges
    max_block_bytes: upper bound on the bytes that a rank sends or receives, the same on all ranks
    rounds: smallest number of rounds that keeps to the scratch limit
    scratch_limit: bytes that a rank may use beyond its blocks
    permutes: whether each rank sends to one rank at most, and receives from one at most
    gathers: whether all ranks need all blocks, and these are small enough for one MPI_Allgatherv
    root: position of the block that all ranks get, in a broadcast; else None
    relay_pays: whether messages through aggregators are predicted to be faster between nodes
    stages: whether a block that is not shared may be copied to shared memory
    is_in_place: whether the new block overwrites the old one in the same memory, as for ghosts. MPI cannot receive
        into a buffer that it sends from, so all is packed; and the new blocks of several tensors are not in one
        allocation
    """

    fingerprint: int
    max_block_bytes: int
    rounds: int = 1
    scratch_limit: int = DEFAULT_SCRATCH
    permutes: bool = False
    gathers: bool = False
    root: int | None = None
    relay_pays: bool = False
    stages: bool = True
    is_in_place: bool = False


def from_boxes(itemsize: int, position: int, sources: Sequence[Box], targets: Sequence[Box]) -> BoxExchange:
    """Return the exchange in which each new block gets, from each block, the intersection of their two boxes.

    *sources* and *targets* are the boxes of all positions in one index space, so that no element is in two sources.
    """
    return BoxExchange(
        itemsize,
        position,
        sources.__getitem__,
        targets.__getitem__,
        lambda position: intersections(sources[position], targets),
        lambda position: intersections(targets[position], sources),
    )


def map_distinct(tensors: Sequence[BoxExchange], compute: Callable[[BoxExchange], T]) -> list[T]:
    """Return ``[compute(tensor) for tensor in tensors]``, with one call of *compute* for each distinct object."""
    results: dict[int, T] = {}
    for tensor in tensors:
        if id(tensor) not in results:
            results[id(tensor)] = compute(tensor)
    return [results[id(tensor)] for tensor in tensors]


def with_region_numbers(blocks: Sequence[Strided]) -> list[Strided]:
    """Return *blocks* with the region number of all boxes of block i set to i."""
    return [Strided(np.full(len(block.regions), i, dtype=np.intp), *block[1:]) for i, block in enumerate(blocks)]


class BlockSizes:
    """The bytes that the blocks of some tensors have on this rank before and after.

    A program may resize an array of NumPy, or make a tensor of a block that does not fit. MPI would read and write
    beyond such a block.
    """

    __slots__ = ("_sources", "_targets")

    def __init__(self, tensors: Sequence[BoxExchange]) -> None:
        self._sources = [tensor.source_bytes(tensor.position) for tensor in tensors]
        self._targets = [tensor.target_bytes(tensor.position) for tensor in tensors]

    def check(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Raise the error that `size_error` returns, if any."""
        error = self.size_error(sources, targets)
        if error is not None:
            raise error

    def size_error(self, sources: list[Bytes], targets: list[Bytes]) -> ShapeError | None:
        """Return an error if a block has another length than its tensor needs; else None."""
        if len(self._sources) == 1 and len(sources[0]) == self._sources[0] and len(targets[0]) == self._targets[0]:
            return None  # as below, without lists: every small exchange comes through here
        lengths, expected = [*map(len, (*sources, *targets))], self._sources + self._targets
        if lengths == expected:
            return None
        return wrong_length(*next(pair for pair in zip(lengths, expected, strict=True) if pair[0] != pair[1]))

    def with_zeros(self, sources: list[Bytes], targets: list[Bytes]) -> tuple[list[Bytes], list[Bytes]]:
        """Return the blocks, with zeros of the right length instead of blocks that do not fit."""
        return _with_zeros(sources, self._sources), _with_zeros(targets, self._targets)


def wrong_length(length: int, expected: int) -> ShapeError:
    """Return the error for a block of *length* bytes that should have *expected* bytes."""
    return ShapeError(
        f"a block has {length} bytes, but by shape, dtype and layout of its tensor it has {expected}: "
        "it was resized, or the tensor was made of a block that does not fit"
    )


def own_copies(tensors: Sequence[BoxExchange]) -> BoxCopies | None:
    """Return the copies of the boxes that this rank sends to itself, from block to block; None without such."""
    return next(iter(own_pieces(tensors, 1)), None)


def own_pieces(tensors: Sequence[BoxExchange], piece_count: int) -> list[BoxCopies]:
    """Return the copies of `own_copies` in *piece_count* pieces of about the same size; [] without such."""

    def sent_boxes(tensor: BoxExchange) -> Strided:
        position, sends = tensor.position, tensor.sends
        return tensor.in_source(position, 0, sends.subset(sends.of(position)))

    def received_boxes(tensor: BoxExchange) -> Strided:
        position, receives = tensor.position, tensor.receives
        return tensor.in_target(position, 0, receives.subset(receives.of(position)))

    sources, targets = (
        with_region_numbers(map_distinct(tensors, sent_boxes)),
        with_region_numbers(map_distinct(tensors, received_boxes)),
    )
    itemsizes = [tensor.itemsize for tensor in tensors]
    (source, itemsize), (target, _) = as_byte_boxes(sources, itemsizes), as_byte_boxes(targets, itemsizes)
    if not len(source.offsets):
        return []
    source_sizes = [tensor.source_bytes(tensor.position) for tensor in tensors]
    target_sizes = [tensor.target_bytes(tensor.position) for tensor in tensors]
    pairs = [(source, target)]
    if piece_count > 1:
        axis = int(source.extents.max(axis=0).argmax())
        intervals = pairwise(source.extents[:, axis] * index // piece_count for index in range(piece_count + 1))
        pairs = [(_sliced(source, axis, first, stop), _sliced(target, axis, first, stop)) for first, stop in intervals]
    return [BoxCopies(source_sizes, target_sizes, itemsize, *sent[:3], *received) for sent, received in pairs]


def _sliced(boxes: Strided, axis: int, first: Indices, stop: Indices) -> Strided:
    """Return the slice of each box from index *first* to *stop* of an *axis*."""
    extents = boxes.extents.copy()
    extents[:, axis] = stop - first
    return boxes._replace(offsets=boxes.offsets + first * boxes.strides[:, axis], extents=extents)


def _with_zeros(blocks: list[Bytes], sizes: list[int]) -> list[Bytes]:
    pairs = zip(blocks, sizes, strict=True)
    return [block if len(block) == size else np.zeros(size, dtype=np.uint8) for block, size in pairs]


def _box_bytes(box: Box | None, itemsize: int) -> int:
    return 0 if box is None else block_bytes(box_shape(box), itemsize)


def _in_block(box: Box | None, region: int, itemsize: int, boxes: Boxes, *, order: Order = None) -> Strided:
    if order is None and box is not None and are_few(boxes) and has_intervals(box):
        corners = zip(boxes.starts.tolist(), boxes.stops.tolist(), strict=True)
        return strided_rows([(region, box, start, stop) for start, stop in corners], len(box), itemsize)
    shape = None if box is None else box_shape(box)
    return strided(region, shape, itemsize, BoxLoops(*in_block(box, boxes)), order)


def are_few(boxes: Boxes) -> bool:
    """Return whether *boxes* are laid out faster by integers of Python than by arrays."""
    return boxes.repeats is None and len(boxes.starts) <= _MAX_FEW


def has_intervals(box: Box) -> bool:
    """Return whether *box* is one interval along each axis."""
    return all(type(span) is tuple for span in box)


_MAX_FEW = 16
"""Boxes. A compromise: arrays take about as long for this many boxes as for one."""

PlacedBox: TypeAlias = tuple[int, Box, list[int], list[int]]
"""A box in a block: the region of memory of the block, the box of the block, and the corners of the box."""


def strided_rows(rows: Sequence[PlacedBox], ndim: int, itemsize: int) -> Strided:
    """Return where boxes, in *rows*, of *ndim* axes lie in blocks that are one interval along each axis."""
    regions, offsets, strides, extents = [], list[int](), list[list[int]](), list[list[int]]()
    for region, block, start, stop in rows:
        stride, offset, box_strides = itemsize, 0, [0] * ndim
        for axis in range(ndim - 1, -1, -1):
            block_start, block_stop = block[axis][:2]
            offset += (start[axis] - block_start) * stride
            box_strides[axis] = stride
            stride *= block_stop - block_start
        regions.append(region)
        offsets.append(offset)
        strides.append(box_strides)
        extents.append([block_stop - block_start for block_start, block_stop in zip(start, stop, strict=True)])
    count = len(regions)
    regions_and_offsets = np.array([regions, offsets], dtype=np.intp)
    loops = np.array([strides, extents], dtype=np.intp).reshape(2, count, ndim)
    return Strided(regions_and_offsets[0], regions_and_offsets[1], loops[0], loops[1])


def run_length(block: Box, start: Sequence[int], stop: Sequence[int], itemsize: int) -> int:
    """Return the bytes of a box that are contiguous in *block*, which is one interval along each axis."""
    run = itemsize
    for span, first, end in zip(reversed(block), reversed(start), reversed(stop), strict=True):
        run *= end - first
        if end - first != span[1] - span[0]:
            break
    return run
