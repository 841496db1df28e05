"""Mistakes that people make by nature meet an answer that says what to do.

Each row of tests/data/mistakes.json is what a user writes in a program of four ranks, the class of the error, and
words that its message has. The names are those of `program`. No message has the elements of a tensor in it.
"""

import builtins
import copy
import importlib
import json
import math
import pickle
import sys

import numpy as np
import pytest

import meshcomm as mc
from support.paths import DATA

TABLE = json.loads((DATA / "mistakes.json").read_text())


def with_rules(names):
    """Return a map without a mesh, with rules of these names."""
    rules = mc.LayoutMap()
    rules.update({name: mc.Layout([], mc.Mesh(range(4), {"x": 4})) for name in names})
    return rules


def program(written):
    """Return the error that what is *written* raises on this rank."""
    mesh = mc.create_mesh([("rows", 2), ("columns", 2)])
    other = mc.create_mesh([("x", 4)])
    array = np.arange(24.0).reshape(6, 4) + 0.125
    rows, columns = mc.Layout(["rows", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "columns"], mesh)
    names = {"mesh": mesh, "rows": rows, "columns": columns, "array": array, "U": mc.UNSHARDED}
    names |= {"t": mc.distribute(array, rows), "u": mc.distribute(array, columns), "one": mc.Layout(["rows"], mesh)}
    names |= {"on_other": mc.distribute(array, mc.Layout(["x", mc.UNSHARDED], other)), "with_rules": with_rules}
    names |= {"mc": mc, "np": np, "math": math, "pickle": pickle, "json": json}
    try:
        eval(written, names)
    except Exception as error:
        return error
    return None


def test_a_mistake_meets_a_good_answer():
    found = []
    for row in TABLE:
        expected = getattr(mc, row["error"], None) or getattr(builtins, row["error"])
        with mc.simulate(4) as world:
            errors = world.run(program, row["written"])
        for error in errors:
            message = str(error)
            right = isinstance(error, expected) and all(words in message for words in row["words"])
            if not right or ".125" in message or len(message) >= 500:  # .125: an element
                found.append(f"{row['name']}: {error!r}")
    assert not found, "\n".join(found)


def test_the_table_is_long_and_each_mistake_is_one():
    assert len(TABLE) >= 80
    assert len({row["written"] for row in TABLE}) == len({row["name"] for row in TABLE}) == len(TABLE)


def test_what_is_missing_is_missing_for_those_who_probe():
    t = mc.zeros((4,), "f4", mc.Layout(["x"], mc.Mesh(range(1), {"x": 1})))
    for name in (
        "numpy",
        "data",
        "__array_interface__",
        "__cuda_array_interface__",
        "_repr_latex_",
        "_node",
        "nothing",
    ):
        assert not hasattr(t, name)
        assert name not in dir(t)
    assert not hasattr(mc, "gather")
    assert not hasattr(mc, "__wrapped__")
    assert str(copy.copy(t).local.tolist()) == "[0.0, 0.0, 0.0, 0.0]"
    with pytest.raises(AttributeError) as caught:
        _ = t.numpy
    assert caught.value.name == "numpy"


def test_python_prints_no_second_suggestion(capsys):
    t = mc.zeros((4,), "f4", mc.Layout(["x"], mc.Mesh(range(1), {"x": 1})))
    for written in ("t.locla", "t.relayuot", "mc.relyout", "mc.create_mehs", "mc.fft.ffft"):
        with pytest.raises(AttributeError) as caught:
            eval(written, {"t": t, "mc": mc})
        sys.__excepthook__(caught.type, caught.value, None)
        assert capsys.readouterr().err.lower().count("did you mean") == 1, written


def test_dir_has_the_public_names_only():
    assert set(dir(mc)) == {*mc._home_of, "__version__", *mc._MODULES}
    for name in mc._MODULES:
        module = importlib.import_module(f"meshcomm.{name}")
        assert dir(module) == sorted(module.__all__)
        assert all(hasattr(module, each) for each in dir(module))
    assert not hasattr(mc.linalg, "lapack")
    assert dir(mc.linalg.scalapack) == sorted(mc.linalg.scalapack.__all__)
