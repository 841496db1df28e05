"""Exchanges: boxes of blocks between the ranks of a group, over MPI.

An `Exchange` is one MPI_Alltoallv, a `Gather` one MPI_Allgatherv, a `Permute` two messages; whatever moves data in
meshcomm is composed from them. Boxes that lie consecutively in a block are sent from it and received in it directly,
all others are packed and unpacked. To keep scratch memory within a bound an exchange runs in rounds, each of which
moves a part of every box.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm._kernels import BoxCopies, Packing
from meshcomm.groups import LARGEST_COUNT, Bytes, Counts, Group, Pending
from meshcomm.machine import Indices
from meshcomm.plan import DEFAULT_SCRATCH
from meshcomm.shared import allocate, allocate_unshared
from meshcomm.steps import Boxes

Array = NDArray[Any]

_scratch = threading.local()
_BYTE = np.dtype(np.uint8)


def as_bytes(block: Array) -> Bytes:
    """Return the bytes of a C-contiguous *block*, sharing its memory. Local."""
    base = block.base
    if type(base) is np.ndarray and base.dtype is _BYTE and base.nbytes == block.nbytes and base.flags.c_contiguous:
        return base.reshape(-1) if base.ndim != 1 else base  # a block that was made by `as_block`
    if block.dtype.itemsize == 0:
        return np.empty(0, dtype=np.uint8)
    return block.reshape(-1).view(np.uint8)


def as_block(data: Bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return *data* as a C-contiguous array, sharing its memory. Local."""
    return np.ndarray(shape, dtype, data)


def new_bytes(size: int) -> Bytes:
    """Return *size* new bytes, for a block: in memory that the node's ranks share, if there is such. Local."""
    shared = allocate(size)
    return allocate_unshared(size) if shared is None else shared


def new_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new C-contiguous block of any content, as `new_bytes`. Local."""
    return as_block(new_bytes(nbytes(shape, dtype.itemsize)), shape, dtype)


Room: TypeAlias = Callable[[str, int], Bytes]


def own_room(use: str, size: int) -> Bytes:
    """Return *size* bytes for one use only. Local."""
    return np.empty(size, dtype=np.uint8)


def scratch(use: str, size: int) -> Bytes:
    """Return *size* bytes to write to until the next call for the same *use* by this thread. Local.

    What the default bound allows is kept from call to call; more is made each time.
    """
    if size > DEFAULT_SCRATCH:
        return allocate_unshared(size)
    kept: Bytes | None = getattr(_scratch, use, None)
    if kept is None or len(kept) < size:
        kept = allocate_unshared(size)
        setattr(_scratch, use, kept)
    return kept[:size]


def scratch_like(block: Bytes, use: str, size: int) -> Bytes:
    """Return `scratch` that begins where *block* does within a cache line, if it is large. Local.

    MPI copies twice as fast between such. What one rank's block is like the others' mostly are as well.
    """
    if size < LIKE_FROM:
        return scratch(use, size)
    over = block.__array_interface__["data"][0] % LINE
    return scratch(use, size + LINE)[over : over + size]


LINE, LIKE_FROM = 64, 2**18


def shared_scratch(size: int) -> Bytes | None:
    """Return *size* bytes in memory that the node's ranks share, or None if there are none. Local.

    They are the same for all exchanges of this thread that have asked for no more, of which one uses them at a time.
    """
    if size == 0:
        return np.empty(0, dtype=np.uint8)
    kept: Bytes | None = getattr(_scratch, "shared", None)
    if kept is None or len(kept) < size:
        kept = allocate(size)
        if kept is None:
            return None
        _scratch.shared = kept
    return kept[:size]


def forget_scratch() -> None:
    """Give back what `scratch` keeps for this thread. Local."""
    _scratch.__dict__.clear()


def nbytes(shape: tuple[int, ...] | None, itemsize: int) -> int:
    """Return the bytes of a block of *shape*; None is no block. Local."""
    if shape is None:
        return 0
    for n in shape:
        itemsize *= n
    return itemsize


class Part(NamedTuple):
    """What one tensor has to do with an exchange: boxes of a block that others get, and of theirs in a new block.

    Boxes are in indices of the block that they lie in. A shape is None where there is no such block.
    """

    itemsize: int
    shape: tuple[int, ...] | None
    sends: Boxes
    target_shape: tuple[int, ...] | None
    receives: Boxes


class Placed(NamedTuple):
    """Boxes in memory: the region, the byte offset, and per axis the stride in bytes and the extent."""

    regions: Indices
    offsets: Indices
    strides: Indices
    extents: Indices


def _strides(shape: tuple[int, ...], itemsize: int) -> Indices:
    strides = np.ones(len(shape), dtype=np.intp)
    if len(shape) > 1:
        strides[:-1] = np.cumprod(shape[:0:-1])[::-1]
    return strides * itemsize


def placed(region: int, shape: tuple[int, ...] | None, itemsize: int, starts: Indices, stops: Indices) -> Placed:
    """Return where boxes lie in the block of *shape* that is this *region*. Local."""
    strides = _strides(shape or (1,) * starts.shape[1], itemsize)
    regions = np.full(len(starts), region, dtype=np.intp)
    return Placed(regions, starts @ strides, np.broadcast_to(strides, starts.shape), stops - starts)


def joined(sides: list[Placed], itemsizes: list[int]) -> tuple[Placed, int]:
    """Return boxes of blocks of several dtypes as boxes of bytes, with as many axes as the most of them. Local."""
    if len(sides) == 1:
        return sides[0], itemsizes[0]
    ndim = max(boxes.extents.shape[1] for boxes in sides) + 1
    strides, extents = [], []
    for boxes, itemsize in zip(sides, itemsizes, strict=True):
        lacking = ((0, 0), (ndim - 1 - boxes.extents.shape[1], 1))
        strides.append(np.pad(boxes.strides, lacking, constant_values=1))
        extents.append(np.pad(boxes.extents, lacking, constant_values=1))
        extents[-1][:, -1] = itemsize
    regions, offsets = (np.concatenate([boxes[i] for boxes in sides]) for i in (0, 1))
    return Placed(regions, offsets, np.concatenate(strides), np.concatenate(extents)), 1


class Side:
    """How boxes lie in the blocks of this rank, and in the buffer that MPI sees: the block itself, or a packed one."""

    def __init__(
        self,
        ranks: int,
        itemsizes: list[int],
        shapes: list[tuple[int, ...] | None],
        boxes: list[Boxes],
        rounds: int,
    ) -> None:
        self._ranks = ranks
        blocks = [
            placed(region, shape, itemsize, found.starts, found.stops)
            for region, (shape, itemsize, found) in enumerate(zip(shapes, itemsizes, boxes, strict=True))
        ]
        lie, itemsize = joined(blocks, itemsizes)
        peers = np.concatenate([found.peers for found in boxes])
        first = np.cumsum([0] + [len(found.starts) for found in boxes[:-1]])
        which = np.concatenate([found.which + start for found, start in zip(boxes, first, strict=True)])
        if len(boxes) > 1:
            peers, which, chosen = _together(peers, which)
            lie = Placed(*(array[chosen] for array in lie))
        self._peers, self._which, self._itemsize = peers, which, itemsize
        self._elements = np.prod(lie.extents, axis=1, dtype=np.intp)
        self._offsets = lie.offsets
        sizes = [nbytes(shape, size) for shape, size in zip(shapes, itemsizes, strict=True)]
        packing = Packing(sizes, itemsize, *lie)
        in_place = len(boxes) == 1 and packing.contiguous
        self.packing = None if in_place else packing
        self.rounds = rounds
        self.room = 0 if in_place else packing.round_bytes(0, rounds)
        """Bytes of the packed buffer: the first part is the longest."""
        self._whole = self._part(0) if rounds == 1 else None

    def part(self, number: int) -> tuple[Counts, Counts]:
        """Return how many bytes of each rank, and where in the buffer, part *number* is. Local."""
        return self._whole or self._part(number)

    def _part(self, number: int) -> tuple[Counts, Counts]:
        first, stop = (_part_starts(self._elements, self.rounds, n) * self._itemsize for n in (number, number + 1))
        sizes = stop - first
        starts = self._offsets + first if self.packing is None else np.cumsum(sizes) - sizes
        counts, places = np.zeros((2, self._ranks), dtype=np.int64)
        sent = sizes[self._which]
        np.add.at(counts, self._peers, sent)
        some = sent > 0  # boxes are in the order of ranks where one has several: its first one counts
        places[self._peers[some][::-1]] = starts[self._which][some][::-1]
        # mpi4py reads short lists faster than arrays, and long arrays faster than lists.
        return (counts.tolist(), places.tolist()) if self._ranks <= 16 else (counts, places)


def _together(peers: Indices, which: Indices) -> tuple[Indices, Indices, Indices]:
    """Return peers and their boxes so that what goes to one rank lies together, and which boxes to lay out, in order.

    Ranks that get the same boxes, as in a gather, share them.
    """
    wanted: dict[int, list[int]] = {}
    for peer, box in zip(peers.tolist(), which.tolist(), strict=True):
        wanted.setdefault(peer, []).append(box)
    laid_out: dict[tuple[int, ...], int] = {}
    chosen: list[int] = []
    rows = []
    for peer, boxes in sorted(wanted.items()):
        first = laid_out.setdefault(tuple(boxes), len(chosen))
        if first == len(chosen):
            chosen += boxes
        rows += [(peer, first + i) for i in range(len(boxes))]
    table = np.array(rows, dtype=np.intp).reshape(-1, 2)
    return table[:, 0], table[:, 1], np.array(chosen, dtype=np.intp)


def _part_starts(elements: Indices, parts: int, number: int) -> Indices:
    """Return where part *number* of *parts* begins in rows of so many *elements*."""
    if parts == 1:
        return elements * number
    length, longer = np.divmod(elements, parts)
    return length * number + np.minimum(longer, number)


class Exchange:
    """Boxes of blocks to ranks of a group, and boxes of theirs into new blocks: one MPI_Alltoallv. Local to make.

    *place* is this rank's place in the group; what it sends to itself is copied once, from block to block. Each of
    *parts* is a tensor; their blocks are given in this order. In several *rounds* only a part of each box is packed
    at a time. *most* is the most bytes that any rank of the group may count, the same on all of them.
    """

    def __init__(self, group: Group, place: int, parts: list[Part], most: int, rounds: int = 1) -> None:
        self.group = group
        self.rounds = rounds
        self._in_pieces = most > LARGEST_COUNT and not group.team.large_counts
        itemsizes = [part.itemsize for part in parts]
        shapes, target_shapes = [part.shape for part in parts], [part.target_shape for part in parts]
        ranks = len(group.members)
        self.send = Side(ranks, itemsizes, shapes, [_to_others(part.sends, place) for part in parts], rounds)
        received = [_to_others(part.receives, place) for part in parts]
        self.receive = Side(ranks, itemsizes, target_shapes, received, rounds)
        self.own = own_copies(parts, place)
        self._alone = ranks == 1

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Fill the new blocks. Collective over the group."""
        if not self._alone:
            for number in range(self.rounds):
                data, into = self._outgoing(sources, targets, number), self._incoming(sources, targets)
                self._communicate(data, into, number)
                if self.receive.packing is not None:
                    self.receive.packing.unpack(into, targets, number, self.rounds)
        if self.own is not None:
            self.own.run(sources, targets)

    def start(self, sources: list[Bytes], targets: list[Bytes], room: "Room") -> "Started":
        """Begin to fill the new blocks, in one round. Collective over the group, but does not wait.

        *room* gives memory for a use, of so many bytes, that nobody else uses until the exchange is complete.
        """
        send, receive = self.send, self.receive
        data = sources[0] if send.packing is None else room("send", send.room)
        if send.packing is not None:
            send.packing.pack(sources, data)
        into = targets[0] if receive.packing is None else room("receive", receive.room)
        communicator = self.group.communicator()
        start = communicator.start_pieces if self._in_pieces else communicator.start_alltoallv
        pending = start(data, *send.part(0), into, *receive.part(0))
        if self.own is not None:
            self.own.run(sources, targets)
        return Started(pending, (data, into, sources, targets), self.receive)

    def _outgoing(self, sources: list[Bytes], targets: list[Bytes], number: int) -> Bytes:
        """Return the buffer to send from: the block itself, or what is packed of all blocks."""
        if self.send.packing is None:
            return sources[0]
        data = scratch_like(targets[0], "send", self.send.room)
        self.send.packing.pack(sources, data, number, self.rounds)
        return data

    def _incoming(self, sources: list[Bytes], targets: list[Bytes]) -> Bytes:
        """Return the buffer to receive in: the new block itself, or one to unpack from."""
        return targets[0] if self.receive.packing is None else scratch_like(sources[0], "receive", self.receive.room)

    def _communicate(self, data: Bytes, into: Bytes, number: int) -> None:
        communicator = self.group.communicator()
        if self._in_pieces:
            communicator.start_pieces(data, *self.send.part(number), into, *self.receive.part(number)).wait()
        else:
            communicator.alltoallv(data, *self.send.part(number), into, *self.receive.part(number))


class Messages(Exchange):
    """An exchange with some ranks of a group, in which the others take no part."""

    def _communicate(self, data: Bytes, into: Bytes, number: int) -> None:
        start = self.group.communicator().start_pieces
        start(data, *self.send.part(number), into, *self.receive.part(number)).wait()


class Permute(Exchange):
    """An exchange in which every rank of the group sends to one rank at most, and receives from one at most.

    Two messages between those who have something to say, instead of a collective call among all.
    """

    def _communicate(self, data: Bytes, into: Bytes, number: int) -> None:
        to, sent = _only(*self.send.part(number))
        source, received = _only(*self.receive.part(number))
        self.group.communicator().permute(data[sent], to, into[received], source)


class Started:
    """An exchange on its way, which keeps the memory that it reads and writes."""

    def __init__(self, pending: Pending, memory: tuple[Any, ...], receive: Side) -> None:
        self._pending = pending
        self._memory = memory
        self._receive = receive
        self.finished = False

    def test(self) -> bool:
        """Return whether all bytes have arrived, and put them in place if they have. Local."""
        if not self.finished and self._pending.test():
            self._finish()
        return self.finished

    def wait(self) -> None:
        """Wait until all bytes have arrived, and put them in place. Collective over the group."""
        if not self.finished:
            self._pending.wait()
            self._finish()

    def _finish(self) -> None:
        _, into, _, targets = self._memory
        if self._receive.packing is not None:
            self._receive.packing.unpack(into, targets)
        self._memory = ()
        self.finished = True


class Gather:
    """A box of a block to all ranks of a group, and theirs into a new block: one MPI_Allgatherv. Local to make.

    The part's one box goes to all ranks, itself among them, and it receives the box of each one.
    """

    def __init__(self, group: Group, place: int, part: Part) -> None:
        self.group = group
        starts, stops = part.sends.starts, part.sends.stops  # none, if the block is empty
        box = Boxes(np.full(len(starts), place), np.arange(len(starts)), starts, stops)
        ranks = len(group.members)
        self.send = Side(ranks, [part.itemsize], [part.shape], [box], 1)
        self.receive = Side(ranks, [part.itemsize], [part.target_shape], [part.receives], 1)
        counts, places = self.send.part(0)
        self._sent = slice(places[place], places[place] + counts[place])
        self._alone = ranks == 1

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Fill the new block. Collective over the group."""
        data = sources[0]
        if self.send.packing is not None:
            data = scratch("send", self.send.room)
            self.send.packing.pack(sources, data)
        packing = self.receive.packing
        into = targets[0] if packing is None else scratch("receive", self.receive.room)
        if self._alone:
            into[:] = data[self._sent]
        else:
            self.group.communicator().allgatherv(data[self._sent], into, *self.receive.part(0))
        if packing is not None:
            packing.unpack(into, targets)


def copy_strided(array: Array, block: Array) -> None:
    """Copy an *array* of any strides, none of its axes empty, into a C-contiguous *block*, byte by byte. Local."""
    # From its lowest byte on: an axis that runs backwards is run the other way, in both.
    strides = np.array(array.strides, dtype=np.intp)
    lowest = array[tuple(slice(None, None, -1) if stride < 0 else slice(None) for stride in array.strides)]
    extents = np.array(array.shape, dtype=np.intp)
    size = int(((extents - 1) * np.abs(strides)).sum()) + array.itemsize
    first = lowest[(slice(1),) * array.ndim].reshape(1).view(np.uint8)
    memory = np.lib.stride_tricks.as_strided(first, (size,), (1,), writeable=False)
    start = int(((extents - 1) * np.where(strides < 0, -strides, 0)).sum())
    zero, offset = np.zeros(1, dtype=np.intp), np.array([start], dtype=np.intp)
    into = _strides(array.shape, array.itemsize)[None]
    copies = BoxCopies(
        [size], [block.nbytes], array.itemsize, zero, offset, strides[None], zero, zero, into, extents[None]
    )
    copies.run([memory], [as_bytes(block)])


def own_copies(parts: list[Part], place: int) -> BoxCopies | None:
    """Return the copies of what a rank sends to itself, from block to block, if there are any. Local."""
    froms, tos = [], []
    for region, part in enumerate(parts):
        mine, own = (boxes.which[boxes.peers == place] for boxes in (part.sends, part.receives))
        froms.append(placed(region, part.shape, part.itemsize, part.sends.starts[mine], part.sends.stops[mine]))
        tos.append(
            placed(region, part.target_shape, part.itemsize, part.receives.starts[own], part.receives.stops[own])
        )
    itemsizes = [part.itemsize for part in parts]
    (source, itemsize), (target, _) = joined(froms, itemsizes), joined(tos, itemsizes)
    if not len(source.offsets):
        return None
    sizes = [nbytes(part.shape, part.itemsize) for part in parts]
    target_sizes = [nbytes(part.target_shape, part.itemsize) for part in parts]
    return BoxCopies(sizes, target_sizes, itemsize, *source[:3], *target)


def _to_others(boxes: Boxes, place: int) -> Boxes:
    """Return *boxes* without those that only this rank gets, or gives."""
    return boxes if (boxes.peers != place).all() else _some(boxes, boxes.peers != place)


def with_peers(boxes: Boxes, places: Indices) -> Boxes:
    """Return *boxes* without those that none of the ranks at *places* gets, or gives. Local."""
    return _some(boxes, np.isin(boxes.peers, places))


def _some(boxes: Boxes, chosen: NDArray[np.bool_]) -> Boxes:
    needed, which = np.unique(boxes.which[chosen], return_inverse=True)
    return Boxes(boxes.peers[chosen], which.reshape(-1), boxes.starts[needed], boxes.stops[needed])


def _only(counts: Counts, places: Counts) -> tuple[int | None, slice]:
    """Return the one place that a side has bytes for, if any, and where they are."""
    place = next((place for place, count in enumerate(counts) if count), None)
    if place is None:
        return None, slice(0, 0)
    return place, slice(places[place], places[place] + counts[place])
