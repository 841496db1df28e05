"""What a recorder of calls hears of, and how: the recorder itself is in :mod:`meshcomm.core.ranks.recording`."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic_ns
from typing import NamedTuple, Protocol

from meshcomm.core._types import Counts


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


class Arrival(NamedTuple):
    """That a rank begins an operation that others may wait for.

    A stream is a row of operations that its ranks make in one order: the collective ones of a communicator, or the
    messages from one rank to another. So stream and *number* name the operation on all ranks.
    """

    stream: str
    number: int
    position: int
    """That of the rank among those of the stream."""


class NeededArrivals(NamedTuple):
    """The arrivals in an operation without which a rank cannot complete it: those of the ranks at *positions*."""

    stream: str
    number: int
    positions: Sequence[int]


class Waits(NamedTuple):
    """Why an operation may wait for other ranks, and they for this one."""

    arrivals: tuple[Arrival, ...] = ()
    needed: tuple[NeededArrivals, ...] = ()


NOBODY = Waits()


class Stream(Protocol):
    """A communicator, as far as a recorder asks: the rank that calls it, and its name on all of them."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


class Positions(Protocol):
    """A rendezvous in shared memory: its members, and which of them this rank is."""

    @property
    def members(self) -> Sequence[int]: ...
    @property
    def position(self) -> int: ...


class InMemory(Protocol):
    """A group of ranks that exchange in shared memory."""

    @property
    def opened(self) -> Stream | None: ...
    @property
    def rendezvous(self) -> Positions | None: ...


class CallListener(Protocol):
    """A listener to the calls and exchanges of this rank; `meshcomm.core.ranks.recording` says what each entry is."""

    def describe(self, key: Hashable, describe: Callable[..., str], subject: tuple[object, ...]) -> None: ...
    def record_exchange(self, way: str, began: int, traffic: Traffic) -> None: ...
    def record_interval(
        self, kind: str, activity: str, began: int, ended: int | None = None, dependencies: Waits = NOBODY
    ) -> None: ...
    def timer(self, function_name: str, dependencies: Waits = NOBODY) -> "Timer": ...
    def collective_timer(self, function_name: str, communicator: Stream, counts: Counts | None = None) -> "Timer": ...
    def point_to_point_timer(
        self, function_name: str, communicator: Stream, destinations: Iterable[int], sources: Iterable[int]
    ) -> "Timer": ...
    def record_shared_exchange(
        self, times: tuple[int, int, int, int] | None, group: InMemory, peers: Sequence[int]
    ) -> None: ...
    def record_agreement(self) -> None: ...
    def record_job_end(self) -> None: ...


class Timer:
    """Tells when an operation of MPI, which begins when this is made, is over.

    Parameters
    ----------
    recorder: recorder to report to
    function_name: name of the function of MPI
    dependencies: ranks that may wait for the operation, and for which it may wait
    """

    __slots__ = ("_began", "_dependencies", "_recorder", "_what")

    def __init__(self, recorder: CallListener, function_name: str, dependencies: Waits) -> None:
        self._recorder, self._what, self._dependencies = recorder, function_name, dependencies
        self._began = monotonic_ns()

    def __call__(self) -> None:
        """Tell that the operation is over."""
        self._recorder.record_interval("mpi", self._what, self._began, None, self._dependencies)

    def posted(self) -> Waits:
        """Tell that a nonblocking operation has begun, and return whom to wait for later."""
        self._recorder.record_interval("mpi", self._what, self._began, None, self._dependencies._replace(needed=()))
        return self._dependencies._replace(arrivals=())
