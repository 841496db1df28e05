"""The choice of the transport of an exchange: made in this file only.

An exchange goes

- not at all, if the group has one rank: that rank copies within its memory;
- packed, over MPI, if no ranks of the group share memory: gathered or broadcast in one call, in two messages or as an
  AllToAll;
- in place, among ranks that share memory, and packed between these and all others;
- relayed, if several nodes have ranks that share memory, the plan says that aggregators pay, and there is memory for
  the messages.

An exchange that is repeated between the same blocks goes by a channel among ranks that share memory, if the blocks of
all of them are shared, and packed between all others.
"""
# Why all ranks choose the same way
# =================================
#
# If two ranks chose different transports, they would make different calls of MPI, and wait for each other for ever. So
# a choice may only depend on facts that are equal on all ranks of the group. These are all facts that it depends on:
#
# (A) `len(group.members)`, `len(tensors)` and the `ExchangeSpec`. They follow from the call, that is, from layouts,
#     shape and dtype, and from the `Machine`. All ranks of the rank set have agreed on the call before it first runs,
#     or on another one of its form, from which these facts follow, too (`blocks.edges`, `blocks.reduce`); and on the
#     machine when the rank set first communicated (`ranks.calls.prepared`, `ranks.hosts.agreed_machine`).
# (B) `rank_set.oversubscribed`, `rank_set.machine` and `rank_set.large_counts`. The first two are made on each rank
#     from the same list that all ranks have gathered; the last is a constant of the MPI library.
# (C) `group.nodes`. `ranks.rendezvous.open_rendezvous` makes it on each rank from the same two lists: where each rank
#     runs, and why it cannot share memory. A group is opened, closed and opened again at the same call on all ranks
#     (see "Why all ranks evict alike" in `ranks.rank_sets`), so `nodes` also changes at the same call.
# (D) Whether a relayed exchange has its memory. A rank may have none, so `Relayed.open` reduces the answers over the
#     group. All ranks get there, because all decisions before depend on (A) or (C).
#
# One fact differs: `group.rendezvous` is None on a rank that shares no memory, while others of the group share some.
# That rank exchanges all boxes packed over MPI. The others exchange packed only the boxes for other nodes. All of them
# run one `Packed` of the same rounds, that is, the same calls of MPI. A pair in which one rank has no rendezvous is
# packed on both sides: such a rank is on no other rank's node, and all ranks are off its node. And with one node only,
# all ranks have a rendezvous: two ranks have equal numbers in `nodes` just if they share memory.
#
# How many rounds a rank has in flight at once is up to the rank: each begins all rounds, in one order.
#
# (E) For a channel, whether the blocks of each rank are in its pool. `open_channel` gathers the answers of all.
#
# Two things are chosen for each pair when the exchange runs: which of two ranks copies, and whether a pair has to send
# messages. Both ranks of the pair find this from entries of both in the rendezvous (`_find_ways` in
# memory/_rendezvous.pyx). Messages are between pairs only, so no other rank has to know of them.

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic_ns
from typing import TypeAlias

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._tuning import (
    GATHERED_AT_ONCE,
    MAX_COUNT,
    MESSAGE_BYTES,
    ROUND_BYTES,
    SLOW_MESSAGE_BYTES,
    SLOW_NETWORK,
)
from meshcomm.core._types import Array, Bytes, Shape
from meshcomm.core.failures.recorder import Traffic
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.boxes import without_peer
from meshcomm.core.memory._channel import Channel
from meshcomm.core.memory.blocks import as_bytes, block_bytes, new_bytes
from meshcomm.core.memory.scratch import Buffer, scratch
from meshcomm.core.ranks.calls import join_and_raise
from meshcomm.core.ranks.communicator import Pending
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.ranks.traffic import traffic_from
from meshcomm.core.transport.channels import open_channel
from meshcomm.core.transport.exchange import BlockSizes, BoxExchange, ExchangeSpec, Transport, own_copies
from meshcomm.core.transport.in_place import InPlace
from meshcomm.core.transport.packed import Broadcast, Gathered, MessagesOnNode, Packed, Permuted
from meshcomm.core.transport.relay import Relayed
from meshcomm.errors import CollectiveMismatch

OverMPI: TypeAlias = Packed | Gathered | Broadcast


def exchange(group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec) -> Transport:
    """Return the exchange of *tensors* among the ranks of *group*. To run it is Collective over the group."""
    if len(group.members) == 1:
        return LocalCopy(tensors)
    return _Chosen(group, tensors, spec)


def received_traffic(group: Group, tensors: Sequence[BoxExchange]) -> Traffic:
    """Return the traffic to this rank from the others in an exchange of *tensors*, by any transport."""
    sizes = np.zeros(len(group.members), dtype=np.int64)
    for tensor in tensors:
        boxes = without_peer(tensor.receives, tensor.position)
        np.add.at(sizes, boxes.peers, boxes.sizes[boxes.which] * tensor.itemsize)
    return traffic_from(group.rank_set, group.members, sizes)


def gathers_at_once(gathered_bytes: int, count: int) -> bool:
    """Return whether *count* blocks, of *gathered_bytes* together, are small enough for one MPI_Allgatherv."""
    return gathered_bytes <= min(count * GATHERED_AT_ONCE, MAX_COUNT)


def _rounds(group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec) -> int:
    """Return the number of rounds of an exchange over MPI: at least as many as the scratch limit needs.

    With more rounds, messages to other hosts are on their way while others are packed; on a node, packed data stay in
    the caches.
    """
    if spec.root is not None or spec.gathers:
        return 1
    if len(tensors) > 1 or spec.permutes:
        return spec.rounds
    if not group.rank_set.machine.one_node:
        return max(spec.rounds, _rounds_by_length(group, spec))
    return spec.rounds if group.rank_set.oversubscribed else max(spec.rounds, spec.max_block_bytes // ROUND_BYTES)


def _rounds_by_length(group: Group, spec: ExchangeSpec) -> int:
    """Return the number of rounds for messages between hosts of the best length."""
    rank_set = group.rank_set
    if rank_set.machine.one_node or rank_set.world.takes_turns:
        return 1
    hosts = len(np.unique(rank_set.machine.node_of(np.array(rank_set.ranks, dtype=np.intp))))
    # Ranks of a host share its link.
    is_slow = rank_set.machine.beta_between * hosts > SLOW_NETWORK * len(rank_set.ranks)
    return max(1, spec.max_block_bytes // len(group.members) // (SLOW_MESSAGE_BYTES if is_slow else MESSAGE_BYTES))


_abandoned: list["RepeatedExchange"] = []
"""Exchanges in flight that nobody waits for any more: other ranks may still read and write their blocks."""


class LocalCopy:
    """The exchange of a rank with itself."""

    def __init__(self, tensors: Sequence[BoxExchange]) -> None:
        self._sizes = BlockSizes(tensors)
        self._copies = own_copies(tensors)

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        self._sizes.check(sources, targets)
        if self._copies is not None:
            self._copies.run(sources, targets)


class Nonblocking:
    """An exchange of *tensors* that can start without waiting: over MPI, with all rounds in flight.

    Never in place, even if all ranks share memory: `docs/decisions/0009-nonblocking-relayouts.md` says why.
    """

    def __init__(self, group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec) -> None:
        self._group, self._tensors = group, tensors
        packed = Packed(group, tensors, spec, _rounds_by_length(group, spec), overlaps=True)
        self._start = packed.in_channels.start if packed.in_channels else packed.start_and_leave
        self._sizes = BlockSizes(tensors)

    def start(self, sources: list[Bytes], targets: list[Bytes], buffer: Buffer) -> Pending:
        """Begin to fill the new blocks; *buffer* allocates memory to pack into. Collective over the group."""
        size_error = self._sizes.size_error(sources, targets)
        if size_error is not None:
            rank_set = self._group.rank_set
            join_and_raise(
                size_error, rank_set, lambda: self.start(*self._sizes.with_zeros(sources, targets), buffer).wait()
            )
        recorder = watch.recorder
        if recorder is None:
            return self._start(sources, targets, buffer)
        began = monotonic_ns()
        pending = self._start(sources, targets, buffer)
        recorder.record_exchange("nonblocking", began, received_traffic(self._group, self._tensors))
        return pending


class RepeatedExchange:
    """An exchange from some blocks to the same blocks, which can start without waiting.

    To make one is Collective over the group. The blocks must keep their addresses.
    """

    def __init__(self, group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec, blocks: list[Bytes]) -> None:
        self._group, self._tensors, self._number, self._blocks = group, tensors, spec.fingerprint, blocks
        self._blocking = exchange(group, tensors, spec)
        self._channel: Channel | None = None
        self._messages: Packed | None = None
        self._own_copies: BoxCopies | None = None
        self._is_nonblocking = len(group.members) > 1
        self._any_copies = False
        if self._is_nonblocking:
            BlockSizes(tensors).check(blocks, blocks)
            self._channel, peers, self._any_copies, any_messages = open_channel(group, tensors, blocks)
            if any_messages:
                crossing_tensors = [tensor.between(peers, peers) for tensor in tensors]
                self._messages = Packed(group, crossing_tensors, spec, overlaps=True)
            if self._channel is not None:
                self._own_copies = own_copies(tensors)

    def run(self) -> None:
        """Exchange, and wait. Collective over the group."""
        if not self._any_copies:
            self._blocking.run(self._blocks, self._blocks)
            return
        try:
            pending = self.start(_off_node_buffer)
            assert pending is not None
            pending.wait()
        except BaseException as error:
            self.fail(error)
            raise

    def start(self, buffer: Buffer) -> Pending | None:
        """Begin to exchange, but do not wait; return None if it is complete. Collective over the group.

        *buffer* allocates memory to pack into, which is in use until the exchange is complete. A caller that loses the
        result, as by an interrupt, calls `fail`.
        """
        if not self._is_nonblocking:
            self._blocking.run(self._blocks, self._blocks)
            return None
        recorder = watch.recorder
        began = 0 if recorder is None else monotonic_ns()
        pending = self._begin(buffer)
        if recorder is not None:
            recorder.record_exchange("nonblocking", began, received_traffic(self._group, self._tensors))
        return pending

    def fail(self, error: BaseException) -> None:
        """Let no further call be made after an *error*, and keep the blocks."""
        if self._is_nonblocking:
            _abandoned.append(self)
            self._group.rank_set.fail(error)

    def _begin(self, buffer: Buffer) -> Pending:
        group, channel, messages = self._group, self._channel, None
        number = self._number ^ group.rank_set.call_digest
        group.communicator()
        if self._messages is not None:
            messages = self._messages.start(self._blocks, self._blocks, buffer)
        if channel is None:
            assert messages is not None
            return messages
        channel.start(number)
        if self._own_copies is not None:
            self._own_copies.run(self._blocks, self._blocks)
        return _RepeatedInFlight(group, channel, messages)


class _RepeatedInFlight:
    """An exchange in flight in a channel, and perhaps in messages."""

    __slots__ = ("_channel", "_group", "_messages")

    def __init__(self, group: Group, channel: Channel, messages: Pending | None) -> None:
        self._group, self._channel, self._messages = group, channel, messages

    def test(self) -> bool:
        """Return whether all bytes have arrived, and others have read those of this rank."""
        try:
            is_complete = self._channel.test()
        except CollectiveMismatch as error:
            self._group.rank_set.fail(error)
            raise
        return (self._messages is None or self._messages.test()) and is_complete

    def wait(self) -> None:
        """Wait until all bytes have arrived, and others have read those of this rank."""
        try:
            self._channel.wait(self._progress)
        except CollectiveMismatch as error:
            self._group.rank_set.fail(error)
            raise
        if self._messages is not None:
            self._messages.wait()

    def _progress(self) -> None:
        communicator = self._group.rank_set.everyone.opened
        if communicator is not None:  # else the mesh was closed meanwhile
            communicator.progress()


class _Chosen:
    """An exchange that chooses its transport when it runs: only an open group knows which ranks share memory."""

    def __init__(self, group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec) -> None:
        self._group, self._tensors, self._spec = group, tensors, spec
        self._sizes = BlockSizes(tensors)
        self._way: Transport | None = None
        self._chosen_nodes: tuple[int, ...] | None = None
        self._received: Traffic | None = None

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new blocks. Collective over the group."""
        group, recorder = self._group, watch.recorder
        began = 0 if recorder is None else monotonic_ns()
        size_error = self._sizes.size_error(sources, targets)
        if size_error is not None:
            join_and_raise(
                size_error, group.rank_set, lambda: self.run(*self._sizes.with_zeros(sources, targets), allocation)
            )
        try:
            group.communicator()
            transport = self._way
            if transport is None or group.nodes is not self._chosen_nodes:  # a new group, or opened again
                transport = self._way = self._over_mpi() if group.nodes is None else self._on_nodes(group.nodes)
                self._chosen_nodes = group.nodes
            transport.run(sources, targets, allocation)
        except BaseException as error:
            group.rank_set.fail(error)
            raise
        if recorder is not None:
            if self._received is None:
                self._received = received_traffic(group, self._tensors)
            recorder.record_exchange(type(transport).__name__, began, self._received)

    def _over_mpi(self) -> OverMPI:
        group, tensors, spec = self._group, self._tensors, self._spec
        if spec.root is not None:
            return Broadcast(group, spec)
        if spec.gathers:
            return Gathered(group, tensors[0], spec)
        if spec.permutes:
            return Permuted(group, tensors, spec, spec.rounds)
        return Packed(group, tensors, spec, _rounds(group, tensors, spec))

    def _on_nodes(self, nodes: tuple[int, ...]) -> Transport:
        """Return the transport for a group in which some ranks share memory. Collective over the group."""
        group, tensors, spec = self._group, self._tensors, self._spec
        several_nodes = len(set(nodes)) > 1
        if (several_nodes and spec.root is not None) or (spec.is_in_place and len(tensors) > 1):
            return self._over_mpi()  # only a channel copies in place several blocks that are not in one allocation
        rounds = _rounds(group, tensors, spec)
        remaining = MessagesOnNode(group, tensors, spec, rounds)
        if several_nodes and spec.relay_pays and len(tensors) == 1:
            relayed = Relayed(group, tensors[0], spec, remaining)
            if relayed.open(spec.scratch_limit):
                return relayed
        if not several_nodes:
            return InPlace(group, tensors, spec, remaining)
        members = () if group.rendezvous is None else group.rendezvous.members
        off_node_positions = np.setdiff1d(np.arange(len(nodes), dtype=np.intp), np.array(members, dtype=np.intp))
        # Also on a rank that shares no memory: all ranks have to make the same calls of MPI.
        crossing_tensors = [tensor.between(off_node_positions, off_node_positions) for tensor in tensors]
        off_node = Packed(group, crossing_tensors, spec, rounds)
        if group.rendezvous is None:
            return _Mixed(None, off_node)
        spec = replace(spec, scratch_limit=max(0, spec.scratch_limit - off_node.scratch_bytes))
        return _Mixed(InPlace(group, tensors, spec, remaining), off_node)


class _Mixed:
    """An exchange in place on the node, and packed with ranks off the node, at the same time.

    The exchange on the node is None for a rank that shares no memory.
    """

    def __init__(self, on_node: Transport | None, off_node: Packed) -> None:
        self._on_node = on_node
        self._off_node = off_node

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        in_flight = self._off_node.start(sources, targets, _off_node_buffer)
        if self._on_node is not None:
            self._on_node.run(sources, targets, allocation)
        in_flight.wait()


def _off_node_buffer(use: str, size: int) -> Bytes:
    """Return scratch for messages to other nodes, which messages on the node may not use at the same time."""
    return scratch(f"off node {use}", size)


def on_arrays(transport: Transport, shape: Shape) -> Callable[[Array], Array]:
    """Return a function that takes an array, runs *transport* on it, and returns the new array of *shape*."""

    element_count = block_bytes(shape, 1)

    def run(array: Array) -> Array:
        target = new_bytes(element_count * array.dtype.itemsize)
        transport.run([as_bytes(array)], [target])
        return np.ndarray(shape, array.dtype, target)  # as_block, without its call

    return run
