"""Communicators between simulated ranks: messages are copies within the process, made when all members are there."""

from collections.abc import Callable, Hashable
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Bytes
from meshcomm.core.ranks.communicator import Buffers, Communicator, Comparison, Pending, message_of
from meshcomm.errors import CollectiveMismatch

P = TypeVar("P")
R = TypeVar("R")
Outcome = TypeVar("Outcome", covariant=True)
Key: TypeAlias = tuple[Hashable, ...]
Sent: TypeAlias = tuple[Bytes, int | None, Bytes, int | None]
"""What a rank sends and to whom, and where it receives and from whom."""


class Arrived(Protocol[Outcome]):
    """An operation to which this rank has come; the outcome is there when all its members have."""

    def test(self) -> bool: ...
    def wait(self) -> Outcome: ...
    def equal(self) -> Outcome: ...
    def result(self) -> Outcome: ...


class Operations(Protocol):
    """A world of simulated ranks, as far as communicators ask; `meshcomm.core.ranks.simulate` says what each does."""

    @property
    def bytes_moved(self) -> list[int]: ...
    @property
    def messages(self) -> list[int]: ...
    def arrive(
        self,
        key: Key,
        operation: str,
        members: tuple[int, ...],
        payload: P,
        complete: Callable[[dict[int, P]], R],
    ) -> Arrived[R]: ...
    def missing(self, key: Key, operation: str, members: tuple[int, ...]) -> list[int]: ...


class SimulatedCommunicator(Communicator):
    """A communicator between simulated ranks."""

    def __init__(self, world: Operations, rank: int, key: Key, members: tuple[int, ...]) -> None:
        self._world = world
        self._key = key
        self._members = members
        self._calls = 0
        self.size = len(members)
        self.rank = members.index(rank)

    def _arrive(self, operation: str, payload: P, complete: Callable[[list[P]], R]) -> Arrived[R]:
        self._calls += 1
        return self._world.arrive(
            (self._key, self._calls),
            operation,
            self._members,
            payload,
            lambda brought: complete([brought[rank] for rank in self._members]),
        )

    def _arrive_and_wait(self, operation: str, payload: P, complete: Callable[[list[P]], R]) -> R:
        return self._arrive(operation, payload, complete).result()

    def _deliver(self, data: Bytes, sender: int, into: Bytes, receiver: int) -> None:
        if len(data) != len(into):
            raise CollectiveMismatch(
                f"rank {self._members[sender]} sends {len(data)} bytes to rank {self._members[receiver]}, "
                f"which expects {len(into)}"
            )
        into[:] = data
        if sender != receiver and len(data):
            self._world.bytes_moved[self._members[receiver]] += len(data)
            self._world.messages[self._members[receiver]] += 1

    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        self._arrive_and_wait("alltoallv", (send, receive), self._exchange)

    def _exchange(self, brought: list[tuple[Buffers, Buffers]]) -> None:
        for i, (send, _) in enumerate(brought):
            for j, (_, receive) in enumerate(brought):
                self._deliver(message_of(send, j), i, message_of(receive, i), j)

    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        return self._arrive("alltoallv", (send, receive), self._exchange)

    start_messages = start_alltoallv

    def permute(self, data: Bytes, to: int | None, into: Bytes, source: int | None) -> None:
        def complete(brought: list[Sent]) -> None:
            for receiver, (_, _, target, sender) in enumerate(brought):
                if sender is not None:
                    sent, goes_to, _, _ = brought[sender]
                    self._deliver(sent if goes_to == receiver else sent[:0], sender, target, receiver)

        self._arrive_and_wait("permute", (data, to, into, source), complete)

    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        def complete(brought: list[tuple[Bytes, Buffers]]) -> None:
            for j, (_, into) in enumerate(brought):
                for i, (data, _) in enumerate(brought):
                    self._deliver(data, i, message_of(into, i), j)

        self._arrive_and_wait("allgatherv", (send, receive), complete)

    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        def complete(brought: list[NDArray[np.int64]]) -> NDArray[np.int64]:
            return np.max(brought, axis=0)

        return self._arrive_and_wait("allreduce_max", values, complete).copy()

    def start_comparison(self, number: int) -> Comparison:
        return self._arrive("comparison", number, lambda numbers: len(set(numbers)) == 1)

    def allgather(self, message: bytes) -> list[bytes]:
        return self._arrive_and_wait("allgather", message, lambda brought: brought).copy()

    def gather(self, message: bytes, root: int) -> list[bytes]:
        brought = self._arrive_and_wait("gather", message, lambda brought: brought)
        return brought.copy() if self.rank == root else []

    def broadcast(self, data: Bytes, root: int) -> None:
        def complete(brought: list[Bytes]) -> None:
            for receiver, into in enumerate(brought):
                self._deliver(brought[root], root, into, receiver)

        self._arrive_and_wait("broadcast", data, complete)

    def barrier(self, seconds: float) -> list[int]:
        self._calls += 1
        missing = self._world.missing((self._key, self._calls), "barrier", self._members)
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
        self._world.arrive((self._key, "pair", pair), name, pair, data, complete).result()

    def split(self, color: int, key: int) -> "SimulatedCommunicator":
        def complete(brought: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
            members: dict[int, list[tuple[int, int]]] = {}
            for rank, (rank_color, rank_key) in zip(self._members, brought, strict=True):
                members.setdefault(rank_color, []).append((rank_key, rank))
            return {c: tuple(rank for _, rank in sorted(pairs)) for c, pairs in members.items()}

        members = self._arrive_and_wait("split", (color, key), complete)
        return SimulatedCommunicator(
            self._world, self._members[self.rank], (*self._key, self._calls, color), members[color]
        )
