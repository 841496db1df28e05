"""Exchanges between nodes through partners: what ranks hand to each other in memory, and the messages in between.

See `meshcomm.partners` for who exchanges what with whom.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.exchange import Part, Placed, nbytes, placed, shared_scratch
from meshcomm.groups import Bytes, Group, Pending
from meshcomm.machine import Indices
from meshcomm.partners import Crossing, Ends, Nodes
from meshcomm.shared import Rendezvous, Routes, exchange, locate

Left: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


class Near(NamedTuple):
    """Who of the node sends to this rank, and gets from it, by number; and the copies to the new blocks of some."""

    senders: list[int]
    receivers: list[int]
    writes: Callable[[tuple[int, ...]], BoxCopies | None]


class Relay:
    """What a rank gets from other nodes, and gives to them, through partners. Local to make.

    *place* is this rank's place in the group; *part* what it exchanges, of which only what crosses between nodes goes
    through partners. What ranks of a node have for each other, *near*, is written when they take what has come from
    other nodes, so that they wait for each other only twice. A rank that shares no memory is a node of its own.
    *number* is the same on all ranks for the same exchange. A rank needs `room` bytes of scratch.
    """

    def __init__(self, group: Group, place: int, part: Part, ends: Ends, number: int, near: Near) -> None:
        assert group.nodes is not None
        nodes = Nodes(group.nodes)
        here = int(nodes.of[place])
        self._group = group
        self._part = part
        self._ends = ends
        self._number = number
        self._near = near
        self._unwritten: tuple[int, ...] = ()
        self._meeting: Rendezvous | None = group.meeting
        self._outgoing = Crossing(nodes, here, ends.sends, True, part.itemsize)
        self._incoming = Crossing(nodes, here, ends.receives, False, part.itemsize)
        self._me = int(np.searchsorted(self._outgoing.members, place))
        self.first = self._outgoing.rooms[self._me]  # of the bytes that we receive; those that we send are before
        self.room = self.first + self._incoming.rooms[self._me]
        self.messages = _messages(nodes, here, place, self._outgoing, self._incoming, self.first)
        """How many bytes this rank sends to each place, from where in its room, and the same of what it receives."""

    def open(self, bound: int) -> bool:
        """Get the memory for the messages and return whether all ranks have theirs. Collective over the group.

        No rank uses more than *bound* bytes, or memory that the others of its node do not see.
        """
        memory = None
        # Exchanges keep what they have got: in powers of two, all of it is at most twice what the largest one has.
        room = 1 << (self.room - 1).bit_length() if self.room else 0
        if room <= bound:
            memory = np.empty(room, dtype=np.uint8) if self._meeting is None else shared_scratch(room)
        if self._group.communicator().allreduce_max(np.array([memory is None], dtype=np.int64))[0]:
            return False
        assert memory is not None
        self._memory = memory
        self._sent, self._received = memory[: self.first], memory[self.first : self.room]
        self._own_out, self._own_in = self.copies_out((self._me,)), self.copies_in((self._me,))
        if self._meeting is not None:
            size = len(self._outgoing.members)
            held, holding = self._pairs(self._outgoing, True)
            self._hand = Routes(size, self._me, holding, held)
            held, holding = self._pairs(self._incoming, False)
            incoming = held + [(mate, True) for mate in self._near.senders]
            outgoing = holding + [(mate, True) for mate in self._near.receivers]
            self._take = Routes(size, self._me, incoming, outgoing)
        return True

    def start(self, source: Bytes) -> Pending | None:
        """Hand what crosses to the partners, and begin their messages. Collective over the group."""
        if self._own_out is not None:
            self._own_out.run([source], self._at_own(self._sent))
        if self._meeting is not None:
            exchange(self._meeting, self._hand, self._handed, self._number, source, self._sent)
        if self.messages is None:
            return None
        sent, received = self.messages
        return self._group.communicator().start_pieces(self._memory, *sent, self._memory, *received)

    def finish(self, pending: Pending | None, source: Bytes, target: Bytes) -> Left | None:
        """Wait for the messages, take what is ours from those of the partners, and write what the node's ranks get.

        Collective over the group. Returns None, or the numbers of those of the node whose bytes did not get here, and
        of those whom ours did not reach, because new blocks are not shared.
        """
        if pending is not None:
            pending.wait()
        if self._own_in is not None:
            self._own_in.run(self._at_own(self._received), [target])
        if self._meeting is None:
            return None
        exchange(self._meeting, self._take, self._taken, self._number, self._received, target, [source])
        senders = tuple(self._near.senders) if locate(target) < 0 else ()
        return (senders, self._unwritten) if senders or self._unwritten else None

    def _at_own(self, memory: Bytes) -> list[Bytes | None]:
        return [memory if mate == self._me else None for mate in range(len(self._outgoing.members))]

    def _pairs(self, crossing: Crossing, hands: bool) -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
        """Return whose rooms hold boxes of ours, and whose boxes our room holds, as `Routes` wants them."""
        others = [mate for mate in range(len(crossing.members)) if mate != self._me]
        mine = crossing.holders_of(self._me)
        held = [(mate, hands) for mate in others if mate in mine]
        return held, [(mate, hands) for mate in others if self._me in crossing.holders_of(mate)]

    def _handed(self, _: tuple[int, ...], writes: tuple[int, ...]) -> tuple[None, BoxCopies | None]:
        """Return the copies from our block to rooms."""
        return None, self.copies_out(writes)

    def _taken(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> tuple[BoxCopies | None, BoxCopies | None]:
        """Return the copies from rooms to our new block, and from our block to new blocks that are shared."""
        self._unwritten = tuple(mate for mate in self._near.receivers if mate not in writes)
        return self.copies_in(reads), self._near.writes(writes)

    def copies_out(self, mates: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from our block to the rooms of those of our node with these numbers. Local."""
        part, crossing = self._part, self._outgoing
        boxes = _held(crossing, self._me, mates)
        if not len(boxes):
            return None
        block, room = self._in_block(crossing, boxes, part.shape, self._ends.source), self._in_room(crossing, boxes)
        return BoxCopies([nbytes(part.shape, part.itemsize)], crossing.rooms, part.itemsize, *block[:3], *room)

    def copies_in(self, mates: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the rooms of those of our node with these numbers to our new block. Local."""
        part, crossing = self._part, self._incoming
        boxes = _held(crossing, self._me, mates)
        if not len(boxes):
            return None
        shape = part.target_shape
        block, room = self._in_block(crossing, boxes, shape, self._ends.target), self._in_room(crossing, boxes)
        return BoxCopies(crossing.rooms, [nbytes(shape, part.itemsize)], part.itemsize, *room[:3], *block)

    def _in_block(self, crossing: Crossing, boxes: Indices, shape: tuple[int, ...] | None, first: Any) -> Placed:
        first = np.array(first, dtype=np.intp)
        return placed(0, shape, self._part.itemsize, crossing.starts[boxes] - first, crossing.stops[boxes] - first)

    def _in_room(self, crossing: Crossing, boxes: Indices) -> Placed:
        """Return where boxes lie one after the other in the rooms of our node."""
        extents = crossing.stops[boxes] - crossing.starts[boxes]
        strides = np.ones_like(extents)
        strides[:, :-1] = np.cumprod(extents[:, :0:-1], axis=1)[:, ::-1]
        return Placed(crossing.holders[boxes], crossing.offsets[boxes], strides * self._part.itemsize, extents)


def _held(crossing: Crossing, me: int, mates: tuple[int, ...]) -> Indices:
    """Return which boxes of ours are in the rooms of *mates*."""
    mine = crossing.of(me)
    return mine[np.isin(crossing.holders[mine], mates)]


def _messages(
    nodes: Nodes, here: int, place: int, outgoing: Crossing, incoming: Crossing, first: int
) -> tuple[tuple[Indices, Indices], tuple[Indices, Indices]] | None:
    """Return how many bytes a partner sends to each place, and from where in its memory, and receives; or None."""
    counts, offsets = np.zeros((2, 2, len(nodes.of)), dtype=np.intp)
    for other in np.flatnonzero(nodes.partners(here) == place).tolist():
        if other != here:
            peer = nodes.partner(other, here)
            counts[:, peer] = outgoing.lengths[other], incoming.lengths[other]
            offsets[:, peer] = outgoing.begins[other], first + incoming.begins[other]
    return ((counts[0], offsets[0]), (counts[1], offsets[1])) if counts.any() else None
