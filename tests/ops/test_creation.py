"""Tensors like others, triangles and grids in layouts of all kinds against NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from ops.test_kinds import check, layout_of, on_a_mesh, shape_of, tensor_of
from support.gradient_cases import on
from support.reference import on_ranks, same_bits
from support.sampling import sampled, with_seeds

U = mc.UNSHARDED
SEEDS = sampled(range(60), 8)
DTYPES = ["f8", "f4", "f2", "g", "c8", "i2", "u4", "?"]


@with_seeds(on_a_mesh, SEEDS)
def test_triangles(random, mesh):
    for number in range(10):
        shape = (*shape_of(random)[:1], random.randint(0, 9), random.randint(1, 9))[random.randint(0, 1) :]
        t, whole = tensor_of(random, mesh, shape, number, random.choice(DTYPES))
        k = random.randint(-10, 10)
        check(np.tril(t, k), np.tril(whole, k))
        check(np.triu(t, k=k), np.triu(whole, k=k))
        assert np.tril(t).layout is t.layout
        if t.ndim == 3:  # of a slice, whose block is a view
            check(np.triu(t[..., ::2]), np.triu(whole[..., ::2]))


def test_triangles_keep_bits():
    special = np.array([[np.nan, -0.0, np.inf], [-np.inf, -np.nan, -0.0], [1.0, -0.0, np.nan]])

    def program(random, mesh):
        t = mc.distribute(special, layout_of(random, mesh, (3, 3)))
        for function in (np.tril, np.triu):
            assert same_bits(function(t).to_numpy(), function(special))

    for seed in range(5):
        on_a_mesh(seed, program)


@with_seeds(on_a_mesh, SEEDS)
def test_grids(random, mesh):
    for _ in range(5):
        count, dtype = random.randint(0, 4), random.choice(DTYPES)
        pairs = [tensor_of(random, mesh, (random.randint(0, 5),), n, dtype) for n in range(count)]
        indexing = random.choice(["xy", "ij"])
        expected = np.meshgrid(*(whole for _, whole in pairs), indexing=indexing)
        found = np.meshgrid(*(t for t, _ in pairs), indexing=indexing) if pairs else ()
        for t, whole in zip(found, expected, strict=True):
            check(t, whole)


@with_seeds(on_a_mesh, SEEDS)
def test_like_others(random, mesh, seed):
    t, whole = tensor_of(random, mesh, shape_of(random), seed, random.choice(DTYPES))
    for function in (np.zeros_like, np.ones_like):
        check(function(t), function(whole))
        check(function(t, dtype="i4"), function(whole, dtype="i4"))
        assert function(t).layout is t.layout
    check(np.full_like(t, 1), np.full_like(whole, 1))
    check(np.full_like(t, 2.5, dtype="f4"), np.full_like(whole, 2.5, dtype="f4"))
    made = np.empty_like(t, dtype="u2")
    assert (made.shape, made.dtype, made.layout) == (t.shape, np.dtype("u2"), t.layout)


def test_ranks_outside():
    def program():
        t = mc.ones((3, 3), int, Layout(["x", U], mc.create_mesh([("x", 2)])))
        made = (np.tril(t), np.full_like(t, 2), np.meshgrid(t[0], t[1])[0])
        return [(x.shape, x.dtype.name, x.local is None) for x in made]

    assert on(3, program)[2] == [((3, 3), "int64", True)] * 3


@on_ranks(2)
def test_errors():
    mesh, other = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)], devices=[1, 0])
    row = mc.zeros(3, float, Layout(["x"], mesh))
    matrix = mc.zeros((3, 3), float, Layout(["x", U], mesh))
    with pytest.raises(ShapeError, match=r"tril takes matrices, but a tensor of shape \(3,\) has 1 axis"):
        np.tril(row)
    with pytest.raises(ShapeError, match="k 'a' is a str; it must be an integer"):
        np.triu(matrix, "a")
    with pytest.raises(ValueError, match="indexing must be 'xy' or 'ij', not 'yx'"):
        np.meshgrid(row, row, indexing="yx")
    with pytest.raises(mc.MeshError, match="operands must be on one mesh"):
        np.meshgrid(row, mc.zeros(3, float, Layout(["y"], other)))
    with pytest.raises(ShapeError, match="scalar"):
        np.full_like(row, [1, 2, 3])
