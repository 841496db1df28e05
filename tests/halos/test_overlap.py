"""map_overlap: what Dask's function of this name gives, and the rules of its calls."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, Layout, LayoutError, ShapeError
from support.halo_cases import NUMPY_MODES, random_case
from support.reference import numbered
from support.sampling import sampled
from support.tensors import check, on, on_some_ranks


def line(size, *specs):
    return Layout(specs or ["x"], mc.create_mesh([("x", size)]))


def derivative(x):
    return x - np.roll(x, 1)


# Recorded with dask 2026.8.0 on `x = da.from_array(np.array([1, 1, 2, 3, 3, 3, 2, 1, 1]), chunks=(3,))`, three blocks
# of three elements: x.map_overlap(derivative, depth=1, boundary=...).compute().
DASK = {
    "none": [-2, 0, 1, 1, 0, 0, -1, -1, 0],
    "periodic": [0, 0, 1, 1, 0, 0, -1, -1, 0],
    "reflect": [0, 0, 1, 1, 0, 0, -1, -1, 0],
    "nearest": [0, 0, 1, 1, 0, 0, -1, -1, 0],
    0: [1, 0, 1, 1, 0, 0, -1, -1, 0],
}


@pytest.mark.parametrize("boundary", DASK)
def test_the_example_of_dask(boundary):
    """y_i = x_i - x_(i-1) over blocks, from the pages of dask.array.map_overlap."""

    def program():
        t = mc.distribute(np.array([1, 1, 2, 3, 3, 3, 2, 1, 1]), line(3))
        return mc.map_overlap(derivative, t, depth=1, boundary=boundary).to_numpy().tolist()

    assert on(3, program) == [DASK[boundary]] * 3


def test_the_blocks_of_dask_that_are_not_trimmed():
    """map_overlap(..., depth={0: 2, 1: 2}, boundary={0: 100, 1: "reflect"}, trim=False) of dask 2026.8.0."""
    recorded = [
        [100, 100, 100, 100, 100, 100, 100, 100],
        [100, 100, 100, 100, 100, 100, 100, 100],
        [1, 0, 0, 1, 2, 3, 4, 5],
        [9, 8, 8, 9, 10, 11, 12, 13],
        [17, 16, 16, 17, 18, 19, 20, 21],
        [25, 24, 24, 25, 26, 27, 28, 29],
        [33, 32, 32, 33, 34, 35, 36, 37],
        [41, 40, 40, 41, 42, 43, 44, 45],
    ]

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        t = mc.distribute(np.arange(64).reshape(8, 8), Layout(["x", "y"], mesh))
        made = mc.map_overlap(lambda x: x, t, {0: 2, 1: 2}, {0: 100, 1: "reflect"}, trim=False)
        return made.local.tolist(), made.shape

    found = on(4, program)
    assert found[0] == (recorded, (16, 16))


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_a_function_sees_what_numpy_pad_gives(seed):
    """A sum over a window, on the whole array and on blocks."""

    def window_sum(x, axis):
        return np.roll(x, 1, axis) + 2 * x + 3 * np.roll(x, -1, axis)

    def program(random, mesh):
        for _ in range(6):
            case = random_case(random, mesh, "i4")
            axis, boundary = random.randrange(case.whole.ndim), random.choice([*NUMPY_MODES, 3])
            pads = [(1, 1) if a == axis else (0, 0) for a in range(case.whole.ndim)]
            mode = {"mode": NUMPY_MODES[boundary]} if isinstance(boundary, str) else {"constant_values": boundary}
            inner = tuple(slice(1, -1) if a == axis else slice(None) for a in range(case.whole.ndim))
            expected = window_sum(np.pad(case.whole, pads, **mode), axis)[inner]
            check(mc.map_overlap(window_sum, case.tensor, depth={axis: 1}, boundary=boundary, axis=axis), expected)

    on_some_ranks(seed, program)


def test_no_ghosts_at_the_edges_and_several_tensors():
    def program():
        rows, columns = line(2, "x", mc.UNSHARDED), line(2, mc.UNSHARDED, "x")
        a = numbered((4, 4))
        shapes = []

        def fn(x, y):
            shapes.append((x.shape, y.shape))
            return x + y[1:-1] if x.shape != y.shape else x + y

        made = mc.map_overlap(
            fn, mc.distribute(a, rows), mc.distribute(a * 10, columns), depth=[0, {0: 1}], boundary=0
        )
        check(made, a * 11)
        check(mc.map_overlap(lambda x: x * 2.0, mc.distribute(a, rows), 3), a * 2.0)
        return shapes

    assert on(2, program) == [[((2, 4), (4, 4))]] * 2


@pytest.mark.parametrize("boundary", ["none", "periodic", "nearest", "reflect", "mirror", 1.0])
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_axis_without_elements_has_nothing_to_repeat(boundary, ranks):
    def program():
        for specs in (["x", mc.UNSHARDED], [mc.UNSHARDED, "x"]):
            t = mc.zeros((0, 4), "f8", line(ranks, *specs))
            check(mc.map_overlap(lambda x: x + 1, t, {0: 2, 1: 1}, boundary), np.zeros((0, 4)))
            check(mc.map_overlap(lambda x: x + 1, t, {1: 1}, boundary, trim=False)[:, :0], np.zeros((0, 0)))
        return True

    assert on(ranks, program) == [True] * ranks


def test_ranks_outside_of_the_mesh_know_shape_and_dtype():
    def program():
        t = mc.zeros(6, "f4", Layout(["x"], mc.create_mesh([("x", 2)], devices=[0, 1])))
        made = mc.map_overlap(lambda x: x > 0, t, 1, "mirror")
        again = mc.map_overlap(lambda x: x > 0, t, 1, "mirror", dtype="i2")
        return made.shape, made.dtype.name, made.local is None, again.dtype.name

    assert on(3, program) == [((6,), "bool", outside, "int16") for outside in (False, False, True)]


def test_errors():
    def program():
        t = mc.zeros(6, "f4", line(2))
        for error, text, args in [
            (LayoutError, "needs a DTensor", (np.zeros(3),)),
            (LayoutError, "needs a DTensor", ()),
            (LayoutError, "beside them", (t, 1, "none", 5)),
            (ShapeError, "of one shape", (t, mc.zeros(5, "f4", t.layout))),
            (ShapeError, "entries for 2 tensors", (t, t, [1, 1, 1])),
        ]:
            with pytest.raises(error, match=text):
                mc.map_overlap(np.abs, *args)
        with pytest.raises(ShapeError, match="must return the same shape"):
            mc.map_overlap(lambda x: x[1:], t, 1, 0)

    on(2, program)

    def differs():
        t = mc.zeros(6, "f4", line(2))
        mc.map_overlap(np.abs, t, 1 + t.mesh.rank)

    with pytest.raises(CollectiveMismatch):
        on(2, differs)
