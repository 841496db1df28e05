"""A side channel: messages between the watchdogs of ranks, while their main threads compute or wait inside MPI."""

import json
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from meshcomm.core._types import Json

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_


class SideChannel:
    """A communicator for these messages only. Messages from one rank to another arrive in the order they were sent.

    A message is a list that JSON can hold. One thread at a time may use the channel.
    """

    def __init__(self, mpi: ModuleType, comm: "MPI_.Comm") -> None:
        self._MPI = mpi
        self._comm = comm
        self._pending_sends: list[tuple[MPI_.Request, bytes]] = []
        self.size = comm.size
        self.rank = comm.rank

    def send(self, message: Sequence[object], rank: int) -> None:
        """Send *message* to *rank*; returns at once."""
        data = json.dumps(message).encode()
        self._pending_sends = [pair for pair in self._pending_sends if not pair[0].Test()]
        self._pending_sends.append((self._comm.Isend([data, self._MPI.BYTE], rank), data))

    def receive(self) -> list[tuple[int, list[Json]]]:
        """Return the messages that have arrived, each with the rank that sent it."""
        MPI = self._MPI
        status, messages = MPI.Status(), []
        # A probe that finds nothing lets MPI fetch messages that have arrived; only the next probe finds them.
        while message := self._probe(status) or self._probe(status):
            data = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
            messages.append((status.source, json.loads(data)))
        return messages

    def _probe(self, status: "MPI_.Status") -> "MPI_.Message | None":
        return self._comm.Improbe(self._MPI.ANY_SOURCE, self._MPI.ANY_TAG, status)

    def close(self) -> None:
        """Free the communicator. All messages must have been received."""
        self._MPI.Request.Waitall([request for request, _ in self._pending_sends])
        self._comm.Free()
