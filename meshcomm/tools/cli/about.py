"""The environment of the command: the MPI, the launcher, the hosts and the environment variables."""

import contextlib
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import MACHINE_FILE, this_host, usable_processors
from meshcomm.core.ranks.meshes import common_world
from meshcomm.core.ranks.mpi import library_name, mpi


class LoadedMPI(NamedTuple):
    """The MPI that mpi4py has loaded, in words."""

    mpi4py: str
    name: str
    standard: str
    thread_level: str


class Host(NamedTuple):
    """A host, the number of its ranks, and the number of cores that its ranks may use."""

    name: str
    ranks: int
    cores: int


def library() -> LoadedMPI:
    """Return which MPI mpi4py has loaded. ``MeshError`` if there is none."""
    MPI = mpi()
    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = next(name for name in levels if getattr(MPI, f"THREAD_{name}") == MPI.Query_thread())
    return LoadedMPI(metadata.version("mpi4py"), library_name(), "{}.{}".format(*MPI.Get_version()), level)


def settings() -> dict[str, str]:
    """Return the environment variables of meshcomm that are set."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("MESHCOMM_")}


def processor() -> str:
    """Return the name of the processor, from Linux if possible."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or "unknown processor"


def free_memory() -> int:
    """Return the number of bytes of memory that are free for new arrays on this host, from Linux if possible."""
    with contextlib.suppress(OSError, StopIteration), open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def loaded_modules() -> tuple[str, ...]:
    """Return the environment modules that are loaded, as ``module load`` takes them."""
    return tuple(name for name in os.environ.get("LOADEDMODULES", "").split(":") if name)


def forget_machine_file() -> None:
    """Plan by the default constants in this process, not by those of the file that ``MESHCOMM_MACHINE`` names."""
    os.environ.pop(MACHINE_FILE, None)


def connect_all() -> Communicator:
    """Return a new communicator over COMM_WORLD, which the caller frees. Collective over COMM_WORLD."""
    world = common_world()
    return world.connect(range(world.size))


def gather_hosts(communicator: Communicator) -> list[Host]:
    """Return the hosts of the ranks of *communicator*, in the order of their first ranks. Collective."""
    return count_by_host(communicator.allgather_json((this_host(), sorted(usable_processors()))))


def count_by_host(hosts_and_processors: Sequence[tuple[str, list[int]]]) -> list[Host]:
    """Return the hosts of ranks, from the host of each rank and the processors that it may use.

    >>> count_by_host([("a 1", [0, 1]), ("b 2", [0]), ("a 1", [1, 2])])
    [Host(name='a', ranks=2, cores=3), Host(name='b', ranks=1, cores=1)]
    """
    processors_by_host: dict[str, set[int]] = {}
    for host, processors in hosts_and_processors:
        processors_by_host.setdefault(host, set()).update(processors)
    hosts = [host for host, _ in hosts_and_processors]
    return [Host(host.partition(" ")[0], hosts.count(host), len(cores)) for host, cores in processors_by_host.items()]
