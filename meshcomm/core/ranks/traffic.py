"""The traffic to a rank, for counts and traces."""

from collections.abc import Sequence

import numpy as np

from meshcomm.core._types import Indices
from meshcomm.core.failures.recorder import Traffic
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.rank_sets import RankSet


def traffic_from(rank_set: RankSet, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices) -> Traffic:
    """Return the traffic to this rank of *rank_set* from other *ranks* of the world; *sizes*: bytes from each rank."""
    nbytes = np.asarray(sizes, dtype=np.int64)
    is_received = nbytes > 0
    nodes = rank_set.machine.node_of(np.asarray([*ranks, rank_set.world.rank], dtype=np.intp))
    is_off_node = is_received & (nodes[:-1] != nodes[-1])
    return Traffic(int(is_received.sum()), int(nbytes.sum()), int(is_off_node.sum()), int(nbytes[is_off_node].sum()))


def note_received(
    rank_set: RankSet, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices, began: int
) -> None:
    """Report data that this rank has received outside of an exchange; arguments are those of `traffic_from`."""
    if watch.recorder is not None:
        watch.recorder.record_exchange("messages", began, traffic_from(rank_set, ranks, sizes))
