"""What the namespace makes: NumPy's values on any number of ranks, in the layouts of the rule."""

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.numpy.namespace.rule import axis_to_cut, layout_for
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


CALLS = {
    "zeros": lambda np: np.zeros((100, 200), "f4"),
    "zeros small": lambda np: np.zeros(3),
    "ones": lambda np: np.ones(10_000, dtype=complex),
    "full": lambda np: np.full((3, 10_000), 7),
    "full of a row": lambda np: np.full((300, 100), np.arange(100.0)),
    "full of dates": lambda np: np.full(3, np.datetime64("2020-01-01")),
    "arange": lambda np: np.arange(100_000),
    "arange of floats": lambda np: np.arange(0.5, 9000.0, 0.3),
    "arange down": lambda np: np.arange(30_000, 0, -1),
    "arange dtype": lambda np: np.arange(0, 30_000, dtype="f4"),
    "arange by name": lambda np: np.arange(2, stop=20_000, step=2),
    "arange of dates": lambda np: np.arange("2020-01", "2020-05", dtype="M8[D]"),
    "arange of half": lambda np: np.arange(40_000, dtype="f2"),
    "linspace": lambda np: np.linspace(0, 1, 20_001),
    "linspace without end": lambda np: np.linspace(-1, 3, 20_000, endpoint=False),
    "linspace of complex": lambda np: np.linspace(0, 1j, 20_000),
    "linspace of arrays": lambda np: np.linspace(np.zeros(3), np.ones(3), 5),
    "linspace step": lambda np: np.linspace(0, 1, 20_001, retstep=True),
    "linspace of integers": lambda np: np.linspace(0, 10, 20_000, dtype=int),
    "logspace": lambda np: np.logspace(0, 3, 20_000),
    "geomspace": lambda np: np.geomspace(1, 1000, 4),
    "eye": lambda np: np.eye(200),
    "eye above": lambda np: np.eye(100, 300, k=5, dtype=int),
    "identity": lambda np: np.identity(4),
    "tri": lambda np: np.tri(200, 100, -3),
    "indices": lambda np: np.indices((100, 200)),
    "indices sparse": lambda np: np.indices((10, 20), sparse=True),
    "mgrid": lambda np: np.mgrid[0:100, 0:5:200j],
    "mgrid of one": lambda np: np.mgrid[0:3],
    "ogrid": lambda np: np.ogrid[0:3, 0:4],
    "meshgrid": lambda np: np.meshgrid(np.linspace(0, 1, 150), np.arange(100)),
    "meshgrid ij": lambda np: np.meshgrid([1, 2], [3.0, 4.0], [5, 6, 7], indexing="ij"),
    "meshgrid sparse": lambda np: np.meshgrid([1, 2], [3.0, 4.0], sparse=True),
    "fromfunction": lambda np: np.fromfunction(lambda i, j: i * 10 + j, (100, 200), dtype=int),
    "r_": lambda np: np.r_[0:3, 7, [1, 2]],
    "c_": lambda np: np.c_[[1, 2], [3, 4]],
    "array": lambda np: np.array([[1, 2], [3, 4]]),
    "array large": lambda np: np.array([*range(10_000)], float),
    "array ndmin": lambda np: np.array([1, 2], ndmin=3),
    "array of arrays": lambda np: np.array([np.arange(3), np.ones(3)]),
    "array of nested arrays": lambda np: np.array([[np.arange(3)], [np.ones(3)]]),
    "array of an array": lambda np: np.array(np.arange(3), "f4"),
    "array of texts": lambda np: np.array(["a", "bcd"]),
    "asarray": lambda np: np.asarray(range(5)),
    "ascontiguousarray": lambda np: np.ascontiguousarray([[1, 2], [3, 4]]),
    "hanning": lambda np: np.hanning(9000),
    "tile": lambda np: np.tile([1, 2, 3], 5000),
    "outer": lambda np: np.outer(np.arange(100.0), np.arange(200.0)),
    "diag": lambda np: np.diag([1, 2, 3]),
    "vander": lambda np: np.vander([1, 2, 3], 4),
    "fromiter": lambda np: np.fromiter((n * n for n in range(5)), int),
    "frombuffer": lambda np: np.frombuffer(b"\0\1\2", np.uint8),
    "tril_indices": lambda np: np.tril_indices(4),
    "zeros_like": lambda np: np.zeros_like([1, 2, 3]),
    "concatenate": lambda np: np.concatenate([[1, 2], np.arange(3)]),
    "stack of rows": lambda np: np.stack([np.arange(9000), np.ones(9000)]),
}


def leaves(x):
    return [leaf for each in x for leaf in leaves(each)] if isinstance(x, tuple | list) else [x]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("call", CALLS)
def test_values_are_numpys(call, ranks):
    expected = leaves(CALLS[call](np))

    def program():
        found = leaves(CALLS[call](namespace))
        assert len(found) == len(expected)
        for ours, numpys in zip(found, expected, strict=True):
            if isinstance(ours, np.generic | float):
                assert ours == numpys
                continue
            assert isinstance(ours, mc.DTensor)
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
        other = mc.create_mesh([("y", 2)])  # on which the program makes nothing by the rule
        y = mc.distribute(np.arange(300.0), mc.Layout([U], other))
        assert (y[:, None] * y).layout.is_fully_replicated()

    with mc.simulate(2) as world:
        world.run(program)


def test_objects_stay_numpys():
    made = namespace.array([None, "a"], dtype=object)
    assert type(made) is np.ndarray
    assert type(namespace.zeros(3, object)) is np.ndarray


@pytest.mark.parametrize(
    "call", [lambda np: np.zeros(-1), lambda np: np.zeros(3, "no"), lambda np: np.array([[1], [1, 2]])]
)
def test_errors_are_numpys(call):
    with pytest.raises(Exception) as numpys:  # any class
        call(np)
    with pytest.raises(type(numpys.value)) as ours:
        call(namespace)
    assert str(ours.value) == str(numpys.value)


def test_arrays_that_differ_are_found():
    def program():
        mesh = namespace.zeros(3).mesh
        made = namespace.array([mesh.rank, 1.0])
        mc.relayout(mc.zeros(4, float, mc.Layout(["x"], mesh)), mc.Layout([U], mesh))
        return made

    with mc.simulate(2) as world, pytest.raises(mc.CollectiveMismatch):
        world.run(program)
