"""What memory a pool keeps: loops find theirs again, programs that shrink give it back, and there is a limit."""

import mmap
import os
import random
import resource
import sys
from itertools import pairwise

import pytest

from meshcomm.core.memory._pool import Pool
from support.sampling import sampled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

PAGE = mmap.PAGESIZE
MIB = 2**20
NOISE = 64  # page faults of Python itself


def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def used_block(pool, mib):
    """Return a block of which every page has been written."""
    block = pool.allocate(int(mib * MIB))
    block[::PAGE] = 1
    return block


def faults_of_turns(pool, sizes, drops, turns=8):
    """Count page faults of ``b1 = f(b0); b2 = f(b1); ... b0 = f(b_last)`` with blocks of these *sizes*, for each turn.

    Blocks are dropped as soon as the next one is there, at the end of the turn, or when the next turn makes them anew.
    """
    held = {0: used_block(pool, sizes[0])}
    counts = []
    for _ in range(turns):
        before = faults()
        for i in [*range(1, len(sizes)), 0]:
            held[i] = used_block(pool, sizes[i])
            if drops == "at once" and i > 1:
                del held[i - 1]
        if drops != "when replaced":
            held = {0: held[0]}
        counts.append(faults() - before)
    return counts


@pytest.mark.parametrize("drops", ["at once", "at the end", "when replaced"])
@pytest.mark.parametrize(
    "sizes", sampled([[34] * 3, [40] * 2, [13] * 6, [34, 33.99, 34.01], [70, 1, 30, 9], [64, 5, 47, 1.5, 20, 33]])
)
def test_loops_get_no_pages_after_their_second_turn(sizes, drops):
    counts = faults_of_turns(Pool(1024 * MIB), sizes, drops)
    assert counts[0] > MIB // PAGE, "page faults are counted"
    assert max(counts[2:]) < NOISE


@pytest.mark.parametrize("seed", sampled(range(6)))
def test_uneven_loops_get_no_pages_after_their_second_turn(seed):
    rng = random.Random(seed)
    sizes = [rng.randint(1, 48) for _ in range(rng.randint(2, 6))]
    counts = faults_of_turns(Pool(1024 * MIB), sizes, rng.choice(["at once", "at the end", "when replaced"]))
    assert max(counts[2:]) < NOISE, sizes


def test_many_small_blocks_do_not_make_a_loop_forget_its_large_ones():
    """With a window of 0 seconds only frees count: 60 of them are fewer than a window has."""
    pool = Pool(1024 * MIB, window=0)
    for turn in range(6):
        before = faults()
        large = [used_block(pool, 40) for _ in range(3)]
        del large
        for _ in range(57):
            pool.allocate(100)
        assert turn < 1 or faults() - before < NOISE


def test_memory_is_kept_for_the_window_however_many_blocks_are_freed():
    pool = Pool(1024 * MIB, window=1e9)
    blocks = [used_block(pool, 100) for _ in range(2)]
    blocks.clear()
    for _ in range(5000):
        pool.allocate(PAGE)
    assert pool.ready >= 200 * MIB


@pytest.mark.parametrize("private", [False, True])
def test_a_program_that_shrinks_gives_memory_back_after_two_windows(private):
    pool = Pool(1024 * MIB, private, window=0)
    blocks = [pool.allocate(20 * MIB) for _ in range(10)]
    kept = blocks[3]
    blocks.clear()
    counts = []
    for _ in range(4 * 64):
        pool.allocate(PAGE)
        counts.append(pool.ready)
    assert counts[0] >= 180 * MIB
    assert counts[-1] <= 64 * MIB
    if not private:
        assert os.fstat(pool.fd).st_blocks * 512 <= pool.used + pool.ready + 2 * PAGE
    kept[::PAGE] = 1


@pytest.mark.parametrize(("private", "part"), [(False, 1), (True, 4)])
@pytest.mark.parametrize("seed", sampled(range(3)))
def test_a_pool_has_at_most_its_budget(private, part, seed):
    """Sizes that never come again are the worst for it."""
    rng = random.Random(seed)
    pool = Pool(1024 * MIB, private)
    held, most = [], 0
    for _ in range(400):
        held.append(pool.allocate(rng.randint(1, 30 * MIB)))
        most = max(most, pool.used)
        assert pool.used + pool.ready <= most + most // part + 64 * MIB
        while len(held) > 6:
            held.pop(rng.randrange(len(held)))
    assert pool.used + pool.ready > most, "what is free is kept"


@pytest.mark.parametrize("seed", sampled(range(4)))
def test_large_and_small_blocks_never_overlap(seed):
    """In a pool that is nearly full, in windows of 64 frees: ranges are joined, cut and given back all the time."""
    rng = random.Random(seed)
    pool = Pool(96 * MIB, window=0)
    held, refused = [], 0
    for i in range(2500):
        if held and rng.random() < 0.48:
            block, mark = held.pop(rng.randrange(len(held)))
            assert (block[0], block[-1], block[len(block) // 2]) == (mark,) * 3
        else:
            block = pool.allocate(int(2 ** rng.uniform(8, 24)))
            if block is None:
                refused += 1
                continue
            block[0] = block[-1] = block[len(block) // 2] = i % 251
            held.append((block, i % 251))
        assert pool.used + pool.ready <= pool.share
    assert refused, "the pool was full"
    block = None
    held.sort(key=lambda each: pool.locate(each[0]))
    for (one, _), (other, _) in pairwise(held):
        assert pool.locate(one) + len(one) <= pool.locate(other)
    assert pool.used == sum(-(-len(each) // PAGE) * PAGE for each, _ in held)
    del one, other
    held.clear()
    assert pool.used == 0
    assert pool.allocate(96 * MIB) is not None, "all free ranges were joined"


def test_free_blocks_are_joined_when_nothing_else_is_left():
    pool = Pool(64 * MIB)
    blocks = [pool.allocate(MIB) for _ in range(64)]
    assert pool.allocate(1) is None
    blocks.clear()
    assert pool.ready == 64 * MIB
    before = faults()
    whole = pool.allocate(64 * MIB)
    assert whole is not None
    assert faults() - before < NOISE, "with the memory that they had"


def test_of_equal_free_blocks_the_lowest_is_taken():
    """So the blocks of a loop soon lie where they lay in earlier turns, for those who have mapped the pool as well."""
    pool = Pool(64 * MIB)
    blocks = [pool.allocate(2 * MIB) for _ in range(4)]
    offsets = [pool.locate(block) for block in blocks]
    for i in (2, 0, 3):
        blocks[i] = None
    again = [pool.allocate(2 * MIB) for _ in range(3)]
    assert [pool.locate(block) for block in again] == [offsets[0], offsets[2], offsets[3]]
