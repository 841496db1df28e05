"""Exchanges that do not wait, in one process: each rank has a pool and a thread."""

import gc
import sys
import threading
import time

import numpy as np
import pytest

from meshcomm import CollectiveMismatch, MeshError
from meshcomm.core.memory._channel import Channel, give_back, reserve
from meshcomm.core.memory._pool import Pool
from support.in_process_ranks import MIB, Node, all_to_all, block, bytes_of, exchange, expected, mapped, runs
from support.patience import POLL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

SIZE = 40
"""The bytes that each rank has for each other one. Block: what it sends to each, then what it gets from each."""


class Ranks:
    """Ranks that have a channel with those that they are *near*, by default all, and a block each in their pools."""

    def __init__(self, size, pools=None, sends=lambda sender, receiver: True, near=lambda rank, other: True):
        self.pools = pools or [Pool(MIB) for _ in range(size)]
        self.size, memories = size, [mapped(pool) for pool in self.pools]
        self.blocks = [pool.allocate(2 * size * SIZE) for pool in self.pools]
        at = [pool.locate(its) for pool, its in zip(self.pools, self.blocks, strict=True)]
        peers = {rank: [p for p in range(size) if p != rank and near(rank, p)] for rank in range(size)}
        reserved = [reserve(pool, len(peers[rank])) for rank, pool in enumerate(self.pools)]
        self.lines = [lines for lines, _ in reserved]
        clock = max(pool.clock for pool in self.pools)
        self.channels = []
        for rank, pool in enumerate(self.pools):
            described = []
            for peer in peers[rank]:
                slot = reserved[peer][1][peers[peer].index(rank)]
                copies = [self.copies(*pair) if sends(*pair) else None for pair in ((peer, rank), (rank, peer))]
                described.append((memories[peer], self.lines[peer][0], slot, [at[peer]], *copies))
            names = [rank, *peers[rank]]
            self.channels.append(Channel(pool, self.lines[rank], [at[rank]], described, clock, names))

    def copies(self, sender, receiver):
        size = 2 * self.size * SIZE
        return runs([size], [size], [(0, receiver * SIZE, 0, (self.size + sender) * SIZE, SIZE)])

    def fill(self, rank, seed):
        self.blocks[rank][: self.size * SIZE] = bytes_of(rank, self.size * SIZE, seed)

    def received(self, rank, sender):
        return self.blocks[rank][(self.size + sender) * SIZE :][:SIZE]

    def check(self, rank, seed):
        for sender in range(self.size):
            if sender != rank:
                sent = bytes_of(sender, self.size * SIZE, seed)[rank * SIZE :][:SIZE]
                assert np.array_equal(self.received(rank, sender), sent), (rank, sender, seed)

    def run(self, call):
        results = [None] * self.size

        def body(rank):
            try:
                results[rank] = call(rank, self.channels[rank])
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600 * POLL)
            assert not thread.is_alive(), "a rank waits for ever"
        return results


def nothing():
    pass


@pytest.mark.parametrize("size", [2, 3, 6])  # 5 peers have more slots than one line holds
def test_owners_may_write_after_each_exchange(size):
    ranks = Ranks(size)

    def call(rank, channel):
        for seed in range(30):
            ranks.fill(rank, seed)
            channel.start(seed)
            if seed % 3 == 0:
                while not channel.test():
                    time.sleep(0)
            channel.wait(nothing)
            ranks.check(rank, seed)
            ranks.blocks[rank][:] = 0  # a late reader or writer would be seen
        return True

    assert ranks.run(call) == [True] * size


def test_the_last_to_start_copies_for_both():
    """Nobody has to call anything in between: the first one finds all done."""
    ranks = Ranks(2)
    first, second = ranks.channels
    for seed in range(3):
        for rank in range(2):
            ranks.fill(rank, seed)
        first.start(seed)
        assert not first.test()
        second.start(seed)
        ranks.check(0, seed)
        ranks.check(1, seed)
        assert second.test()
        assert first.test()
        first, second = second, first


def test_bytes_that_go_one_way_only():
    ranks = Ranks(3, sends=lambda sender, receiver: sender == 0)
    for seed in range(3):
        ranks.fill(0, seed)
        for channel in ranks.channels:
            channel.start(seed)
        for rank, channel in enumerate(ranks.channels):
            channel.wait(nothing)
            if rank:
                sent = bytes_of(0, 3 * SIZE, seed)[rank * SIZE :][:SIZE]
                assert np.array_equal(ranks.received(rank, 0), sent)


def test_a_rank_that_waits_for_long_sleeps_meanwhile():
    late = 0.5

    def call(rank, channel):
        if rank:
            time.sleep(late)
        begun = time.thread_time()
        channel.start(1)
        channel.wait(nothing)
        return time.thread_time() - begun

    used, _ = Ranks(2).run(call)
    assert used < late / 2


def test_exchanges_in_flight_at_once():
    """Each channel is for itself: some ranks wait for the first, others for the second."""
    pools = [Pool(MIB) for _ in range(3)]
    several = [Ranks(3, pools), Ranks(3, pools)]

    def call(rank):
        for seed in range(20):
            for ranks in several:
                ranks.fill(rank, seed)
                ranks.channels[rank].start(seed)
            for ranks in several if rank else reversed(several):
                ranks.channels[rank].wait(nothing)
                ranks.check(rank, seed)
        return True

    assert several[0].run(lambda rank, channel: call(rank)) == [True] * 3


def test_another_call_is_found_out_by_all_and_copies_nothing():
    ranks = Ranks(2)

    def call(rank, channel):
        ranks.fill(rank, 0)
        channel.start(rank)
        channel.wait(nothing)

    for error in ranks.run(call):
        assert isinstance(error, CollectiveMismatch)
        assert "made another collective call" in str(error)
    for rank, channel in enumerate(ranks.channels):
        assert not ranks.received(rank, 1 - rank).any() or not np.array_equal(
            ranks.received(rank, 1 - rank), bytes_of(1 - rank, 2 * SIZE)[rank * SIZE :][:SIZE]
        )
        with pytest.raises(MeshError, match="ended with an error"):
            channel.start(0)


@pytest.mark.parametrize("ask", [Channel.test, lambda channel: channel.wait(nothing)])
@pytest.mark.parametrize("sends", [True, False])
def test_who_was_first_learns_of_another_call_when_it_asks(ask, sends):
    """By its peer's line, and from a peer that it exchanges nothing with, by the digest."""
    first, second, third = Ranks(3, sends=lambda *pair: sends or 2 in pair).channels
    first.start(0)
    assert not first.test()
    with pytest.raises(CollectiveMismatch, match="made another collective call"):
        second.start(1)
    with pytest.raises(CollectiveMismatch, match="rank 0 made another collective call than rank 1"):
        ask(first)
    with pytest.raises(CollectiveMismatch, match="made another collective call"):
        third.start(0)


@pytest.mark.parametrize("ask", [Channel.test, lambda channel: channel.wait(nothing)])
def test_a_rank_learns_that_its_peer_has_failed_with_another_rank(ask):
    """Ranks 0 and 1 make the same call, but rank 1 fails with rank 2, which rank 0 has no channel with."""
    first, second, third = Ranks(3, near=lambda rank, other: abs(rank - other) == 1).channels
    third.start(1)
    first.start(0)
    with pytest.raises(CollectiveMismatch, match="rank 1 made another collective call than rank 2"):
        second.start(0)
    with pytest.raises(CollectiveMismatch, match="rank 0 made another collective call than rank 1"):
        ask(first)


def test_a_rank_that_fails_does_not_leave_others_waiting():
    """Rank 2 makes another call than rank 0 and 1; rank 1 exchanges nothing with it that comes first."""
    ranks = Ranks(3)

    def call(rank, channel):
        channel.start(rank // 2)
        channel.wait(nothing)

    assert all(isinstance(error, CollectiveMismatch) for error in ranks.run(call))


def test_an_interrupted_wait_can_go_on():
    ranks = Ranks(2)
    first, second = ranks.channels
    for rank in range(2):
        ranks.fill(rank, 7)
    first.start(1)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.wait(interrupt)
    with pytest.raises(MeshError, match="in flight"):
        first.start(2)
    second.start(1)
    first.wait(nothing)
    second.wait(nothing)
    ranks.check(0, 7)


def test_lines_are_given_back_and_used_again():
    """By channels and rendezvous in turns: old numbers in the lines are below those of whoever comes next."""
    pools = [Pool(MIB) for _ in range(3)]
    seen = set()
    for turn in range(4):
        ranks = Ranks(3, pools)
        seen.update(map(tuple, (lines for lines in ranks.lines)))
        assert ranks.run(lambda rank, channel, ranks=ranks: several_turns(ranks, rank, channel)) == [True] * 3
        for channel in ranks.channels if turn % 2 else ():
            channel.close()
        del ranks
        gc.collect()
        swap(pools)
    assert len(seen) < 4 * 3, "the lines of earlier turns"


def several_turns(ranks, rank, channel):
    for seed in range(5):
        ranks.fill(rank, seed)
        channel.start(seed)
        channel.wait(nothing)
        ranks.check(rank, seed)
    return True


def swap(pools):
    """Let rendezvous use the lines in between, in another order."""
    size, nodes = len(pools), []
    counts = np.full((size, size), 9)

    def call(rank, rendezvous, pool):
        routes, nbytes, new = all_to_all(counts, rank)
        source, target = block(pool, nbytes, True), block(pool, new, True)
        source[:] = bytes_of(rank, nbytes)
        exchange(rendezvous, routes, 1, source, target)
        assert np.array_equal(target, expected(counts, rank))
        return True

    for _ in range(3):
        nodes.append(Node(size, pools=pools))
        assert nodes[-1].run(call) == [True] * size
    for node in nodes:
        for rendezvous in node.rendezvous:
            rendezvous.close()


def test_no_lines_are_left():
    pool = Pool(MIB)
    taken = []
    while (found := reserve(pool, 9)) is not None:
        taken.append(found[0])
    assert len({offset for lines in taken for offset in lines}) == 4 * len(taken)
    give_back(pool, taken.pop())
    again = reserve(pool, 9)
    assert again is not None
    assert reserve(pool, 9) is None


def test_what_does_not_fit_is_refused():
    pool, other = Pool(MIB), Pool(MIB)
    a, b = pool.allocate(100), other.allocate(100)
    (lines, _), (theirs, slots) = reserve(pool, 1), reserve(other, 1)
    copies = runs([100], [100], [(0, 0, 0, 50, 10)])
    peer = [mapped(other), theirs[0], slots[0], [other.locate(b)], copies, None]
    for wrong in (
        lambda: Channel(pool, lines, [pool.locate(a)], [peer], 0, ["a"]),
        lambda: Channel(pool, lines[:1], [pool.locate(a)], [peer], 0, ["a", "b"]),
        lambda: Channel(pool, lines, [pool.locate(a), 0], [peer], 0, ["a", "b"]),
        lambda: Channel(pool, lines, [2 * MIB + 2**21], [peer], 0, ["a", "b"]),
        lambda: Channel(pool, [-1, lines[1]], [pool.locate(a)], [peer], 0, ["a", "b"]),
    ):
        with pytest.raises(ValueError, match=r"peers need|are not in memory|the copies are for"):
            wrong()
