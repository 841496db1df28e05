"""Exchanges among ranks of which some share memory: these copy straight between their blocks, all others use MPI.

What is to be copied is the same as over MPI; shared memory is only another way for it to go. For each pair of ranks
the receiver reads from the sender's block, or the sender writes to the receiver's, whichever is shared; if both are,
the rank whose own side has the shorter runs does it, so that whole cache lines are touched at the other's. A pair of
which neither block is shared, such as two arrays of the user, exchanges messages the first time. When that happens
again, the block is copied to shared memory before, if there is some within the bound on scratch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.exchange import (
    Exchange,
    Gather,
    Messages,
    Part,
    Placed,
    joined,
    nbytes,
    new_bytes,
    own_copies,
    placed,
    scratch,
    shared_scratch,
    with_peers,
)
from meshcomm.groups import Bytes, Group
from meshcomm.partners import Ends
from meshcomm.plan import DEFAULT_SCRATCH
from meshcomm.relay import Near, Relay
from meshcomm.shared import Rendezvous, Routes, exchange, locate
from meshcomm.steps import Boxes

Shape: TypeAlias = tuple[int, ...]
Where: TypeAlias = Callable[[int], tuple[Shape, Any]]


class Far(NamedTuple):
    """The blocks of the other ranks of a group, by their place.

    *source* gives the shape of the block of which this rank gets a box, and where in it that begins; *target* the
    shape of the new block that gets a box from this rank, and where in it that begins.
    """

    source: Where
    target: Where


class OnNode:
    """An exchange over MPI, or straight between blocks where ranks share memory. Local to make.

    *over_mpi* is the exchange of one tensor, *part*, among all ranks of the group; *most* and *rounds* are its own.
    *number* is the same on all ranks of the group for the same exchange, and another for others. With *ends*, on all
    ranks, bytes go between nodes through partners, if the ranks find the memory for it within *bound* bytes. If it
    *stages*, a block that is not shared is copied to shared memory within this bound, where that is needed.
    """

    def __init__(
        self,
        over_mpi: Exchange | Gather,
        group: Group,
        place: int,
        part: Part,
        far: Far,
        most: int,
        number: int,
        ends: Ends | None = None,
        bound: int = DEFAULT_SCRATCH,
        stages: bool = True,
    ) -> None:
        self._over_mpi = over_mpi
        self._group = group
        self._place = place
        self._part = part
        self._far = far
        self._most = most
        self._number = number
        self._ends = ends
        self._bound = bound
        self._nodes: tuple[int, ...] | None = None
        self._met: Rendezvous | None = None
        self._stages = stages
        self._stage: BoxCopies | None = None
        self._was_left = False  # a block did not get through shared memory: neither here nor there it was shared
        self._alone = len(group.members) == 1

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Fill the new block. Collective over the group."""
        nodes: tuple[int, ...] | None = None
        if not self._alone:
            self._group.communicator()
            nodes = self._group.nodes
        if nodes is None:  # on all ranks
            self._over_mpi.run(sources, targets)
            return
        if nodes is not self._nodes:  # a new group, or opened again
            self._meet(nodes)
        if self._relay is not None:
            pending = self._relay.start(sources[0])
            if self._own is not None:
                self._own.run(sources, targets)
            left = self._relay.finish(pending, sources[0], targets[0])
            if left is not None:
                self._by_messages(left, sources, targets)
        elif self._beyond is not None and self._beyond.rounds == 1:
            started = self._beyond.start(sources, targets, scratch)
            self._among_mates(sources, targets)
            started.wait()
        else:
            self._among_mates(sources, targets)
            if self._beyond is not None:
                self._beyond.run(sources, targets)

    def _among_mates(self, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Copy among those ranks of the group that share memory with this one, if any."""
        if self._met is None:
            return
        source = sources[0]
        if self._was_left and self._stages and locate(source) < 0 and locate(targets[0]) < 0:
            source = self._staged(source)
        # With the chain of calls: who has made others is found out here.
        number = self._number ^ self._group.team.chain
        left = exchange(self._met, self._routes, self._copies, number, source, targets[0])
        if left is not None:
            self._was_left = True
            self._by_messages(left, sources, targets)

    def _staged(self, source: Bytes) -> Bytes:
        """Return a copy of the block in memory that is shared, if there is some within the bound."""
        assert self._met is not None
        room = shared_scratch(len(source)) if len(source) <= self._bound else None
        if room is None:
            return source
        if self._stage is None:
            zero, one, size = np.zeros(1, dtype=np.intp), np.ones((1, 1), dtype=np.intp), len(source)
            self._stage = BoxCopies([size], [size], 1, zero, zero, one, zero, zero, one, size * one, self._met.size)
        self._stage.run([source], [room])
        return room

    def _meet(self, nodes: tuple[int, ...]) -> None:
        """Prepare for those ranks of the group that share memory with this one, if any, and for those beyond."""
        part, everyone = self._part, np.arange(len(nodes), dtype=np.intp)
        meeting: Rendezvous | None = self._group.meeting
        self._met = meeting
        beyond = everyone
        incoming: list[tuple[int, bool]] = []
        outgoing: list[tuple[int, bool]] = []
        if meeting is not None:
            beyond = np.setdiff1d(everyone, np.array(meeting.members))
            incoming, outgoing = self._pairs(part.receives, True), self._pairs(part.sends, False)
            self._routes = Routes(meeting.size, meeting.position, incoming, outgoing)
        self._others: dict[Any, Exchange] = {}
        self._beyond: Exchange | None = None
        self._relay = self._relayed(_ends_of(incoming), _ends_of(outgoing)) if len(set(nodes)) > 1 else None
        self._own = None if self._relay is None else own_copies([part], self._place)
        if self._relay is None and len(beyond):
            # A rank that shares no memory exchanges just as those that do: all have to make the same calls of MPI.
            self._beyond = self._messages(beyond, beyond, Exchange)
        self._nodes = nodes

    def _relayed(self, senders: list[int], receivers: list[int]) -> Relay | None:
        """Return what goes through partners, on all ranks, or None. Collective over the group."""
        if self._ends is None:
            return None
        near = Near(senders, receivers, self._writes)
        relay = Relay(self._group, self._place, self._part, self._ends, self._number, near)
        return relay if relay.open(self._bound) else None

    def _pairs(self, boxes: Boxes, receives: bool) -> list[tuple[int, bool]]:
        """Return with which mates this rank exchanges one way, by their places among the mates, and who copies."""
        assert self._met is not None
        pairs = []
        for peer, box in zip(boxes.peers.tolist(), boxes.which.tolist(), strict=True):
            extent = boxes.stops[box] - boxes.starts[box]
            if peer == self._place or peer not in self._met.members or not extent.all():
                continue
            mine = self._part.target_shape if receives else self._part.shape
            theirs, _ = (self._far.source if receives else self._far.target)(peer)
            assert mine is not None
            runs = _run(theirs, extent), _run(mine, extent)
            sent, received = runs if receives else runs[::-1]
            pairs.append((self._met.members.index(peer), sent < received))
        return pairs

    def _copies(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> tuple[BoxCopies | None, BoxCopies | None]:
        """Return the copies from blocks of mates to our new block, and from our block to theirs.

        What stays here goes with the one or the other, so that lines of memory are read once, or written once.
        """
        assert self._met is not None
        here = (self._met.position,)
        if reads:
            return self._reads(reads + here), self._writes(writes)
        return None, self._writes(writes + here)

    def _reads(self, mates: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks of mates, this rank perhaps among them, to our new block."""
        assert self._met is not None
        part = self._part
        block = self._or_here(self._far.source, part.shape, part.sends)
        theirs, sizes, ours = self._paired(part.receives, part.target_shape, mates, block)
        if not len(ours.offsets):
            return None
        target = [nbytes(part.target_shape, part.itemsize)]
        return BoxCopies(sizes, target, part.itemsize, *theirs[:3], *ours, self._met.size)

    def _writes(self, mates: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from our block to the new blocks of mates, this rank perhaps among them."""
        assert self._met is not None
        part = self._part
        block = self._or_here(self._far.target, part.target_shape, part.receives)
        theirs, sizes, ours = self._paired(part.sends, part.shape, mates, block)
        if not len(ours.offsets):
            return None
        source = [nbytes(part.shape, part.itemsize)]
        return BoxCopies(source, sizes, part.itemsize, *ours[:3], *theirs, self._met.size)

    def _or_here(self, far: Where, shape: Shape | None, boxes: Boxes) -> Where:
        """Return *far*, which knows this rank as well: its own block has *shape*, and *boxes* in it."""

        def where(peer: int) -> tuple[Shape, Any]:
            if peer != self._place:
                return far(peer)
            return shape or (), boxes.starts[boxes.which[boxes.peers == peer]]

        return where

    def _paired(
        self, boxes: Boxes, shape: Shape | None, mates: tuple[int, ...], far: Where
    ) -> tuple[Placed, list[int], Placed]:
        """Return where boxes are in the blocks of *mates*, the bytes of these, and where they are in our own."""
        assert self._met is not None
        itemsize, sizes = self._part.itemsize, [0] * self._met.size
        theirs, ours = [_nothing(self._part)], [_nothing(self._part)]
        for mate in sorted(mates):
            peer = self._met.members[mate]
            which = boxes.which[boxes.peers == peer]
            if not len(which):
                continue
            its_shape, start = far(peer)
            starts, stops = boxes.starts[which], boxes.stops[which]
            sizes[mate] = nbytes(its_shape, itemsize)
            ours.append(placed(0, shape, itemsize, starts, stops))
            start = np.array(start, dtype=np.intp).reshape(starts.shape)
            theirs.append(placed(mate, its_shape, itemsize, start, start + stops - starts))
        return _concatenated(theirs), sizes, _concatenated(ours)

    def _by_messages(self, left: tuple[tuple[int, ...], ...], sources: list[Bytes], targets: list[Bytes]) -> None:
        """Exchange messages with mates of whom neither block is shared."""
        if left not in self._others:
            assert self._met is not None
            members = np.array(self._met.members, dtype=np.intp)
            senders, receivers = (members[list(places)] for places in left)
            self._others[left] = self._messages(senders, receivers, Messages)
        self._others[left].run(sources, targets)

    def _messages(self, senders: Any, receivers: Any, kind: type[Exchange]) -> Exchange:
        """Return the exchange over MPI with the ranks at these places only."""
        part = self._part
        some = part._replace(sends=with_peers(part.sends, receivers), receives=with_peers(part.receives, senders))
        return kind(self._group, self._place, [some], self._most, getattr(self._over_mpi, "rounds", 1))


class Together:
    """One exchange of several tensors, over MPI or straight into the new blocks of ranks that share memory.

    The new blocks of a rank lie in one stretch of memory, so that the others find all of them when they know where it
    begins. *over_mpi* exchanges all *parts* among all ranks; *sizes_of* gives the bytes of the new blocks of a place.
    """

    def __init__(
        self,
        over_mpi: Exchange,
        group: Group,
        place: int,
        parts: list[Part],
        fars: list[Far],
        sizes_of: Callable[[int], list[int]],
        most: int,
        number: int,
    ) -> None:
        self._over_mpi = over_mpi
        self._group = group
        self._place = place
        self._parts = parts
        self._fars = fars
        self._sizes_of = sizes_of
        self._most = most
        self._number = number
        self._sizes = sizes_of(place)
        self._begins = _begins(self._sizes)
        self._own = own_copies(parts, place)
        self._met: Rendezvous | None = None

    def run(self, sources: list[Bytes]) -> list[Bytes]:
        """Return the new blocks. Collective over the group."""
        stretch = new_bytes(self._begins[-1])
        targets = [stretch[start : start + size] for start, size in zip(self._begins, self._sizes, strict=False)]
        self._group.communicator()
        meeting: Rendezvous | None = self._group.meeting
        if meeting is None:
            self._over_mpi.run(sources, targets)
            return targets
        if meeting is not self._met:
            self._meet(meeting)
        if self._own is not None:
            self._own.run(sources, targets)
        left = exchange(meeting, self._routes, self._copies, self._number, _NOTHING, stretch, sources)
        for others in (self._beyond, None if left is None else self._messages(*left)):
            if others is not None:
                others.run(sources, targets)
        return targets

    def _meet(self, meeting: Rendezvous) -> None:
        members = meeting.members
        incoming, outgoing = (
            [(mate, True) for mate, peer in enumerate(members) if peer != self._place and self._has(peer, receives)]
            for receives in (True, False)
        )
        self._met = meeting
        self._routes = Routes(meeting.size, meeting.position, incoming, outgoing)
        beyond = np.setdiff1d(np.arange(len(self._group.members)), np.array(members))
        self._beyond = self._with(beyond, beyond, Exchange) if len(beyond) else None
        self._others: dict[Any, Exchange] = {}

    def _has(self, peer: int, receives: bool) -> bool:
        return any(peer in (part.receives if receives else part.sends).peers for part in self._parts)

    def _copies(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> tuple[BoxCopies | None, BoxCopies | None]:
        """Return the copies from our blocks into the stretches of mates; nobody reads."""
        assert self._met is not None
        sizes = [0] * self._met.size
        ours: list[Placed] = []
        theirs: list[Placed] = []
        for region, (part, far) in enumerate(zip(self._parts, self._fars, strict=True)):
            mine, others = [_nothing(part)], [_nothing(part)]
            for mate in writes:
                peer = self._met.members[mate]
                begins = _begins(self._sizes_of(peer))
                sizes[mate] = begins[-1]
                which = part.sends.which[part.sends.peers == peer]
                if not len(which):
                    continue
                shape, start = far.target(peer)
                starts, stops = part.sends.starts[which], part.sends.stops[which]
                mine.append(placed(region, part.shape, part.itemsize, starts, stops))
                start = np.array(start, dtype=np.intp).reshape(starts.shape)
                there = placed(mate, shape, part.itemsize, start, start + stops - starts)
                others.append(there._replace(offsets=there.offsets + begins[region]))
            ours.append(_concatenated(mine))
            theirs.append(_concatenated(others))
        itemsizes = [part.itemsize for part in self._parts]
        (source, itemsize), (target, _) = joined(ours, itemsizes), joined(theirs, itemsizes)
        if not len(source.offsets):
            return None, None
        own = [nbytes(part.shape, part.itemsize) for part in self._parts]
        return None, BoxCopies(own, sizes, itemsize, *source[:3], *target, self._met.size)

    def _messages(self, senders: tuple[int, ...], receivers: tuple[int, ...]) -> Exchange:
        """Return the exchange with mates whose new blocks are not shared."""
        if (senders, receivers) not in self._others:
            assert self._met is not None
            members = np.array(self._met.members, dtype=np.intp)
            self._others[senders, receivers] = self._with(members[list(senders)], members[list(receivers)], Messages)
        return self._others[senders, receivers]

    def _with(self, senders: Any, receivers: Any, kind: type[Exchange]) -> Exchange:
        some = [
            part._replace(sends=with_peers(part.sends, receivers), receives=with_peers(part.receives, senders))
            for part in self._parts
        ]
        return kind(self._group, self._place, some, self._most)


_NOTHING = np.empty(0, dtype=np.uint8)
_LINE = 64


def _begins(sizes: list[int]) -> list[int]:
    """Return where blocks of these *sizes* begin in one stretch, each on a cache line of its own, and its end."""
    lines = [-(-size // _LINE) * _LINE for size in sizes]
    return [0, *np.cumsum(lines, dtype=np.intp).tolist()]


def _ends_of(pairs: list[tuple[int, bool]]) -> list[int]:
    return [mate for mate, _ in pairs]


def _nothing(part: Part) -> Placed:
    none = np.zeros((0, part.sends.starts.shape[1]), dtype=np.intp)
    return placed(0, None, part.itemsize, none, none)


def _concatenated(found: list[Placed]) -> Placed:
    return Placed(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


def _run(shape: Shape, extent: Any) -> int:
    """Return how many elements of a box lie one after the other in a block of *shape*."""
    run = 1
    for n, length in zip(reversed(shape), reversed(extent.tolist()), strict=True):
        run *= length
        if length < n:
            break
    return run
