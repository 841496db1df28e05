"""Statistics, scans, norms and comparisons on real ranks, in layouts of all kinds, on all ranks and on some."""

from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from ops.test_statistics import DTYPES, check, compared, tensor_of, values
from support.sampling import sampled
from support.verdicts import agree_raises

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SHAPES = [shape for shape in [(SIZE,), (1, SIZE), (2, SIZE // 2), (SIZE // 2, 2), (SIZE - 1,)] if min(shape) > 0]
REDUCTIONS = ("sum", "mean", "max", "prod", "any", "ptp", "var", "std", "nanmean", "nanstd", "nanmin")


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def mesh(request, comm):
    shape = request.param
    made = mc.create_mesh(list(zip("xyz", shape, strict=False)), devices=range(int(np.prod(shape))), comm=comm)
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", sampled(range(100, 120), 2))
def test_as_numpy(mesh, seed):
    random = Random(seed)
    with np.errstate(all="ignore"):
        for number in range(3):
            dtype = DTYPES[(seed + number) % len(DTYPES)]
            whole = values(random, (random.randint(0, 11), random.randint(1, 7)), dtype)
            tensor = tensor_of(random, mesh, whole)
            for axis in (None, 0, (1, 0), -1):
                for name in REDUCTIONS:
                    compared(name, tensor, whole, axis=axis, keepdims=random.random() < 0.5)
            for axis in (None, 0, 1):
                for name in ("argmax", "argmin", "nanargmin"):
                    compared(name, tensor, whole, axis=axis)
            for axis in (0, 1):
                for name in ("cumsum", "cumprod", "nancumsum", "diff"):
                    compared(name, tensor, whole, axis=axis)
            for ord in (None, 1, np.inf):
                compared("norm", tensor, whole, ord=ord)
                compared("norm", tensor, whole, ord=ord, axis=0)
            same = np.array_equal(tensor, tensor_of(random, mesh, whole), equal_nan=True)
            assert same is (None if mesh.rank is None else True)


def test_bits_are_the_same_on_all_ranks(comm):
    mesh = mc.create_mesh([("x", SIZE)], comm=comm)
    whole = np.random.default_rng(3).normal(size=(4 * SIZE + 1, 5)).astype("f4")
    tensor = mc.distribute(whole, Layout(["x", "unsharded"], mesh))
    for result in (tensor.std(), tensor.var(axis=0), np.linalg.norm(tensor, axis=0), np.nanmean(tensor, axis=0)):
        assert len(set(comm.allgather(result.local.tobytes()))) == 1
        check(result, result.to_numpy())
    mesh.close()


def test_what_one_rank_sees_all_raise(comm):
    mesh = mc.create_mesh([("x", SIZE)], comm=comm)
    whole = np.ones((2 * SIZE, 3))
    whole[-1] = np.nan
    tensor = mc.distribute(whole, Layout(["x", "unsharded"], mesh))
    for _ in range(2):
        with agree_raises(ValueError, "All-NaN slice encountered"):
            np.nanargmax(tensor, axis=1)
    assert float(np.nansum(tensor)) == 3 * (2 * SIZE - 1)
    mesh.close()
