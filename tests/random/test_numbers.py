"""The numbers of mc.random are those of its page and of the record, in every layout and on any number of ranks."""

import json
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.random.streams import tile_sides
from support.random_numbers import METHODS, RECORD, SEED, VECTORS, drawn, ours, sides_of, vectors
from support.reference import block_of
from support.tensors import layout_of, on

MESHES = [(1,), (2,), (3,), (2, 2), (2, 3)]
SHAPES = [(40_000,), (150, 200), (20, 40, 50), (7, 3), (0, 4), ()]
LAYOUTS = 12


def on_meshes(program, meshes=MESHES):
    """Run ``program(random, mesh, number)`` for 12 numbers, on meshes of all sizes by turns."""
    for which, sizes in enumerate(meshes):

        def on_rank(which=which, sizes=sizes):
            mesh = mc.create_mesh(list(zip("xy", sizes, strict=False)))
            for number in range(which, LAYOUTS, len(meshes)):
                program(Random(number), mesh, number)

        on(int(np.prod(sizes)), on_rank)


def check(tensor, expected, layout):
    assert (tensor.shape, tensor.dtype, tensor.layout) == (expected.shape, expected.dtype, layout)
    np.testing.assert_array_equal(tensor.local, block_of(expected, layout, layout.mesh.rank), strict=True)


@pytest.mark.parametrize("shape", [(5,), (10**6,), (300, 70), (10**6, 3), (70, 80, 90), (3, 0, 5), (9,) * 6])
def test_tiles(shape):
    assert tile_sides(shape) == tuple(sides_of(shape))
    assert np.prod(tile_sides(shape)) <= 16384


@pytest.mark.parametrize("name", METHODS)
def test_each_method_in_every_layout(name):
    given, options = METHODS[name]
    expected = {shape: drawn(name, shape, 5, 2, given, options) for shape in SHAPES}

    def program(random, mesh, number):
        shape = SHAPES[number % len(SHAPES)]
        layout = layout_of(random, mesh, shape)
        method = getattr(mc.random.default_rng(5), name.split()[0])
        assert np.ndim(method(*given, **options)) == 0, "a number"
        method(*given, size=3, layout=mc.Layout.replicated(mesh, 1), **options)
        check(method(*given, size=shape, layout=layout, **options), expected[shape], layout)

    on_meshes(program)


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_in_every_layout(name):
    given, options = VECTORS[name]
    expected = {shape: vectors(name, shape, 5, 0, given, options) for shape in [(), (6000,), (90, 100)]}

    def program(random, mesh, number):
        shape = list(expected)[number % 3]
        layout = layout_of(random, mesh, expected[shape].shape)
        made = getattr(mc.random.default_rng(5), name.split()[0])(*given, size=shape or None, layout=layout, **options)
        assert (made.shape, made.dtype, made.layout) == (expected[shape].shape, expected[shape].dtype, layout)
        own = block_of(expected[shape], layout, mesh.rank)
        np.testing.assert_allclose(made.local, own, rtol=1e-12, atol=1e-12 if own.dtype.kind == "f" else 0)

    on_meshes(program)


BROADCASTING = {
    "normal": [(150, 200), (200,)],
    "uniform": [(150, 1), (200,)],
    "gamma": [(150, 200), ()],
    "poisson": [(150, 200)],
    "binomial": [(), (150, 200)],
    "integers": [(), (1, 200)],
    "triangular": [(), (200,), (150, 1)],
    "standard_gamma": [(40_000,)],
    "beta": [(40_000,), (1,)],
}
"""The shapes of parameters; () is a number."""
VALUES = {"uniform": (0, 3), "binomial": (9, 0.5), "integers": (0, 50), "triangular": (0, 9, 20)}
"""Values that parameters begin with; 1 by default."""


@pytest.mark.parametrize("plain", [True, False], ids=["arrays", "tensors"])
@pytest.mark.parametrize("name", BROADCASTING)
def test_parameters_that_broadcast(name, plain):
    shapes = BROADCASTING[name]
    first = VALUES.get(name, (1,) * len(shapes))
    scale = 0.5 if name == "binomial" else 2
    steps = [np.random.default_rng(which).random(shape) for which, shape in enumerate(shapes)]
    arrays = [
        np.asarray(low + scale * step) if shape else low for low, step, shape in zip(first, steps, shapes, strict=True)
    ]
    if name == "integers":
        arrays[1] = arrays[1].astype(int)
    shape = np.broadcast_shapes(*shapes)
    expected = drawn(name, shape, 5, 0, arrays)

    def program(random, mesh, number):
        given = arrays
        if not plain:
            given = [mc.distribute(x, layout_of(random, mesh, np.shape(x))) if np.ndim(x) else x for x in arrays]
        method, layout = getattr(mc.random.default_rng(5), name), layout_of(random, mesh, shape)
        if plain or number % 3:
            check(method(*given, size=shape if number % 2 else None, layout=layout), expected, layout)
        else:  # the layout follows the tensors by the elementwise rule
            check(method(*given), expected, sum(given).layout)

    on_meshes(program)


def test_out():
    expected = {
        "random": drawn("random", (150, 200), 5),
        "standard_gamma": drawn("standard_gamma", (150, 200), 5, 0, (2.0,)),
    }

    def program(random, mesh, number):
        for name, whole in expected.items():
            given = (2.0,) if name == "standard_gamma" else ()
            out = mc.zeros((150, 200), float, layout_of(random, mesh, (150, 200)))
            assert getattr(mc.random.default_rng(5), name)(*given, out=out) is out
            check(out, whole, out.layout)
            view = mc.zeros((150, 300), float, mc.Layout.replicated(mesh, 2))[:, 50:250]
            getattr(mc.random.default_rng(5), name)(*given, out=view)
            np.testing.assert_array_equal(view.local, whole)
        param, layout = mc.distribute(np.full((150, 200), 2.0), layout_of(random, mesh, (150, 200))), out.layout
        assert mc.random.default_rng(5).standard_gamma(param, out=out) is out
        check(out, expected["standard_gamma"], layout)

    on_meshes(program, MESHES[1:4])


ORDERS = {
    "permutation of a number": lambda rng, t, layout: rng.permutation(5000, layout=layout(5000)),
    "permutation": lambda rng, t, layout: rng.permutation(t),
    "permutation of columns": lambda rng, t, layout: rng.permutation(t, axis=-1),
    "permutation of an array": lambda rng, t, layout: rng.permutation(np.arange(60), layout=layout(60)),
    "permuted rows": lambda rng, t, layout: rng.permuted(t, axis=1),
    "permuted columns": lambda rng, t, layout: rng.permuted(t, axis=0),
    "permuted": lambda rng, t, layout: rng.permuted(t),
    "choice": lambda rng, t, layout: rng.choice(30, (40, 500), layout=layout(40, 500)),
    "choice of weights": lambda rng, t, layout: rng.choice(3, 900, p=[0.1, 0, 0.9], layout=layout(900)),
    "choice of few": lambda rng, t, layout: rng.choice(10**6, (3, 4), replace=False, layout=layout(3, 4)),
    "choice of many": lambda rng, t, layout: rng.choice(200, (10, 11), replace=False, layout=layout(10, 11)),
    "choice of many by weights": lambda rng, t, layout: rng.choice(
        40, 30, replace=False, p=np.arange(40) / 780, layout=layout(30)
    ),
    "choice of rows": lambda rng, t, layout: rng.choice(t, 70),
    "choice of rows in a layout": lambda rng, t, layout: rng.choice(t, (7, 3), layout=layout(7, 3, 45)),
    "choice of columns": lambda rng, t, layout: rng.choice(t, 40, axis=1, replace=False),
    "choice of an array": lambda rng, t, layout: rng.choice([4.5, 5.5, 6.5], 700, layout=layout(700)),
    "choice of one row": lambda rng, t, layout: rng.choice(t),
    "choice by a tensor of weights": lambda rng, t, layout: rng.choice(
        300, 20, p=mc.distribute(np.arange(300) / 44850, layout(300)), layout=layout(20)
    ),
}
"""What moves or chooses elements of a tensor of shape (60, 45)."""


FOLLOWING = ("permutation", "permutation of columns", "permuted rows", "permuted columns", "permuted")
"""What is in the layout of the tensor."""


@pytest.mark.parametrize("name", ORDERS)
def test_orders_in_every_layout(name):
    whole, found = np.arange(2700).reshape(60, 45), []

    def program(random, mesh, number):
        t = mc.distribute(whole, layout_of(random, mesh, whole.shape))
        made = ORDERS[name](mc.random.default_rng(5), t, lambda *shape: layout_of(random, mesh, shape))
        found.append(made.to_numpy())
        check(made, found[0], made.layout)
        if name in FOLLOWING:
            assert made.layout == t.layout
        np.testing.assert_array_equal(t.local, block_of(whole, t.layout, mesh.rank))

    on_meshes(program)
    made = found[0]
    if name in ("permutation of a number", "permutation of an array"):
        assert sorted(made) == list(range(len(made)))
    if name in FOLLOWING:
        assert not np.array_equal(made, whole)
    if name == "permutation":
        np.testing.assert_array_equal(np.sort(made[:, 0]), whole[:, 0])
        np.testing.assert_array_equal(made - made[:, :1], whole - whole[:, :1])
    if name == "permuted rows":
        np.testing.assert_array_equal(np.sort(made, axis=1), whole)
        assert len({tuple(row % 45) for row in made}) == 60
    if name == "permuted":
        np.testing.assert_array_equal(np.sort(made, axis=None), whole.ravel())
    if "many" in name or "few" in name or "columns" in name:
        assert len(np.unique(made)) == made.size
    if name == "choice of many by weights":
        assert 0 not in made
    if name == "choice of weights":
        assert set(made) == {0, 2}


def test_shuffle():
    whole, found = np.arange(2700).reshape(60, 45), {}

    def program(random, mesh, number):
        for axis in (0, 1):
            t = mc.distribute(whole, layout_of(random, mesh, whole.shape))
            block, layout = t.local, t.layout
            assert mc.random.default_rng(5).shuffle(t, axis) is None
            assert t.local is block
            expected = mc.random.default_rng(5).permutation(mc.distribute(whole, layout), axis).to_numpy()
            check(t, found.setdefault(axis, expected), layout)
        plain, rows = whole.copy(), [1, 2, 3]
        mc.random.default_rng(5).shuffle(plain)
        mc.random.default_rng(5).shuffle(rows)
        assert (found.setdefault("plain", plain) == plain).all()
        assert found.setdefault("list", rows) == rows

    on_meshes(program)


def test_the_record():
    """What is recorded may not change; streams of NumPy may, from one version to the next (its NEP 19)."""
    record, (now,) = json.loads(RECORD.read_text()), on(1, ours)
    assert now.keys() == record.keys()
    changed = {}
    for name, entry in record.items():
        rtol = 1e-5 if "float32" in name else 1e-11
        same = np.allclose(now[name]["numbers"], entry["numbers"], rtol, atol=rtol)
        exact = all(now[name].get(key) == entry.get(key) for key in ("dtype", "digest"))
        if not (same and exact and np.isclose(now[name]["mean"], entry["mean"], 1e-6)):
            changed[name] = now[name]
    assert changed == {}


def test_the_first_call_of_a_small_array_is_numpys():
    """A seed means what it means to numpy.random.Philox."""

    def program():
        layout = mc.Layout([mc.UNSHARDED], mc.create_mesh([("x", 1)]))
        return mc.random.default_rng(SEED).normal(size=100, layout=layout).local

    (made,) = on(1, program)
    np.testing.assert_array_equal(made, np.random.Generator(np.random.Philox(SEED)).normal(size=100))


@pytest.mark.parametrize("seed", range(3))
def test_ranks_outside_of_the_mesh(seed):
    """They make the calls, too, and then draw the same numbers."""

    def program(mesh):
        rng = mc.random.default_rng([seed, 3])
        x = np.random.default_rng(seed).random((5, 6))
        t = mc.distribute(x, mc.Layout(["x", mc.UNSHARDED], mesh))
        made = [rng.normal(t), rng.random((4, 3), layout=t.layout), rng.permutation(t), rng.choice(t, 4)]
        rng.shuffle(t)
        return [each.local is None for each in made], rng.random()

    with mc.simulate(3) as world:
        found = world.run(program, mc.Mesh(range(2), {"x": 2}))
    assert [outside for outside, _ in found] == [[False] * 4, [False] * 4, [True] * 4]
    assert len({number for _, number in found}) == 1
