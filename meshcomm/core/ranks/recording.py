"""The recorder: it reports calls and exchanges of this rank to listeners, which count or trace them.

Without listeners, `watch.recorder` is None: each call and each exchange tests this attribute, and does no more.
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

WAIT_UNTIL_READY = "wait until the others are ready"
"""The wait of a rank before it copies in shared memory."""

_MAX_CACHED = 1024
"""The number of texts of known calls that are kept during a trace, and of tuples of positions; further texts are made
anew at each call."""


class Span:
    """A collective call, from its beginning to its end.

    Parameters
    ----------
    operation: operation of the call, with the name that the user gave it
    stack: calls in progress on this thread, outermost first
    listeners: listeners to report it to
    """

    __slots__ = ("began", "call_text", "ended", "listeners", "operation", "stack", "traffic")

    def __init__(self, operation: str, stack: "list[Span]", listeners: "tuple[Listener, ...]") -> None:
        self.operation, self.stack, self.listeners = operation, stack, listeners
        self.call_text, self.traffic = "", NOTHING
        self.began = monotonic_ns()
        self.ended = 0

    @property
    def is_outermost(self) -> bool:
        """Whether the user made this call. Valid once it has left the stack."""
        return not self.stack

    def end(self) -> None:
        """Report to the listeners that the call is over."""
        self.ended = monotonic_ns()
        for listener in self.listeners:
            listener.on_call_end(self)


class Listener:
    """The base of listeners: its methods are called with the activities of a rank."""

    wants_details = False
    """Whether it needs the arguments of each call, and the time that it waited."""

    def on_call_end(self, span: Span) -> None:
        """Handle a call that is over."""

    def on_exchange(self, operation: str, transport: str, interval: tuple[int, int], traffic: Traffic) -> None:
        """Handle an exchange of data within the call *operation* of the user."""

    def on_interval(self, kind: str, activity: str, interval: tuple[int, int], waits: Waits) -> None:
        """Handle an interval of a call with one *activity*, whose *kind* is "mpi", "wait", "copy" or "user"."""

    def on_start(self, sequence_numbers: dict[str, int]) -> None:
        """Take the number of operations of each stream that this rank made before this listener was added."""

    def on_job_end(self) -> None:
        """Handle an end of the job while the program still runs, after an error; maybe called more than once."""

    def on_agreement(self) -> None:
        """Handle an agreement: the rank exchanged a few bytes with others to agree on a call."""


class _ThreadCalls(threading.local):
    """The calls in progress on a thread."""

    def __init__(self) -> None:
        self.stack: list[Span] = []


@final
class Recorder:
    """Reports to each listener the activities of its rank: a simulated one, or this process with all ranks in it."""

    def __init__(self) -> None:
        self._listeners: dict[SimulatedRank | None, tuple[Listener, ...]] = {}
        self._thread_calls = _ThreadCalls()
        self._call_texts: dict[Hashable, str] = {}
        self._sequence_numbers: dict[str, int] = {}
        self._interned_tuples: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._wants_details = False

    def add(self, listener: Listener) -> None:
        """Report this rank to *listener* from now on."""
        rank = current_rank()
        listener.on_start(dict(self._sequence_numbers))
        self._listeners[rank] = (*self._listeners.get(rank, ()), listener)
        self._listeners_changed()

    def remove(self, listener: Listener) -> None:
        """Stop reporting to *listener*."""
        for rank, listeners in list(self._listeners.items()):
            remaining = tuple(other for other in listeners if other is not listener)
            if remaining:
                self._listeners[rank] = remaining
            else:
                del self._listeners[rank]
        self._listeners_changed()

    def _listeners_changed(self) -> None:
        self._wants_details = any(
            listener.wants_details for listeners in self._listeners.values() for listener in listeners
        )
        self._call_texts.clear()
        measure_times(self._wants_details)
        watch.recorder = self if self._listeners else None

    def _current_listeners(self) -> tuple[Listener, ...]:
        listeners, rank = self._listeners, current_rank()
        return listeners.get(None, ()) if rank is None else (*listeners.get(None, ()), *listeners.get(rank, ()))

    def begin(self, operation: str) -> Span:
        """Return a span for a call that begins. The caller puts it on the stack of the span."""
        return Span(operation, self._thread_calls.stack, self._current_listeners())

    def describe(self, key: Hashable, make_text: Callable[..., str], subject: tuple[object, ...]) -> None:
        """Note the text of the current call, if a trace needs it: the result of ``make_text(*subject)``."""
        stack = self._thread_calls.stack
        if not self._wants_details or not stack:
            return
        call_text = self._call_texts.get(key) if key is not None else None
        if call_text is None:
            call_text = make_text(*subject)
            if key is not None and len(self._call_texts) < _MAX_CACHED:
                self._call_texts[key] = call_text
        stack[-1].call_text = call_text

    def record_exchange(self, transport: str, began: int, traffic: Traffic) -> None:
        """Report a completed exchange of data that began at *began* (``monotonic_ns``)."""
        stack = self._thread_calls.stack
        for span in stack:
            span.traffic = span.traffic.plus(traffic)
        operation = stack[0].operation if stack else ""
        interval = began, monotonic_ns()
        for listener in self._current_listeners():
            listener.on_exchange(operation, transport, interval, traffic)

    def record_interval(
        self, kind: str, activity: str, began: int, ended: int | None = None, waits: Waits = NOBODY
    ) -> None:
        """Report an activity of this rank from *began* to *ended*, by default until now."""
        if self._wants_details:
            interval = began, monotonic_ns() if ended is None else ended
            for listener in self._current_listeners():
                listener.on_interval(kind, activity, interval, waits)

    def timer(self, function_name: str, waits: Waits = NOBODY) -> Timer:
        """Return a timer for *function_name*, a function of MPI that begins now. Call the timer at its end."""
        return Timer(self, function_name, waits)

    def collective_timer(self, function_name: str, communicator: Stream, counts: Counts | None = None) -> Timer:
        """Return a timer for a collective operation, which waits for the ranks with nonzero *counts*; None is all."""
        if not self._wants_details or not communicator.name:
            return Timer(self, function_name, NOBODY)
        positions = (
            range(communicator.size) if counts is None else self._interned_tuple(np.flatnonzero(counts).tolist())
        )
        return Timer(self, function_name, self._next_collective_waits(communicator.name, communicator.rank, positions))

    def point_to_point_timer(
        self, function_name: str, communicator: Stream, destinations: Iterable[int], sources: Iterable[int]
    ) -> Timer:
        """Return a timer for messages to the ranks *destinations*, and from the ranks *sources*."""
        if not self._wants_details or not communicator.name:
            return Timer(self, function_name, NOBODY)
        name, rank = communicator.name, communicator.rank
        sent_streams, received_streams = (
            [f"{name}: {rank} to {peer}" for peer in destinations],
            [f"{name}: {peer} to {rank}" for peer in sources],
        )
        arrivals = tuple(Arrival(stream, self._next_number(stream), 0) for stream in sent_streams)
        return Timer(
            self,
            function_name,
            Waits(
                arrivals,
                tuple(NeededArrivals(stream, self._next_number(stream), (0,)) for stream in received_streams),
            ),
        )

    def record_shared_exchange(
        self, times: tuple[int, int, int, int] | None, sharing_group: InMemory, peers: Sequence[int]
    ) -> None:
        """Report an exchange in shared memory with *peers*, which are positions in the rendezvous.

        *times* are those at which it began, all ranks were ready, its copies were done, and all copies were done.
        """
        if times is None:
            return
        began, ready, copied, ended = times
        communicator, rendezvous, waits = sharing_group.opened, sharing_group.rendezvous, NOBODY
        if communicator is not None and communicator.name and rendezvous is not None:
            stream_name = f"{communicator.name} in the memory of {rendezvous.members[0]}"
            waits = self._next_collective_waits(stream_name, rendezvous.position, self._interned_tuple(peers))
        self.record_interval("wait", WAIT_UNTIL_READY, began, ready, waits)
        self.record_interval("copy", "copy", ready, copied)
        self.record_interval("wait", "wait until the others have copied", copied, ended)

    def _next_collective_waits(self, stream_name: str, position: int, positions: Sequence[int]) -> Waits:
        number = self._next_number(stream_name)
        return Waits((Arrival(stream_name, number, position),), (NeededArrivals(stream_name, number, positions),))

    def _next_number(self, stream_name: str) -> int:
        number = self._sequence_numbers[stream_name] = self._sequence_numbers.get(stream_name, 0) + 1
        return number

    def _interned_tuple(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Return *positions* as a tuple, the same object for equal positions."""
        if len(self._interned_tuples) > _MAX_CACHED:
            self._interned_tuples.clear()
        return self._interned_tuples.setdefault(tuple(positions), tuple(positions))

    def record_job_end(self) -> None:
        """Report that the job ends before the program does."""
        for listeners in list(self._listeners.values()):
            for listener in listeners:
                listener.on_job_end()

    def record_agreement(self) -> None:
        """Report that this rank exchanged a few bytes with others to agree on a call."""
        for listener in self._current_listeners():
            listener.on_agreement()


recorder = Recorder()
