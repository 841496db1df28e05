"""Elements taken and written: layouts, what moves, errors; `test_numpy` compares the functions with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cuts, Cyclic, Layout, ShapeError
from meshcomm.blocks import rows
from support.gradient_cases import on
from support.indexing import check
from support.reference import on_ranks

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


def test_only_what_is_taken_moves(received):
    """Equal indices, one after the other, travel once; consecutive ones as a run."""

    def program():
        t = mc.distribute(np.arange(1000), Layout(["x"], mc.create_mesh([("x", 2)])))
        index = [700] * 20 + [*range(7, 27)]
        check(np.take(t, index), np.array(index))

    on(2, program)
    assert sum(received) == 8 * (1 + 1) + 8 * (20 + 2), "one element and where it is, 20 and where they begin and end"


def test_elements_that_stay_do_not_travel(monkeypatch):
    """A repeat by counts, indices of whole axes, and lines with their own indices."""

    def program():
        mesh = mc.create_mesh([("x", 3)])
        x = np.arange(24.0).reshape(6, 4)
        t = mc.distribute(x, Layout(["x", U], mesh))
        counts = mc.distribute(np.array([2, 0, 1, 3, 0, 1]), Layout(["x"], mesh))
        check(np.repeat(t, counts, 0), np.repeat(x, [2, 0, 1, 3, 0, 1], 0))
        check(np.take_along_axis(t, np.argsort(-t, 1), 1), x[:, ::-1])
        check(np.take(t, [3, 0], 1), x[:, [3, 0]])

    monkeypatch.setattr(rows, "fetch", None)
    monkeypatch.setattr(rows.Ranks, "exchanged", None)
    on(3, program)


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


MESSAGES = {
    "take": (lambda t, i: np.take(t, 6, 0), IndexError, "index 6 is out of bounds"),
    "take of a tensor": (lambda t, i: np.take(t, i, 1), IndexError, "index 5 is out of bounds for axis 1 with size 4"),
    "take of all": (
        lambda t, i: np.take(t, [0, -25]),
        IndexError,
        "numpy.take: index -25 is out of bounds .* size 24",
    ),
    "take of all by a tensor": (lambda t, i: np.take(t, i * 5), IndexError, "index 25 is out of bounds"),
    "take of nothing": (lambda t, i: np.take(t[:0], [0], 0, mode="clip"), IndexError, "has no elements"),
    "mode": (lambda t, i: np.take(t, 0, 0, mode="x"), ShapeError, "it is 'raise', 'wrap' or 'clip'"),
    "floats": (lambda t, i: np.take(t, 0.5, 0), TypeError, "Cannot cast"),
    "a tensor of floats": (lambda t, i: np.take(t, i * 0.5, 0), TypeError, "Cannot cast"),
    "two axes": (lambda t, i: np.take(t, 0, (0, 1)), ShapeError, "axis must be an integer"),
    "out": (lambda t, i: np.take(t, i, 0, out=t), ShapeError, r"out has shape \(6, 4\), but the result has \(3, 4\)"),
    "dtype of out": (lambda t, i: np.take(t, [0] * 6, 0, out=t.astype(int)), TypeError, "Cannot cast"),
    "plain out": (lambda t, i: np.take(t, i % 3, 0, out=np.zeros((3, 4))), TypeError, "out= must be a DTensor"),
    "along": (lambda t, i: np.take_along_axis(t, np.full((6, 1), 4), 1), IndexError, "index 4 is out of bounds"),
    "along a cut": (lambda t, i: np.take_along_axis(t, np.full((1, 4), 6), 0), IndexError, "index 6 is out of bounds"),
    "axes along": (lambda t, i: np.take_along_axis(t, i, 0), ShapeError, "as many axes"),
    "lines along": (lambda t, i: np.take_along_axis(t, t[:3].astype(int), 1), IndexError, "do not broadcast"),
    "floats along": (lambda t, i: np.take_along_axis(t, t, 0), IndexError, "integer array"),
    "put": (lambda t, i: np.put(t, i * 10, 7), IndexError, "index 50 is out of bounds"),
    "put along": (lambda t, i: np.put_along_axis(t, np.full((1, 4), 6), 7, 0), IndexError, "index 6 is out of bounds"),
    "values": (lambda t, i: np.put_along_axis(t, np.zeros((1, 4), int), [1, 2], 0), ShapeError, "be broadcast"),
    "place": (lambda t, i: np.place(t, t > 2, []), ValueError, "cannot insert from an empty array"),
    "mask": (lambda t, i: np.place(t, i > 2, 1), ShapeError, "sizes differ"),
    "kinds": (lambda t, i: np.putmask(t, t > 0, 1j * t), TypeError, "Cannot cast"),
    "copyto": (lambda t, i: np.copyto(t, 1j * t), TypeError, "Cannot cast"),
    "copyto where": (lambda t, i: np.copyto(t, 1, where=t), TypeError, "Cannot cast"),
    "copyto of a shape": (lambda t, i: np.copyto(t, i), ShapeError, "broadcast"),
    "choose": (lambda t, i: np.choose(i, [0, 1, 2, 3, i]), ValueError, "no number of one of the 5 choices"),
    "choose by floats": (lambda t, i: np.choose(t, [t]), TypeError, "Cannot cast"),
    "select": (lambda t, i: np.select([t > 1], [t, t]), ShapeError, "1 conditions and 2 choices"),
    "select by floats": (lambda t, i: np.select([t], [t]), TypeError, "should be boolean"),
    "compress": (lambda t, i: np.compress(t > 0, t), ShapeError, "one axis"),
    "compress too far": (lambda t, i: np.compress([0, 0, 0, 0, 1], t, 1), IndexError, "index 4 is out of bounds"),
    "repeat": (lambda t, i: np.repeat(t[:3], i - 1, 0), ShapeError, "repeat by -1"),
    "repeat by floats": (lambda t, i: np.repeat(t[:3], i * 0.5, 0), TypeError, "Cannot cast"),
    "delete": (lambda t, i: np.delete(t, i, 1), IndexError, "index 5 is out of bounds"),
    "delete by a mask": (lambda t, i: np.delete(t, [True], 0), ShapeError, r"a mask of shape \(1,\)"),
    "insert": (lambda t, i: np.insert(t, 7, 0, 0), IndexError, "index 7 is out of bounds for axis 0 with size 6"),
    "insert several": (lambda t, i: np.insert(t, [0, 8], 0, 0), IndexError, "out of bounds"),
    "nonzero": (lambda t, i: np.nonzero(t.sum()), ValueError, "without axes"),
    "unravel": (
        lambda t, i: np.unravel_index(i, (2, 2)),
        ValueError,
        "index 5 is out of bounds for array with size 4",
    ),
    "ravel": (lambda t, i: np.ravel_multi_index((i, i), (6, 4)), ValueError, "invalid entry 5"),
    "where": (lambda t, i: np.where(t > 0, t), ShapeError, "a condition alone"),
}


@pytest.mark.parametrize("name", MESSAGES)
@on_ranks(3)
def test_errors_are_raised_on_all_ranks_and_nothing_is_written(name):
    call, error, text = MESSAGES[name]
    mesh = mc.create_mesh([("x", 3)])
    x = np.arange(24.0).reshape(6, 4)
    t = mc.distribute(x, Layout(["x", U], mesh))
    index = mc.distribute(np.array([0, 2, 5]), Layout(["x"], mesh))
    with pytest.raises(error, match=text):
        call(t, index)
    assert int(mc.ones(3, int, Layout(["x"], mesh)).sum()) == 3, "the next call finds the ranks together"
    check(t, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, rank: np.take(t, [rank], 0),
        lambda t, rank: np.take(t, rank, 0),
        lambda t, rank: np.put(t, [rank], 1),
        lambda t, rank: np.take_along_axis(t, np.full((6, 1), rank), 1),
        lambda t, rank: np.delete(t, rank, 0),
        lambda t, rank: np.insert(t, rank, 7, 0),
        lambda t, rank: np.repeat(t, [rank] * 6, 0),
    ],
)
@on_ranks(2)
def test_plain_indices_that_differ_between_ranks(call):
    mesh = mc.create_mesh([("x", 2)])
    with pytest.raises(mc.CollectiveMismatch):
        call(mc.zeros((6, 4), int, Layout(["x", U], mesh)), mesh.rank)


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
