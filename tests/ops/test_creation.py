"""Triangles and grids: bits and errors; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from ops.test_kinds import layout_of, on_a_mesh
from support.reference import on_ranks, same_bits

U = mc.UNSHARDED


def test_triangles_keep_bits():
    special = np.array([[np.nan, -0.0, np.inf], [-np.inf, -np.nan, -0.0], [1.0, -0.0, np.nan]])

    def program(random, mesh):
        t = mc.distribute(special, layout_of(random, mesh, (3, 3)))
        for function in (np.tril, np.triu):
            assert same_bits(function(t).to_numpy(), function(special))

    for seed in range(5):
        on_a_mesh(seed, program)


@on_ranks(2)
def test_errors():
    mesh, other = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)], devices=[1, 0])
    row = mc.zeros(3, float, Layout(["x"], mesh))
    matrix = mc.zeros((3, 3), float, Layout(["x", U], mesh))
    with pytest.raises(ShapeError, match="tril takes matrices, or a row"):
        np.tril(row[0])
    with pytest.raises(ShapeError, match="k 'a' is a str; it must be an integer"):
        np.triu(matrix, "a")
    with pytest.raises(ValueError, match="indexing must be 'xy' or 'ij', not 'yx'"):
        np.meshgrid(row, row, indexing="yx")
    with pytest.raises(mc.MeshError, match="operands must be on one mesh"):
        np.meshgrid(row, mc.zeros(3, float, Layout(["y"], other)))
    with pytest.raises(ShapeError, match="scalar"):
        np.full_like(row, [1, 2, 3])
