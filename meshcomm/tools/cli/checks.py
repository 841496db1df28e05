"""The checks of ``python -m meshcomm info``: each finding in a line, with the cure. Pure functions."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from meshcomm.core._arguments import counted
from meshcomm.core._units import bytes_text
from meshcomm.core.failures.messages import spans
from meshcomm.tools.cli.facts import THREADS, Connection, Facts

OK, NOTE, PROBLEM = "ok", "note", "problem"

MIN_SHM = 2**26
"""Bytes of /dev/shm: a container has that many by default. An MPI needs some of them for each rank."""

SLOW_LATENCY, SLOW_BANDWIDTH = 20e-6, 1e9
"""Seconds, and bytes per second. TCP over Ethernet hardly reaches these; networks made for MPI always do."""


class Finding(NamedTuple):
    """The result of a check, and the ranks that have it. `meshcomm info --json` uses the names of these fields."""

    level: str
    about: str
    text: str
    ranks: tuple[int, ...]


CheckResults = Iterator[tuple[str, str]]
"""Pairs of a level and a text."""


def findings(facts: Sequence[Facts], connections: Sequence[Connection] = ()) -> list[Finding]:
    """Return the findings of all checks in the *facts* of each rank. Equal findings of several ranks are merged."""
    hosts: dict[str, list[int]] = {}
    for rank, rank_facts in enumerate(facts):
        hosts.setdefault(rank_facts["host"], []).append(rank)
    ranks_by_finding: dict[tuple[str, str, str], list[int]] = {}
    for subject, check in _RANK_CHECKS.items():
        for rank, rank_facts in enumerate(facts):
            for level, text in check(rank_facts):
                ranks_by_finding.setdefault((level, subject, text), []).append(rank)
    for subject, check_host in _HOST_CHECKS.items():
        for ranks in hosts.values():
            for level, text in check_host([facts[rank] for rank in ranks]):
                ranks_by_finding.setdefault((level, subject, text), []).extend(ranks)
    for level, text in _check_network(connections):
        ranks_by_finding.setdefault((level, "network", text), []).extend(connections[0]["ranks"])
    results = [Finding(*key, tuple(sorted(ranks))) for key, ranks in ranks_by_finding.items()]
    order = [*_RANK_CHECKS, *_HOST_CHECKS, "network"]
    return sorted(results, key=lambda finding: (order.index(finding.about), finding.ranks))


def line(finding: Finding, size: int) -> str:
    """Return *finding* as a line, which names its ranks unless all *size* ranks have it.

    >>> line(Finding(NOTE, "threads", "too many", (0, 1, 2)), 4)
    'note     threads: ranks 0-2: too many'
    """
    is_partial = len(finding.ranks) < size
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {spans(finding.ranks)}: " if is_partial else ""
    return f"{finding.level:7}  {finding.about}: {ranks}{finding.text}"


# -- of a rank --------------------------------------------------------------------------------------------------------


def _check_launcher(facts: Facts) -> CheckResults:
    yield OK, facts["launcher"] or "none, started without mpiexec: a world of one rank"


def _check_mpi(facts: Facts) -> CheckResults:
    ok = True
    if len(facts["libraries"]) > 1:
        ok = False
        text = (
            f"two MPIs are loaded, {' and '.join(facts['libraries'])}: they know nothing of each other. "
            "Load one module, or pip uninstall one of them"
        )
        yield PROBLEM, text
    if len(facts["wheels"]) > 1:
        ok = False
        text = (
            f"the packages {' and '.join(facts['wheels'])} are both installed: mpiexec is that of one, and "
            "mpi4py loads one. pip uninstall the other"
        )
        yield PROBLEM, text
    if not facts["launched"] and not _are_one_mpi(facts["mpiexec"], facts["libraries"]):
        ok = False
        text = (
            f"mpiexec on PATH is {facts['mpiexec']}, but the MPI is {facts['libraries'][0]}: if ranks are alone, use "
            "the mpiexec of this MPI"
        )
        yield NOTE, text
    if ok:
        yield OK, facts["mpi"]


def _are_one_mpi(mpiexec: str, libraries: Sequence[str]) -> bool:
    """Return whether a launcher and a library may belong to one MPI: whether they are below one folder."""
    prefix = PurePath(mpiexec).parent.parent
    return not libraries or not mpiexec or any(prefix in PurePath(path).parents for path in libraries)


def _check_thread_level(facts: Facts) -> CheckResults:
    if facts["thread_level"] == "MULTIPLE":
        yield OK, "MULTIPLE"
    else:
        text = (
            f"{facts['thread_level']}: ranks that wait for too long cannot name the missing rank. Leave "
            "mpi4py.rc.thread_level as it is, or take an MPI with MPI_THREAD_MULTIPLE"
        )
        yield NOTE, text


def _check_versions(facts: Facts) -> CheckResults:
    for text in facts["versions"]:
        yield PROBLEM, text
    if not facts["versions"]:
        yield OK, "as meshcomm needs them"


def _check_settings(facts: Facts) -> CheckResults:
    for text in facts["misspelt"]:
        yield PROBLEM, text


def _check_memory(facts: Facts) -> CheckResults:
    if facts["memory"] < facts["physical"]:
        text = (
            f"the control group allows {bytes_text(facts['memory'])} of the {bytes_text(facts['physical'])} of this "
            "host to its ranks together: ask the batch system for what you need (--mem)"
        )
        yield NOTE, text
    if facts["address_space"] >= 0:
        text = (
            f"ulimit -v allows {bytes_text(facts['address_space'])} to each rank: a part of it is reserved to share. "
            "ulimit -v unlimited"
        )
        yield NOTE, text
    if 0 <= facts["shm"] <= MIN_SHM:
        text = (
            f"/dev/shm has only {bytes_text(facts['shm'])}, which an MPI may need: in a container, run it with "
            "--shm-size=1g"
        )
        yield NOTE, text
    if facts["left"]:
        text = (
            f"killed jobs of yours have left {bytes_text(facts['left'])} in /dev/shm: python -m meshcomm clean "
            "removes that, on this host"
        )
        yield NOTE, text
    is_shm_small = 0 <= facts["shm"] <= MIN_SHM
    if facts["memory"] >= facts["physical"] and facts["address_space"] < 0 and not is_shm_small and not facts["left"]:
        yield OK, f"{bytes_text(facts['physical'])}, no limit below it"


# -- of a host --------------------------------------------------------------------------------------------------------


def _check_cores(host_facts: Sequence[Facts]) -> CheckResults:
    usable_cores = set[int]().union(*(facts["processors"] for facts in host_facts))
    cores = host_facts[0]["host_processors"]
    facts = next((f for f in host_facts if _ranks_on_cores(f, host_facts) > len(f["processors"])), None)
    text = f"{counted(len(host_facts), 'rank')} on {counted(len(usable_cores), 'core')}"
    if facts is None:
        yield OK, text
    elif len(host_facts) <= cores:
        count = _ranks_on_cores(facts, host_facts)
        text = (
            f"{counted(count, 'rank')} may only use {counted(len(facts['processors']), 'core')} of {cores}, and "
            "wait for each other: ask the batch system for a core per rank, or bind otherwise "
            "(mpiexec --bind-to core)"
        )
        yield PROBLEM, text
    else:
        yield NOTE, f"{text}: ranks wait for each other, and all is slow. Launch at most {counted(cores, 'rank')} here"


def _ranks_on_cores(facts: Facts, host_facts: Sequence[Facts]) -> int:
    """Return how many ranks may only use cores that this one may use."""
    return sum(set(other_facts["processors"]) <= set(facts["processors"]) for other_facts in host_facts)


def _check_binding(host_facts: Sequence[Facts]) -> CheckResults:
    host_cores = host_facts[0]["host_processors"]
    if 1 < len(host_facts) <= host_cores and all(len(facts["processors"]) == host_cores for facts in host_facts):
        cure = "mpiexec --bind-to core, srun --cpu-bind=cores"
        yield NOTE, f"ranks are not bound, and may move from core to core: {cure}"
    elif 1 < len(host_facts) <= host_cores:
        yield OK, "ranks are bound to cores"


def _check_threads(host_facts: Sequence[Facts]) -> CheckResults:
    cores = set[int]().union(*(facts["processors"] for facts in host_facts))
    total = sum(_thread_count(facts) for facts in host_facts)
    if len(host_facts) > 1 and total > max(len(cores), len(host_facts)):
        threads_per_rank = max(1, len(cores) // len(host_facts))
        text = (
            f"libraries of NumPy may use {total} threads in {len(host_facts)} ranks on {counted(len(cores), 'core')}: "
            f"export OMP_NUM_THREADS={threads_per_rank}"
        )
        yield NOTE, text
    else:
        yield OK, f"at most {total} in all for the libraries of NumPy"


def _thread_count(facts: Facts) -> int:
    """Return the number of threads that NumPy's libraries use: from the environment, else one for each core."""
    counts = [
        int(text) for text in (facts["threads"].get(name, "").split(",")[0] for name in THREADS) if text.isdigit()
    ]
    return max(counts) if counts else len(facts["processors"])


def _check_shared_memory(host_facts: Sequence[Facts]) -> CheckResults:
    for text in dict.fromkeys(facts["shared"] for facts in host_facts):
        if len(host_facts) == 1 or not text.startswith(("off", "error")):
            yield OK, text if len(host_facts) > 1 else "one rank on this host shares none"
        elif not all(facts["shares"] for facts in host_facts):
            yield NOTE, f"{text}, so MPI moves all data: unset MESHCOMM_SHARED_MEMORY to copy directly"
        else:
            yield PROBLEM, f"{text}; so MPI moves all data, and relayouts take longer. See docs/measuring.md"


# -- between hosts ----------------------------------------------------------------------------------------------------


def _check_network(connections: Sequence[Connection]) -> CheckResults:
    if not connections:
        return
    connection = connections[0]
    within_text = f", within a host {_speed_text(connections[1])}" if len(connections) > 1 else ""
    text = f"between hosts {_speed_text(connection)}{within_text}"
    if connection["latency"] > SLOW_LATENCY or connection["bandwidth"] < SLOW_BANDWIDTH:
        text += ". That is slow for a network of a cluster: does the MPI know the network (UCX_TLS, FI_PROVIDER)?"
        yield NOTE, text
    else:
        yield OK, text


def _speed_text(connection: Connection) -> str:
    return f"{connection['latency'] * 1e6:.1f} µs and {connection['bandwidth'] / 1e9:.2f} GB/s"


_RANK_CHECKS: dict[str, Callable[[Facts], CheckResults]] = {
    "launcher": _check_launcher,
    "MPI": _check_mpi,
    "thread level": _check_thread_level,
    "versions": _check_versions,
    "settings": _check_settings,
    "memory": _check_memory,
}
_HOST_CHECKS: dict[str, Callable[[Sequence[Facts]], CheckResults]] = {
    "cores": _check_cores,
    "binding": _check_binding,
    "threads": _check_threads,
    "shared memory": _check_shared_memory,
}
