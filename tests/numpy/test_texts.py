"""Texts: of Python beside tensors of texts, and where a tensor of numbers has no use for them."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.tensors import on

TEXTS = np.array(["a", "bb", "a", "c"])


def here(array):
    return mc.distribute(array, Layout(["x"], mc.create_mesh([("x", 2)])))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s == "a",
        lambda s: s != "bb",
        lambda s: s < "b",
        lambda s: s[0] == "a",
        lambda s: np.strings.startswith(s, "a"),
        lambda s: np.where(s == "a", "first", "other"),
        lambda s: np.where(s == "a", s, "other"),
    ],
)
def test_a_text_of_python_is_an_operand(call):
    expected = call(TEXTS)
    for found in on(2, lambda: np.asarray(call(here(TEXTS)))):
        assert found.dtype == np.asarray(expected).dtype
        assert found.tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("value", [["x"], [["x"]], np.array("x"), np.array(["x"])])
def test_all_ranks_refuse_a_text_for_a_number(value):
    def program():
        t = here(np.arange(4.0))
        with pytest.raises(ValueError, match="could not convert"):
            t[0] = value
        return t.to_numpy().tolist()

    assert on(2, program) == [[0, 1, 2, 3]] * 2


def test_a_variable_is_an_out():
    def program():
        t = here(np.arange(4.0))
        v = mc.Variable(np.zeros(4), layout=t.layout)
        assert np.add(t, 1, out=v) is v
        sums = v.value.to_numpy().tolist()
        np.clip(t, 1, 2, out=v)
        return sums, v.value.to_numpy().tolist()

    assert on(2, program)[0] == ([1, 2, 3, 4], [1, 1, 2, 2])
