"""Other shapes of tensors against NumPy on the whole arrays, and what moves."""

from math import prod
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.numpy.shapes.regroup import regrouping
from support.random_cases import mesh_over
from support.reference import block_of, numbered, on_ranks
from support.tensors import SIZES, check, layout_of, on

U = mc.UNSHARDED


def factors(random, n):
    """A shape with *n* elements."""
    found = []
    while n > 1 and random.random() < 0.8:
        found.append(random.choice([k for k in range(1, n + 1) if n % k == 0]))
        n //= found[-1]
    if n > 1 or random.random() < 0.8:
        found.append(n)
    if random.random() < 0.3:
        found.insert(random.randint(0, len(found)), 1)
    return tuple(found)


def two_shapes(random):
    if random.random() < 0.1:
        return random.sample([(0, 3), (2, 0, 5), (0,), (4, 0)], 2)
    n = random.choice([1, 2, 6, 8, 12, 24, 36, 48])
    return factors(random, n), factors(random, n)


# -- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(4))
def test_regrouped_layouts_hold_the_same_elements_in_the_same_order(block):
    for number in range(250):
        random = Random(f"{block} {number}")
        sizes = random.choice(SIZES)
        mesh = mesh_over(range(prod(sizes)), sizes)
        source, target = two_shapes(random)
        layout = layout_of(random, mesh, source)
        wanted = layout_of(random, mesh, target).axes if random.random() < 0.3 else None
        how = regrouping(layout.axes, tuple(map(tuple, mesh.dims)), source, target, wanted)
        if 0 in source:
            assert (how.start, how.before) == (layout.axes, how.after)
            continue
        array = numbered(source)
        for device in range(mesh.size):
            for one, other in (
                ((how.start, source), (how.before, how.flat)),
                ((how.after, how.flat), (how.result, target)),
            ):
                blocks = [block_of(array.reshape(shape), Layout(axes, mesh), device) for axes, shape in (one, other)]
                assert blocks[0].ravel().tolist() == blocks[1].ravel().tolist(), f"{layout!r} {source} {target} {how}"


CUTS = mc.Cuts("x", (0, 2, 6))
STAY = [
    # shape, specs, new shape, specs of the result
    ((6, 4), ["x", U], (24,), ["x"]),
    ((6, 4), ["x", U], (6, 2, 2), ["x", U, U]),
    ((8, 4), ["x", U], (4, 2, 4), ["x", U, U]),
    ((6, 4), [CUTS, U], (24,), [mc.Cuts("x", (0, 8, 24))]),
    ((6, 4), [CUTS, U], (3, 8), [mc.Cuts("x", (0, 1, 3)), U]),
    ((6, 4), [U, "x"], (24,), [mc.Cyclic("x", 2)]),
    ((6, 4), [U, "x"], (2, 3, 4), [U, U, "x"]),
    ((6, 4), [U, "x"], (2, 3, 2, 2), [U, U, "x", U]),
    ((6, 4), [mc.Cyclic("x", 1), U], (24,), [mc.Cyclic("x", 4)]),
    ((24,), [mc.Cyclic("x", 4)], (6, 4), [mc.Cyclic("x", 1), U]),
    ((13, 4), [mc.Cyclic("x", 3, 1), U], (13, 2, 2), [mc.Cyclic("x", 3, 1), U, U]),
    ((5, 6, 4), [U, mc.Cyclic("x", 7), "y"], (5, 6, 2, 2), [U, mc.Cyclic("x", 7), "y", U]),
    ((1, 6), ["x", U], (6,), [mc.Cuts("x", (0, 6, 6))]),
    ((6, 1), ["y", "x"], (6,), [mc.Cuts(("y", "x"), (0, 3, 3, 6, 6))]),
    ((4, 3), [("x", "y"), U], (2, 2, 3), ["x", "y", U]),
    ((2, 2, 3), ["x", "y", U], (4, 3), [("x", "y"), U]),
    ((8,), ["x"], (8, 1), ["x", U]),
    ((0, 6), ["x", "y"], (0, 2, 3), ["x", U, U]),
]


@pytest.mark.parametrize(("shape", "specs", "target", "expected"), STAY)
@on_ranks(4)
def test_reshapes_that_move_nothing_share_the_block(shape, specs, target, expected):
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    if "y" not in str(specs):
        mesh = mc.create_mesh([("x", 2)])
    array = numbered(shape)
    t = mc.distribute(array, Layout(specs, mesh))
    made = np.reshape(t, target)
    assert made.layout == Layout(expected, mesh)
    if mesh.rank is None:
        return
    check(made, array.reshape(target))
    assert not made.local.size or np.shares_memory(made.local, t.local)


MOVE = [
    # shape, specs, new shape, specs of the result
    ((6, 4), [U, mc.Cuts("x", (0, 1, 4))], (24,), ["x"]),
    ((6, 4), ["x", "y"], (24,), [("x", "y")]),
    ((6,), ["x"], (2, 3), ["x", U]),
    ((9,), ["x"], (3, 3), ["x", U]),
    ((6, 4), ["x", U], (3, 2, 4), ["x", U, U]),
    ((12,), [("x", "y")], (3, 4), [U, ("x", "y")]),
    ((1,), ["x"], (), []),
]


@pytest.mark.parametrize(("shape", "specs", "target", "expected"), MOVE)
@on_ranks(4)
def test_reshapes_that_move_are_sharded_over_the_same_mesh_dimensions(shape, specs, target, expected):
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    t = mc.distribute(numbered(shape), Layout(specs, mesh))
    made = np.reshape(t, target)
    assert made.layout == Layout(expected, mesh)
    check(made, numbered(shape).reshape(target))


def test_a_reshape_between_flat_layouts_is_one_relayout():
    """An even cut of the last axis goes to rows in one exchange of what changes."""

    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.distribute(numbered((6, 4)), Layout([U, "x"], mesh))
        with mc.count() as c:
            made = mc.reshape(t, (12, 2), Layout(["x", U], mesh))
        check(made, numbered((12, 2)))
        plan = mc.plan_relayout((24,), "i8", Layout([mc.Cyclic("x", 2)], mesh), Layout(["x"], mesh))
        assert plan.bytes_moved == 6 * 8
        return c.messages, c.bytes

    assert on(2, program) == [(1, 6 * 8)] * 2


# -- reshape ----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_forms_of_reshape():
    t = mc.distribute(numbered((6, 4)), Layout(["x", U], mc.create_mesh([("x", 2)])))
    for made in (t.reshape(-1, 8), t.reshape((3, -1)), np.reshape(t, [3, 8]), mc.reshape(t, (np.int64(3), -1))):
        check(made, numbered((3, 8)))
    check(t.reshape(-1), numbered((24,)))
    check(mc.zeros((), "i8", Layout([], t.mesh)).reshape(1, 1), np.zeros((1, 1), "i8"))
    copied = np.reshape(t, (3, 8), copy=True)
    check(copied, numbered((3, 8)))
    assert not np.may_share_memory(copied.local, t.local)
    assert np.may_share_memory(np.reshape(t, (12, 2), copy=False).local, t.local)
    assert mc.reshape(t, 24, Layout([U], t.mesh)).layout == Layout([U], t.mesh)
    other = mc.create_mesh([("a", 2)], devices=[1, 0])
    check(mc.reshape(t, 24, Layout(["a"], other)), numbered((24,)))


@on_ranks(2)
def test_a_block_with_gaps_is_reshaped():
    mesh = mc.create_mesh([("x", 2)])
    x = numbered((4, 6))
    whole = mc.distribute(x, Layout(["x", U], mesh))
    gaps = mc.DTensor(whole.local[:, ::2], whole.layout, (4, 3), whole.dtype)
    check(np.reshape(gaps, (2, 6)), x[:, ::2].reshape(2, 6))
    check(np.reshape(gaps, (2, 2, 3)), x[:, ::2].reshape(2, 2, 3))
    check(np.ravel(gaps), x[:, ::2].ravel())


# -- axes -------------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_views_share_the_block():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(numbered((1, 6, 1)), Layout([U, mc.Cyclic("x", 2), U], mesh))
    for made in (np.squeeze(t), t.squeeze(0), np.expand_dims(t, 1), np.atleast_3d(np.squeeze(t))):
        assert np.shares_memory(made.local, t.local)
        assert made.layout.num_shards(made.shape.index(6)) == 2
    pair = np.atleast_1d(np.squeeze(t), 3)
    assert (pair[0].shape, pair[1].tolist()) == ((6,), [3])
