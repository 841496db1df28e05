"""LayoutMap: the contract of a dict, its report, and distributing a tree of arrays."""

import pickle
import re
import time
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import UNSHARDED, Layout, LayoutMap, layout_map_scope
from meshcomm.errors import CollectiveMismatch, LayoutError, MeshError
from support.departures import refuses
from support.layout_map_cases import MESH, X_U, U, X, golden_map, small
from support.patience import cpu_factor
from support.reference import on_ranks
from support.tensors import on

# -- the contract of a dict -------------------------------------------------------------------------------------------


def test_get_default_mesh():
    assert LayoutMap(MESH).get_default_mesh() is MESH
    assert LayoutMap().get_default_mesh() is None


def test_popitem_takes_the_first():
    m = small()
    assert m.popitem() == ("dense/kernel", X_U)
    m.clear()
    assert len(m) == 0
    assert m["dense/bias"] is None
    with pytest.raises(KeyError):
        m.popitem()


def test_setdefault():
    m = small()
    assert m.setdefault("dense/kernel", U) is X_U
    assert m.setdefault("dense_2/kernel", X) is X is m["dense_2/kernel"]
    with pytest.raises(LayoutError, match=r"None should be a meshcomm\.Layout"):
        m.setdefault("conv2d/kernel")
    assert "conv2d/kernel" not in m


class Keyed:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return {"a": X, "b": U}[key]


@pytest.mark.parametrize("rules", [{"a": X, "b": U}, [("a", X), ("b", U)], iter([("a", X), ("b", U)]), Keyed()])
def test_update(rules):
    m = LayoutMap()
    m.update(rules, c=X_U)
    assert list(m.items()) == [("a", X), ("b", U), ("c", X_U)]
    m.update()
    assert len(m) == 3


@pytest.mark.parametrize(
    ("rules", "kwds"),
    [
        ([("a", X), ("dense/bias", X)], {}),
        ([("a", X), ("a", X)], {}),
        ([("a", X), ("b(", X)], {}),
        ([("a", X), ("b", None)], {}),
        ([("a", X), (3, X)], {}),
        ([("a", X)], {"a": X}),
        ([("a", X), "bcd"], {}),
        (3, {}),
    ],
)
def test_update_applies_all_or_nothing(rules, kwds):
    m = small()
    with pytest.raises(LayoutError):
        m.update(rules, **kwds)
    assert m == small()
    assert m["a"] is None


def test_a_key_added_again_comes_last():
    m = LayoutMap()
    m.update({"a.*": X, "ab.*": U})
    assert m["abc"] is X
    m["a.*"] = m.pop("a.*")
    assert m["abc"] is U


def test_equality_and_copies():
    m = small()
    assert m == dict(m.items()) == m
    assert m == m.copy()
    assert m.copy().mode == "match"
    assert LayoutMap(MESH, "search").copy().get_default_mesh() is MESH
    reordered = LayoutMap(MESH)
    reordered.update(reversed(list(m.items())))
    assert m == reordered
    copied = m.copy()
    del copied["dense/bias"]
    assert m != copied
    assert m["dense/bias"] is X
    assert m != 3
    assert (m == [1]) is False
    with pytest.raises(TypeError):
        hash(m)


def test_repr():
    m = LayoutMap(MESH)
    m["a"] = X
    assert repr(m) == f"LayoutMap({MESH!r}, 'match': {{'a': ['X']}})"


@pytest.mark.parametrize("key", [3, None, b"a", ["a"], re.compile(b"a")])
def test_keys_of_other_types(key):
    m = small()
    for use in (m.__getitem__, m.get, m.layout_for, lambda key: m.__setitem__(key, X)):
        with pytest.raises(LayoutError, match="a key of a LayoutMap is a str"):
            use(key)
        with pytest.raises(TypeError):
            use(key)
    assert key not in m
    with pytest.raises(KeyError):
        m.pop(key)


def test_strings_of_other_types_are_keys():
    m = LayoutMap()
    m[np.str_("a.*")] = X
    assert type(next(iter(m))) is str
    assert m[np.str_("ab")] is X


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LayoutMap(mode="find"), "mode 'find'; it must be one of match, search, fullmatch"),
        (lambda: layout_map_scope({}), r"layout_map_scope takes a LayoutMap, not \{\}"),
        *((lambda names=names: LayoutMap().report(names), "") for names in ("abc", [("a", 1, 2)], [3], {3: 4})),
        (
            lambda: LayoutMap().distribute({"a": np.ones(2)}),
            "no rule of the LayoutMap matches 'a', and the map has no",
        ),
        (lambda: LayoutMap().distribute({"a": np.ones(2)}, root=0), "a LayoutMap must have a mesh"),
    ],
)
def test_calls_that_are_refused(call, says):
    refuses(LayoutError, call, says=says)


def test_layout_for():
    m = LayoutMap(MESH)
    m[".*kernel"] = X_U
    assert m.layout_for("d.kernel", 2) is m.layout_for("d.kernel") is X_U
    assert m.layout_for("d.bias", 1) == Layout.replicated(MESH, 1)
    assert m.layout_for("d.bias") is None
    assert LayoutMap().layout_for("d.bias", 1) is None
    with pytest.raises(LayoutError, match=r"'d.kernel' has 1 axis, but its rule '\.\*kernel' .* 2 axes"):
        m.layout_for("d.kernel", 1)


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_patterns_of_another_engine_take_linear_time():
    re2 = pytest.importorskip("re2")
    mesh = mc.Mesh(range(2), {"x": 2})
    layout, other = mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh)
    m = LayoutMap(mesh)
    m[re2.compile("(a+)+$")] = layout
    m["a"] = other
    begin = time.process_time()
    assert m["a" * 5000 + "b"] is other
    assert time.process_time() - begin < cpu_factor()
    assert (m["aa"], list(m), "(a+)+$" in m) == (layout, ["(a+)+$", "a"], True)
    assert pickle.loads(pickle.dumps(m))["aa"] == layout
    with pytest.raises(LayoutError, match="already exist"):
        m["(a+)+$"] = layout


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (re.compile("Up"), "Up"),
        (re.compile("Up", re.IGNORECASE), "(?i)Up"),
        (re.compile("Up", re.IGNORECASE | re.DOTALL), "(?is)Up"),
        (re.compile("U p", re.VERBOSE | re.ASCII), "(?ax)U p"),
        (re.compile("(?i)u.", re.DOTALL), "(?s)(?i)u."),
        (re.compile("U p # (", re.VERBOSE), "(?x)U p # ("),
    ],
)
def test_compiled_patterns_are_stored_as_text(key, text):
    m = LayoutMap()
    m[key] = X
    assert list(m) == [text]
    assert key in m
    assert m["Upper"] is X
    assert (m["upper"] is X) == bool(key.flags & re.IGNORECASE)
    with pytest.raises(LayoutError, match="already exist"):
        m[text] = X
    del m[key]
    assert len(m) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a(b", r"'a\(b' is not a regular expression: missing \), unterminated subpattern at position 1"),
        ("(?<=a|ab)c", "is not a regular expression: look-behind requires fixed-width pattern"),
        ("(?a)(?u)x", "is not a regular expression: ASCII and UNICODE flags are incompatible"),
        ("a{1,99999999999999999999}", "is not a regular expression: the repetition number is too large"),
        ("(" * 5000 + ")" * 5000, "is not a regular expression: "),
    ],
    ids=lambda text: text[:20],
)
def test_what_re_refuses_is_an_error_of_ours(text, says):
    m = small()
    with pytest.raises(LayoutError, match=says):
        m[text] = X
    assert m == small()


@pytest.mark.parametrize("mode", ["match", "search", "fullmatch"])
@pytest.mark.parametrize(
    "text",
    [
        *(r"(d\d)\.\1", "(d)?(?(1)1|c)", "(?>d+)1.*", "d++1", "^(?!.*embed).*kernel$"),
        *("(?i).*KERNEL", "1.k", "", "d1|d1.*"),
    ],
)
def test_any_pattern_matches_what_re_matches(text, mode):
    m = LayoutMap(mode=mode)
    m[text] = X
    for name in ("d1.kernel", "d1.d1", "d1.d2", "embed.kernel", "1", "1.k", "d1", "c", "a\nd1.kernel", ""):
        expected = getattr(re, mode)(text, name) is not None or name == text
        for _ in range(2):  # again, from what is remembered
            assert (m[name] is X) == expected, name


def test_answers_follow_the_rules():
    m = LayoutMap()
    for change, layout in [
        (lambda: m.update({".*l": X}), X),
        (lambda: m.update({"kernel": U}), U),
        (lambda: m.pop("kernel"), X),
        (lambda: m.__delitem__(".*l"), None),
        (lambda: m.setdefault("k", U), U),
        (m.popitem, None),
        (lambda: m.__setitem__("k.*", X), X),
        (m.clear, None),
    ]:
        change()
        assert m["kernel"] is layout
        assert m.copy()["kernel"] is layout
        assert pickle.loads(pickle.dumps(m))["kernel"] == layout


def test_names_are_looked_up_once():
    m = LayoutMap()
    m.update({rf"model\.layers\.{i}\..*(attn|mlp).*kernel": X for i in range(50)})
    names = [f"model.layers.{i}.block.{j}.mlp.kernel" for i in range(64) for j in range(50)]
    expected = [X if i < 50 else None for i in range(64) for _ in range(50)]
    assert [m[name] for name in names] == expected
    times = []
    for _ in range(3):
        started = time.process_time()
        assert [m[name] for name in names] == expected
        times.append(time.process_time() - started)
    assert min(times) < 0.1 * cpu_factor()


def test_what_a_map_remembers_is_bounded():
    m, sizes = small(), []
    for i in range(2**16 + 10):
        assert m[f"dense_{i}/bias"] is U
        sizes.append(len(m._rules_by_name))
    assert (max(sizes), sizes[-1]) == (2**16, 10)


# -- report -----------------------------------------------------------------------------------------------------------


def reported():
    m = LayoutMap(MESH)
    m.update({"d.*kernel": X_U, "d1.kernel.*": X_U, ".*bias": X, "conv.*": X_U, "head.kernel": X, ".*head.*": X_U})
    return m


NAMES = {"d1.kernel": (4, 2), "d2.kernel": (2, 2), "d1.bias": (2,), "head.kernel": np.ones((2, 3)), "scale": 0}


def test_report():
    report = reported().report(NAMES)
    kernels = {"d1.kernel": "d.*kernel", "d2.kernel": "d.*kernel"}
    assert report.applied == {**kernels, "d1.bias": ".*bias", "head.kernel": "head.kernel"}
    assert report.unused == ("conv.*",)
    assert report.shadowed == {"d1.kernel.*": ("d.*kernel",), ".*head.*": ("head.kernel",)}
    assert report.unmatched == ("scale",)
    assert report.wrong_ranks == (("head.kernel", 2, "head.kernel", 1),)
    assert not report.is_clean
    assert str(report).splitlines() == [
        "LayoutMap: 6 rules, 5 names, 4 of them matched",
        "rules that match no name:",
        "  'conv.*'",
        "rules that match only names that earlier rules take:",
        "  'd1.kernel.*' behind 'd.*kernel'",
        "  '.*head.*' behind 'head.kernel'",
        "names that no rule matches:",
        "  'scale'",
        "names with a rule for another number of axes:",
        "  'head.kernel' with 2 axes, rule 'head.kernel' for 1 axis",
    ]


@pytest.mark.parametrize(
    "names",
    [
        NAMES,
        list(NAMES.items()),
        {name: len(np.shape(shape)) if name == "head.kernel" else shape for name, shape in NAMES.items()},
        ((name, np.int64(0)) if name == "scale" else (name, shape) for name, shape in NAMES.items()),
    ],
)
def test_names_of_a_report(names):
    assert reported().report(names) == reported().report(NAMES)


def test_report_of_names_alone():
    report = reported().report(["d1.kernel", "x"])
    assert report.applied == {"d1.kernel": "d.*kernel"}
    assert report.wrong_ranks == ()


def test_a_rule_behind_several_is_reported_once():
    m = LayoutMap()
    m.update({"a.*": X, "b.*": X, ".": U})
    assert m.report(["a1", "b1", "a2"]).shadowed == {".": ("a.*", "b.*")}
    assert m.report(["a1", "c"]).shadowed == {}


def test_report_of_keras_3():
    m = golden_map("test_get", "fullmatch")
    report = m.report(["dense/bias", "dense_2/bias", "x/bias"])
    assert report.ambiguous == {"dense_2/bias": ("dense.*bias", ".*bias")}
    assert report.applied == {"dense/bias": "dense/bias", "x/bias": ".*bias"}
    assert "  'dense_2/bias' by 'dense.*bias', '.*bias'" in str(report)
    assert report.shadowed == {}


def test_a_clean_report():
    m = LayoutMap()
    m["a"] = X
    report = m.report({"a": (3,)})
    assert report.is_clean
    assert str(report) == "LayoutMap: 1 rules, 1 names, 1 of them matched"


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("way", ["load", "distribute", "distribute from 0"])
def test_rules_that_match_nothing(tmp_path, size, way):
    arrays = {"fc1.weight": np.ones((4, 2)), "fc2.weight": np.ones((2, 4))}
    path = tmp_path / "weights.npz"
    np.savez(path, **arrays)

    def used(m, **options):
        if way == "load":
            return mc.load(path, m, **options)
        root = 0 if way.endswith("0") else None
        return m.distribute(arrays if root is None or m.get_default_mesh().rank == 0 else None, root, **options)

    def program():
        mesh = mc.create_mesh([("X", -1)])
        m = LayoutMap(mesh)
        m[r".*fc1\.weigth"] = m[".*fc2.weight"] = Layout(["X", UNSHARDED], mesh)
        found = used(m)
        with pytest.raises(LayoutError, match=r"no name matches 1 rule of the LayoutMap: \['\.\*fc1"):
            used(m, strict=True)
        del m[r".*fc1\.weigth"]
        used(m, strict=True)
        assert found["fc2.weight"].layout.sharding_specs == ["X", UNSHARDED]

    with pytest.warns(UserWarning, match=r"match.*did you mean 'fc1.weight'") as caught:
        on(size, program)
    assert len(caught) == 1


# -- distribute -------------------------------------------------------------------------------------------------------


TREE = {
    "blocks": {
        "0": {"kernel": np.arange(12.0).reshape(3, 4), "bias": np.arange(4, dtype="i2")},
        "1": {"kernel": np.ones((5, 2), "f4")},
        "none": {},
    },
    "norms": [{"scale": np.arange(3.0)}, (np.ones(4), np.ones(2)), [], ()],
    "head.kernel": np.eye(3),
    "step": np.int64(7),
}


class Pair(NamedTuple):
    """A tuple that a program names."""

    first: object
    second: object


def world_map():
    mesh = mc.create_mesh([("X", -1)])
    m = LayoutMap(mesh)
    m["blocks.*kernel"] = Layout(["X", UNSHARDED], mesh)
    m["head.kernel"] = Layout([UNSHARDED, "X"], mesh)
    return m


FEW_NAMES = pytest.mark.filterwarnings("ignore:no name matches")  # of the rules of world_map()


def flat(tree, path=()):
    if not isinstance(tree, dict | list | tuple):
        return [(path, tree)]
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [found for key, child in entries for found in flat(child, (*path, str(key)))]


@pytest.mark.parametrize(("size", "root"), [(1, None), (1, 0), *product([2, 3], [None, 0, 1])])
def test_distribute(size, root):
    def program():
        m = world_map()
        tree = TREE if root in (None, m.get_default_mesh().rank) else None
        tensors = m.distribute(tree, root)
        assert list(tensors) == list(TREE)
        assert tensors["blocks"]["none"] == {}
        assert tensors["norms"][2:] == [[], ()]
        for (path, array), (other, tensor) in zip(flat(TREE), flat(tensors), strict=True):
            assert path == other
            assert tensor.dtype == array.dtype
            np.testing.assert_array_equal(tensor.to_numpy(), array)
        return {".".join(path): tensor.layout.sharding_specs for path, tensor in flat(tensors)}

    replicated = {name: [UNSHARDED] for name in ("blocks.0.bias", "norms.0.scale", "norms.1.0", "norms.1.1")}
    kernels = {name: ["X", UNSHARDED] for name in ("blocks.0.kernel", "blocks.1.kernel")}
    assert on(size, program)[-1] == replicated | kernels | {"head.kernel": [UNSHARDED, "X"], "step": []}


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (np.ones(3), "must be a dict"),
        ([1.0, 2.0], "must be a dict, list or tuple"),
        (None, "must be a dict"),
        ({"a": {3: np.ones(2)}}, "key 3 below 'a' is a int"),
        ({"a": [np.ones(2), {(1, 2): np.ones(2)}]}, "key .* below 'a.1' is a tuple"),
        ({"blocks.kernel": np.ones(2)}, "'blocks.kernel' has 1 axis"),
        ({"a": {"b": np.array(None)}}, "object"),
    ],
)
@FEW_NAMES
def test_trees_that_cannot_be_distributed(tree, says):
    def program():
        m = world_map()
        with pytest.raises(mc.MeshcommError, match=says):
            m.distribute(tree)
        with pytest.raises(mc.MeshcommError, match=says):
            m.distribute(tree if m.get_default_mesh().rank == 0 else None, root=0)
        return m.distribute({"a": np.ones(2)}, 0)["a"].shape

    assert on(2, program) == [(2,), (2,)]


@pytest.mark.parametrize("root", [None, 0])
@pytest.mark.parametrize(
    "tree",
    [
        [np.eye(3), {"kernel": np.eye(2), "bias": None}],
        (None, [np.arange(3), None], [None, None]),
        Pair(np.ones(2), {"n": Pair(np.ones(1), None)}),
    ],
)
@FEW_NAMES
def test_trees_are_lists_and_tuples_with_none_too(tree, root):
    def program():
        m = world_map()
        m["1.kernel"] = Layout(["X", UNSHARDED], m.get_default_mesh())
        made = m.distribute(tree if root in (None, m.get_default_mesh().rank) else None, root)
        assert type(made) is (tuple if isinstance(tree, tuple) else list)
        for (path, array), (other, tensor) in zip(flat(tree), flat(made), strict=True):
            assert path == other
            assert (tensor is None) == (array is None)
            assert array is None or np.array_equal(tensor.to_numpy(), array)
            assert tensor is None or len(set(tensor.layout.sharding_specs)) == 1 + (path == ("1", "kernel"))

    on(2, program)


@FEW_NAMES
def test_a_list_of_numbers_is_distributed_as_one_array():
    def program():
        tree = world_map().distribute({"a": [[1, 2], [3, 4]], "b": [(5, 6), np.ones(1)]})
        return [(".".join(path), tensor.to_numpy().tolist()) for path, tensor in flat(tree)]

    assert on(1, program) == [[("a", [[1, 2], [3, 4]]), ("b.0", [5, 6]), ("b.1", [1.0])]]


@on_ranks(2)
def test_a_root_is_a_device_of_one_mesh():
    m = world_map()
    m["elsewhere"] = X
    with pytest.raises(LayoutError, match="'elsewhere' has a layout on another mesh"):
        m.distribute({"elsewhere": np.ones(2)}, root=0)
    with pytest.raises(MeshError):
        m.distribute({"a": np.ones(2)}, root=9)


@FEW_NAMES
@on_ranks(1)
def test_what_is_distributed_shares_no_memory():
    array = np.zeros(3)
    tensor = world_map().distribute({"a": array})["a"]
    array[:] = 1
    assert tensor.local.tolist() == [0, 0, 0]


def test_ranks_that_distribute_differently_are_reported():
    def program():
        m = world_map()
        m.distribute({"a": np.ones(2)}, root=m.get_default_mesh().rank)

    with pytest.raises(CollectiveMismatch):
        on(2, program)


def test_errors_of_keys_can_be_pickled():
    with pytest.raises(LayoutError) as raised:
        LayoutMap()[3]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
