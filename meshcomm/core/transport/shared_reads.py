"""Shared-memory reads: the ranks of a node read each other's blocks in shared memory, without a copy.

A read has three phases: `SharedRead.begin` gathers the offsets of the blocks, each rank reads the blocks, and
`SharedRead.end` waits until all have. Until then no rank may change or free its blocks. If a block of any rank is not
in shared memory, all ranks find that out, and nothing is shared.
"""

from collections.abc import Sequence

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._types import Bytes
from meshcomm.core.memory._rendezvous import Routes
from meshcomm.core.memory.blocks import NOTHING
from meshcomm.core.memory.pools import allocate, locate
from meshcomm.core.ranks.rank_sets import Group

_WORD = 8


class SharedRead:
    """A read, by all ranks of a group, of *count* blocks of each rank. The ranks share memory.

    *number* is the same on all ranks for the same read, and different for other reads.
    """

    def __init__(self, group: Group, number: int, count: int) -> None:
        rendezvous = group.rendezvous
        assert rendezvous is not None
        self._group, self._rendezvous, self._number, self._count = group, rendezvous, number, count
        size, position = rendezvous.size, rendezvous.position
        peers = [(peer, False) for peer in range(size) if peer != position]
        sizes, zeros, unit_strides = [_WORD * count] * size, np.zeros(size, np.intp), np.ones((size, 1), np.intp)
        regions, lengths = np.arange(size, dtype=np.intp), np.full((size, 1), _WORD * count, np.intp)
        copies = BoxCopies(
            sizes,
            [sum(sizes)],
            1,
            regions,
            zeros,
            unit_strides,
            zeros,
            regions * _WORD * count,
            unit_strides,
            lengths,
            size,
        )
        self._gather_routes = Routes(size, position, peers, peers, lambda reads_from, writes_to: (copies, None))
        self._wait_routes = Routes(size, position, peers, peers, lambda reads_from, writes_to: (None, None))
        offsets_memory = allocate(_WORD * count)
        if offsets_memory is None:
            raise MemoryError(f"the pool of this rank has no {_WORD * count} bytes left")
        self._offsets_memory = offsets_memory

    def begin(self, blocks: Sequence[Bytes], sizes: Sequence[Sequence[int]]) -> list[list[Bytes]] | None:
        """Return a list of the blocks of each member of the group; None if some are not shared. Collective.

        *blocks* are those of this rank; *sizes* has the bytes of the blocks of each member.
        """
        offsets_memory, gathered_offsets = self._offsets_memory, np.empty(len(sizes) * self._count, np.int64)
        offsets_memory.view(np.int64)[:] = [locate(block) if len(block) else 0 for block in blocks]
        self._exchange(self._gather_routes, offsets_memory, gathered_offsets.view(np.uint8))
        offsets_of_ranks = gathered_offsets.reshape(len(sizes), self._count).tolist()
        if any(offset < 0 for offsets in offsets_of_ranks for offset in offsets):
            return None
        blocks_of_members = list[list[Bytes]]()
        for member, (offsets, member_sizes) in enumerate(zip(offsets_of_ranks, sizes, strict=True)):
            if member == self._rendezvous.position:
                blocks_of_members.append(list(blocks))
                continue
            pairs = zip(offsets, member_sizes, strict=True)
            views = (self._rendezvous.memory_of(member, offset, size) if size else b"" for offset, size in pairs)
            blocks_of_members.append([np.frombuffer(view, np.uint8) for view in views])
        return blocks_of_members

    def end(self) -> None:
        """Wait until no other rank reads the blocks of this rank any more. Collective."""
        self._exchange(self._wait_routes, NOTHING, NOTHING)

    def _exchange(self, routes: Routes, source: Bytes, target: Bytes) -> None:
        # The number has the digest of all calls, so that ranks with other calls are detected.
        self._rendezvous.exchange(routes, self._number ^ self._group.rank_set.call_digest, source, target)
