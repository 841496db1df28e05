"""Exchanges in shared memory, in one process: each rank has a pool and a thread."""

import gc
import random
import sys
import threading
import time

import numpy as np
import pytest

from meshcomm import CollectiveMismatch, MeshError
from meshcomm.core.memory._rendezvous import Routes
from support import patience
from support.in_process_ranks import (
    MIB,
    PAGE,
    Node,
    all_to_all,
    block,
    bytes_of,
    described,
    exchange,
    exchanging,
    expected,
    outcomes,
    output_of,
    runs,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

# -- exchanges --------------------------------------------------------------------------------------------------------


COUNTS = [[3, 100, 0], [5000, 1, 8], [0, 64, 9]]


@pytest.mark.parametrize("rather_writes", [False, True])
@pytest.mark.parametrize("source_shared", [False, True])
def test_exchange_with_one_side_shared(source_shared, rather_writes):
    node = Node(3)

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all(COUNTS, rank, rather_writes)
        for seed in range(20):
            source, target = block(pool, size, source_shared), block(pool, new_size, not source_shared)
            source[:] = bytes_of(rank, size, seed)
            assert exchange(rendezvous, routes, 1, source, target) is None
            assert np.array_equal(target, expected(COUNTS, rank, seed))
        return True

    assert node.run(call) == [True] * 3


def test_pairs_that_share_nothing_are_reported_by_both():
    """Rank 0 shares nothing, rank 1 its block, rank 2 its new block."""
    node = Node(3)
    counts = np.full((3, 3), 10)

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all(counts, rank)
        source, target = block(pool, size, rank == 1), block(pool, new_size, rank == 2)
        source[:], target[:] = bytes_of(rank, size), 0
        left = exchange(rendezvous, routes, 1, source, target)
        whole = expected(counts, rank)
        for position in range(3):
            part = slice(10 * position, 10 * position + 10)
            missing = left is not None and position in left[0]
            assert np.array_equal(target[part], np.zeros(10) if missing else whole[part])
        return left

    assert node.run(call) == [((2,), (1,)), ((0, 2), ()), ((), (0, 1))]


def test_a_rank_that_waits_for_long_sleeps_meanwhile():
    node = Node(2)
    late = 0.5

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all([[1, 2], [3, 4]], rank)
        source, target = block(pool, size, True), block(pool, new_size, True)
        if rank:
            time.sleep(late)
        begun = time.thread_time()
        exchange(rendezvous, routes, 1, source, target)
        return time.thread_time() - begun

    used, _ = node.run(call)
    assert used < late / 2


def test_the_ways_may_change_from_call_to_call():
    node = Node(2)
    counts = [[1, 2], [3, 4]]

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all(counts, rank)
        for number in range(64):
            shared_ones = np.random.default_rng(number).random((2, 2)) < 0.5
            source, target = (block(pool, n, s) for n, s in zip((size, new_size), shared_ones[rank], strict=True))
            source[:], target[:] = bytes_of(rank, size, number), 0
            left = exchange(rendezvous, routes, number, source, target)
            comes, goes = (shared_ones[a, 0] or shared_ones[b, 1] for a, b in ((1 - rank, rank), (rank, 1 - rank)))
            assert left == (None if comes and goes else (() if comes else (1 - rank,), () if goes else (1 - rank,)))
            if comes:
                assert np.array_equal(target, expected(counts, rank, number))
        return True

    assert node.run(call) == [True, True]


def test_owners_may_write_and_free_after_the_exchange():
    """Every block is written over and freed at once; a late reader would see it."""
    node = Node(4, 8 * MIB)
    counts = np.full((4, 4), 3000)

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all(counts, rank)
        rng = random.Random(rank)
        for seed in range(200):
            source, target = block(pool, size, rng.random() < 0.8), block(pool, new_size, True)
            source[:] = bytes_of(rank, size, seed)
            exchange(rendezvous, routes, 1, source, target)
            source[:] = 0
            del source
            assert np.array_equal(target, expected(counts, rank, seed))
        return True

    assert node.run(call) == [True] * 4


def test_ranks_without_peers_go_on():
    """Rank 2 exchanges with nobody for a long time, then with all."""
    node = Node(3)
    pair, everyone = [[1, 9, 0], [9, 1, 0], [0, 0, 4]], np.full((3, 3), 7)

    def call(rank, rendezvous, pool):
        for number, counts in enumerate([*[pair] * 50, everyone, *[pair] * 50, everyone]):
            routes, size, new_size = all_to_all(counts, rank)
            source, target = block(pool, size, True), block(pool, new_size, True)
            source[:] = bytes_of(rank, size, number)
            exchange(rendezvous, routes, 1, source, target)
            assert np.array_equal(target, expected(counts, rank, number))
        return True

    assert node.run(call) == [True] * 3


def mismatch(results, *texts):
    for rank, (result, text) in enumerate(zip(results, texts, strict=True)):
        assert isinstance(result, CollectiveMismatch), (rank, result)
        assert text in str(result)
        assert "number " + str(rank) in str(result)


def test_different_calls_are_a_mismatch_on_all_ranks():
    node, call = Node(2), exchanging([[1, 1], [1, 1]], lambda rank: 1 + rank)
    mismatch(node.run(call), "than rank number 1, now or before", "than rank number 0, now or before")
    for result in node.run(call):
        assert isinstance(result, MeshError)
        assert "ended with an error" in str(result)


def test_different_calls_before_are_a_mismatch():
    """Without peers nobody sees it, but it is not forgotten."""
    node = Node(2)

    def call(rank, rendezvous, pool):
        alone, together = all_to_all([[1, 0], [0, 1]], rank), all_to_all([[1, 1], [1, 1]], rank)
        for number, (routes, size, new_size) in ((rank, alone), (7, together)):
            exchange(rendezvous, routes, number, bytes(size), bytearray(new_size))

    mismatch(node.run(call), "rank number 1", "rank number 0")


def test_a_mismatch_is_seen_while_another_rank_is_missing():
    results = Node(3).run(exchanging(np.ones((3, 3), dtype=int), lambda rank: rank), [0, 1])
    mismatch(results[:2], "rank number 1", "rank number 0")


def test_who_waits_for_a_rank_that_left_with_an_error_is_reported():
    interrupted = [0]

    def interrupt():
        interrupted[0] += 1
        if interrupted[0] == 3:
            raise KeyboardInterrupt

    node = Node(3, progress=[interrupt, lambda: None, lambda: None])
    call = exchanging(np.ones((3, 3), dtype=int))
    results = node.run(call, [0, 1])  # rank 2 does not come
    assert isinstance(results[0], KeyboardInterrupt)
    assert "rank number 0 has left an exchange with rank number 1 with an error" in str(results[1])
    assert node.run(call, [2])[2].args[0].startswith("rank number")


def test_blocks_that_others_may_still_use_are_kept():
    node = Node(2, progress=[lambda: 1 / 0, lambda: 1 / 0])

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all([[9, 9], [9, 9]], rank)
        exchange(rendezvous, routes, 1, pool.allocate(size), pool.allocate(new_size))

    assert isinstance(node.run(call, [0])[0], ZeroDivisionError)
    assert node.pools[0].used == 2 * PAGE
    node.rendezvous[0].close()
    lines = node.pools[0].open_lines()
    assert lines != PAGE, "nor are its lines used again"
    node.pools[0].close_lines(lines)
    for _ in range(2):
        node.rendezvous[0].close(all_left=True)
    gc.collect()
    assert node.pools[0].used == 0
    assert [node.pools[0].open_lines() for _ in range(2)].count(PAGE) == 1, "its lines are used again"


def test_lines_that_were_given_back_after_an_error_know_of_none():
    node = Node(2, progress=[lambda: 1 / 0, lambda: None])

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all([[9, 9], [9, 9]], rank)
        source, target = pool.allocate(size), pool.allocate(new_size)
        source[:] = bytes_of(rank, size, 0)
        exchange(rendezvous, routes, 1, source, target)
        return bytes(target) == bytes(expected([[9, 9], [9, 9]], rank, 0))

    assert isinstance(node.run(call, [0])[0], ZeroDivisionError)
    assert isinstance(node.run(call, [1])[1], CollectiveMismatch)
    for rendezvous in node.rendezvous:
        rendezvous.close(all_left=True)
    again = Node(2, pools=node.pools)
    assert again.run(call) == [True, True]


def test_signals_are_seen_while_a_rank_waits():
    program = """
import signal
from meshcomm.core.memory._pool import Mapping, Pool
from meshcomm.core.memory._rendezvous import Rendezvous, Routes
pools = [Pool(2**20), Pool(2**20)]
lines = [pool.open_lines() for pool in pools]
other = Mapping(pools[1].fd, pools[1].size, pools[1].token)
rendezvous = Rendezvous(pools[0], [pools[0], other], lines, 0, 0, [0, 1], [0, 1], lambda: None)
routes = Routes(2, 0, [(1, False)], [], None)
signal.setitimer(signal.ITIMER_REAL, 0.2)
def alarm(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, alarm)
try:
    rendezvous.exchange(routes, 1, b"", bytearray(1))
except KeyboardInterrupt:
    print("as expected")
"""
    assert output_of(program) == "as expected\n"


def test_threads_go_on_while_a_rank_waits():
    calls = []
    node = Node(2, progress=[lambda: calls.append(threading.get_ident()), lambda: None])
    begun = threading.Event()

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all([[1, 1], [1, 1]], rank)
        if rank == 1:
            begun.wait()
            while len(calls) < 20:  # the other one calls back, and lets this thread run
                pass
        else:
            begun.set()
        exchange(rendezvous, routes, 1, bytes(size), bytearray(new_size))

    assert node.run(call) == [None, None]
    assert len(calls) >= 20


def test_copies_that_are_not_for_these_blocks_are_refused():
    node = Node(1)
    (rendezvous,) = node.rendezvous
    for reads, text in (
        (runs([9], [9, 9], [(0, 0, 1, 0, 4)]), "copies use"),
        (runs([8], [9], [(0, 0, 0, 0, 4)]), "9 b"),
    ):
        node = Node(1)
        routes = Routes(1, 0, [], [], lambda _reads, _writes, made=reads: (made, None))
        with pytest.raises(ValueError, match=text):
            exchange(node.rendezvous[0], routes, 1, bytes(9), bytearray(9))
        assert "ended with an error" in node.rendezvous[0].closed
    with pytest.raises(ValueError, match="routes are those of other ranks"):
        rendezvous.exchange(Routes(2, 0, [], [], None), 1, bytes(9), bytearray(9))
    with pytest.raises(ValueError, match="cannot exchange with"):
        Routes(2, 0, [(2, False)], [], None)
    with pytest.raises(ValueError, match="cannot exchange with"):
        Routes(2, 0, [(0, False)], [], None)


def test_only_contiguous_writable_blocks_before_anything_is_published():
    (rendezvous,) = Node(1).rendezvous
    routes = Routes(1, 0, [], [], lambda reads, writes: (None, None))
    for source, target in ((np.zeros((4, 4))[:, 1], bytearray(4)), (b"", b"")):
        with pytest.raises((ValueError, BufferError)):
            exchange(rendezvous, routes, 1, source, target)
    assert exchange(rendezvous, routes, 1, b"", bytearray()) is None
    rendezvous.close()
    with pytest.raises(MeshError, match="closed"):
        exchange(rendezvous, routes, 1, b"", bytearray())


def test_an_exchange_without_copies_makes_them():
    """The others wait for it, and nothing else is possible in between."""
    node = Node(2)
    finished = []

    def call(rank, rendezvous, pool):
        made = []

        def copies(reads_from, writes_to):
            made.append((reads_from, writes_to))
            if rank == 0:
                with pytest.raises(MeshError, match="has not finished"):
                    rendezvous.exchange(routes, 1, source, target)
                assert not finished
            return its_copies(reads_from, writes_to)

        (ends, its_copies), size, new_size = described([[1, 2], [3, 4]], rank)
        routes = Routes(2, rank, *ends, copies)
        source, target = block(pool, size, True), block(pool, new_size, True)
        source[:] = bytes_of(rank, size)
        for _ in range(2):
            rendezvous.exchange(routes, 1, source, target)
            finished.append(rank)
            assert np.array_equal(target, expected([[1, 2], [3, 4]], rank))
        return made, routes.left

    assert node.run(call) == [([((1 - rank,), ())], None) for rank in range(2)]


@pytest.mark.parametrize("how", ["an error", "interrupted", "wrong copies"])
def test_who_gives_up_tells_the_others_and_keeps_its_blocks(how):
    node = Node(2)

    def copies(reads_from, writes_to):
        if how == "wrong copies":  # this rank reads
            return None, runs([18], [18, 18], [(0, 0, 1, 0, 9)])
        raise KeyboardInterrupt if how == "interrupted" else LookupError("no copies")

    def call(rank, rendezvous, pool):
        (ends, its_copies), size, new_size = described([[9, 9], [9, 9]], rank)
        routes = Routes(2, rank, *ends, its_copies if rank else copies)
        return rendezvous.exchange(routes, 1, pool.allocate(size), pool.allocate(new_size))

    results = node.run(call)
    assert "rank number 0 has left an exchange with rank number 1 with an error" in str(results[1])
    kinds = {"an error": LookupError, "interrupted": KeyboardInterrupt, "wrong copies": ValueError}
    assert isinstance(results[0], kinds[how])
    assert "ended with an error" in node.rendezvous[0].closed
    gc.collect()
    assert node.pools[0].used == 2 * PAGE
    assert node.pools[0].open_lines() != PAGE, "nor are its lines used again"


def test_copies_from_several_blocks_need_several_blocks():
    (rendezvous,) = Node(1).rendezvous
    several = runs([2, 2], [4], [(0, 0, 0, 0, 2), (1, 0, 0, 2, 2)])
    routes = Routes(1, 0, [], [], lambda reads_from, writes_to: (None, several))
    target = bytearray(4)
    rendezvous.exchange(routes, 1, b"", target, [b"ab", b"cd"])
    assert target == b"abcd"
    with pytest.raises(ValueError, match="from 2 blocks, but one was given"):
        rendezvous.exchange(routes, 1, b"ab", target)


def test_an_agreement_of_an_earlier_rendezvous_is_forgotten():
    """Its lines are used again, and they still say so."""

    def progress():
        waited.append(1)
        if len(waited) == 20:
            raise TimeoutError

    waited, calls = [], [lambda: None, progress]
    first = Node(2, progress=calls)
    first.rendezvous[0].agree()
    for rendezvous in first.rendezvous:
        rendezvous.close()
    # Rank 1 waits for rank 0, whose line says that it agrees with all on another call: but that was before.
    routes = Routes(2, 1, [(0, False)], [], None)
    with pytest.raises(TimeoutError):
        Node(2, progress=calls, pools=first.pools).rendezvous[1].exchange(routes, 1, b"", bytearray(1))


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_rank_that_agrees_once_more_than_its_peer_is_found_out(before):
    """Also if both have agreed *before*, on calls without an exchange."""
    ranks = Node(2).rendezvous
    for _ in range(before):
        for rank in ranks:
            rank.agree()
    ranks[0].agree()
    with pytest.raises(CollectiveMismatch, match="rank number 0 makes one for the first time"):
        ranks[1].exchange(Routes(2, 1, [(0, False)], [], None), 1, b"", bytearray(1))


# -- the ranks of these tests -----------------------------------------------------------------------------------------


def test_each_rank_sees_the_pools_of_the_others():
    node = Node(2)
    theirs = node.pools[1].allocate(100)
    theirs[:] = 7
    mine = np.zeros(100, np.uint8)

    def call(rank, rendezvous, pool):
        routes, size, new_size = all_to_all([[0, 0], [100, 0]], rank)
        source, target = (theirs, np.empty(0, np.uint8)) if rank else (np.empty(0, np.uint8), mine)
        assert (len(source), len(target)) == (size, new_size)
        return exchange(rendezvous, routes, 1, source, target)

    assert node.run(call) == [None, None]
    assert (mine == 7).all()


def test_what_ranks_raise_is_returned_and_ranks_left_out_do_nothing():
    results = Node(3).run(lambda rank, rendezvous, pool: 1 / rank, ranks=[0, 2])
    assert isinstance(results[0], ZeroDivisionError)
    assert results[1:] == [None, 0.5]


def test_ranks_that_wait_for_ever_are_stuck():
    ended = threading.Event()
    with pytest.raises(patience.Stuck, match="no process used CPU time"):
        outcomes(lambda rank: ended.wait() if rank else None, range(2), 2, idle=2.0)
    ended.set()
