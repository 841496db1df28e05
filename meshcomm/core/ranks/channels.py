"""Channels: messages of the same sizes between the same ranks, again and again.

A channel is a buffer to send from, one to receive into, and persistent requests of MPI for both. To set up a small
exchange, with two buffers, their addresses, counts and offsets, takes longer than to run it.
"""
# Why messages do not go astray
# =============================
#
# All channels of a communicator use one tag, which no other messages have. A rank takes a channel and starts it in the
# exchange that it belongs to, blocking or not. All ranks of a group start theirs in one order. MPI matches the
# messages of one sender and one tag in the order in which they were started, whichever requests they belong to. So the
# n-th message from a to b is received by the n-th receive of b from a: it belongs to the same exchange, also while
# several are in flight, and although each rank takes any of its idle channels. A rank that waits for an exchange waits
# for its own requests only, so ranks may wait in any order. Ranks that make different calls mix up messages; they find
# that by the header in each message (`meshcomm.core.transport.comparison`).

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from meshcomm.core._tuning import IDLE_CHANNELS
from meshcomm.core._types import Bytes
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.communicator import NO_TIMER, Communicator, Side, message_of

if TYPE_CHECKING:
    from mpi4py import MPI as MPI_

    from meshcomm.core.failures.recorder import Waits

_TAG = 2  # other messages have the tags 0 and 1

in_flight: dict[int, object] = {}
"""Memory that MPI may still read or write, by its id, also if a signal handler has raised and nobody waits any more.
Channels stay here until they are freed."""


class MPIChannels:
    """The channels of an exchange on a communicator: as many as were in flight at the same time.

    Parameters
    ----------
    mpi: the module ``mpi4py.MPI``
    comm: communicator of MPI
    communicator: communicator of meshcomm around *comm*
    send, receive: counts and offsets of the messages to other ranks, and from them
    """

    def __init__(
        self, mpi: ModuleType, comm: "MPI_.Comm", communicator: Communicator, send: Side, receive: Side
    ) -> None:
        self._mpi, self._comm, self._communicator = mpi, comm, communicator
        self._send, self._receive = send, receive
        self.idle: list[MPIChannel] = []
        self.closed = False

    def take(self) -> "MPIChannel":
        """Return an idle channel; the caller starts it now."""
        channel = self.idle.pop() if self.idle else MPIChannel(self._mpi, self, *self._new_channel())
        recorder, channel.peers = watch.recorder, ()
        if recorder is not None:
            destinations, sources = (np.flatnonzero(counts).tolist() for counts, *_ in (self._send, self._receive))
            channel.peers = (
                recorder.point_to_point_timer("MPI_Startall", self._communicator, destinations, sources).posted(),
            )
        return channel

    def _new_channel(self) -> "tuple[Bytes, Bytes, list[MPI_.Prequest]]":
        (counts, offsets, size), (receive_counts, receive_offsets, receive_size) = self._send, self._receive
        send_data, receive_data = np.empty(size, dtype=np.uint8), np.empty(receive_size, dtype=np.uint8)
        comm, receive, send = self._comm, (receive_data, receive_counts, receive_offsets), (send_data, counts, offsets)
        requests = [
            start([message_of(side, rank), self._mpi.BYTE], rank, _TAG)
            for side, start in ((receive, comm.Recv_init), (send, comm.Send_init))
            for rank in np.flatnonzero(side[1]).tolist()
        ]
        return send_data, receive_data, requests

    def close(self) -> None:
        """Free all channels: those in flight when they are complete."""
        self.closed = True
        while self.idle:
            self.idle.pop().free()


class MPIChannel:
    """Messages of MPI in buffers of their own, to be filled before `start` and read after `wait`."""

    __slots__ = ("_channels", "_requests", "_test_all", "_wait_all", "peers", "receive", "send", "start")

    def __init__(
        self, mpi: ModuleType, channels: MPIChannels, send: Bytes, receive: Bytes, requests: "list[MPI_.Prequest]"
    ) -> None:
        self.send, self.receive = send, receive
        self._channels, self._requests = channels, requests
        self.peers: tuple[Waits, ...] = ()  # while somebody records
        self._test_all, self._wait_all = mpi.Request.Testall, mpi.Request.Waitall
        # No method: calls of Python functions take most of the time of a small exchange.
        self.start: Callable[[], None] = partial(mpi.Prequest.Startall, requests)
        in_flight[id(self)] = self

    def test(self) -> bool:
        return bool(self._test_all(self._requests))

    def wait(self) -> None:
        timed = watch.recorder.timer("MPI_Waitall", *self.peers) if watch.recorder else NO_TIMER
        self._wait_all(self._requests)
        timed()

    def give_back(self) -> None:
        channels = self._channels
        if channels.closed or len(channels.idle) >= IDLE_CHANNELS:
            self.free()
        else:
            channels.idle.append(self)

    def free(self) -> None:
        """Give the requests back to MPI."""
        for request in self._requests:
            request.Free()
        in_flight.pop(id(self), None)
