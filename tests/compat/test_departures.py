"""A proof of each departure from TensorFlow of pack and its neighbours, relayout_like, gradients and all_to_all."""

import inspect
import re

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import gradients
from meshcomm.errors import CollectiveMismatch, GroupError, LayoutError, MeshError, ShapeError
from support.departures import departures, refuses, table
from support.paths import ROOT
from support.tensors import numbers, on

U = mc.UNSHARDED


def along(name="x"):
    """Return the mesh of the two simulated ranks, and a layout of one axis along it."""
    mesh = mc.create_mesh([(name, 2)])
    return mesh, mc.Layout([name], mesh)


# -- pack and its neighbours ------------------------------------------------------------------------------------------


def pack_of_several():
    rows = along()[1]
    return all(refuses(ShapeError, mc.pack, [np.zeros(2)] * count, rows, says=f"got {count}") for count in (0, 2))


def pack_of_shapes():
    mesh, rows = along()
    uneven = mc.pack([np.full(3 - mesh.rank, mesh.rank)], rows)
    refuses(ShapeError, mc.pack, [np.zeros(1 + 3 * mesh.rank)], rows, says="device 0 must hold 3")
    return uneven.to_numpy().tolist() == [0, 0, 0, 1, 1]


def pack_of_dtypes():
    mesh, rows = along()
    component = np.zeros(2, "f4" if mesh.rank else "f8")
    return refuses(CollectiveMismatch, mc.pack, [component], rows, says="rank [01]")


def lines_run_when_called():
    t = mc.ones((4,), "f8", along()[1])
    return mc.unpack(t)[0] is t.local and mc.fetch_layout(t) == t.layout


def mesh_after_an_exception():
    mesh, _ = along()
    with pytest.raises(ZeroDivisionError), mc.default_mesh(mesh):
        _ = 1 / 0
    return mc.get_default_mesh() is None


def generated_and_relaid():
    mesh, rows = along()
    generated = mc.call_with_layout(lambda layout: layout, rows)
    relaid = mc.call_with_layout(np.arange, rows, 3)
    return generated == rows == relaid.layout and relaid.local.tolist() == [[0, 1], [2]][mesh.rank]


def no_source_layout():
    rows = along()[1]
    copied = mc.copy_to_mesh(mc.ones((4,), "f8", rows), mc.Layout([U], rows.mesh))
    return copied.local.shape == (4,) and refuses(
        TypeError, mc.copy_to_mesh, copied, rows, source_layout=copied.layout, says="source_layout"
    )


PACK = {
    "pack: number of components": pack_of_several,
    "pack([])": lambda: refuses(ShapeError, mc.pack, [], along()[1]),
    "pack of components of different shapes": pack_of_shapes,
    "pack of components of different dtypes": pack_of_dtypes,
    "unpack or fetch_layout in a tf.function": lines_run_when_called,
    "fetch_layout of a regular tensor": lambda: mc.fetch_layout(np.zeros(2)) is None,
    "default_mesh and an exception": mesh_after_an_exception,
    "no default mesh": lambda: refuses(
        MeshError, mc.ones, (2,), says="No default mesh has been registered to DTensor"
    ),
    "call_with_layout": generated_and_relaid,
    "copy_to_mesh(source_layout=)": no_source_layout,
    "barrier's default timeout": lambda: inspect.signature(mc.barrier).parameters["timeout_in_ms"].default is None,
}


# -- relayout_like and gradients --------------------------------------------------------------------------------------


def rows_and_columns():
    """Return a tensor, another layout of its shape, and a tensor in that layout on a mesh in another order."""
    mesh, turned = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)], devices=[1, 0])
    t = mc.distribute(numbers(4, 2), mc.Layout(["x", U], mesh))
    return t, mc.Layout([U, "x"], mesh), mc.ones((4, 2), "f8", mc.Layout([U, "y"], turned))


def like_on_another_mesh():
    t, _, other = rows_and_columns()
    moved = mc.relayout_like(t, other)
    return moved.layout == other.layout and moved.local.tolist() == numbers(4, 2)[:, [1 - t.mesh.rank]].tolist()


def no_layout_input():
    t, _, other = rows_and_columns()
    moved = mc.relayout_like(tensor=t, layout_tensor=other)
    return moved.layout == other.layout and refuses(
        TypeError, mc.relayout_like, t, layout_input=other, says="layout_input"
    )


def gradient_without_a_default_mesh():
    autograd = pytest.importorskip("autograd")
    t, columns, _ = rows_and_columns()
    gradient = autograd.grad(lambda t: autograd.numpy.sum(mc.relayout(t, columns) ** 2))(t)
    return mc.get_default_mesh() is None and gradient.layout == t.layout


def gradient_in_an_array():
    autograd = pytest.importorskip("autograd")
    t, _, _ = rows_and_columns()
    gradient = autograd.grad(lambda array: autograd.numpy.sum(mc.relayout_like(array, t) * t))(numbers(4, 2))
    return type(gradient) is np.ndarray and np.array_equal(gradient, numbers(4, 2))


def gradient_in_an_assignment():
    autograd = pytest.importorskip("autograd")
    groups, x = np.array([[0.0, 1.0]]), numbers(2, 2)

    def total(x, groups):
        return autograd.numpy.sum(mc.all_to_all(x, groups, 0, 1, 2))

    assert gradients.all_to_all_vjp(numbers(4, 1), [[0, 1]], 0, 1, 2).shape == x.shape, "one gradient, that in x"
    return refuses(GroupError, autograd.grad(total, 1), x, groups, says="must be an integer")


GRADIENTS = {
    "relayout_like to a tensor on another mesh": like_on_another_mesh,
    "layout_tensor that is no DTensor": lambda: refuses(
        LayoutError, mc.relayout_like, rows_and_columns()[0], numbers(4, 2)
    ),
    "layout_tensor with another number of axes": lambda: refuses(
        LayoutError, mc.relayout_like, rows_and_columns()[0], mc.ones((4,), "f8", along()[1])
    ),
    "layout_input=": no_layout_input,
    "the gradient outside of a default mesh": gradient_without_a_default_mesh,
    "the gradient in a regular tensor": gradient_in_an_array,
    "the gradient in group_assignment": gradient_in_an_assignment,
}


# -- all_to_all -------------------------------------------------------------------------------------------------------


def swapped(array):
    """Return whether all_to_all of this array of shape (1, 2) on both ranks gives each its column, twice."""
    result = mc.all_to_all(array, [[0, 1]], 0, 1, 2)
    column = array[:, [mc.create_mesh().rank]]
    return result.dtype == array.dtype and result.tobytes() == 2 * column.tobytes()


ALL_TO_ALL = {
    "where it runs": lambda: swapped(np.arange(2.0)[None]),
    "dtypes": lambda: all(
        swapped(np.array([values]).astype(dtype))
        for values, dtype in [(["ab", "c"], "S2"), (["ab", "c"], "U2"), ([1, 2], "M8[s]"), ([1, 2], "c16")]
    ),
    "group_assignment with duplicate, unknown or missing ranks": lambda: all(
        refuses(GroupError, mc.all_to_all, np.zeros((2, 2)), groups, 0, 1, count)
        for groups, count in [([[0], [0]], 1), ([[0, 2]], 2), ([[0]], 1)]
    ),
    "concat_dimension equal to split_dimension": lambda: (
        mc.all_to_all(np.zeros((2, 4)), [[0, 1]], 1, 1, 2).shape == (2, 4)
        and refuses(ShapeError, mc.all_to_all, np.zeros((2, 5)), [[0, 1]], 1, 1, 2, says="not divisible")
    ),
}
PROOFS = {"pack and its neighbours": PACK, "relayout_like and gradients": GRADIENTS, "all_to_all": ALL_TO_ALL}


@pytest.mark.parametrize(("group", "case"), [(group, case) for group, proofs in PROOFS.items() for case in proofs])
def test_departure(group, case):
    assert on(2, PROOFS[group][case]) == [True, True]


@pytest.mark.parametrize("group", PROOFS)
def test_departures_are_documented(group):
    assert departures(group) == list(PROOFS[group])


def test_each_group_of_the_table_has_proofs():
    sources = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/*.py"))
    assert {group for group, _ in table()} == {*re.findall(r'\bdepartures\("([^"]+)"\)', sources), *PROOFS}
