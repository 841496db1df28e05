"""A world of simulated ranks in one process, behind the same interface as a world over MPI.

Each rank is a thread, but only one runs at a time, and each runs until it waits for others: results are the same in
every run. When no rank can go on, waiting ranks are reported and ended, so a simulated program never hangs.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Generic, TypeVar, TypeVarTuple, cast

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._tuning import MAX_PAUSES, POLL_TO
from meshcomm.core.failures import stacks
from meshcomm.core.failures.messages import explain_none, in_calls, ranks_text
from meshcomm.core.failures.watch import watch
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.rank_sets import World
from meshcomm.core.ranks.simulated_communicator import Key, SimulatedCommunicator
from meshcomm.errors import CollectiveMismatch, MeshError

P = TypeVar("P")
R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")


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


_MAX_RANKS = 2**16  # each rank is a thread while a program runs


class SimulatedWorld:
    """Simulated ranks in one process. Made by `simulate`.

    `bytes_moved` and `messages` have, for each rank, the bytes and messages that it has received from other ranks.
    """

    def __init__(self, size: int) -> None:
        size = as_integer(size, "size of a simulated world")
        if not 1 <= size <= _MAX_RANKS:
            raise MeshError(f"a simulated world has 1 to {_MAX_RANKS} ranks, not {quote(size)}")
        self.size = size
        self.bytes_moved = [0] * size
        self.messages = [0] * size
        self._ranks = [SimulatedRank(self, rank) for rank in range(size)]
        self._rendezvous: dict[Key, Rendezvous[Any, Any]] = {}
        self._control = threading.Semaphore(0)
        self._running = self._is_unusable = False
        self._waiting_lines: list[str] = []
        self.events = 0

    def __enter__(self) -> "SimulatedWorld":
        _thread_state.stack.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _thread_state.stack.remove(self)

    def __repr__(self) -> str:
        return f"SimulatedWorld({self.size})"

    @property
    def rank(self) -> int:
        """The calling simulated rank; ``MeshError`` outside of `run`."""
        return self.here().rank

    def here(self) -> "SimulatedRank":
        """Return the calling rank, as its view of this world; ``MeshError`` outside of `run`."""
        rank = _thread_state.rank
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
        ``CollectiveMismatch``. Ctrl-C ends all ranks, as soon as the one that runs is back in Python. A second one
        does not wait for that, and leaves the world unusable.
        """
        if self._running or _thread_state.rank is not None:
            raise MeshError("a simulated world runs one program at a time")
        self._running = True
        self._rendezvous.clear()
        try:
            for rank in self._ranks:
                rank.start(function, args)
            self._schedule()
            return cast("list[R]", self._results())
        finally:
            self._running = self._is_unusable

    def _schedule(self) -> None:
        """Let one rank run at a time, in turns, until none can; then end the ranks that wait in vain."""
        try:
            while ready_ranks := [rank for rank in self._ranks if rank.ready] or self._out_of_time():
                for rank in ready_ranks:
                    self._let_run(rank)
        finally:
            if not self._is_unusable:
                self._end_all()

    def _end_all(self) -> None:
        unfinished = [rank for rank in self._ranks if not rank.done]
        self._waiting_lines = self._call_lines(unfinished, "waits", "wait") if unfinished else []
        for rank in self._ranks:
            if not rank.done:
                rank.cancelled = True
                self._let_run(rank)
            rank.thread.join()

    def _out_of_time(self) -> "list[SimulatedRank]":
        """End the waits that have a timeout, as no rank can go on, and return their ranks."""
        ranks = [rank for rank in self._ranks if rank.waits_at is not None]
        for rank in ranks:
            assert rank.waits_at is not None
            rank.waits_at.left_ranks.append(rank.rank)
            rank.waits_at, rank.ready = None, True
        return ranks

    def _let_run(self, rank: "SimulatedRank") -> None:
        watch.simulated = rank.rank
        rank.turn.release()
        try:
            self._control.acquire()
        except BaseException:  # Ctrl-C: the rank that runs has to end, too
            self._is_unusable = True  # should a second Ctrl-C come, which does not wait for that rank
            rank.interrupt()
            while not self._control.acquire(timeout=POLL_TO) and rank.thread.is_alive():
                pass
            self._is_unusable = False
            raise
        finally:
            watch.simulated = None

    def _results(self) -> list[object]:
        failed_ranks = [rank for rank in self._ranks if rank.error is not None]
        if failed_ranks:
            first_failed = min(failed_ranks, key=lambda rank: rank.failed_at)
            assert first_failed.error is not None
            explain_none(first_failed.error, [first_failed])
            first_failed.error.add_note(
                "\n  ".join([f"on simulated rank {first_failed.rank} of {self.size}", *self._waiting_lines])
            )
            raise first_failed.error
        if self._waiting_lines:
            returned = [rank.rank for rank in self._ranks if not rank.cancelled]
            lines = [*self._waiting_lines, *([f"{ranks_text(returned)} returned"] if returned else [])]
            raise CollectiveMismatch("\n  ".join(["simulated ranks wait for each other in vain:", *lines]))
        return [rank.result for rank in self._ranks]

    def _call_lines(self, ranks: "Sequence[SimulatedRank]", verb: str, plural_verb: str) -> list[str]:
        """Return lines on the calls that *ranks* are in, and the lines of the program that made them.

        *verb* and *plural_verb* are for one rank and for several: "ranks 0, 2 wait in barrier at f.py:9 in step".
        """
        operations = {call[1].world: call[0] for call in watch.calls[::-1] if call[1] is not None}  # the outermost
        callers = stacks.of_callers()
        calls = {rank.rank: (operations.get(rank, ""), callers.get(rank.thread.ident, "")) for rank in ranks}
        return in_calls(calls, verb, plural_verb)

    def arrive(
        self,
        key: Key,
        operation: str,
        members: tuple[int, ...],
        payload: P,
        complete: Callable[[dict[int, P]], R],
    ) -> "Rendezvous[P, R]":
        """Arrive at the rendezvous of *key*, and return it.

        Parameters
        ----------
        key: key of the rendezvous, the same on all members
        operation: name of the operation; if it differs between members, they have made different calls
        members: ranks that take part
        payload: value that this rank brings
        complete: function that the last rank to arrive calls with the values of all members
        """
        rank = self.here()
        if rank.cancelled:
            raise _Cancelled
        rendezvous = self._rendezvous.setdefault(key, Rendezvous(self))
        rendezvous.payloads[rank.rank] = payload
        rendezvous.operations[rank.rank] = operation
        self.events += 1
        if len(rendezvous.payloads) == len(members):
            del self._rendezvous[key]
            rendezvous.finish(complete)
            for member in rendezvous.waiting:
                if member not in rendezvous.left_ranks:
                    self._ranks[member].ready, self._ranks[member].waits_at = True, None
        return rendezvous

    def missing(self, key: Key, operation: str, members: tuple[int, ...]) -> list[int]:
        """Wait until all *members* arrive at *key*, or no rank can go on, and return the members that are missing."""
        rendezvous, rank = self.arrive(key, operation, members, None, lambda payloads: None), self.here()
        rank.waits_at = None if rendezvous.is_over else rendezvous
        rendezvous.let_others_come()
        if rank.rank in rendezvous.left_ranks:
            return [member for member in members if member not in rendezvous.payloads]
        rendezvous.result()
        return []


class Rendezvous(Generic[P, R]):
    """A rendezvous of ranks of *world* for one operation."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.payloads: dict[int, P] = {}
        self.operations: dict[int, str] = {}
        self.waiting: list[int] = []
        self.left_ranks: list[int] = []  # ranks that arrived, but did not wait to the end
        self.is_over = False
        self._outcome: R | None = None
        self._error: Exception | None = None

    def let_others_come(self) -> None:
        """Let others run until all have arrived, or the wait of this rank ends."""
        if not self.is_over:
            rank = self._world.here()
            self.waiting.append(rank.rank)
            rank.wait()

    def test(self) -> bool:
        """Return whether all have arrived, after the others had a turn."""
        if not self.is_over:
            self._world.here().pause()
        if self.is_over:
            self.result()
        return self.is_over

    def result(self) -> R:
        """Wait for the others, and return the outcome, or raise the error, on each rank."""
        self.let_others_come()
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return cast("R", self._outcome)

    wait = equal = result

    def finish(self, complete: Callable[[dict[int, P]], R]) -> None:
        """Compute the outcome, or the error, for all ranks."""
        self.is_over, world = True, self._world
        if len(set(self.operations.values())) > 1:
            lines = world._call_lines([world._ranks[rank] for rank in sorted(self.operations)], "is", "are")
            self._error = CollectiveMismatch("\n  ".join(["simulated ranks made different calls:", *lines]))
            return
        try:
            self._outcome = complete(self.payloads)
        except Exception as error:
            self._error = error


class _Cancelled(BaseException):
    """Ends a simulated rank that waits in vain; no ``except Exception`` should catch it."""


class _ThreadState(threading.local):
    """The simulated rank of a thread, and the simulated worlds that it has entered."""

    def __init__(self) -> None:
        self.rank: SimulatedRank | None = None
        self.stack: list[SimulatedWorld] = []


_thread_state = _ThreadState()


def current_world() -> SimulatedWorld | None:
    """Return the simulated world that the caller is in, if any."""
    if _thread_state.rank is not None:
        return _thread_state.rank.simulated_world
    return _thread_state.stack[-1] if _thread_state.stack else None


def current_rank() -> "SimulatedRank | None":
    """Return the simulated rank that calls this; None elsewhere."""
    return _thread_state.rank


class SimulatedRank(World):
    """One rank of a simulated world: a thread that runs in its turns."""

    takes_turns = True

    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        super().__init__(world.size, rank)
        self.simulated_world = world
        self.turn = threading.Semaphore(0)
        self.done = True

    def start(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        """Start the thread; it waits for its first turn."""
        self._rank_sets.clear()
        self._locations.clear()
        self.unfinished.clear()
        self.ready, self.done, self.cancelled = True, False, False
        self.result: object = None
        self.error: BaseException | None = None
        self.failed_at = 0
        self._pauses, self._events_at_pause = 0, 0
        self.waits_at: Rendezvous[Any, Any] | None = None
        target, name = copy_context().run, f"simulated rank {self.rank}"  # a default mesh is that of the caller
        self.thread = threading.Thread(target=target, args=(self._main, function, args), name=name, daemon=True)
        self.thread.start()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread, as soon as it runs Python code again."""
        thread = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))

    def wait(self) -> None:
        """Let other ranks run until this one is ready again."""
        self.ready = False
        self._let_others_run()

    def pause(self) -> None:
        """Let each other rank have a turn; ``CollectiveMismatch`` after many turns without any progress."""
        events = self.simulated_world.events
        self._pauses = self._pauses + 1 if events == self._events_at_pause else 0
        self._events_at_pause = events
        if self._pauses > MAX_PAUSES:
            raise CollectiveMismatch(f"simulated rank {self.rank} asks again and again for what does not come")
        self._let_others_run()

    def _let_others_run(self) -> None:
        self.simulated_world._control.release()
        self.turn.acquire()
        if self.cancelled:
            raise _Cancelled

    def _main(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self.turn.acquire()
        _thread_state.rank = self
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
        return SimulatedCommunicator(self.simulated_world, self.rank, ("ranks", *ranks), tuple(ranks))
