"""Products of tensors: results in out=, numbers, and what they refuse; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from support.gradient_cases import on
from support.operands import check
from support.random_tensors import integers, layout_of, on_a_mesh, tensor_of
from support.reference import on_ranks
from support.sampling import sampled, with_seeds

U = mc.UNSHARDED


def compare(found, expected, about):
    try:
        check(found, np.asarray(expected), exact=np.testing.assert_array_equal)
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


WRONG = [
    (lambda t: np.dot(t, t), ValueError, "numpy.dot of shapes .*axis 1 of the first has 3 elements"),
    (lambda t: np.inner(t, t.T), ValueError, "must be equal"),
    (lambda t: np.vdot(t, t[0]), ValueError, "the first has 6 elements and the second 3"),
    (lambda t: np.tensordot(t, t, 3), IndexError, "axis -3 is out of range"),
    (lambda t: np.tensordot(t, t, ([0], [7])), IndexError, "axis 7 is out of range"),
    (lambda t: np.tensordot(t, t, ([0, 0], [1, 1])), ValueError, "each of them once"),
    (lambda t: np.tensordot(t, t, ([0], [0, 1])), ValueError, "are no pairs"),
    (lambda t: np.tensordot(t, t, ([0], [1], [0])), ValueError, "3 entries"),
    (lambda t: np.tensordot(t, t, 1.0), TypeError, "integer"),
    (lambda t: np.cross(t, t, axisc=4), IndexError, "axisc"),
    (lambda t: np.cross(t, 3.0), ValueError, "zero dimension"),
    (lambda t: np.cross(t, t[:, :1]), ValueError, "must be 2 or 3"),
    (lambda t: np.cross(t, np.ones((4, 3))), ValueError, "could not be broadcast"),
    (lambda t: np.outer(t, None), TypeError, "not NoneType"),
    (lambda t: np.linalg.multi_dot([t]), ValueError, "two matrices or more, not 1"),
    (lambda t: np.linalg.multi_dot([t, t[0], t]), np.linalg.LinAlgError, r"operand 1 has shape \(3,\)"),
    (lambda t: np.linalg.matrix_power(t, 2), np.linalg.LinAlgError, "square"),
    (lambda t: np.linalg.matrix_power(t[:, :2], 2.0), TypeError, "the exponent must be an integer"),
    (lambda t: np.linalg.matrix_power(t[:, :2] * 0, -1), np.linalg.LinAlgError, "Singular matrix"),
    (lambda t: np.matmul(t, t.T, axis=1), TypeError, "axis"),
    (lambda t: np.matmul(t, t.T, dtype="i4"), TypeError, "Cannot cast"),
    (lambda t: np.matmul(t, t.T, out=mc.zeros((2, 2), int, t.layout)), TypeError, "Cannot cast"),
    (lambda t: np.matmul(t, t.T, out=mc.zeros((2, 3), float, t.layout)), ValueError, "out has shape"),
    (lambda t: np.vecdot(t, t.T), ValueError, "numpy.vecdot of shapes"),
    (lambda t: np.vecdot(t, t[:, :1]), ValueError, "must be equal"),
    (lambda t: np.vecdot(t, 2.0), ValueError, "not have enough dimensions"),
    (lambda t: np.vecdot(t, t, axis=3), IndexError, "axis 3"),
    (lambda t: np.vecdot(t, np.ones((3, 3))), ValueError, "einsum"),
    (lambda t: np.matvec(t, t.T), ValueError, "must be equal"),
    (lambda t: np.linalg.outer(t, t), ShapeError, "takes vectors"),
    (lambda t: np.linalg.cross(t[:, :2], t[:, :2]), ShapeError, r"not shape \(2, 2\) along axis -1"),
]


@pytest.mark.skipif(not hasattr(np, "vecmat"), reason="it needs NumPy 2.2")
@on_ranks(2)
def test_errors():
    t = mc.distribute(integers(2, 3), Layout(["x", U], mc.create_mesh([("x", 2)])))
    for call, error, text in WRONG:
        with pytest.raises(error, match=text):
            call(t)
    compare(np.dot(t, t.T), np.dot(integers(2, 3), integers(2, 3).T), "the ranks go on")
