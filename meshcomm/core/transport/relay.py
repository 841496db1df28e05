"""Relayed exchanges: between nodes, boxes go through aggregators.

Boxes for other ranks of the node, and for aggregators, are copied in shared memory. One message crosses between each
pair of nodes. `meshcomm.core.transport.crossing` describes these messages.

A relayed exchange has four stages on each rank:

1. pack: copy the boxes for other nodes to the buffers of the aggregators; a rendezvous ends this stage
2. aggregators start the messages between their buffers; each rank copies the boxes that stay on it
3. aggregators wait for their messages
4. unpack: copy the boxes from other nodes out of the buffers, and boxes of local peers straight between the blocks; a
   rendezvous ends this stage

So the ranks of a node wait for each other only twice. A rank that shares no memory is a node of its own.
"""

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._types import Bytes
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory._rendezvous import Rendezvous, Routes
from meshcomm.core.memory.pools import locate
from meshcomm.core.memory.scratch import scratch, shared_scratch
from meshcomm.core.ranks.communicator import Pending
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.comparison import SeparateComparison
from meshcomm.core.transport.crossing import BufferCopies, Nodes
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec, Remaining, own_copies
from meshcomm.core.transport.local_copies import LocalCopies


class Relayed:
    """An exchange of one tensor in which boxes between nodes go through aggregators.

    Parameters
    ----------
    group: ranks of several nodes; those of some nodes share memory
    tensor: boxes that they exchange
    spec: specification of the exchange, the same on all ranks
    remaining: exchange of boxes that no copy can move
    """

    def __init__(self, group: Group, tensor: BoxExchange, spec: ExchangeSpec, remaining: Remaining) -> None:
        assert group.nodes is not None
        self._group, self._tensor, self._spec, self._remaining = group, tensor, spec, remaining
        self._rendezvous: Rendezvous | None = group.rendezvous
        self._buffers = BufferCopies(Nodes(group.nodes), tensor)
        self._self_copies = own_copies([tensor])
        self._comparison_reduction = SeparateComparison(group, spec.fingerprint)

    @property
    def scratch_bytes(self) -> int:
        """The size of the buffer for the messages of this rank, in bytes."""
        return self._buffers.buffer_bytes

    def open(self, scratch_limit: int) -> bool:
        """Allocate the memory for the messages and return whether all ranks have theirs. Collective over the group.

        No rank uses more than *scratch_limit* bytes, or memory that its local peers have not mapped.
        """
        memory = None
        # The memory stays for later exchanges. In powers of two, all of it is at most twice that of the largest one.
        size = 1 << (self.scratch_bytes - 1).bit_length() if self.scratch_bytes else 0
        if size <= scratch_limit:
            memory = scratch("relay", size) if self._rendezvous is None else shared_scratch(size)
        if self._group.communicator().allreduce_max(np.array([memory is None], dtype=np.int64))[0]:
            return False
        assert memory is not None
        buffers, own_index = self._buffers, (self._buffers.me,)
        self._memory = memory
        self._sendbuf, self._recvbuf = memory[: buffers.sent_bytes], memory[buffers.sent_bytes : buffers.buffer_bytes]
        self._own_pack, self._own_unpack = buffers.out(own_index), buffers.into(own_index)
        if self._rendezvous is not None:
            self._local = LocalCopies([self._tensor], self._rendezvous.members)
            self._pack_routes, self._unpack_routes = self._routes()
        return True

    def _routes(self) -> tuple[Routes, Routes]:
        """Return the routes of packing and of unpacking; the latter have the copies between local peers, too."""
        size, own_index = len(self._buffers.members), self._buffers.me
        buffer_owners, packing_peers = self._buffers.pack_peers()
        # True: the sender should write, here to the buffer of the aggregator.
        incoming, outgoing = [(peer, True) for peer in packing_peers], [(peer, True) for peer in buffer_owners]
        self._pack_peers = sorted({peer for peer, _ in (*incoming, *outgoing)})
        pack = Routes(size, own_index, incoming, outgoing, self._pack_copies)
        buffer_owners, unpacking_peers = self._buffers.unpack_peers()
        self._senders = tuple(peer for peer, _ in self._local.pairs(True))
        self._receivers = tuple(peer for peer, _ in self._local.pairs(False))
        incoming = [(peer, False) for peer in buffer_owners] + [(peer, True) for peer in self._senders]
        outgoing = [(peer, False) for peer in unpacking_peers] + [(peer, True) for peer in self._receivers]
        self._unpack_peers = sorted({peer for peer, _ in (*incoming, *outgoing)})
        return pack, Routes(size, own_index, incoming, outgoing, self._unpack_copies)

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new block. Collective over the group."""
        source, target = sources[0], targets[0]
        rendezvous = self._rendezvous
        if self._own_pack is not None:
            self._own_pack.run([source], self._in_own_slot(self._sendbuf))
        if rendezvous is not None:
            rendezvous.exchange(self._pack_routes, self._spec.fingerprint, source, self._sendbuf)
            if watch.recorder is not None:
                watch.recorder.record_shared_exchange(rendezvous.times, self._group, self._pack_peers)
        comparison = self._comparison_reduction.start()
        pending = self._start_messages()
        if self._self_copies is not None:
            self._self_copies.run(sources, targets)
        if pending is not None:
            pending.wait()
        if self._own_unpack is not None:
            self._own_unpack.run(self._in_own_slot(self._recvbuf), [target])
        self._comparison_reduction.check(comparison)
        if rendezvous is None:
            return
        # Others read from the buffer of this rank; this rank writes from its block to their new blocks.
        rendezvous.exchange(self._unpack_routes, self._spec.fingerprint, self._recvbuf, target, [source])
        if watch.recorder is not None:
            watch.recorder.record_shared_exchange(rendezvous.times, self._group, self._unpack_peers)
        uncopied_peers = self._senders if locate(target) < 0 else (), self._unwritten_peers
        if uncopied_peers != ((), ()):
            self._remaining.run(uncopied_peers, sources, targets)

    def _pack_copies(self, reads_from: tuple[int, ...], writes_to: tuple[int, ...]) -> tuple[None, BoxCopies | None]:
        return None, self._buffers.out(writes_to)

    def _unpack_copies(
        self, reads_from: tuple[int, ...], writes_to: tuple[int, ...]
    ) -> tuple[BoxCopies | None, BoxCopies | None]:
        self._unwritten_peers = tuple(peer for peer in self._receivers if peer not in writes_to)
        return self._buffers.into(reads_from), self._local.writes(writes_to)

    def _start_messages(self) -> Pending | None:
        messages = self._buffers.messages
        if messages is None:
            return None
        send_side, receive_side = messages
        communicator = self._group.opened or self._group.communicator()
        return communicator.start_messages((self._memory, *send_side), (self._memory, *receive_side))

    def _in_own_slot(self, memory: Bytes) -> list[Bytes | None]:
        return [memory if peer == self._buffers.me else None for peer in range(len(self._buffers.members))]
