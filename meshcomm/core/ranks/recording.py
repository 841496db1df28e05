"""What this rank does, reported to those who count or trace it.

While nobody listens, `watch.recorder` is None: each call and each exchange tests this attribute, and does no more.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic_ns
from typing import final

import numpy as np

from meshcomm.core._types import Counts
from meshcomm.core.failures.recorder import (
    NOBODY,
    NOTHING,
    Arrival,
    InMemory,
    NeededArrivals,
    Stream,
    Timer,
    Traffic,
    Waits,
)
from meshcomm.core.failures.watch import watch
from meshcomm.core.memory._rendezvous import measure_times
from meshcomm.core.ranks.simulate import SimulatedRank, current_rank

WAITS = "wait until the others are ready"
"""What a rank does before it copies in shared memory."""

_MAX_CACHED = 1024
"""Texts of known calls that are kept while a trace goes on; then they are made anew."""


class Span:
    """A collective call from its begin to its end.

    Parameters
    ----------
    operation: operation of the call, with the name that the user gave it
    stack: calls in progress on this thread, outermost first
    listeners: listeners that hear of it
    """

    __slots__ = ("began", "ended", "listeners", "operation", "stack", "text", "traffic")

    def __init__(self, operation: str, stack: "list[Span]", listeners: "tuple[Listener, ...]") -> None:
        self.operation, self.stack, self.listeners = operation, stack, listeners
        self.text, self.traffic = "", NOTHING
        self.began = monotonic_ns()
        self.ended = 0

    @property
    def is_outermost(self) -> bool:
        """Whether the user made this call. Asked when it has left the stack."""
        return not self.stack

    def end(self) -> None:
        """Tell the listeners that the call is over."""
        self.ended = monotonic_ns()
        for listener in self.listeners:
            listener.on_call_end(self)


class Listener:
    """Hears of what a rank does."""

    wants_details = False
    """Whether it wants to know of each call what it is about, and how long it waited."""

    def on_call_end(self, span: Span) -> None:
        """Hear of a call that is over."""

    def on_exchange(self, operation: str, way: str, interval: tuple[int, int], traffic: Traffic) -> None:
        """Hear of an exchange of data within the call *operation* of the user."""

    def on_interval(self, kind: str, what: str, interval: tuple[int, int], dependencies: Waits) -> None:
        """Hear of time within a call: a kind, "mpi", "wait", "copy" or "user", and what the rank did with whom."""

    def on_start(self, sequence_numbers: dict[str, int]) -> None:
        """Hear how many operations of each stream this rank has made before it listens."""

    def on_job_end(self) -> None:
        """Hear that the job ends before the program does, maybe more than once."""

    def on_agreement(self) -> None:
        """Hear that the rank exchanged a few bytes with others to agree on a call."""


class _Thread(threading.local):
    """The calls of a thread that go on."""

    def __init__(self) -> None:
        self.stack: list[Span] = []


@final
class Recorder:
    """Tells listeners what their rank does: a simulated one, or this process with all simulated ranks in it."""

    def __init__(self) -> None:
        self._listeners: dict[SimulatedRank | None, tuple[Listener, ...]] = {}
        self._thread = _Thread()
        self._texts: dict[Hashable, str] = {}
        self._sequence_numbers: dict[str, int] = {}
        self._positions: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._wants_details = False

    def add(self, listener: Listener) -> None:
        """Let *listener* hear of this rank from now on."""
        rank = current_rank()
        listener.on_start(dict(self._sequence_numbers))
        self._listeners[rank] = (*self._listeners.get(rank, ()), listener)
        self._listeners_changed()

    def remove(self, listener: Listener) -> None:
        """Stop notifying *listener*."""
        for rank, listeners in list(self._listeners.items()):
            left = tuple(other for other in listeners if other is not listener)
            if left:
                self._listeners[rank] = left
            else:
                del self._listeners[rank]
        self._listeners_changed()

    def _listeners_changed(self) -> None:
        self._wants_details = any(
            listener.wants_details for listeners in self._listeners.values() for listener in listeners
        )
        self._texts.clear()
        measure_times(self._wants_details)
        watch.recorder = self if self._listeners else None

    def _current_listeners(self) -> tuple[Listener, ...]:
        listeners, rank = self._listeners, current_rank()
        return listeners.get(None, ()) if rank is None else (*listeners.get(None, ()), *listeners.get(rank, ()))

    def begin(self, operation: str) -> Span:
        """Return a call that begins. The caller puts it on its stack."""
        return Span(operation, self._thread.stack, self._current_listeners())

    def describe(self, key: Hashable, describe: Callable[..., str], subject: tuple[object, ...]) -> None:
        """Say what the call that goes on is about, if a trace wants to know: what *describe* makes of *subject*."""
        stack = self._thread.stack
        if not self._wants_details or not stack:
            return
        text = self._texts.get(key) if key is not None else None
        if text is None:
            text = describe(*subject)
            if key is not None and len(self._texts) < _MAX_CACHED:
                self._texts[key] = text
        stack[-1].text = text

    def record_exchange(self, way: str, began: int, traffic: Traffic) -> None:
        """Report a completed exchange of data that started at *began* (``monotonic_ns``)."""
        stack = self._thread.stack
        for span in stack:
            span.traffic = span.traffic.plus(traffic)
        operation = stack[0].operation if stack else ""
        interval = began, monotonic_ns()
        for listener in self._current_listeners():
            listener.on_exchange(operation, way, interval, traffic)

    def record_interval(
        self, kind: str, what: str, began: int, ended: int | None = None, dependencies: Waits = NOBODY
    ) -> None:
        """Tell how this rank spent the time since *began*, or until it *ended*."""
        if self._wants_details:
            interval = began, monotonic_ns() if ended is None else ended
            for listener in self._current_listeners():
                listener.on_interval(kind, what, interval, dependencies)

    def timer(self, what: str, dependencies: Waits = NOBODY) -> Timer:
        """Return what to call when *what*, which now begins in MPI, is over."""
        return Timer(self, what, dependencies)

    def collective_timer(self, what: str, communicator: Stream, counts: Counts | None = None) -> Timer:
        """Return the timer of a collective operation. It needs the ranks with *counts* of bytes, by default all."""
        if not self._wants_details or not communicator.name:
            return Timer(self, what, NOBODY)
        positions = (
            range(communicator.size) if counts is None else self._interned_tuple(np.flatnonzero(counts).tolist())
        )
        return Timer(self, what, self._in_stream(communicator.name, communicator.rank, positions))

    def point_to_point_timer(
        self, what: str, communicator: Stream, destinations: Iterable[int], sources: Iterable[int]
    ) -> Timer:
        """Return the timer of messages to some ranks, and from some."""
        if not self._wants_details or not communicator.name:
            return Timer(self, what, NOBODY)
        name, rank = communicator.name, communicator.rank
        sent, received = (
            [f"{name}: {rank} to {peer}" for peer in destinations],
            [f"{name}: {peer} to {rank}" for peer in sources],
        )
        arrivals = tuple(Arrival(stream, self._next_number(stream), 0) for stream in sent)
        return Timer(
            self,
            what,
            Waits(arrivals, tuple(NeededArrivals(stream, self._next_number(stream), (0,)) for stream in received)),
        )

    def record_shared_exchange(
        self, times: tuple[int, int, int, int] | None, group: InMemory, peers: Sequence[int]
    ) -> None:
        """Tell of an exchange in shared memory with those of *peers*, which are positions in the rendezvous.

        *times* say when it began, when all were ready, its copies done, and all done.
        """
        if times is None:
            return
        began, ready, copied, left = times
        communicator, rendezvous, dependencies = group.opened, group.rendezvous, NOBODY
        if communicator is not None and communicator.name and rendezvous is not None:
            stream = f"{communicator.name} in the memory of {rendezvous.members[0]}"
            dependencies = self._in_stream(stream, rendezvous.position, self._interned_tuple(peers))
        self.record_interval("wait", WAITS, began, ready, dependencies)
        self.record_interval("copy", "copy", ready, copied)
        self.record_interval("wait", "wait until the others have copied", copied, left)

    def _in_stream(self, stream: str, position: int, positions: Sequence[int]) -> Waits:
        number = self._next_number(stream)
        return Waits((Arrival(stream, number, position),), (NeededArrivals(stream, number, positions),))

    def _next_number(self, stream: str) -> int:
        number = self._sequence_numbers[stream] = self._sequence_numbers.get(stream, 0) + 1
        return number

    def _interned_tuple(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Return *positions* as one tuple for all operations that have the same ones."""
        if len(self._positions) > _MAX_CACHED:
            self._positions.clear()
        return self._positions.setdefault(tuple(positions), tuple(positions))

    def record_job_end(self) -> None:
        """Tell that the job ends before the program does."""
        for listeners in list(self._listeners.values()):
            for listener in listeners:
                listener.on_job_end()

    def record_agreement(self) -> None:
        """Tell that this rank exchanged a few bytes with others to agree on a call."""
        for listener in self._current_listeners():
            listener.on_agreement()


recorder = Recorder()
