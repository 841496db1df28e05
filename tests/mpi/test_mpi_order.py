"""Sorts, quantiles and histograms on real ranks, which share memory or do not."""

from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from support.orders import any_layout, any_shape, check, values
from support.sampling import sampled
from support.verdicts import agree_mismatch, agree_raises

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
GRIDS = {4: (2, 2), 6: (3, 2), 8: (2, 2, 2)}
pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN


@pytest.fixture(params=["shared memory", "MPI"])
def mesh(request, comm, monkeypatch):
    if request.param == "MPI":
        monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    world = comm.Dup()
    made = mc.create_mesh(list(zip("xyz", GRIDS.get(SIZE, (SIZE,)), strict=False)), comm=world)
    yield made
    made.close()
    world.Free()


@pytest.mark.parametrize("seed", sampled(range(40), 4))
def test_random_cases(mesh, seed):
    random = Random(seed)
    for number in range(6):
        shape, dtype = any_shape(random), random.choice(["f8", "f4", "i4", "u1"])
        a = values(shape, dtype, seed=(seed, number), few=number % 2 == 0)
        t = mc.distribute(a, any_layout(random, mesh, shape))
        axis = random.choice([None, *range(len(shape))])
        check(np.sort(t, axis), np.sort(a, axis))
        check(np.argsort(t, axis, kind="stable"), np.argsort(a, axis, kind="stable"))
        if a.size:
            check(np.median(t, axis), np.median(a, axis))
            check(np.quantile(t, [0.2, 0.9], axis), np.quantile(a, [0.2, 0.9], axis))
            for found, expected in zip(np.histogram(t, 5, (0, 9)), np.histogram(a, 5, (0, 9)), strict=True):
                check(found, expected)


@pytest.mark.parametrize("dtype", ["f8", "i8", "c16", "f2"])
@pytest.mark.parametrize("few", [False, True])
def test_long_tensors(mesh, dtype, few):
    """Messages that MPI does not send at once."""
    n = 300_000
    a = values(n, dtype, seed=SIZE, few=few)
    names = tuple(name for name, _ in mesh.dims)
    spec = mc.Cuts(names, sizes=[n - SIZE + 1] + [1] * (SIZE - 1))
    for layout in (Layout([names], mesh), Layout([spec], mesh), Layout([names[:1]], mesh)):
        t = mc.distribute(a, layout)
        check(np.sort(t), np.sort(a, kind="stable"))  # by default NumPy 2.4.6 sorts float16 wrongly
        check(np.argsort(t, kind="stable"), np.argsort(a, kind="stable"))
        t.sort(kind="stable")
        check(t, np.sort(a, kind="stable"), bits=True)


def test_errors_of_one_rank(mesh):
    names = tuple(name for name, _ in mesh.dims)
    layout = Layout([names], mesh)
    wrong = mc.DTensor(np.zeros(3 + (RANK == SIZE - 1)), layout, (3 * SIZE,), np.dtype(float))
    if SIZE > 1:
        with agree_raises(mc.ShapeError, "the block is"):
            np.sort(wrong)
    check(np.sort(mc.distribute(np.arange(9.0), layout)), np.arange(9.0))
    if SIZE > 1:
        with agree_mismatch(mesh):
            (np.sort if RANK else np.argsort)(mc.distribute(np.arange(9.0), layout))
