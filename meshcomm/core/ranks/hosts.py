"""Which ranks share a host, which settings must be equal on all ranks, and the machine that all ranks plan by.

Ranks share a host if `this_host` is equal on them: plans, exchanges in shared memory, topologies and ``python -m
meshcomm info`` all use this rule.
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

COMMON_SETTINGS = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", "MESHCOMM_TIMEOUT", WHOLE)
"""Environment variables that must be equal on all ranks. Ranks agree on the values of others, or use their own."""


def this_host() -> str:
    """Return the identity of this host: its name, and the random number of the last boot of its system.

    Containers with different names on one machine count as different hosts, as they do for MPI.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return f"{os.uname().nodename} {boot_id}".rstrip()


def usable_processors() -> Iterable[int]:
    """Return the processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def compared_settings(communicator: Communicator, ranks: Ranks) -> list[str]:
    """Return the host name of each rank, after a check of the settings. Collective over *communicator*.

    *ranks* are the numbers of its ranks for errors. ``MeshError`` on all ranks if one of `COMMON_SETTINGS` differs.
    """
    own_settings = [os.uname().nodename, *(os.environ.get(name) or None for name in COMMON_SETTINGS)]
    settings = communicator.allgather_json(own_settings)
    for column, name in enumerate(COMMON_SETTINGS, 1):
        ranks_of_value = ranks_by_value(ranks, [rank_settings[column] for rank_settings in settings])
        if len(ranks_of_value) > 1:
            texts = [
                f"{repr(value) if value else 'not set'} on {ranks_text(ranks_with_value)}"
                for value, ranks_with_value in ranks_of_value.items()
            ]
            raise MeshError(f"{name} must be the same on all ranks, but it is {', and '.join(texts)}")
    return [str(rank_settings[0]) for rank_settings in settings]


class _HostFacts(TypedDict, total=False):
    """Facts about the host of a rank, which ranks gather; the first rank adds the constants of the machine."""

    host: str
    processors: list[int]
    constants: Mapping[str, float]
    error: str


def agreed_machine(communicator: Communicator, ranks: Ranks) -> tuple[Machine, bool]:
    """Return the machine that all *ranks* plan by, and whether a host has fewer processors than ranks. Collective.

    The machine has the constants of the first rank. ``MeshError`` on all ranks if that rank cannot read its file.
    """
    own_facts = _HostFacts(host=this_host(), processors=sorted(usable_processors()))
    if communicator.rank == 0:
        try:
            own_facts["constants"] = stored_constants()
        except MeshError as error:
            own_facts["error"] = str(error)
    facts = communicator.allgather_json(own_facts)
    if "error" in facts[0]:
        raise MeshError(facts[0]["error"])
    nodes = first_on_host([rank_facts["host"] for rank_facts in facts])
    node_of_rank = node_map(np.array(ranks, dtype=np.intp), np.array(nodes, dtype=np.intp))
    return Machine(**facts[0]["constants"], nodes=node_of_rank), _oversubscribed(
        nodes, [rank_facts["processors"] for rank_facts in facts]
    )


def first_on_host(hosts: list[str]) -> list[int]:
    """Return for each rank the first rank on its host.

    >>> first_on_host(["a", "b", "a"])
    [0, 1, 0]
    """
    first_ranks: dict[str, int] = {}
    return [first_ranks.setdefault(host, rank) for rank, host in enumerate(hosts)]


def _oversubscribed(nodes: list[int], processors: list[list[int]]) -> bool:
    """Return whether a host has more ranks than processors that these ranks may use.

    >>> _oversubscribed([0, 0, 2], [[0, 1], [0, 1], [5]]), _oversubscribed([0, 0], [[3], [3]])
    (False, True)
    """
    node_processors: dict[int, set[int]] = {}
    for node, rank_processors in zip(nodes, processors, strict=True):
        node_processors.setdefault(node, set()).update(rank_processors)
    return any(nodes.count(node) > len(processor_set) for node, processor_set in node_processors.items())


def stored_constants() -> dict[str, float]:
    """Return the constants of the machine in the file that ``MESHCOMM_MACHINE`` names; none if it is not set.

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
