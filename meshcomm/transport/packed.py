"""Exchanges: boxes of blocks between the ranks of a group, over MPI.

An `Exchange` is one MPI_Alltoallv, a `Gather` one MPI_Allgatherv, a `Permute` two messages; whatever moves data in
meshcomm is composed from them. Boxes that lie consecutively in a block are sent from it and received in it directly,
all others are packed and unpacked. To keep scratch memory within a bound an exchange runs in rounds, each of which
moves a part of every box.
"""

from typing import Any

import numpy as np

from meshcomm._kernels import Packing
from meshcomm._tuning import LARGEST_COUNT
from meshcomm._types import Bytes, Counts, Indices
from meshcomm.layouts.boxes import Boxes, to_others
from meshcomm.layouts.partition import part_starts
from meshcomm.memory.blocks import nbytes
from meshcomm.memory.copies import Placed, joined, placed
from meshcomm.memory.scratch import Room, scratch, scratch_like
from meshcomm.ranks.communicator import Pending
from meshcomm.ranks.teams import Group
from meshcomm.transport.exchange import Part, own_copies


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
        self.room = 0 if in_place else packing.part_bytes(0, rounds)
        """Bytes of the packed buffer: the first part is the longest."""
        self._whole = self._part(0) if rounds == 1 else None

    def part(self, number: int) -> tuple[Counts, Counts]:
        """Return how many bytes of each rank, and where in the buffer, part *number* is. Local."""
        return self._whole or self._part(number)

    def _part(self, number: int) -> tuple[Counts, Counts]:
        first, stop = (part_starts(self._elements, self.rounds, n) * self._itemsize for n in (number, number + 1))
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
        self.send = Side(ranks, itemsizes, shapes, [to_others(part.sends, place) for part in parts], rounds)
        received = [to_others(part.receives, place) for part in parts]
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


def _only(counts: Counts, places: Counts) -> tuple[int | None, slice]:
    """Return the one place that a side has bytes for, if any, and where they are."""
    place = next((place for place, count in enumerate(counts) if count), None)
    if place is None:
        return None, slice(0, 0)
    return place, slice(places[place], places[place] + counts[place])
