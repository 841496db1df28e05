"""Forms and errors of astype, clip and round; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DTypeError, Layout, ShapeError
from support.reference import numbered, on_ranks
from support.shape_cases import U, check


@on_ranks(2)
def test_forms():
    mesh = mc.create_mesh([("x", 2)])
    x = numbered((5, 3)) - 4
    t = mc.distribute(x, Layout(["x", U], mesh))
    assert t.astype("i8", copy=False) is t
    copy = t.astype("i8")
    assert not np.may_share_memory(copy.local, t.local)
    check(t.astype("f4", casting="same_kind"), x.astype("f4"))
    check(np.astype(t, "c16"), x.astype("c16"))
    assert not np.may_share_memory(np.round(t).local, t.local)
    check(np.around(t, -1), np.around(x, -1))
    check(t.clip(0, 3), x.clip(0, 3))
    check(t.clip(max=3), x.clip(max=3))
    check(np.clip(t, [0, 1, 2], 5), np.clip(x, [0, 1, 2], 5))
    check(np.clip(x, t, 100), np.clip(x, x, 100))
    check(np.clip(2, t, 100), np.clip(2, x, 100))
    out = mc.zeros((5, 3), "f8", Layout([U, "x"], mesh))
    assert np.clip(t, 0, 1, out=out) is out
    check(out, np.clip(x, 0, 1).astype("f8"))
    assert np.round(t, out=out) is out
    check(out, x.astype("f8"))


@on_ranks(2)
def test_errors():
    t = mc.distribute(numbered((6, 4)), Layout(["x", U], mc.create_mesh([("x", 2)])))
    for call, error, text in [
        (lambda: t.astype("i1", casting="safe"), TypeError, "Cannot cast"),
        (lambda: t.astype(object), DTypeError, "cannot be sharded"),
        (lambda: np.clip(t, 0, 1, out=np.zeros((6, 4))), TypeError, "out= must be a DTensor"),
        (lambda: np.clip(t, 0, 1, where=True), TypeError, "takes no where="),
        (lambda: np.clip(t, np.zeros(5), None), ShapeError, "could not be broadcast"),
        (lambda: np.round(t, out=t.local), TypeError, "out= must be a DTensor"),
    ]:
        with pytest.raises(error, match=text):
            call()
