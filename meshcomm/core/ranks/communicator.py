"""The interface of communicators, over MPI or simulated."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Bytes, Counts
from meshcomm.core.failures.watch import watch

T = TypeVar("T")

Side: TypeAlias = tuple[Counts, Counts, int]
"""Counts and offsets, as in `Buffers`, and the total bytes of a buffer that is not allocated yet."""

Buffers: TypeAlias = tuple[Bytes, Counts, Counts]
"""One side of an exchange: a buffer, and for each rank its number of bytes and their offset in the buffer."""

NO_TIMER: Callable[[], object] = bool
"""A no-op in place of a timer while no recorder is active: bool is written in C, and each exchange calls it."""


class Pending(Protocol):
    """Communication that may still be in flight. Once it is complete, `test` returns True and `wait` does not wait."""

    def test(self) -> bool:
        """Return whether it is complete."""

    def wait(self) -> object:
        """Wait until it is complete."""


class Comparison(Protocol):
    """A comparison of numbers that may still be in flight."""

    def test(self) -> bool:
        """Return whether it is complete."""

    def equal(self) -> bool:
        """Wait until it is complete, and return whether all ranks have the same number."""


class NumberMessages(Protocol):
    """Persistent messages that exchange a number of 63 bits with some other ranks."""

    def start(self, number: int) -> None:
        """Send a *number* of 63 bits, and return at once. Call `differing` for the previous number first."""

    def differing(self) -> list[int]:
        """Wait for the numbers of the others, and return the ranks that sent another one than this rank."""


class Channel(Pending, Protocol):
    """Messages that are sent again and again, in buffers of their own: fill one, start, wait, and read the other."""

    send: Bytes
    receive: Bytes
    start: Callable[[], None]  # begins to send and to receive, and returns at once

    def give_back(self) -> None:
        """Let the next exchange use the channel, once it is complete and what it received has been read."""


class Channels(Protocol):
    """The channels of one exchange."""

    closed: bool
    """Whether they were evicted for newer exchanges, the same on all ranks: a channel taken then is used only once."""

    def take(self) -> Channel:
        """Return a channel that nobody uses. The ranks start theirs in one order."""


class Communicator(ABC):
    """A communicator. All calls but `progress` and `free` are Collective over its ranks."""

    size: int
    rank: int

    name = ""
    """The same on all its ranks, and different for each communicator of these ranks; "" if it has none."""

    @abstractmethod
    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        """Send bytes to each rank, and receive bytes from each rank."""

    @abstractmethod
    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        """As `alltoallv`, but return at once; all memory is in use until the result is complete."""

    @abstractmethod
    def start_messages(self, send: Buffers, receive: Buffers) -> Pending:
        """As `start_alltoallv`, by point-to-point messages of sizes that every MPI can count."""

    @abstractmethod
    def permute(self, data: Bytes, destination: int | None, buffer: Bytes, source: int | None) -> None:
        """Send *data* to rank *destination*, if any, and receive *buffer* from rank *source*, if any."""

    @abstractmethod
    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        """Receive the bytes *send* of every rank."""

    @abstractmethod
    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elementwise maximum of *values* over the ranks."""

    @abstractmethod
    def start_comparison(self, number: int) -> Comparison:
        """Begin to compare a *number* of 63 bits with those of all ranks, and return at once."""

    def numbers(self, destinations: list[int], sources: list[int]) -> NumberMessages:
        """Return messages with a number to the ranks *destinations*, and from the ranks *sources*. Not collective."""
        raise NotImplementedError("simulated ranks compare numbers in reductions, which cost them nothing")

    def channels(self, send: Side, receive: Side) -> Channels:
        """Return the channels of an exchange of small messages. Not collective."""
        raise NotImplementedError("simulated ranks have no header in their messages, and so no channels")

    @abstractmethod
    def allgather(self, message: bytes) -> list[bytes]:
        """Return the message of every rank; lengths may differ."""

    def allgather_json(self, message: T) -> list[T]:
        """Return the *message* of every rank, a value that JSON can hold; tuples become lists.

        ``TypeError`` on all ranks if JSON cannot hold one of them.
        """
        try:
            encoded = as_json_text(message)
        except TypeError as error:
            encoded = _ERROR_PREFIX + str(error).encode()
        messages = self.allgather_texts(encoded)
        refusal = next((text for text in messages if text.startswith(_ERROR_PREFIX)), None)
        if refusal is not None:
            raise TypeError(refusal.removeprefix(_ERROR_PREFIX).decode())
        return [json.loads(text) for text in messages]

    def allgather_texts(self, encoded: bytes) -> list[bytes]:
        """Return the text *encoded* of every rank; texts are those of `as_json_text`."""
        if watch.recorder is not None:
            watch.recorder.record_agreement()
        return self.allgather(encoded)

    @abstractmethod
    def gather(self, message: bytes, root: int) -> list[bytes]:
        """Return on rank *root* the message of every rank, elsewhere an empty list; lengths may differ."""

    def gather_json(self, root: int, message: T) -> list[T]:
        """Return on rank *root* the message of every rank, as `allgather_json` does; elsewhere an empty list."""
        if watch.recorder is not None:
            watch.recorder.record_agreement()
        return [json.loads(text) for text in self.gather(as_json_text(message), root)]

    @abstractmethod
    def broadcast(self, data: Bytes, root: int) -> None:
        """Overwrite *data* with that of rank *root*."""

    @abstractmethod
    def send(self, data: Bytes, rank: int) -> None:
        """Send *data* to *rank*, which must `receive` it. Blocks until *data* may be changed."""

    @abstractmethod
    def receive(self, buffer: Bytes, rank: int) -> None:
        """Receive what *rank* sends, which fills *buffer* exactly."""

    @abstractmethod
    def barrier(self, seconds: float) -> list[int]:
        """Wait until all ranks are here and return []; after *seconds*, return the ranks that may be missing."""

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """Return a communicator of the ranks that pass the same *color*, ordered by *key*."""

    def progress(self) -> None:  # noqa: B027 - simulated ranks have nothing to advance
        """Let messages of MPI advance."""

    def free(self) -> None:  # noqa: B027 - nor to give back
        """Give the communicator back."""


_ERROR_PREFIX = b"\0"
"""The prefix of an error text, in place of JSON."""


def as_json_text(message: object) -> bytes:
    """Return *message* as JSON. ``TypeError`` if JSON cannot hold it.

    >>> as_json_text([1, "text"])
    b'[1, "text"]'
    """
    return json.dumps(message).encode()


def receive_buffer(lengths: NDArray[np.int64]) -> Buffers:
    """Return a new buffer for consecutive messages of these *lengths*, in bytes."""
    counts: list[int] = lengths.tolist()
    return np.empty(sum(counts), dtype=np.uint8), counts, (np.cumsum(lengths) - lengths).tolist()


def message_of(buffers: Buffers, rank: int) -> Bytes:
    """Return the bytes in *buffers* that go to *rank*, or come from it."""
    data, counts, offsets = buffers
    return data[offsets[rank] : offsets[rank] + counts[rank]]


def split_messages(buffers: Buffers) -> list[bytes]:
    """Return the messages in *buffers*, one from each rank."""
    return [message_of(buffers, rank).tobytes() for rank in range(len(buffers[1]))]
