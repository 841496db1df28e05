"""What it costs to move bytes on a machine, and which ranks share a node."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import FieldsOnly, Indices
from meshcomm.errors import MeshError

CONSTANTS = ("wait_within", "alpha_within", "beta_within", "wait_between", "alpha_between", "beta_between", "gamma")
"""The constants of a `Machine`: the cost of a unit of each entry of a `Load`, in the order of the entries."""

DISK_CONSTANTS = ("alpha_disk", "beta_disk")
"""The constants of a `Machine` by which the way to a file is chosen."""


class Load(NamedTuple):
    """The work from which time is predicted: what a device receives from its own node and from others, and copies."""

    on_node_exchanges: float
    on_node_messages: float
    on_node_bytes: float
    off_node_exchanges: float  # those in which it receives from other nodes
    off_node_messages: float
    off_node_bytes: float
    passed_bytes: float  # read and written in memory, to pack, to unpack and to copy

    def plus(self, other: "Load") -> "Load":
        """Return this load and the *other* one."""
        return Load(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Machine(FieldsOnly):
    """Constants of a cost model, and the map of ranks to nodes; plans are chosen by it.

    All constants are in seconds, those that end in `within` for ranks of one node, in `between` for ranks of several.
    ``python -m meshcomm calibrate`` measures them. ``MeshError`` for a negative or unknown value.

    Parameters
    ----------
    wait_within, wait_between: the latency of an exchange, in which its ranks wait for each other
    alpha_within, alpha_between: the cost of a message
    beta_within, beta_between: the cost of a byte in a message
    gamma: the cost of a byte that is packed, unpacked or copied
    nodes: the number of ranks per node, in order; or the node of each rank; 0 is a single node
    alpha_disk, beta_disk: the cost of a call that reads or writes a file, and of a byte in it

    >>> import numpy as np
    >>> machine = Machine(nodes=2)
    >>> machine.node_of(np.arange(4)).tolist(), machine.ranks_on(1).tolist()
    ([0, 0, 1, 1], [2, 3])
    """

    __module__ = "meshcomm"

    wait_within: float = 3e-6
    alpha_within: float = 1e-6
    beta_within: float = 2e-10
    wait_between: float = 6e-6
    alpha_between: float = 1.5e-6
    beta_between: float = 1e-9
    gamma: float = 1e-10
    nodes: int | tuple[int, ...] = 0
    alpha_disk: float = 2e-5
    beta_disk: float = 5e-10

    def __post_init__(self) -> None:
        for name in (*CONSTANTS, *DISK_CONSTANTS):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise MeshError(f"{name} must be a time in seconds, zero or more, not {value!r}")
        if isinstance(self.nodes, bool) or not isinstance(self.nodes, int | tuple):
            raise MeshError(f"nodes must be a number of ranks per node or a tuple of nodes, not {self.nodes!r}")
        if not all(type(n) is int for n in self.nodes) if isinstance(self.nodes, tuple) else self.nodes < 0:
            raise MeshError(f"nodes are integers, and a number of ranks zero or more, not {quote(self.nodes)}")

    @cached_property
    def one_node(self) -> bool:
        """Whether all ranks are on one node."""
        return self.nodes == 0 or (isinstance(self.nodes, tuple) and len(set(self.nodes)) <= 1)

    def node_of(self, ranks: Indices) -> Indices:
        """Return the node of each of *ranks*; ``MeshError`` for a rank that the machine does not list.

        >>> import numpy as np
        >>> Machine(nodes=2).node_of(np.arange(4)).tolist(), Machine(nodes=(0, 1, 0)).node_of(np.arange(3)).tolist()
        ([0, 0, 1, 1], [0, 1, 0])
        """
        if isinstance(self.nodes, int):
            return ranks // self.nodes if self.nodes else np.zeros_like(ranks)
        if ranks.size and ranks.max() >= len(self.nodes):
            raise MeshError(f"rank {ranks.max()} is beyond the {len(self.nodes)} ranks of the machine")
        return self._node_table[ranks]

    def ranks_on(self, node: int) -> Indices:
        """Return the ranks on *node*, ascending; ``MeshError`` for the only node, which is not listed.

        >>> Machine(nodes=2).ranks_on(1).tolist(), Machine(nodes=(0, 1, 0)).ranks_on(0).tolist()
        ([2, 3], [0, 2])
        """
        if self.nodes == 0:
            raise MeshError("a machine of one node does not list its ranks")
        if isinstance(self.nodes, int):
            return np.arange(node * self.nodes, (node + 1) * self.nodes, dtype=np.intp)
        return self._members[node]

    @cached_property
    def _node_table(self) -> Indices:
        return np.array(self.nodes, dtype=np.intp)

    @cached_property
    def _members(self) -> dict[int, Indices]:
        return {int(node): np.flatnonzero(self._node_table == node) for node in np.unique(self._node_table)}

    def seconds(self, load: Load) -> float:
        """Return how long a device takes for its *load*.

        >>> from meshcomm.core.layouts.machine import Load
        >>> load = Load(1, 2, 1000, 0, 0, 0, 0)  # one exchange on the node, with two messages of 500 bytes
        >>> round(Machine().seconds(load), 9)
        5.2e-06
        """
        return float(sum(getattr(self, name) * count for name, count in zip(CONSTANTS, load, strict=True)))


def checked_constants(constants: object) -> dict[str, float]:
    """Return the *constants*, which a file holds; ``ValueError`` if they are something else."""
    names = (*CONSTANTS, *DISK_CONSTANTS)
    if not isinstance(constants, dict):
        raise ValueError(f'it must be an object of JSON, such as {{"{names[0]}": 3e-6}}')
    for name in constants:
        if name not in names:
            meant = suggestion(name, names) or "."
            raise ValueError(f"no constant is called {quote(name)}{meant} There are {', '.join(names)}")
    Machine(**constants)
    return dict(constants)


def node_map(ranks: Indices, nodes: Indices) -> int | tuple[int, ...]:
    """Return which ranks share a node in the shortest form that `Machine` knows."""
    if len(set(nodes.tolist())) == 1:
        return 0
    per_node = int((nodes == nodes[0]).sum())
    first_of_node = ranks // per_node * per_node
    in_order = ranks[0] == 0 and len(ranks) == ranks[-1] + 1 and np.array_equal(nodes, nodes[first_of_node])
    if in_order and len(set(nodes[::per_node].tolist())) == len(nodes[::per_node]):
        return per_node
    table = np.full(int(ranks[-1]) + 1, -1)
    table[ranks] = nodes
    return tuple(table.tolist())
