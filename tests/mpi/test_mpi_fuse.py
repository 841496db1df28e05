"""Fused functions of tensors under mpiexec; tests/fusing has the same on simulated ranks, with more cases."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from support.fused_programs import on_tensors
from support.sampling import sampled
from support.tensors import close
from support.verdicts import agree_mismatch, agree_raises
from support.waiting import all_waiting

SIZE = MPI.COMM_WORLD.size


@pytest.fixture
def short_pieces():
    """Small blocks are computed in pieces, too."""
    with all_waiting(1024):
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sampled(range(60)))
def test_random_functions(grid, short_pieces, seed):
    on_tensors(1000 * SIZE + seed, grid)


def test_totals_have_the_same_bits_on_all_ranks(comm, line, short_pieces):
    x = np.random.default_rng(0).normal(size=5000)
    t = mc.distribute(x, mc.Layout(["x"], line))
    fused = mc.fuse(lambda x: ((x * x).sum(), x.mean(), (x * 2).max(), x / (x * x).sum()))
    for _ in range(2):
        total, mean, largest, scaled = fused(t)
        assert len(set(comm.allgather((total.item().hex(), mean.item().hex())))) == 1
        np.testing.assert_allclose(total.item(), (x * x).sum(), rtol=1e-13)
        np.testing.assert_allclose(mean.item(), x.mean(), rtol=1e-10)
        assert largest.item() == (x * 2).max()
        close(scaled, x / (x * x).sum())


def test_repeated_calls_communicate_only_to_reduce(line, short_pieces):
    t = mc.ones((SIZE * 9,), "f8", mc.Layout(["x"], line))
    fused, total = mc.fuse(lambda x: np.sqrt(x) + 1), mc.fuse(lambda x: (x * 2).sum())
    for _ in range(2):
        fused(t)
        assert total(t).item() == SIZE * 18
    with mc.count() as found:
        fused(t)
        assert (found.calls, found.agreements) == (0, 0)
        total(t)
        assert (found.calls, found.agreements) == (int(SIZE > 1), 0)


def test_plain_arrays_must_be_the_same(line):
    t = mc.ones((4,), "f8", mc.Layout(["x"], line))
    fused = mc.fuse(lambda x, y: x * 2 + y)
    close(fused(t, np.arange(4.0)), np.arange(4.0) + 2)
    if SIZE > 1:
        with agree_mismatch(line, "a plain array must be the same on every rank"):
            fused(t, np.full(4, float(line.rank)))


def test_errors_are_those_of_all_ranks(line):
    t = mc.ones((4,), "f8", mc.Layout(["x"], line))
    with agree_raises(mc.ShapeError):
        mc.fuse(lambda x, y: x + y)(t, mc.ones((5,), "f8", mc.Layout(["x"], line)))
    with agree_raises(ValueError):
        mc.fuse(lambda x: x if x > 0 else -x)(t)
