"""``python -m meshcomm info``."""

import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import meshcomm
from meshcomm import _kernels
from meshcomm.errors import MeshError
from meshcomm.layouts.machine import CONSTANTS, Machine
from meshcomm.ranks import abort, rendezvous
from meshcomm.ranks.hosts import MACHINE_FILE
from meshcomm.ranks.mpi import active_mpi, mpi


def info() -> int:
    """Print what is known about Python, MPI and the ranks once, and test a small relayout. Collective.

    Return 0, or 1 if something does not work.
    """
    rank, size = abort.launched() or (0, 1)
    rows = _local_rows()
    try:
        MPI = active_mpi()
    except MeshError as error:
        if rank == 0:
            print_rows(rows)
            print(f"\nno MPI: {error}")
        return 1
    comm = MPI.COMM_WORLD
    hosts = hosts_and_cores(comm)
    problem = _self_test(comm)
    problems = comm.allgather(problem)
    machine = _machine_rows()
    if comm.rank == rank == 0:
        print_rows(
            [
                *rows,
                *_mpi_rows(),
                *rank_rows(hosts),
                *machine,
                ("shared memory", rendezvous.describe()),
                *_environment_rows(),
                _verdict(problems),
            ]
        )
    if comm.size < size:
        if rank == 0:
            print(f"\n{alone_text(size)}")
        return 1
    return int(any(problems))


def hosts_and_cores(comm: Any) -> list[tuple[str, int]]:
    """Return the host of each rank, and how many cores it may use there. Collective."""
    hosts: list[tuple[str, int]] = comm.allgather((mpi().Get_processor_name(), len(os.sched_getaffinity(0))))
    return hosts


def alone_text(size: int) -> str:
    return (
        f"mpiexec started {size} processes, but each of them is alone in its own MPI: this mpiexec belongs to another "
        "MPI than the one that mpi4py has loaded. Use the mpiexec of that one."
    )


Rows = list[tuple[str, str]]


def print_rows(rows: Rows) -> None:
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
    import mpi4py

    MPI = mpi()
    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = next(name for name in levels if getattr(MPI, f"THREAD_{name}") == MPI.Query_thread())
    library = " ".join(MPI.Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split())
    return [
        ("mpi4py", mpi4py.__version__),
        ("MPI", "{}, of MPI standard {}.{}".format(library, *MPI.Get_version())),
        ("thread level", level),
        ("launcher", _launcher()),
    ]


def _launcher() -> str:
    known = {
        "OMPI_COMM_WORLD_SIZE": "mpiexec of Open MPI",
        "SLURM_STEP_ID": "srun of Slurm",
        "MPI_LOCALNRANKS": "mpiexec of MPICH (Hydra)",
        "PMI_SIZE": "one that speaks PMI",
    }
    return next((name for variable, name in known.items() if variable in os.environ), "none, started without mpiexec")


def rank_rows(hosts: list[tuple[str, int]]) -> Rows:
    ranks = Counter(name for name, _ in hosts)
    cores = dict(hosts)
    rows = [("ranks", f"{len(hosts)} on {len(ranks)} host{'s' * (len(ranks) > 1)}")]
    for name, count in list(ranks.items())[:16]:
        text = f"{count} rank{'s' * (count > 1)}, {cores[name]} core{'s' * (cores[name] > 1)}"
        oversubscribed = "; more ranks than cores: expect waits, and no speed" if count > cores[name] else ""
        rows.append((f"  {name}", text + oversubscribed))
    if len(ranks) > 16:
        rows.append(("  ...", f"and {len(ranks) - 16} more hosts"))
    return rows


def _machine_rows() -> Rows:
    """Return by what relayouts are planned. Collective."""
    path = os.environ.get(MACHINE_FILE, "")
    try:
        machine = meshcomm.machine_of(meshcomm.create_mesh())
    except MeshError as error:
        return [("cost model", str(error))]
    source = f"{path}, which {MACHINE_FILE} names" if path else "defaults; see python -m meshcomm calibrate"
    return [
        ("nodes", _nodes(machine)),
        ("cost model", source),
        *((f"  {name}", unit_cost(name, getattr(machine, name))) for name in CONSTANTS),
    ]


def _nodes(machine: Machine) -> str:
    """Say which ranks share a node, as MPI sees it."""
    if machine.one_node:
        return "1"
    if isinstance(machine.nodes, int):
        return f"{machine.nodes} ranks each, in order"
    counts = Counter(machine.nodes)
    return f"{len(counts)}, of {min(counts.values())} to {max(counts.values())} ranks"


def unit_cost(name: str, seconds: float) -> str:
    """Return what one unit costs for people.

    >>> _unit_cost("alpha_within", 1.2e-6), _unit_cost("gamma", 1e-10), _unit_cost("gamma", 0)
    ('1.20 µs', '0.100 ns per byte (10.0 GB/s)', '0.000 ns per byte')
    """
    if name.startswith(("wait", "alpha")):
        return f"{seconds * 1e6:.2f} µs"
    rate = f" ({1e-9 / seconds:.1f} GB/s)" if seconds else ""
    return f"{seconds * 1e9:.3f} ns per byte{rate}"


def _environment_rows() -> Rows:
    return [(name, value) for name, value in sorted(os.environ.items()) if name.startswith("MESHCOMM_")]


def _verdict(problems: list[str]) -> tuple[str, str]:
    bad = [f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem]
    return "self-test", f"relayout over {len(problems)} rank{'s' * (len(problems) > 1)}: {'; '.join(bad) or 'ok'}"


def _self_test(comm: Any) -> str:
    """Return what is wrong with a relayout from rows to columns and back on this rank; '' if nothing. Collective."""
    try:
        mesh = meshcomm.create_mesh([("x", comm.size)])
        rows = meshcomm.Layout(["x", meshcomm.UNSHARDED], mesh)
        columns = meshcomm.Layout([meshcomm.UNSHARDED, "x"], mesh)
        shape = (2 * comm.size + 1, 3 * comm.size - 1)
        array: Any = np.arange(shape[0] * shape[1]).reshape(shape)
        there = meshcomm.relayout(meshcomm.distribute(array, rows), columns)
        back = meshcomm.relayout(there, rows)
        for tensor in (there, back):
            block: Any = tensor.local
            if not np.array_equal(block, array[tensor.layout.block_slices(shape, comm.rank)]):
                return f"wrong values in layout {tensor.layout.sharding_specs}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
