"""What moving bytes costs on a machine, and which ranks share a node; pure."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.errors import MeshError

Indices: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True)
class Machine:
    """Constants of a cost model, and the map of ranks to nodes; plans are chosen by it. Local.

    A message costs `alpha` seconds and each byte of it `beta` seconds, within a node or between nodes; a pass over
    memory, such as packing, costs `gamma` seconds per byte. `nodes` says which ranks share a node: a number n if each
    n consecutive ranks do, a tuple with the node of every rank, or 0 if all do. The model is the postal one with a
    term for local copies; ``python -m meshcomm calibrate`` measures the constants. ``MeshError`` for negative or
    unknown values.

    >>> machine = Machine(nodes=2)
    >>> machine.node_of(np.arange(4)).tolist(), machine.ranks_on(1).tolist()
    ([0, 0, 1, 1], [2, 3])
    """

    alpha_within: float = 2e-6
    alpha_between: float = 1e-5
    beta_within: float = 3e-10
    beta_between: float = 1e-9
    gamma: float = 1.5e-10
    nodes: int | tuple[int, ...] = 0

    def __post_init__(self) -> None:
        for name in ("alpha_within", "alpha_between", "beta_within", "beta_between", "gamma"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise MeshError(f"{name} must be a time in seconds, zero or more, not {value!r}")
        if isinstance(self.nodes, bool) or not isinstance(self.nodes, int | tuple):
            raise MeshError(f"nodes must be a number of ranks per node or a tuple of nodes, not {self.nodes!r}")
        if not all(type(n) is int for n in self.nodes) if isinstance(self.nodes, tuple) else self.nodes < 0:
            raise MeshError(f"nodes are integers, and a number of ranks zero or more, not {self.nodes!r}")

    @cached_property
    def one_node(self) -> bool:
        """Whether all ranks are on one node. Local."""
        return self.nodes == 0 or (isinstance(self.nodes, tuple) and len(set(self.nodes)) <= 1)

    def node_of(self, ranks: Indices) -> Indices:
        """Return the node of each of *ranks*. Local; ``MeshError`` for a rank that the machine does not list."""
        if isinstance(self.nodes, int):
            block: Indices = ranks // self.nodes if self.nodes else np.zeros_like(ranks)
            return block
        if ranks.size and ranks.max() >= len(self.nodes):
            raise MeshError(f"rank {ranks.max()} is beyond the {len(self.nodes)} ranks of the machine")
        nodes: Indices = self._table[ranks]
        return nodes

    def ranks_on(self, node: int) -> Indices:
        """Return the ranks on *node*, ascending; ``MeshError`` for the only node, which is not listed. Local."""
        if self.nodes == 0:
            raise MeshError("a machine of one node does not list its ranks")
        if isinstance(self.nodes, int):
            return np.arange(node * self.nodes, (node + 1) * self.nodes, dtype=np.intp)
        return self._members[node]

    @cached_property
    def _table(self) -> Indices:
        return np.array(self.nodes, dtype=np.intp)

    @cached_property
    def _members(self) -> dict[int, Indices]:
        return {int(node): np.flatnonzero(self._table == node) for node in np.unique(self._table)}

    def seconds(self, near: float, near_bytes: float, far: float, far_bytes: float, passed: float) -> float:
        """Return what so many messages and bytes cost within a node (*near*) and between nodes (*far*). Local.

        *passed* are the bytes of passes over memory.
        """
        return (
            self.alpha_within * near
            + self.beta_within * near_bytes
            + self.alpha_between * far
            + self.beta_between * far_bytes
            + self.gamma * passed
        )
