"""Views on real ranks, which share memory or do not: chains of them and writes, against NumPy."""

from random import Random

import pytest
from mpi4py import MPI

import meshcomm as mc
from support import view_cases
from support.sampling import sampled
from support.view_programs import Program

SIZE = MPI.COMM_WORLD.size


@pytest.mark.parametrize("way", ["shared memory", "MPI"])
@pytest.mark.parametrize("seed", sampled(range(50), 8))
def test_views(comm, monkeypatch, seed, way):
    if way == "MPI":
        monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    world = comm.Dup()
    sizes = (2, SIZE // 2) if SIZE % 2 == 0 and SIZE > 2 and seed % 2 else (SIZE,)
    mesh = mc.create_mesh(list(zip("xy", sizes, strict=False)), comm=world)
    view_cases.chains(Random(seed), mesh, 5)
    comm.Barrier()
    mesh.close()
    world.Free()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sampled(range(500), 12))
def test_views_stay_true(comm, seed):
    world, random = comm.Dup(), Random(seed)
    mesh = mc.create_mesh([("x", SIZE)], devices=random.sample(range(SIZE), SIZE), comm=world)
    Program(random, mesh).run(14)
    comm.Barrier()
    mesh.close()
    world.Free()
