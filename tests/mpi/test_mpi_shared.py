"""Memory shared by ranks that are processes: who meets whom, and exchanges while blocks come and go."""

import gc
import os
import random

import numpy as np
import pytest
from mpi4py import MPI

from meshcomm import CollectiveMismatch, MeshcommError
from meshcomm.memory import pools
from meshcomm.ranks import rendezvous
from meshcomm.ranks.mpi import MPICommunicator
from support.in_process_ranks import all_to_all, block, bytes_of, expected
from support.verdicts import agree_raises

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
ALONE = "off: no other rank is on this node, or sees the processes of this one"


@pytest.fixture
def meet(comm, monkeypatch):
    """A function that makes a meeting over *comm*, or over the part of it that has the same *color*."""
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    opened, parts = [], []

    def make(color=None):
        part = comm if color is None else comm.Split(color, RANK)
        parts.extend([] if color is None else [part])
        made, _ = rendezvous.meet(MPICommunicator(part), tuple(part.allgather(RANK)))
        if made is not None:
            opened.append(made)
        return made

    yield make
    comm.Barrier()
    for meeting in opened:
        meeting.close()
    for part in parts:
        part.Free()


@pytest.fixture
def fresh(monkeypatch):
    """Sharing as it is before the first meeting."""
    monkeypatch.setattr(pools, "_pool", None)
    monkeypatch.setattr(rendezvous, "_mappings", {})
    monkeypatch.setattr(rendezvous, "_why_not", None)
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    return monkeypatch


def exchanged(meeting, counts, number, sharing=(True, True), rather_writes=False):
    """Exchange random bytes and check all that came; return both blocks."""
    counts = np.asarray(counts)
    routes, size, new_size = all_to_all(counts, meeting.position, rather_writes)
    source, target = (block(shared, n, s) for n, s in zip((size, new_size), sharing, strict=True))
    source[:] = bytes_of(meeting.position, size, number)
    assert exchange(meeting, routes, number, source, target) is None
    assert np.array_equal(target, expected(counts, meeting.position, number))
    return source, target


def everyone(length):
    return np.full((SIZE, SIZE), length)


def test_all_ranks_of_the_node_meet(meet):
    meeting = meet()
    if SIZE == 1:
        assert meeting is None
        assert rendezvous.describe() == ALONE
        return
    assert (meeting.members, meeting.position, meeting.size) == (tuple(range(SIZE)), RANK, SIZE)
    assert rendezvous.describe().startswith("up to ")
    assert " per rank, of which 0.0 MiB are in use" in rendezvous.describe()


@pytest.mark.parametrize("rather_writes", [False, True])
@pytest.mark.parametrize("sharing", [(True, True), (True, False), (False, True)])
def test_exchange(meet, sharing, rather_writes):
    meeting = meet()
    if meeting is None:
        return
    rng = np.random.default_rng(1)
    for number in range(30):
        counts = rng.integers(0, 10 ** (1 + number % 5), size=(SIZE, SIZE))
        exchanged(meeting, counts * rng.integers(0, 2, size=(SIZE, SIZE)), number, sharing, rather_writes)


def test_blocks_that_come_and_go_in_any_order(meet):
    """Each rank keeps and drops blocks, and has the collector run, at times of its own."""
    meeting = meet()
    if meeting is None:
        return
    rng, held = random.Random(RANK), []
    for number in range(400):
        counts = everyone(1 + 7919 * number % 20_000)
        sharing = rng.choice([(True, True), (True, False)])
        held.append((number, exchanged(meeting, counts, number, sharing)))
        cycle = [held[-1]]
        cycle.append(cycle)
        while len(held) > rng.randrange(30):
            number, (source, target) = held.pop(rng.randrange(len(held)))
            assert np.array_equal(source, bytes_of(RANK, len(source), number))
            source[:] = target[:] = 0
        if rng.random() < 0.02:
            gc.collect()


def test_groups_that_come_and_go(meet):
    """Their lines are used again at once, while the others may still be in the last exchange."""
    if SIZE == 1:
        return
    rng = np.random.default_rng(2)
    everywhere = meet()
    for number in range(40):
        color = int(rng.permutation(SIZE)[RANK] % 2)
        meeting = meet(color)
        if meeting is not None:
            exchanged(meeting, np.full((meeting.size,) * 2, 100), number)
            exchanged(meeting, np.full((meeting.size,) * 2, 5), number)
            meeting.close()
        exchanged(everywhere, everyone(3), number)


def test_two_groups_at_a_time(meet):
    if SIZE == 1:
        return
    one, other = meet(), meet()
    for number in range(50):
        exchanged(one if number % 3 else other, everyone(10), number)


def test_ranks_outside_of_an_exchange(meet):
    """In each round another rank has no partners."""
    meeting = meet()
    if meeting is None:
        return
    for number in range(100):
        counts = everyone(20)
        counts[number % SIZE, :] = counts[:, number % SIZE] = 0
        exchanged(meeting, counts, number)


def test_no_room(meet, monkeypatch):
    """Whoever has no room uses ordinary memory for its new block; what cannot be exchanged is told."""
    meeting = meet()
    if meeting is None:
        return
    monkeypatch.setattr(pools, "allocate", lambda nbytes: None)
    routes, size, new_size = all_to_all(everyone(5), RANK)
    source, target = block(shared, size, True), block(shared, new_size, True)
    others = tuple(sorted(set(range(SIZE)) - {RANK}))
    assert exchange(meeting, routes, 1, source, target) == (others, others)


def test_one_rank_cannot_map_another(comm, fresh, meet):
    own = rendezvous._mapping

    def failing(process, offer):
        if RANK == SIZE - 1:
            raise PermissionError("not allowed")
        return own(process, offer)

    fresh.setattr(rendezvous, "_mapping", failing)
    assert meet() is None
    assert ("cannot be mapped (not allowed)" in rendezvous.describe()) or SIZE == 1
    places = comm.allgather(SIZE == 1 or pools.own().open_lines() == os.sysconf("SC_PAGE_SIZE"))
    assert all(places), "the lines are free again"
    fresh.setattr(rendezvous, "_mapping", own)
    if SIZE > 1:
        exchanged(meet(), everyone(4), 0)


def test_one_rank_has_no_memory_to_share(fresh, meet):
    def failing(share):
        raise OSError("no such memory")

    if RANK == SIZE - 1:
        fresh.setattr(shared, "Pool", failing)
    assert meet() is None
    assert rendezvous.describe() == (ALONE if SIZE == 1 else "off: no memory to share could be made (no such memory)")


def test_one_rank_has_it_turned_off(fresh, meet):
    if RANK == SIZE - 1:
        fresh.setenv("MESHCOMM_SHARED_MEMORY", "0")
    assert meet() is None
    assert rendezvous.describe() == f"off: MESHCOMM_SHARED_MEMORY=0 on rank {SIZE - 1}"


def test_one_rank_has_no_number(fresh, meet):
    if RANK == SIZE - 1:
        fresh.setenv("MESHCOMM_SHARED_MEMORY", "plenty")
    with agree_raises(MeshcommError, "MESHCOMM_SHARED_MEMORY must be a size such as 500M or 2G, or 0, not 'plenty'"):
        meet()


def test_a_share_of_what_the_node_has(fresh, meet):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "60M")
    if meet() is not None:
        assert pools.own().share == -(-60 * 2**20 // SIZE // 4096) * 4096
        assert pools.allocate(61 * 2**20) is None


def test_ranks_of_other_hosts_are_not_met(fresh, meet):
    """As if every second rank were on another host, or in a container of its own."""
    own = rendezvous._introduction
    fresh.setattr(rendezvous, "_introduction", lambda: own() | {"processes": f"pid:[{RANK % 2}]"})
    meeting = meet()
    mates = tuple(range(RANK % 2, SIZE, 2))
    if len(mates) == 1:
        assert meeting is None
        assert rendezvous.describe() == ALONE
        return
    assert meeting.members == mates
    exchanged(meeting, np.full((len(mates),) * 2, 8), 1)


def test_a_mismatch_names_the_ranks(fresh, meet):
    meeting = meet()
    if meeting is None:
        return
    exchanged(meeting, everyone(4), 1)
    routes, size, new_size = all_to_all(everyone(4), RANK)
    odd = SIZE - 1
    with agree_raises(CollectiveMismatch, rf"rank {RANK} made another|has left an exchange") as raised:
        exchange(meeting, routes, 2 + (odd == RANK), bytes(size), bytearray(new_size))
    if odd != RANK and "another" in str(raised.value):
        assert f"than rank {odd}, now or before" in str(raised.value)


def test_the_pool_is_one_for_all_groups(meet):
    if SIZE == 1:
        return
    meet()
    pool = pools.own()
    assert isinstance(pool, Pool)
    for color in (0, RANK % 2):
        meet(color)
    assert pools.own() is pool
