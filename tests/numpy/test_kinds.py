"""Arithmetic on layouts of all kinds against NumPy: names, chosen boundaries, cyclic blocks."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, gradients
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, dot, integers, layout_of, on_a_mesh, shape_of, tensor_of

U = "unsharded"
SEEDS = sampled(range(60), 6)


@with_seeds(on_a_mesh, SEEDS)
def test_gradients(random, mesh):
    for number in range(6):
        shape = shape_of(random)
        source, target = (layout_of(random, mesh, shape) for _ in range(2))
        x, y = mc.distribute(integers(*shape), source), mc.distribute(integers(*shape, seed=1), target)
        for vjp in (gradients.relayout_vjp, gradients.relayout_like_vjp):
            back = vjp(y, x)
            assert back.layout == source
            check(back, integers(*shape, seed=1))
        axis, keepdims = random.choice([None, 0, -1, tuple(range(len(shape)))]), random.random() < 0.5
        total = x.sum(axis, keepdims=keepdims)
        given = mc.distribute(integers(*total.shape, seed=2), layout_of(random, mesh, total.shape))
        z = mc.relayout_like(given, total)
        back = gradients.sum_vjp(z, x, axis, keepdims)
        assert back.layout == source
        assert dot(total, z) == dot(x, back)
        n, k, m = (random.randint(1, 7) for _ in range(3))
        left, right = random.choice([((n, k), (k, m)), ((k,), (k, m)), ((n, k), (k,)), ((k,), (k,))])
        (a, _), (b, _) = tensor_of(random, mesh, left, number), tensor_of(random, mesh, right, number)
        product = a @ b
        given = mc.distribute(integers(*product.shape, seed=3), layout_of(random, mesh, product.shape))
        w = mc.relayout_like(given, product)
        of_a, of_b = gradients.matmul_vjp(w, a, b)
        assert (of_a.layout, of_b.layout) == (a.layout, b.layout)
        da, db = integers(*left, seed=4), integers(*right, seed=5)
        assert dot(mc.distribute(da, a.layout) @ b + a @ mc.distribute(db, b.layout), w) == dot(
            mc.distribute(da, a.layout), of_a
        ) + dot(mc.distribute(db, b.layout), of_b)


# -- operands with different cuts -------------------------------------------------------------------------------------

CUTS, OTHER = mc.Cuts("x", (0, 1, 4, 12)), mc.Cuts("x", (0, 8, 8, 12))
DEALT = mc.Cyclic("x", 2)


@pytest.mark.parametrize("large", [CUTS, DEALT, "x"], ids=str)
@pytest.mark.parametrize("small", [OTHER, mc.Cyclic("x", 1, 2), "x"], ids=str)
@on_ranks(3)
def test_the_smaller_operand_moves_and_the_result_carries_the_cuts_of_the_larger_one(small, large):
    mesh = mc.create_mesh([("x", 3)])
    big = mc.distribute(integers(12, 5), Layout([large, U], mesh))
    little = mc.distribute(integers(12, 1), Layout([small, U], mesh))
    column = mc.distribute(integers(12, 1, dtype="f4"), Layout([small, U], mesh))
    for result in (big + little, little + big, big * column, column * big, np.where(little > 0, big, little)):
        assert result.layout.axes == big.layout.axes
    check(little + big, integers(12, 1) + integers(12, 5))
    assert (-big).layout is big.layout
    assert np.sum(big, axis=1).layout == Layout([large], mesh)
    assert np.sum(big, axis=1, keepdims=True).layout == Layout([large, U], mesh)
    assert big.T.layout == Layout([U, large], mesh)
    rows = big @ mc.distribute(integers(5, 4), Layout([U, U], mesh))
    assert rows.layout == Layout([large, U], mesh)
    columns = mc.distribute(integers(4, 5), Layout([U, U], mesh)) @ big.T
    assert columns.layout == Layout([U, large], mesh)
    little += little
    assert little.layout == Layout([small, U], mesh)


# -- variables and maps -----------------------------------------------------------------------------------------------


@on_ranks(3)
def test_variables_and_maps_hold_rules():
    mesh = mc.create_mesh([("x", 3)])
    for spec in (CUTS, DEALT, mc.Cyclic("x", 5), mc.Cyclic("x", 4), mc.Cyclic("x", 64, 1)):
        layout = Layout([spec, U], mesh)
        rules = mc.LayoutMap(mesh)
        rules["dense.*kernel"] = layout
        assert rules["dense_1.kernel"] == layout
        assert repr(spec) in repr(rules) or str(layout.sharding_specs) in repr(rules)
        variable = mc.DVariable(integers(12, 5), layout)
        check(mc.relayout(variable, Layout(["x", U], mesh)), integers(12, 5))
        variable.assign(mc.distribute(integers(12, 5, seed=1), Layout([U, "x"], mesh)))
        assert mc.fetch_layout(variable) == layout
        variable.assign_add(integers(12, 5))
        check(mc.relayout(variable, layout), integers(12, 5, seed=1) + integers(12, 5))
        made = mc.Variable(lambda slices, shape, dtype: integers(12, 5)[slices], (12, 5), "f8", layout=layout)
        check(mc.relayout(made, layout), integers(12, 5))
        with pytest.raises(mc.ShapeError):
            mc.DVariable(integers(13, 5), Layout([CUTS, U], mesh))
        assert mc.check_layout(mc.distribute(integers(12, 5), layout), layout) is None
        with pytest.raises(mc.LayoutError):
            mc.check_layout(mc.distribute(integers(12, 5), layout), Layout(["x", U], mesh))
