"""What plans cost by the model of a machine."""

import pytest

import meshcomm as mc
from meshcomm.core.layouts.machine import CONSTANTS, Load
from meshcomm.core.plans import costs
from meshcomm.core.plans.costs import predicted_seconds, seconds, step_load
from meshcomm.core.plans.plan import plan_direct

U = mc.UNSHARDED


def line(size):
    return mc.Mesh(range(size), [("x", size)])


def grid(rows, columns):
    return mc.Mesh(range(rows * columns), [("x", rows), ("y", columns)])


def chosen(*sizes):
    return mc.Layout([mc.Cuts("x", sizes=sizes)], line(len(sizes)))


def load(shape, source, target, mesh, device=0, **machine):
    plan = mc.plan_relayout(
        shape, "u1", mc.Layout(source, mesh), mc.Layout(target, mesh), machine=mc.Machine(**machine)
    )
    return plan.for_device(device).load


def test_a_load_has_an_entry_for_each_constant():
    assert len(Load._fields) == len(CONSTANTS)
    for number, name in enumerate(CONSTANTS):
        costs = mc.Machine(**{other: float(other == name) for other in CONSTANTS})
        assert costs.seconds(Load(*range(1, 8))) == number + 1, name


def test_an_exchange_on_one_node():
    # Each rank packs the 3 x 3 boxes of 3 others, keeps one, and receives rows in place.
    assert load((12, 12), ["x", U], [U, "x"], line(4)) == Load(1, 3, 27, 0, 0, 0, 9 + 27)
    # What arrives is unpacked; rows are sent as they lie.
    assert load((12, 12), [U, "x"], ["x", U], line(4)) == Load(1, 3, 27, 0, 0, 0, 9 + 27)


def test_an_exchange_over_nodes_waits_once_for_the_farthest():
    assert load((12, 12), ["x", U], [U, "x"], line(4), nodes=2) == Load(0, 1, 9, 1, 2, 18, 9 + 27)
    assert load((12, 12), ["x", U], [U, "x"], line(4), nodes=(0, 1, 1, 1)) == Load(0, 0, 0, 1, 3, 27, 9 + 27)


def test_an_exchange_costs_what_its_costliest_rank_does():
    """Of few ranks; with unequal blocks that may be the first, one in the middle or the last."""
    source = mc.Layout(["x"], mc.Mesh([1, 0], [("x", 2)]))
    costliest = set()
    for order in ([3, 2, 1, 0], [2, 3, 1, 0], [0, 2, 1, 3]):
        target = mc.Layout([mc.Cuts("y", sizes=(4, 2, 1, 1))], mc.Mesh(order, [("y", 4)]))
        (step,) = mc.plan_relayout((8,), "f8", source, target).steps
        costs = [mc.Machine().seconds(step_load(step, mc.Machine(), device)) for device in range(4)]
        assert seconds(step, mc.Machine()) == max(costs), order
        costliest.add(costs.index(max(costs)))
    assert costliest == {0, 2, 3}


def test_rounds_are_exchanges_of_their_own():
    mesh = line(4)
    rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    plan = mc.plan_relayout((120, 120), "u1", rows, columns, max_scratch_bytes=1000)
    (step,) = plan.steps
    assert step.rounds > 1
    whole = mc.plan_relayout((120, 120), "u1", rows, columns).for_device(1).load
    expected = whole._replace(on_node_exchanges=step.rounds, on_node_messages=3 * step.rounds)
    assert plan.for_device(1).load == expected


def test_what_only_copies_passes_over_the_new_block():
    assert load((8, 8), [U, U], ["x", U], line(4)) == Load(0, 0, 0, 0, 0, 0, 16)
    assert load((8, 8), ["x", U], ["x", U], line(4)) == Load(0, 0, 0, 0, 0, 0, 16)


def test_a_plan_costs_what_its_candidate_does():
    mesh = mc.Mesh(range(8), [("x", 2), ("y", 4)])
    plan = mc.plan_relayout((64, 64, 8), "f8", mc.Layout(["x", "y", U], mesh), mc.Layout([U, "x", "y"], mesh))
    assert len(plan.candidates) == 2
    assert plan.seconds == pytest.approx(min(candidate.seconds for candidate in plan.candidates))
    assert plan.seconds == max(plan.for_device(device).seconds for device in (0, 4, 7))


def test_every_exchange_waits():
    """Two exchanges of one message each are cheaper than one of three only if ranks need not wait for each other."""
    mesh = mc.Mesh(range(4), [("x", 2), ("y", 2)])
    source, target = mc.Layout([("x", "y"), U, U], mesh), mc.Layout([U, "x", "y"], mesh)
    steps = {
        wait: len(mc.plan_relayout((8, 8, 8), "f8", source, target, machine=mc.Machine(wait_within=wait)).steps)
        for wait in (0.0, 1e-5)
    }
    assert steps == {0.0: 2, 1e-5: 1}


def test_between_meshes():
    rows, columns = mc.Layout(["x", U], line(2)), mc.Layout([U, "x"], mc.Mesh([2, 3], [("x", 2)]))
    plan = plan_direct((4, 4), "u1", rows, columns, mc.Machine(nodes=2))
    assert [tuple(plan.for_device(device).load) for device in range(4)] == [
        (0, 0, 0, 0, 0, 0, 8),
        (0, 0, 0, 0, 0, 0, 8),
        (0, 0, 0, 1, 2, 8, 0),
        (0, 0, 0, 1, 2, 8, 0),
    ]


@pytest.mark.parametrize(
    ("shape", "source", "target", "busy"),
    [
        ((1, 4), mc.Layout(["x", U], line(64)), mc.Layout([U, "x"], line(64)), 1),  # the first keeps its element
        ((1, 4), mc.Layout(["x", U], grid(3, 5)), mc.Layout([U, "y"], grid(3, 5)), 5),
        ((4,), chosen(0, 4, 0, 0, 0, 0, 0, 0), chosen(0, 0, 0, 0, 0, 4, 0, 0), 5),
        ((2,), mc.Layout(["x"], line(5)), mc.Layout(["x"], mc.Mesh([0, 3, 2, 1, 4], {"x": 5})), 3),  # between meshes
    ],
)
def test_the_device_that_receives_is_looked_at_where_others_are_empty(shape, source, target, busy):
    plan = mc.plan_relayout(shape, "u1", source, target)
    costs = [plan.for_device(device).seconds for device in range(source.mesh.size)]
    assert busy not in (0, source.mesh.size // 2, source.mesh.size - 1)
    assert costs[busy] == max(costs) > 3e-6
    assert plan.seconds == predicted_seconds(plan.steps, plan.machine) == costs[busy]


@pytest.mark.parametrize(("direct", "pays"), [(1.9, False), (2.1, True)])
def test_a_step_goes_through_aggregators_if_that_costs_less_than_half(monkeypatch, direct, pays):
    (step,) = mc.plan_relayout((8, 8), "f8", mc.Layout(["x", U], line(4)), mc.Layout([U, "x"], line(4))).steps
    monkeypatch.setattr(costs, "off_node_costs", lambda *of: costs.OffNodeCosts(direct, 1.0))
    costs._pays.cache_clear()
    assert costs.relay_pays(step, mc.Machine(nodes=(0, 0, 1, 1))) == pays
    costs._pays.cache_clear()  # what is remembered stays true
