"""Pools and meetings without MPI: two pools in one process are two ranks, each in a thread of its own."""

import ctypes
import gc
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import mpiexec
from reference import simulated

import meshcomm as mc
from meshcomm import CollectiveMismatch, MeshError, shared
from meshcomm._kernels import BoxCopies
from meshcomm._shared import Mapping, Meeting, Pool, Routes
from meshcomm.context import world_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

PAGE = mmap.PAGESIZE
MIB = 2**20
CASES = Path(__file__).parent / "failures" / "shared_cases.py"


def pages_of(pool):
    """Return how many bytes of memory the system has given to the blocks of *pool*."""
    return os.fstat(pool.fd).st_blocks * 512


def mapped(pool):
    return Mapping(pool.fd, pool.size, pool.token)


# -- pools ------------------------------------------------------------------------------------------------------------


def test_blocks_have_their_size_and_can_be_written():
    pool = Pool(MIB)
    for nbytes in (1, 7, PAGE - 1, PAGE, PAGE + 1, MIB):
        block = pool.allocate(nbytes)
        assert (block.dtype, block.shape, block.flags.writeable, block.flags.c_contiguous) == ("u1", (nbytes,), 1, 1)
        block[:] = 255
        assert pool.locate(block) % PAGE == 0
        del block
        assert pool.used == 0


def test_no_bytes_are_no_block():
    pool = Pool(MIB)
    assert pool.allocate(0) is None
    assert pool.allocate(-1) is None


def test_what_was_freed_last_is_used_first():
    pool = Pool(MIB)
    a, b, c = (pool.allocate(2 * PAGE) for _ in range(3))
    first, second = pool.locate(a), pool.locate(c)
    del a, c
    d = pool.allocate(2 * PAGE)
    e = pool.allocate(PAGE + 1)
    assert (pool.locate(d), pool.locate(e)) == (second, first)
    assert b is not None


def test_a_view_keeps_the_block():
    pool = Pool(MIB)
    view = pool.allocate(800).view("f8").reshape(10, 10)[3:5, ::2]
    view[...] = 5
    gc.collect()
    others = [pool.allocate(PAGE) for _ in range(100)]
    for other in others:
        other[:] = 1
    assert (view == 5).all()
    del view
    assert pool.used == 100 * PAGE


def test_a_full_pool_has_no_block_but_goes_on():
    pool = Pool(16 * PAGE)
    blocks = [pool.allocate(PAGE) for _ in range(17)]
    assert [block is None for block in blocks] == [False] * 16 + [True]
    assert pool.allocate(17 * PAGE) is None
    blocks[4] = blocks[6] = None
    assert pool.allocate(2 * PAGE) is None, "two pages are free, but not together"
    blocks[5] = None
    assert pool.allocate(3 * PAGE) is not None


@pytest.mark.parametrize("seed", range(5))
def test_blocks_never_overlap_and_all_comes_back(seed):
    rng = random.Random(seed)
    pool = Pool(64 * MIB)
    held = []
    for i in range(4000):
        if held and rng.random() < 0.49:
            block, mark = held.pop(rng.randrange(len(held)))
            assert (block[0], block[-1], block[len(block) // 2]) == (mark,) * 3
        else:
            block = pool.allocate(int(2 ** rng.uniform(0, 21)))
            if block is not None:
                block[0] = block[-1] = block[len(block) // 2] = i % 251
                held.append((block, i % 251))
    block = None
    held.sort(key=lambda each: pool.locate(each[0]))
    for (one, _), (other, _) in pairwise(held):
        assert pool.locate(one) + len(one) <= pool.locate(other)
    assert pool.used == sum(-(-len(block) // PAGE) * PAGE for block, _ in held)
    rng.shuffle(held)
    del one, other
    held.clear()
    assert pool.used == 0
    assert pool.allocate(64 * MIB) is not None, "free ranges were joined"


def test_memory_is_given_back_beyond_what_is_kept():
    pool = Pool(1024 * MIB)
    before = pages_of(pool)
    blocks = [pool.allocate(10 * MIB) for _ in range(20)]
    assert pages_of(pool) - before == pool.used == 200 * MIB, "a block has its pages from the beginning"
    while blocks:
        blocks.pop()
        assert pool.used + pool.ready <= 200 * MIB
        assert pages_of(pool) - before == pool.used + pool.ready
    for _ in range(200):
        pool.allocate(PAGE)
    assert pages_of(pool) - before == pool.ready <= 64 * MIB, "what is not in use any more is forgotten"


def test_a_loop_that_makes_blocks_anew_finds_their_memory_again():
    pool = Pool(1024 * MIB)
    before = pages_of(pool)
    old = pool.allocate(64 * MIB)
    source = pool.allocate(70 * MIB)
    del old
    for size in (66, 200):
        places = set()
        for _ in range(3):
            block = pool.allocate(size * MIB)
            places.add(pool.locate(block))
            del block
            assert pages_of(pool) - before == pool.used + pool.ready
            assert pool.ready >= size * MIB
        assert len(places) == 1
    del source


def test_a_private_pool():
    pool = Pool(256 * MIB, private=True)
    block = pool.allocate(5 * MIB + 1)
    place = block.ctypes.data
    assert (place % PAGE, pool.locate(block) > 0, pool.open_place()) == (0, True, -1)
    block[:] = 7
    child = os.fork()
    if not child:
        block[:] = 8
        del block
        os._exit(pool.allocate(10) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (block == 7).all()
    del block
    assert pool.allocate(4 * MIB).ctypes.data == place, "memory that was used is used again"
    block = pool.allocate(200 * MIB)
    block[::PAGE] = 1
    before = resident()
    del block
    for _ in range(200):
        pool.allocate(PAGE)
    assert pool.ready <= 64 * MIB
    assert before - resident() > 130 * MIB, "what is not in use any more is given back"


def resident():
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_blocks_that_are_not_shared_keep_their_memory():
    block = shared.allocate_unshared(3 * MIB)
    place = block.ctypes.data
    assert shared.locate(block) == -1
    del block
    assert shared.allocate_unshared(3 * MIB).ctypes.data == place


def test_a_system_without_such_memory(monkeypatch):
    def nothing(*args, **kwargs):
        raise OSError("no such memory")

    monkeypatch.setattr(shared, "Pool", nothing)
    monkeypatch.setattr(shared, "_unshared_pool", shared._unshared_pool.__wrapped__)
    assert shared._unshared_pool() is None
    assert shared.allocate_unshared(3 * MIB).nbytes == 3 * MIB


def test_a_range_that_was_given_back_can_be_used_again():
    pool = Pool(256 * MIB)
    for _ in range(3):
        block = pool.allocate(100 * MIB)
        block[::PAGE] = 1
        del block
        for _ in range(200):
            pool.allocate(PAGE)
        assert pool.ready <= 64 * MIB


def test_without_memory_there_is_no_block():
    """Taken away from it, as the system is not to run out of memory for a test."""
    pool = Pool(MIB)
    small = pool.allocate(PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.munmap(ctypes.c_void_p(small.ctypes.data + MIB // 2), ctypes.c_size_t(PAGE)) == 0
    assert pool.allocate(MIB - PAGE) is None
    assert pool.used == PAGE
    assert pool.allocate(PAGE) is not None


def test_a_pool_of_no_size_or_a_size_that_none_has():
    for share in (0, -1, 2**62):
        with pytest.raises(ValueError, match="cannot have"):
            Pool(share)


def test_a_limit_on_files_is_an_error():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "from meshcomm._shared import Pool\n"
        "try: Pool(2**24)\nexcept OSError as error: print('as expected', error)"
    )
    assert run(program).startswith("as expected")


def test_thousands_of_blocks():
    pool = Pool(256 * MIB)
    blocks = [pool.allocate(100) for _ in range(20_000)]
    for i, block in enumerate(blocks):
        block[:4] = np.frombuffer(np.uint32(i).tobytes(), "u1")
    assert [int(block[:4].view("u4")[0]) for block in blocks] == list(range(20_000))
    blocks[::2] = [None] * 10_000
    assert pool.used == 10_000 * PAGE


def test_locate():
    pool, other = Pool(MIB), Pool(MIB)
    block = pool.allocate(1000)
    start = pool.locate(block)
    assert pool.locate(block[17:]) == start + 17
    assert pool.locate(block.view("f8").reshape(5, 25)[2]) == start + 400
    block.flags.writeable = False
    assert pool.locate(block) == start
    for foreign in (np.zeros(8), block[::2], block[:0], other.allocate(10), b"text", None, [1]):
        assert pool.locate(foreign) == -1


def test_a_mapping_sees_the_blocks():
    pool = Pool(MIB)
    block = pool.allocate(100)
    block[:] = range(100)
    view = mapped(pool)
    assert view.size == pool.size
    with pytest.raises(OSError, match="not the pool"):
        Mapping(pool.fd, pool.size, b"x" * 16)
    with pytest.raises(OSError, match="size of the pool"):
        Mapping(pool.fd, pool.size + PAGE, pool.token)
    with pytest.raises(OSError, match="size of the pool"), open(os.devnull) as other:
        Mapping(other.fileno(), pool.size, pool.token)


def test_others_cannot_cut_the_file():
    pool = Pool(MIB)
    for size in (0, PAGE, pool.size + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)


def test_lines_of_meetings_are_used_again():
    pool = Pool(MIB)
    places = [pool.open_place() for _ in range(4096)]
    assert len(set(places)) == 4096
    assert pool.open_place() == -1
    pool.close_place(places[7])
    assert pool.open_place() == places[7]


def test_nothing_has_a_path():
    pool = Pool(MIB)
    assert pool.allocate(10) is not None
    assert os.readlink(f"/proc/self/fd/{pool.fd}") == "/memfd:meshcomm (deleted)"
    assert not any("meshcomm" in path.name for path in Path("/dev/shm").iterdir())


# -- the end of a process, and forks ----------------------------------------------------------------------------------


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_blocks_outlive_all_else():
    program = """
import atexit, sys, numpy as np
from meshcomm import _shared
class Late:
    def __init__(self, block): self.block, self.me = block, self
    def __del__(self): assert self.block[0] == 7; self.block[:] = 8
pool = _shared.Pool(2**20)
block = pool.allocate(5000); block[:] = 7
sys.late, late, np.late = Late(block), Late(pool.allocate(100)), Late(block)
late.block[:] = 7
atexit.register(lambda: block[:5].fill(7))
cycle = [pool.allocate(9), pool]; cycle.append(cycle)
del pool, _shared, sys.modules["meshcomm._shared"]
print(block.sum())
"""
    assert run(program) == "35000\n"


FORK = """
import gc, os, sys
from meshcomm._shared import Pool, Meeting, Routes
from meshcomm import MeshError
import numpy as np
pool = Pool(2**20)
block, freed = pool.allocate(5000), pool.allocate(5000)
block[:] = 7; freed[:] = 9
used = pool.used
meeting = Meeting(pool, [pool], [pool.open_place()], 0, 0, [0], [0], lambda: None)
child = os.fork()
if not child:
    assert (block == 7).all()                # what the parent had is there
    block[:] = 8                             # and can be changed
    where = pool.locate(block), pool.allocate(10), pool.open_place()
    assert where == (-1, None, -1), where
    del freed
    assert pool.used == used and pool.forked
    try:
        meeting.exchange(Routes(1, 0, [], [], lambda reads, writes: (None, None)), 1, b"", np.empty(0))
    except MeshError as error:
        assert "fork" in str(error)
    else:
        raise AssertionError
    grandchild = os.fork()
    if not grandchild:
        assert (block == 8).all()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
    sys.exit(0)                              # with all that Python does at the end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (block == 7).all() and (freed == 9).all() and not pool.forked
del freed
assert pool.used == used - 8192
meeting.exchange(Routes(1, 0, [], [], lambda reads, writes: (None, None)), 1, b"", np.empty(0))
print("as expected")
"""


def test_a_fork_changes_nothing():
    assert run(FORK) == "as expected\n"


# -- meetings ---------------------------------------------------------------------------------------------------------


class Node:
    """Ranks of a node that have met; each `run` is one call of all of them, each in its thread."""

    def __init__(self, size, share=MIB, progress=None):
        self.pools = [Pool(share) for _ in range(size)]
        lines = [pool.open_place() for pool in self.pools]
        memories = [mapped(pool) for pool in self.pools]
        self.meetings = [
            Meeting(
                pool,
                [*memories[:i], pool, *memories[i + 1 :]],
                lines,
                i,
                0,
                range(size),
                [f"number {n}" for n in range(size)],
                progress[i] if progress else lambda: None,
            )
            for i, pool in enumerate(self.pools)
        ]

    def run(self, call, ranks=None):
        """Return what ``call(rank, meeting, pool)`` returns or raises, for each rank."""
        results = [None] * len(self.pools)

        def body(rank):
            try:
                results[rank] = call(rank, self.meetings[rank], self.pools[rank])
            except BaseException as error:
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in ranks or range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a rank still waits"
        return results


def indices(*values):
    return np.array(values, dtype=np.intp)


def runs(sources, targets, pieces):
    """Return copies of *pieces*: (source, its offset, target, its offset, length)."""
    if not pieces:
        return None
    source, start, target, into, length = (indices(*column) for column in zip(*pieces, strict=True))
    ones = np.ones((len(pieces), 1), dtype=np.intp)
    return BoxCopies(sources, targets, 1, source, start, ones, target, into, ones, length[:, None])


def all_to_all(counts, rank, rather_writes=False):
    """Return the routes of *rank* where each sends ``counts[source][target]`` bytes, in order; with both sizes."""
    size = len(counts)
    counts = np.asarray(counts)
    sizes, new_sizes = counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()
    at = (np.cumsum(counts, axis=1) - counts).tolist()
    into = (np.cumsum(counts, axis=0) - counts).tolist()

    def copies(reads, writes):
        sources = [place for place in range(size) if counts[place, rank] and (place == rank or place in reads)]
        read = [(p, at[p][rank], 0, into[p][rank], int(counts[p, rank])) for p in sources]
        write = [(0, at[rank][p], p, into[rank][p], int(counts[rank, p])) for p in writes]
        return runs(sizes, [new_sizes[rank]], read), runs([sizes[rank]], new_sizes, write)

    incoming = [(p, rather_writes) for p in range(size) if p != rank and counts[p, rank]]
    outgoing = [(p, rather_writes) for p in range(size) if p != rank and counts[rank, p]]
    return Routes(size, rank, incoming, outgoing, copies), sizes[rank], new_sizes[rank]


def bytes_of(rank, size, seed=0):
    return np.random.default_rng([seed, rank]).integers(256, size=size, dtype=np.uint8)


def expected(counts, rank, seed=0):
    counts = np.asarray(counts)
    ends = np.cumsum(counts, axis=1)
    parts = [
        bytes_of(p, counts[p].sum(), seed)[ends[p, rank] - counts[p, rank] : ends[p, rank]] for p in range(len(counts))
    ]
    return np.concatenate(parts)


def block(pool, nbytes, in_pool):
    made = pool.allocate(nbytes) if in_pool else None
    return np.empty(nbytes, np.uint8) if made is None else made


COUNTS = [[3, 100, 0], [5000, 1, 8], [0, 64, 9]]


@pytest.mark.parametrize("rather_writes", [False, True])
@pytest.mark.parametrize("source_shared", [False, True])
def test_exchange_with_one_side_shared(source_shared, rather_writes):
    node = Node(3)

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(COUNTS, rank, rather_writes)
        for seed in range(20):
            source, target = block(pool, size, source_shared), block(pool, new_size, not source_shared)
            source[:] = bytes_of(rank, size, seed)
            assert meeting.exchange(routes, 1, source, target) is None
            assert np.array_equal(target, expected(COUNTS, rank, seed))
        return True

    assert node.run(call) == [True] * 3


def test_pairs_that_share_nothing_are_reported_by_both():
    """Rank 0 shares nothing, rank 1 its block, rank 2 its new block."""
    node = Node(3)
    counts = np.full((3, 3), 10)

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(counts, rank)
        source, target = block(pool, size, rank == 1), block(pool, new_size, rank == 2)
        source[:], target[:] = bytes_of(rank, size), 0
        left = meeting.exchange(routes, 1, source, target)
        whole = expected(counts, rank)
        for place in range(3):
            part = slice(10 * place, 10 * place + 10)
            missing = left is not None and place in left[0]
            assert np.array_equal(target[part], np.zeros(10) if missing else whole[part])
        return left

    assert node.run(call) == [((2,), (1,)), ((0, 2), ()), ((), (0, 1))]


def test_the_ways_may_change_from_call_to_call():
    node = Node(2)
    counts = [[1, 2], [3, 4]]

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(counts, rank)
        for number in range(64):
            shared_ones = np.random.default_rng(number).random((2, 2)) < 0.5
            source, target = (block(pool, n, s) for n, s in zip((size, new_size), shared_ones[rank], strict=True))
            source[:], target[:] = bytes_of(rank, size, number), 0
            left = meeting.exchange(routes, number, source, target)
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

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(counts, rank)
        rng = random.Random(rank)
        for seed in range(200):
            source, target = block(pool, size, rng.random() < 0.8), block(pool, new_size, True)
            source[:] = bytes_of(rank, size, seed)
            meeting.exchange(routes, 1, source, target)
            source[:] = 0
            del source
            assert np.array_equal(target, expected(counts, rank, seed))
        return True

    assert node.run(call) == [True] * 4


def test_ranks_without_partners_go_on():
    """Rank 2 exchanges with nobody for a long time, then with all."""
    node = Node(3)
    pair, everyone = [[1, 9, 0], [9, 1, 0], [0, 0, 4]], np.full((3, 3), 7)

    def call(rank, meeting, pool):
        for number, counts in enumerate([*[pair] * 50, everyone, *[pair] * 50, everyone]):
            routes, size, new_size = all_to_all(counts, rank)
            source, target = block(pool, size, True), block(pool, new_size, True)
            source[:] = bytes_of(rank, size, number)
            meeting.exchange(routes, 1, source, target)
            assert np.array_equal(target, expected(counts, rank, number))
        return True

    assert node.run(call) == [True] * 3


def mismatch(results, *texts):
    for rank, (result, text) in enumerate(zip(results, texts, strict=True)):
        assert isinstance(result, CollectiveMismatch), (rank, result)
        assert text in str(result)
        assert "number " + str(rank) in str(result)


def test_different_calls_are_a_mismatch_on_all_ranks():
    node = Node(2)

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all([[1, 1], [1, 1]], rank)
        meeting.exchange(routes, 1 + rank, bytes(size), bytearray(new_size))

    mismatch(node.run(call), "than rank number 1, now or before", "than rank number 0, now or before")
    for result in node.run(call):
        assert isinstance(result, MeshError)
        assert "ended with an error" in str(result)


def test_different_calls_before_are_a_mismatch():
    """Without partners nobody sees it, but it is not forgotten."""
    node = Node(2)

    def call(rank, meeting, pool):
        alone, together = all_to_all([[1, 0], [0, 1]], rank), all_to_all([[1, 1], [1, 1]], rank)
        for number, (routes, size, new_size) in ((rank, alone), (7, together)):
            meeting.exchange(routes, number, bytes(size), bytearray(new_size))

    mismatch(node.run(call), "rank number 1", "rank number 0")


def test_a_mismatch_is_seen_while_another_rank_is_missing():
    node = Node(3)
    counts = np.ones((3, 3), dtype=int)

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(counts, rank)
        meeting.exchange(routes, rank, bytes(size), bytearray(new_size))

    mismatch(node.run(call, [0, 1])[:2], "rank number 1", "rank number 0")


def test_who_waits_for_a_rank_that_left_with_an_error_is_told():
    interrupted = [0]

    def interrupt():
        interrupted[0] += 1
        if interrupted[0] == 3:
            raise KeyboardInterrupt

    node = Node(3, progress=[interrupt, lambda: None, lambda: None])
    counts = np.ones((3, 3), dtype=int)

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all(counts, rank)
        meeting.exchange(routes, 1, bytes(size), bytearray(new_size))

    results = node.run(call, [0, 1])  # rank 2 does not come
    assert isinstance(results[0], KeyboardInterrupt)
    assert "rank number 0 has left an exchange with rank number 1 with an error" in str(results[1])
    assert node.run(call, [2])[2].args[0].startswith("rank number")


def test_blocks_that_others_may_still_use_are_kept():
    node = Node(2, progress=[lambda: 1 / 0, lambda: 1 / 0])

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all([[9, 9], [9, 9]], rank)
        meeting.exchange(routes, 1, pool.allocate(size), pool.allocate(new_size))

    assert isinstance(node.run(call, [0])[0], ZeroDivisionError)
    assert node.pools[0].used == 2 * PAGE
    node.meetings[0].close()
    assert node.pools[0].open_place() != PAGE, "nor are its lines used again"


def test_signals_are_seen_while_a_rank_waits():
    program = """
import signal
from meshcomm._shared import Pool, Mapping, Meeting, Routes
pools = [Pool(2**20), Pool(2**20)]
lines = [pool.open_place() for pool in pools]
other = Mapping(pools[1].fd, pools[1].size, pools[1].token)
meeting = Meeting(pools[0], [pools[0], other], lines, 0, 0, [0, 1], [0, 1], lambda: None)
routes = Routes(2, 0, [(1, False)], [], None)
signal.setitimer(signal.ITIMER_REAL, 0.2)
def alarm(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, alarm)
try:
    meeting.exchange(routes, 1, b"", bytearray(1))
except KeyboardInterrupt:
    print("as expected")
"""
    assert run(program) == "as expected\n"


def test_threads_go_on_while_a_rank_waits():
    calls = []
    node = Node(2, progress=[lambda: calls.append(threading.get_ident()), lambda: None])
    begun = threading.Event()

    def call(rank, meeting, pool):
        routes, size, new_size = all_to_all([[1, 1], [1, 1]], rank)
        if rank == 1:
            begun.wait()
            while len(calls) < 20:  # the other one calls back, and lets this thread run
                pass
        else:
            begun.set()
        meeting.exchange(routes, 1, bytes(size), bytearray(new_size))

    assert node.run(call) == [None, None]
    assert len(calls) >= 20


def test_copies_that_are_not_for_these_blocks_are_refused():
    node = Node(1)
    (meeting,) = node.meetings
    for reads, text in (
        (runs([9], [9, 9], [(0, 0, 1, 0, 4)]), "copies use"),
        (runs([8], [9], [(0, 0, 0, 0, 4)]), "9 b"),
    ):
        node = Node(1)
        routes = Routes(1, 0, [], [], lambda _reads, _writes, made=reads: (made, None))
        with pytest.raises(ValueError, match=text):
            node.meetings[0].exchange(routes, 1, bytes(9), bytearray(9))
    with pytest.raises(ValueError, match="routes are those of other ranks"):
        meeting.exchange(Routes(2, 0, [], [], None), 1, bytes(9), bytearray(9))
    with pytest.raises(ValueError, match="cannot exchange with"):
        Routes(2, 0, [(2, False)], [], None)
    with pytest.raises(ValueError, match="cannot exchange with"):
        Routes(2, 0, [(0, False)], [], None)


def test_only_contiguous_writable_blocks_before_anything_is_published():
    (meeting,) = Node(1).meetings
    routes = Routes(1, 0, [], [], lambda reads, writes: (None, None))
    for source, target in ((np.zeros((4, 4))[:, 1], bytearray(4)), (b"", b"")):
        with pytest.raises((ValueError, BufferError)):
            meeting.exchange(routes, 1, source, target)
    assert meeting.exchange(routes, 1, b"", bytearray()) is None
    meeting.close()
    with pytest.raises(MeshError, match="closed"):
        meeting.exchange(routes, 1, b"", bytearray())


# -- how much, and for whom -------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """Sharing as it is before the first meeting."""
    monkeypatch.setattr(shared, "_pool", None)
    monkeypatch.setattr(shared, "_why_not", None)
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    return monkeypatch


def test_before_ranks_have_met_nothing_is_shared(fresh):
    assert shared.allocate(100) is None
    assert shared.locate(np.zeros(3)) == -1


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500", 500), ("2G", 2**31), ("1.5 MiB", 3 * 2**19), ("7k", 7168), ("1TB", 2**40)]
)
def test_sizes(fresh, text, size):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", text)
    assert shared._limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "2 X", "1e3", "G"])
def test_no_sizes(fresh, text):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", text)
    assert shared.describe() == f"error: MESHCOMM_SHARED_MEMORY must be a size such as 500M or 2G, or 0, not {text!r}"


def test_half_of_what_there_is_by_default(fresh, tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * PAGE
    fresh.setattr(shared, "_cgroup_limits", lambda: [2**62])
    assert shared._limit() == whole // 2
    fresh.setattr(shared, "_cgroup_limits", lambda: [2**62, 2**30])
    assert shared._limit() == 2**29


def test_descriptions(fresh):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "3G")
    assert shared.describe() == "up to 3.0 GiB for all ranks of this node"
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "0")
    assert shared.describe() == "off: MESHCOMM_SHARED_MEMORY=0"


def test_threads_of_one_process_do_not_share(fresh):
    def program(rank):
        place = world_of(None).place(mc.create_mesh())
        return shared.meet(place.team.everyone.communicator(), (0, 1))

    assert simulated(3, program) == [(None, None)] * 3
    assert shared.describe() == "off: the ranks are threads of one process"


def test_other_systems_can_compile_it(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler")
    header = Path(__file__).parents[1] / "meshcomm" / "_shared.h"
    program = tmp_path / "other.c"
    program.write_text(
        f'#include "{header}"\nint main(void) {{ char *base; return mc_map(0, 1, &base) != ENOSYS; }}\n'
    )
    flags = ["-U__linux__", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unused-variable"]
    subprocess.run([compiler, *flags, program, "-o", tmp_path / "other"], check=True)
    subprocess.run([tmp_path / "other"], check=True)


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(launch):
    def run(ranks, name, **environment):
        before = set(Path("/dev/shm").iterdir())
        finished = launch(ranks, CASES, name, **environment)
        assert finished.left == [], f"processes of the job are left: {finished}"
        ours = [path for path in set(Path("/dev/shm").iterdir()) - before if "meshcomm" in path.name]
        assert ours == []
        return finished

    if mpiexec() is None:
        pytest.skip("there is no mpiexec")
    return run


@pytest.mark.parametrize(
    ("ranks", "case", "environment"),
    [
        (2, "progress", {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "OMPI_MCA_smsc": "^cma,xpmem,knem"}),
        (3, "after_finalize", {}),
        (2, "off", {"MESHCOMM_SHARED_MEMORY": "0"}),
        (4, "tiny", {"MESHCOMM_SHARED_MEMORY": "64K"}),
        (2, "no_such_file", {}),
    ],
)
def test_jobs_that_go_well(job, ranks, case, environment):
    finished = job(ranks, case, **environment)
    assert finished.code == 0, finished
    assert finished.text.count("as expected") == ranks, finished


def test_a_rank_that_is_killed_leaves_nothing(job):
    assert job(3, "one_is_killed").code != 0


def test_a_rank_that_is_interrupted_ends_the_job(job):
    finished = job(2, "one_is_interrupted")
    assert finished.code != 0
    assert "KeyboardInterrupt" in finished.text
    assert signal.Signals.SIGSEGV.name not in finished.text
