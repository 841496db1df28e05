"""What the ranks of a group exchange: the boxes of one or several tensors.

A `BoxExchange` describes this for one tensor, once for every transport: which box of the global array each position
of the group holds before and after, and which boxes go to whom. Boxes stay in global indices until they are laid out
in memory, in `BoxExchange.in_source` and `BoxExchange.in_target`.
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
"""For each axis of a box, which axis of the block in memory it is; None if the axes are in one order."""


class Transport(Protocol):
    """A way of moving boxes from blocks to new blocks. Collective over its group, if it has one."""

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new blocks *targets* from the blocks *sources*.

        Several new blocks lie in one *allocation*, where `block_offsets` says.
        """


UncopiedPeers: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The senders and the receivers, as numbers of local peers, whose bytes no copy can move: neither block is shared."""


class Remaining(Protocol):
    """Exchanges what copies in shared memory cannot move."""

    def run(self, peers: UncopiedPeers, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Exchange what copies cannot move with local *peers*. Collective over these pairs."""


@dataclass(frozen=True)
class BoxExchange:
    """The boxes of one tensor that the ranks of a group exchange, in global indices.

    Parameters
    ----------
    itemsize: bytes of an element
    position: position of this rank in the group
    source, target: functions from a position to the box of its block before and after; None where it has none
    sends_of, receives_of: functions from a position to the boxes that it sends and receives, also to itself
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
        """Whether blocks lie in memory as their boxes say, in the order of their axes."""
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
        """Return what this rank receives from *senders* and sends to *receivers*."""
        return replace(
            self,
            sends_of=lambda position: with_peers(self.sends_of(position), receivers),
            receives_of=lambda position: with_peers(self.receives_of(position), senders),
        )

    @cached_property
    def _block_bytes(self) -> tuple[dict[int, int], dict[int, int]]:
        """The bytes of the blocks before and after, by position, as far as they were needed."""
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
        """Return the corners of a box in the indices of the blocks after."""
        return start, stop

    def in_source(self, position: int, region: int, boxes: Boxes) -> Strided:
        """Return where *boxes* lie in the block of *position* before, which is this *region* of memory."""
        return _in_block(self.source(position), region, self.itemsize, boxes, order=self.order)

    def in_target(self, position: int, region: int, boxes: Boxes) -> Strided:
        """Return where *boxes* lie in the block of *position* after, which is this *region* of memory."""
        return _in_block(self.target(position), region, self.itemsize, boxes)


@dataclass(frozen=True)
class ExchangeSpec:
    """The specification of an exchange, the same on all ranks, by which its way is chosen.

    Parameters
    ----------
    fingerprint: hash of the exchange, the same on all ranks, and different for other exchanges
    most_bytes: upper bound on the bytes that a rank sends or receives, the same on all ranks
    rounds: smallest number of rounds that keeps to the scratch limit
    scratch_limit: bytes that a rank may use beyond its blocks
    permutes: whether each rank sends to one rank at most, and receives from one at most
    gathers: whether all ranks need all blocks, and these are small enough for one MPI_Allgatherv
    root: position whose block all ranks get, in a broadcast; None without one
    relay_pays: whether messages through aggregators are predicted to pay between nodes
    stages: whether a block that is not shared may be copied to shared memory
    is_in_place: whether the new block overwrites the old one in the same memory, as for ghosts. MPI cannot receive
        into a buffer that it sends from, so all is packed; and the new blocks of several tensors are not in one
        allocation
    """

    fingerprint: int
    most_bytes: int
    rounds: int = 1
    scratch_limit: int = DEFAULT_SCRATCH
    permutes: bool = False
    gathers: bool = False
    root: int | None = None
    relay_pays: bool = False
    stages: bool = True
    is_in_place: bool = False


def from_boxes(itemsize: int, position: int, sources: Sequence[Box], targets: Sequence[Box]) -> BoxExchange:
    """Return the exchange in which each new block takes from each block what the two boxes share.

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


def map_distinct(tensors: Sequence[BoxExchange], find: Callable[[BoxExchange], T]) -> list[T]:
    """Return ``[find(tensor) for tensor in tensors]``, with one call of *find* for each distinct object."""
    results: dict[int, T] = {}
    for tensor in tensors:
        if id(tensor) not in results:
            results[id(tensor)] = find(tensor)
    return [results[id(tensor)] for tensor in tensors]


def with_region_numbers(blocks: Sequence[Strided]) -> list[Strided]:
    """Return *blocks* with the region number of all boxes of block i set to i."""
    return [Strided(np.full(len(block.regions), i, dtype=np.intp), *block[1:]) for i, block in enumerate(blocks)]


class BlockSizes:
    """The bytes that the blocks of some tensors have on this rank before and after.

    NumPy lets a program resize an array, or make a tensor of a block that does not fit. MPI would read and write
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
        """Return what is wrong, unless all blocks are as long as their tensors say."""
        if len(self._sources) == 1 and len(sources[0]) == self._sources[0] and len(targets[0]) == self._targets[0]:
            return None  # the same without lists: this is on the way of every small exchange
        lengths, expected = [*map(len, (*sources, *targets))], self._sources + self._targets
        if lengths == expected:
            return None
        return wrong_length(*next(pair for pair in zip(lengths, expected, strict=True) if pair[0] != pair[1]))

    def with_zeros(self, sources: list[Bytes], targets: list[Bytes]) -> tuple[list[Bytes], list[Bytes]]:
        """Return the blocks, with zeros instead of those that do not fit."""
        return _with_zeros(sources, self._sources), _with_zeros(targets, self._targets)


def wrong_length(length: int, wanted: int) -> ShapeError:
    """Return the error for a block of *length* bytes that should have others."""
    return ShapeError(
        f"a block has {length} bytes, but by shape, dtype and layout of its tensor it has {wanted}: "
        "it was resized, or the tensor was made of a block that does not fit"
    )


def own_copies(tensors: Sequence[BoxExchange]) -> BoxCopies | None:
    """Return the copies of what this rank sends to itself, from block to block, if there are any."""
    return next(iter(own_pieces(tensors, 1)), None)


def own_pieces(tensors: Sequence[BoxExchange], pieces: int) -> list[BoxCopies]:
    """Return the same copies in *pieces* of about the same size, perhaps none."""

    def sent(tensor: BoxExchange) -> Strided:
        position, sends = tensor.position, tensor.sends
        return tensor.in_source(position, 0, sends.subset(sends.of(position)))

    def received(tensor: BoxExchange) -> Strided:
        position, receives = tensor.position, tensor.receives
        return tensor.in_target(position, 0, receives.subset(receives.of(position)))

    froms, tos = with_region_numbers(map_distinct(tensors, sent)), with_region_numbers(map_distinct(tensors, received))
    itemsizes = [tensor.itemsize for tensor in tensors]
    (source, itemsize), (target, _) = as_byte_boxes(froms, itemsizes), as_byte_boxes(tos, itemsizes)
    if not len(source.offsets):
        return []
    sizes = [tensor.source_bytes(tensor.position) for tensor in tensors]
    target_sizes = [tensor.target_bytes(tensor.position) for tensor in tensors]
    copies = [(source, target)]
    if pieces > 1:
        axis = int(source.extents.max(axis=0).argmax())
        cuts = pairwise(source.extents[:, axis] * number // pieces for number in range(pieces + 1))
        copies = [(_parts_of(source, axis, first, stop), _parts_of(target, axis, first, stop)) for first, stop in cuts]
    return [BoxCopies(sizes, target_sizes, itemsize, *before[:3], *after) for before, after in copies]


def _parts_of(boxes: Strided, axis: int, first: Indices, stop: Indices) -> Strided:
    """Return the part of each box from index *first* of an *axis* to *stop*."""
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
    return boxes.repeats is None and len(boxes.starts) <= _FEW


def has_intervals(box: Box) -> bool:
    """Return whether *box* is one interval along each axis."""
    return all(type(span) is tuple for span in box)


_FEW = 16
"""Boxes. A compromise: arrays take about as long for a few of them as for one."""

PlacedBox: TypeAlias = tuple[int, Box, list[int], list[int]]
"""A box in a region of memory that is a block: the region, the box of the block, and the corners of the box."""


def strided_rows(rows: Sequence[PlacedBox], ndim: int, itemsize: int) -> Strided:
    """Return where boxes of *ndim* axes lie in blocks that are one interval along each axis."""
    regions, offsets, strides, extents = [], list[int](), list[list[int]](), list[list[int]]()
    for region, block, start, stop in rows:
        stride, offset, steps = itemsize, 0, [0] * ndim
        for axis in range(ndim - 1, -1, -1):
            first, end = block[axis][:2]
            offset += (start[axis] - first) * stride
            steps[axis] = stride
            stride *= end - first
        regions.append(region)
        offsets.append(offset)
        strides.append(steps)
        extents.append([end - first for first, end in zip(start, stop, strict=True)])
    count = len(regions)
    numbers = np.array([regions, offsets], dtype=np.intp)
    loops = np.array([strides, extents], dtype=np.intp).reshape(2, count, ndim)
    return Strided(numbers[0], numbers[1], loops[0], loops[1])


def run_length(block: Box, start: Sequence[int], stop: Sequence[int], itemsize: int) -> int:
    """Return how many bytes of a box lie one after the other in a block that is one interval along each axis."""
    run = itemsize
    for span, first, end in zip(reversed(block), reversed(start), reversed(stop), strict=True):
        run *= end - first
        if end - first != span[1] - span[0]:
            break
    return run
