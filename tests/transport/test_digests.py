"""Digests of calls in the messages of small exchanges."""

import numpy as np
import pytest

from meshcomm.core.transport._digests import Digests


class RankSet:
    """What ranks have called so far."""

    def __init__(self, call_digest):
        self.call_digest = call_digest


def exchanged(digests):
    """Return for each rank the peers, of all ranks but itself, that have sent another number than its own."""
    begun = [each.begin([], [])[2] for each in digests]
    found = []
    for rank, (sent, received) in enumerate(begun):
        received[:] = b"".join(theirs for peer, (theirs, _) in enumerate(begun) if peer != rank)
        found.append(digests[rank].differing((sent, received)))
    return found


@pytest.mark.parametrize("digest", [0, 5, 2**61 - 1, -(2**61)])
@pytest.mark.parametrize("number", [0, 2**62 - 1])
def test_ranks_that_made_equal_calls_find_no_difference(digest, number):
    assert exchanged([Digests(RankSet(digest), number, 2) for _ in range(3)]) == [[], [], []]


def test_ranks_that_made_other_calls_find_out_which():
    rank_sets = [RankSet(7), RankSet(8), RankSet(7)]
    assert exchanged([Digests(rank_set, 1, 2) for rank_set in rank_sets]) == [[0], [0, 1], [1]]
    assert exchanged([Digests(RankSet(7), number, 2) for number in (1, 1, 2)]) == [[1], [1], [0, 1]]


def test_the_numbers_come_before_the_blocks():
    rank_set, block = RankSet(7), np.zeros(3)
    digests = Digests(rank_set, 1, 2)
    sources, targets, (sent, received) = digests.begin([block], [])
    assert sources == [sent, block]
    assert targets == [received]
    assert np.frombuffer(sent, np.int64).tolist() == [1 ^ 7]
    assert len(received) == 16
    rank_set.call_digest = 8
    assert np.frombuffer(digests.begin([], [])[2][0], np.int64).tolist() == [1 ^ 8]


@pytest.mark.parametrize("begun", [(b"", bytearray(16)), (bytes(8), bytearray(8)), (bytes(8), bytearray(24))])
def test_numbers_of_another_exchange_are_refused(begun):
    with pytest.raises(ValueError, match="are not a number and those of 2 peers"):
        Digests(RankSet(0), 0, 2).differing(begun)


def test_a_number_of_more_than_64_bits_is_refused():
    with pytest.raises(OverflowError):
        Digests(RankSet(2**63), 0, 1).begin([], [])
