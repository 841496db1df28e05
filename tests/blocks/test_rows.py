"""Loops over rows: indices are arguments of recipes, and what is short goes without a plan."""

from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.arrays._recipes import completed
from meshcomm.numpy.contractions.contractions import contracting, product_subscripts
from tests.support.sampling import sampled

U = mc.UNSHARDED
WHOLE = np.arange(77.0).reshape(11, 7)
LAYOUTS = (["x", U], [U, "x"], [mc.Cyclic("x", 2), U], [mc.Cuts("x", (0, 3, 3, 11)), U])


def on_three_ranks(program):
    with mc.simulate(3) as world:
        world.run(program)


def cut(array, *specs):
    return mc.distribute(array.copy(), mc.Layout(specs, mc.create_mesh([("x", -1)])))


def some_index(rng):
    """Return an index of one array of 11 x 7 elements, or one that is out of bounds."""

    def of_axis(n):
        if rng.random() < 0.4:
            return int(rng.integers(-n - 1, n + 1))
        ends = (None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3)) for _ in range(2))
        return slice(*ends, (None, 1, 2, -1, -2, 3)[rng.integers(6)])

    found = [of_axis(11), of_axis(7)][: int(rng.integers(3))]
    for each in (Ellipsis, None):
        if rng.random() < 0.2:
            found.insert(int(rng.integers(len(found) + 1)), each)
    return found[0] if len(found) == 1 and rng.random() < 0.5 else tuple(found)


@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
def test_slices_and_assignments_at_any_index_are_those_of_numpy(specs):
    def program():
        rng, plain, t = np.random.default_rng(7), WHOLE.copy(), cut(WHOLE, *specs)
        for _ in range(300):
            index, turned = some_index(rng), rng.random() < 0.2
            u, array = (t.T, plain.T) if turned else (t, plain)
            try:
                expected = array[index]
            except IndexError:
                with pytest.raises(IndexError):
                    u[index]
                continue
            np.testing.assert_array_equal(u[index].to_numpy(), expected)
            value = np.float64(rng.random()) if rng.random() < 0.3 else rng.random(expected.shape)
            array[index] = value
            first = U if rng.random() < 0.5 else "x"
            u[index] = cut(value, first, *[U] * (value.ndim - 1)) if value.ndim else float(value)
            np.testing.assert_array_equal(t.to_numpy(), plain)

    on_three_ranks(program)


def test_a_loop_over_rows_keeps_a_recipe_for_each_owner_only():
    def program():
        t = cut(WHOLE, "x", U)
        for _ in range(2):
            for i in range(11):
                t[i], t[i, 2:5]
                t[i, 1:3] = 5.0
            for k in range(7):
                t[:, k], t[1:5, k]
        assert len(t._spec.recipes) == 3 * 3 + 2

    on_three_ranks(program)


def test_rows_are_swapped_as_numpys():
    def program():
        for specs in ((U, "x"), ("x", U)):
            t, expected = cut(WHOLE, *specs), WHOLE.copy()
            for each in (t, expected):
                for i in range(4):
                    each[i] = each[i] * 2
                each[-2], each[0] = each[0], each[-2]
                each[5], each[6] = each[6].copy(), each[5].copy()
            assert (t.to_numpy() == expected).all()

    on_three_ranks(program)


MATRICES = (["x", U], [U, "x"], [U, U], [mc.Cuts("x", (0, 0, 1, 5)), U], [U, mc.Cuts("x", (0, 1, 1, 4))])
VECTORS = (["x"], [U], ["cuts"])


def test_short_products_have_values_and_layout_of_the_contraction():
    cases = sampled(product("fdFD", MATRICES, VECTORS, (True, False)), 30)

    def program():
        for kind, of_matrix, of_vector, first in cases:
            m, n = np.arange(20.0).reshape(5, 4).astype(kind), 5 if first else 4
            specs = [mc.Cuts("x", (0, 0, 1, n))] if of_vector == ["cuts"] else of_vector
            v = np.arange(1.0, n + 1).astype(kind)
            a, b = cut(v, *specs), cut(m, *of_matrix)
            given, plain = ((a, b), (v, m)) if first else ((b, a), (m, v))
            for product_of in (np.matmul, np.dot):
                made = product_of(*given)
                np.testing.assert_array_equal(made.to_numpy(), product_of(*plain))
                planned = completed(contracting("numpy.matmul", product_subscripts, given))
                assert (made.layout, made.dtype) == (planned.layout, planned.dtype)

    on_three_ranks(program)


def test_an_overflow_on_one_rank_stops_no_other_one():
    def program():
        v, m = np.full(5, 1e200), np.full((5, 4), 1e200)
        with np.errstate(all="raise"):
            assert np.isinf((cut(v, "x") @ cut(m, "x", U)).to_numpy()).all()

    on_three_ranks(program)


def test_what_is_short_and_new_becomes_an_array_without_a_plan_and_then_with_one():
    def program(rank):
        t = cut(WHOLE, "x", U)
        rank_set = t.mesh.world.here().location(t.mesh).rank_set
        prepared = [len(rank_set._prepared)]
        for _ in range(3):
            for k in (3, 4):
                np.testing.assert_array_equal(np.asarray(t[:, :k]), WHOLE[:, :k])
            prepared.append(len(rank_set._prepared))
        assert [n - prepared[0] for n in prepared] == [0, 0, 2, 2]
        with pytest.raises(mc.CollectiveMismatch):
            np.asarray(t[:, : 2 if rank else 1])

    with mc.simulate(3) as world:
        world.run(lambda: program(world.rank))


def test_close_cuts_of_equal_operands_give_the_more_even_ones():
    def program():
        t = cut(np.arange(300.0), "x")
        assert (t[:-2] + t[1:-1]).layout == (t[1:-1] + t[:-2]).layout == t[1:-1].layout
        uneven = cut(np.arange(300.0), mc.Cuts("x", (0, 200, 250, 300)))
        assert (uneven + t).layout == uneven.layout  # these are not close

    on_three_ranks(program)
