"""Tensors joined, split and padded: layouts, what moves, errors; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, MeshError
from support.reference import numbered, on_ranks
from support.tensors import check, on

U = mc.UNSHARDED

# -- layouts, and what moves ------------------------------------------------------------------------------------------


def test_layouts_and_what_moves():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        cyclic = Layout([U, mc.Cyclic("x", 1)], mesh)
        t = mc.distribute(numbered((4, 6)), cyclic)
        rows = mc.distribute(numbered((4, 6)), Layout(["x", U], mesh))
        with mc.count() as c:
            check_layouts(mesh, t, rows)
        return c.bytes

    def check_layouts(mesh, t, rows):
        cyclic = t.layout
        assert np.concatenate([t, t]).layout == cyclic
        assert np.stack([t, t], 1).layout == Layout([U, U, mc.Cyclic("x", 1)], mesh)
        assert np.vstack([t, np.arange(6)]).layout == cyclic
        padded = np.pad(rows, ((1, 2), (1, 1)))
        assert padded.layout == Layout([mc.Cuts("x", (0, 3, 7)), U], mesh)
        assert np.pad(np.ones_like(rows), 0).layout == rows.layout
        assert np.split(rows, [1])[1].layout == Layout([mc.Cuts("x", (0, 1, 3)), U], mesh)
        assert np.shares_memory(np.split(rows, [1])[1].local, rows.local)

    assert on(2, program) == [0, 0]


def test_joins_along_a_sharded_axis_move_each_element_once():
    def program():
        t = mc.distribute(np.arange(8), Layout(["x"], mc.create_mesh([("x", 2)])))
        with mc.count() as joining:
            made = np.concatenate([t, t + 10])
        assert made.layout == t.layout
        check(made, np.concatenate([np.arange(8), np.arange(8) + 10]))
        with mc.count() as cyclic:
            joined = mc.concatenate([t, t], 0, Layout([mc.Cyclic("x", 4)], t.mesh))
        check(joined, np.tile(np.arange(8), 2))
        return joining.messages, joining.bytes, cyclic.bytes

    # the upper half of the first goes down, the lower half of the second up; blocks of 4 are where they are
    assert on(2, program) == [(1, 32, 0)] * 2


def test_a_pad_moves_only_what_it_repeats():
    def program():
        t = mc.distribute(np.arange(100), Layout(["x"], mc.create_mesh([("x", 4)])))
        with mc.count() as c:
            wrapped, reflected = np.pad(t, (2, 1), mode="wrap"), np.pad(t, 2, mode="reflect")
        check(wrapped, np.pad(np.arange(100), (2, 1), mode="wrap"))
        check(reflected, np.pad(np.arange(100), 2, mode="reflect"))
        return c.bytes

    assert on(4, program) == [16, 0, 0, 8], "two elements of the last block, and one of the first"


@on_ranks(3)
def test_another_mesh():
    mesh, other = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)], devices=[2, 1])
    t = mc.distribute(np.arange(5), Layout(["x"], mesh))
    made = mc.concatenate([t, t], layout=Layout(["y"], other))
    check(made, np.tile(np.arange(5), 2))
    check(mc.stack([t, t], layout=Layout([U, "y"], other)), np.stack([np.arange(5)] * 2))
    with pytest.raises(MeshError):
        np.concatenate([t, mc.zeros(3, layout=Layout(["y"], other))])


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@pytest.mark.parametrize("dtype", ["f8", "i4", "c16"])
def test_odd_reflections(dtype, mode):
    whole = np.random.default_rng(1).integers(-9, 9, (7, 5)).astype(dtype)

    def program():
        t = mc.distribute(whole, Layout(["x", U], mc.create_mesh([("x", 3)])))
        for width in (1, ((2, 0), (1, 3)), ((0, 23), (9, 0))):
            found = np.pad(t, width, mode, reflect_type="odd")
            expected = np.pad(whole, width, mode, reflect_type="odd")
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.to_numpy(), expected)

    with mc.simulate(3) as world:
        world.run(program)
