"""What the namespace makes: NumPy's values on any number of ranks, in the layouts of the rule."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.numpy.namespace.rule import axis_to_cut, layout_for
from support.numpy_law import table
from support.reference import same_bits

U = mc.UNSHARDED

RULE = [
    ((8191,), 8, 4, None),  # less than 64 KiB
    ((8192,), 8, 4, 0),
    ((8192,), 8, 1, None),
    ((3, 100_000), 8, 2, 1),  # the first axis is short
    ((32, 10_000), 8, 4, 0),
    ((31, 10_000), 8, 4, 1),
    ((10, 6, 5, 400), 8, 64, 3),  # no axis is long enough: the longest
    ((20, 20, 20, 20), 8, 64, None),  # not even that
    ((0, 10**6), 8, 4, None),
    ((), 10**6, 4, None),
]


@pytest.mark.parametrize(("shape", "itemsize", "ranks", "axis"), RULE)
def test_the_rule(shape, itemsize, ranks, axis):
    assert axis_to_cut(shape, itemsize, ranks) == axis


def test_an_axis_is_cut_over_all_dimensions():
    mesh = mc.Mesh(range(4), {"x": 2, "y": 2})
    layout = layout_for((1000, 1000), np.dtype("f8"), mesh)
    assert layout.axes == (("x", "y"), ())
    assert layout is layout_for((1000, 100), np.dtype("f8"), mesh)


def leaves(x):
    return [leaf for each in x for leaf in leaves(each)] if isinstance(x, tuple | list) else [x]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("call", table("creation_calls.txt")["creation"])
def test_values_are_numpys(call, ranks):
    expected = leaves(eval(call, {"np": np}))

    def program():
        found = leaves(eval(call, {"np": namespace}))
        assert len(found) == len(expected)
        for ours, numpys in zip(found, expected, strict=True):
            if isinstance(ours, np.generic | float):
                assert ours == numpys
                continue
            assert isinstance(ours, np.ndarray if ours.nbytes < 2**16 else mc.DTensor)
            assert same_bits(ours.to_numpy(), np.ascontiguousarray(numpys))
            if ours.nbytes < 2**16:
                assert ours.layout.is_fully_replicated()

    with mc.simulate(ranks) as world:
        world.run(program)


def test_layouts_and_meshes_that_are_asked_for():
    def program():
        mesh = mc.create_mesh([("y", 2)], devices=[1, 0])
        columns = mc.Layout([U, "y"], mesh)
        for made in (namespace.zeros((4, 6), layout=columns), namespace.array([[1] * 6] * 4, layout=columns)):
            assert made.layout == columns
        assert namespace.linspace(0, 1, 5, layout=mc.Layout(["y"], mesh)).layout.mesh == mesh
        with mc.default_mesh(mesh):
            assert namespace.arange(3).mesh == mesh
            large = namespace.zeros((100, 100))
            assert large.layout.axes == (("y",), ())
        assert namespace.arange(3).mesh.dim_names == ["x"]

    with mc.simulate(2) as world:
        world.run(program)


def test_a_large_result_of_small_operands_is_cut():
    def program():
        x = namespace.linspace(0, 1, 300)
        grid = x[:, None] ** 2 + x
        assert grid.layout.axes == (("x",), ())
        assert same_bits(grid.to_numpy(), np.linspace(0, 1, 300)[:, None] ** 2 + np.linspace(0, 1, 300))
        y = mc.distribute(np.arange(300.0), mc.Layout([U], x.mesh))  # a layout that the program chose
        assert (y[:, None] * y).layout.is_fully_replicated()

    with mc.simulate(2) as world:
        world.run(program)


def test_objects_stay_numpys():
    made = namespace.array([None, "a"], dtype=object)
    assert isinstance(made, np.ndarray)
    assert isinstance(namespace.zeros(3, object), np.ndarray)


@pytest.mark.parametrize("call", ["np.zeros(-1)", "np.zeros(3, 'no')", "np.array([[1], [1, 2]])"])
def test_errors_are_numpys(call):
    with pytest.raises(Exception) as numpys:  # any class
        eval(call, {"np": np})
    with pytest.raises(type(numpys.value)) as ours:
        eval(call, {"np": namespace})
    assert str(ours.value) == str(numpys.value)


def test_arrays_that_differ_are_found():
    def program():
        mesh = namespace.zeros(3).mesh
        tensor = namespace.array([mesh.rank, 1.0]) + namespace.zeros((10_000, 2))
        return mc.relayout(tensor, mc.Layout([U, U], mesh))

    with mc.simulate(2) as world, pytest.raises(mc.CollectiveMismatch):
        world.run(program)
