"""What meshcomm asks of a communicator, over MPI or simulated."""

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
"""Counts and offsets, as in `Buffers`, and total bytes of a buffer that is not allocated yet."""

Buffers: TypeAlias = tuple[Bytes, Counts, Counts]
"""One side of an exchange: the data, and for each rank how many bytes of it and from which offset."""

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
        """Wait until it is complete, and return whether all ranks brought the same number."""


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
    """Whether they were evicted for newer exchanges, the same on all ranks: one that is taken then is used once."""

    def take(self) -> Channel:
        """Return a channel that nobody uses. The ranks start theirs in one order."""


class Communicator(ABC):
    """What meshcomm asks of a communicator. All calls but `progress` and `free` are Collective over its ranks."""

    size: int
    rank: int

    name = ""
    """The same on all its ranks, and another one than that of each other communicator of theirs; "" if it has none."""

    @abstractmethod
    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        """Send bytes to each rank, and receive bytes of each rank."""

    @abstractmethod
    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        """As `alltoallv`, but return at once; all memory is in use until what is returned is complete."""

    @abstractmethod
    def start_messages(self, send: Buffers, receive: Buffers) -> Pending:
        """As `start_alltoallv`, in messages of a size that every MPI can count."""

    @abstractmethod
    def permute(self, data: Bytes, to: int | None, into: Bytes, source: int | None) -> None:
        """Send *data* to rank *to*, if any, and receive *into* from rank *source*, if any."""

    @abstractmethod
    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        """Receive the bytes *send* of every rank."""

    @abstractmethod
    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elementwise maximum of *values* over the ranks."""

    @abstractmethod
    def start_comparison(self, number: int) -> Comparison:
        """Begin to compare a *number* of 63 bits with those of all ranks, and return at once."""

    def numbers(self, to: list[int], sources: list[int]) -> NumberMessages:
        """Return how to send numbers to the ranks *to*, and receive those of *sources*. Not collective."""
        raise NotImplementedError("simulated ranks compare numbers in reductions, which cost them nothing")

    def channels(self, send: Side, receive: Side) -> Channels:
        """Return the channels of an exchange of small messages. Not collective."""
        raise NotImplementedError("simulated ranks have no header in their messages, and so no channels")

    @abstractmethod
    def allgather(self, message: bytes) -> list[bytes]:
        """Return the message of every rank; they may differ in length."""

    def allgather_json(self, message: T) -> list[T]:
        """Return the message of every rank, which is a value that JSON can hold: tuples become lists. Never pickles.

        ``TypeError`` on all ranks if JSON cannot hold one of them.
        """
        try:
            encoded = as_json_text(message)
        except TypeError as error:
            encoded = _REFUSED + str(error).encode()
        messages = self.allgather_texts(encoded)
        refused = next((received for received in messages if received.startswith(_REFUSED)), None)
        if refused is not None:
            raise TypeError(refused.removeprefix(_REFUSED).decode())
        return [json.loads(received) for received in messages]

    def allgather_texts(self, encoded: bytes) -> list[bytes]:
        """Return the text of every rank, as `as_json_text` makes it."""
        if watch.recorder is not None:
            watch.recorder.record_agreement()
        return self.allgather(encoded)

    @abstractmethod
    def gather(self, message: bytes, root: int) -> list[bytes]:
        """Return the message of every rank on rank *root*, and an empty list elsewhere; they may differ in length."""

    def gather_json(self, root: int, message: T) -> list[T]:
        """Return the message of every rank on rank *root*, as `allgather_json` does; elsewhere an empty list."""
        if watch.recorder is not None:
            watch.recorder.record_agreement()
        return [json.loads(text) for text in self.gather(as_json_text(message), root)]

    @abstractmethod
    def broadcast(self, data: Bytes, root: int) -> None:
        """Overwrite *data* by that of rank *root*."""

    @abstractmethod
    def send(self, data: Bytes, rank: int) -> None:
        """Send *data* to *rank*, which must `receive` it. Blocks until *data* may be changed."""

    @abstractmethod
    def receive(self, into: Bytes, rank: int) -> None:
        """Receive what *rank* sends, of just the size of *into*."""

    @abstractmethod
    def barrier(self, seconds: float) -> list[int]:
        """Wait until all ranks are here and return an empty list, or after *seconds* those that may be missing."""

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """Return a communicator of the ranks that pass the same *color*, ordered by *key*."""

    def progress(self) -> None:  # noqa: B027 - simulated ranks have nothing to advance
        """Let messages of MPI advance."""

    def free(self) -> None:  # noqa: B027 - nor to give back
        """Give the communicator back."""


_REFUSED = b"\0"
"""What begins the text of an error instead of JSON."""


def as_json_text(message: object) -> bytes:
    """Return *message* as bytes. ``TypeError`` for what JSON cannot hold: the other ranks would wait in vain.

    >>> as_json_text([1, "text"])
    b'[1, "text"]'
    """
    return json.dumps(message).encode()


def receive_buffer(lengths: NDArray[np.int64]) -> Buffers:
    """Return an uninitialized buffer for consecutive messages of these lengths."""
    counts: list[int] = lengths.tolist()
    return np.empty(sum(counts), dtype=np.uint8), counts, (np.cumsum(lengths) - lengths).tolist()


def message_of(memory: Buffers, rank: int) -> Bytes:
    """Return what is sent to *rank*, or received from it, in *memory*."""
    data, counts, offsets = memory
    return data[offsets[rank] : offsets[rank] + counts[rank]]


def split_messages(memory: Buffers) -> list[bytes]:
    """Return the messages that were received in *memory*."""
    return [message_of(memory, rank).tobytes() for rank in range(len(memory[1]))]
