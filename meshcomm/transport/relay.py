"""Relayed exchanges: between nodes, boxes go through aggregators.

What ranks of a node have for each other, and for their aggregators, is copied in shared memory; one message crosses
between each pair of nodes. `meshcomm.transport.crossing` says who exchanges what with whom.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm._types import Bytes, Indices
from meshcomm.memory._rendezvous import Rendezvous, Routes
from meshcomm.memory.copies import Strided
from meshcomm.memory.pools import locate
from meshcomm.memory.scratch import shared_scratch
from meshcomm.ranks.communicator import Buffers, Pending
from meshcomm.ranks.teams import Group
from meshcomm.transport.crossing import Crossing, Nodes
from meshcomm.transport.exchange import Tensor, Terms, own_copies
from meshcomm.transport.in_place import LocalCopies
from meshcomm.transport.packed import Messages

Copies: TypeAlias = tuple[BoxCopies | None, BoxCopies | None]


class Relayed:
    """An exchange of one tensor in which what crosses between nodes goes through aggregators.

    Copies between local peers are made when ranks take what has come from other nodes, so that the ranks of a node wait
    for each other only twice. A rank that shares no memory is a node of its own.
    """

    def __init__(self, group: Group, tensor: Tensor, terms: Terms) -> None:
        assert group.nodes is not None
        nodes = Nodes(group.nodes)
        here = int(nodes.of[tensor.position])
        self._group, self._tensor, self._terms = group, tensor, terms
        self._rendezvous: Rendezvous | None = group.rendezvous
        self._outgoing = Crossing(nodes, here, tensor.sends_of, True, tensor.itemsize)
        self._incoming = Crossing(nodes, here, tensor.receives_of, False, tensor.itemsize)
        self._me = int(np.searchsorted(self._outgoing.members, tensor.position))
        self._first = self._outgoing.buffers[self._me]  # of the bytes that we receive; those that we send are before
        self.scratch_bytes = self._first + self._incoming.buffers[self._me]
        """The bytes of the buffer that this rank needs for its messages."""
        self._messages = _messages(nodes, tensor.position, self._outgoing, self._incoming, self._first)
        self._own = own_copies([tensor])
        self._by_messages: dict[tuple[tuple[int, ...], tuple[int, ...]], Messages] = {}
        self._unwritten: tuple[int, ...] = ()

    def open(self, scratch_limit: int) -> bool:
        """Get the memory for the messages and return whether all ranks have theirs. Collective over the group.

        No rank uses more than *scratch_limit* bytes, or memory that its local peers do not see.
        """
        memory = None
        # Exchanges keep what they have got: in powers of two, all of it is at most twice what the largest one has.
        size = 1 << (self.scratch_bytes - 1).bit_length() if self.scratch_bytes else 0
        if size <= scratch_limit:
            memory = np.empty(size, dtype=np.uint8) if self._rendezvous is None else shared_scratch(size)
        if self._group.communicator().allreduce_max(np.array([memory is None], dtype=np.int64))[0]:
            return False
        assert memory is not None
        self._memory = memory
        self._sent, self._received = memory[: self._first], memory[self._first : self.scratch_bytes]
        self._own_out, self._own_in = self._copies_out((self._me,)), self._copies_in((self._me,))
        if self._rendezvous is not None:
            self._local = LocalCopies([self._tensor], self._rendezvous.members)
            self._hand, self._take = self._routes(self._rendezvous)
        return True

    def _routes(self, rendezvous: Rendezvous) -> tuple[Routes, Routes]:
        """Return who copies to aggregators, and from them; with the latter go the copies between local peers."""
        size, me = len(self._outgoing.members), self._me
        held, holding = self._pairs(self._outgoing, True)
        hand = Routes(size, me, holding, held)
        held, holding = self._pairs(self._incoming, False)
        self._senders = [peer for peer, _ in self._local.pairs(True)]
        self._receivers = [peer for peer, _ in self._local.pairs(False)]
        incoming = held + [(peer, True) for peer in self._senders]
        outgoing = holding + [(peer, True) for peer in self._receivers]
        return hand, Routes(size, me, incoming, outgoing)

    def run(self, sources: list[Bytes], targets: list[Bytes], stretch: Bytes | None = None) -> None:
        """Fill the new block. Collective over the group."""
        source, target = sources[0], targets[0]
        pending = self._start(source)
        if self._own is not None:
            self._own.run(sources, targets)
        if pending is not None:
            pending.wait()
        if self._own_in is not None:
            self._own_in.run(self._at_own(self._received), [target])
        if self._rendezvous is None:
            return
        self._exchange(self._take, self._received, target, self._taken, [source])
        left = tuple(self._senders) if locate(target) < 0 else (), self._unwritten
        if left != ((), ()):
            self._send_messages(left, sources, targets)

    def _start(self, source: Bytes) -> Pending | None:
        """Hand what crosses to the aggregators, and begin their messages."""
        if self._own_out is not None:
            self._own_out.run([source], self._at_own(self._sent))
        if self._rendezvous is not None:
            self._exchange(self._hand, source, self._sent, lambda _, writes: (None, self._copies_out(writes)))
        if self._messages is None:
            return None
        sent, received = self._messages
        send: Buffers = (self._memory, *sent)
        return self._group.communicator().start_messages(send, (self._memory, *received))

    def _exchange(
        self,
        routes: Routes,
        source: Bytes,
        target: Bytes,
        copies: Callable[[tuple[int, ...], tuple[int, ...]], Copies],
        several: list[Bytes] | None = None,
    ) -> None:
        rendezvous = self._rendezvous
        assert rendezvous is not None
        if not rendezvous.exchange(routes, self._terms.number, source, target, several):
            try:
                routes.plan(*copies(routes.reads_from, routes.writes_to))
            except BaseException:
                rendezvous.abandon()
                raise
            rendezvous.resume()

    def _at_own(self, memory: Bytes) -> list[Bytes | None]:
        return [memory if peer == self._me else None for peer in range(len(self._outgoing.members))]

    def _pairs(self, crossing: Crossing, hands: bool) -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
        """Return the local peers whose buffers hold our boxes, and whose boxes our buffer holds, as `Routes` wants."""
        others = [peer for peer in range(len(crossing.members)) if peer != self._me]
        mine = crossing.holders_of(self._me)
        held = [(peer, hands) for peer in others if peer in mine]
        return held, [(peer, hands) for peer in others if self._me in crossing.holders_of(peer)]

    def _taken(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> Copies:
        """Return the copies from buffers to our new block, and from our block to new blocks that are shared."""
        self._unwritten = tuple(peer for peer in self._receivers if peer not in writes)
        return self._copies_in(reads), self._local.writes(writes)

    def _copies_out(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from our block to the buffers of these local peers."""
        tensor, crossing = self._tensor, self._outgoing
        boxes = crossing.held_by(self._me, peers)
        if not len(boxes):
            return None
        source = tensor.in_source(tensor.position, 0, crossing.starts[boxes], crossing.stops[boxes])
        target, sizes = self._in_buffer(crossing, boxes), [tensor.source_bytes(tensor.position)]
        return BoxCopies(sizes, crossing.buffers, tensor.itemsize, *source[:3], *target)

    def _copies_in(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the buffers of these local peers to our new block."""
        tensor, crossing = self._tensor, self._incoming
        boxes = crossing.held_by(self._me, peers)
        if not len(boxes):
            return None
        target = tensor.in_target(tensor.position, 0, crossing.starts[boxes], crossing.stops[boxes])
        source, sizes = self._in_buffer(crossing, boxes), [tensor.target_bytes(tensor.position)]
        return BoxCopies(crossing.buffers, sizes, tensor.itemsize, *source[:3], *target)

    def _in_buffer(self, crossing: Crossing, boxes: Indices) -> Strided:
        """Return where boxes lie one after the other in the buffers of our node."""
        extents = crossing.stops[boxes] - crossing.starts[boxes]
        strides = np.ones_like(extents)
        strides[:, :-1] = np.cumprod(extents[:, :0:-1], axis=1)[:, ::-1]
        return Strided(crossing.holders[boxes], crossing.offsets[boxes], strides * self._tensor.itemsize, extents)

    def _send_messages(
        self, left: tuple[tuple[int, ...], tuple[int, ...]], sources: list[Bytes], targets: list[Bytes]
    ) -> None:
        """Exchange messages with local peers where neither block is shared."""
        if left not in self._by_messages:
            assert self._rendezvous is not None
            members = np.array(self._rendezvous.members, dtype=np.intp)
            some = self._tensor.only(*(members[list(peers)] for peers in left))
            self._by_messages[left] = Messages(self._group, [some], self._terms.most_bytes)
        self._by_messages[left].run(sources, targets)


def _messages(
    nodes: Nodes, position: int, outgoing: Crossing, incoming: Crossing, first: int
) -> tuple[tuple[Indices, Indices], tuple[Indices, Indices]] | None:
    """Return the counts and offsets that an aggregator sends from its buffer, and those that it receives; or None.

    What it receives lies in the buffer from byte *first* on.
    """
    here = int(nodes.of[position])
    counts, offsets = np.zeros((2, 2, len(nodes.of)), dtype=np.intp)
    for other in np.flatnonzero(nodes.aggregators(here) == position).tolist():
        if other != here:
            peer = nodes.aggregator(other, here)
            counts[:, peer] = outgoing.lengths[other], incoming.lengths[other]
            offsets[:, peer] = outgoing.begins[other], first + incoming.begins[other]
    return ((counts[0], offsets[0]), (counts[1], offsets[1])) if counts.any() else None
