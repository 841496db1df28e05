"""Sets, searches and counts of tensors in layouts of all kinds against NumPy's of the whole arrays."""

from random import Random

import pytest

from support import sets
from support.random_tensors import on_a_mesh
from support.sampling import sampled

pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN and bool


@pytest.mark.parametrize("seed", sampled(range(60), 6))
@pytest.mark.parametrize("program", sets.PROGRAMS)
def test_random_cases(seed, program):
    on_a_mesh(seed, program)
