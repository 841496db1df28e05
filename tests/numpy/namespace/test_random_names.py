"""numpy.random's names: the same numbers on any number of ranks, NumPy's where an array is small."""

import pickle

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from support.reference import same_bits

DRAWS = {
    "rand": lambda r: r.rand(3),
    "rand of one": lambda r: r.rand(),
    "randn": lambda r: r.randn(100, 100),
    "randint": lambda r: r.randint(10),
    "randint of many": lambda r: r.randint(0, 10, (2, 2)),
    "randint of a dtype": lambda r: r.randint(1, 6, 5, "u1"),
    "random": lambda r: r.random((3, 9000)),
    "random_sample": lambda r: r.random_sample(4),
    "normal": lambda r: r.normal(1.0, 2.0, size=4),
    "uniform": lambda r: r.uniform(-1, 1),
    "choice": lambda r: r.choice([1, 2, 3], 5),
    "choice of numbers": lambda r: r.choice(7, 3, replace=False),
    "permutation": lambda r: r.permutation(5),
    "permutation of many": lambda r: r.permutation(20_000),
    "exponential": lambda r: r.exponential(2.0, 3),
    "multivariate_normal": lambda r: r.multivariate_normal([0, 0], [[1, 0], [0, 1]], 3),
}


def value(x):
    return x.to_numpy() if isinstance(x, mc.DTensor) else np.asarray(x)


@pytest.mark.parametrize("draw", DRAWS)
def test_numbers_are_the_same_on_any_number_of_ranks(draw):
    def program():
        namespace.random.seed(5)
        first = value(DRAWS[draw](namespace.random))
        again = value(DRAWS[draw](namespace.random.RandomState(5)))
        assert same_bits(first, again)
        return first

    found = []
    for ranks in (1, 2, 3):
        with mc.simulate(ranks) as world:
            found += world.run(program)
    assert all(same_bits(each, found[0]) for each in found)


def test_shuffle_and_state():
    def program():
        random = namespace.random
        random.seed(1)
        x, names = namespace.arange(10), [1, 2, 3]
        random.shuffle(x)
        random.shuffle(names)
        state = random.get_state()
        first = random.rand(2).tolist()
        random.set_state(state)
        assert random.rand(2).tolist() == first
        assert sorted(x.tolist()) == [*range(10)]
        assert sorted(names) == [1, 2, 3]

    with mc.simulate(2) as world:
        world.run(program)


def test_without_a_seed_all_ranks_have_that_of_rank_0():
    def program():
        rng = namespace.random.default_rng()
        by_kind = namespace.random.Generator(namespace.random.PCG64())
        return [rng.random(3).tolist(), namespace.random.rand(2).tolist(), by_kind.random(2).tolist()]

    with mc.simulate(3) as world:
        found = world.run(program)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("draw", [name for name in DRAWS if name not in ("randn", "random", "permutation of many")])
def test_numbers_of_small_arrays_are_numpys(draw):
    def program():
        namespace.random.seed(5)
        return value(DRAWS[draw](namespace.random))

    np.random.seed(5)
    expected = np.asarray(DRAWS[draw](np.random))
    with mc.simulate(2) as world:
        assert all(same_bits(found, expected) for found in world.run(program))


def test_generators_are_numpys():
    rng, numpys = namespace.random.default_rng(7), np.random.default_rng(7)
    assert isinstance(rng, namespace.random.Generator)
    assert isinstance(rng, np.random.Generator)
    assert namespace.random.default_rng(rng) is rng
    assert same_bits(rng.random(4), numpys.random(4))
    assert same_bits(rng.spawn(2)[1].normal(size=3), numpys.spawn(2)[1].normal(size=3))
    assert same_bits(pickle.loads(pickle.dumps(rng)).random(3), numpys.random(3))
    layout = mc.Layout([mc.UNSHARDED], mc.create_mesh([("x", 1)]))
    assert rng.random(4, layout=layout).layout == layout
    assert isinstance(namespace.random.RandomState(1), np.random.RandomState)
