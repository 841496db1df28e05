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
"""Bytes: what a container has if nobody asks for more. An MPI needs some of it for each rank."""

SLOW_LATENCY, SLOW_BANDWIDTH = 20e-6, 1e9
"""Seconds, and bytes in a second: what TCP over Ethernet hardly reaches, and networks made for MPI always do."""


class Finding(NamedTuple):
    """The result of a check, and its ranks; `meshcomm info --json` has these names."""

    level: str
    about: str
    text: str
    ranks: tuple[int, ...]


CheckResults = Iterator[tuple[str, str]]
"""A level and a text."""


def findings(facts: Sequence[Facts], connections: Sequence[Connection] = ()) -> list[Finding]:
    """Return what all checks find in the *facts* of each rank; equal findings of several ranks are one."""
    hosts: dict[str, list[int]] = {}
    for rank, facts_of_rank in enumerate(facts):
        hosts.setdefault(facts_of_rank["host"], []).append(rank)
    together: dict[tuple[str, str, str], list[int]] = {}
    for subject, check in _OF_A_RANK.items():
        for rank, facts_of_rank in enumerate(facts):
            for level, text in check(facts_of_rank):
                together.setdefault((level, subject, text), []).append(rank)
    for subject, check_host in _OF_A_HOST.items():
        for ranks in hosts.values():
            for level, text in check_host([facts[rank] for rank in ranks]):
                together.setdefault((level, subject, text), []).extend(ranks)
    for level, text in _network(connections):
        together.setdefault((level, "network", text), []).extend(connections[0]["ranks"])
    merged = [Finding(*key, tuple(sorted(ranks))) for key, ranks in together.items()]
    order = [*_OF_A_RANK, *_OF_A_HOST, "network"]
    return sorted(merged, key=lambda finding: (order.index(finding.about), finding.ranks))


def line(finding: Finding, size: int) -> str:
    """Return *finding* as a line, which names the ranks unless they are all.

    >>> line(Finding(NOTE, "threads", "too many", (0, 1, 2)), 4)
    'note     threads: ranks 0-2: too many'
    """
    is_partial = len(finding.ranks) < size
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {spans(finding.ranks)}: " if is_partial else ""
    return f"{finding.level:7}  {finding.about}: {ranks}{finding.text}"


# -- of a rank --------------------------------------------------------------------------------------------------------


def _launcher_check(facts: Facts) -> CheckResults:
    yield OK, facts["launcher"] or "none, started without mpiexec: a world of one rank"


def _mpi(facts: Facts) -> CheckResults:
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
    """Return whether a launcher and a library may belong to one MPI: they are below one folder."""
    prefix = PurePath(mpiexec).parent.parent
    return not libraries or not mpiexec or any(prefix in PurePath(path).parents for path in libraries)


def _thread_level(facts: Facts) -> CheckResults:
    if facts["thread_level"] == "MULTIPLE":
        yield OK, "MULTIPLE"
    else:
        text = (
            f"{facts['thread_level']}: ranks that wait for too long cannot name the missing rank. Leave "
            "mpi4py.rc.thread_level as it is, or take an MPI with MPI_THREAD_MULTIPLE"
        )
        yield NOTE, text


def _versions(facts: Facts) -> CheckResults:
    for text in facts["versions"]:
        yield PROBLEM, text
    if not facts["versions"]:
        yield OK, "as meshcomm needs them"


def _settings(facts: Facts) -> CheckResults:
    for text in facts["misspelt"]:
        yield PROBLEM, text


def _memory(facts: Facts) -> CheckResults:
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
    small = 0 <= facts["shm"] <= MIN_SHM
    if facts["memory"] >= facts["physical"] and facts["address_space"] < 0 and not small and not facts["left"]:
        yield OK, f"{bytes_text(facts['physical'])}, no limit below it"


# -- of a host --------------------------------------------------------------------------------------------------------


def _cores(ranks: Sequence[Facts]) -> CheckResults:
    usable = set[int]().union(*(facts["processors"] for facts in ranks))
    there = ranks[0]["host_processors"]
    tight = next((facts for facts in ranks if _ranks_on_cores(facts, ranks) > len(facts["processors"])), None)
    text = f"{counted(len(ranks), 'rank')} on {counted(len(usable), 'core')}"
    if tight is None:
        yield OK, text
    elif len(ranks) <= there:
        count = _ranks_on_cores(tight, ranks)
        text = (
            f"{counted(count, 'rank')} may only use {counted(len(tight['processors']), 'core')} of {there}, and "
            "wait for each other: ask the batch system for a core per rank, or bind otherwise "
            "(mpiexec --bind-to core)"
        )
        yield PROBLEM, text
    else:
        yield NOTE, f"{text}: ranks wait for each other, and all is slow. Launch at most {counted(there, 'rank')} here"


def _ranks_on_cores(facts: Facts, ranks: Sequence[Facts]) -> int:
    """Return how many ranks may use no other cores than this one may."""
    return sum(set(other["processors"]) <= set(facts["processors"]) for other in ranks)


def _check_binding(ranks: Sequence[Facts]) -> CheckResults:
    there = ranks[0]["host_processors"]
    if 1 < len(ranks) <= there and all(len(facts["processors"]) == there for facts in ranks):
        cure = "mpiexec --bind-to core, srun --cpu-bind=cores"
        yield NOTE, f"ranks are not bound, and may move from core to core: {cure}"
    elif 1 < len(ranks) <= there:
        yield OK, "ranks are bound to cores"


def _threads(ranks: Sequence[Facts]) -> CheckResults:
    usable = set[int]().union(*(facts["processors"] for facts in ranks))
    total = sum(_threads_of(facts) for facts in ranks)
    if len(ranks) > 1 and total > max(len(usable), len(ranks)):
        share = max(1, len(usable) // len(ranks))
        text = (
            f"libraries of NumPy may use {total} threads in {len(ranks)} ranks on {counted(len(usable), 'core')}: "
            f"export OMP_NUM_THREADS={share}"
        )
        yield NOTE, text
    else:
        yield OK, f"at most {total} in all for the libraries of NumPy"


def _threads_of(facts: Facts) -> int:
    """Return how many threads the libraries of NumPy use: as many as the environment says, else one for each core."""
    counts = [
        int(text) for text in (facts["threads"].get(name, "").split(",")[0] for name in THREADS) if text.isdigit()
    ]
    return max(counts) if counts else len(facts["processors"])


def _shared_memory(ranks: Sequence[Facts]) -> CheckResults:
    for text in dict.fromkeys(facts["shared"] for facts in ranks):
        if len(ranks) == 1 or not text.startswith(("off", "error")):
            yield OK, text if len(ranks) > 1 else "one rank on this host shares none"
        elif not all(facts["shares"] for facts in ranks):
            yield NOTE, f"{text}, so MPI moves all data: unset MESHCOMM_SHARED_MEMORY to copy directly"
        else:
            yield PROBLEM, f"{text}; so MPI moves all data, and relayouts take longer. See docs/measuring.md"


# -- between hosts ----------------------------------------------------------------------------------------------------


def _network(connections: Sequence[Connection]) -> CheckResults:
    if not connections:
        return
    between = connections[0]
    within = f", within a host {_speed_text(connections[1])}" if len(connections) > 1 else ""
    text = f"between hosts {_speed_text(between)}{within}"
    if between["latency"] > SLOW_LATENCY or between["bandwidth"] < SLOW_BANDWIDTH:
        text += ". That is slow for a network of a cluster: does the MPI know the network (UCX_TLS, FI_PROVIDER)?"
        yield NOTE, text
    else:
        yield OK, text


def _speed_text(connection: Connection) -> str:
    return f"{connection['latency'] * 1e6:.1f} µs and {connection['bandwidth'] / 1e9:.2f} GB/s"


_OF_A_RANK: dict[str, Callable[[Facts], CheckResults]] = {
    "launcher": _launcher_check,
    "MPI": _mpi,
    "thread level": _thread_level,
    "versions": _versions,
    "settings": _settings,
    "memory": _memory,
}
_OF_A_HOST: dict[str, Callable[[Sequence[Facts]], CheckResults]] = {
    "cores": _cores,
    "binding": _check_binding,
    "threads": _threads,
    "shared memory": _shared_memory,
}
