"""Random programs of views, side by side with NumPy: `support.view_programs`."""

from math import prod
from random import Random

import pytest

import meshcomm as mc
from support.sampling import sampled
from support.tensors import SIZES, mesh_of
from support.view_programs import Program

STEPS = 14


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sampled(range(10_000), 60))
def test_views_stay_true(seed):
    sizes = ((1,), *SIZES)[seed % (len(SIZES) + 1)]
    ranks = prod(sizes)

    def on_rank():
        random = Random(seed)
        Program(random, mesh_of(*sizes, devices=random.sample(range(ranks), ranks))).run(STEPS)

    with mc.simulate(ranks + (seed % 3 == 0)) as world:  # some with a rank outside of the mesh
        world.run(on_rank)
