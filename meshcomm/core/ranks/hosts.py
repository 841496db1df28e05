"""Which ranks share a host, which settings all must have alike, and the machine that all plan by.

One rule for the whole package: ranks share a host if `this_host` is equal on them. Plans, exchanges in shared memory,
topologies and ``python -m meshcomm info`` all go by it.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from meshcomm.core._types import Ranks
from meshcomm.core.failures.messages import ranks_by_value, ranks_text
from meshcomm.core.layouts.machine import Machine, checked_constants, node_map
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.sizes import WHOLE
from meshcomm.errors import MeshError

MACHINE_FILE = "MESHCOMM_MACHINE"
"""The environment variable that names the file with the constants of the machine, as ``calibrate`` writes it."""

ALIKE = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", "MESHCOMM_TIMEOUT", WHOLE)
"""Variables that all ranks must have alike. Of others, ranks agree on what they say, or use them alone."""


def this_host() -> str:
    """Return the identity of this host: its name, and the number of this boot of its system.

    Containers with different names on one machine count as different hosts, as they do for MPI.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{os.uname().nodename} {boot}".rstrip()


def usable_processors() -> Iterable[int]:
    """Return the processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def compared_settings(communicator: Communicator, ranks: Ranks) -> list[str]:
    """Return the host name of each rank. Collective over *communicator*; *ranks* are the names of its ranks.

    ``MeshError`` on all ranks if an environment variable differs between them.
    """
    mine = [os.uname().nodename, *(os.environ.get(name) or None for name in ALIKE)]
    settings = communicator.allgather_json(mine)
    for number, name in enumerate(ALIKE, 1):
        values = ranks_by_value(ranks, [row[number] for row in settings])
        if len(values) > 1:
            texts = [f"{repr(value) if value else 'not set'} on {ranks_text(of)}" for value, of in values.items()]
            raise MeshError(f"{name} must be the same on all ranks, but it is {', and '.join(texts)}")
    return [str(row[0]) for row in settings]


class _Facts(TypedDict, total=False):
    """What a rank knows of its host; the first one also of the machine."""

    host: str
    processors: list[int]
    constants: Mapping[str, float]
    error: str


def agreed_machine(communicator: Communicator, ranks: Ranks) -> tuple[Machine, bool]:
    """Return the machine that all *ranks* plan by, and whether a host has fewer processors than ranks. Collective.

    Its constants are those that the first rank knows. ``MeshError`` on all ranks if that one cannot read its file.
    """
    mine = _Facts(host=this_host(), processors=sorted(usable_processors()))
    if communicator.rank == 0:
        try:
            mine["constants"] = stored_constants()
        except MeshError as error:
            mine["error"] = str(error)
    facts = communicator.allgather_json(mine)
    if "error" in facts[0]:
        raise MeshError(facts[0]["error"])
    nodes = first_on_host([row["host"] for row in facts])
    of = node_map(np.array(ranks, dtype=np.intp), np.array(nodes, dtype=np.intp))
    return Machine(**facts[0]["constants"], nodes=of), _oversubscribed(nodes, [row["processors"] for row in facts])


def first_on_host(hosts: list[str]) -> list[int]:
    """Return for each rank the first rank on its host.

    >>> first_on_host(["a", "b", "a"])
    [0, 1, 0]
    """
    first: dict[str, int] = {}
    return [first.setdefault(host, rank) for rank, host in enumerate(hosts)]


def _oversubscribed(nodes: list[int], processors: list[list[int]]) -> bool:
    """Return whether a host has more ranks than processors that these may use.

    >>> _oversubscribed([0, 0, 2], [[0, 1], [0, 1], [5]]), _oversubscribed([0, 0], [[3], [3]])
    (False, True)
    """
    usable: dict[int, set[int]] = {}
    for node, of_rank in zip(nodes, processors, strict=True):
        usable.setdefault(node, set()).update(of_rank)
    return any(nodes.count(node) > len(of_node) for node, of_node in usable.items())


def stored_constants() -> dict[str, float]:
    """Return the constants of the machine in the file that ``MESHCOMM_MACHINE`` names, if it names one.

    ``MeshError`` if the file cannot be read, or holds something else.
    """
    path = os.environ.get(MACHINE_FILE, "")
    if not path:
        return {}
    try:
        return checked_constants(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:
        raise MeshError(
            f"{MACHINE_FILE}={path} holds no constants of a machine: {error}. python -m meshcomm calibrate FILE "
            "writes such a file; without the variable, relayouts are planned by defaults"
        ) from None
