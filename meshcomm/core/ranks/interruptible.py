"""Calls of mpi4py that a signal can end: in a notebook, Ctrl-C must reach ranks that wait for others.

Python runs the handler of a signal only between its own steps, so a rank in a blocking call of MPI never gets to it.
Here ranks wait in Python instead, and enter the call of MPI when it will not wait for long:

- before a collective call, until all ranks of the communicator have come to its gate
- before a receive, until the message is there
- for a request, by testing it

"""
# The gate of a collective call
# =============================
#
# A gate is a dissemination barrier: in round k each rank sends to the rank 2**k ahead, and waits for the one 2**k
# behind. A message is received only when it has come, so a rank that leaves early leaves no receive behind. The tag of
# a message is the epoch: after an error the ranks begin a new one, and messages of the old one are never looked at.
#
# A rank must not leave a gate that another one has passed: that one is in MPI's call, and waits for ever. So:
#
# (A) Who passes has heard of all others, if through some in between: all have come.
# (B) A signal does not end a gate, nor the call behind it. A rank that is interrupted goes on with the rounds for
#     `LEAVE_AFTER`. If another one has passed, all have come, and all messages are sent meanwhile: it passes, too, and
#     is interrupted after the call.
# (C) Else it leaves. Nobody has passed, and nobody will: ranks are stopped together, and one that comes later looks
#     before it passes whether it was stopped, too.

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from meshcomm.core._tracing import Value
from meshcomm.core._tuning import POLL_FROM, POLL_TO
from meshcomm.core._types import Json
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.side_channel import SideChannel
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks._envelope import Turn
from meshcomm.core.ranks.mpi import MPIWorld, mpi, open_worlds
from meshcomm.errors import CollectiveMismatch, MeshError

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

LEAVE_AFTER = 0.2
"""Seconds after an interrupt in which a rank still passes a gate. Messages on their way take less than a tenth."""

_YIELDS = 50
"""A rank that waits lets others run so many times before it sleeps. Two ranks need about five."""

_COLLECTIVE = (
    *("Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall"),
    *("Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan"),
    *("Dup", "Split", "Split_type", "Create", "Create_cart", "Create_graph", "Create_dist_graph_adjacent"),
)
_STARTING = (
    *("Isend", "Issend", "Irecv", "Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather"),
    *(
        "Iallgatherv",
        "Ialltoall",
        "Ialltoallv",
        "Ireduce",
        "Iallreduce",
        "Iscan",
        "Iexscan",
        "isend",
        "issend",
        "irecv",
    ),
)


class _Waiting:
    """What this rank waits for in a gate, for other threads; and what no other rank takes part in."""

    ranks: Sequence[int] = ()
    since = 0.0
    alone = ""
    epoch = 1
    held = False  # whether a signal has to wait
    interrupted = 0.0  # when one has come that waits
    look: Callable[[], object] = staticmethod(lambda: None)


def begin(look: Callable[[], object]) -> SideChannel:
    """Let calls of mpi4py be interruptible, and ranks that fail not end the job. Collective over COMM_WORLD.

    Call it before the first mesh is made. Return a channel between all ranks, which nothing else uses. *look* sends
    this rank the signal if it is to be interrupted, and does not know it yet.
    """
    _Waiting.look = staticmethod(look)
    MPI = mpi()
    channel, gates = SideChannel(MPI, MPI.COMM_WORLD.Dup()), MPI.COMM_WORLD.Dup()
    MPIWorld.guarded = False
    request = _request_class(MPI)
    known: Value = MPI  # a module, whose names change here
    known.COMM_WORLD = _communicator_class(MPI, _Gate(MPI, gates), request)(MPI.COMM_WORLD)
    known.Request = request
    return channel


def interrupt() -> None:
    """Raise ``KeyboardInterrupt``, now or at the end of a call that others have entered. For handlers of signals."""
    if not _Waiting.held:
        raise KeyboardInterrupt
    _Waiting.interrupted = _Waiting.interrupted or time.monotonic()


def waits_for() -> tuple[float, Sequence[int]]:
    """Return since when this rank waits for others, and for which ranks of COMM_WORLD. For other threads."""
    call = watch.call()
    if call is not None and call[1] is not None:
        return call[3], call[1].world.ranks_in_comm_world(call[1].ranks)
    return _Waiting.since, _Waiting.ranks


def wait_until(done: Callable[[], bool]) -> None:
    """Wait in steps of Python until *done* returns true: handlers of signals run in between."""
    yields, pause = _YIELDS, POLL_FROM
    while not done():
        if yields:
            yields -= 1
            time.sleep(0)
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_TO)


@contextmanager
def alone(reason: str) -> Iterator[None]:
    """Return a context in which calls that need other ranks raise ``MeshError`` with this *reason*."""
    before, _Waiting.alone = _Waiting.alone, reason
    with ExitStack() as stack:
        for team in [team for world in open_worlds() for team in world.open_or_not() if len(team.ranks) > 1]:
            stack.enter_context(team.unnoted())
            stack.callback(setattr, team, "turn", team.turn)
            team.turn = Turn()
            team.turn.end(reason)
        try:
            yield
        finally:
            _Waiting.alone = before


def states() -> list[list[Json]]:
    """Return what ranks compare to find out whether they have made the same calls, as JSON: an entry for each team."""
    teams = [(number, team) for number, world in enumerate(open_worlds()[::-1]) for team in world.open_or_not()]
    return [
        [number, list(team.world.ranks_in_comm_world(team.ranks)), team.noted, team.call_digest, team.turn.over]
        for number, team in teams
        if len(team.ranks) > 1
    ]


def start_over(epoch: int, teams: bool) -> None:
    """Begin the next *epoch* of gates; with *teams* also forget communicators and calls. All ranks are in no call.

    What MPI has not delivered yet may still come to the old communicators: these are left to MPI, and not freed.
    """
    _Waiting.epoch = epoch
    for world in open_worlds() if teams else ():
        world.unfinished.clear()
        for team in world.open_or_not():
            team.abandon()


class _Gate:
    """What ranks pass together before a collective call of MPI.

    Parameters
    ----------
    mpi: ``mpi4py.MPI``
    comm: all ranks, for the messages of gates alone
    """

    def __init__(self, mpi: ModuleType, comm: "MPI_.Intracomm") -> None:
        self._mpi, self._comm, self._group = mpi, comm, comm.Get_group()
        self._sent: list[tuple[MPI_.Request, bytes]] = []

    def ranks(self, group: "MPI_.Group") -> list[int]:
        """Return the ranks of *group* in COMM_WORLD."""
        return list(group.Translate_ranks(None, self._group))

    @contextmanager
    def passed(self, ranks: Sequence[int], name: str) -> Iterator[None]:
        """Return a context for a call of *ranks*, which begins when all have come, and which no signal ends.

        ``CollectiveMismatch`` if one of them has come for another call.
        """
        if len(ranks) == 1:
            yield
            return
        if _Waiting.alone:
            raise MeshError(f"{name} needs ranks {spans(sorted(ranks))}: {_Waiting.alone}")
        _Waiting.interrupted, _Waiting.held = 0.0, True
        try:
            self._pass(ranks, name)
            yield
        finally:
            _Waiting.ranks, _Waiting.held = (), False
        if _Waiting.interrupted:
            raise KeyboardInterrupt

    def _pass(self, ranks: Sequence[int], name: str) -> None:
        here = f"{name} of MPI in {watch.operation()}" if watch.calls else f"{name} of MPI"
        message, size, me = f"{name} {here}".encode(), len(ranks), ranks.index(self._comm.rank)
        _Waiting.since, _Waiting.ranks = time.monotonic(), ranks
        distance = 1
        while distance < size:
            if 2 * distance >= size:  # who gets the last message may pass
                _Waiting.look()
            self._send(message, ranks[(me + distance) % size])
            source = ranks[(me - distance) % size]
            other, _, there = self._receive(source).decode().partition(" ")
            if other != name:
                raise CollectiveMismatch(f"rank {self._comm.rank} calls {here}, but rank {source} calls {there}")
            distance *= 2

    def receive(self, comm: "MPI_.Comm", source: int, tag: int) -> None:
        """Wait until *comm* has a message that a receive from *source* with this *tag* would get."""
        _Waiting.since, _Waiting.ranks = time.monotonic(), [comm.rank] if source < 0 else self.ranks(comm.Get_group())
        try:
            wait_until(lambda: bool(comm.Iprobe(source, tag)))
        finally:
            _Waiting.ranks = ()

    def _send(self, message: bytes, rank: int) -> None:
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        self._sent.append((self._comm.Isend([message, self._mpi.BYTE], rank, _Waiting.epoch), message))

    def _receive(self, source: int) -> bytes:
        status = self._mpi.Status()
        wait_until(lambda: bool(self._comm.Iprobe(source, _Waiting.epoch, status)) or _leaves())
        if _leaves() and not self._comm.Iprobe(source, _Waiting.epoch, status):
            raise KeyboardInterrupt
        data = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([data, self._mpi.BYTE], source, _Waiting.epoch)
        return bytes(data)


def _leaves() -> bool:
    return _Waiting.interrupted > 0 and time.monotonic() > _Waiting.interrupted + LEAVE_AFTER


@cache
def _request_class(mpi: ModuleType) -> type:
    kind: type = mpi.Request

    class Request(kind):  # type: ignore[misc]
        """A request that waits in steps of Python."""

        def Wait(self, status: Value = None) -> bool:
            wait_until(lambda: self.Test(status))
            return True

        def wait(self, status: Value = None) -> Value:
            return _tested(lambda: self.test(status))

        @classmethod
        def Waitall(cls, requests: Value, statuses: Value = None) -> bool:
            wait_until(lambda: cls.Testall(requests, statuses))
            return True

        @classmethod
        def waitall(cls, requests: Value, statuses: Value = None) -> Value:
            return _tested(lambda: cls.testall(requests, statuses))

    return Request


def _tested(test: Callable[[], tuple[bool, Value]]) -> Value:
    """Return what *test* returns with its first true flag."""
    results: list[Value] = []

    def done() -> bool:
        flag, result = test()
        results[:] = [result]
        return flag

    wait_until(done)
    return results[0]


@cache
def _communicator_class(mpi: ModuleType, gate: _Gate, request: type) -> type:
    """Return a class of communicators with the calls of mpi4py, and those that it makes have it, too."""
    kind: type = mpi.Intracomm

    class Communicator(kind):  # type: ignore[misc]
        """A communicator whose calls can be interrupted while they wait."""

        def Create_group(self, group: "MPI_.Group", tag: int = 0) -> "MPI_.Intracomm":
            with gate.passed(gate.ranks(group), "Create_group"):
                made: MPI_.Intracomm = super().Create_group(group, tag)
            return made

        def Sendrecv(self, sendbuf: Value, dest: int, sendtag: int = 0, recvbuf: Value = None, *rest: Value) -> None:
            request = self.Isend(sendbuf, dest, sendtag)
            self.Recv(recvbuf, *rest)
            request.Wait()

        def sendrecv(self, sendobj: Value, dest: int, sendtag: int = 0, recvbuf: Value = None, *rest: Value) -> Value:
            request = self.isend(sendobj, dest, sendtag)
            result = self.recv(recvbuf, *rest)
            request.wait()
            return result

    for name in _COLLECTIVE:
        setattr(Communicator, name, _collective(getattr(kind, name), name, gate))
    for name in _STARTING:
        setattr(Communicator, name, _starting(getattr(kind, name), request))
    for name in ("Recv", "recv", "Probe", "probe", "Mprobe", "mprobe"):
        setattr(Communicator, name, _receiving(getattr(kind, name), "buf" if name.endswith("ecv") else None, gate))
    for name, start in (("Send", "Isend"), ("Ssend", "Issend"), ("send", "isend"), ("ssend", "issend")):
        setattr(Communicator, name, _sending(start))
    return Communicator


def _collective(call: Callable[..., Value], name: str, gate: _Gate) -> Callable[..., Value]:
    def collective(comm: Value, *args: Value, **named: Value) -> Value:
        with gate.passed(gate.ranks(comm.Get_group()), name):
            return call(comm, *args, **named)

    return collective


def _starting(call: Callable[..., Value], request: type) -> Callable[..., Value]:
    return lambda *args, **named: request(call(*args, **named))


def _sending(start: str) -> Callable[..., Value]:
    return lambda comm, *args, **named: getattr(comm, start)(*args, **named).Wait() and None


def _receiving(call: Callable[..., Value], buffer: str | None, gate: _Gate) -> Callable[..., Value]:
    names = [*filter(None, [buffer]), "source", "tag", "status"]

    def receive(comm: Value, *args: Value, **named: Value) -> Value:
        given = {**dict(zip(names, args, strict=False)), **named}
        gate.receive(comm, given.get("source", mpi().ANY_SOURCE), given.get("tag", mpi().ANY_TAG))
        return call(comm, *args, **named)

    return receive
