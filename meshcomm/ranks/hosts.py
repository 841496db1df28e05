"""Which ranks share a node, and the machine that all ranks plan by."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from meshcomm._types import Indices
from meshcomm.errors import MeshError
from meshcomm.layouts.machine import Machine
from meshcomm.ranks.communicator import Communicator

MACHINE_FILE = "MESHCOMM_MACHINE"


def agreed_machine(communicator: Communicator, ranks: range | tuple[int, ...]) -> tuple[Machine, bool]:
    """Return the machine that the first rank knows, with the nodes of all *ranks*, and if one is crowded. Collective.

    ``MeshError`` on all ranks if the file that it names cannot be read.
    """
    nodes, crowded = communicator.nodes()
    known = b""
    if communicator.rank == 0:
        try:
            known = json.dumps(stored_constants()).encode()
        except MeshError as error:
            known = json.dumps(str(error)).encode()
    constants = json.loads(communicator.allgather(known)[0])
    if isinstance(constants, str):
        raise MeshError(constants)
    of = _node_map(np.array(ranks, dtype=np.intp), np.array(nodes, dtype=np.intp))
    return Machine(**constants, nodes=of), crowded


def stored_constants() -> dict[str, float]:
    """Return the constants of the machine in the file that ``MESHCOMM_MACHINE`` names, if it names one. Local.

    ``MeshError`` if the file cannot be read, or holds something else.
    """
    path = os.environ.get(MACHINE_FILE, "")
    if not path:
        return {}
    try:
        constants = json.loads(Path(path).read_text())
        Machine(**constants, nodes=0)
    except (OSError, ValueError, TypeError) as error:
        raise MeshError(f"{MACHINE_FILE}={path} holds no constants of a machine: {error}") from None
    return dict(constants)


def _node_map(ranks: Indices, nodes: Indices) -> int | tuple[int, ...]:
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


MOST_PROCESSORS = 8192
"""Of a node, for the question whether it has as many as ranks."""


def usable_processors() -> Iterable[int]:
    """Return the processors that this process may use. Local."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
