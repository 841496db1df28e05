# ruff: noqa: B023 - functions made in loops are called in the same turn
"""Gradients: adjoints by <A x, y> = <x, Aᵀ y>, each in its own view, and autograd through everything."""

from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import gradients
from meshcomm.errors import GroupError
from support.reference import on_ranks
from support.tensors import numbers

GROUPS = [None, [[0, 1], [2, 3]], [[3, 1], [0, 2]], [[2], [0], [3], [1]], [[3, 0, 2, 1]]]


# -- collectives on plain arrays: the sum is over ranks ---------------------------------------------------------------


def check_adjoint(operation, adjoint, x):
    """Check <A x, y> = <x, Aᵀ y>, both summed over the ranks."""
    ax = operation(x)
    y = numbers(*ax.shape, seed=100 + mc.create_mesh().rank)
    aty = adjoint(y)
    assert aty.shape == x.shape
    left, right = mc.all_reduce([np.sum(ax * y), np.sum(x * aty)], None)
    assert left == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@on_ranks(4)
def test_collectives(groups):
    rank = mc.create_mesh().rank
    k = 4 if groups is None else len(groups[0])
    x = numbers(4, 8, 3, seed=rank)
    for concat, split in product((0, 1, 2), (0, 1)):
        call = (groups, concat, split, k)
        check_adjoint(lambda v: mc.all_to_all(v, *call), lambda g: gradients.all_to_all_vjp(g, *call), x)
    for axis in (0, 1):
        check_adjoint(lambda v: mc.all_gather(v, groups, axis), lambda g: gradients.all_gather_vjp(g, groups, axis), x)
        check_adjoint(
            lambda v: mc.reduce_scatter(v, groups, axis),
            lambda g: gradients.reduce_scatter_vjp(g, groups, axis),
            x,
        )
    check_adjoint(lambda v: mc.all_reduce(v, groups), lambda g: gradients.all_reduce_vjp(g, groups), x)
    for root in range(k):
        check_adjoint(lambda v: mc.broadcast(v, groups, root), lambda g: gradients.broadcast_vjp(g, groups, root), x)
    with pytest.raises(GroupError, match=f"root {k} is not a position"):
        gradients.broadcast_vjp(x, groups, k)


@pytest.mark.parametrize("pairs", [[], [(0, 1)], [(0, 1), (1, 2), (2, 0)], [(2, 2), (1, 3), (3, 1)]], ids=str)
@on_ranks(4)
def test_permutations(pairs):
    x = numbers(2, 3, seed=mc.create_mesh().rank)
    check_adjoint(lambda v: mc.collective_permute(v, pairs), lambda g: gradients.collective_permute_vjp(g, pairs), x)
