"""Transposed DTensors and matrix products against NumPy on the whole arrays."""

from math import prod

import pytest

import meshcomm as mc
from meshcomm.numpy.shapes import linalg
from support.reference import tuple_layouts
from support.tensors import SIZES, close, mesh_of, numbers

U = mc.UNSHARDED

# -- transpose and matmul ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
def test_transpose(sizes):
    def program():
        mesh, a = mesh_of(*sizes), numbers(5, 3, 2)
        for layout in tuple_layouts(mesh, 3):
            t = mc.distribute(a, layout)
            close(t.T, a.T)
            close(linalg.transpose(t, (1, -1, 0)), a.transpose(1, -1, 0))
            assert t.T.T.layout == t.layout

    with mc.simulate(prod(sizes)) as world:
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
        t, u = (mc.distribute(numbers(6, 6), mc.Layout(specs, mesh)) for specs in (a, b))
        return (t @ u).layout.sharding_specs

    with mc.simulate(4) as world:
        assert world.run(program) == [product] * 4
        assert any(world.bytes_moved) == moves
