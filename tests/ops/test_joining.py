"""Tensors joined, split and padded: layouts, what moves, errors; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, Layout, LayoutError, MeshError, ShapeError
from support.gradient_cases import on
from support.reference import numbered, on_ranks
from support.shape_cases import U, check

# -- layouts, and what moves ------------------------------------------------------------------------------------------


def test_layouts_and_what_moves(relayouts):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        cyclic = Layout([U, mc.Cyclic("x", 1)], mesh)
        t = mc.distribute(numbered((4, 6)), cyclic)
        assert np.concatenate([t, t]).layout == cyclic
        assert np.stack([t, t], 1).layout == Layout([U, U, mc.Cyclic("x", 1)], mesh)
        assert np.vstack([t, np.arange(6)]).layout == cyclic
        rows = mc.distribute(numbered((4, 6)), Layout(["x", U], mesh))
        padded = np.pad(rows, ((1, 2), (1, 1)))
        assert padded.layout == Layout([mc.Cuts("x", (0, 3, 7)), U], mesh)
        assert np.pad(np.ones_like(rows), 0).layout == rows.layout
        assert np.split(rows, [1])[1].layout == Layout([mc.Cuts("x", (0, 1, 3)), U], mesh)
        assert np.shares_memory(np.split(rows, [1])[1].local, rows.local)

    on(2, program)
    assert relayouts == []


def test_joins_along_a_sharded_axis_move_each_element_once(relayouts, moved):
    def program():
        t = mc.distribute(np.arange(8), Layout(["x"], mc.create_mesh([("x", 2)])))
        made = np.concatenate([t, t + 10])
        assert made.layout == t.layout
        check(made, np.concatenate([np.arange(8), np.arange(8) + 10]))
        joined = mc.concatenate([t, t], 0, Layout([mc.Cyclic("x", 4)], t.mesh))
        check(joined, np.tile(np.arange(8), 2))

    on(2, program)
    # the upper half of the first goes down, the lower half of the second up; blocks of 4 are where they are
    assert moved == [32, 32]
    assert relayouts == [0, 0] * 2


def test_a_pad_moves_only_what_it_repeats(moved):
    def program():
        t = mc.distribute(np.arange(100), Layout(["x"], mc.create_mesh([("x", 4)])))
        check(np.pad(t, (2, 1), mode="wrap"), np.pad(np.arange(100), (2, 1), mode="wrap"))
        check(np.pad(t, 2, mode="reflect"), np.pad(np.arange(100), 2, mode="reflect"))

    on(4, program)
    assert sorted(moved) == [0, 0, 8, 16], "two elements of the last block, and one of the first"


@on_ranks(3)
def test_another_mesh():
    mesh, other = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)], devices=[2, 1])
    t = mc.distribute(np.arange(5), Layout(["x"], mesh))
    made = mc.concatenate([t, t], layout=Layout(["y"], other))
    check(made, np.tile(np.arange(5), 2))
    check(mc.stack([t, t], layout=Layout([U, "y"], other)), np.stack([np.arange(5)] * 2))
    with pytest.raises(MeshError):
        np.concatenate([t, mc.zeros(3, layout=Layout(["y"], other))])


@on_ranks(2)
def test_plain_arrays_that_differ():
    t = mc.distribute(np.arange(6), Layout(["x"], mc.create_mesh([("x", 2)])))
    with pytest.raises(CollectiveMismatch):
        np.concatenate([t, np.full(3, t.mesh.rank)])


@on_ranks(2)
def test_errors():
    t = mc.distribute(numbered((6, 4)), Layout(["x", U], mc.create_mesh([("x", 2)])))
    none = mc.zeros((0, 4), "f8", t.layout)
    day = mc.distribute(np.zeros((6, 4), "M8[D]"), t.layout)
    for call, error, text in [
        (lambda: np.concatenate([t, t.T]), ShapeError, r"operand 0 has shape \(6, 4\), operand 1 has \(4, 6\)"),
        (lambda: np.concatenate([t, np.zeros(4)]), ShapeError, r"operand 1 has \(4,\)"),
        (lambda: np.concatenate([t, 3]), ShapeError, r"operand 1 has \(\)"),
        (lambda: np.concatenate([t, t], 2), ShapeError, "axis 2 is out of range"),
        (lambda: np.concatenate([t, t], out=t), ShapeError, r"out has shape \(6, 4\), but the result has \(12, 4\)"),
        (lambda: np.concatenate([t, t], dtype="i1", casting="safe"), TypeError, "Cannot cast"),
        (lambda: np.concatenate([t, day]), TypeError, "promote"),
        (lambda: mc.concatenate([np.zeros(3)]), LayoutError, "one of the operands must be a DTensor"),
        (lambda: mc.concatenate([]), LayoutError, "one of the operands must be a DTensor"),
        (lambda: mc.concatenate([t, t], 0, "x"), LayoutError, "takes a Layout, not str"),
        (lambda: mc.concatenate([t, t], 0, Layout(["x"], t.mesh)), LayoutError, "2 axes, but the layout is for 1"),
        (lambda: mc.concatenate([t, t], 0, Layout([mc.Cuts("x", (0, 1, 6)), U], t.mesh)), ShapeError, "boundary"),
        (lambda: np.stack([t, t.T]), ShapeError, "all shapes must be equal"),
        (lambda: np.stack([t, t], 3), ShapeError, "axis 3 is out of range"),
        (lambda: np.split(t, 4), ShapeError, "6 elements into 4 sections"),
        (lambda: np.split(t, 0), ShapeError, "0 sections"),
        (lambda: np.array_split(t, 2, 2), ShapeError, "axis 2 is out of range"),
        (lambda: np.dsplit(t, 2), ShapeError, "dsplit takes a tensor of 3 axes or more"),
        (lambda: np.pad(t, -1), ShapeError, "is negative"),
        (lambda: np.pad(t, (1, 2, 3)), ShapeError, "a pair for each axis"),
        (lambda: np.pad(t, 1.5), TypeError, "must be an integer"),
        (lambda: np.pad(t, 1, mode="middle"), ValueError, "mode 'middle' is unknown"),
        (lambda: np.pad(t, 1, mode=np.sum), TypeError, "is not supported for DTensors"),
        (lambda: np.pad(t, 1, mode="edge", constant_values=1), ValueError, "unsupported keyword arguments"),
        (lambda: np.pad(t, 1, constant_values=(1, 2, 3)), ShapeError, "a pair for each axis"),
        (lambda: np.pad(none, 1, mode="edge"), ShapeError, "no elements to repeat"),
    ]:
        with pytest.raises(error, match=text):
            call()


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
