"""Exchanges in place: ranks that share memory copy straight between their blocks.

What is to be copied is the same as over MPI; shared memory is only another way for it to go. For each pair of ranks the
receiver reads from the sender's block, or the sender writes to the receiver's, whichever is shared. If both are, the
rank whose own side has the shorter runs does it: the other side then is touched in whole cache lines. If neither block
is shared, as between two arrays of the user, the pair exchanges messages the first time. When that happens again, the
sender first copies its block to shared memory, if there is some within the scratch limit.

Several tensors move in one exchange: their new blocks lie in one stretch of memory, so that the other ranks find all of
them when they know where it begins.
"""

from collections.abc import Sequence

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm._tuning import LINE
from meshcomm._types import Bytes, Indices, Shape
from meshcomm.layouts.boxes import box_shape
from meshcomm.memory._rendezvous import Routes
from meshcomm.memory.blocks import NOTHING
from meshcomm.memory.copies import Strided, as_byte_boxes, concatenated
from meshcomm.memory.pools import locate
from meshcomm.memory.scratch import shared_scratch
from meshcomm.ranks.teams import Group
from meshcomm.transport.exchange import Tensor, Terms
from meshcomm.transport.packed import Messages


def stretch_offsets(sizes: Sequence[int]) -> list[int]:
    """Return where blocks of these *sizes* begin in one stretch of memory, and its length.

    Each begins on a cache line of its own.

    >>> stretch_offsets([10, 64, 1])
    [0, 64, 128, 192]
    """
    lines = [-(-size // LINE) * LINE for size in sizes]
    return [0, *np.cumsum(lines, dtype=np.intp).tolist()]


class LocalCopies:
    """The copies between the blocks of this rank and those of its local peers. Pure.

    *members* are the positions in the group of the ranks that share memory, this rank among them. Local peers are
    numbered by their index there.
    """

    def __init__(self, tensors: Sequence[Tensor], members: tuple[int, ...]) -> None:
        self.tensors = tensors
        self.members = members
        self.several = len(tensors) > 1
        self.here = members.index(tensors[0].position)

    def pairs(self, receives: bool) -> list[tuple[int, bool]]:
        """Return with which local peers this rank exchanges one way, and whether the sender should rather write."""
        found: dict[int, bool] = {}
        for tensor in self.tensors:
            boxes = tensor.receives if receives else tensor.sends
            for peer, box in zip(boxes.peers.tolist(), boxes.which.tolist(), strict=True):
                extent = boxes.stops[box] - boxes.starts[box]
                if peer == tensor.position or peer not in self.members or not extent.all():
                    continue
                ends = (peer, tensor.position) if receives else (tensor.position, peer)
                found[self.members.index(peer)] = self.several or _rather_writes(tensor, *ends, extent)
        return list(found.items())

    def reads_and_writes(
        self, reads_from: tuple[int, ...], writes_to: tuple[int, ...]
    ) -> tuple[BoxCopies | None, BoxCopies | None]:
        """Return the copies from blocks of local peers to the new block, and from the blocks to those of peers.

        What stays on this rank goes with the one or the other, so that memory is read once, or written once.
        """
        here = (self.here,)
        if reads_from:
            return self.reads(reads_from + here), self.writes(writes_to)
        return None, self.writes(writes_to + here)

    def reads(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks of local *peers*, this rank perhaps among them, to the new block."""
        (tensor,) = self.tensors
        sizes, boxes = [0] * len(self.members), tensor.receives
        theirs, ours = [], []
        for number in sorted(peers):
            which = boxes.of(self.members[number])
            if len(which):
                starts, stops = boxes.starts[which], boxes.stops[which]
                theirs.append(tensor.in_source(self.members[number], number, starts, stops))
                ours.append(tensor.in_target(tensor.position, 0, starts, stops))
                sizes[number] = tensor.source_bytes(self.members[number])
        if not ours:
            return None
        ndim, target = boxes.starts.shape[1], [tensor.target_bytes(tensor.position)]
        source, into = concatenated(theirs, ndim), concatenated(ours, ndim)
        return BoxCopies(sizes, target, tensor.itemsize, *source[:3], *into, len(self.members))

    def writes(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks to the new blocks of local *peers*, this rank perhaps among them."""
        offsets = {number: self._offsets_of(self.members[number]) for number in peers}
        sizes = [offsets[number][-1] if number in offsets else 0 for number in range(len(self.members))]
        ours, theirs = [], []
        for region, tensor in enumerate(self.tensors):
            mine: list[Strided] = []
            others: list[Strided] = []
            for number in sorted(peers):
                which = tensor.sends.of(self.members[number])
                if len(which):
                    starts, stops = tensor.sends.starts[which], tensor.sends.stops[which]
                    mine.append(tensor.in_source(tensor.position, region, starts, stops))
                    there = tensor.in_target(self.members[number], number, starts, stops)
                    others.append(there._replace(offsets=there.offsets + offsets[number][region]))
            ndim = tensor.sends.starts.shape[1]
            ours.append(concatenated(mine, ndim))
            theirs.append(concatenated(others, ndim))
        itemsizes = [tensor.itemsize for tensor in self.tensors]
        (source, itemsize), (target, _) = as_byte_boxes(ours, itemsizes), as_byte_boxes(theirs, itemsizes)
        if not len(source.offsets):
            return None
        own = [tensor.source_bytes(tensor.position) for tensor in self.tensors]
        return BoxCopies(own, sizes, itemsize, *source[:3], *target, len(self.members))

    def _offsets_of(self, position: int) -> list[int]:
        """Return where the new blocks of a position begin in its stretch, and the length of this."""
        sizes = [tensor.target_bytes(position) for tensor in self.tensors]
        return stretch_offsets(sizes) if self.several else [0, sizes[0]]


def _rather_writes(tensor: Tensor, sender: int, receiver: int, extent: Indices) -> bool:
    """Return whether the sender's side of a box has shorter runs than the receiver's."""
    source, target = tensor.source(sender), tensor.target(receiver)
    assert source is not None
    assert target is not None
    return _run(box_shape(source), extent) < _run(box_shape(target), extent)


def _run(shape: Shape, extent: Indices) -> int:
    """Return how many elements of a box lie one after the other in a block of *shape*."""
    run = 1
    for n, length in zip(reversed(shape), reversed(extent.tolist()), strict=True):
        run *= length
        if length < n:
            break
    return run


class InPlace:
    """An exchange among those ranks of a group that share memory with this one.

    *rounds* is in how many rounds messages go that are still needed.
    """

    def __init__(self, group: Group, tensors: Sequence[Tensor], terms: Terms, rounds: int) -> None:
        rendezvous = group.rendezvous
        assert rendezvous is not None
        self._group = group
        self._rendezvous = rendezvous
        self._terms = terms
        self._rounds = rounds
        self._copies = LocalCopies(tensors, rendezvous.members)
        incoming, outgoing = self._copies.pairs(True), self._copies.pairs(False)
        self._routes = Routes(rendezvous.size, rendezvous.position, incoming, outgoing)
        self._messages: dict[tuple[tuple[int, ...], tuple[int, ...]], Messages] = {}
        self._staging: BoxCopies | None = None
        self._was_left = False  # a block did not get through: neither here nor there it was shared

    def run(self, sources: list[Bytes], targets: list[Bytes], stretch: Bytes | None = None) -> None:
        """Fill the new blocks. Collective over the ranks that share memory."""
        rendezvous, routes = self._rendezvous, self._routes
        several = sources if self._copies.several else None
        source, target = NOTHING if several else sources[0], targets[0] if stretch is None else stretch
        if self._was_left and several is None and locate(source) < 0 and locate(target) < 0:
            source = self._staged(source)
        # With the digest of all calls: who has made others is found out here.
        number = self._terms.number ^ self._group.team.call_digest
        if not rendezvous.exchange(routes, number, source, target, several):
            self._plan()
        if routes.left is not None:
            self._was_left = True
            self._send_messages(routes.left, sources, targets)

    def _plan(self) -> None:
        """Make the copies for the ways of this exchange, and finish it."""
        try:
            self._routes.plan(*self._copies.reads_and_writes(self._routes.reads_from, self._routes.writes_to))
        except BaseException:
            self._rendezvous.abandon()
            raise
        self._rendezvous.resume()

    def _staged(self, source: Bytes) -> Bytes:
        """Return a copy of the block in memory that is shared, if there is some within the scratch limit."""
        allowed = self._terms.stages and len(source) <= self._terms.scratch_limit
        buffer = shared_scratch(len(source)) if allowed else None
        if buffer is None:
            return source
        if self._staging is None:
            zero, one, size = np.zeros(1, dtype=np.intp), np.ones((1, 1), dtype=np.intp), len(source)
            self._staging = BoxCopies(
                [size], [size], 1, zero, zero, one, zero, zero, one, size * one, self._rendezvous.size
            )
        self._staging.run([source], [buffer])
        return buffer

    def _send_messages(
        self, left: tuple[tuple[int, ...], tuple[int, ...]], sources: list[Bytes], targets: list[Bytes]
    ) -> None:
        """Exchange messages with local peers where neither block is shared."""
        if left not in self._messages:
            members = np.array(self._copies.members, dtype=np.intp)
            senders, receivers = (members[list(peers)] for peers in left)
            some = [tensor.only(senders, receivers) for tensor in self._copies.tensors]
            self._messages[left] = Messages(self._group, some, self._terms.most_bytes, self._rounds)
        self._messages[left].run(sources, targets)
