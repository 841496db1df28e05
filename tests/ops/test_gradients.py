# ruff: noqa: B023 - functions made in loops are called in the same turn
"""Gradients: adjoints by <A x, y> = <x, Aᵀ y>, each in its own view, and autograd through everything."""

from itertools import islice, product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import gradients
from meshcomm.errors import GroupError
from support.gradient_cases import dot, on, random
from support.reference import tuple_layouts
from support.sampling import sampled

GROUPS = [None, [[0, 1], [2, 3]], [[3, 1], [0, 2]], [[2], [0], [3], [1]], [[3, 0, 2, 1]]]


# -- DTensors: the view is global -------------------------------------------------------------------------------------


def test_relayouts_of_every_pair():
    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        layouts = list(tuple_layouts(mesh, 2))
        for source, target in sampled(product(layouts, layouts)):
            x = mc.distribute(random(5, 3), source)
            y = mc.distribute(random(5, 3, seed=1), target)
            for vjp in (gradients.relayout_vjp, gradients.relayout_like_vjp):
                back = vjp(y, x)
                assert back.layout == source
                assert np.array_equal(back.to_numpy(), y.to_numpy())  # nothing is scaled
            assert dot(mc.relayout(x, target), y) == pytest.approx(dot(x, back))

    on(4, program)


def test_sums():
    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        for layout, axis, keepdims in sampled(product(tuple_layouts(mesh, 2), (None, 0, -1, (0, 1)), (False, True))):
            x = mc.distribute(random(5, 3), layout)
            y = x.sum(axis, keepdims=keepdims) * 2 + 1
            back = gradients.sum_vjp(y, x, axis, keepdims)
            assert back.layout == layout
            assert dot(x.sum(axis, keepdims=keepdims), y) == pytest.approx(dot(x, back))

    on(4, program)


@pytest.mark.parametrize(("a", "b"), [((5, 3), (3, 4)), ((3,), (3, 4)), ((5, 3), (3,)), ((3,), (3,))], ids=str)
def test_products(a, b):
    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        pairs = product(tuple_layouts(mesh, len(a)), tuple_layouts(mesh, len(b)))
        for one, other in sampled(islice(pairs, 0, None, 5)):
            t, u = mc.distribute(random(*a), one), mc.distribute(random(*b, seed=1), other)
            y = mc.relayout_like(t @ u * 0 + random(*(t @ u).shape, seed=2), t @ u)
            of_t, of_u = gradients.matmul_vjp(y, t, u)
            assert (of_t.layout, of_u.layout) == (one, other)
            dt, du = random(*a, seed=3), random(*b, seed=4)
            assert dot(mc.distribute(dt, one) @ u, y) == pytest.approx(dot(mc.distribute(dt, one), of_t))
            assert dot(t @ mc.distribute(du, other), y) == pytest.approx(dot(mc.distribute(du, other), of_u))

    on(4, program)


# -- collectives on plain arrays: the sum is over ranks ---------------------------------------------------------------


def check_adjoint(operation, adjoint, x):
    """Check <A x, y> = <x, Aᵀ y>, both summed over the ranks."""
    ax = operation(x)
    y = random(*ax.shape, seed=100 + mc.create_mesh().rank)
    aty = adjoint(y)
    assert aty.shape == x.shape
    left, right = mc.all_reduce([np.sum(ax * y), np.sum(x * aty)], None)
    assert left == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_collectives(groups):
    def program():
        rank = mc.create_mesh().rank
        k = 4 if groups is None else len(groups[0])
        x = random(4, 8, 3, seed=rank)
        for concat, split in product((0, 1, 2), (0, 1)):
            call = (groups, concat, split, k)
            check_adjoint(lambda v: mc.all_to_all(v, *call), lambda g: gradients.all_to_all_vjp(g, *call), x)
        for axis in (0, 1):
            check_adjoint(
                lambda v: mc.all_gather(v, groups, axis), lambda g: gradients.all_gather_vjp(g, groups, axis), x
            )
            check_adjoint(
                lambda v: mc.reduce_scatter(v, groups, axis),
                lambda g: gradients.reduce_scatter_vjp(g, groups, axis),
                x,
            )
        check_adjoint(lambda v: mc.all_reduce(v, groups), lambda g: gradients.all_reduce_vjp(g, groups), x)
        for root in range(k):
            check_adjoint(
                lambda v: mc.broadcast(v, groups, root), lambda g: gradients.broadcast_vjp(g, groups, root), x
            )
        with pytest.raises(GroupError, match=f"root {k} is not a position"):
            gradients.broadcast_vjp(x, groups, k)

    on(4, program)


@pytest.mark.parametrize("pairs", [[], [(0, 1)], [(0, 1), (1, 2), (2, 0)], [(2, 2), (1, 3), (3, 1)]], ids=str)
def test_permutations(pairs):
    def program():
        x = random(2, 3, seed=mc.create_mesh().rank)
        check_adjoint(
            lambda v: mc.collective_permute(v, pairs), lambda g: gradients.collective_permute_vjp(g, pairs), x
        )

    on(4, program)
