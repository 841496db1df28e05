"""Contractions on real ranks, which share memory or do not: random expressions, those of opt_einsum, and errors."""

from random import Random

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from support import contractions
from support.contractions import U
from support.sampling import sampled
from support.verdicts import agree_mismatch

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_random_expressions(world, first):
    for number in sampled(range(first, first + 100), 24):
        dims, devices, _ = contractions.mesh_for(number, SIZE)
        mesh = mc.create_mesh(dims, devices=devices, comm=world)
        contractions.contraction(number, mesh)
        mesh.close()


@pytest.mark.parametrize("seed", sampled(range(8), 2))
def test_the_expressions_of_opt_einsum(grid, seed):
    for text, sizes in sampled(contractions.of_opt_einsum(), 60):
        contractions.as_numpy(Random(f"{seed} {text}"), grid, text, sizes)


def test_panels_of_large_operands(grid):
    """Blocks beyond the sizes at which messages are sent at once, whole and in panels: within memory that differs."""
    x, y = np.random.default_rng(1).integers(-4, 5, (2, 300, 300)).astype("f8")
    names = grid.dim_names
    for left in ([names[0], U], [U, names[-1]], [mc.Cyclic(tuple(names), 32), U]):
        a, b = mc.distribute(x, Layout(left, grid)), mc.distribute(y, Layout([names[-1], U], grid))
        for scratch in (None, 200_000):
            np.testing.assert_array_equal(mc.einsum("ij,jk->ik", a, b, max_scratch_bytes=scratch).to_numpy(), x @ y)


@pytest.mark.parametrize("what", ["an expression", "an array", "a block that does not fit"])
def test_what_one_rank_does_alone(own, what):
    """Of all ranks none goes on."""
    rows, columns = own
    shape, alone = (2 * SIZE, 3 * SIZE), SIZE > 1 and RANK == SIZE - 1
    a = mc.ones(shape, "f8", rows)
    if what == "a block that does not fit" and SIZE > 1:
        wrong = mc.DTensor(np.zeros((2 + alone, 3 * SIZE)), rows, shape, np.dtype("f8"))
        with pytest.raises(mc.ShapeError if alone else mc.CollectiveMismatch, match=r"a block has|another coll"):
            mc.einsum("ij,ik->jk", wrong, a, layout=columns)
    elif SIZE > 1:
        with agree_mismatch(rows.mesh):
            text = "ij,ik->kj" if alone and what == "an expression" else "ij,ik->jk"
            mc.einsum(text, a, np.full(shape, float(alone)) if what == "an array" else a)
