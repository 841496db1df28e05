"""Contractions in layouts of all kinds against NumPy: random expressions, those of opt_einsum, and bad input.

``--exhaustive`` runs all 5,000 random expressions, in worlds of up to 24 ranks; ``--quick`` about 30.
"""

import re

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support import contractions
from support.contractions import BAD, U
from support.reference import on_ranks
from support.sampling import sampled
from support.tensors import on_a_mesh


@pytest.mark.parametrize("first", sampled(range(0, 5000, 250)))
def test_random_expressions(first):
    for number in sampled(range(first, first + 250), 100):
        contractions.in_a_world(number)


@pytest.mark.parametrize("seed", sampled(range(5), 3))
@pytest.mark.parametrize("third", range(3))
def test_the_expressions_of_opt_einsum(third, seed):
    def program(random, mesh):
        expressions = contractions.of_opt_einsum()[third::3]
        for text, sizes in sampled(expressions, 2 * len(expressions)):  # with --quick a quarter
            contractions.as_numpy(random, mesh, text, sizes)

    on_a_mesh(seed, program)


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    """All ranks raise the same error before data moves, and can go on."""
    error, text, _, _ = BAD[name]

    def program():
        mesh, other = mc.create_mesh([("x", 2), ("y", 2)]), mc.create_mesh([("z", 4)])
        call = contractions.bad_call(name, mesh, other)
        with pytest.raises(error, match=text) as raised:
            call()
        with pytest.raises(error, match=re.escape(str(raised.value))):
            call()
        return str(raised.value)

    with mc.simulate(4) as world:
        assert len({*world.run(program)}) == 1
        assert not any(world.bytes_moved)


@pytest.mark.parametrize("kind", ["expression", "array"])
@on_ranks(2)
def test_ranks_that_disagree(rank, kind):
    a = mc.ones((4, 4), "f8", Layout(["x", U], mc.create_mesh([("x", 2)])))
    text, array = ("ij,jk->ki" if rank and kind == "expression" else "ij,jk->ik"), np.full((4, 4), rank)
    with pytest.raises(mc.CollectiveMismatch):
        mc.einsum(text, a, a if kind == "expression" else array)


def test_no_tensor():
    with pytest.raises(mc.LayoutError, match="one of the operands must be a DTensor"):
        mc.einsum("i,i", np.ones(3), np.ones(3))
