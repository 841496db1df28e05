"""Random numbers on real ranks: those of the page, and rows that move."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from support.random_numbers import METHODS, drawn
from support.reference import block_of
from support.sampling import sampled
from support.tensors import layout_of

SHAPES = [(40_000,), (150, 200), (20, 40, 50)]


@pytest.mark.parametrize("name", sampled(METHODS, 8))
def test_each_method(grid, name):
    given, options = METHODS[name]
    for number, shape in enumerate(SHAPES):
        layout = layout_of(Random(number), grid, shape)
        made = getattr(mc.random.default_rng(5), name.split()[0])(*given, size=shape, layout=layout, **options)
        expected = drawn(name, shape, 5, 0, given, options)
        np.testing.assert_array_equal(made.local, block_of(expected, layout, grid.rank), strict=True)


@pytest.mark.parametrize("seed", sampled(range(20), 4))
def test_tensors_as_parameters_and_rows_that_move(grid, seed):
    random = Random(seed)
    whole = np.arange(2700.0).reshape(60, 45)
    t = mc.distribute(whole, layout_of(random, grid, whole.shape))
    made = mc.random.default_rng(seed).poisson(t)
    expected = drawn("poisson", whole.shape, seed, 0, (whole,))
    np.testing.assert_array_equal(made.local, block_of(expected, t.layout, grid.rank), strict=True)
    order = mc.random.default_rng(seed).permutation(60, layout=layout_of(random, grid, (60,))).to_numpy()
    assert sorted(order) == list(range(60))
    mc.random.default_rng(seed).shuffle(t)
    np.testing.assert_array_equal(t.local, block_of(whole[order], t.layout, grid.rank))
    rows = mc.random.default_rng(seed).choice(t, 20, replace=False).to_numpy()
    np.testing.assert_array_equal(
        rows,
        whole[order][
            mc.random.default_rng(seed).permutation(60, layout=layout_of(random, grid, (60,))).to_numpy()[:20]
        ],
    )
    lines = mc.random.default_rng(seed).permuted(t, axis=1)
    assert lines.layout == t.layout
    np.testing.assert_array_equal(np.sort(lines.to_numpy(), axis=1), whole[order])
