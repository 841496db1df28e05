"""``python -m meshcomm info``."""

import platform
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

import meshcomm
from meshcomm import _kernels
from meshcomm.errors import MeshError
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.machine import CONSTANTS, DISK_CONSTANTS, Machine
from meshcomm.ranks import abort, about, rendezvous
from meshcomm.ranks.about import Host
from meshcomm.ranks.hosts import MACHINE_FILE
from meshcomm.ranks.mpi import active_mpi

Row: TypeAlias = tuple[str, str]  # a label and its value
Rows: TypeAlias = list[Row]

MOST_HOSTS = 16
"""Hosts. If there are more, only this many are listed."""


def info() -> int:
    """Print, once, facts about Python, MPI and the ranks, and test a small relayout. Collective over COMM_WORLD.

    Return 0, or 1 if something does not work.
    """
    rank, size = abort.launched() or (0, 1)
    rows = _local_rows()
    try:
        active_mpi()
    except MeshError as error:
        if rank == 0:
            print_rows(rows)
            print(f"\nno MPI: {error}")
        return 1
    communicator = about.connect_all()
    hosts = about.gather_hosts(communicator)
    problem = _self_test(communicator.rank, communicator.size)
    problems = [text.decode() for text in communicator.allgather(problem.encode(errors="backslashreplace"))]
    machine = _machine_rows()
    if communicator.rank == rank == 0:
        rows += [*_mpi_rows(), *rank_rows(hosts), *machine, ("shared memory", rendezvous.describe())]
        print_rows([*rows, *about.settings().items(), _verdict(problems)])
    together = communicator.size >= size
    communicator.free()
    if not together and rank == 0:
        print(f"\n{alone_text(size)}")
    return int(any(problems) or not together)


def alone_text(size: int) -> str:
    """Return the message for processes of one launcher that do not find each other."""
    return (
        f"mpiexec started {size} processes, but each of them is alone in its own MPI: this mpiexec belongs to another "
        "MPI than the one that mpi4py has loaded. Use the mpiexec of that one."
    )


def print_rows(rows: Sequence[Row]) -> None:
    """Print labels and values in two columns."""
    width = max(len(label) for label, _ in rows)
    print("\n".join(f"{label:{width}}  {value}" for label, value in rows))


def _local_rows() -> Rows:
    kernel = Path(_kernels.__file__)
    built = time.strftime("%Y-%m-%d %H:%M", time.localtime(kernel.stat().st_mtime))
    return [
        ("meshcomm", f"{meshcomm.__version__} in {kernel.parent}"),
        ("kernel", f"{kernel.name}, compiled {built}"),
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("NumPy", np.__version__),
    ]


def _mpi_rows() -> Rows:
    found = about.library()
    return [
        ("mpi4py", found.mpi4py),
        ("MPI", f"{found.name}, of MPI standard {found.standard}"),
        ("thread level", found.thread_level),
        ("launcher", about.launcher() or "none, started without mpiexec"),
    ]


def rank_rows(hosts: Sequence[Host]) -> Rows:
    """Return rows that show how many ranks and cores each host has."""
    count = sum(host.ranks for host in hosts)
    rows = [("ranks", f"{count} on {_counted(len(hosts), 'host')}")]
    for host in hosts[:MOST_HOSTS]:
        slow = "; more ranks than cores: ranks wait for each other, and all is slow" if host.ranks > host.cores else ""
        rows.append((f"  {host.name}", f"{_counted(host.ranks, 'rank')}, {_counted(host.cores, 'core')}{slow}"))
    if len(hosts) > MOST_HOSTS:
        rows.append(("  ...", f"and {len(hosts) - MOST_HOSTS} more hosts"))
    return rows


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _machine_rows() -> Rows:
    """Return rows that show the cost model, by which relayouts are planned. Collective over COMM_WORLD."""
    path = about.settings().get(MACHINE_FILE, "")
    try:
        machine = meshcomm.machine_of(meshcomm.create_mesh())
    except MeshError as error:
        return [("cost model", str(error))]
    source = f"{path}, which {MACHINE_FILE} names" if path else "defaults; see python -m meshcomm calibrate"
    return [
        ("nodes", _nodes(machine)),
        ("cost model", source),
        *((f"  {name}", unit_cost(name, getattr(machine, name))) for name in (*CONSTANTS, *DISK_CONSTANTS)),
    ]


def _nodes(machine: Machine) -> str:
    """Return how many nodes there are, and how many ranks each has."""
    if machine.one_node:
        return "1"
    if isinstance(machine.nodes, int):
        return f"{machine.nodes} ranks each, in order"
    counts = Counter(machine.nodes)
    return f"{len(counts)}, of {min(counts.values())} to {max(counts.values())} ranks"


def unit_cost(name: str, seconds: float) -> str:
    """Return what one unit of the constant *name* costs, for people.

    >>> unit_cost("alpha_within", 1.2e-6), unit_cost("gamma", 1e-10), unit_cost("gamma", 0)
    ('1.20 µs', '0.100 ns per byte (10.0 GB/s)', '0.000 ns per byte')
    """
    if name.startswith(("wait", "alpha")):
        return f"{seconds * 1e6:.2f} µs"
    rate = f" ({1e-9 / seconds:.1f} GB/s)" if seconds else ""
    return f"{seconds * 1e9:.3f} ns per byte{rate}"


def _verdict(problems: Sequence[str]) -> Row:
    bad = [f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem]
    return "self-test", f"relayout over {_counted(len(problems), 'rank')}: {'; '.join(bad) or 'ok'}"


def _self_test(rank: int, size: int) -> str:
    """Relayout an array from rows to columns and back; return what is wrong on this rank, or ''. Collective."""
    try:
        mesh = meshcomm.create_mesh([("x", size)])
        rows = meshcomm.Layout(["x", meshcomm.UNSHARDED], mesh)
        columns = meshcomm.Layout([meshcomm.UNSHARDED, "x"], mesh)
        shape = (2 * size + 1, 3 * size - 1)
        array = np.arange(shape[0] * shape[1]).reshape(shape)
        there = meshcomm.relayout(meshcomm.distribute(array, rows), columns)
        back = meshcomm.relayout(there, rows)
        for tensor in (there, back):
            expected = array[tensor.layout.block_slices(shape, rank)]
            if tensor.local is None or not np.array_equal(tensor.local, expected):
                return f"wrong values in layout {specs_text(tensor.layout.sharding_specs)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
