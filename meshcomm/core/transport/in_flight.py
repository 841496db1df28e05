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
    """Rounds of an exchange in flight, in order. Complete ones are unpacked; when all are, calls are compared.

    Parameters
    ----------
    comparing: way to compare the ranks' calls; None without comparison
    comparison: comparison in flight, which *comparing* has begun
    """

    __slots__ = ("_advances", "_begun", "_comparing", "_rounds")

    def __init__(self, comparing: Comparing | None, comparison: object) -> None:
        self._comparing, self._begun, self._advances = comparing, comparison, False
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
        self._rounds.popleft()  # last: after an error, or an interrupt, the round is not complete

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
        """Let a thread advance the messages until the program, which does something else now, waits for them."""
        if len(self._rounds) > 1:  # they are large
            self._advances = True
            progress.begin()

    def _stop_advancing(self) -> None:
        if self._advances:
            self._advances = False
            progress.end()


class InChannels:
    """An exchange of one small tensor, in channels of its communicator.

    Parameters
    ----------
    group: ranks that exchange
    sides: counts and offsets of the messages to the ranks and from them, and the bytes of their buffers
    packings: packing of the messages to other ranks, and from them
    kept_copies: copies of the boxes that the rank sends to itself
    comparing: way to compare the ranks' calls
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
        self._communicator: Communicator | None = None

    def run(self, sources: list[Bytes], targets: list[Bytes]) -> bool:
        """Exchange. Collective over the group; return False on all ranks if newer exchanges have taken the channels.

        Every small exchange comes through here, and function calls cost time: so it does not use `start`.
        """
        communicator = self._group.opened or self._group.communicator()
        if communicator is not self._communicator:
            self._open(communicator)
        if self._channels.closed:
            return False
        send_blocks, receive_blocks, comparison = self._comparing.begin(sources, targets)
        channel = self._channels.take()
        self._packing.pack(send_blocks, channel.send)
        channel.start()
        for copies in self._kept_copies:
            copies.run(sources, targets)
        channel.wait()
        self._unpacking.unpack(channel.receive, receive_blocks)
        self._comparing.check(comparison)
        channel.give_back()
        return True

    def start(self, sources: list[Bytes], targets: list[Bytes], buffer: Buffer) -> Pending:
        """Begin to exchange. Collective over the group, but does not wait. *buffer* is not used."""
        communicator = self._group.communicator()
        if communicator is not self._communicator:
            self._open(communicator)
        send_blocks, receive_blocks, comparison = self._comparing.begin(sources, targets)
        channel = self._channels.take()
        self._packing.pack(send_blocks, channel.send)
        channel.start()
        for copies in self._kept_copies:
            copies.run(sources, targets)
        return _InChannel(channel, self._unpacking, receive_blocks, self._comparing, comparison)

    def _open(self, communicator: Communicator) -> None:
        """Open channels: the first time, or after the group was closed and opened again."""
        self._communicator, self._channels = communicator, communicator.channels(*self._sides)


class _InChannel:
    """A small exchange that is not complete."""

    __slots__ = ("_begun", "_channel", "_comparing", "_targets", "_unpacking")

    def __init__(
        self, channel: Channel, unpacking: Packing, targets: list[Bytes], comparing: Comparing, comparison: object
    ) -> None:
        self._channel: Channel | None = channel
        self._unpacking, self._targets, self._comparing, self._begun = unpacking, targets, comparing, comparison

    def test(self) -> bool:
        """Return whether all bytes have arrived; unpack them if they have."""
        channel = self._channel
        if channel is None:
            return True
        if not channel.test():
            return False
        self.wait()  # returns at once
        return True

    def wait(self) -> None:
        """Wait until all bytes have arrived, and unpack them."""
        channel = self._channel
        if channel is not None:
            channel.wait()
            self._unpacking.unpack(channel.receive, self._targets)
            self._comparing.check(self._begun)
            self._channel = None  # last: after an error, or an interrupt, the exchange is not complete
            channel.give_back()
