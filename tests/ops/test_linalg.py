"""Transposed DTensors and matrix products against NumPy on the whole arrays."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.ops import linalg
from support.operands import MESHES, U, check, mesh_of, random
from support.reference import on_ranks, tuple_layouts

# -- transpose and matmul ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_transpose(sizes):
    def program():
        mesh, a = mesh_of(*sizes), random(5, 3, 2)
        for layout in tuple_layouts(mesh, 3):
            t = mc.distribute(a, layout)
            check(t.T, a.T)
            check(linalg.transpose(t, (1, -1, 0)), a.transpose(1, -1, 0))
            assert t.T.T.layout == t.layout

    with mc.simulate(MESHES[sizes]) as world:
        world.run(program)
        assert not any(world.bytes_moved)


@pytest.mark.parametrize(
    ("a", "b", "product", "moves"),
    [
        (["x", U], [U, "y"], ["x", "y"], False),  # rows and columns
        (["x", U], [U, U], ["x", U], False),
        (["x", "y"], ["y", U], ["x", "y"], True),  # partial products
        ([U, ("x", "y")], [("x", "y"), U], [("x", "y"), U], True),
        (["x", U], ["x", U], ["x", U], True),
        (["x", "y"], ["x", "y"], ["x", "y"], True),
        (["x", U], [U, "x"], ["x", U], True),
    ],
)
def test_layouts_of_products(a, b, product, moves):
    def program():
        mesh = mesh_of(2, 2)
        t, u = (mc.distribute(random(6, 6), mc.Layout(specs, mesh)) for specs in (a, b))
        return (t @ u).layout.sharding_specs

    with mc.simulate(4) as world:
        assert world.run(program) == [product] * 4
        assert any(world.bytes_moved) == moves


@on_ranks(4)
def test_matmul_of_other_dtypes_and_plain_arrays():
    mesh = mesh_of(2, 2)
    for one, other in (("?", "?"), ("i1", "i1"), ("f4", "i2"), ("c8", "f8"), ("f2", "f2")):
        a, b = (np.abs(random(3, 3)).astype(d) for d in (one, other))
        t = mc.distribute(a, mc.Layout([U, "x"], mesh))
        check(t @ mc.distribute(b, mc.Layout(["y", U], mesh)), a @ b, rtol=1e-2)
        check(t @ b, a @ b, rtol=1e-2)
        check(b @ t, b @ a, rtol=1e-2)
        check(mc.matmul(t, b.tolist()), a @ np.array(b.tolist()), rtol=1e-2)


@on_ranks(2)
def test_methods_are_numpys_functions():
    x = np.arange(6).reshape(2, 3) * (1 + 2j)
    t = mc.distribute(x, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    for moved in (t.transpose(), t.transpose(1, 0), t.transpose((1, 0)), t.transpose(None)):
        np.testing.assert_array_equal(moved.to_numpy(), x.T)
    np.testing.assert_array_equal(t.transpose(0, 1).to_numpy(), x)
    for found, expected in [(t.conj(), x.conj()), (t.conjugate(), x.conj()), (t.real, x.real), (t.imag, x.imag)]:
        np.testing.assert_array_equal(found.to_numpy(), expected, strict=True)
