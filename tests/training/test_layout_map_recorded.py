"""LayoutMap: every recorded lookup, the cases of tf_keras' own test, and where we differ."""

import re

import pytest

from meshcomm.errors import LayoutError, MeshError
from meshcomm.layouts.layout import MATCH, Layout
from meshcomm.training.layout_map import LayoutMap
from support.layout_map_cases import GOLDEN, LAYOUTS, MESH, U_U, X_U, U, X, golden_map, small
from support.paths import DOCS

DOC = DOCS / "layout_map.md"


def departures(title):
    """The first cells of the table of departures below *title*."""
    section = DOC.read_text().partition(f"## Departures from TensorFlow: {title}")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]


# -- recorded answers of tf_keras -------------------------------------------------------------------------------------


def test_all_is_recorded():
    assert GOLDEN["n"] == len(GOLDEN["lookups"]) == 51


@pytest.mark.parametrize("case", GOLDEN["lookups"], ids=lambda case: f"{case['map']}-{case['key']!r}")
def test_lookup(case):
    m = golden_map(case["map"])
    assert m[case["key"]] is LAYOUTS.get(case["result"])
    assert m.get(case["key"]) is LAYOUTS.get(case["get"])


@pytest.mark.parametrize("mode", ["search", "fullmatch"])
@pytest.mark.parametrize("case", GOLDEN["lookups"], ids=lambda case: f"{case['map']}-{case['key']!r}")
def test_lookup_of_keras_3(case, mode):
    m, key = golden_map(case["map"], mode), case["key"]
    rules = case["python_re"][f"{mode}_all"]
    if len(rules) > 1 and key not in m:
        with pytest.raises(LayoutError) as raised:
            m[key]
        assert f"Path {key!r} matches multiple layout specification keys: {rules}" in str(raised.value)
    else:
        expected = key if key in m else rules[0] if rules else None
        assert m[key] is (None if expected is None else dict(m.items())[expected])


def test_example_of_the_page():
    m = LayoutMap(mesh=None)
    layout_1d, layout_2d, layout_4d = X, X_U, LAYOUTS["u_u_u_x"]
    m[".*dense.*kernel"] = layout_2d
    m[".*dense.*bias"] = layout_1d
    m[".*conv2d.*kernel"] = layout_4d
    m[".*conv2d.*bias"] = layout_1d
    assert m["dense_1.kernel"] == layout_2d
    assert m["dense_1.bias"] == layout_1d
    assert m["dense_2.kernel"] == layout_2d
    assert m["dense_2.bias"] == layout_1d
    assert m["my_model/conv2d_123/kernel"] == layout_4d
    assert m["my_model/conv2d_123/bias"] == layout_1d


# -- tf_keras' layout_map_test.py -------------------------------------------------------------------------------------


def test_add():
    m = LayoutMap()
    m["dense/kernel"] = X_U
    m["dense/bias"] = X
    assert len(m) == 2
    with pytest.raises(LayoutError, match=r"dense/kernel already exist in the LayoutMap with value Layout"):
        m["dense/kernel"] = X
    with pytest.raises(LayoutError, match=r"\[1, 2\] should be a meshcomm.Layout type, got <class 'list'>"):
        m["conv.kernel"] = [1, 2]
    assert dict(m) == {"dense/kernel": X_U, "dense/bias": X}


def test_get():
    m = LayoutMap()
    m["dense/kernel"], m["dense/bias"] = X_U, X
    m["dense.*kernel"], m["dense.*bias"], m[".*bias"] = U_U, U, X
    assert m["dense/kernel"] is X_U
    assert m["dense/bias"] is X
    assert m["dense_2/kernel"] is U_U
    assert m["dense_2/bias"] is U
    assert m["conv2d/kernel"] is None
    assert m["conv2d/bias"] is X


def test_delete():
    m = LayoutMap()
    m["dense/kernel"], m["dense/bias"] = X_U, X
    assert m.pop("dense/kernel") is X_U
    with pytest.raises(KeyError, match=r"\.\*bias"):
        m.pop(".*bias")
    with pytest.raises(KeyError):
        del m["dense/b"]
    del m["dense/bias"]
    assert len(m) == 0
    assert m["dense/bias"] is None


def test_len():
    m = LayoutMap()
    assert len(m) == 0
    m["dense/kernel"], m["dense/bias"] = X_U, X
    assert len(m) == 2


def test_iter():
    m = LayoutMap()
    m["dense/kernel"], m["dense/bias"] = X_U, X
    assert list(m.keys()) == ["dense/kernel", "dense/bias"] == list(m)
    assert list(m.values()) == [X_U, X]
    assert list(m.items()) == [("dense/kernel", X_U), ("dense/bias", X)]


# -- departures -------------------------------------------------------------------------------------------------------


def refuses(error, says, function, *args):
    with pytest.raises(error, match=says):
        function(*args)
    return True


def atomic_update():
    m = small()
    refuses(LayoutError, "already exist", m.update, [("new", X), ("dense/bias", X)])
    return "new" not in m


def stored_pattern(pattern):
    m = LayoutMap()
    m[pattern] = X
    return m


PROOFS = {
    "key in m": lambda: "dense_2/kernel" not in small() and "dense/kernel" in small() and 3 not in small(),
    "m.get(key, default)": lambda: small().get("conv", "d") == "d" and small().get("dense_2/kernel", X) is U_U,
    "m.pop(key, default)": lambda: small().pop("dense_2/kernel", None) is None,
    "m.setdefault(key, layout)": lambda: (m := small()).setdefault("conv", U) is U is m["conv"],
    "m.update(rules) with a duplicate": atomic_update,
    "(key, layout) in m.items()": lambda: ("dense_2/kernel", U_U) not in small().items(),
    "a key that is no string": lambda: refuses(TypeError, "not 3, a int", stored_pattern, 3),
    "a compiled pattern as a key": lambda: [*stored_pattern(re.compile("Up", re.IGNORECASE))] == ["(?i)Up"],
    "a pattern that is no regular expression": lambda: refuses(
        LayoutError, r"'a\(' is not a regular expression: missing \)", stored_pattern, "a("
    ),
    "a layout with MATCH": lambda: refuses(
        LayoutError, "MATCH|'match'", LayoutMap().__setitem__, "a", Layout([MATCH], MESH)
    ),
    "LayoutMap(something that is no mesh)": lambda: refuses(MeshError, "not 'X=2'", LayoutMap, "X=2"),
    "m.copy()": lambda: small().copy() == small(),
}


@pytest.mark.parametrize("case", PROOFS)
def test_departure(case):
    assert PROOFS[case]()


def test_departures_are_documented():
    assert departures("LayoutMap") == list(PROOFS)
