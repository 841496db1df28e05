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
"""The data that a rank sends, and to which rank; its buffer to receive into, and from which rank."""


class ArrivedOperation(Protocol[Outcome]):
    """An operation at which this rank has arrived; it has its outcome when all members have arrived."""

    def test(self) -> bool: ...
    def wait(self) -> Outcome: ...
    def equal(self) -> Outcome: ...
    def result(self) -> Outcome: ...


class Operations(Protocol):
    """The methods of a simulated world that communicators use; see `meshcomm.core.ranks.simulate.SimulatedWorld`."""

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
    ) -> ArrivedOperation[R]: ...
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

    def _arrive(self, operation: str, payload: P, complete: Callable[[list[P]], R]) -> ArrivedOperation[R]:
        self._calls += 1
        return self._world.arrive(
            (self._key, self._calls),
            operation,
            self._members,
            payload,
            lambda payloads: complete([payloads[rank] for rank in self._members]),
        )

    def _arrive_and_wait(self, operation: str, payload: P, complete: Callable[[list[P]], R]) -> R:
        return self._arrive(operation, payload, complete).result()

    def _deliver(self, data: Bytes, sender: int, buffer: Bytes, receiver: int) -> None:
        if len(data) != len(buffer):
            raise CollectiveMismatch(
                f"rank {self._members[sender]} sends {len(data)} bytes to rank {self._members[receiver]}, "
                f"which expects {len(buffer)}"
            )
        buffer[:] = data
        if sender != receiver and len(data):
            self._world.bytes_moved[self._members[receiver]] += len(data)
            self._world.messages[self._members[receiver]] += 1

    def alltoallv(self, send: Buffers, receive: Buffers) -> None:
        self._arrive_and_wait("alltoallv", (send, receive), self._exchange)

    def _exchange(self, payloads: list[tuple[Buffers, Buffers]]) -> None:
        for i, (send, _) in enumerate(payloads):
            for j, (_, receive) in enumerate(payloads):
                self._deliver(message_of(send, j), i, message_of(receive, i), j)

    def start_alltoallv(self, send: Buffers, receive: Buffers) -> Pending:
        return self._arrive("alltoallv", (send, receive), self._exchange)

    start_messages = start_alltoallv

    def permute(self, data: Bytes, destination: int | None, buffer: Bytes, source: int | None) -> None:
        def complete(payloads: list[Sent]) -> None:
            for receiver, (_, _, receive_buffer, sender) in enumerate(payloads):
                if sender is not None:
                    sent, sent_to, _, _ = payloads[sender]
                    self._deliver(sent if sent_to == receiver else sent[:0], sender, receive_buffer, receiver)

        self._arrive_and_wait("permute", (data, destination, buffer, source), complete)

    def allgatherv(self, send: Bytes, receive: Buffers) -> None:
        def complete(payloads: list[tuple[Bytes, Buffers]]) -> None:
            for j, (_, buffers) in enumerate(payloads):
                for i, (data, _) in enumerate(payloads):
                    self._deliver(data, i, message_of(buffers, i), j)

        self._arrive_and_wait("allgatherv", (send, receive), complete)

    def allreduce_max(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        def complete(payloads: list[NDArray[np.int64]]) -> NDArray[np.int64]:
            return np.max(payloads, axis=0)

        return self._arrive_and_wait("allreduce_max", values, complete).copy()

    def start_comparison(self, number: int) -> Comparison:
        return self._arrive("comparison", number, lambda numbers: len(set(numbers)) == 1)

    def allgather(self, message: bytes) -> list[bytes]:
        return self._arrive_and_wait("allgather", message, lambda messages: messages).copy()

    def gather(self, message: bytes, root: int) -> list[bytes]:
        messages = self._arrive_and_wait("gather", message, lambda messages: messages)
        return messages.copy() if self.rank == root else []

    def broadcast(self, data: Bytes, root: int) -> None:
        def complete(payloads: list[Bytes]) -> None:
            for receiver, buffer in enumerate(payloads):
                self._deliver(payloads[root], root, buffer, receiver)

        self._arrive_and_wait("broadcast", data, complete)

    def barrier(self, seconds: float) -> list[int]:
        self._calls += 1
        missing_ranks = self._world.missing((self._key, self._calls), "barrier", self._members)
        return [self._members.index(rank) for rank in missing_ranks]

    def send(self, data: Bytes, rank: int) -> None:
        self._pair(rank, data, sends=True)

    def receive(self, buffer: Bytes, rank: int) -> None:
        self._pair(rank, buffer, sends=False)

    def _pair(self, peer_position: int, data: Bytes, sends: bool) -> None:
        # Pairs count their own rendezvous: the other ranks do not take part in them.
        own_rank, peer_rank = self._members[self.rank], self._members[peer_position]
        rank_pair = (min(own_rank, peer_rank), max(own_rank, peer_rank))

        def complete(payloads: dict[int, Bytes]) -> None:
            if sends:
                self._deliver(payloads[own_rank], self.rank, payloads[peer_rank], peer_position)
            else:
                self._deliver(payloads[peer_rank], peer_position, payloads[own_rank], self.rank)

        name = f"a message between ranks {rank_pair[0]} and {rank_pair[1]}"
        self._world.arrive((self._key, "pair", rank_pair), name, rank_pair, data, complete).result()

    def split(self, color: int, key: int) -> "SimulatedCommunicator":
        def complete(payloads: list[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
            members: dict[int, list[tuple[int, int]]] = {}
            for rank, (rank_color, rank_key) in zip(self._members, payloads, strict=True):
                members.setdefault(rank_color, []).append((rank_key, rank))
            return {group_color: tuple(rank for _, rank in sorted(pairs)) for group_color, pairs in members.items()}

        members = self._arrive_and_wait("split", (color, key), complete)
        return SimulatedCommunicator(
            self._world, self._members[self.rank], (*self._key, self._calls, color), members[color]
        )
