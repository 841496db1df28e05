"""The costs of moving bytes on a machine, and the node of each rank."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._mistakes import suggestion
from meshcomm.core._types import FieldsOnly, Indices
from meshcomm.errors import MeshError

CONSTANTS = ("wait_within", "alpha_within", "beta_within", "wait_between", "alpha_between", "beta_between", "gamma")
"""The constants of a `Machine`, in seconds: the cost of one unit of each entry of a `Load`, in their order."""

DISK_CONSTANTS = ("alpha_disk", "beta_disk")
"""The constants of a `Machine` by which `storage/routes.py` chooses how to read and write a file."""


class Load(NamedTuple):
    """The work of a device, from which time is predicted: what it receives on its node and off it, and copies."""

    on_node_exchanges: float
    on_node_messages: float
    on_node_bytes: float
    off_node_exchanges: float  # those in which it receives from other nodes
    off_node_messages: float
    off_node_bytes: float
    passed_bytes: float  # read and written in memory, to pack, to unpack and to copy

    def plus(self, other: "Load") -> "Load":
        """Return the sum of this load and the *other* one."""
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
        return self._ranks_by_node[node]

    @cached_property
    def _node_table(self) -> Indices:
        return np.array(self.nodes, dtype=np.intp)

    @cached_property
    def _ranks_by_node(self) -> dict[int, Indices]:
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
    """Return the *constants* from a file; ``ValueError`` if they are no constants of a `Machine`."""
    names = (*CONSTANTS, *DISK_CONSTANTS)
    if not isinstance(constants, dict):
        raise ValueError(f'it must be an object of JSON, such as {{"{names[0]}": 3e-6}}')
    for name in constants:
        if name not in names:
            hint = suggestion(name, names) or "."
            raise ValueError(f"no constant is called {quote(name)}{hint} There are {', '.join(names)}")
    Machine(**constants)
    return dict(constants)


def node_map(ranks: Indices, nodes: Indices) -> int | tuple[int, ...]:
    """Return the `nodes` of a `Machine` where each of *ranks* is on the node in *nodes*, in the shortest form."""
    if len(set(nodes.tolist())) == 1:
        return 0
    ranks_per_node = int((nodes == nodes[0]).sum())
    first_ranks = ranks // ranks_per_node * ranks_per_node
    is_ordered = ranks[0] == 0 and len(ranks) == ranks[-1] + 1 and np.array_equal(nodes, nodes[first_ranks])
    if is_ordered and len(set(nodes[::ranks_per_node].tolist())) == len(nodes[::ranks_per_node]):
        return ranks_per_node
    table = np.full(int(ranks[-1]) + 1, -1)
    table[ranks] = nodes
    return tuple(table.tolist())
