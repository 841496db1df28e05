"""Exchanges in place: ranks that share memory copy straight between their blocks.

`meshcomm.core.transport.local_copies` describes the copies. If neither block of a pair is shared, as between two
arrays of the user, the pair exchanges messages the first time. From the second time on, the sender first stages its
block: it copies the block to shared memory, if there is some within the scratch limit.
"""

from collections.abc import Sequence

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._types import Bytes
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory._rendezvous import Routes
from meshcomm.core.memory.blocks import NOTHING
from meshcomm.core.memory.pools import locate
from meshcomm.core.memory.scratch import shared_scratch
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec, Remaining
from meshcomm.core.transport.local_copies import LocalCopies


class InPlace:
    """An exchange among those ranks of a group that share memory with this one.

    Parameters
    ----------
    group: group with a rendezvous, as some of its ranks share memory with this one
    tensors: boxes that the group exchanges; those of ranks that share no memory with this one are ignored
    spec: specification of the exchange, the same on all ranks
    remaining: exchange of boxes that no copy can move
    """

    def __init__(self, group: Group, tensors: Sequence[BoxExchange], spec: ExchangeSpec, remaining: Remaining) -> None:
        rendezvous = group.rendezvous
        assert rendezvous is not None
        self._group = group
        self._rendezvous = rendezvous
        self._spec = spec
        self._remaining = remaining
        self._copies = LocalCopies(tensors, rendezvous.members)
        incoming, outgoing = self._copies.pairs(True), self._copies.pairs(False)
        self._peers = sorted({peer for peer, _ in (*incoming, *outgoing)})
        self._routes = Routes(rendezvous.size, rendezvous.position, incoming, outgoing, self._copies.reads_and_writes)
        self._staging: BoxCopies | None = None
        self._has_uncopied = False  # whether an earlier run left boxes that no copy could move

    def run(self, sources: list[Bytes], targets: list[Bytes], allocation: Bytes | None = None) -> None:
        """Fill the new blocks. Collective over the ranks that share memory."""
        rendezvous, routes = self._rendezvous, self._routes
        several_sources = sources if self._copies.several else None
        source, target = NOTHING if several_sources else sources[0], targets[0] if allocation is None else allocation
        if self._has_uncopied and several_sources is None and locate(source) < 0 and locate(target) < 0:
            source = self._staged_copy(source)
        # The number has the digest of all calls, so that ranks with other calls are detected.
        number = self._spec.fingerprint ^ self._group.rank_set.call_digest
        rendezvous.exchange(routes, number, source, target, several_sources)
        if watch.recorder is not None:
            watch.recorder.record_shared_exchange(rendezvous.times, self._group, self._peers)
        if routes.left is not None:
            self._has_uncopied = True
            self._remaining.run(routes.left, sources, targets)

    def _staged_copy(self, source: Bytes) -> Bytes:
        """Return a copy of *source* in shared memory, if there is some within the scratch limit; else *source*."""
        may_stage = self._spec.stages and len(source) <= self._spec.scratch_limit
        buffer = shared_scratch(len(source)) if may_stage else None
        if buffer is None:
            return source
        if self._staging is None:
            zero, unit, size = np.zeros(1, dtype=np.intp), np.ones((1, 1), dtype=np.intp), len(source)
            self._staging = BoxCopies(
                [size], [size], 1, zero, zero, unit, zero, zero, unit, size * unit, self._rendezvous.size
            )
        self._staging.run([source], [buffer])
        return buffer
