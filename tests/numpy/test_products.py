"""Products of tensors: results in out=, numbers, and what they refuse; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, integers, layout_of, on, on_a_mesh, tensor_of

U = mc.UNSHARDED


def compare(found, expected, about):
    try:
        check(found, expected)
    except AssertionError as error:
        raise AssertionError(f"{about}: {error}") from None


@with_seeds(on_a_mesh, sampled(range(40), 6))
def test_out(random, mesh, seed):
    a, b = tensor_of(random, mesh, (4, 3)), tensor_of(random, mesh, (3, 5))
    for function, shape, dtype in [
        (np.dot, (4, 5), "f8"),
        (np.matmul, (4, 5), "f4"),
        (np.outer, (12, 15), "c16"),
        (lambda *pair, out: np.linalg.multi_dot([*pair, pair[1].T], out=out), (4, 3), "f8"),
        (lambda *pair, out: np.dot(pair[0], 2.0, out=out), (4, 3), "f8"),
    ]:
        out = mc.zeros(shape, dtype, layout_of(random, mesh, shape))
        layout = out.layout
        assert function(a[0], b[0], out=out) is out
        assert out.layout is layout
        compare(out, function(a[1], b[1], out=np.zeros(shape, dtype)), function)
    for shape, dtype in (((4, 5), "f4"), ((5, 5), "f8")):
        wrong = mc.zeros(shape, dtype, layout_of(random, mesh, shape))
        with pytest.raises(ValueError, match="out has"):
            np.dot(a[0], b[0], out=wrong)
    with pytest.raises(TypeError, match="out= must be a DTensor"):
        np.dot(a[0], b[0], out=np.zeros((4, 5)))


@on_ranks(2)
def test_numbers_methods_and_kinds():
    mesh = mc.create_mesh([("x", 2)])
    x = integers(3, 3, dtype="f4")
    t = mc.distribute(x, Layout(["x", U], mesh))
    for function in (np.dot, np.inner, np.outer, np.kron):
        compare(function(t, 2.0), function(x, 2.0), function)  # a number is a float64, as for NumPy
        compare(function(2j, t), function(2j, x), function)
    compare(t.dot([1, 2, 3]), x.dot([1, 2, 3]), "t.dot")
    out = mc.zeros_like(t)
    assert t.dot(t.T, out=out) is out
    days = mc.distribute(np.arange(3).astype("m8[D]"), Layout(["x"], mesh))
    compare(np.outer(days, t[0]).astype("i8"), np.outer(np.arange(3), x[0]).astype("i8"), "outer of durations")


def test_vectors_of_2_components():
    def program():
        t = mc.distribute(np.array([np.inf, -0.0]), Layout(["x"], mc.create_mesh([("x", 2)])))
        compare(np.cross(t, [1.0, 1, 2]), [-0.0, -np.inf, np.inf], "no product with a component that is not there")

    with pytest.warns(DeprecationWarning, match="2-dimensional vectors are deprecated") as found:
        on(2, program)
    assert {each.filename for each in found} == {__file__}
