"""Comparison of calls in exchanges over MPI: ranks send the digest of all their calls with the data.

In a small exchange the digest goes in the same messages, as a `DigestHeader`. In a large one, whose blocks need not be
packed, it goes separately: in messages to the same peers if they are few (`Pairs`), else in a nonblocking reduction
(`SeparateComparison`). In all cases the digests are compared before the call returns any data.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from meshcomm.core._tuning import MAX_HEADER_BLOCK_BYTES, MAX_PAIRWISE_RANKS
from meshcomm.core._types import Indices
from meshcomm.core.layouts.boxes import Boxes
from meshcomm.core.ranks.communicator import Communicator, Comparison, NumberMessages
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport._digests import Digests
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec
from meshcomm.errors import CollectiveMismatch

_NUMBER_BYTES = 8

Blocks: TypeAlias = list[Any]
"""Blocks as bytes, one for each tensor."""

StartedComparison: TypeAlias = Any
"""A comparison in flight; its type depends on the class that has begun it."""


class Comparing(Protocol):
    """A way for the ranks of an exchange to compare their calls."""

    tensors: list[BoxExchange]
    """The tensors in the messages: perhaps a header, and those of the exchange."""

    def begin(self, sources: Blocks, targets: Blocks) -> tuple[Blocks, Blocks, StartedComparison]:
        """Begin to compare. Collective over the group, but does not wait.

        Return the blocks of `tensors` before and after, and the comparison, which the other methods take.
        """

    def is_complete(self, comparison: StartedComparison) -> bool:
        """Return whether `check` does not wait, once the messages are complete."""

    def check(self, comparison: StartedComparison) -> None:
        """Wait for the comparison. ``CollectiveMismatch`` if the ranks make different calls."""


def comparing(
    group: Group,
    tensors: Sequence[BoxExchange],
    spec: ExchangeSpec,
    peers: tuple[Indices, Indices],
    *,
    overlaps: bool = False,
) -> Comparing:
    """Return the comparison of calls for an exchange of *tensors* over MPI.

    *peers* are the positions of the ranks to which this one sends messages, and from which it receives some.
    *overlaps* says that other exchanges of the group may begin before this one is complete.
    """
    several_tensors = len(tensors) > 1
    is_small = spec.max_block_bytes <= MAX_HEADER_BLOCK_BYTES
    scratch_bytes = 2 * (spec.max_block_bytes + _NUMBER_BYTES * len(group.members))
    # Simulated ranks count bytes, and compare separately at no cost.
    if not group.rank_set.world.takes_turns:
        if several_tensors or (is_small and scratch_bytes <= spec.scratch_limit):
            return DigestHeader(group, spec.fingerprint, tensors, *peers)
        if len(group.members) <= MAX_PAIRWISE_RANKS and not overlaps:
            return Pairs(group, spec.fingerprint, tensors, *peers)
    return SeparateComparison(group, spec.fingerprint, tensors)


class DigestHeader(Digests):
    """One number from each rank to its peers, in the same messages as the tensors.

    Parameters
    ----------
    group: ranks that exchange
    number: number of the exchange
    tensors: boxes that they exchange
    sends_to, receives_from: positions of the peers
    """

    def __init__(
        self, group: Group, number: int, tensors: Sequence[BoxExchange], sends_to: Indices, receives_from: Indices
    ) -> None:
        super().__init__(group.rank_set, number, len(receives_from))
        self._group, self._peers = group, receives_from.tolist()
        count = len(receives_from)
        indices = np.arange(count, dtype=np.intp)
        ones = np.ones((1, 1), dtype=np.intp)
        sends = Boxes(sends_to, np.zeros(len(sends_to), dtype=np.intp), ones - 1, ones)
        receives = Boxes(receives_from, indices, indices[:, None], indices[:, None] + 1)
        header = BoxExchange(
            _NUMBER_BYTES,
            tensors[0].position,
            lambda position: ((0, 1),),
            lambda position: ((0, count),),
            lambda position: sends,
            lambda position: receives,
        )
        self.tensors = [header, *tensors]

    def is_complete(self, comparison: tuple[bytes, bytearray]) -> bool:
        return True

    def check(self, comparison: tuple[bytes, bytearray]) -> None:
        differing = self.differing(comparison)
        if differing:
            raise _difference(self._group, [self._peers[index] for index in differing])


class Pairs:
    """One number from each rank to its peers, in separate messages.

    Parameters
    ----------
    group, number, tensors, sends_to, receives_from: as in `DigestHeader`
    """

    def __init__(
        self, group: Group, number: int, tensors: Sequence[BoxExchange], sends_to: Indices, receives_from: Indices
    ) -> None:
        self._group, self._number = group, number
        self._peers = sends_to.tolist(), receives_from.tolist()
        self._communicator: Communicator | None = None
        self.tensors = list(tensors)

    def begin(self, sources: Blocks, targets: Blocks) -> tuple[Blocks, Blocks, NumberMessages]:
        """Send the number of this rank."""
        communicator = self._group.opened or self._group.communicator()
        if communicator is not self._communicator:  # the first time, or after the group was closed
            self._communicator, self._numbers = communicator, communicator.numbers(*self._peers)
        self._numbers.start(self._number ^ self._group.rank_set.call_digest)
        return sources, targets, self._numbers

    def is_complete(self, comparison: NumberMessages) -> bool:
        return True

    def check(self, comparison: NumberMessages) -> None:
        differing = comparison.differing()
        if differing:
            raise _difference(self._group, differing)


class SeparateComparison:
    """A reduction over the group, besides the messages.

    Parameters
    ----------
    group: ranks that exchange
    number: number of the exchange
    tensors: boxes that they exchange
    """

    def __init__(self, group: Group, number: int, tensors: Sequence[BoxExchange] = ()) -> None:
        self._group, self._number = group, number
        self.tensors = list(tensors)

    def begin(self, sources: Blocks, targets: Blocks) -> tuple[Blocks, Blocks, Comparison]:
        """Begin the reduction."""
        return sources, targets, self.start()

    def start(self) -> Comparison:
        """Begin the reduction. Collective over the group, but does not wait."""
        communicator = self._group.opened or self._group.communicator()
        return communicator.start_comparison(self._number ^ self._group.rank_set.call_digest)

    def is_complete(self, comparison: Comparison) -> bool:
        return comparison.test()

    def check(self, comparison: Comparison) -> None:
        if not comparison.equal():
            raise _difference(self._group, [])


def _difference(group: Group, peers: list[int]) -> CollectiveMismatch:
    """Let the rank set make no more calls, and return the error; *peers* have sent another digest, if known."""
    names = ", ".join(str(group.members[position]) for position in peers)
    if peers:
        text = (
            f"rank {group.rank_set.world.rank} made another collective call than rank{'s' * (len(peers) > 1)} {names}"
        )
    else:
        text = f"ranks among {', '.join(map(str, group.members))} made different collective calls"
    error = CollectiveMismatch(
        f"{text}, now or before, or one has an error in it: run again with MESHCOMM_CHECK=1 to see which"
    )
    group.rank_set.fail(error)
    return error
