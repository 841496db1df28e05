"""A world of simulated ranks in one process, behind the same interface as a world over MPI.

Each rank is a thread, but only one runs at a time, and each runs until it waits for others: results are the same in
every run. When no rank can go on, the ranks that wait are reported and ended, so that a simulated program never hangs.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, TypeVarTuple, cast

import numpy as np
from numpy.typing import NDArray

from meshcomm._arguments import integer, quote
from meshcomm._tuning import MOST_PAUSES
from meshcomm._types import Bytes
from meshcomm.errors import CollectiveMismatch, MeshError
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks import stacks
from meshcomm.ranks.communicator import Buffers, Channels, Communicator, Numbers, Pending, Side
from meshcomm.ranks.missing import in_calls, some
from meshcomm.ranks.outside import explain_none
from meshcomm.ranks.teams import World
from meshcomm.ranks.watch import watch

P = TypeVar("P")
R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")
Key: TypeAlias = tuple[Hashable, ...]
Sent: TypeAlias = tuple[Bytes, int | None, Bytes, int | None]
"""What a rank sends and to whom, and where it receives and from whom."""


def simulate(size: int) -> "SimulatedWorld":
    """Return a world of *size* simulated ranks, to be used in a ``with`` statement.

    Meshes made inside the statement live in that world, and ``world.run(program)`` runs a program on every rank of it.
    ``MeshError`` unless *size* is a positive integer.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows = mc.distribute(np.arange(4).reshape(2, 2), mc.Layout(["x", mc.UNSHARDED], mesh))
    ...     return mc.relayout(rows, mc.Layout([mc.UNSHARDED, "x"], mesh)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0], [2]], [[1], [3]]]
    """
    return SimulatedWorld(size)


_MOST_RANKS = 2**16  # each is a thread while a program runs


class SimulatedWorld:
    """Ranks in one process. Made by `simulate`.

    `bytes_moved` and `messages` count, for each rank, what it has received from other ranks so far.
    """

    def __init__(self, size: int) -> None:
        size = integer(size, "size of a simulated world")
        if not 1 <= size <= _MOST_RANKS:
            raise MeshError(f"a simulated world has 1 to {_MOST_RANKS} ranks, not {quote(size)}")
        self.size = size
        self.bytes_moved = [0] * size
        self.messages = [0] * size
        self._ranks = [SimulatedRank(self, rank) for rank in range(size)]
        self._rendezvous: dict[Key, _Rendezvous[Any, Any]] = {}
        self._control = threading.Semaphore(0)
        self._running = False
        self._waiting: list[str] = []
        self.events = 0

    def __enter__(self) -> "SimulatedWorld":
        _stack().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _stack().remove(self)

    def __repr__(self) -> str:
        return f"SimulatedWorld({self.size})"

    @property
    def rank(self) -> int:
        """The simulated rank that asks; ``MeshError`` outside of `run`."""
        return self.here().rank

    def here(self) -> "SimulatedRank":
        """Return the world as the calling rank sees it; ``MeshError`` outside of `run`."""
        rank = _local.rank
        if rank is None or rank.simulated_world is not self:
            raise MeshError("this mesh lives in a simulated world: use it in a function given to world.run(function)")
        return rank

    def device_in(self, mesh: Mesh) -> int | None:
        """Return the device of the calling rank in *mesh*, or None if it is outside of the mesh or of this world."""
        if current_world() is not self:
            return None
        location = self.here().location(mesh)
        return location.device if location else None

    def close_mesh(self, mesh: Mesh) -> None:
        """Close *mesh*. Collective over the mesh."""
        self.here().close_on(mesh)

    def run(self, function: Callable[[*Arguments], R], *args: *Arguments) -> list[R]:
        """Call *function* with *args* once on every simulated rank and return the results, rank by rank.

        An exception of a rank ends all of them and is raised here; ranks that wait for each other in vain raise
        ``CollectiveMismatch``.
        """
        if self._running or _local.rank is not None:
            raise MeshError("a simulated world runs one program at a time")
        self._running = True
        self._rendezvous.clear()
        try:
            for rank in self._ranks:
                rank.start(function, args)
            self._schedule()
            return cast("list[R]", self._results())
        finally:
            self._running = False

    def _schedule(self) -> None:
        """Let one rank run at a time, in turns, until none can; then end those that wait for what cannot come."""
        try:
            while ready := [rank for rank in self._ranks if rank.ready] or self._out_of_time():
                for rank in ready:
                    self._let_run(rank)
        finally:
            left = [rank for rank in self._ranks if not rank.done]
            self._waiting = self._where(left, "waits", "wait") if left else []
            for rank in self._ranks:
                if not rank.done:
                    rank.cancelled = True
                    self._let_run(rank)
                rank.join()

    def _out_of_time(self) -> "list[SimulatedRank]":
        """Return the ranks that wait, but not for ever: their time is over when no other rank can go on."""
        late = [rank for rank in self._ranks if rank.waits_at is not None]
        for rank in late:
            assert rank.waits_at is not None
            rank.waits_at.left.append(rank.rank)
            rank.waits_at, rank.ready = None, True
        return late

    def _let_run(self, rank: "SimulatedRank") -> None:
        rank.go.release()
        self._control.acquire()

    def _results(self) -> list[object]:
        failed = [rank for rank in self._ranks if rank.error is not None]
        if failed:
            culprit = min(failed, key=lambda rank: rank.failed_at)
            assert culprit.error is not None
            explain_none(culprit.error, [culprit])
            culprit.error.add_note("\n  ".join([f"on simulated rank {culprit.rank} of {self.size}", *self._waiting]))
            raise culprit.error
        if self._waiting:
            ended = [rank.rank for rank in self._ranks if not rank.cancelled]
            lines = [*self._waiting, *([f"{some(ended)} returned"] if ended else [])]
            raise CollectiveMismatch("\n  ".join(["simulated ranks wait for each other in vain:", *lines]))
        return [rank.result for rank in self._ranks]

    def _where(self, ranks: "Sequence[SimulatedRank]", one: str, several: str) -> list[str]:
        """Return which call each of *ranks* is in, and which line of the program made it.

        *one* and *several* are the verb for one rank and for several: "ranks 0, 2 wait in barrier at f.py:9 in step".
        """
        operations = {call[1].world: call[0] for call in watch.calls[::-1] if call[1] is not None}  # the outermost
        callers = stacks.of_callers()
        calls = {rank.rank: (operations.get(rank, ""), callers.get(rank._thread.ident, "")) for rank in ranks}
        return in_calls(calls, one, several)

    def rendezvous(
        self,
        key: Key,
        operation: str,
        members: tuple[int, ...],
        payload: P,
        complete: Callable[[dict[int, P]], R],
    ) -> R:
        """Wait until all *members* are at *key*, and return what *complete* makes of what they brought.

        Parameters
        ----------
        key: names the rendezvous, the same on all members
        operation: the same on all members, or they have made different calls
        members: the ranks that take part
        payload: what this rank brings
        complete: the last rank to arrive calls it, on what each one brought
        """
        rendezvous = self._at(key, operation, members, payload, complete)
        if not rendezvous.over:
            rendezvous.wait(self.here())
        return rendezvous.result()

    def missing(self, key: Key, operation: str, members: tuple[int, ...]) -> list[int]:
        """Wait until all *members* are at *key*, or no rank can go on, and return those that have not arrived."""
        rendezvous = self._at(key, operation, members, None, lambda brought: None)
        if not rendezvous.over:
            rank = self.here()
            rank.waits_at = rendezvous
            rendezvous.wait(rank)
            if rank.rank in rendezvous.left:
                return [member for member in members if member not in rendezvous.brought]
        rendezvous.result()
        return []

    def arrive(
        self,
        key: Key,
        operation: str,
        members: tuple[int, ...],
        payload: P,
        complete: Callable[[dict[int, P]], R],
    ) -> "_Arrived":
        """As `rendezvous`, but do not wait: what is returned does, or says whether all have arrived."""
        return _Arrived(self._at(key, operation, members, payload, complete), self.here())

    def _at(
        self,
        key: Key,
        operation: str,
        members: tuple[int, ...],
        payload: P,
        complete: Callable[[dict[int, P]], R],
    ) -> "_Rendezvous[P, R]":
        """Return the rendezvous at *key*, at which the calling rank has arrived; it is over if all have."""
        rank = self.here()
        if rank.cancelled:
            raise _Cancelled
        rendezvous = self._rendezvous.setdefault(key, _Rendezvous())
        rendezvous.brought[rank.rank] = payload
        rendezvous.operations[rank.rank] = operation
        self.events += 1
        if len(rendezvous.brought) == len(members):
            del self._rendezvous[key]
            rendezvous.finish(complete, self)
            for member in rendezvous.waiting:
                if member not in rendezvous.left:
                    self._ranks[member].ready, self._ranks[member].waits_at = True, None
        return rendezvous


class _Rendezvous(Generic[P, R]):
    """Ranks that come together for one operation."""

    def __init__(self) -> None:
        self.brought: dict[int, P] = {}
        self.operations: dict[int, str] = {}
        self.waiting: list[int] = []
        self.left: list[int] = []  # ranks that were here, but did not wait to the end
        self.over = False
        self.outcome: R | None = None
        self.error: Exception | None = None

    def wait(self, rank: "SimulatedRank") -> None:
        """Let others run until all have come, or this rank leaves."""
        self.waiting.append(rank.rank)
        rank.wait()

    def result(self) -> R:
        """Return what came of it, on each rank."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)
        return cast("R", self.outcome)

    def finish(self, complete: Callable[[dict[int, P]], R], world: SimulatedWorld) -> None:
        """Make the outcome, or the error, of all ranks."""
        self.over = True
        if len(set(self.operations.values())) > 1:
            lines = world._where([world._ranks[rank] for rank in sorted(self.operations)], "is", "are")
            self.error = CollectiveMismatch("\n  ".join(["simulated ranks made different calls:", *lines]))
            return
        try:
            self.outcome = complete(self.brought)
        except Exception as error:
            self.error = error


class _Arrived:
    """A rank that has arrived at a rendezvous and did something else since."""

    def __init__(self, rendezvous: _Rendezvous[Any, Any], rank: "SimulatedRank") -> None:
        self._rendezvous = rendezvous
        self._rank = rank

    def test(self) -> bool:
        if not self._rendezvous.over:
            self._rank.pause()
        if self._rendezvous.over:
            self._rendezvous.result()
        return self._rendezvous.over

    def wait(self) -> None:
        self._outcome()

    def equal(self) -> bool:
        """Wait for the outcome of a comparison."""
        return bool(self._outcome())

    def _outcome(self) -> object:
        if not self._rendezvous.over:
            self._rendezvous.wait(self._rank)
        return self._rendezvous.result()


class _Cancelled(BaseException):
    """Ends a simulated rank that waits for what cannot come; no ``except Exception`` should stop it."""


class _Local(threading.local):
    """Where the calling thread is; what it has not set is found here faster than by a missing attribute."""

    rank: "SimulatedRank | None" = None
    stack: list[SimulatedWorld] | None = None


_local = _Local()


def _stack() -> list[SimulatedWorld]:
    if _local.stack is None:
        _local.stack = []
    return _local.stack


def current_world() -> SimulatedWorld | None:
    """Return the simulated world that the caller is in, if any."""
    if _local.rank is not None:
        return _local.rank.simulated_world
    return _local.stack[-1] if _local.stack else None


def current_rank() -> "SimulatedRank | None":
    """Return the simulated rank that the caller is, if any."""
    return _local.rank


class SimulatedRank(World):
    """One rank of a simulated world: a thread that runs when it is its turn."""

    takes_turns = True

    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        super().__init__(world.size, rank)
        self.simulated_world = world
        self.go = threading.Semaphore(0)
        self.done = True

    def start(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        """Make the thread; it waits for its first turn."""
        self._teams.clear()
        self._locations.clear()
        self.unfinished.clear()
        self.ready, self.done, self.cancelled = True, False, False
        self.result: object = None
        self.error: BaseException | None = None
        self.failed_at = 0
        self._pauses, self._paused_at = 0, 0
        self.waits_at: _Rendezvous[Any, Any] | None = None
        target, name = copy_context().run, f"simulated rank {self.rank}"  # a default mesh is that of the caller
        self._thread = threading.Thread(target=target, args=(self._main, function, args), name=name)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def wait(self) -> None:
        """Let other ranks run until what this one waits for has happened."""
        self.ready = False
        self.simulated_world._control.release()
        self.go.acquire()
        if self.cancelled:
            raise _Cancelled

    def pause(self) -> None:
        """Let each other rank that can run do so once; ``CollectiveMismatch`` if nothing ever comes of it."""
        events = self.simulated_world.events
        self._pauses = self._pauses + 1 if events == self._paused_at else 0
        self._paused_at = events
        if self._pauses > MOST_PAUSES:
            raise CollectiveMismatch(f"simulated rank {self.rank} asks again and again for what does not come")
        self.simulated_world._control.release()
        self.go.acquire()
        if self.cancelled:
            raise _Cancelled

    def _main(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self.go.acquire()
        _local.rank = self
        try:
            if not self.cancelled:
                self.result = function(*args)
                self.finish_all()
        except _Cancelled:
            pass
        except BaseException as error:
            self.failed_at = 1 + sum(rank.error is not None for rank in self.simulated_world._ranks)
            self.error = error
        finally:
            self.ready, self.done = False, True
            self.simulated_world._control.release()

    def connect(self, ranks: range | tuple[int, ...]) -> Communicator:
        return SimulatedCommunicator(self, ("ranks", *ranks), tuple(ranks))


class SimulatedCommunicator(Communicator):
    """A communicator between simulated ranks."""

    def __init__(self, world: SimulatedRank, key: Key, members: tuple[int, ...]) -> None:
        self._world = world
        self._key = key
        self._members = members
        self._calls = 0
        self.size = len(members)
        self.rank = members.index(world.rank)

    def _together(self, operation: str, payload: P, complete: Callable[[list[P]], R]) -> R:
        self._calls += 1
        return self._world.simulated_world.rendezvous(
            (self._key, self._calls),
            operation,
            self._members,
            payload,
            lambda brought: complete([brought[rank] for rank in self._members]),
        )

    def _deliver(self, data: Bytes, sender: int, into: Bytes, receiver: int) -> None:
        if len(data) != len(into):
            raise CollectiveMismatch(
                f"rank {self._members[sender]} sends {len(data)} bytes to rank {self._members[receiver]}, "
                f"which expects {len(into)}"
            )
        into[:] = data
        if sender != receiver and len(data):
            world = self._world.simulated_world
            world.bytes_moved[self._members[receiver]] += len(data)
            world.messages[self._members[receiver]] += 1

    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        self._together("alltoallv", (send, receive), self._exchange)

    def _exchange(self, brought: list[tuple[Buffers, Buffers]]) -> None:
        for i, ((data, data_counts, data_offsets), _) in enumerate(brought):
            for j, (_, (target, target_counts, target_offsets)) in enumerate(brought):
                self._deliver(
                    data[data_offsets[j] : data_offsets[j] + data_counts[j]],
                    i,
                    target[target_offsets[i] : target_offsets[i] + target_counts[i]],
                    j,
                )

    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        self._calls += 1
        return self._world.simulated_world.arrive(
            (self._key, self._calls),
            "alltoallv",
            self._members,
            (send, receive),
            lambda brought: self._exchange([brought[rank] for rank in self._members]),
        )

    start_messages = start_alltoallv

    def permute(self, data: Bytes, to: int | None, into: Bytes, source: int | None) -> None:
        def complete(brought: list[Sent]) -> None:
            for receiver, (_, _, target, sender) in enumerate(brought):
                if sender is not None:
                    sent, goes_to, _, _ = brought[sender]
                    self._deliver(sent if goes_to == receiver else sent[:0], sender, target, receiver)

        self._together("permute", (data, to, into, source), complete)

    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        def complete(brought: list[tuple[Bytes, Buffers]]) -> None:
            for j, (_, (target, target_counts, target_offsets)) in enumerate(brought):
                for i, (data, _) in enumerate(brought):
                    self._deliver(data, i, target[target_offsets[i] : target_offsets[i] + target_counts[i]], j)

        self._together("allgatherv", (send, receive), complete)

    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        def complete(brought: list[NDArray[np.int64]]) -> NDArray[np.int64]:
            largest: NDArray[np.int64] = np.max(brought, axis=0)
            return largest

        return self._together("allreduce_max", values, complete).copy()

    def numbers(self, to: list[int], sources: list[int]) -> Numbers:
        raise NotImplementedError("simulated ranks compare numbers in reductions, which cost them nothing")

    def channels(self, send: Side, receive: Side) -> Channels:
        raise NotImplementedError("simulated ranks have no header in their messages, and so no channels")

    def start_comparison(self, number: int) -> "_Arrived":
        self._calls += 1
        return self._world.simulated_world.arrive(
            (self._key, self._calls),
            "comparison",
            self._members,
            number,
            lambda brought: len(set(brought.values())) == 1,
        )

    def allgather(self, message: bytes) -> list[bytes]:
        return self._together("allgather", message, lambda brought: brought).copy()

    def broadcast(self, data: Bytes, root: int) -> None:
        def complete(brought: list[Bytes]) -> None:
            for receiver, into in enumerate(brought):
                self._deliver(brought[root], root, into, receiver)

        self._together("broadcast", data, complete)

    def barrier(self, seconds: float) -> list[int]:
        self._calls += 1
        missing = self._world.simulated_world.missing((self._key, self._calls), "barrier", self._members)
        return [self._members.index(rank) for rank in missing]

    def send(self, data: Bytes, rank: int) -> None:
        self._pair(rank, data, sends=True)

    def receive(self, into: Bytes, rank: int) -> None:
        self._pair(rank, into, sends=False)

    def _pair(self, other: int, data: Bytes, sends: bool) -> None:
        # Pairs count their own rendezvous: the other ranks do not take part in them.
        me, peer = self._members[self.rank], self._members[other]
        pair = (min(me, peer), max(me, peer))

        def complete(brought: dict[int, Bytes]) -> None:
            if sends:
                self._deliver(brought[me], self.rank, brought[peer], other)
            else:
                self._deliver(brought[peer], other, brought[me], self.rank)

        name = f"a message between ranks {pair[0]} and {pair[1]}"
        self._world.simulated_world.rendezvous((self._key, "pair", pair), name, pair, data, complete)

    def split(self, color: int, key: int) -> "SimulatedCommunicator":
        def complete(brought: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
            members: dict[int, list[tuple[int, int]]] = {}
            for rank, (its_color, its_key) in zip(self._members, brought, strict=True):
                members.setdefault(its_color, []).append((its_key, rank))
            return {c: tuple(rank for _, rank in sorted(pairs)) for c, pairs in members.items()}

        members = self._together("split", (color, key), complete)
        return SimulatedCommunicator(self._world, (*self._key, self._calls, color), members[color])

    def progress(self) -> None:
        """Nothing has to advance."""

    def free(self) -> None:
        """Nothing to give back."""
