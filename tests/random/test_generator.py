"""Errors like NumPy's, states and spawned generators of mc.random, and one statistical test."""

import copy
import json
import pickle

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.random import Generator, default_rng
from support.numpy_law import alternatives
from support.reference import on_ranks
from support.tensors import on

U = mc.UNSHARDED


def line(ndim=1):
    return mc.Layout(["x", *[U] * (ndim - 1)][:ndim], mc.create_mesh([("x", -1)]))


WRONG = (
    "rng.normal({0, -1, size=3|0, [1, -1, 1]|[0, 1], size=3|[0, 1], [1, 2, 3]|'x', size=3}, **to)",
    "rng.{gamma(-1.0|binomial(3, 1.5|poisson(1e20|uniform(0, np.inf|triangular(3, 2, 1}, size=3, **to)",
    "rng.integers({3, 2, size=3|300, size=3, dtype=np.int8|3, size=3, dtype=float|None, size=3}, **to)",
    "rng.integers([0, 3, 0], [1, 2, 1], **to)",
    "rng.random({3, int|-3|2.5}, **to)",
    "rng.choice(3, {4, replace=False|2, False, [0, 1, 0]}, **to)",
    "rng.choice(3, 3, p={[0.5, 0.1, 0.1]|[1.5, -0.5, 0]|[0.5, 0.5]}, **to)",
    "rng.choice({0, 3|1.5, 3|[[1, 2]], 3, axis=2}, **to)",
    "rng.permutation({1.5|[1, 2], axis='x'}, **to)",
    "rng.permuted({5|[1, 2], out=[1, 2]}, **to)",
    "rng.multivariate_normal({[0, 1], [[1, 0]]|[0], [[1, 0], [0, 1]]|[0], [[1]], method='x'}, **to)",
    "rng.multivariate_normal([0, 0], [[1, 2], [2, 1]], check_valid='raise', **to)",
    "rng.{dirichlet([0.0, -1.0]|multinomial(3, [1.9, 0.9]}, **to)",
    "rng.spawn(-1)",
)


@pytest.mark.parametrize("call", [call for text in WRONG for call in alternatives(text)])
def test_errors_are_numpys(call):
    with pytest.raises(Exception) as numpys:
        eval(call, {"np": np, "rng": np.random.default_rng(1), "to": {}})

    def program():
        to = {"layout": line(2 if "multivariate" in call and "method" not in call else 1)}
        with pytest.raises(type(numpys.value)) as ours:
            eval(call, {"np": np, "rng": default_rng(1), "to": to})
        return str(ours.value)

    assert all(on(2, program))


@pytest.mark.parametrize("seed", [None, -1, 1.5, "x", np.random.default_rng(1), np.random.PCG64(1)])
def test_seeds_that_are_none(seed):
    with pytest.raises(ValueError if seed == -1 else TypeError) as found:
        default_rng(seed)
    if not isinstance(seed, int | float | str):
        assert "pass an integer, the same on all ranks" in str(found.value)


def test_seeds():
    assert default_rng(rng := default_rng(1)) is rng
    for seed in (7, np.int64(7), [7], np.array([7]), np.random.SeedSequence(7)):
        assert default_rng(seed).random() == default_rng(7).random()
    assert default_rng([7, 8]).random() != default_rng(7).random()


def test_states():
    rng = default_rng([3, 2**70]).spawn(2)[1]
    rng.random()
    rng.spawn(3)
    state = json.loads(json.dumps(rng.state))
    expected = [rng.random(), rng.integers(10**9), rng.spawn(1)[0].random()]
    others = [Generator(0), pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)]
    for other in others:
        other.state = state
        assert [other.random(), other.integers(10**9), other.spawn(1)[0].random()] == expected
    assert pickle.loads(pickle.dumps(rng)).random() == rng.random()
    assert "call 4" in repr(rng)
    with pytest.raises(ValueError, match="not the state"):
        rng.state = np.random.PCG64(1).state
    with pytest.raises(TypeError, match="a dict, not None"):
        rng.state = None


def test_calls_and_children_differ():
    rng = default_rng(1)
    numbers = [rng.random() for _ in range(3)] + [child.random() for child in rng.spawn(3)]
    assert len(set(numbers)) == 6


@on_ranks(2)
def test_the_default_mesh(rank):
    with mc.default_mesh(mc.create_mesh([("x", 2)])):
        rng = default_rng(1)
        made = [rng.random(3), rng.permutation(3), rng.choice(3, 3), rng.multivariate_normal([0], [[1]])]
        few = [rng.choice(0, 0), rng.choice([], (2, 0)), rng.choice(0, 0, False), rng.permutation(-1)]
        order = rng.permuted([3, 4, 5])
    assert all(each.layout.is_fully_replicated() for each in (*made, *few, order))
    assert [(each.shape, each.dtype) for each in few] == [((0,), int), ((2, 0), float), ((0,), int), ((0,), int)]
    assert sorted(order.local.tolist()) == [3, 4, 5]


# -- statistics -------------------------------------------------------------------------------------------------------

N = 1 << 18
"""Numbers of each sample: 16 tiles."""


def sample(method, *given, shape=(N,), rng=None, **options):
    """The numbers that a method draws, of two ranks."""

    def program():
        generator = rng or default_rng(11)
        return getattr(generator, method)(*given, size=shape, layout=line(len(shape)), **options).to_numpy()

    return on(1 if rng else 2, program)[0]


DISTRIBUTIONS = {
    "random": ((), "uniform", ()),
    "standard_normal": ((), "norm", ()),
    "normal": ((1.0, 2.0), "norm", (1.0, 2.0)),
    "exponential": ((2.0,), "expon", (0, 2.0)),
    "gamma": ((0.5, 2.0), "gamma", (0.5, 0, 2.0)),
    "beta": ((2.0, 3.0), "beta", (2.0, 3.0)),
    "laplace": ((1.0, 2.0), "laplace", (1.0, 2.0)),
    "lognormal": ((0.0, 0.5), "lognorm", (0.5,)),
    "poisson": ((6.5,), "poisson", (6.5,)),
    "binomial": ((20, 0.3), "binom", (20, 0.3)),
    "geometric": ((0.2,), "geom", (0.2,)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    """Moments, and the largest distance of the distribution function: a right one fails once in 10,000 seeds."""
    stats = pytest.importorskip("scipy.stats")
    given, theirs, args = DISTRIBUTIONS[name]
    found, wanted = sample(name, *given), getattr(stats, theirs)(*args)
    assert abs(found.mean() - wanted.mean()) < 4 * wanted.std() / N**0.5
    assert abs(found.var() / wanted.var() - 1) < 4 * ((float(wanted.stats("k")) + 2) / N) ** 0.5
    values, counts = np.unique(found, return_counts=True)
    assert np.abs(np.cumsum(counts) / N - wanted.cdf(values)).max() < 2.23 / N**0.5


def correlated(*samples):
    """The largest correlation between two samples, in standard deviations."""
    table = np.corrcoef(np.stack([each.ravel() for each in samples])) - np.eye(len(samples))
    return np.abs(table).max() * samples[0].size ** 0.5


def test_tiles_calls_and_children_are_independent():
    tiles = sample("standard_normal").reshape(16, -1)
    rng = default_rng(12)
    calls = [sample("standard_normal", shape=(16384,), rng=rng) for _ in range(8)]
    children = [sample("standard_normal", shape=(16384,), rng=child) for child in [*rng.spawn(8), default_rng(13)]]
    assert correlated(*tiles, *calls, *children) < 5, "33 samples, 528 pairs"
    assert correlated(*np.abs([*tiles, *calls, *children])) < 5
    neighbours = sample("standard_normal", shape=(512, 512))
    assert correlated(neighbours[:, :-1], neighbours[:, 1:]) < 4
    assert correlated(neighbours[:-1], neighbours[1:]) < 4


def test_orders_are_uniform():
    """Each of the 24 permutations of 4, and each element at each position."""

    def program():
        mesh = mc.create_mesh([("x", -1)])
        rng, layout, whole = default_rng(14), line(2), mc.Layout([U], mesh)  # of one line, sorted without exchanges
        rows = rng.permuted(mc.distribute(np.tile(np.arange(4), (24000, 1)), layout), axis=1).to_numpy()
        first = [rng.permutation(10, layout=whole).local for _ in range(300)]
        races = [rng.choice(3, 2, False, [0.6, 0.3, 0.1], layout=whole).local for _ in range(1000)]
        return rows, np.array(first), np.array(races)

    rows, first, races = on(2, program)[0]
    _, counts = np.unique(rows @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 60, "chi-square of 23 degrees of freedom"
    table = np.stack([np.bincount(column, minlength=10) for column in first.T])
    assert ((table - 30) ** 2 / 30).sum() < 150, "81 degrees of freedom"
    assert abs((races[:, 0] == 0).mean() - 0.6) < 0.06
    assert abs((races == [0, 1]).all(axis=1).mean() - 0.6 * 0.75) < 0.06


def test_vectors():
    cov = np.array([[2.0, 0.5], [0.5, 1.0]])
    for method in ("svd", "eigh", "cholesky"):
        found = on(
            1,
            lambda method=method: (
                default_rng(15).multivariate_normal([1, -1], cov, 50000, method=method, layout=line(2)).to_numpy()
            ),
        )[0]
        assert np.abs(found.mean(axis=0) - [1, -1]).max() < 0.03
        assert np.abs(np.cov(found.T) - cov).max() < 0.06
