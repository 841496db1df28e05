"""Exchanges over MPI that have begun and are not complete."""

from collections import deque
from collections.abc import Callable, Sequence

from meshcomm._kernels import Packing, RegionCopies
from meshcomm.core._types import Bytes
from meshcomm.core.memory.scratch import Buffer
from meshcomm.core.ranks import progress
from meshcomm.core.ranks.communicator import Channel, Communicator, Pending, Side
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.comparison import Comparing


class InFlight:
    """Rounds of an exchange that are not complete, in order. Each is unpacked when it is, and then calls are compared.

    Parameters
    ----------
    comparing, begun: comparison of the ranks' calls, and what it returned when it began; None without comparison
    """

    __slots__ = ("_advances", "_begun", "_comparing", "_rounds")

    def __init__(self, comparing: Comparing | None, begun: object) -> None:
        self._comparing, self._begun, self._advances = comparing, begun, False
        self._rounds: deque[tuple[Pending, Callable[[], None] | None]] = deque()

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, pending: Pending, unpack: Callable[[], None] | None) -> None:
        """Add a round that has begun; *unpack* it when it is complete."""
        self._rounds.append((pending, unpack))

    def finish_first(self) -> None:
        """Wait for the first round that is not complete, and unpack it."""
        self._rounds[0][0].wait()
        self._unpack_first()

    def _unpack_first(self) -> None:
        unpack = self._rounds[0][1]
        if unpack is not None:
            unpack()
        self._rounds.popleft()  # at the end: after an error, or an interrupt, it is not complete

    def advance(self) -> None:
        """Let messages advance, and unpack the rounds that are complete."""
        while self._rounds and self._rounds[0][0].test():
            self._unpack_first()

    def test(self) -> bool:
        """Return whether all bytes have arrived, and unpack those that have."""
        self.advance()
        if self._rounds:
            return False
        if self._comparing is not None and not self._comparing.is_complete(self._begun):
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait until all bytes have arrived, and unpack them."""
        self._stop_advancing()
        while self._rounds:
            self.finish_first()
        if self._comparing is not None:
            self._comparing.check(self._begun)
            self._comparing = None

    def leave(self) -> None:
        """Let a thread advance the messages until somebody waits for them: the program does something else now."""
        if len(self._rounds) > 1:  # they are large
            self._advances = True
            progress.begin()

    def _stop_advancing(self) -> None:
        if self._advances:
            self._advances = False
            progress.end()


class InChannels:
    """An exchange of one small tensor, which goes in the channels of its communicator.

    Parameters
    ----------
    group: ranks that exchange
    sides: counts and offsets of the messages to the ranks and from them, and the bytes of their buffers
    packings: packing of the messages to other ranks, and from them
    kept_copies: copies of the boxes that the rank sends to itself
    comparing: comparison of the ranks' calls
    """

    def __init__(
        self,
        group: Group,
        sides: tuple[Side, Side],
        packings: tuple[Packing, Packing],
        kept_copies: Sequence[RegionCopies],
        comparing: Comparing,
    ) -> None:
        self._group, self._sides, self._kept_copies, self._comparing = group, sides, kept_copies, comparing
        self._packing, self._unpacking = packings
        self._opened_on: Communicator | None = None

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> bool:
        """Exchange. Collective over the group; return False on all ranks if newer exchanges have the channels.

        Every small exchange comes this way, and calls of functions count: so it does not use `start`.
        """
        communicator = self._group.opened or self._group.communicator()
        if communicator is not self._opened_on:
            self._open(communicator)
        if self._channels.closed:
            return False
        froms, tos, begun = self._comparing.begin(sources, targets)
        channel = self._channels.take()
        self._packing.pack(froms, channel.send)
        channel.start()
        for copies in self._kept_copies:
            copies.run(sources, targets)
        channel.wait()
        self._unpacking.unpack(channel.receive, tos)
        self._comparing.check(begun)
        channel.give_back()
        return True

    def start(self, sources: list[Bytes], targets: list[Bytes], buffer: Buffer) -> Pending:
        """Begin to exchange. Collective over the group, but does not wait. It needs no *buffer*."""
        communicator = self._group.communicator()
        if communicator is not self._opened_on:
            self._open(communicator)
        froms, tos, begun = self._comparing.begin(sources, targets)
        channel = self._channels.take()
        self._packing.pack(froms, channel.send)
        channel.start()
        for copies in self._kept_copies:
            copies.run(sources, targets)
        return _InChannel(channel, self._unpacking, tos, self._comparing, begun)

    def _open(self, communicator: Communicator) -> None:
        """Open channels: the first time, or when the group was closed and opened again."""
        self._opened_on, self._channels = communicator, communicator.channels(*self._sides)


class _InChannel:
    """A small exchange that is not complete."""

    __slots__ = ("_begun", "_channel", "_comparing", "_targets", "_unpacking")

    def __init__(
        self, channel: Channel, unpacking: Packing, targets: list[Bytes], comparing: Comparing, begun: object
    ) -> None:
        self._channel: Channel | None = channel
        self._unpacking, self._targets, self._comparing, self._begun = unpacking, targets, comparing, begun

    def test(self) -> bool:
        """Return whether all bytes have arrived; unpack them if they have."""
        channel = self._channel
        if channel is None:
            return True
        if not channel.test():
            return False
        self.wait()  # which does not wait
        return True

    def wait(self) -> None:
        """Wait until all bytes have arrived, and unpack them."""
        channel = self._channel
        if channel is not None:
            channel.wait()
            self._unpacking.unpack(channel.receive, self._targets)
            self._comparing.check(self._begun)
            self._channel = None  # at the end: after an error, or an interrupt, it is not complete
            channel.give_back()
