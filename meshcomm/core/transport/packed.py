"""Exchanges over MPI: boxes are packed, sent and unpacked.

A `Packed` exchange is one MPI_Alltoallv, a `Gathered` one is one MPI_Allgatherv, a `Broadcast` one is one MPI_Bcast,
and a `Permuted` one is two messages. Boxes that are contiguous in a block are sent from it and received in it
directly. All others are packed and unpacked. To keep to a scratch limit, or to send while it packs, an exchange has
rounds, each of which moves a fraction of every box. Small exchanges go in channels, which are persistent requests of
MPI.

In each exchange the ranks compare the digest of their calls: see `meshcomm.core.transport.comparison`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from meshcomm._kernels import Packing
from meshcomm.core._tuning import (
    ALIGNED_FROM,
    COUNTS_IN_LISTS,
    KEPT_ROUNDS,
    LINE,
    LOCAL_COPY_PIECES,
    MAX_COUNT,
    MAX_PAIRWISE_RANKS,
    PAGE,
    SCRATCH_PAGE_OFFSETS,
)
from meshcomm.core._types import Bytes, Counts, Indices
from meshcomm.core.layouts.boxes import Boxes, without_peer
from meshcomm.core.layouts.partition import round_starts
from meshcomm.core.memory.copies import Strided, as_byte_boxes
from meshcomm.core.memory.scratch import Buffer, scratch
from meshcomm.core.ranks.communicator import Buffers, Pending
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.comparison import Comparing, DigestHeader, SeparateComparison, comparing
from meshcomm.core.transport.exchange import (
    BoxExchange,
    ExchangeSpec,
    UncopiedPeers,
    map_distinct,
    own_pieces,
    with_region_numbers,
)
from meshcomm.core.transport.in_flight import InChannels, InFlight


class Side:
    """One side of an exchange: how boxes lie in the blocks, and in the buffer that MPI uses.

    That is the block itself if the boxes of one tensor are contiguous in it, else a packed buffer.

    Parameters
    ----------
    ranks: number of ranks of the group
    sizes: bytes of the block of each tensor
    blocks: boxes of each tensor, as they lie in its block
    boxes: boxes of each tensor, with the ranks that receive them or send them
    itemsizes: bytes of an element of each tensor
    rounds: number of rounds in which the boxes move
    packs: whether boxes that are contiguous are packed, too
    """

    def __init__(
        self,
        ranks: int,
        sizes: Sequence[int],
        blocks: list[Strided],
        boxes: list[Boxes],
        itemsizes: list[int],
        *,
        rounds: int,
        packs: bool = False,
    ) -> None:
        self._ranks = ranks
        strided_boxes, itemsize = as_byte_boxes(blocks, itemsizes)
        peers = np.concatenate([tensor_boxes.peers for tensor_boxes in boxes])
        firsts = np.cumsum([0] + [len(tensor_boxes.starts) for tensor_boxes in boxes[:-1]])
        which = np.concatenate([tensor_boxes.which + start for tensor_boxes, start in zip(boxes, firsts, strict=True)])
        if len(boxes) > 1:
            peers, which, box_order = _side_by_side(peers, which)
            strided_boxes = Strided(*(array[box_order] for array in strided_boxes))
        self._peers, self._which, self._itemsize = peers, which, itemsize
        self._elements = np.prod(strided_boxes.extents, axis=1, dtype=np.intp)
        self._offsets = strided_boxes.offsets
        packing = Packing(sizes, itemsize, *strided_boxes)
        in_place = not packs and len(boxes) == 1 and packing.contiguous and self._adjoin(rounds)
        self.packing = None if in_place else packing

    def _adjoin(self, rounds: int) -> bool:
        """Return whether the bytes to a rank, or from it, in a round are contiguous in the block."""
        peer_changes = self._peers[1:] != self._peers[:-1]
        if rounds > 1:  # a fraction of each box
            return bool(peer_changes.all())
        box, next_box = self._which[:-1], self._which[1:]
        is_adjacent = self._offsets[next_box] == self._offsets[box] + self._elements[box] * self._itemsize
        return bool((is_adjacent | peer_changes).all())

    def buffer_bytes(self, rounds: int) -> int:
        """Return the bytes of the packed buffer: those of the first of *rounds*, which is the largest."""
        return 0 if self.packing is None else self.packing.round_bytes(0, rounds)

    def counts(self, number: int, rounds: int) -> tuple[Counts, Counts]:
        """Return for round *number* the bytes to, or from, each rank, and their offsets in the buffer."""
        first, stop = (round_starts(self._elements, rounds, n) * self._itemsize for n in (number, number + 1))
        sizes = stop - first
        starts = self._offsets + first if self.packing is None else np.cumsum(sizes) - sizes
        counts, offsets = np.zeros((2, self._ranks), dtype=np.int64)
        moved_bytes = sizes[self._which]
        np.add.at(counts, self._peers, moved_bytes)
        # If a rank has several boxes, they are in the order of ranks, and its first one counts.
        nonempty = moved_bytes > 0
        offsets[self._peers[nonempty][::-1]] = starts[self._which][nonempty][::-1]
        return (counts.tolist(), offsets.tolist()) if self._ranks <= COUNTS_IN_LISTS else (counts, offsets)


def _side_by_side(peers: Indices, which: Indices) -> tuple[Indices, Indices, Indices]:
    """Return peers and their boxes, in an order that keeps those of a peer together, and the boxes to lay out.

    Peers that get the same boxes, as in a gather, share them.
    """
    boxes_of_peers: dict[int, list[int]] = {}
    for peer, box in zip(peers.tolist(), which.tolist(), strict=True):
        boxes_of_peers.setdefault(peer, []).append(box)
    first_of_boxes: dict[tuple[int, ...], int] = {}
    box_order: list[int] = []
    entries = []
    for peer, boxes in sorted(boxes_of_peers.items()):
        first = first_of_boxes.setdefault(tuple(boxes), len(box_order))
        if first == len(box_order):
            box_order += boxes
        entries += [(peer, first + i) for i in range(len(boxes))]
    table = np.array(entries, dtype=np.intp).reshape(-1, 2)
    return table[:, 0], table[:, 1], np.array(box_order, dtype=np.intp)


def _sending(ranks: int, tensors: Sequence[BoxExchange], boxes: list[Boxes], rounds: int, packs: bool = False) -> Side:
    sizes = [tensor.source_bytes(tensor.position) for tensor in tensors]
    boxes_by_id = {id(tensor): tensor_boxes for tensor, tensor_boxes in zip(tensors, boxes, strict=True)}
    blocks = with_region_numbers(
        map_distinct(tensors, lambda tensor: tensor.in_source(tensor.position, 0, boxes_by_id[id(tensor)]))
    )
    return Side(ranks, sizes, blocks, boxes, [tensor.itemsize for tensor in tensors], rounds=rounds, packs=packs)


def _receiving(
    ranks: int, tensors: Sequence[BoxExchange], boxes: list[Boxes], rounds: int, packs: bool = False
) -> Side:
    sizes = [tensor.target_bytes(tensor.position) for tensor in tensors]
    boxes_by_id = {id(tensor): tensor_boxes for tensor, tensor_boxes in zip(tensors, boxes, strict=True)}
    blocks = with_region_numbers(
        map_distinct(tensors, lambda tensor: tensor.in_target(tensor.position, 0, boxes_by_id[id(tensor)]))
    )
    return Side(ranks, sizes, blocks, boxes, [tensor.itemsize for tensor in tensors], rounds=rounds, packs=packs)


def _peers(boxes: list[Boxes]) -> Indices:
    """Return the peers that have some of these boxes, ascending."""
    return np.unique(np.concatenate([tensor_boxes.peers for tensor_boxes in boxes]))


class Packed:
    """Boxes of blocks to the ranks of a group, and their boxes into new blocks: an MPI_Alltoallv in each round.

    Boxes that a rank sends to itself are copied once, from block to block.

    Parameters
    ----------
    group: ranks that exchange
    tensors: boxes that they exchange
    spec: specification of the exchange, the same on all ranks
    rounds: number of rounds; in each, only a fraction of each box is packed
    between_pairs: whether pairs exchange messages instead, and ranks with nothing to exchange take no part. The
        pairs have compared their calls before.
    overlaps: whether other exchanges of the group may begin before this one is complete

    `in_channels` runs a small exchange among few ranks; it is None, on all ranks, for others.
    """

    def __init__(
        self,
        group: Group,
        tensors: Sequence[BoxExchange],
        spec: ExchangeSpec,
        rounds: int = 1,
        *,
        between_pairs: bool = False,
        overlaps: bool = False,
    ) -> None:
        self.rounds = rounds
        self._group = group
        self._in_messages = between_pairs or (spec.max_block_bytes > MAX_COUNT and not group.rank_set.large_counts)
        self._is_alltoallv = type(self) is Packed and not self._in_messages
        self._advances = rounds > 1 and not group.rank_set.machine.one_node and not group.rank_set.world.takes_turns
        ranks = len(group.members)
        sends = map_distinct(tensors, lambda tensor: without_peer(tensor.sends, tensor.position))
        receives = map_distinct(tensors, lambda tensor: without_peer(tensor.receives, tensor.position))
        self._comparing: Comparing | None = None
        carried_tensors = list(tensors)
        if ranks > 1 and not between_pairs:
            self._comparing = comparing(group, tensors, spec, (_peers(sends), _peers(receives)), overlaps=overlaps)
            carried_tensors = self._comparing.tensors
            header = carried_tensors[: len(carried_tensors) - len(tensors)]
            sends, receives = [t.sends for t in header] + sends, [t.receives for t in header] + receives
        self._is_alone = ranks == 1
        self.send = _sending(ranks, carried_tensors, sends, rounds, spec.is_in_place)
        self.receive = _receiving(ranks, carried_tensors, receives, rounds, spec.is_in_place)
        self._send_bytes, self._receive_bytes = self.send.buffer_bytes(rounds), self.receive.buffer_bytes(rounds)
        self._window = rounds if overlaps else self._rounds_within(spec.scratch_limit)
        self._kept_counts = [self._computed_counts(number) for number in range(rounds if rounds <= KEPT_ROUNDS else 0)]
        self.own = own_pieces(tensors, rounds * LOCAL_COPY_PIECES if self._advances else 1)
        self.in_channels: InChannels | None = None
        if self._is_alltoallv and rounds == len(tensors) == 1 and ranks <= MAX_PAIRWISE_RANKS:
            self._find_channels(group)

    def _find_channels(self, group: Group) -> None:
        """Let messages go in channels if they are small, with a header: then both sides are packed."""
        sides, call_comparison = (self.send, self.receive), self._comparing
        packings = [side.packing for side in sides]
        if isinstance(call_comparison, DigestHeader) and packings[0] is not None and packings[1] is not None:
            sizes = (*self._kept_counts[0][0], self._send_bytes), (*self._kept_counts[0][1], self._receive_bytes)
            self.in_channels = InChannels(group, sizes, (packings[0], packings[1]), self.own, call_comparison)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of the buffers that this rank packs into and unpacks from."""
        return 0 if self._is_alone else (self._send_bytes + self._receive_bytes) * self._window

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new blocks. Collective over the group."""
        if self.in_channels is not None and self.in_channels.run(sources, targets):
            return
        if self._advances and self._is_alltoallv:  # the same on all ranks, however many rounds each has in flight
            self.start(sources, targets, scratch).wait()
            return
        packing, unpacking, rounds = self.send.packing, self.receive.packing, self.rounds
        sent_bytes, received_bytes = self._send_bytes, self._receive_bytes
        send_blocks, receive_blocks, comparison = sources, targets, None
        if self._comparing is not None:
            send_blocks, receive_blocks, comparison = self._comparing.begin(sources, targets)
        is_small = sent_bytes < ALIGNED_FROM and received_bytes < ALIGNED_FROM
        sendbuf, recvbuf = sources[0], targets[0]
        for round_number in range(0 if self._is_alone else rounds):
            if packing is not None:
                sendbuf = scratch("send", sent_bytes) if is_small else aligned("send", sent_bytes, targets[0], scratch)
                packing.pack(send_blocks, sendbuf, round_number, rounds)
            if unpacking is not None:
                recvbuf = (
                    scratch("receive", received_bytes)
                    if is_small
                    else aligned("receive", received_bytes, sources[0], scratch)
                )
            sent, received = self._counts(round_number)
            if self._is_alltoallv:
                (self._group.opened or self._group.communicator()).alltoallv((sendbuf, *sent), (recvbuf, *received))
            else:
                self._communicate((sendbuf, *sent), (recvbuf, *received))
            if unpacking is not None:
                unpacking.unpack(recvbuf, receive_blocks, round_number, rounds)
        for piece in self.own:
            piece.run(sources, targets)
        if self._comparing is not None:
            self._comparing.check(comparison)

    def _counts(self, number: int) -> tuple[tuple[Counts, Counts], tuple[Counts, Counts]]:
        """Return the counts and offsets of round *number*, of bytes sent and of bytes received."""
        return self._kept_counts[number] if self._kept_counts else self._computed_counts(number)

    def _computed_counts(self, number: int) -> tuple[tuple[Counts, Counts], tuple[Counts, Counts]]:
        return self.send.counts(number, self.rounds), self.receive.counts(number, self.rounds)

    def _rounds_within(self, limit: int) -> int:
        """Return the number of rounds that may be in flight at once with *limit* bytes of scratch; on one node 1."""
        rounds = self.rounds if self._advances else 1
        return max(1, min(rounds, limit // max(1, self._send_bytes + self._receive_bytes)))

    def _communicate(self, send: Buffers, receive: Buffers) -> None:
        """Exchange in messages between pairs."""
        (self._group.opened or self._group.communicator()).start_messages(send, receive).wait()

    def start(self, sources: list[Bytes], targets: list[Bytes], buffer: Buffer) -> InFlight:
        """Begin to fill the new blocks. Collective over the group, but does not wait if all rounds may be in flight.

        *buffer* allocates memory for a use, and a number of bytes; it is in use until the exchange is complete.
        """
        rounds, window = self.rounds, self._window
        send_blocks, receive_blocks, comparison = sources, targets, None
        if self._comparing is not None:
            send_blocks, receive_blocks, comparison = self._comparing.begin(sources, targets)
        communicator = self._group.communicator()
        start_round = communicator.start_messages if self._in_messages else communicator.start_alltoallv
        send_slots = self._slots(self.send, "send", targets[0], buffer)
        receive_slots = self._slots(self.receive, "receive", sources[0], buffer)
        in_flight = InFlight(self._comparing, comparison)
        for round_number in range(rounds):
            if len(in_flight) == window:
                in_flight.finish_first()
            sendbuf, recvbuf, unpack = sources[0], targets[0], None
            if self.send.packing is not None:
                sendbuf = send_slots[round_number % window]
                self.send.packing.pack(send_blocks, sendbuf, round_number, rounds)
            if self.receive.packing is not None:
                recvbuf = receive_slots[round_number % window]
                unpack = partial(self.receive.packing.unpack, recvbuf, receive_blocks, round_number, rounds)
            sent, received = self._counts(round_number)
            in_flight.add(start_round((sendbuf, *sent), (recvbuf, *received)), unpack)
            if rounds > 1:
                in_flight.advance()
        for piece in self.own:
            piece.run(sources, targets)
            if rounds > 1:
                in_flight.advance()
        return in_flight

    def start_and_leave(self, sources: list[Bytes], targets: list[Bytes], buffer: Buffer) -> Pending:
        """As `start`, for a program that then does something else."""
        in_flight = self.start(sources, targets, buffer)
        in_flight.leave()
        return in_flight

    def _slots(self, side: Side, use: str, block: Bytes, buffer: Buffer) -> list[Bytes]:
        """Return the buffers of the rounds that are in flight at once."""
        if side.packing is None:
            return []
        size = -(-side.buffer_bytes(self.rounds) // LINE) * LINE
        total = size * self._window
        memory = buffer(use, total) if total < ALIGNED_FROM else aligned(use, total, block, buffer)
        return [memory[size * index : size * (index + 1)] for index in range(self._window)]


def aligned(use: str, size: int, block: Bytes, buffer: Buffer) -> Bytes:
    """Return *size* bytes of a *buffer* for a *use*, at an address from which, or to which, MPI copies fast.

    `SCRATCH_PAGE_OFFSETS` has its offset from *block*, modulo a page: the blocks of other ranks mostly begin at the
    same byte of a page as this one does.
    """
    shift = (block.__array_interface__["data"][0] + SCRATCH_PAGE_OFFSETS[use]) % PAGE
    return buffer(use, size + PAGE)[shift : shift + size]


class Permuted(Packed):
    """An exchange in which every rank of the group sends to one rank at most, and receives from one at most.

    Each rank takes part in two messages at most, instead of a collective call of all ranks.
    """

    def _communicate(self, send: Buffers, receive: Buffers) -> None:
        destination, sent = _only_message(send)
        source, received = _only_message(receive)
        (self._group.opened or self._group.communicator()).permute(sent, destination, received, source)


def _only_message(buffers: Buffers) -> tuple[int | None, Bytes]:
    """Return the only rank with bytes in *buffers*, and these bytes; None and no bytes without one."""
    data, counts, offsets = buffers
    rank = next((rank for rank, count in enumerate(counts) if count), None)
    if rank is None:
        return None, data[:0]
    return rank, data[offsets[rank] : offsets[rank] + counts[rank]]


class MessagesOnNode:
    """Messages between ranks that share memory, for boxes that no copy can move: neither block is shared.

    Parameters
    ----------
    group, tensors, spec, rounds: as in `Packed`
    """

    def __init__(self, group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec, rounds: int) -> None:
        self._group, self._tensors, self._spec, self._rounds = group, tensors, spec, rounds
        self._packed: dict[UncopiedPeers, Packed] = {}

    def run(self, peers: UncopiedPeers, sources: list[Bytes], targets: list[Bytes]) -> None:
        """Exchange boxes with local *peers* that copies cannot move. Collective over these pairs."""
        messages = self._packed.get(peers)
        if messages is None:
            assert self._group.rendezvous is not None
            members = np.array(self._group.rendezvous.members, dtype=np.intp)
            senders, receivers = (members[list(numbers)] for numbers in peers)
            remaining = [tensor.between(senders, receivers) for tensor in self._tensors]
            messages = Packed(self._group, remaining, self._spec, self._rounds, between_pairs=True)
            self._packed[peers] = messages
        messages.run(sources, targets)


class Gathered:
    """A box of a block to all ranks of a group, and theirs into a new block: one MPI_Allgatherv.

    The only box of this rank goes to all ranks, itself among them, and this rank receives the box of each rank.
    """

    rounds = 1

    def __init__(self, group: Group, tensor: BoxExchange, spec: ExchangeSpec) -> None:
        self._group = group
        position, ranks = tensor.position, len(group.members)
        all_positions = np.arange(ranks, dtype=np.intp)
        self._comparing = comparing(group, [tensor], spec, (all_positions, all_positions))
        tensors = self._comparing.tensors
        self.send = _sending(ranks, tensors, [_to_itself(t.sends, position) for t in tensors], 1)
        self.receive = _receiving(ranks, tensors, [t.receives for t in tensors], 1)
        self._send_bytes, self._receive_bytes = self.send.buffer_bytes(1), self.receive.buffer_bytes(1)
        counts, offsets = self.send.counts(0, 1)
        self._sent = slice(offsets[position], offsets[position] + counts[position])
        self._received = self.receive.counts(0, 1)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of the buffers that this rank packs into and unpacks from."""
        return self._send_bytes + self._receive_bytes

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new block. Collective over the group."""
        sendbuf, recvbuf, unpacking = sources[0], targets[0], self.receive.packing
        send_blocks, receive_blocks, comparison = self._comparing.begin(sources, targets)
        if self.send.packing is not None:
            sendbuf = scratch("send", self._send_bytes)
            self.send.packing.pack(send_blocks, sendbuf)
        if unpacking is not None:
            recvbuf = scratch("receive", self._receive_bytes)
        communicator = self._group.opened or self._group.communicator()
        communicator.allgatherv(sendbuf[self._sent], (recvbuf, *self._received))
        if unpacking is not None:
            unpacking.unpack(recvbuf, receive_blocks)
        self._comparing.check(comparison)


class Broadcast:
    """The block of one rank of a group to all others: one MPI_Bcast."""

    rounds = 1

    def __init__(self, group: Group, spec: ExchangeSpec) -> None:
        assert spec.root is not None
        self._group, self._root, self._comparison_reduction = (
            group,
            spec.root,
            SeparateComparison(group, spec.fingerprint),
        )

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new block. Collective over the group."""
        communicator, target = self._group.communicator(), targets[0]
        if communicator.rank == self._root:
            target[:] = sources[0]
        comparison = self._comparison_reduction.start()
        communicator.broadcast(target, self._root)
        self._comparison_reduction.check(comparison)


def _to_itself(boxes: Boxes, position: int) -> Boxes:
    """Return the box that goes to all, if there is one, as one to this rank, so that it lies in the buffer once."""
    count = len(boxes.starts)  # 0 if the block is empty
    return boxes._replace(peers=np.full(count, position), which=np.arange(count))
