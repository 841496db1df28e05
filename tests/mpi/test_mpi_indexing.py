"""Indexing on real ranks, which share memory or do not, against NumPy."""

from random import Random

import pytest
from mpi4py import MPI

import meshcomm as mc
from support import indexing, sets
from support.migrations import migrations
from support.sampling import sampled

SIZE = MPI.COMM_WORLD.size
GRIDS = {1: [(1,)], 4: [(4,), (2, 2)], 6: [(6,), (2, 3)], 8: [(8,), (2, 2, 2)]}


@pytest.fixture(params=["shared memory", "MPI"])
def mesh_of(request, comm, monkeypatch):
    """A function from sizes to a mesh on a world of its own, whose ranks share memory or do not."""
    if request.param == "MPI":
        monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    world, made = comm.Dup(), []

    def mesh(sizes):
        made.append(mc.create_mesh(list(zip("xyz", sizes, strict=False)), comm=world))
        return made[-1]

    yield mesh
    comm.Barrier()
    for each in made:
        each.close()
    world.Free()


@pytest.mark.parametrize("seed", sampled(range(12), 2))
@pytest.mark.parametrize(
    "program", [indexing.slices, indexing.assignments, indexing.overlaps, indexing.masks, migrations]
)
def test_indexing(mesh_of, program, seed):
    for sizes in GRIDS.get(SIZE, [(SIZE,)]):
        program(Random(seed), mesh_of(sizes))


@pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN and bool
@pytest.mark.parametrize("seed", sampled(range(12), 1))
@pytest.mark.parametrize("program", sets.PROGRAMS)
def test_sets(mesh_of, program, seed):
    for sizes in GRIDS.get(SIZE, [(SIZE,)]):
        program(Random(seed), mesh_of(sizes))
