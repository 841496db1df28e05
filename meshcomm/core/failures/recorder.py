"""The interface of the recorder of calls, which is in :mod:`meshcomm.core.ranks.recording`, and its data."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic_ns
from typing import NamedTuple, Protocol

from meshcomm.core._types import Counts


class Traffic(NamedTuple):
    """Data that a rank receives from others. A message is all data from one other rank in one exchange."""

    messages: int = 0
    bytes: int = 0
    messages_between_nodes: int = 0
    bytes_between_nodes: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        """Return the sum of both."""
        return Traffic(  # field by field, which is fast: every exchange that is counted comes through here
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.messages_between_nodes + other.messages_between_nodes,
            self.bytes_between_nodes + other.bytes_between_nodes,
        )


NOTHING = Traffic()


class Arrival(NamedTuple):
    """The arrival of a rank at an operation that others may wait for.

    A stream is a sequence of operations that its ranks make in the same order: the collective operations of a
    communicator, or the messages from one rank to another. So *stream* and *number* identify the operation on all
    ranks.
    """

    stream: str
    number: int
    position: int
    """Position of the rank among the ranks of the stream."""


class NeededArrivals(NamedTuple):
    """The arrivals that a rank needs to complete an operation: those of the ranks at *positions*."""

    stream: str
    number: int
    positions: Sequence[int]


class Waits(NamedTuple):
    """The arrivals that an operation needs from other ranks, and its own, which others may need."""

    arrivals: tuple[Arrival, ...] = ()
    needed: tuple[NeededArrivals, ...] = ()


NOBODY = Waits()


class Stream(Protocol):
    """The attributes of a communicator that a recorder uses; the name is the same on all its ranks."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...


class Positions(Protocol):
    """The attributes of a rendezvous in shared memory that a recorder uses: members, and the position of this rank."""

    @property
    def members(self) -> Sequence[int]: ...
    @property
    def position(self) -> int: ...


class InMemory(Protocol):
    """The attributes of a group that a recorder uses: its communicator, and its rendezvous in shared memory."""

    @property
    def opened(self) -> Stream | None: ...
    @property
    def rendezvous(self) -> Positions | None: ...


class CallListener(Protocol):
    """The methods of a recorder; `meshcomm.core.ranks.recording.Recorder` describes them."""

    def describe(self, key: Hashable, make_text: Callable[..., str], subject: tuple[object, ...]) -> None: ...
    def record_exchange(self, transport: str, began: int, traffic: Traffic) -> None: ...
    def record_interval(
        self, kind: str, activity: str, began: int, ended: int | None = None, waits: Waits = NOBODY
    ) -> None: ...
    def timer(self, function_name: str, waits: Waits = NOBODY) -> "Timer": ...
    def collective_timer(self, function_name: str, communicator: Stream, counts: Counts | None = None) -> "Timer": ...
    def point_to_point_timer(
        self, function_name: str, communicator: Stream, destinations: Iterable[int], sources: Iterable[int]
    ) -> "Timer": ...
    def record_shared_exchange(
        self, times: tuple[int, int, int, int] | None, sharing_group: InMemory, peers: Sequence[int]
    ) -> None: ...
    def record_agreement(self) -> None: ...
    def record_job_end(self) -> None: ...


class Timer:
    """A timer of an operation of MPI, which begins with the timer and ends with a call of it.

    Parameters
    ----------
    recorder: recorder to report to
    function_name: name of the function of MPI
    waits: arrivals that the operation needs, and its own
    """

    __slots__ = ("_activity", "_began", "_recorder", "_waits")

    def __init__(self, recorder: CallListener, function_name: str, waits: Waits) -> None:
        self._recorder, self._activity, self._waits = recorder, function_name, waits
        self._began = monotonic_ns()

    def __call__(self) -> None:
        """Report that the operation is over."""
        self._recorder.record_interval("mpi", self._activity, self._began, None, self._waits)

    def posted(self) -> Waits:
        """Report that a nonblocking operation has begun, and return the arrivals that its wait needs later."""
        self._recorder.record_interval("mpi", self._activity, self._began, None, self._waits._replace(needed=()))
        return self._waits._replace(arrivals=())
