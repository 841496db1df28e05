"""Departures: how ranks that wait in a collective call learn that another rank has ended.

``python -m meshcomm run`` uses this. A rank that ends waits for the others. After a grace period it tells them how
many collective calls it has made on each set of ranks. If another rank waits in a call that the ended rank has not
made, it waits in vain, and the watchdog ends the job. Two things are no error: to compute for long, and to wait for a
third rank in a call that the ended rank has made.
"""

import atexit
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from meshcomm.ranks import abort, watchdog
from meshcomm.ranks.mpi import MPIWorld, active_mpi, is_forked, mpi
from meshcomm.ranks.teams import Team

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

GRACE = 1.0
"""Seconds. A rank that has ended waits this long for the others before it tells them how many calls it has made."""

_TAG = 1


def watch_departures() -> "Departures | None":
    """Let the watchdog know when ranks end, and return what does; None if there is nothing to do.

    Collective over COMM_WORLD. There is nothing to do for one rank, or with ``MESHCOMM_ABORT=0``.
    """
    _, ranks = abort.launched() or (0, 1)
    if ranks == 1 or not abort.ends_jobs():
        return None
    departures = Departures(active_mpi().COMM_WORLD.Dup())
    watchdog.watch.peers = departures
    atexit.register(departures.wait, 0)  # runs after what the program itself does at exit
    return departures


class Departures:
    """The calls of this rank, and those of the ranks that have ended. *comm* is a communicator for it alone."""

    def __init__(self, comm: "MPI_.Intracomm") -> None:
        MPI = mpi()
        self._comm = comm
        self._polls = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._lock = threading.Lock()
        self._counts: dict[tuple[int, ...], list[int]] = {}
        self._teams: WeakKeyDictionary[Team, tuple[tuple[int, ...], list[int]]] = WeakKeyDictionary()
        self._ended: dict[int, dict[tuple[int, ...], int]] = {}
        self._over = False

    def enter(self, team: Team) -> None:
        """Count a collective call of this rank on *team*."""
        known = self._teams.get(team)
        if known is None:
            ranks = _world_ranks(team)
            known = self._teams[team] = ranks, self._counts.setdefault(ranks, [0])
        known[1][0] += 1

    def lost(self, team: Team) -> str | None:
        """Name a rank of *team* that has ended without the call that this rank is in, or return None."""
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
        """Wait until every rank has ended. If they do not and *code* is not 0, end the job with it. Collective."""
        MPI = mpi()
        if self._over or is_forked() or MPI.Is_finalized():
            return
        sent: list[MPI_.Request] = []
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

    def _tell(self) -> "list[MPI_.Request]":
        counts = {ranks: count for ranks, (count,) in self._counts.items()}
        others = (rank for rank in range(self._comm.size) if rank != self._comm.rank)
        return [self._comm.isend(counts, rank, _TAG) for rank in others]

    def _receive(self) -> None:
        MPI = mpi()
        status = MPI.Status()
        while message := self._comm.improbe(MPI.ANY_SOURCE, _TAG, status):
            self._ended[status.source] = message.recv()

    def _collect(self, senders: Iterable[int]) -> None:
        """Receive the messages that have not arrived: MPI must not end before them."""
        for rank in senders:
            if rank != self._comm.rank and rank not in self._ended:
                self._ended[rank] = self._comm.recv(None, rank, _TAG)


def _world_ranks(team: Team) -> tuple[int, ...]:
    """Return the ranks of *team* in COMM_WORLD, ascending; none for a simulated team."""
    world = team.world
    return world.ranks_in_comm_world(team.ranks) if isinstance(world, MPIWorld) else ()
