"""Fields of structured tensors, read, written and compared as NumPy does it."""

import numpy as np
import pytest

import meshcomm as mc
from support.numpy_law import alternatives, outcome
from support.tensors import check, on

KIND = np.dtype([("a", "f8"), ("b", "i4", (2,)), ("n", "U3")])
U = mc.UNSHARDED


def particles():
    found = np.zeros((7, 3), KIND)
    found["a"], found["b"] = np.arange(21.0).reshape(7, 3), np.arange(42).reshape(7, 3, 2)
    found["n"] = np.array(list("abcdefghijklmnopqrstu")).reshape(7, 3)
    return found


CALLS = (
    "t[{'a'|'b'|['n', 'a']|'z'|['a', 'z']}]",
    "t['a'][{2:4, ::2|'a'}]",
    "t[::-2]['b']",
    "t[1, 2]['a']",
    "t['a'].reshape(-1) + t['b'].reshape(-1, 2).sum(axis=1)",
    "t[{'a'] = 5.0|'b'] = np.ones((7, 3, 2))|['a', 'b']] = (1.5, [2, 3])|['a']] = t[['a']]}; t",
    "t[['a', 'n']] = {t[['b', 'n']]['n'] == 'c'|np.zeros(3, [('a', 'f8')])}; t",
    "t['b'][1:3, :, 1] = -1; t",
    "t['a'][t['a'] > 10] = 0; t",
    "t == t[::-1]",
    "t != t[2, 1]",
    "t['n'] == 'c'",
)


@pytest.mark.parametrize("specs", [["x", U], [U, "x"], [mc.Cyclic("x", 2), U]])
@pytest.mark.parametrize("call", [call for text in CALLS for call in alternatives(text)])
def test_as_numpy(call, specs):
    expected = outcome(call, {"t": particles()})

    def program():
        t = mc.distribute(particles(), mc.Layout(specs, mc.create_mesh([("x", 3)])))
        found = outcome(call, {"t": t})
        if isinstance(expected, Exception):
            assert isinstance(found, type(expected))
            return
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert (found.to_numpy() == expected).all()

    on(3, program)


def test_some_fields_are_a_view():
    def program():
        x = particles()
        t = mc.distribute(x, mc.Layout(["x", U], mc.create_mesh([("x", 2)])))
        for each in (t, x):
            some = each[["a", "b"]]
            each["b"] = 4
            some["a"] = 3
            each[["a", "b"]][1:] = some[:-1]
            some[0] = some[-1]
        check(t, x)
        check(some.refresh() if isinstance(some, mc.DTensor) else t[["a", "b"]], x[["a", "b"]])
        assert (t["a"].local.base is not None) == (t.local.size > 0)  # a view

    on(2, program)


def test_ranks_outside_of_the_mesh():
    def program():
        t = mc.distribute(particles(), mc.Layout(["x", U], mc.create_mesh([("x", 2)], devices=[0, 2])))
        t["a"] = 3
        assert (t["b"].shape, (t == t).dtype) == ((7, 3, 2), bool)

    on(3, program)
