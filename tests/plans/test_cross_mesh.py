"""Laws of plans between meshes, and of the choice among plans; pure."""

import tracemalloc
from collections import Counter
from math import prod

import numpy as np
import pytest

from meshcomm import Layout, Machine, Mesh, plan_relayout
from meshcomm.core.layouts.boxes import box_size
from meshcomm.core.plans.costs import seconds
from meshcomm.core.plans.cross_mesh import AllToAllBetween
from meshcomm.core.plans.search import forget_plans
from support.lockstep import devices_on
from support.random_cases import Case, plan_of, planned, random_case
from support.sampling import sampled

U = "unsharded"
# Not those of test_random_relayouts; of the last one several steps are the cheapest plan, which is rare.
CASES = [*sampled(range(200_000, 203_000), 150), 200_039]


def boxes(layout, shape, ranks):
    """The box of each rank in *layout*, None for one outside of its mesh."""
    return [None if d is None else layout.block_box(shape, d) for d in devices_on(layout.mesh, ranks)]


def shared(a, b):
    """How many elements two boxes have in common."""
    if a is None or b is None:
        return 0
    return prod(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x, y in zip(a, b, strict=True))


def pairs(step, side):
    """Who exchanges how many elements with whom: (device, peer) -> (start, stop) of boxes that are not empty."""
    found = {}
    for device in range(len(step.ranks)):
        here = side(device)
        peers = step.members(device, here.peers)
        for peer, box in zip(peers.tolist(), here.which.tolist(), strict=True):
            assert (device, peer) not in found, "one box for each pair"
            start, stop = here.starts[box].tolist(), here.stops[box].tolist()
            if all(a < b for a, b in zip(start, stop, strict=True)):
                found[device, peer] = start, stop
    return found


# -- laws of any plan -------------------------------------------------------------------------------------------------


def test_the_chosen_plan_costs_no_more_than_any_other():
    several = Counter()
    for number in CASES:
        case = random_case(number)
        plan, _ = planned(case)
        cost = sum(seconds(step, case.machine) for step in plan.steps)
        assert cost == min(candidate.seconds for candidate in plan.candidates), f"case {number}: {case}"
        if len(plan.candidates) > 1:
            chosen = next(name for name, steps, _ in plan.candidates if steps == plan.steps)
            several[chosen] += 1
    assert set(several) == {"composed", "direct"}, "both ways win somewhere"


# -- laws of exchanges between meshes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exchanges():
    """Cases that are one exchange between meshes, its step, and what is sent: (sender, receiver) -> (start, stop)."""
    found = []
    by_hand = [("one holder", one_holder_on_a_node()), *holders_on_a_node().items()]
    for number, case in [*((number, random_case(number)) for number in CASES), *by_hand]:
        plan = plan_of(case, None)
        if plan.steps and isinstance(plan.steps[0], AllToAllBetween):
            found.append((f"case {number}: {case}", case, plan.steps[0], pairs(plan.steps[0], plan.steps[0].sends)))
    return found


def one_holder_on_a_node():
    """Each of two nodes has one rank with the whole array and one that wants half of it: by turns they would cross."""
    source, target = Layout([U], Mesh([0, 2], [("x", 2)])), Layout(["y"], Mesh([3, 1], [("y", 2)]))
    return Case((4,), np.dtype("f8"), source, target, Machine(nodes=2), None)


def holders_on_a_node():
    """Each of two nodes has two ranks with a block, and two that want a piece of it: each holder serves one of them.

    Neither a rank that is in no mesh, nor a holder, nor a rank that wants another block takes a turn.
    """
    found = {}
    for name, here, blocks, there, ranks_per_node in [
        ("a rank outside", [0, 1, 5, 6], 1, [9, 8, 4, 3], 5),
        ("a holder", [0, 1, 4, 5], 1, [7, 6, 3, 2, 0], 4),
        ("another block", [0, 1, 2, 3, 8, 9, 10, 11], 2, [4, 6, 12, 14, 5, 7, 13, 15], 8),
    ]:
        source = Layout(["x"], Mesh(here, [("replicas", len(here) // blocks), ("x", blocks)]))
        target = Layout(["y"], Mesh(there, [("y", len(there))]))
        found[name] = Case((80,), np.dtype("f8"), source, target, Machine(nodes=ranks_per_node), None)
    return found


def test_every_box_that_is_sent_is_received_once(exchanges):
    for name, _, step, sent in exchanges:
        received = {(there, here): box for (here, there), box in pairs(step, step.receives).items()}
        assert sent == received, name
        for device in range(len(step.ranks)):
            elements = sum(size_of(box) for (_, here), box in received.items() if here == device)
            target = step.target_box(device)
            assert elements == (0 if target is None else box_size(target)), name


def size_of(box):
    return prod(b - a for a, b in zip(*box, strict=True))


def holders(case, step, box):
    """The devices that have all of *box*."""
    have = boxes(case.source, case.shape, step.ranks)
    return [d for d, block in enumerate(have) if shared(block, list(zip(*box, strict=True))) == size_of(box)]


def test_the_nearest_replica_serves(exchanges):
    """A rank itself, else one on its node, if any of them has what it needs."""
    kinds = Counter()
    for name, case, step, sent in exchanges:
        nodes = case.machine.node_of(np.array(step.ranks)).tolist()
        for (sender, receiver), box in sent.items():
            able = holders(case, step, box)
            assert sender in able, name
            if receiver in able:
                assert sender == receiver, name
                kinds["own"] += 1
            elif any(nodes[d] == nodes[receiver] for d in able):
                assert nodes[sender] == nodes[receiver], name
                kinds["near"] += 1
            else:
                kinds["far"] += 1
    assert min(kinds[kind] for kind in ("own", "near", "far")) > len(CASES) // 30


def test_replicas_share_the_load(exchanges):
    """Those on a node serve its ranks evenly; those of a machine of one node one rank beyond their share at most."""
    for name, case, step, sent in exchanges:
        nodes = case.machine.node_of(np.array(step.ranks)).tolist()
        served = Counter()
        for sender, receiver in sent:
            if sender != receiver and nodes[sender] == nodes[receiver]:
                served[step.held_box(sender), nodes[sender], sender] += 1
        for (block, node, _), count in served.items():
            able = [d for d in holders(case, step, tuple(zip(*block, strict=True))) if nodes[d] == node]
            total = sum(others for key, others in served.items() if key[:2] == (block, node))
            assert count <= -(-total // len(able)) + case.machine.one_node, name


# -- meshes of a million ranks ----------------------------------------------------------------------------------------

LARGE = 2**20
ONE_NODE, MANY_NODES = Machine(), Machine(nodes=8)


def large(first, *sizes):
    return Mesh(range(first, first + LARGE), list(zip("xy", sizes, strict=False)))


def large_pairs():
    """Layouts of a matrix between which a rank exchanges with a thousand others at most, and what to expect of one."""
    mesh, square = large(0, 2**17, 8), large(0, 1024, 1024)
    yield "same mesh", (2**17, 64, 64), Layout(["x", "y", U], mesh), Layout(["x", U, "y"], mesh), 7
    yield "a thousand", (1024, 1024, 1024), Layout(["x", "y", U], square), Layout(["x", U, "y"], square), 1023
    yield "disjoint", (LARGE, 4), Layout([("x", "y"), U], mesh), Layout([("x", "y"), U], large(LARGE, 2**10, 2**10)), 1
    half = large(LARGE // 2, 2**10, 2**10)
    yield "overlapping", (LARGE, 1024), Layout([("x", "y"), U], mesh), Layout(["x", "y"], half), 1024
    yield "replicated", (LARGE, 8), Layout(["x", U], mesh), Layout([("y", "x"), U], half), 1
    yield "another order", (LARGE, 64), Layout([("x", "y"), U], mesh), Layout([("y", "x"), U], half), 1


def plan_of_one(shape, source, target, machine, device):
    """All that one rank plans to take part in a relayout."""
    plan = plan_relayout(shape, "f4", source, target, machine=machine)
    device %= len(plan.ranks)
    part = plan.for_device(device)
    (step,) = plan.steps
    return part, step.sends(device), step.receives(device), step.position_of(device)


@pytest.mark.parametrize("machine", [ONE_NODE, MANY_NODES], ids=["one node", "nodes of 8"])
@pytest.mark.parametrize(
    ("shape", "source", "target", "others"), [p[1:] for p in large_pairs()], ids=[p[0] for p in large_pairs()]
)
@pytest.mark.parametrize("device", [54321, LARGE - 12345, -1])
def test_one_rank_of_a_million_plans_only_what_it_exchanges(shape, source, target, others, machine, device):
    plan_of_one(shape, source, target, machine, device)
    forget_plans()
    tracemalloc.start()
    try:
        part, sends, receives, _ = plan_of_one(shape, source, target, machine, device)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert part.messages <= others
    assert len(sends.peers) <= 1 + others * 8
    assert len(receives.peers) <= others + 1
    assert peak < 2**20, "a byte for every rank would be more"
