"""Data that a rank receives from others, as those who count or trace it want to know."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Indices
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.teams import Team


class Traffic(NamedTuple):
    """Data that a rank receives from others. A message is what one other rank has for it in one exchange."""

    messages: int = 0
    bytes: int = 0
    messages_between_nodes: int = 0
    bytes_between_nodes: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        """Return both together."""
        return Traffic(  # one by one: this is on the way of every exchange that is counted
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.messages_between_nodes + other.messages_between_nodes,
            self.bytes_between_nodes + other.bytes_between_nodes,
        )


NOTHING = Traffic()


def traffic_from(team: Team, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices) -> Traffic:
    """Return what a rank of *team* receives from other *ranks* of the world: *sizes* in bytes, one for each."""
    found = np.asarray(sizes, dtype=np.int64)
    some = found > 0
    nodes = team.machine.node_of(np.asarray([*ranks, team.world.rank], dtype=np.intp))
    off_node = some & (nodes[:-1] != nodes[-1])
    return Traffic(int(some.sum()), int(found.sum()), int(off_node.sum()), int(found[off_node].sum()))


def note_received(team: Team, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices, began: int) -> None:
    """Tell of data that this rank has received by other means than an exchange, as `traffic_from` takes them."""
    if watch.recorder is not None:
        watch.recorder.exchanged("messages", began, traffic_from(team, ranks, sizes))
