"""Laws of plans between layouts of all kinds: names, chosen boundaries, cyclic blocks; pure."""

from functools import cache

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, Mesh, plan_relayout
from meshcomm.core.plans.step import Slice
from support.lockstep import devices_on
from support.random_cases import case_of_kinds, planned
from support.reference import elements_of
from support.sampling import sampled

U = "unsharded"
CASES = sampled(range(900_000, 903_000), 200)
FOUR = Mesh(range(4), {"x": 4})
GRID = Mesh(range(4), {"x": 2, "y": 2})
LARGE = Mesh(range(4096), {"x": 4096})
BILLION = 10**9


@cache
def sets(layout, shape):
    return [elements_of(layout, shape, device) for device in range(layout.mesh.size)]


def held(layout, shape, ranks):
    """The elements that each rank holds, none outside of the mesh."""
    return [set() if d is None else sets(layout, shape)[d] for d in devices_on(layout.mesh, ranks)]


def rows(step, device, side):
    """What a device exchanges with each peer: the peer, and the boxes in their order."""
    boxes, found = side(device), {}
    peers = step.members(device, boxes.peers)
    for peer, which in zip(peers.tolist(), boxes.which.tolist(), strict=True):
        box = [boxes.starts[which].tolist(), boxes.stops[which].tolist()]
        if boxes.repeats is not None:
            counts, steps = (a[which] for a in boxes.repeats)
            box += [counts.tolist(), np.where(counts > 1, steps, 0).tolist()]
        if all(a < b for a, b in zip(*box[:2], strict=True)):
            found.setdefault(peer, []).append(box)
    return found


def test_senders_and_receivers_have_the_same_boxes_in_the_same_order():
    for number in CASES:
        plan, _ = planned(case_of_kinds(number))
        for step in plan.steps:
            if isinstance(step, Slice):
                continue
            devices = range(len(step.ranks))
            sent = {(d, p): boxes for d in devices for p, boxes in rows(step, d, step.sends).items()}
            received = {(p, d): boxes for d in devices for p, boxes in rows(step, d, step.receives).items()}
            assert {pair: boxes for pair, boxes in sent.items() if received.get(pair) != boxes} == {}, f"case {number}"
            assert sent.keys() == received.keys(), f"case {number}"


def test_a_direct_exchange_moves_only_what_is_missing_in_as_few_messages_as_there_are_senders():
    for number in CASES:
        case = case_of_kinds(number)
        plan, _ = planned(case)
        if sum(not isinstance(step, Slice) for step in plan.steps) > 1:
            continue
        have, want = (held(layout, case.shape, plan.ranks) for layout in (case.source, case.target))
        blocks = {frozenset(elements) for elements in sets(case.source, case.shape)}
        for device, (old, new) in enumerate(zip(have, want, strict=True)):
            own = plan.for_device(device)
            missing = new - old
            assert own.bytes_moved == len(missing) * case.dtype.itemsize, f"case {number}: {case}"
            assert own.messages == sum(bool(block & missing) for block in blocks), f"case {number}: {case}"


def test_no_plan_replicates_what_neither_endpoint_replicates():
    for number in CASES:
        case = case_of_kinds(number)
        plan, _ = planned(case)
        for step in plan.steps[:-1]:
            most = max(layout.largest_block(case.shape) for layout in (case.source, case.target))
            assert step.target.largest_block(case.shape) <= most, f"case {number}: {case}"


KINDS = ["x", mc.Cuts("x", (0, 2, 2, 9, 13)), mc.Cyclic("x", 2), mc.Cyclic("x", 3, 1), mc.Cyclic("x", 20), U]


@pytest.mark.parametrize("spec", KINDS, ids=str)
def test_a_relayout_to_an_equal_layout_moves_nothing(spec):
    plan = plan_relayout((13, 5), "f8", Layout([spec, U], FOUR), Layout([spec, U], Mesh(range(4), {"x": 4}, "other")))
    assert (plan.bytes_moved, plan.messages) == (0, 0)
    assert not [step for step in plan.steps if not isinstance(step, Slice)]


@pytest.mark.parametrize("spec", [mc.Cuts("x", (0, 4, 13)), mc.Cyclic("x", 2), mc.Cyclic("x", 3, 1)], ids=str)
def test_from_replicas_a_slice(spec):
    plan = plan_relayout((13, 5), "f8", Layout([U, U], GRID), Layout([spec, U], GRID))
    assert [type(step) for step in plan.steps] == [Slice]


def test_a_plan_prints_the_rules():
    source, target = Layout([mc.Cyclic("x", 2), U], FOUR), Layout([mc.Cuts("x", (0, 2, 2, 9, 13)), U], FOUR)
    text = str(plan_relayout((13, 5), "f8", source, target))
    assert "x=cyclic(2)" in text
    assert "x=cuts(0;2;2;9;13)" in text
    few = Layout([mc.Cuts("x", sizes=range(4096))], LARGE)
    assert len(str(plan_relayout((4095 * 2048,), "f8", few, Layout(["x"], LARGE)))) < 100_000


@pytest.mark.parametrize(
    ("source", "target", "messages"),
    [
        (mc.Cyclic("x", 1), "x", 4095),
        ("x", mc.Cyclic("x", 1), 4095),
        (mc.Cyclic("x", 1), mc.Cyclic("x", 1, 1), 1),
        (mc.Cyclic("x", 1), mc.Cyclic("x", 2), 2),
        (mc.Cyclic("x", 64), mc.Cyclic("x", 128), 2),
        (mc.Cuts("x", (*range(4096), BILLION)), mc.Cyclic("x", 1), 1),
    ],
    ids=str,
)
def test_one_rank_of_thousands_plans_few_boxes(source, target, messages):
    """A billion elements: what is counted is the boxes, as time depends on the machine."""
    source, target = Layout([source], LARGE), Layout([target], LARGE)
    plan = plan_relayout((BILLION,), "f4", source, target)
    for device in (0, 1, 2047, 4095):
        own = plan.for_device(device)
        assert own.messages <= messages + 1
        assert own.bytes_moved <= 4 * max(target.block_shape((BILLION,), device))
        for step in plan.steps:
            assert len(step.sends(device).starts) + len(step.receives(device).starts) <= 30_000


def test_usual_layouts_plan_the_same_however_they_are_written():
    cuts = Layout([mc.Cuts("x", (0, 4, 7, 10, 13)), U], FOUR)
    other = Layout([mc.Cyclic("x", 2), U], FOUR)
    one, same = (plan_relayout((13, 5), "f8", layout, other) for layout in (cuts, Layout(["x", U], FOUR)))
    assert one.steps == same.steps
    assert str(one) == str(same)
