"""Many tensors in one call, on simulated ranks: the same results as one after the other, by fewer messages."""

from enum import Enum

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, LayoutMap, ShapeError
from meshcomm.core.arrays import compile as compile_
from support.random_cases import random_case
from support.reference import numbered, on_ranks, random_bits, simulated
from support.sampling import sampled
from support.tensors import is_right

U = "unsharded"
SPECS = [["x", U], [U, "x"], [U, U], [("x", "y"), U], ["y", "x"]]


def grid():
    return mc.create_mesh([("x", 2), ("y", 2)])


@pytest.mark.parametrize("bound", [None, 0, 64, 1000])
@on_ranks(4)
def test_every_pair_of_layouts_at_once(bound):
    """Mixed dtypes, ranks and lengths; what is a gather, a slice or a copy goes along."""
    mesh = grid()
    pairs = [(Layout(a, mesh), Layout(b, mesh)) for a in SPECS for b in SPECS]
    arrays = [random_bits((7 + i % 3, 5), ["u1", "f4", "c16", "V3", "?"][i % 5], i) for i in range(len(pairs))]
    pairs += [(Layout(["x"], mesh), Layout(["y"], mesh)), (Layout([], mesh), Layout([], mesh))]
    pairs += [(Layout([U, "x", U], mesh), Layout(["y", U, "x"], mesh))]
    arrays += [numbered((9,)), numbered(()), numbered((3, 0, 4))]
    tensors = [mc.distribute(array, a) for array, (a, _) in zip(arrays, pairs, strict=True)]
    if bound == 0:
        with pytest.raises(ShapeError, match=r"the minimum is \d+"):
            mc.relayout(tensors, [b for _, b in pairs], max_scratch_bytes=bound)
        return
    for _ in range(2):
        moved = mc.relayout(tensors, [b for _, b in pairs], max_scratch_bytes=bound)
        assert all(is_right(t, array, b) for t, array, (_, b) in zip(moved, arrays, pairs, strict=True))
    outs = [mc.zeros(t.shape, t.dtype, b) for t, (_, b) in zip(tensors, pairs, strict=True)]
    into = mc.relayout(tensors, [b for _, b in pairs], out=outs, max_scratch_bytes=bound)
    assert all(a is b for a, b in zip(into, outs, strict=True))
    assert all(is_right(t, array, b) for t, array, (_, b) in zip(into, arrays, pairs, strict=True))


def test_what_is_small_shares_an_exchange():
    def program(rank, at_once):
        mesh = mc.create_mesh([("x", 4)])
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        tensors = [mc.distribute(numbered((8, 8)) + i, rows) for i in range(64)]
        moved = mc.relayout(tensors, columns) if at_once else [mc.relayout(t, columns) for t in tensors]
        assert all(is_right(t, numbered((8, 8)) + i, columns) for i, t in enumerate(moved))

    messages, moved = [], []
    for at_once in (False, True):
        with mc.simulate(4) as world:
            world.run(lambda at_once=at_once: program(world.rank, at_once))
        messages.append(world.messages)
        moved.append(world.bytes_moved)
    assert messages == [[3 * 64] * 4, [3] * 4]
    assert moved[0] == moved[1]


@pytest.mark.parametrize("seed", sampled(range(60), 12))
def test_any_cases_at_once(seed):
    """Random tensors on random meshes, some of them alike: each rank takes part in some of the batches."""
    cases = [random_case(500_000 + 8 * seed + i, ranks=6, sizes=(1, 2, 3, 4)) for i in range(8)]
    with mc.simulate(6) as world:

        def program():
            meshes = {}

            def there(layout):
                mesh = layout.mesh
                if mesh not in meshes:
                    meshes[mesh] = mc.create_mesh([tuple(dim) for dim in mesh.dims], devices=list(mesh.ranks))
                return Layout(layout.axes, meshes[mesh])

            arrays = [random_bits(case.shape, case.dtype, i) for i, case in enumerate(cases)] * 2
            sources, targets = (
                [there(layout) for layout in side] * 2 for side in zip(*[c[2:4] for c in cases], strict=True)
            )
            tensors = [mc.distribute(array, layout) for array, layout in zip(arrays, sources, strict=True)]
            moved = mc.relayout(tensors, targets)
            for i, (tensor, array, layout) in enumerate(zip(moved, arrays, targets, strict=True)):
                assert is_right(tensor, array, layout), f"{cases[i % 8]}"

        world.run(program)


def test_two_meshes_over_the_same_ranks_in_another_order():
    """Ranks 0 and 1 are the same devices in both meshes, 2 and 3 are not: that makes two batches on every rank."""

    def program(rank):
        meshes = mc.create_mesh([("x", 4)]), mc.create_mesh([("x", 4)], devices=[0, 1, 3, 2])
        array = numbered((4, 8))
        tensors = [mc.distribute(array, Layout(["x", U], mesh)) for mesh in meshes]
        layouts = [Layout([U, "x"], mesh) for mesh in meshes]
        return [is_right(t, array, to) for t, to in zip(mc.relayout(tensors, layouts), layouts, strict=True)]

    assert simulated(4, program) == [[True, True]] * 4


def test_small_tensors_to_outs_on_other_ranks():
    """The ranks that the tensors come from have no block of an out, and still go by it as the others do."""

    def program(rank):
        here, there = mc.create_mesh([("x", 2)]), mc.create_mesh([("x", 2)], devices=[2, 3])
        arrays = [numbered((8,)), numbered((8,)) + 1]
        to = Layout(["x"], there)
        tensors = [mc.distribute(array, Layout(["x"], here)) for array in arrays]
        outs = [mc.zeros((8,), "i8", to) for _ in arrays]
        for _ in range(2):
            assert all(a is b for a, b in zip(mc.relayout(tensors, to, out=outs), outs, strict=True))
        return [is_right(out, array, to) for out, array in zip(outs, arrays, strict=True)]

    assert simulated(4, program) == [[True, True]] * 4


@on_ranks(4)
def test_containers():
    mesh = grid()
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    a, b = mc.distribute(numbered((4, 6)), rows), mc.distribute(numbered((6, 4)), columns)
    layout_map = LayoutMap(mesh)
    layout_map["a.*"], layout_map["b"] = columns, rows
    for tensors, layouts, kind in [
        ([a, b], [columns, rows], list),
        ((a, b), [columns, rows], tuple),
        ({"a1": a, "b": b}, {"b": rows, "a1": columns}, dict),
        ({"a1": a, "b": b}, layout_map, dict),
        ([a, numbered((6, 4))], (columns, rows), list),
        ([numbered((4, 6)), numbered((6, 4))], [columns, rows], list),
    ]:
        moved = mc.relayout(tensors, layouts)
        assert type(moved) is kind
        assert not isinstance(tensors, dict) or list(moved) == list(tensors)
        first, second = moved.values() if kind is dict else moved
        assert is_right(first, numbered((4, 6)), columns)
        assert is_right(second, numbered((6, 4)), rows)
    assert mc.relayout([a], columns)[0].layout == columns
    assert mc.relayout([a, a], [columns, Layout([mc.MATCH, "y"], mesh)])[1].layout.sharding_specs == ["x", "y"]
    assert (mc.relayout([], []), mc.relayout((), ()), mc.relayout({}, {})) == ([], (), {})
    one = mc.relayout([1, 2, 3, 4], Layout(["x"], mesh))
    assert is_right(one, np.array([1, 2, 3, 4]), Layout(["x"], mesh)), "a list of numbers is one array"


class Dense(mc.Module):
    def __init__(self, rows):
        self.kernel = mc.Variable(mc.distribute(numbered((4, 6)), rows))
        self.bias = [mc.Variable(mc.distribute(numbered((6, 4)), rows))]


def nested(rows):
    """A tree with all kinds of branches, and the names of its tensors."""
    a, b = (mc.distribute(numbered(shape), rows) for shape in ((4, 6), (6, 4)))
    tree = {
        "a": {"w": a, "b": [b, (a, [numbered((2, 2))])]},
        "empty": [{}, (), []],
        "numbers": [[1, 2], [3, 4]],
        "module": Dense(rows),
    }
    return tree, ["a.w", "a.b.0", "a.b.1.0", "a.b.1.1.0", "numbers", "module.bias.0", "module.kernel"]


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in leaves(tree[key])]
    return [leaf for each in tree for leaf in leaves(each)] if isinstance(tree, list | tuple) else [tree]


def form(tree):
    if isinstance(tree, dict):
        return {key: form(child) for key, child in tree.items()}
    return type(tree)(map(form, tree)) if isinstance(tree, list | tuple) else "tensor"


FORM = {
    "a": {"w": "tensor", "b": ["tensor", ("tensor", ["tensor"])]},
    "empty": [{}, (), []],
    "numbers": "tensor",
    "module": {"bias.0": "tensor", "kernel": "tensor"},
}
ARRAYS = [
    *map(numbered, [(4, 6), (6, 4), (4, 6), (2, 2)]),
    np.array([[1, 2], [3, 4]]),
    *map(numbered, [(6, 4), (4, 6)]),
]


def test_nested_trees():
    class Names:
        """A LayoutMap that notes which names it is asked for."""

        def __init__(self, layout):
            self.layout, self.asked = layout, []

        def layout_for(self, name, rank):
            self.asked.append(name)
            assert rank == 2
            return self.layout

    def program(rank):
        mesh = grid()
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        tree, names = nested(rows)
        noted = Names(columns)
        given = {
            "one": columns,
            "names": noted,
            "form": {
                "a": {"w": columns, "b": (columns, [columns, [columns]])},
                "empty": [{}, [], []],
                "numbers": columns,
                "module": {"kernel": columns, "bias.0": columns},
            },
            "branches": {"a": columns, "empty": columns, "numbers": columns, "module": columns},
        }
        for what, layouts in given.items():
            for _ in range(2):
                moved = mc.relayout(tree, layouts)
                assert form(moved) == FORM, what
                assert all(is_right(t, a, columns) for t, a in zip(leaves(moved), ARRAYS, strict=True)), what
        assert noted.asked == names * 2
        outs = mc.relayout(tree, noted)
        for leaf in leaves(outs):
            leaf.local[...] = 0
        into = mc.relayout(tree, given["form"], out=outs)
        assert all(a is b for a, b in zip(leaves(into), leaves(outs), strict=True))
        assert all(is_right(t, a, columns) for t, a in zip(leaves(into), ARRAYS, strict=True))
        some = mc.relayout([tree["a"]], [columns], out=[{"w": outs["a"]["w"], "b": None}])
        assert some[0]["w"] is outs["a"]["w"]
        assert some[0]["b"][0] is not outs["a"]["b"][0]

    simulated(4, program)


@on_ranks(4)
def test_names_in_trees_are_those_of_layout_maps_and_checkpoints(tmp_path):
    mesh = grid()
    tree, names = nested(Layout(["x", U], mesh))
    rules = LayoutMap(mesh)
    rules.update({name: Layout([U, "x"], mesh) for name in names if name != "module.kernel"})
    moved = mc.relayout(tree, rules)
    assert [t.layout.sharding_specs for t in leaves(moved)] == [[U, "x"]] * 6 + [[U, U]]
    mc.save(tmp_path / "c", moved)
    assert sorted(name for name in names) == sorted(mc.load(tmp_path / "c", names=names))


class Key(Enum):
    U = 1
    V = 2


@pytest.mark.parametrize(
    "keys", ["ab", [("w", 1), ("w", 2)], [b"a", 3], list(Key), [1.5, 2.5], [np.int64(1), np.float32(0.5)], [True, 0]]
)
@pytest.mark.parametrize("before", [0, 1])
@on_ranks(4)
def test_ranks_notice_that_they_have_the_keys_in_another_order(keys, before, rank):
    mesh = grid()
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    tensors = {key: mc.distribute(numbered((4, 4)), rows) for key in keys}
    for _ in range(before):
        mc.relayout(tensors, columns)
        mc.relayout({key: tensors[key] for key in keys[::-1]}, columns)
    with pytest.raises(mc.CollectiveMismatch):
        mc.relayout({key: tensors[key] for key in (keys if rank < 2 else keys[::-1])}, columns)


@on_ranks(4)
def test_ranks_notice_that_they_have_the_keys_of_a_branch_in_another_order(rank):
    mesh = grid()
    tensors = {key: mc.zeros((4, 4), "i8", Layout(["x", U], mesh)) for key in "ab"}
    tree = {"net": [tensors if rank < 2 else {key: tensors[key] for key in "ba"}]}
    with pytest.raises(mc.CollectiveMismatch, match=r"relayout 'net\.0\.a' of"):
        mc.relayout(tree, Layout([U, "x"], mesh))


@pytest.mark.parametrize("keys", [[object(), object(), frozenset()], ["w", np.str_("w")], [1, True, np.int64(1), 1.0]])
@on_ranks(4)
def test_ranks_may_have_different_objects_and_equal_keys(keys, rank):
    mesh = grid()
    tensor = mc.distribute(numbered((4, 4)), Layout(["x", U], mesh))
    (moved,) = mc.relayout({keys[rank % len(keys)]: tensor}, Layout([U, "x"], mesh)).values()
    assert is_right(moved, numbered((4, 4)), Layout([U, "x"], mesh))


def test_what_is_wrong_with_one_is_seen_before_any_moves():
    """Also by a rank that has no part in it, and by one that has a part in it alone."""

    def program(rank):
        meshes = mc.create_mesh([("x", 2)]), mc.create_mesh([("x", 2)], devices=[1, 2])
        good, bad = (mc.zeros((4, 4), "i8", Layout(["x", U], mesh)) for mesh in meshes)
        with pytest.raises(LayoutError, match="source layout is for 2 and the target layout for 1"):
            mc.relayout([good, bad], [Layout([U, "x"], meshes[0]), Layout(["x"], meshes[1])])
        with pytest.raises(ShapeError, match="minimum"):
            mc.relayout([good, bad], [Layout([U, "x"], mesh) for mesh in meshes], max_scratch_bytes=1)
        columns = [Layout([U, "x"], mesh) for mesh in meshes]
        with pytest.raises(ShapeError, match="out has shape"):
            mc.relayout([good, bad], columns, out=[None, mc.zeros((5, 4), "i8", columns[1])])
        moved = mc.relayout([good, bad], columns)
        return [t.local is not None for t in moved]

    assert simulated(4, program) == [[True, False], [True, True], [False, True], [False, False]]


def test_ranks_that_differ_in_the_order_of_their_tensors():
    def program(rank):
        mesh = grid()
        rows = Layout(["x", U], mesh)
        a, b = mc.zeros((4, 4), "i8", rows), mc.zeros((4, 5), "i8", rows)
        mc.relayout([b, a] if rank == 1 else [a, b], Layout([U, "x"], mesh))

    with pytest.raises(mc.CollectiveMismatch, match="rank 1: relayout of"):
        simulated(4, program)


def test_many_tensors_of_few_kinds_are_described_once_each(monkeypatch):
    described = []
    kept = compile_.exchanged_boxes
    monkeypatch.setattr(compile_, "exchanged_boxes", lambda *args: described.append(args) or kept(*args))

    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        kinds = [((4, 6), "f4"), ((5, 3), "f8"), ((4, 6), "i2"), ((1, 2), "i1")]
        arrays = [numbered(shape).astype(dtype) + i % 7 for i in range(300) for shape, dtype in kinds]
        moved = mc.relayout([mc.distribute(array, rows) for array in arrays], columns)
        for array, tensor in zip(arrays, moved, strict=True):
            assert tensor.dtype == array.dtype
            assert np.array_equal(tensor.local, array[tensor.slices])

    with mc.simulate(2) as world:
        world.run(program)
    assert len(described) == 2 * 4  # ranks and kinds
