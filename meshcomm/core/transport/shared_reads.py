"""Shared-memory reads: the ranks of a node read each other's blocks where they are, without a copy.

A read has three phases: `SharedRead.begin` gathers where the blocks are, each rank reads them, and `SharedRead.end`
waits until all have. Until then no rank may change or free its blocks. If a block of any rank is not in shared memory,
all ranks find so, and nothing is shared.
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
    """A read of *count* blocks of each rank of a group by all its ranks, which share memory.

    *number* is the same on all ranks for the same read, and different for other reads.
    """

    def __init__(self, group: Group, number: int, count: int) -> None:
        rendezvous = group.rendezvous
        assert rendezvous is not None
        self._group, self._rendezvous, self._number, self._count = group, rendezvous, number, count
        size, position = rendezvous.size, rendezvous.position
        others = [(peer, False) for peer in range(size) if peer != position]
        sizes, zeros, one = [_WORD * count] * size, np.zeros(size, np.intp), np.ones((size, 1), np.intp)
        numbers, lengths = np.arange(size, dtype=np.intp), np.full((size, 1), _WORD * count, np.intp)
        copies = BoxCopies(
            sizes, [sum(sizes)], 1, numbers, zeros, one, zeros, numbers * _WORD * count, one, lengths, size
        )
        self._gathering = Routes(size, position, others, others, lambda reads_from, writes_to: (copies, None))
        self._waiting = Routes(size, position, others, others, lambda reads_from, writes_to: (None, None))
        where = allocate(_WORD * count)
        if where is None:
            raise MemoryError(f"the pool of this rank has no {_WORD * count} bytes left")
        self._where = where

    def begin(self, blocks: Sequence[Bytes], sizes: Sequence[Sequence[int]]) -> list[list[Bytes]] | None:
        """Return the blocks of each member of the group, a list for each one; None if some are not shared. Collective.

        *sizes* has the bytes of the blocks of each member.
        """
        where, gathered = self._where, np.empty(len(sizes) * self._count, np.int64)
        where.view(np.int64)[:] = [locate(block) if len(block) else 0 for block in blocks]
        self._exchange(self._gathering, where, gathered.view(np.uint8))
        offsets_of_ranks = gathered.reshape(len(sizes), self._count).tolist()
        if any(offset < 0 for offsets in offsets_of_ranks for offset in offsets):
            return None
        shared = list[list[Bytes]]()
        for member, (offsets, of_member) in enumerate(zip(offsets_of_ranks, sizes, strict=True)):
            if member == self._rendezvous.position:
                shared.append(list(blocks))
                continue
            pairs = zip(offsets, of_member, strict=True)
            views = (self._rendezvous.memory_of(member, offset, size) if size else b"" for offset, size in pairs)
            shared.append([np.frombuffer(view, np.uint8) for view in views])
        return shared

    def end(self) -> None:
        """Wait until no rank reads the blocks of this one any more. Collective."""
        self._exchange(self._waiting, NOTHING, NOTHING)

    def _exchange(self, routes: Routes, source: Bytes, target: Bytes) -> None:
        # With the digest of all calls: ranks that made other calls are found out here.
        self._rendezvous.exchange(routes, self._number ^ self._group.rank_set.call_digest, source, target)
