"""What this rank does, told to those who count or trace it; `meshcomm.measuring` has them.

While nobody listens, `watch.recorder` is None: each call and each exchange tests this attribute, and does no more.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from time import monotonic_ns
from typing import NamedTuple, final

import numpy as np

from meshcomm._types import Indices
from meshcomm.memory._rendezvous import measure_times
from meshcomm.ranks.simulate import SimulatedRank, current_rank
from meshcomm.ranks.teams import Team
from meshcomm.ranks.watch import watch

_MOST_TEXTS = 1024
"""Texts of known calls that are kept while a trace goes on; then they are made anew."""


class Traffic(NamedTuple):
    """Data that a rank receives from others. A message is what one other rank has for it in one exchange."""

    messages: int = 0
    bytes: int = 0
    messages_between_nodes: int = 0
    bytes_between_nodes: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        """Return both together."""
        return Traffic(  # one by one: this is on the way of every exchange that is counted
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.messages_between_nodes + other.messages_between_nodes,
            self.bytes_between_nodes + other.bytes_between_nodes,
        )


NOTHING = Traffic()


def traffic_from(team: Team, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices) -> Traffic:
    """Return what a rank of *team* receives from other *ranks* of the world: *sizes* in bytes, one for each."""
    found = np.asarray(sizes, dtype=np.int64)
    some = found > 0
    nodes = team.machine.node_of(np.asarray([*ranks, team.world.rank], dtype=np.intp))
    off_node = some & (nodes[:-1] != nodes[-1])
    return Traffic(int(some.sum()), int(found.sum()), int(off_node.sum()), int(found[off_node].sum()))


class Span:
    """A collective call from its begin to its end.

    Parameters
    ----------
    operation: what the rank does, with the name that the user gave it
    stack: the calls of this thread that go on; the first one is what the user called
    listeners: who hears of it
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
            listener.called(self)


class Listener:
    """Hears of what a rank does."""

    traces = False
    """Whether it wants to know of each call what it is about, and how long it waited."""

    def called(self, span: Span) -> None:
        """Hear of a call that is over."""

    def exchanged(self, operation: str, way: str, interval: tuple[int, int], traffic: Traffic) -> None:
        """Hear of an exchange of data within the call *operation* of the user."""

    def spent(self, kind: str, what: str, interval: tuple[int, int]) -> None:
        """Hear of time within a call: a kind, "mpi", "wait", "copy" or "user", and what the rank did."""

    def job_ends(self) -> None:
        """Hear that this rank ends the job: nothing runs after that."""

    def agreed(self) -> None:
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
        self._traces = False

    def add(self, listener: Listener) -> None:
        """Let *listener* hear of this rank from now on."""
        rank = current_rank()
        self._listeners[rank] = (*self._listeners.get(rank, ()), listener)
        self._changed()

    def remove(self, listener: Listener) -> None:
        """Tell *listener* no more."""
        for rank, found in list(self._listeners.items()):
            left = tuple(each for each in found if each is not listener)
            if left:
                self._listeners[rank] = left
            else:
                del self._listeners[rank]
        self._changed()

    def _changed(self) -> None:
        self._traces = any(listener.traces for found in self._listeners.values() for listener in found)
        self._texts.clear()
        measure_times(self._traces)
        watch.recorder = self if self._listeners else None

    def _here(self) -> tuple[Listener, ...]:
        listeners, rank = self._listeners, current_rank()
        return listeners.get(None, ()) if rank is None else (*listeners.get(None, ()), *listeners.get(rank, ()))

    def begin(self, operation: str) -> Span:
        """Return a call that begins. The caller puts it on its stack."""
        return Span(operation, self._thread.stack, self._here())

    def describe(self, key: Hashable, describe: Callable[..., str], subject: tuple[object, ...]) -> None:
        """Say what the call that goes on is about, if a trace wants to know: what *describe* makes of *subject*."""
        stack = self._thread.stack
        if not self._traces or not stack:
            return
        text = self._texts.get(key) if key is not None else None
        if text is None:
            text = describe(*subject)
            if key is not None and len(self._texts) < _MOST_TEXTS:
                self._texts[key] = text
        stack[-1].text = text

    def exchanged(self, way: str, began: int, traffic: Traffic) -> None:
        """Tell of an exchange of data that *began* then and is over."""
        stack = self._thread.stack
        for span in stack:
            span.traffic = span.traffic.plus(traffic)
        operation = stack[0].operation if stack else ""
        interval = began, monotonic_ns()
        for listener in self._here():
            listener.exchanged(operation, way, interval, traffic)

    def spent(self, kind: str, what: str, began: int, ended: int | None = None) -> None:
        """Tell how this rank spent the time since *began*, or until it *ended*."""
        if self._traces:
            interval = began, monotonic_ns() if ended is None else ended
            for listener in self._here():
                listener.spent(kind, what, interval)

    def timer(self, what: str) -> Callable[[], None]:
        """Return what to call when *what*, which now begins in MPI, is over."""
        return partial(self.spent, "mpi", what, monotonic_ns())

    def shared(self, times: tuple[int, int, int, int] | None) -> None:
        """Tell of an exchange in shared memory: when it began, when all were ready, its copies done, and all done."""
        if times is not None:
            began, ready, copied, left = times
            self.spent("wait", "wait until the others are ready", began, ready)
            self.spent("copy", "copy", ready, copied)
            self.spent("wait", "wait until the others have copied", copied, left)

    def job_ends(self) -> None:
        """Tell that this rank ends the job."""
        for found in list(self._listeners.values()):
            for listener in found:
                listener.job_ends()

    def agreed(self) -> None:
        """Tell that this rank exchanged a few bytes with others to agree on a call."""
        for listener in self._here():
            listener.agreed()


recorder = Recorder()


def note_received(team: Team, ranks: Sequence[int] | Indices, sizes: Sequence[int] | Indices, began: int) -> None:
    """Tell of data that this rank has received by other means than an exchange, as `traffic_from` takes them."""
    if watch.recorder is not None:
        watch.recorder.exchanged("messages", began, traffic_from(team, ranks, sizes))
