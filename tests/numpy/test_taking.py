"""Elements taken and written: layouts, what moves, errors; `test_numpy` compares the functions with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cuts, Cyclic, Layout, ShapeError
from meshcomm.blocks import rows
from support.reference import on_ranks
from support.tensors import check, on

U = "unsharded"


@on_ranks(4)
def test_layouts():
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    x = np.arange(120).reshape(4, 6, 5)
    t = mc.distribute(x, Layout(["x", Cyclic("y", 1), U], mesh))
    index = mc.distribute(np.array([3, 0, 1]), Layout(["x"], mesh))
    for made, specs in [
        (np.take(t, [0, 1, 1], 2), ["x", Cyclic("y", 1), U]),
        (np.take(t, [0, 1, 1], 0), ["x", Cyclic("y", 1), U]),
        (np.take(t, 3, 0), [Cyclic("y", 1), U]),
        (np.take(t, [[0, 5]], 1), ["x", U, "y", U]),
        (np.take(t, [0, 119, 7]), [("x", "y")]),
        (np.take(t, index, 0), ["x", Cyclic("y", 1), U]),
        (np.take(t, index, 2), ["x", Cyclic("y", 1), U]),
        (np.take(t, index), ["x"]),
        (np.take_along_axis(t, np.argsort(t, 1), 1), ["x", Cyclic("y", 1), U]),
        (np.take_along_axis(t, np.zeros((4, 3, 5), int), 1), ["x", "y", U]),
        (np.repeat(t, [1, 0, 2, 1], 0), [Cuts("x", (0, 1, 4)), Cyclic("y", 1), U]),
        (np.insert(t, [0, 1], 7, 1), ["x", "y", U]),
        (np.delete(t, [2, 3, 1], 0), [Cuts("x", (0, 1, 1)), Cyclic("y", 1), U]),
        (np.nonzero(t)[1], [Cuts(("x", "y"), (0, 29, 59, 89, 119))]),
    ]:
        assert made.layout == Layout(specs, mesh)


def test_only_what_is_taken_moves():
    """Equal indices, one after the other, travel once; consecutive ones as a run."""

    def program():
        t = mc.distribute(np.arange(1000), Layout(["x"], mc.create_mesh([("x", 2)])))
        index = [700] * 20 + [*range(7, 27)]
        with mc.count() as c:
            taken = np.take(t, index)
        check(taken, np.array(index))
        return c.bytes

    received = on(2, program)
    assert sum(received) == 8 * (1 + 1) + 8 * (20 + 2), "one element and where it is, 20 and where they begin and end"


def test_elements_that_stay_do_not_travel():
    """A repeat by counts, indices of whole axes, and lines with their own indices."""

    def program():
        mesh = mc.create_mesh([("x", 3)])
        x = np.arange(24.0).reshape(6, 4)
        t = mc.distribute(x, Layout(["x", U], mesh))
        counts = mc.distribute(np.array([2, 0, 1, 3, 0, 1]), Layout(["x"], mesh))
        with mc.count() as c:
            repeated = np.repeat(t, counts, 0)
            reversed_lines = np.take_along_axis(t, np.argsort(-t, 1), 1)
            taken = np.take(t, [3, 0], 1)
        check(repeated, np.repeat(x, [2, 0, 1, 3, 0, 1], 0))
        check(reversed_lines, x[:, ::-1])
        check(taken, x[:, [3, 0]])
        return c.bytes

    assert on(3, program) == [0] * 3


@on_ranks(3)
def test_ranks_outside_of_the_mesh():
    mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
    x = np.arange(12.0).reshape(4, 3)
    t = mc.distribute(x, Layout(["x", U], mesh))
    index = mc.distribute(np.array([3, 1, 0]), Layout(["x"], mesh))
    first = mc.distribute(np.array(2), Layout([], mesh))
    for made, expected in [
        (np.take(t, [3, 1], 0), x[[3, 1]]),
        (np.take(t, index), np.take(x, [3, 1, 0])),
        (np.take(t, first, 0), x[2]),
        (np.take_along_axis(t, np.argsort(t, 0), 0), x),
        (np.repeat(t, [1, 0, 2, 1], 0), np.repeat(x, [1, 0, 2, 1], 0)),
        (np.choose(t > 2, [t, -t]), np.choose(x > 2, [x, -x])),
    ]:
        assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
        assert (made.local is None) == (mesh.rank is None)
        if mesh.rank is not None:
            check(made, expected)
    np.put(t, index, 7)
    np.copyto(t, index, where=t > 4)
    if mesh.rank is None:
        with pytest.raises(ShapeError, match=r"numpy.nonzero: a rank outside of the mesh cannot know"):
            np.nonzero(t)
        with pytest.raises(ShapeError, match="cannot know how often"):
            np.repeat(t[:3], index, 0)
    else:
        assert np.nonzero(t)[0].shape == (9,)
        assert np.repeat(t[:3], index, 0).shape == (4, 3)


@on_ranks(2)
def test_records_keep_their_bits():
    mesh = mc.create_mesh([("x", 2)])
    x = np.zeros(9, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    x.view(np.uint8)[:] = np.random.default_rng(1).integers(0, 256, x.nbytes)
    t = mc.distribute(x, Layout(["x"], mesh))
    order = np.array([8, 0, 3, 3])
    index = mc.distribute(order, Layout(["x"], mesh))
    for given in (order, index):
        assert np.take(t, given).to_numpy().tobytes() == x[order].tobytes()
    assert np.repeat(t, np.arange(9)).to_numpy().tobytes() == np.repeat(x, np.arange(9)).tobytes()
    assert np.delete(t, index).to_numpy().tobytes() == x[[1, 2, 4, 5, 6, 7]].tobytes()
    np.put(t, index, t[:4])
    assert t.to_numpy()[[8, 0]].tobytes() == x[:2].tobytes()


@on_ranks(2)
def test_tensors_choose_from_plain_arrays():
    """Where NumPy's functions ask both arguments."""
    mesh = mc.create_mesh([("x", 2)])
    x = np.arange(12.0).reshape(4, 3)
    rows = mc.distribute(np.array([3, 0, 1, 1]), Layout(["x"], mesh))
    check(
        np.take_along_axis(x, mc.distribute(np.array([[2], [0], [1], [2]]), Layout(["x", U], mesh)), 1),
        [[2.0], [3.0], [7.0], [11.0]],
    )
    check(np.compress(rows > 0, x, 0), x[[0, 2, 3]])
    check(np.extract(rows > 0, x[:, 0]), x[[0, 2, 3], 0])
    check(np.delete(x, rows, 0), x[2:3])
    check(np.insert(x, rows, 5, 0), np.insert(x, [3, 0, 1, 1], 5, 0))
    check(np.append(x[0], rows), [0.0, 1, 2, 3, 0, 1, 1])
    check(np.choose(x.astype(int) % 2, [rows[:3], 9]), np.choose(x.astype(int) % 2, [[3, 0, 1], 9]))


# -- values that share memory with what they are written to -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "to", "source"),
    [
        ("copyto", slice(0, None, 2), slice(6)),
        ("copyto", slice(1, 7), slice(0, None, 2)),
        ("assign", slice(1, 7), slice(0, None, 2)),
        ("assign", slice(1, None, 2), slice(2, 8)),
    ],
)
@pytest.mark.parametrize("spec", ["x", U])
@on_ranks(2)
def test_slices_of_the_tensor_itself_are_read_before_they_are_written(name, to, source, spec):
    """NumPy's own copy to other strides on one axis may read what it has written."""
    t = mc.distribute(np.arange(12.0), Layout([spec], mc.create_mesh([("x", 2)])))
    expected = np.arange(12.0)
    expected[to] = expected[source].copy()
    if name == "copyto":
        np.copyto(t[to], t[source])
    else:
        t[to] = t[source]
    check(t, expected)


@pytest.mark.parametrize("shape", [(50,), (50, 3)])
@on_ranks(3)
def test_rows_of_the_tensor_itself_travel_before_others_are_written(monkeypatch, shape):
    """In several rounds, of which each writes what has come."""
    monkeypatch.setattr(rows, "DEFAULT_SCRATCH", 400)
    mesh, random = mc.create_mesh([("x", 3)]), np.random.default_rng(3)
    whole, index = random.random(shape), random.permutation(shape[0])
    t = mc.distribute(whole, Layout(["x", U][: len(shape)], mesh)).copy()
    t[mc.distribute(index, Layout(["x"], mesh))] = t
    expected = np.empty(shape)
    expected[index] = whole
    check(t, expected)


def test_values_are_combined_where_they_are():
    """Into a whole target, by cut indices or values: no index and no value travels. Zeros keep signs."""

    def program(how, kind, place):
        mesh = mc.create_mesh([("x", 3)], devices=[0, 1, 2])
        rows, whole = Layout([Cyclic("x", 5) if place else "x"], mesh), Layout.replicated(mesh, 1 + place)
        numbers = np.arange(500)
        i, v = numbers * 7919 % 100 % 9 - place, (numbers * 31 % 11 - 3).astype(kind)
        x = -np.zeros((4, 9)[not place :], kind)
        ours, theirs = mc.distribute(i, rows), mc.distribute(v, rows)
        t, index = mc.distribute(x, whole), (slice(1, None), i) if place else i
        with mc.count() as c:
            how.at(t, (slice(1, None), ours) if place else ours, theirs)
            how.at(t, index, theirs)
            how.at(t, (slice(1, None), ours) if place else ours, 3)
        for each in (v, v, np.array(3, kind)):
            how.at(x, index, np.broadcast_to(each, x[index].shape).copy())
        check(t, x)
        assert mesh.rank is None or np.array_equal(np.signbit(t.local), np.signbit(x))
        return c.bytes

    for how in (np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin):
        for kind, place in (("i8", 0), ("f8", 1)):
            assert max(on(4, program, how, kind, place)) < 8 * 500
    for how in (np.bitwise_or, np.bitwise_and):
        assert max(on(4, program, how, "i8", 1)) < 8 * 500


@on_ranks(2)
def test_an_index_that_is_out_of_bounds_leaves_the_target():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(np.arange(3), Layout([U], mesh))
    index = mc.distribute(np.array([0, 1, 2, 3, 1, 1, 1]), Layout(["x"], mesh))
    with pytest.raises(IndexError, match=r"index 3 is out of bounds for axis 0 with size 3, at \(3,\)"):
        np.add.at(t, index, 1)
    check(t, np.arange(3))
