"""``python -m meshcomm run``."""

import atexit
import os
import runpy
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from meshcomm.ranks import abort, watchdog
from meshcomm.ranks.mpi import MPIWorld, active_mpi, is_forked, mpi
from meshcomm.ranks.teams import Team

GRACE = 1.0  # seconds that a rank which ended waits for the others before it says so


def run(program: list[str], is_module: bool = False) -> None:
    """Run *program*, a script or a module with its arguments, as ``__main__``. Collective over COMM_WORLD.

    The job ends, and says why, when a rank fails or ends while others wait for it.
    """
    abort.install_hooks()
    _, ranks = abort.launched() or (0, 1)
    departure = None
    if ranks > 1 and abort.ends_jobs():
        departure = Departure(active_mpi().COMM_WORLD.Dup())
        watchdog.watch.peers = departure
        atexit.register(departure.wait, 0)  # after what the program itself does at exit
    sys.argv[:] = program
    try:
        _execute(program[0], is_module)
    except SystemExit as error:
        code = abort.exit_code(error)
        if code and departure is not None:
            departure.wait(code, f"it called sys.exit({error.code!r})")
        raise
    except BaseException as error:
        error.with_traceback(_own_frames(error))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(abort.exit_code(error))


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
        MPI = mpi()
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
        MPI = mpi()
        if self._over or is_forked() or MPI.Is_finalized():
            return
        sent: list[Any] = []
        everyone, pause, start = self._comm.Ibarrier(), 0.001, time.monotonic()
        while not everyone.Test():
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
            if time.monotonic() - start > GRACE and not sent:
                if code:
                    abort.end_job(reason, code)
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
        MPI = mpi()
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
    here, all_ranks = world._comm.Get_group(), mpi().COMM_WORLD.Get_group()
    try:
        return tuple(sorted(here.Translate_ranks(list(team.ranks), all_ranks)))
    finally:
        here.Free()
        all_ranks.Free()
