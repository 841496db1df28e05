"""Operations that wait, on real ranks: programs of chains, slices and writes, against NumPy."""

from random import Random

import pytest
from mpi4py import MPI

import meshcomm as mc
from support.chain_programs import Program
from support.sampling import sampled
from support.waiting import all_waiting

SIZE = MPI.COMM_WORLD.size


@pytest.mark.parametrize("seed", sampled(range(200), 12))
def test_programs_have_numpys_values(comm, seed):
    world, random = comm.Dup(), Random(seed)
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    with all_waiting():
        Program(random, mc.Layout(random.choice([["x", mc.UNSHARDED], [mc.UNSHARDED, "x"]]), mesh)).run(20)
    comm.Barrier()
    mesh.close()
    world.Free()
