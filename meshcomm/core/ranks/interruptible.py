"""Calls of mpi4py that a signal can interrupt: in a notebook, Ctrl-C must reach ranks that wait for others.

Python runs a signal handler only between two steps of its own, so never while a rank is in a blocking call of MPI.
Here ranks wait in Python instead, and enter the call of MPI when it will not wait for long:

- before a collective call, until all ranks of the communicator have come to its gate
- before a receive, until the message is there
- for a request, by testing it

"""
# The gate of a collective call
# =============================
#
# A gate is a dissemination barrier: in round k each rank sends to the rank 2**k ahead, and waits for the one 2**k
# behind. Messages name their epoch, which begins with each cell: messages of an interrupted cell are dropped.
#
# A rank must not leave a gate that another one has passed: the other rank is in the call of MPI, and would wait for
# ever. So:
#
# (A) A rank that passes has heard of all others, directly or through other ranks: all have come to the gate.
# (B) A signal does not end a gate, nor the call behind it. An interrupted rank goes on with the rounds for
#     `LEAVE_AFTER` seconds. If another rank has passed, all have come, and all messages are sent meanwhile: then the
#     interrupted rank passes, too, and raises after the call.
# (C) Else it leaves. No rank has passed, and none will: ranks are interrupted together. A rank that comes later reads
#     its messages before it sends the first one. If it was interrupted, too, it leaves at once, even if the others
#     have come: they may be gone, and none of them has passed without it.

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, TypedDict, TypeVar

from meshcomm.core._tracing import Value
from meshcomm.core._tuning import POLL_FROM, POLL_TO
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.side_channel import SideChannel
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks._call_scope import CallLock
from meshcomm.core.ranks.mpi import MPIWorld, mpi, open_worlds
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.errors import CollectiveMismatch, MeshError

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

T = TypeVar("T")

LEAVE_AFTER = 0.2
"""Seconds after an interrupt in which a rank may still pass a gate. Messages on their way take less than a tenth."""

_MAX_YIELDS = 50
"""Times that a waiting rank yields its processor before it sleeps. Two ranks need about five."""

_COLLECTIVE_METHODS = (
    "Barrier Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv Alltoallw Reduce Allreduce "
    "Reduce_scatter Reduce_scatter_block Scan Exscan barrier bcast gather scatter allgather alltoall reduce allreduce "
    "scan exscan Dup Split Split_type Create Create_group Create_cart Create_graph Create_dist_graph_adjacent"
)
_NONBLOCKING_METHODS = (
    "Isend Issend Irecv Ibarrier Ibcast Igather Igatherv Iscatter Iscatterv Iallgather Iallgatherv Ialltoall "
    "Ialltoallv Ireduce Iallreduce Iscan Iexscan isend issend irecv"
)
"""Names of mpi4py's methods."""


def wait_until(test: Callable[[], T]) -> T:
    """Call *test* again and again until its result is true, and return the result. Python handles signals between."""
    yields, pause = _MAX_YIELDS, POLL_FROM
    while not (result := test()):
        if yields:
            yields -= 1
            time.sleep(0)
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, POLL_TO)
    return result


class Gates:
    """The gates, which ranks pass together before collective calls of MPI. One object for each process.

    To make it is Collective over COMM_WORLD, before the first mesh. From then on calls of mpi4py are interruptible,
    and a rank that fails ends no job.

    Parameters
    ----------
    send: function that sends a message to a rank by `channel`, which connects all ranks
    poll: function that handles the messages that have arrived, and passes those named ``gate`` to `arrived`
    """

    def __init__(self, send: Callable[..., object], poll: Callable[[], object]) -> None:
        MPI = mpi()
        self.channel = SideChannel(MPI, MPI.COMM_WORLD.Dup())
        self.isolation_reason = ""
        """Why this rank can make no call with others; "" if it can."""
        self._send, self._poll, self._world_group = send, poll, MPI.COMM_WORLD.Get_group()
        self._epoch, self._messages = 0, defaultdict[tuple[int, int], deque[list[str]]](deque)
        self._awaited: tuple[float, Sequence[int]] = 0.0, ()
        self._defers_interrupts, self._interrupted_at = False, 0.0
        MPIWorld.ends_job_on_failure = False
        module: Value = MPI  # a module, whose names change here
        module.Request = _request_class(MPI)
        module.COMM_WORLD = _communicator_class(MPI, self)(MPI.COMM_WORLD)

    def begin_epoch(self) -> None:
        """Drop the messages of gates that ranks have left. All ranks begin the same number of epochs."""
        self._epoch += 1
        for key in [key for key in self._messages if key[0] < self._epoch]:
            del self._messages[key]

    def arrived(self, source: int, epoch: int, *message: str) -> None:
        """Note that rank *source* has arrived at a gate."""
        if epoch >= self._epoch:
            self._messages[epoch, source].append([*message])

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt``, now or at the end of an `uninterrupted` context. For signal handlers."""
        if not self._defers_interrupts:
            raise KeyboardInterrupt
        self._interrupted_at = self._interrupted_at or time.monotonic()

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Return a context that no signal interrupts: if one has come, its end raises ``KeyboardInterrupt``."""
        self._interrupted_at, self._defers_interrupts = 0.0, True
        try:
            yield
        finally:
            self._defers_interrupts = False
        if self._interrupted_at:
            raise KeyboardInterrupt

    @contextmanager
    def without_others(self, reason: str) -> Iterator[None]:
        """Return a context in which calls that need other ranks raise ``MeshError`` with this *reason*."""
        reason_before, self.isolation_reason = self.isolation_reason, reason
        with ExitStack() as stack:
            stack.callback(setattr, self, "isolation_reason", reason_before)
            for _, rank_set in _rank_sets():
                stack.enter_context(rank_set.unnoted())
                stack.callback(setattr, rank_set, "call_lock", rank_set.call_lock)
                rank_set.call_lock = CallLock()
                rank_set.call_lock.end(reason)
            yield

    def awaited(self) -> tuple[float, Sequence[int]]:
        """Return the time since which this rank waits, and for which ranks of COMM_WORLD. Safe in other threads."""
        call = watch.call()
        if call is not None and call[1] is not None:
            return call[3], call[1].world.ranks_in_comm_world(call[1].ranks)
        return self._awaited

    @contextmanager
    def _waiting_for(self, ranks: Sequence[int]) -> Iterator[None]:
        self._awaited = time.monotonic(), ranks
        try:
            yield
        finally:
            self._awaited = 0.0, ()

    @contextmanager
    def passed(self, ranks: Sequence[int], name: str) -> Iterator[None]:
        """Return a context for a call of *ranks*, which begins when all have come, and which no signal interrupts.

        *name* is that of the function of MPI. ``CollectiveMismatch`` if a rank has come for another function.
        """
        if len(ranks) == 1:
            yield
            return
        if self.isolation_reason:
            raise MeshError(f"{name} needs ranks {spans(sorted(ranks))}: {self.isolation_reason}")
        with self.uninterrupted(), self._waiting_for(ranks):
            self._pass(ranks, name)
            yield

    def _pass(self, ranks: Sequence[int], name: str) -> None:
        call_text = f"{name} of MPI in {watch.operation()}" if watch.calls else f"{name} of MPI"
        rank, size = self.channel.rank, len(ranks)
        position, distance = ranks.index(rank), 1
        self._poll()
        if self._interrupted_at:
            raise KeyboardInterrupt
        while distance < size:
            self._send(ranks[(position + distance) % size], "gate", self._epoch, name, call_text)
            source = ranks[(position - distance) % size]
            other_name, other_text = self._received_message(source)
            if other_name != name:
                raise CollectiveMismatch(f"rank {rank} calls {call_text}, but rank {source} calls {other_text}")
            distance *= 2

    def _received_message(self, source: int) -> list[str]:
        messages = self._messages[self._epoch, source]
        wait_until(lambda: self._poll() or messages or self._is_leaving())
        if not messages:
            raise KeyboardInterrupt
        return messages.popleft()

    def _is_leaving(self) -> bool:
        return self._interrupted_at > 0 and time.monotonic() > self._interrupted_at + LEAVE_AFTER

    def wait_for_message(self, comm: "MPI_.Comm", source: int, tag: int) -> None:
        """Wait until *comm* has a message that a receive from *source* with this *tag* would get."""
        with self._waiting_for(self.in_comm_world(comm.Get_group())[source:][:1] if source >= 0 else ()):
            wait_until(lambda: comm.Iprobe(source, tag))

    def in_comm_world(self, group: "MPI_.Group") -> list[int]:
        """Return the ranks of *group* in COMM_WORLD."""
        return list(group.Translate_ranks(None, self._world_group))


def _rank_sets() -> Iterator[tuple[int, RankSet]]:
    """Yield the rank sets of more than one rank, each with the number of its world."""
    for number, world in enumerate(reversed(open_worlds())):
        yield from ((number, rank_set) for rank_set in world.all_rank_sets() if len(rank_set.ranks) > 1)


class RankSetState(TypedDict):
    """The state of a rank set that ranks compare: its ranks, its calls, and why it makes no more calls."""

    ranks: list[int]
    noted: int
    digest: int
    over: str | None


def call_states() -> dict[str, RankSetState]:
    """Return the states of all rank sets, which ranks compare to find out whether they have made the same calls."""
    states: dict[str, RankSetState] = {}
    for number, rank_set in _rank_sets():
        ranks = list(rank_set.world.ranks_in_comm_world(rank_set.ranks))
        states[f"{number}: {ranks}"] = RankSetState(
            ranks=ranks, noted=rank_set.noted, digest=rank_set.call_digest, over=rank_set.call_lock.end_reason
        )
    return states


def calls_differ(states: Sequence[dict[str, RankSetState]]) -> bool:
    """Return whether ranks with these *states* have made different calls, or some can make no more calls."""
    return any(
        state["over"] is not None or any(states[rank].get(rank_set) != state for rank in state["ranks"])
        for states_of_rank in states
        for rank_set, state in states_of_rank.items()
    )


def start_over() -> None:
    """Forget communicators and calls. No rank may be in a call.

    Messages may still come to the old communicators, so these are not freed.
    """
    for world in open_worlds():
        world.unfinished.clear()
        for rank_set in world.all_rank_sets():
            rank_set.abandon()


# -- the calls of mpi4py ----------------------------------------------------------------------------------------------


def _request_class(mpi_module: ModuleType) -> type:
    request_class: type = mpi_module.Request

    class PolledRequest(request_class):
        """A request that waits in steps of Python."""

        def Wait(self, status: object = None) -> object:
            return wait_until(lambda: self.Test(status))

        def wait(self, status: object = None) -> object:
            return _polled_message(lambda: self.test(status))

        @classmethod
        def Waitall(cls, requests: object, statuses: object = None) -> object:
            return wait_until(lambda: cls.Testall(requests, statuses))

        @classmethod
        def waitall(cls, requests: object, statuses: object = None) -> object:
            return _polled_message(lambda: cls.testall(requests, statuses))

    return PolledRequest


def _polled_message(test: Callable[[], tuple[bool, object]]) -> object:
    """Call *test* until it says that a request is complete, and return the message."""
    outcome: Value = wait_until(lambda: outcome if (outcome := test())[0] else None)
    return outcome[1]


def _communicator_class(mpi_module: ModuleType, gates: Gates) -> type:
    """Return a class of communicators with the methods of mpi4py; communicators made from one have it, too."""
    base: Value = mpi_module.Intracomm

    class GatedCommunicator(base):
        """A communicator whose calls can be interrupted while they wait."""

    def collective(method: Value, comm: Value, *args: Value) -> Value:
        group = args[0] if method is base.Create_group else comm.Get_group()
        with gates.passed(gates.in_comm_world(group), method.__name__):
            return method(comm, *args)

    def starting(method: Value, *args: Value) -> Value:
        return mpi_module.Request(method(*args))

    def sending(method: Value, comm: Value, *args: Value) -> None:
        nonblocking = f"{'i' if method.__name__.islower() else 'I'}{method.__name__.lower()}"
        getattr(comm, nonblocking)(*args).Wait()

    def receiving(method: Value, comm: Value, *args: Value) -> Value:
        *_, source, tag, _ = args
        gates.wait_for_message(comm, source, tag)
        return method(comm, *args)

    def exchanging(method: Value, comm: Value, data: Value, destination: int, tag: int, *args: Value) -> Value:
        pickles = method.__name__.islower()
        request = (comm.isend if pickles else comm.Isend)(data, destination, tag)
        result = (comm.recv if pickles else comm.Recv)(*args)
        request.Wait()
        return result

    for names, replacement in (
        (_COLLECTIVE_METHODS, collective),
        (_NONBLOCKING_METHODS, starting),
        ("Send Ssend send ssend", sending),
        ("Recv recv Probe probe Mprobe mprobe", receiving),
        ("Sendrecv sendrecv", exchanging),
    ):
        for name in names.split():
            method = getattr(base, name)
            setattr(GatedCommunicator, name, _with_defaults(method, partial(replacement, method)))
    return GatedCommunicator


def _with_defaults(method: Callable[..., object], replacement: Callable[..., object]) -> Callable[..., Value]:
    """Return a method with the parameters of *method* that passes all arguments to *replacement*, by position."""
    parameters = signature(method)

    def wrapper(*args: object, **kwargs: object) -> object:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        return replacement(*bound.args)

    return wrapper
