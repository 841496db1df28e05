"""Errors keep their class and their substance, however their prose is written: what, where, both values, the rule."""

import builtins
import json
from pathlib import Path

import pytest

import meshcomm as mc
from support.bad_calls import RUNNERS, says

ENTRIES = json.loads((Path(__file__).parent.parent / "data" / "errors.json").read_text())


def classes(names):
    return [getattr(mc, name, None) or getattr(builtins, name) for name in names.split()]


def complaints(entry, outcomes):
    """Yield what is wrong with the *outcomes* of a bad call, one on each rank."""
    expected = classes(entry["error"])
    if len({kind for kind, _ in outcomes}) > 1:
        yield f"ranks raise different things: {outcomes}"
    for kind, message in outcomes:
        if kind is None:
            yield "nothing is raised"
        elif kind not in expected and not (
            kind.__name__[0] == "_" and all(issubclass(kind, each) for each in expected)
        ):
            yield f"{kind.__name__} is raised, not {entry['error']}: {message}"
        else:
            lost = [fact for fact in entry["facts"] if not says(message, fact)]
            if lost:
                yield f"{lost} is not in: {message}"


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["call"] for entry in ENTRIES])
def test_errors_say_what_where_both_values_and_the_rule(entry):
    found = list(complaints(entry, RUNNERS[entry["on"]](entry["call"])))
    assert not found, "\n".join(found)


def test_the_table_is_long_and_says_something_of_each():
    assert len(ENTRIES) >= 180
    assert len({entry["call"] for entry in ENTRIES}) == len(ENTRIES)
    assert all(entry["facts"] for entry in ENTRIES)
    raised = {name for entry in ENTRIES for name in entry["error"].split()}
    assert {"MeshError", "LayoutError", "ShapeError", "DTypeError", "GroupError", "CollectiveMismatch"} <= raised


@pytest.mark.parametrize(
    ("outcomes", "complaint"),
    [
        ([(mc.ShapeError, "axis 0 of shape [7, 4]")], None),
        ([(mc.ShapeError, "axis 0")], "not in"),
        ([(mc.ShapeError, "axis 0 of shape (17, 4)")], "not in"),
        ([(mc.MeshError, "axis 0 of shape (7, 4)")], "MeshError is raised"),
        ([(ValueError, "axis 0 of shape (7, 4)")], "ValueError is raised"),
        ([(None, "")], "nothing"),
        ([(mc.ShapeError, "axis 0 of shape (7, 4)"), (mc.MeshError, "axis 0 of shape (7, 4)")], "different"),
    ],
)
def test_lost_substance_is_seen(outcomes, complaint):
    found = list(complaints({"error": "ShapeError", "facts": ["(7, 4)", "0"]}, outcomes))
    assert any(complaint in text for text in found) if complaint else not found


def test_errors_are_a_family():
    for name in ("MeshError", "LayoutError", "ShapeError", "GroupError", "DTypeError"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), ValueError)
    assert issubclass(mc.DTypeError, TypeError)
    for name in ("CollectiveMismatch", "CollectiveTimeout"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), RuntimeError)
