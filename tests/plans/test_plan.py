"""Plans: which steps, what they cost, and that every rank plans alike. Pure: no data and no ranks."""

import os
import sys
import tracemalloc
from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given

from meshcomm import DTypeError, Layout, LayoutError, Mesh, MeshError, ShapeError, plan_relayout
from meshcomm.core._arguments import counted
from meshcomm.core.plans.step import AllGather, AllToAll, Slice
from support.patience import run
from support.reference import elements_of, mesh_of, tuple_layouts
from support.sampling import sampled
from support.strategies import relayouts

U, MATCH = "unsharded", "match"


def plan(mesh, source, target, shape=(24, 24, 24, 24), dtype="f8"):
    return plan_relayout(shape[: len(source)], dtype, Layout(source, mesh), Layout(target, mesh))


def kinds(a_plan):
    return [type(step).__name__ for step in a_plan.steps]


# -- which steps ------------------------------------------------------------------------------------------------------

EXAMPLES = [
    ([U, U], ["x", U], ["Slice"]),
    ([U, U], [U, "y"], ["Slice"]),
    ([U, U], ["x", "y"], ["Slice"]),
    (["x", U], ["x", "y"], ["Slice"]),
    (["x"], [("x", "y")], ["Slice"]),
    (["x", U], [U, U], ["AllGather"]),
    ([U, "y"], [U, U], ["AllGather"]),
    (["x", "y"], [U, U], ["AllGather"]),
    (["x", "y"], ["x", U], ["AllGather"]),
    ([("x", "y")], ["x"], ["AllGather"]),
    (["x", U], [U, "x"], ["AllToAll"]),
    ([U, "y", U], ["y", U, U], ["AllToAll"]),
    (["x", "y", U], ["x", U, "y"], ["AllToAll"]),
    (["x", U, U], [U, "x", "y"], ["Slice", "AllToAll"]),
    (["x", "y", U], [U, U, "x"], ["AllToAll"]),
    (["x", U], [U, "y"], ["Slice", "AllGather"]),
    (["x", "y"], ["y", "x"], ["AllToAll"]),
    (["x", "y", "z"], ["z", "x", "y"], ["AllToAll"]),
    ([("x", "y")], [("y", "x")], ["AllToAll"]),
    (["x", U], ["y", U], ["AllToAll"]),
    (["x", "y"], ["x", "y"], []),
]


@pytest.mark.parametrize(("source", "target", "expected"), EXAMPLES)
def test_kinds_of_steps_in_the_even_case(source, target, expected):
    assert kinds(plan(mesh_of(2, 2, 2), source, target)) == expected


@pytest.mark.parametrize(
    ("source", "target", "dims", "split", "concat"),
    [
        (["x", U], [U, "x"], ("x",), 1, 0),
        ([U, "y", U], [U, U, "y"], ("y",), 2, 1),
        (["x", "y", U], ["x", U, "y"], ("y",), 2, 1),
        (["x", "y"], ["y", "x"], ("x", "y"), None, None),
        (["x", "y", "z"], ["z", "x", "y"], ("x", "y", "z"), None, None),
        ([("x", "y"), U], [("y", "x"), U], ("x", "y"), None, None),
    ],
)
def test_an_exchange_is_one_step_and_says_what_it_splits(source, target, dims, split, concat):
    (step,) = plan(mesh_of(2, 2, 2), source, target).steps
    assert isinstance(step, AllToAll)
    assert (step.dims, step.split_dimension, step.concat_dimension) == (dims, split, concat)
    assert step.direct == (split is None)
    assert step.group_assignment == step.mesh.groups_along(dims)


def test_uneven_exchanges_within_the_right_groups():
    (step,) = plan(mesh_of(2, 3), ["x", U], [U, "x"], (7, 5)).steps
    assert step.dims == ("x",)
    (step,) = plan(mesh_of(2, 3), ["x", U], ["y", U], (7, 5)).steps
    assert step.direct
    assert step.dims == ("x",), "devices with the same y already agree on what they want"


def test_mesh_dimensions_of_size_one_change_nothing():
    mesh = mesh_of(1, 3)
    assert plan(mesh, ["x", U], [U, "x"]).bytes_moved == 0
    assert plan(mesh, ["x", U], [U, U]).steps == ()
    assert kinds(plan(mesh, [("x", "y"), U], [U, ("y", "x")])) == ["AllToAll"]


def test_match_keeps_what_the_source_has():
    mesh = mesh_of(2, 2)
    assert plan(mesh, ["x", U], [MATCH, "y"]).target.sharding_specs == ["x", "y"]
    assert plan(mesh, ["x", U], [U, MATCH]).target.sharding_specs == [U, U]
    assert plan(mesh, ["x", U], [MATCH, "x"]).target.sharding_specs == [U, "x"]


# -- laws -------------------------------------------------------------------------------------------------------------


def check_laws(a_plan):
    mesh, shape = a_plan.target.mesh, a_plan.shape
    source, target = (
        [elements_of(layout, shape, d) for d in range(mesh.size)] for layout in (a_plan.source, a_plan.target)
    )
    order = [{Slice: 0, AllToAll: 1, AllGather: 2}[type(step)] for step in a_plan.steps]
    assert order == sorted(order), "slices first, gathers last"
    assert all(a.target == b.source for a, b in pairwise(a_plan.steps))
    if a_plan.steps:
        assert (a_plan.steps[0].source, a_plan.steps[-1].target) == (a_plan.source, a_plan.target)
    blocks = [blocks_in(layout) for layout in (a_plan.source, a_plan.target)]
    for step in a_plan.steps:
        assert blocks_in(step.target) >= min(blocks), "no step replicates more than the endpoints do"
    devices = [a_plan.for_device(d) for d in range(mesh.size)]
    for d, (have, want) in enumerate(zip(source, target, strict=True)):
        least = len(want - have) * a_plan.dtype.itemsize
        assert devices[d].bytes_moved >= least
        if len(a_plan.steps) <= 1:
            assert devices[d].bytes_moved == least, "what a device has is not sent"
        assert (devices[d].bytes_moved > 0) == (devices[d].messages > 0)
    nothing_is_missing = all(want <= have for have, want in zip(source, target, strict=True))
    assert nothing_is_missing == all(isinstance(step, Slice) for step in a_plan.steps)
    for what in ("bytes_moved", "messages", "peak_bytes"):
        assert getattr(a_plan, what) == max(getattr(device, what) for device in devices)
    assert a_plan.steps == devices[-1].steps


def blocks_in(layout):
    return prod(layout.num_shards(axis) for axis in range(layout.rank))


@given(relayouts(max_rank=4, max_length=7))
def test_laws_of_any_plan(relayout):
    shape, source, target = relayout
    check_laws(plan_relayout(shape, "i2", source, target))


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (3, 2)], ids=str)
def test_laws_of_all_plans_of_vectors_and_matrices(sizes):
    mesh = mesh_of(*sizes)
    for shape in [(12,), (7,), (6,), (2,), (1,), (0,), (6, 4), (5, 3), (2, 2)]:
        layouts = list(tuple_layouts(mesh, len(shape)))
        for source, target in sampled(product(layouts, layouts), 20):
            check_laws(plan_relayout(shape, "i2", source, target))


@given(relayouts(max_rank=3))
def test_bytes_and_messages_are_those_of_the_boxes(relayout):
    """What is predicted for every transport: all of them move the boxes of the steps, and nothing else."""
    shape, source, target = relayout
    a_plan = plan_relayout(shape, "f8", source, target)
    for device in range(a_plan.target.mesh.size):
        moved = messages = 0
        for step in a_plan.steps:
            if not isinstance(step, Slice):
                boxes = step.receives(device)
                sizes = boxes.sizes[boxes.which][step.members(device, boxes.peers) != device]
                moved, messages = moved + 8 * int(sizes.sum()), messages + int((sizes > 0).sum())
        part = a_plan.for_device(device)
        assert (part.bytes_moved, part.messages) == (moved, messages)


@given(relayouts(max_rank=3))
def test_positions_in_groups_are_those_of_the_group_assignment(relayout):
    for step in plan_relayout(relayout[0], "f8", *relayout[1:]).steps:
        rows = step.group_assignment if step.dims else tuple((d,) for d in range(step.mesh.size))
        for row in rows:
            for position, device in enumerate(row):
                assert step.group_of(device) == row
                assert step.position_of(device) == position
                assert step.members(row[-1], np.array([position])).tolist() == [device]
        assert step.group_size == len(rows[0])
        assert sorted(d for row in rows for d in row) == list(range(step.mesh.size))


# -- alike everywhere, and for meshes of any size ---------------------------------------------------------------------

HASHED = """
import sys
from meshcomm import Layout, Mesh, plan_relayout
mesh = Mesh(range(24), [("x", 2), ("y", 3), ("z", 4)])
U = "unsharded"
for source, target in [(["x", "y", "z"], ["z", "x", "y"]), ([("z", "x"), "y", U], [U, ("y", "x"), "z"]),
                       ([U, "y", U], [("y", "x"), "z", U])]:
    plan = plan_relayout((13, 8, 5), "f4", Layout(source, mesh), Layout(target, mesh))
    print(plan)
    for step in plan.steps:
        print([[a.tolist() for a in side(d)[:4]] for d in range(24) for side in (step.sends, step.receives)])
"""


def test_plans_do_not_depend_on_the_hash_seed():
    outputs = {
        run([sys.executable, "-c", HASHED], env=os.environ | {"PYTHONHASHSEED": seed}, check=True).stdout
        for seed in ("0", "1", "2", "random")
    }
    assert len(outputs) == 1
    assert "AllToAll" in outputs.pop()


def test_one_device_of_4096_ranks():
    mesh = mesh_of(64, 64)
    (step,) = plan(mesh, ["x", "y"], ["y", "x"], (130, 70)).steps
    assert step.direct
    assert len(step.group_of(4095)) == 4096
    for side in (step.sends, step.receives):
        assert side(0).peers.size <= 9, "a block overlaps few blocks of the other layout"
    part = plan(mesh, ["x", "y", U], ["y", U, "x"], (128, 256, 192)).for_device(4095)
    assert [step.group_size for step in part.steps] == [4096]
    assert (part.bytes_moved, part.messages) == (8 * 2 * 256 * 3 - 8 * 2 * 4 * 3, 63), "as few messages as two steps"


def test_one_device_of_a_million_ranks_needs_only_its_group():
    mesh = mesh_of(2**17, 2**3)
    part = plan(mesh, ["x", "y", U], ["x", U, "y"], (2**17, 64, 64), "f4").for_device(12345)
    (step,) = part.steps
    assert step.group_of(12345) == tuple(range(12344, 12352))
    assert step.position_of(12345) == 1
    assert (part.bytes_moved, part.messages) == (4 * 7 * 8 * 8, 7)
    assert step.sends(12345).peers.tolist() == list(range(8))


def test_planning_a_large_mesh_takes_little_memory():
    mesh = mesh_of(64, 64)
    layouts = Layout(["x", "y", U], mesh), Layout(["y", U, "x"], mesh)
    tracemalloc.start()
    try:
        plan_relayout((127, 256, 192), "f8", *layouts).for_device(4095)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4096 * 4096 // 8, "nothing of the square of the mesh's size"


def test_plans_are_cached_and_compare_by_value():
    a, b = (plan(mesh_of(2, 2), ["x", U], [U, "x"]) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != plan(mesh_of(2, 2), ["x", U], [U, "y"])


# -- printed ----------------------------------------------------------------------------------------------------------

PRINTED = [
    (
        ((4,), (8, 8), "f8", ["x", U], [U, "x"]),
        """\
relayout of (8, 8) float64 on mesh x=4: [x, unsharded] -> [unsharded, x]
  1. AllToAll along x (split 1, concat 0): [x, unsharded] -> [unsharded, x]  [1 group of 4] 96 B, \
3 messages; packs over MPI
  each device receives at most 96 B in 3 messages and holds at most 352 B over MPI""",
    ),
    (
        ((2, 2), (7, 5), "i2", ["x", "y"], ["y", "x"]),
        """\
relayout of (7, 5) int16 on mesh x=2, y=2: [x, y] -> [y, x]
  1. AllToAll along x+y (direct): [x, y] -> [y, x]  [1 group of 4] 18 B, 1 message
  each device receives at most 18 B in 1 message and holds at most 48 B over MPI""",
    ),
    (
        ((2, 2), (8, 6), "f4", ["x", "y"], [U, U]),
        """\
relayout of (8, 6) float32 on mesh x=2, y=2: [x, y] -> [unsharded, unsharded]
  1. AllGather along x+y: [x, y] -> [unsharded, unsharded]  [1 group of 4] 144 B, \
3 messages; unpacks over MPI
  each device receives at most 144 B in 3 messages and holds at most 432 B over MPI""",
    ),
    (
        ((2,), (), "f8", [], []),
        """\
relayout of () float64 on mesh x=2: [] -> []
  nothing moves: a copy of the block
  each device receives at most 0 B in 0 messages and holds at most 16 B over MPI""",
    ),
    (
        ((2, 2), (2**20, 2**10), "f4", [U, U], ["x", "y"]),
        """\
relayout of (1048576, 1024) float32 on mesh x=2, y=2: [unsharded, unsharded] -> [x, y]
  1. Slice: [unsharded, unsharded] -> [x, y] 0 B, 0 messages
  each device receives at most 0 B in 0 messages and holds at most 5.0 GiB over MPI""",
    ),
    (
        ((2, 2), (8, 3), ">c16", [("x", "y"), U], ["y", U]),
        """\
relayout of (8, 3) >c16 on mesh x=2, y=2: [x+y, unsharded] -> [y, unsharded]
  1. AllToAll along x+y (direct): [x+y, unsharded] -> [y, unsharded]  [1 group of 4] 192 B, 2 messages
  each device receives at most 192 B in 2 messages and holds at most 288 B over MPI""",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), PRINTED, ids=[text.partition(":")[0] for _, text in PRINTED])
def test_printed_plans(arguments, text):
    sizes, shape, dtype, source, target = arguments
    assert str(plan(mesh_of(*sizes), source, target, shape, dtype)) == text


# -- bad arguments ----------------------------------------------------------------------------------------------------


def test_what_is_no_plan_is_refused():
    mesh = mesh_of(2, 2)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    for shape in [(4,), (4, 4, 4), ()]:
        said = f"has {counted(len(shape), 'axis')}, the source layout is for 2 and the target layout for 2"
        with pytest.raises(LayoutError, match=said):
            plan_relayout(shape, "f8", rows, columns)
    with pytest.raises(LayoutError, match="has 2 axes, the source layout is for 2 and the target layout for 1"):
        plan_relayout((4, 4), "f8", rows, Layout(["x"], mesh))
    for shape in [(4, -1), "ab", (1.5, 2), None, ((4, 4), 4)]:
        with pytest.raises(ShapeError):
            plan_relayout(shape, "f8", rows, columns)
    with pytest.raises(DTypeError):
        plan_relayout((4, 4), [("a", "O")], rows, columns)


def test_meshes_that_differ_in_name_only_are_the_same_grid():
    a, b = (Mesh(range(4), [("x", 2), ("y", 2)], name) for name in ("a", "b"))
    assert plan_relayout((4,), "f8", Layout(["x"], a), Layout(["y"], b)).target.mesh is b


@pytest.mark.parametrize("device", [-1, 4, 1.5, True, "0", None], ids=repr)
def test_only_devices_of_the_mesh_have_a_plan(device):
    with pytest.raises(MeshError):
        plan(mesh_of(2, 2), ["x", U], [U, "x"]).for_device(device)


def test_numpy_integers_are_lengths_and_devices():
    a_plan = plan(mesh_of(2, 2), ["x", U], [U, "x"], np.array([4, 4]))
    assert a_plan.shape == (4, 4)
    assert a_plan.for_device(np.int64(3)) == a_plan.for_device(3)
