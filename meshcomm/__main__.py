"""The command ``python -m meshcomm``: `run` programs, print `info` about the MPI here, `calibrate` the cost model.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    mpiexec -n 4 python -m meshcomm info
    mpiexec -n 4 python -m meshcomm calibrate machine.json
"""

import argparse
import atexit
import errno
import json
import os
import platform
import runpy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import meshcomm
from meshcomm import _kernels, groups, guard, shared
from meshcomm.calibrate import BETWEEN, WITHIN, Calibration, Fit
from meshcomm.calibrate import calibrate as measured
from meshcomm.context import place_in
from meshcomm.errors import MeshError
from meshcomm.groups import MACHINE_FILE, MPIWorld, Team
from meshcomm.machine import CONSTANTS, Machine

GRACE = 1.0  # seconds that a rank which ended waits for the others before it says so


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments*, by default those of the process, and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "info":
        return info()
    if options.command == "calibrate":
        return calibrate(options.file)
    if options.command == "run":
        if not options.program:
            parser.error("run needs a script, or -m and a module")
        run(options.program, options.module)
        return 0
    parser.print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m meshcomm",
        description="Meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.",
    )
    parser.add_argument("--version", action="version", version=f"meshcomm {meshcomm.__version__}")
    commands = parser.add_subparsers(dest="command", title="commands")
    run_parser = commands.add_parser(
        "run",
        help="run a Python program; if one rank fails or ends early, the whole job ends",
        description="Run a Python program, to be used as: mpiexec -n 4 python -m meshcomm run script.py args... "
        "An exception that nobody catches, sys.exit with an error, and a rank that ends while others wait for it in a "
        "call of meshcomm end the whole job and are reported.",
        usage="python -m meshcomm run [-h] (script.py | -m module) [args ...]",
    )
    run_parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a script")
    run_parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    commands.add_parser(
        "info",
        help="print what is known about Python, MPI and the ranks, and test a small relayout",
        description="Print what is known about Python, MPI and the ranks, and test a small relayout over them. "
        "Alone, or as: mpiexec -n 4 python -m meshcomm info",
    )
    calibrate_parser = commands.add_parser(
        "calibrate",
        help="measure what moving bytes costs here, by which relayouts are planned",
        description="Measure what moving bytes costs within a node and between nodes, by which relayouts are planned, "
        "with ranks placed as those of the programs to come: mpiexec -n 4 python -m meshcomm calibrate machine.json",
    )
    calibrate_parser.add_argument(
        "file", nargs="?", help=f"what to write for {MACHINE_FILE}; without it the constants are only printed"
    )
    return parser


# -- run --------------------------------------------------------------------------------------------------------------


def run(program: list[str], is_module: bool = False) -> None:
    """Run *program*, a script or a module with its arguments, as ``__main__``. Collective over COMM_WORLD.

    The job ends, and says why, when a rank fails or ends while others wait for it.
    """
    guard.install_hooks()
    _, ranks = guard.launched() or (0, 1)
    departure = None
    if ranks > 1 and guard.ends_jobs():
        departure = Departure(groups.active_mpi().COMM_WORLD.Dup())
        guard.watch.peers = departure
        atexit.register(departure.wait, 0)  # after what the program itself does at exit
    sys.argv[:] = program
    try:
        _execute(program[0], is_module)
    except SystemExit as error:
        code = guard.exit_code(error)
        if code and departure is not None:
            departure.wait(code, f"it called sys.exit({error.code!r})")
        raise
    except BaseException as error:
        error.with_traceback(_own_frames(error))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(guard.exit_code(error))


def _execute(program: str, is_module: bool) -> None:
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not Path(program).exists():
        print(f"meshcomm: can't open file {program!r}: there is none in {os.getcwd()}", file=sys.stderr)
        sys.exit(2)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    runpy.run_path(program, run_name="__main__")


def _own_frames(error: BaseException) -> Any:
    """Return the traceback of *error* from where the program itself begins."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, *_RUNPY):
        traceback = traceback.tb_next
    return traceback


_RUNPY = (runpy.__file__, "<frozen runpy>")


class Departure:
    """How ranks learn that another one has ended, while they wait for it in a collective call.

    A rank that ends waits for the others. After a grace period it tells them how many calls it has made on each set of
    ranks. Whoever waits in a call that the ended rank has never made waits in vain. To compute for long is no error,
    nor to wait for another rank after the ended one has done its part.
    """

    _TAG = 1

    def __init__(self, comm: Any) -> None:
        MPI = groups.mpi()
        self._comm = comm  # nothing else communicates on it
        self._polls = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, ...], list[int]] = {}
        self._teams: WeakKeyDictionary[Team, tuple[tuple[int, ...], list[int]]] = WeakKeyDictionary()
        self._ended: dict[int, dict[tuple[int, ...], int]] = {}
        self._over = False

    def enter(self, team: Team) -> None:
        """Count a collective call of this rank on *team*. Local."""
        known = self._teams.get(team)
        if known is None:
            ranks = _world_ranks(team)
            known = self._teams[team] = ranks, self._counts.setdefault(ranks, [0])
        known[1][0] += 1

    def lost(self, team: Team) -> str | None:
        """Say which rank of *team* has ended without the call that this rank is in, or None. Local."""
        with self._lock:
            if self._over or not self._polls:
                return None
            self._receive()
            ranks, (count,) = self._teams[team]
            for rank, counts in self._ended.items():
                if rank in ranks and counts.get(ranks, 0) < count:
                    return f"rank {rank} has ended without it"
        return None

    def wait(self, code: int, reason: str = "") -> None:
        """Wait until every rank has come to its end; with a *code* end the job if they do not. Collective."""
        MPI = groups.mpi()
        if self._over or groups._forked or MPI.Is_finalized():
            return
        sent: list[Any] = []
        everyone, pause, start = self._comm.Ibarrier(), 0.001, time.monotonic()
        while not everyone.Test():
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            if time.monotonic() - start > GRACE and not sent:
                if code:
                    guard.end_job(reason, code)
                sent = self._tell()
        with self._lock:
            self._over = True
            self._collect([rank for rank, told in enumerate(self._comm.allgather(bool(sent))) if told])
        MPI.Request.Waitall(sent)
        self._comm.Free()

    def _tell(self) -> list[Any]:
        counts = {ranks: count for ranks, (count,) in self._counts.items()}
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        return [self._comm.isend(counts, rank, self._TAG) for rank in others]

    def _receive(self) -> None:
        MPI = groups.mpi()
        status = MPI.Status()
        while message := self._comm.improbe(MPI.ANY_SOURCE, self._TAG, status):
            self._ended[status.source] = message.recv()

    def _collect(self, senders: Iterable[int]) -> None:
        """Receive what is still on its way: MPI wants to end without messages."""
        for rank in senders:
            if rank != self._comm.rank and rank not in self._ended:
                self._ended[rank] = self._comm.recv(None, rank, self._TAG)


def _world_ranks(team: Team) -> tuple[int, ...]:
    """Return the ranks of *team* in COMM_WORLD, ascending; none for a simulated team."""
    world = team.world
    if not isinstance(world, MPIWorld):
        return ()
    here, all_ranks = world._comm.Get_group(), groups.mpi().COMM_WORLD.Get_group()
    try:
        return tuple(sorted(here.Translate_ranks(list(team.ranks), all_ranks)))
    finally:
        here.Free()
        all_ranks.Free()


# -- info -------------------------------------------------------------------------------------------------------------


def info() -> int:
    """Print what is known about Python, MPI and the ranks once, and test a small relayout. Collective.

    Return 0, or 1 if something does not work.
    """
    rank, size = guard.launched() or (0, 1)
    rows = _local_rows()
    try:
        MPI = groups.active_mpi()
    except MeshError as error:
        if rank == 0:
            _print(rows)
            print(f"\nno MPI: {error}")
        return 1
    comm = MPI.COMM_WORLD
    hosts = _hosts(comm)
    problem = _self_test(comm)
    problems = comm.allgather(problem)
    machine = _machine_rows()
    if comm.rank == rank == 0:
        _print(
            [
                *rows,
                *_mpi_rows(),
                *_rank_rows(hosts),
                *machine,
                ("shared memory", shared.describe()),
                *_environment_rows(),
                _verdict(problems),
            ]
        )
    if comm.size < size:
        if rank == 0:
            print(f"\n{_alone(size)}")
        return 1
    return int(any(problems))


def _hosts(comm: Any) -> list[tuple[str, int]]:
    """Return the host of each rank, and how many cores it may use there. Collective."""
    hosts: list[tuple[str, int]] = comm.allgather((groups.mpi().Get_processor_name(), len(os.sched_getaffinity(0))))
    return hosts


def _alone(size: int) -> str:
    return (
        f"mpiexec started {size} processes, but each of them is alone in its own MPI: this mpiexec belongs to another "
        "MPI than the one that mpi4py has loaded. Use the mpiexec of that one."
    )


Rows = list[tuple[str, str]]


def _print(rows: Rows) -> None:
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

    MPI = groups.mpi()
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


def _rank_rows(hosts: list[tuple[str, int]]) -> Rows:
    ranks = Counter(name for name, _ in hosts)
    cores = dict(hosts)
    rows = [("ranks", f"{len(hosts)} on {len(ranks)} host{'s' * (len(ranks) > 1)}")]
    for name, count in list(ranks.items())[:16]:
        text = f"{count} rank{'s' * (count > 1)}, {cores[name]} core{'s' * (cores[name] > 1)}"
        crowded = "; more ranks than cores: expect waits, and no speed" if count > cores[name] else ""
        rows.append((f"  {name}", text + crowded))
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
        *((f"  {name}", _unit_cost(name, getattr(machine, name))) for name in CONSTANTS),
    ]


def _nodes(machine: Machine) -> str:
    """Say which ranks share a node, as MPI sees it."""
    if machine.one_node:
        return "1"
    if isinstance(machine.nodes, int):
        return f"{machine.nodes} ranks each, in order"
    counts = Counter(machine.nodes)
    return f"{len(counts)}, of {min(counts.values())} to {max(counts.values())} ranks"


def _unit_cost(name: str, seconds: float) -> str:
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


# -- calibrate --------------------------------------------------------------------------------------------------------


def calibrate(file: str | None) -> int:
    """Measure and print the constants of the cost model, and write them to *file* if it is given. Collective.

    Return 0, or 1 if that is not possible.
    """
    rank, size = guard.launched() or (0, 1)
    os.environ.pop(MACHINE_FILE, None)  # it may name a file that is to be written yet
    try:
        place = place_in(meshcomm.create_mesh())
        assert place is not None
        team = place.team
        if len(team.ranks) < size:
            raise MeshError(_alone(size))
        with _Output(file if team.rank == 0 else None) as output:
            guard.agree(team, "calibrate", output.error)
            found, hosts = measured(team), _hosts(groups.mpi().COMM_WORLD)
            if team.rank == 0:
                _print([*_rank_rows(hosts), *_calibration_rows(found)])
            constants = {name: float(f"{value:.4g}") for name, value in found.constants.items()}
            output.write(json.dumps(constants, indent=2) + "\n")
            guard.agree(team, "the end of calibrate", output.error)
    except MeshError as error:
        if rank == 0:
            print(f"meshcomm: {error}", file=sys.stderr)
        return 1
    if rank == 0 and file is not None:
        print(f"\nwritten to {file}; programs plan by it with {MACHINE_FILE}={file}")
    return 0


class _Output:
    """A file that is there, whole, after `write`, and not at all or as it was before; None is no file. Local.

    What goes wrong is in *error*, for all ranks to agree on.
    """

    def __init__(self, path: str | None) -> None:
        self.error: MeshError | None = None
        self._path = path
        self._unfinished = Path(f"{path}.{os.getpid()}.part")

    def __enter__(self) -> "_Output":
        self._try(self._begin)  # now, not after all has been measured
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._unfinished.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        """Write *text* to the file, or set *error*. Local."""
        self._try(lambda: self._unfinished.write_text(text))
        if self.error is None:
            self._try(lambda: self._unfinished.replace(str(self._path)))

    def _begin(self) -> None:
        self._unfinished.write_text("")
        if Path(str(self._path)).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _try(self, action: Callable[[], object]) -> None:
        if self._path is None:
            return
        try:
            action()
        except OSError as error:
            self.error = MeshError(f"{self._path} cannot be written: {error.strerror}")


def _calibration_rows(found: Calibration) -> Rows:
    rows: Rows = []
    default = Machine()
    for where, names, fit, why_not in (
        ("within a node", WITHIN, found.within, "no node has two ranks"),
        ("between nodes", BETWEEN, found.between, "all ranks are on one node"),
        ("in memory", ("gamma",), found.memory, ""),
    ):
        rows.append((where, _quality(fit) if fit is not None else f"not measured, {why_not}: these are defaults"))
        constants = default if fit is None else replace(default, **fit.constants)
        rows += [(f"  {name}", _unit_cost(name, getattr(constants, name))) for name in names]
    return rows


def _quality(fit: Fit) -> str:
    return f"fits {fit.measured} measurements within a factor of {fit.typical:.2f}, at worst {fit.worst:.2f}"


if __name__ == "__main__":
    sys.exit(main())
