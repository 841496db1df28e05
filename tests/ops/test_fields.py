"""Fields of structured tensors, read, written and compared as NumPy does it."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import on

KIND = np.dtype([("a", "f8"), ("b", "i4", (2,)), ("n", "U3")])
U = mc.UNSHARDED


def particles():
    found = np.zeros((7, 3), KIND)
    found["a"], found["b"] = np.arange(21.0).reshape(7, 3), np.arange(42).reshape(7, 3, 2)
    found["n"] = np.array(list("abcdefghijklmnopqrstu")).reshape(7, 3)
    return found


def written(t, index, value):
    t[index] = value
    return t


def written_through(t, name, index, value):
    t[name][index] = value
    return t


CALLS = {
    "a field": lambda t: t["a"],
    "a field with axes": lambda t: t["b"],
    "some fields": lambda t: t[["n", "a"]],
    "a slice of a field": lambda t: t["a"][2:4, ::2],
    "a field of a slice": lambda t: t[::-2]["b"],
    "a field of an element": lambda t: t[1, 2]["a"],
    "a field, reshaped": lambda t: t["a"].reshape(-1) + t["b"].reshape(-1, 2).sum(axis=1),
    "assign to a field": lambda t: written(t, "a", 5.0),
    "assign an array to a field": lambda t: written(t, "b", np.ones((7, 3, 2))),
    "assign to some fields": lambda t: written(t, ["a", "b"], (1.5, [2, 3])),
    "assign to some fields by others": lambda t: written(t, ["a", "n"], t[["b", "n"]]["n"] == "c"),
    "assign fields by order": lambda t: written(t, ["a"], t[["a"]]),
    "assign through a field": lambda t: written_through(t, "b", np.s_[1:3, :, 1], -1),
    "assign by a mask": lambda t: written_through(t, "a", t["a"] > 10, 0),
    "equal": lambda t: t == t[::-1],
    "not equal": lambda t: t != t[2, 1],
    "equal to text": lambda t: t["n"] == "c",
    "no such field": lambda t: t["z"],
    "no such fields": lambda t: t[["a", "z"]],
    "no fields": lambda t: t["a"]["a"],
    "too many fields": lambda t: written(t, ["a", "n"], np.zeros(3, [("a", "f8")])),
}


@pytest.mark.parametrize("specs", [["x", U], [U, "x"], [mc.Cyclic("x", 2), U]])
@pytest.mark.parametrize("name", CALLS)
def test_as_numpy(name, specs):
    call = CALLS[name]
    try:
        expected = call(particles())
    except (ValueError, IndexError, KeyError, TypeError) as error:
        expected = error

    def program():
        t = mc.distribute(particles(), mc.Layout(specs, mc.create_mesh([("x", 3)])))
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                call(t)
            return
        found = call(t)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert (found.to_numpy() == expected).all()

    on(3, program)


def test_some_fields_refuse_writes():
    def program():
        t = mc.distribute(particles(), mc.Layout(["x", U], mc.create_mesh([("x", 2)])))
        with pytest.raises(ValueError, match="this is a copy, and a write would be lost"):
            t[["a", "b"]][...] = t[["a", "b"]]
        assert (t["a"].local.base is not None) == (t.local.size > 0)  # a view

    on(2, program)


def test_ranks_outside_of_the_mesh():
    def program():
        t = mc.distribute(particles(), mc.Layout(["x", U], mc.create_mesh([("x", 2)], devices=[0, 2])))
        t["a"] = 3
        assert (t["b"].shape, (t == t).dtype) == ((7, 3, 2), bool)

    on(3, program)
