"""`count`: count the calls of a rank, its messages and bytes."""

from dataclasses import dataclass
from types import TracebackType

from meshcomm.core.failures.recorder import NOTHING, Traffic
from meshcomm.core.failures.watch import kind
from meshcomm.core.ranks.recording import Listener, Span, recorder
from meshcomm.errors import MeshError
from meshcomm.tools.measuring.columns import in_columns

_OUTSIDE = "outside of calls"
_HEADINGS = ("operation", "calls", "messages", "bytes", "between nodes", "seconds")


@dataclass
class Tally:
    """The counts of one operation."""

    calls: int = 0
    """The number of calls by the user."""
    seconds: float = 0.0
    """The time of these calls on this rank, with waiting."""
    traffic: Traffic = NOTHING

    @property
    def messages(self) -> int:
        """The number of messages with data that this rank received."""
        return self.traffic.messages

    @property
    def bytes(self) -> int:
        """The bytes of data that this rank received from others."""
        return self.traffic.bytes

    @property
    def messages_between_nodes(self) -> int:
        """The number of messages from ranks on other nodes."""
        return self.traffic.messages_between_nodes

    @property
    def bytes_between_nodes(self) -> int:
        """The number of bytes from ranks on other nodes."""
        return self.traffic.bytes_between_nodes


class Count(Listener):
    """The counts of a rank within a ``with`` statement, made by `count`. The numbers may be read at any time.

    `operations` has a `Tally` for each operation that the user called, in the order of the first calls. Calls that an
    operation makes itself count as part of it. `agreements` is the number of times that the rank exchanged some bytes
    to agree with others on a call, or to tell them sizes: these are no data, and no other number includes them.
    """

    __module__ = "meshcomm"

    def __init__(self) -> None:
        self.operations: dict[str, Tally] = {}
        self.agreements = 0
        self._is_open = False

    def __enter__(self) -> "Count":
        if self._is_open:
            raise MeshError("this count goes on already: make another one with count()")
        self._is_open = True
        recorder.add(self)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        recorder.remove(self)

    def on_call_end(self, span: Span) -> None:
        if self._is_open and span.is_outermost:
            tally = self._tally(span.operation)
            tally.calls += 1
            tally.seconds += (span.ended - span.began) / 1e9

    def on_exchange(self, operation: str, transport: str, interval: tuple[int, int], traffic: Traffic) -> None:
        tally = self._tally(operation)
        tally.traffic = tally.traffic.plus(traffic)

    def on_agreement(self) -> None:
        self.agreements += 1

    def _tally(self, operation: str) -> Tally:
        return self.operations.setdefault(kind(operation) or _OUTSIDE, Tally())

    @property
    def total(self) -> Tally:
        """All operations together."""
        total = Tally()
        for tally in self.operations.values():
            total.calls, total.seconds = total.calls + tally.calls, total.seconds + tally.seconds
            total.traffic = total.traffic.plus(tally.traffic)
        return total

    @property
    def calls(self) -> int:
        """The number of collective calls of this rank."""
        return self.total.calls

    @property
    def messages(self) -> int:
        """The number of messages with data that this rank received: one for each sender in an exchange."""
        return self.total.messages

    @property
    def bytes(self) -> int:
        """The bytes of data that this rank received from others."""
        return self.total.bytes

    @property
    def messages_between_nodes(self) -> int:
        """The number of messages from ranks on other nodes."""
        return self.total.messages_between_nodes

    @property
    def bytes_between_nodes(self) -> int:
        """The number of bytes from ranks on other nodes."""
        return self.total.bytes_between_nodes

    @property
    def seconds(self) -> float:
        """The time of this rank in collective calls, with waiting for others."""
        return self.total.seconds

    def table(self) -> str:
        """Return a table with a line for each operation, and one for all of them.

        >>> import meshcomm as mc
        >>> mesh = mc.create_mesh([("x", 1)])
        >>> with mc.count() as c:
        ...     mc.barrier(mesh)
        >>> print(c.table())  # doctest: +ELLIPSIS
        operation  calls  messages  bytes  between nodes   seconds
        barrier        1         0      0              0  0.0...
        total          1         0      0              0  0.0...
        """
        rows = [_HEADINGS, *(_row(name, tally) for name, tally in self.operations.items()), _row("total", self.total)]
        return in_columns(rows)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"Count(calls={self.calls}, messages={self.messages}, bytes={self.bytes})"


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    counts = f"{tally.calls:,}", f"{tally.messages:,}", f"{tally.bytes:,}", f"{tally.bytes_between_nodes:,}"
    return (name, *counts, f"{tally.seconds:.6f}")


def count() -> Count:
    """Return a `Count` that counts collective calls, messages and bytes of this rank in a ``with`` statement.

    The counts are exact, and the same on every transport: in shared memory a message is a copy from the block of
    another rank, over MPI it is a message from that rank. Data is counted where it arrives, so the sum over all ranks
    is also the sum of what they sent. Bytes that stay on a rank do not count. A relayout counts what its plan
    predicts: ``bytes_moved`` and ``messages`` of ``plan.for_device``. A nonblocking call counts when it begins.

    Nothing is communicated. Counts may be nested. On simulated ranks each rank counts for itself; opened outside of
    ``world.run``, it counts all of them together.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     t = mc.distribute(np.arange(6.0).reshape(3, 2), mc.Layout(["x", mc.UNSHARDED], mesh))
    ...     with mc.count() as c:
    ...         u = mc.relayout(t, mc.Layout([mc.UNSHARDED, "x"], mesh))
    ...         v = u * 2
    ...     assert c.operations["relayout"].bytes == c.bytes
    ...     return c.calls, c.messages, c.bytes
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(1, 1, 8), (1, 1, 16)]
    """
    return Count()
