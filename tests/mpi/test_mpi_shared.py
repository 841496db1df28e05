"""Memory shared by ranks that are processes: which ranks share it, and exchanges while blocks come and go."""

import gc
import random

import numpy as np
import pytest
from mpi4py import MPI

from meshcomm import CollectiveMismatch, MeshcommError
from meshcomm.core._units import bytes_text
from meshcomm.core.memory import pools
from meshcomm.core.memory._pool import Pool
from meshcomm.core.ranks import rendezvous
from meshcomm.core.ranks.mpi import MPICommunicator
from support.in_process_ranks import all_to_all, block, bytes_of, exchange, expected
from support.verdicts import agree_raises

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
ALONE = "off: no other rank is on this node, or sees the processes of this one"


@pytest.fixture
def opens(comm, monkeypatch):
    """A function that opens a rendezvous over *comm*, or over those of its ranks that have the same *color*."""
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    made_here, split = [], []

    def make(color=None):
        some = comm if color is None else comm.Split(color, RANK)
        split.extend([] if color is None else [some])
        made, _ = rendezvous.open_rendezvous(MPICommunicator(some), tuple(some.allgather(RANK)))
        if made is not None:
            made_here.append(made)
        return made

    yield make
    comm.Barrier()
    for made in made_here:
        made.close()
    for some in split:
        some.Free()


@pytest.fixture
def fresh(monkeypatch):
    """Sharing as it is before the first rendezvous."""
    monkeypatch.setattr(pools, "shared", None)
    monkeypatch.setattr(rendezvous, "_mappings", {})
    monkeypatch.setattr(rendezvous, "_why_not", None)
    monkeypatch.delenv("MESHCOMM_SHARED_MEMORY", raising=False)
    return monkeypatch


def exchanged(opened, counts, number, sharing=(True, True), rather_writes=False):
    """Exchange random bytes and check all that came; return both blocks."""
    counts = np.asarray(counts)
    routes, size, new_size = all_to_all(counts, opened.position, rather_writes)
    source, target = (block(pools, n, s) for n, s in zip((size, new_size), sharing, strict=True))
    source[:] = bytes_of(opened.position, size, number)
    assert exchange(opened, routes, number, source, target) is None
    assert np.array_equal(target, expected(counts, opened.position, number))
    return source, target


def everyone(length):
    return np.full((SIZE, SIZE), length)


def test_all_ranks_of_the_node_share(opens):
    opened = opens()
    if SIZE == 1:
        assert opened is None
        assert rendezvous.describe() == ALONE
        return
    assert (opened.members, opened.position, opened.size) == (tuple(range(SIZE)), RANK, SIZE)
    assert rendezvous.describe().startswith("up to ")
    assert f" per rank, of which {bytes_text(pools.own_pool().used)} are in use" in rendezvous.describe()


@pytest.mark.parametrize("rather_writes", [False, True])
@pytest.mark.parametrize("sharing", [(True, True), (True, False), (False, True)])
def test_exchange(opens, sharing, rather_writes):
    opened = opens()
    if opened is None:
        return
    rng = np.random.default_rng(1)
    for number in range(30):
        counts = rng.integers(0, 10 ** (1 + number % 5), size=(SIZE, SIZE))
        exchanged(opened, counts * rng.integers(0, 2, size=(SIZE, SIZE)), number, sharing, rather_writes)


def test_blocks_that_come_and_go_in_any_order(opens):
    """Each rank keeps and drops blocks, and has the collector run, at times of its own."""
    opened = opens()
    if opened is None:
        return
    rng, held = random.Random(RANK), []
    for number in range(400):
        counts = everyone(1 + 7919 * number % 20_000)
        sharing = rng.choice([(True, True), (True, False)])
        held.append((number, exchanged(opened, counts, number, sharing)))
        cycle = [held[-1]]
        cycle.append(cycle)
        while len(held) > rng.randrange(30):
            number, (source, target) = held.pop(rng.randrange(len(held)))
            assert np.array_equal(source, bytes_of(RANK, len(source), number))
            source[:] = target[:] = 0
        if rng.random() < 0.02:
            gc.collect()


def test_groups_that_come_and_go(opens):
    """Their lines are used again at once, while the others may still be in the last exchange."""
    if SIZE == 1:
        return
    rng = np.random.default_rng(2)
    on_all = opens()
    for number in range(40):
        color = int(rng.permutation(SIZE)[RANK] % 2)
        opened = opens(color)
        if opened is not None:
            exchanged(opened, np.full((opened.size,) * 2, 100), number)
            exchanged(opened, np.full((opened.size,) * 2, 5), number)
            opened.close()
        exchanged(on_all, everyone(3), number)


def test_two_groups_at_a_time(opens):
    if SIZE == 1:
        return
    one, other = opens(), opens()
    for number in range(50):
        exchanged(one if number % 3 else other, everyone(10), number)


def test_ranks_outside_of_an_exchange(opens):
    """In each round another rank has no peers."""
    opened = opens()
    if opened is None:
        return
    for number in range(100):
        counts = everyone(20)
        counts[number % SIZE, :] = counts[:, number % SIZE] = 0
        exchanged(opened, counts, number)


def test_no_free_space(opens, monkeypatch):
    """A rank whose pool is full uses ordinary memory for its new block; what cannot be exchanged is an error."""
    opened = opens()
    if opened is None:
        return
    monkeypatch.setattr(pools, "allocate", lambda nbytes: None)
    routes, size, new_size = all_to_all(everyone(5), RANK)
    source, target = block(pools, size, True), block(pools, new_size, True)
    others = tuple(sorted(set(range(SIZE)) - {RANK}))
    assert exchange(opened, routes, 1, source, target) == (others, others)


def test_one_rank_cannot_map_another(comm, fresh, opens):
    own = rendezvous._mapped_pool

    def failing(process, offer):
        if RANK == SIZE - 1:
            raise PermissionError("not allowed")
        return own(process, offer)

    fresh.setattr(rendezvous, "_mapped_pool", failing)
    assert opens() is None
    assert ("cannot be mapped (not allowed)" in rendezvous.describe()) or SIZE == 1
    assert all(comm.allgather(pools.shared is None)), "a pool that nobody shares is given back"
    fresh.setattr(rendezvous, "_mapped_pool", own)
    if SIZE > 1:
        exchanged(opens(), everyone(4), 0)


def test_one_rank_has_no_memory_to_share(fresh, opens):
    def failing(share):
        raise OSError("no such memory")

    if RANK == SIZE - 1:
        fresh.setattr(pools, "Pool", failing)
    assert opens() is None
    assert rendezvous.describe() == (ALONE if SIZE == 1 else "off: no memory to share could be made (no such memory)")


def test_one_rank_has_it_turned_off(fresh, opens):
    if RANK == SIZE - 1:
        fresh.setenv("MESHCOMM_SHARED_MEMORY", "0")
    assert opens() is None
    assert rendezvous.describe() == f"off: MESHCOMM_SHARED_MEMORY=0 on rank {SIZE - 1}"


def test_one_rank_has_no_number(fresh, opens):
    if RANK == SIZE - 1:
        fresh.setenv("MESHCOMM_SHARED_MEMORY", "plenty")
    with agree_raises(MeshcommError, "MESHCOMM_SHARED_MEMORY must be a size such as 500M or 2G, or 0, not 'plenty'"):
        opens()


def test_a_share_of_what_the_node_has(fresh, opens):
    fresh.setenv("MESHCOMM_SHARED_MEMORY", "60M")
    if opens() is not None:
        assert pools.own_pool().share == -(-60 * 2**20 // SIZE // 4096) * 4096
        assert pools.allocate(61 * 2**20) is None


def test_ranks_of_other_hosts_do_not_share(fresh, opens):
    """As if every second rank were on another host, or in a container of its own."""
    own = rendezvous._introduction
    fresh.setattr(rendezvous, "_introduction", lambda: own() | {"processes": f"pid:[{RANK % 2}]"})
    opened = opens()
    peers = tuple(range(RANK % 2, SIZE, 2))
    if len(peers) == 1:
        assert opened is None
        assert rendezvous.describe() == ALONE
        return
    assert opened.members == peers
    exchanged(opened, np.full((len(peers),) * 2, 8), 1)


def test_a_mismatch_names_the_ranks(fresh, opens):
    opened = opens()
    if opened is None:
        return
    exchanged(opened, everyone(4), 1)
    routes, size, new_size = all_to_all(everyone(4), RANK)
    odd = SIZE - 1
    with agree_raises(CollectiveMismatch, rf"rank {RANK} made another|has left an exchange") as raised:
        exchange(opened, routes, 2 + (odd == RANK), bytes(size), bytearray(new_size))
    if odd != RANK and "another" in str(raised.value):
        assert f"than rank {odd}, now or before" in str(raised.value)


def test_the_pool_is_one_for_all_groups(opens):
    if SIZE == 1:
        return
    opens()
    pool = pools.own_pool()
    assert isinstance(pool, Pool)
    for color in (0, RANK % 2):
        opens(color)
    assert pools.own_pool() is pool
