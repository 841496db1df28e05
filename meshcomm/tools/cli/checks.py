"""What ``python -m meshcomm info`` thinks of the facts: each check in a line, with the cure. Pure functions."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from meshcomm.core._arguments import counted
from meshcomm.core._units import bytes_text
from meshcomm.core.failures.messages import spans
from meshcomm.tools.cli.facts import THREADS, Connection, Facts

OK, NOTE, PROBLEM = "ok", "note", "problem"

LEAST_SHM = 2**26
"""Bytes: what a container has if nobody asks for more. An MPI needs some of it for each rank."""

SLOW_LATENCY, SLOW_BANDWIDTH = 20e-6, 1e9
"""Seconds, and bytes in a second: what TCP over Ethernet hardly reaches, and networks made for MPI always do."""


class Finding(NamedTuple):
    """What a check found, and on which ranks."""

    level: str
    about: str
    text: str
    ranks: tuple[int, ...]


Found = Iterator[tuple[str, str]]
"""A level and a text."""


def findings(facts: Sequence[Facts], connections: Sequence[Connection] = ()) -> list[Finding]:
    """Return what all checks find in the *facts* of each rank; equal findings of several ranks are one."""
    hosts: dict[str, list[int]] = {}
    for rank, its in enumerate(facts):
        hosts.setdefault(its["host"], []).append(rank)
    together: dict[tuple[str, str, str], list[int]] = {}
    for about, check in _OF_A_RANK.items():
        for rank, its in enumerate(facts):
            for level, text in check(its):
                together.setdefault((level, about, text), []).append(rank)
    for about, check_host in _OF_A_HOST.items():
        for ranks in hosts.values():
            for level, text in check_host([facts[rank] for rank in ranks]):
                together.setdefault((level, about, text), []).extend(ranks)
    for level, text in _network(connections):
        together.setdefault((level, "network", text), []).extend(connections[0]["ranks"])
    found = [Finding(*key, tuple(sorted(ranks))) for key, ranks in together.items()]
    order = [*_OF_A_RANK, *_OF_A_HOST, "network"]
    return sorted(found, key=lambda finding: (order.index(finding.about), finding.ranks))


def line(finding: Finding, size: int) -> str:
    """Return *finding* as a line, which names the ranks unless they are all.

    >>> line(Finding(NOTE, "threads", "too many", (0, 1, 2)), 4)
    'note     threads: ranks 0-2: too many'
    """
    some = len(finding.ranks) < size
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {spans(finding.ranks)}: " if some else ""
    return f"{finding.level:7}  {finding.about}: {ranks}{finding.text}"


# -- of a rank --------------------------------------------------------------------------------------------------------


def _launcher(its: Facts) -> Found:
    yield OK, its["launcher"] or "none, started without mpiexec: a world of one rank"


def _mpi(its: Facts) -> Found:
    ok = True
    if len(its["libraries"]) > 1:
        ok = False
        text = (
            f"two MPIs are loaded, {' and '.join(its['libraries'])}: they know nothing of each other. "
            "Load one module, or pip uninstall one of them"
        )
        yield PROBLEM, text
    if len(its["wheels"]) > 1:
        ok = False
        text = (
            f"the packages {' and '.join(its['wheels'])} are both installed: mpiexec is that of one, and "
            "mpi4py loads one. pip uninstall the other"
        )
        yield PROBLEM, text
    if not its["launched"] and not _together(its["mpiexec"], its["libraries"]):
        ok = False
        text = (
            f"mpiexec on PATH is {its['mpiexec']}, but the MPI is {its['libraries'][0]}: if ranks are alone, use "
            "the mpiexec of this MPI"
        )
        yield NOTE, text
    if ok:
        yield OK, its["mpi"]


def _together(mpiexec: str, libraries: Sequence[str]) -> bool:
    """Return whether a launcher and a library may belong to one MPI: they are below one folder."""
    prefix = PurePath(mpiexec).parent.parent
    return not libraries or not mpiexec or any(prefix in PurePath(path).parents for path in libraries)


def _thread_level(its: Facts) -> Found:
    if its["thread_level"] == "MULTIPLE":
        yield OK, "MULTIPLE"
    else:
        text = (
            f"{its['thread_level']}: ranks that wait for too long cannot name the missing rank. Leave "
            "mpi4py.rc.thread_level as it is, or take an MPI with MPI_THREAD_MULTIPLE"
        )
        yield NOTE, text


def _versions(its: Facts) -> Found:
    for text in its["versions"]:
        yield PROBLEM, text
    if not its["versions"]:
        yield OK, "as meshcomm needs them"


def _settings(its: Facts) -> Found:
    for text in its["misspelt"]:
        yield PROBLEM, text


def _memory(its: Facts) -> Found:
    if its["memory"] < its["physical"]:
        text = (
            f"the control group allows {bytes_text(its['memory'])} of the {bytes_text(its['physical'])} of this host "
            "to its ranks together: ask the batch system for what you need (--mem)"
        )
        yield NOTE, text
    if its["address_space"] >= 0:
        text = (
            f"ulimit -v allows {bytes_text(its['address_space'])} to each rank: a part of it is reserved to share. "
            "ulimit -v unlimited"
        )
        yield NOTE, text
    if 0 <= its["shm"] <= LEAST_SHM:
        text = (
            f"/dev/shm has only {bytes_text(its['shm'])}, which an MPI may need: in a container, run it with "
            "--shm-size=1g"
        )
        yield NOTE, text
    if its["left"]:
        text = (
            f"killed jobs of yours have left {bytes_text(its['left'])} in /dev/shm: python -m meshcomm clean removes "
            "that, on this host"
        )
        yield NOTE, text
    small = 0 <= its["shm"] <= LEAST_SHM
    if its["memory"] >= its["physical"] and its["address_space"] < 0 and not small and not its["left"]:
        yield OK, f"{bytes_text(its['physical'])}, no limit below it"


# -- of a host --------------------------------------------------------------------------------------------------------


def _cores(ranks: Sequence[Facts]) -> Found:
    usable = set[int]().union(*(its["processors"] for its in ranks))
    there = ranks[0]["host_processors"]
    tight = next((its for its in ranks if _sharing(its, ranks) > len(its["processors"])), None)
    text = f"{counted(len(ranks), 'rank')} on {counted(len(usable), 'core')}"
    if tight is None:
        yield OK, text
    elif len(ranks) <= there:
        count = _sharing(tight, ranks)
        text = (
            f"{counted(count, 'rank')} may only use {counted(len(tight['processors']), 'core')} of {there}, and "
            "wait for each other: ask the batch system for a core per rank, or bind otherwise "
            "(mpiexec --bind-to core)"
        )
        yield PROBLEM, text
    else:
        yield NOTE, f"{text}: ranks wait for each other, and all is slow. Launch at most {counted(there, 'rank')} here"


def _sharing(its: Facts, ranks: Sequence[Facts]) -> int:
    """Return how many ranks may use no other cores than this one may."""
    return sum(set(other["processors"]) <= set(its["processors"]) for other in ranks)


def _binding(ranks: Sequence[Facts]) -> Found:
    there = ranks[0]["host_processors"]
    if 1 < len(ranks) <= there and all(len(its["processors"]) == there for its in ranks):
        cure = "mpiexec --bind-to core, srun --cpu-bind=cores"
        yield NOTE, f"ranks are not bound, and may move from core to core: {cure}"
    elif 1 < len(ranks) <= there:
        yield OK, "ranks are bound to cores"


def _threads(ranks: Sequence[Facts]) -> Found:
    usable = set[int]().union(*(its["processors"] for its in ranks))
    total = sum(_threads_of(its) for its in ranks)
    if len(ranks) > 1 and total > max(len(usable), len(ranks)):
        share = max(1, len(usable) // len(ranks))
        text = (
            f"libraries of NumPy may use {total} threads in {len(ranks)} ranks on {counted(len(usable), 'core')}: "
            f"export OMP_NUM_THREADS={share}"
        )
        yield NOTE, text
    else:
        yield OK, f"at most {total} in all for the libraries of NumPy"


def _threads_of(its: Facts) -> int:
    """Return how many threads the libraries of NumPy use: as many as they are told, else one for each core."""
    told = [int(text) for text in (its["threads"].get(name, "").split(",")[0] for name in THREADS) if text.isdigit()]
    return max(told) if told else len(its["processors"])


def _shared_memory(ranks: Sequence[Facts]) -> Found:
    for text in dict.fromkeys(its["shared"] for its in ranks):
        if len(ranks) == 1 or not text.startswith(("off", "error")):
            yield OK, text if len(ranks) > 1 else "one rank on this host shares none"
        elif not all(its["shares"] for its in ranks):
            yield NOTE, f"{text}, so MPI moves all data: unset MESHCOMM_SHARED_MEMORY to copy directly"
        else:
            yield PROBLEM, f"{text}; so MPI moves all data, and relayouts take longer. See docs/measuring.md"


# -- between hosts ----------------------------------------------------------------------------------------------------


def _network(connections: Sequence[Connection]) -> Found:
    if not connections:
        return
    between = connections[0]
    within = f", within a host {_speed(connections[1])}" if len(connections) > 1 else ""
    text = f"between hosts {_speed(between)}{within}"
    if between["latency"] > SLOW_LATENCY or between["bandwidth"] < SLOW_BANDWIDTH:
        text += ". That is slow for a network of a cluster: does the MPI know the network (UCX_TLS, FI_PROVIDER)?"
        yield NOTE, text
    else:
        yield OK, text


def _speed(its: Connection) -> str:
    return f"{its['latency'] * 1e6:.1f} µs and {its['bandwidth'] / 1e9:.2f} GB/s"


_OF_A_RANK: dict[str, Callable[[Facts], Found]] = {
    "launcher": _launcher,
    "MPI": _mpi,
    "thread level": _thread_level,
    "versions": _versions,
    "settings": _settings,
    "memory": _memory,
}
_OF_A_HOST: dict[str, Callable[[Sequence[Facts]], Found]] = {
    "cores": _cores,
    "binding": _binding,
    "threads": _threads,
    "shared memory": _shared_memory,
}
