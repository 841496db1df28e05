"""Contractions in layouts of all kinds against NumPy: random expressions, those of opt_einsum, and bad input.

``--exhaustive`` runs all 5,000 random expressions, in worlds of up to 24 ranks; ``--quick`` about 30.
"""

import pytest

from support import contractions
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
