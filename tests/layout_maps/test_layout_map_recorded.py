"""LayoutMap: every recorded lookup, the cases of tf_keras' own test, and where we differ."""

import re

import pytest

from meshcomm import MATCH, Layout, LayoutMap
from meshcomm.errors import LayoutError, MeshError
from support.departures import departures, refuses
from support.layout_map_cases import GOLDEN, LAYOUTS, MESH, U_U, X_U, U, X, golden_map, small

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


def test_len_and_iter():
    m = LayoutMap()
    assert len(m) == 0
    m["dense/kernel"], m["dense/bias"] = X_U, X
    assert len(m) == 2
    assert list(m.keys()) == ["dense/kernel", "dense/bias"] == list(m)
    assert list(m.values()) == [X_U, X]
    assert list(m.items()) == [("dense/kernel", X_U), ("dense/bias", X)]


# -- departures -------------------------------------------------------------------------------------------------------


def atomic_update():
    m = small()
    refuses(LayoutError, m.update, [("new", X), ("dense/bias", X)], says="already exist")
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
    "a key that is no string": lambda: refuses(TypeError, stored_pattern, 3, says="not 3, a int"),
    "a compiled pattern as a key": lambda: [*stored_pattern(re.compile("Up", re.IGNORECASE))] == ["(?i)Up"],
    "a pattern that is no regular expression": lambda: refuses(
        LayoutError, stored_pattern, "a(", says=r"'a\(' is not a regular expression: missing \)"
    ),
    "a layout with MATCH": lambda: refuses(
        LayoutError, LayoutMap().__setitem__, "a", Layout([MATCH], MESH), says="MATCH|'match'"
    ),
    "LayoutMap(something that is no mesh)": lambda: refuses(MeshError, LayoutMap, "X=2", says="not 'X=2'"),
    "m.copy()": lambda: small().copy() == small(),
}


@pytest.mark.parametrize("case", PROOFS)
def test_departure(case):
    assert PROOFS[case]()


def test_departures_are_documented():
    assert departures("LayoutMap") == list(PROOFS)
