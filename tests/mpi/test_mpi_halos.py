"""Halos on real ranks: in shared memory and over MPI."""

from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm.core.memory.pools import locate
from support.halo_cases import check_halo, dot, made, random_case
from support.reference import numbered, same_bits
from support.sampling import sampled
from support.tensors import some_ranks
from support.verdicts import agree_mismatch

WORLD = MPI.COMM_WORLD
SIZE = WORLD.size


def spoiled(halo):
    for ghosts in halo._ghosts:
        ghosts[...] = np.zeros((), halo.dtype)
    return halo


@pytest.mark.parametrize("seed", sampled(range(60), 15))
def test_halos(seed):
    random = Random(f"{SIZE} {seed}")
    mesh = some_ranks(random, SIZE)
    cases = [random_case(random, mesh, most=random.choice([9, 40])) for _ in range(4)]
    halos = [made(case) for case in cases]
    for _ in range(3):
        for case, halo in zip(cases, halos, strict=True):
            check_halo(case, halo)
            spoiled(halo).update()
            check_halo(case, halo)
            spoiled(halo).start_update().wait()
            check_halo(case, halo)
            spoiled(halo)
        mc.update_halos(halos)
    for case, halo in zip(cases, halos, strict=True):
        check_halo(case, halo)


@pytest.mark.parametrize("seed", sampled(range(40), 10))
def test_reduce_is_the_adjoint(seed):
    random = Random(f"adjoint {SIZE} {seed}")
    mesh = some_ranks(random, SIZE)
    case = random_case(random, mesh, "f8")
    halo = made(case._replace(boundary=[0 if not isinstance(b, str) else b for b in case.boundary], corners=True))
    forward = backward = 0.0
    if halo.local is not None:
        rng = np.random.default_rng([seed, mesh.rank])
        x, y = (rng.integers(-9, 10, halo.local.shape).astype("f8") for _ in range(2))
        for _ in range(2):
            halo.local[...] = x
            halo.update()
            forward = dot(halo.local, y)
            halo.local[...] = y
            halo.reduce()
            backward = dot(x, halo.local)
    assert WORLD.allreduce(forward) == WORLD.allreduce(backward)


def test_reduce_is_the_same_each_time():
    """Sums of ghosts do not depend on which rank is faster."""
    mesh = mc.create_mesh([("x", SIZE)])
    halo = mc.halo(mc.zeros(SIZE * 2, "f8", mc.Layout(["x"], mesh)), SIZE * 5 + 1, "periodic")
    random = np.random.default_rng(mesh.rank)
    values, found = random.normal(size=halo.local.shape) * 10.0 ** random.integers(-9, 9, halo.local.shape), set()
    for _ in range(20):
        halo.local[:] = values
        halo.reduce()
        found.add(halo.inner.tobytes())
    assert len(found) == 1


def test_started_updates_overlap():
    """Several updates are in flight at once, and complete in any order."""
    mesh = mc.create_mesh([("x", SIZE)])
    wholes = [numbered((SIZE * 3, 4 + i), dtype) for i, dtype in enumerate(("f8", "i2", "c8"))]
    halos = [mc.halo(mc.distribute(w, mc.Layout(["x", mc.UNSHARDED], mesh)), {0: 2}, "periodic") for w in wholes]
    for _ in range(10):
        requests = [spoiled(halo).start_update() for halo in halos]
        for request in requests if mesh.rank % 2 else reversed(requests):
            request.wait()
        for whole, halo in zip(wholes, halos, strict=True):
            start = 3 * mesh.rank
            assert same_bits(halo.local, np.pad(whole, [(2, 2), (0, 0)], mode="wrap")[start : start + 7])


def test_on_a_node_wait_returns_while_the_neighbours_compute():
    """Rank 0 waits for all others to start, not for them to wait: they wait for a word of rank 0 first."""
    mesh = mc.create_mesh([("x", SIZE)])
    halo = mc.halo(mc.distribute(np.arange(3.0 * SIZE), mc.Layout(["x"], mesh)), 2, "periodic")
    for turn in range(5):
        halo.inner[:] += 1
        request = halo.start_update()
        (kept,) = halo._repeated.values()
        if SIZE > 1:
            assert (kept._channel is not None) == (locate(halo._blocks[0]) >= 0)
        if mesh.rank == 0 and kept._messages is None:
            request.wait()
        WORLD.bcast(None)
        request.wait()
        whole = np.arange(3.0 * SIZE) + turn + 1
        assert same_bits(halo.local, np.pad(whole, 2, mode="wrap")[3 * mesh.rank :][:7])


def test_memory_that_is_not_shared():
    """Blocks that lie outside of the pool: their ghosts go in messages."""
    mesh = mc.create_mesh([("x", SIZE)])
    whole = numbered((SIZE * 3, 4))
    halo = mc.halo(mc.distribute(whole, mc.Layout(["x", mc.UNSHARDED], mesh)), {0: 2}, "periodic")
    if mesh.rank % 2 == 0:
        object.__setattr__(halo, "local", halo.local.copy())  # a halo makes its own
    halo._blocks = [halo.local.reshape(-1).view("u1")]
    for _ in range(3):
        halo.local[:2], halo.local[-2:] = 0, 0
        halo.update()
        start = 3 * mesh.rank
        assert same_bits(halo.local, np.pad(whole, [(2, 2), (0, 0)], mode="wrap")[start : start + 7])


def test_large_slabs_that_need_no_packing_are_packed():
    """Over MPI too, no call receives into what it sends from: most bytes of this go beside the comparison."""
    mesh = mc.create_mesh([("x", SIZE)])
    whole = np.random.default_rng(0).normal(size=(SIZE * 4, 40_000))
    halo = mc.halo(mc.distribute(whole, mc.Layout(["x", mc.UNSHARDED], mesh)), {0: 3}, "periodic")
    start = 4 * mesh.rank
    expected = np.pad(whole, [(3, 3), (0, 0)], mode="wrap")[start : start + 10]
    assert same_bits(halo.local, expected)
    spoiled(halo).start_update().wait()
    assert same_bits(halo.local, expected)


def test_all_ranks_find_a_difference():
    if SIZE == 1:
        return
    t = mc.zeros(8 * SIZE, "f8", mc.Layout(["x"], mc.create_mesh([("x", SIZE)])))
    with agree_mismatch(t.mesh):
        mc.halo(t, 1 + t.mesh.rank % 2)
