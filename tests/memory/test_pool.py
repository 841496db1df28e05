"""Pools: the blocks of one process in memory that other processes can map."""

import ctypes
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from meshcomm.core.memory import pools
from meshcomm.core.memory._pool import Mapping, Pool
from meshcomm.core.memory.blocks import new_bytes
from support.in_process_ranks import MIB, PAGE, mapped, output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")


def pages_of(pool):
    """Return how many bytes of memory the system has given to the blocks of *pool*."""
    return os.fstat(pool.fd).st_blocks * 512


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


def test_memory_is_given_back_beyond_what_is_kept():
    pool = Pool(1024 * MIB, window=0)
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
        addresses = set()
        for _ in range(3):
            block = pool.allocate(size * MIB)
            addresses.add(pool.locate(block))
            del block
            assert pages_of(pool) - before == pool.used + pool.ready
            assert pool.ready >= size * MIB
        assert len(addresses) == 1
    del source


def test_a_private_pool():
    pool = Pool(256 * MIB, private=True, window=0)
    block = pool.allocate(5 * MIB + 1)
    address = block.ctypes.data
    assert (address % PAGE, pool.locate(block) > 0, pool.open_lines()) == (0, True, -1)
    block[:] = 7
    child = os.fork()
    if not child:
        block[:] = 8
        del block
        os._exit(pool.allocate(10) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (block == 7).all()
    del block
    assert pool.allocate(5 * MIB + 7).ctypes.data == address, "memory that was used is used again"
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
    block = pools.allocate_unshared(3 * MIB)
    address = block.ctypes.data
    assert pools.locate(block) == -1
    del block
    assert pools.allocate_unshared(3 * MIB).ctypes.data == address


def test_a_system_without_such_memory(monkeypatch):
    def nothing(*args, **kwargs):
        raise OSError("no such memory")

    monkeypatch.setattr(pools, "Pool", nothing)
    monkeypatch.setattr(pools, "_unshared_pool", pools._unshared_pool.__wrapped__)
    assert pools._unshared_pool() is None
    assert pools.allocate_unshared(3 * MIB).nbytes == 3 * MIB


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
        "from meshcomm.core.memory._pool import Pool\n"
        "try: Pool(2**24)\nexcept OSError as error: print('as expected', error)"
    )
    assert output_of(program).startswith("as expected")


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
    with pytest.raises(OSError, match="token of the pool"):
        Mapping(pool.fd, pool.size, b"x" * 16)
    with pytest.raises(OSError, match="but the pool has"):
        Mapping(pool.fd, pool.size + PAGE, pool.token)
    with pytest.raises(OSError, match="but the pool has"), open(os.devnull) as other:
        Mapping(other.fileno(), pool.size, pool.token)


def test_others_cannot_cut_the_file():
    pool = Pool(MIB)
    for size in (0, PAGE, pool.size + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)


def test_lines_of_rendezvous_are_used_again():
    pool = Pool(MIB)
    lines = [pool.open_lines() for _ in range(4096)]
    assert len(set(lines)) == 4096
    assert pool.open_lines() == -1
    pool.close_lines(lines[7])
    assert pool.open_lines() == lines[7]


def test_nothing_has_a_path():
    pool = Pool(MIB)
    assert pool.allocate(10) is not None
    assert os.readlink(f"/proc/self/fd/{pool.fd}") == "/memfd:meshcomm (deleted)"
    assert not any("meshcomm" in path.name for path in Path("/dev/shm").iterdir())


# -- the end of a process, and forks ----------------------------------------------------------------------------------


def test_blocks_outlive_all_else():
    program = """
import atexit, sys, numpy as np
from meshcomm.core.memory import _pool
class Late:
    def __init__(self, block): self.block, self.me = block, self
    def __del__(self): assert self.block[0] == 7; self.block[:] = 8
pool = _pool.Pool(2**20)
block = pool.allocate(5000); block[:] = 7
sys.late, late, np.late = Late(block), Late(pool.allocate(100)), Late(block)
late.block[:] = 7
atexit.register(lambda: block[:5].fill(7))
cycle = [pool.allocate(9), pool]; cycle.append(cycle)
del pool, _pool, sys.modules["meshcomm.core.memory._pool"]
print(block.sum())
"""
    assert output_of(program) == "35000\n"


FORK = """
import gc, os, sys
from meshcomm.core.memory._pool import Pool
from meshcomm.core.memory._rendezvous import Rendezvous, Routes
from meshcomm import MeshError
import numpy as np
pool = Pool(2**20)
block, freed = pool.allocate(5000), pool.allocate(5000)
block[:] = 7; freed[:] = 9
used = pool.used
rendezvous = Rendezvous(pool, [pool], [pool.open_lines()], 0, 0, [0], [0], lambda: None)
child = os.fork()
if not child:
    assert (block == 7).all()                # what the parent had is there
    block[:] = 8                             # and can be changed
    where = pool.locate(block), pool.allocate(10), pool.open_lines()
    assert where == (-1, None, -1), where
    del freed
    assert pool.used == used and pool.forked
    try:
        rendezvous.exchange(Routes(1, 0, [], [], lambda *ways: (None, None)), 1, b"", np.empty(0))
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
rendezvous.exchange(Routes(1, 0, [], [], lambda *ways: (None, None)), 1, b"", np.empty(0))
print("as expected")
"""


def test_large_blocks_of_close_lengths_have_memory_of_one_length():
    sizes = [2**20 - 2**15 + 1, 2**20 - 5000, 2**20]
    blocks = [new_bytes(size) for size in sizes]
    assert [len(block) for block in blocks] == sizes
    assert {len(block if block.base is None or len(block) == 2**20 else block.base) for block in blocks} == {2**20}


def test_a_fork_changes_nothing():
    assert output_of(FORK) == "as expected\n"
