"""Exchanges between nodes through partners: who exchanges for whom, what lies where, and when it pays. No MPI."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshcomm import Layout, Machine, Mesh, plan_relayout
from meshcomm.arrays.compile import ends_of, exchange_part
from meshcomm.memory.blocks import as_bytes
from meshcomm.plans import costs
from meshcomm.plans.step import Slice
from meshcomm.transport.crossing import Crossing, Nodes
from meshcomm.transport.relay import Near, Relay
from support.reference import numbered
from support.strategies import layouts, relayouts

U = "unsharded"
UNTOUCHED = -1
NOBODY = Near([], [], lambda mates: None)


# -- who exchanges for whom -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24))
def test_ranks_share_the_other_nodes_evenly(numbers):
    nodes = Nodes(numbers)
    for node in range(nodes.count):
        members = nodes.members(node).tolist()
        taken = [nodes.partner(node, other) for other in range(nodes.count) if other != node]
        assert set(taken) <= set(members)
        turns = [taken.count(member) for member in members]
        assert max(turns) - min(turns) <= 1


# -- what arrives -----------------------------------------------------------------------------------------------------


def devices_in_groups(step):
    left = set(range(len(step.ranks)))
    while left:
        group = step.group_of(min(left))
        left -= set(group)
        yield group


def arrive(step, group, numbers):
    """Run what goes through partners among the devices of a *group*, and check all that arrives and does not."""
    array = numbered(step.shape)
    relays, sources, targets, expected = [], [], [], []
    for place, device in enumerate(group):
        its = SimpleNamespace(nodes=tuple(numbers), meeting=None, members=group)
        relays.append(Relay(its, place, exchange_part(step, device), ends_of(step, device), 0, NOBODY))
        sources.append(cut(array, step.held_box(device)))
        expected.append(cut(array, step.target_box(device)))
        targets.append(np.full_like(expected[-1], UNTOUCHED))
    rooms = [np.full(relay.room, 0xEE, np.uint8) for relay in relays]
    nodes = Nodes(numbers)
    for place, relay in enumerate(relays):
        mates = nodes.members(nodes.of[place]).tolist()
        copies = relay.copies_out(tuple(range(len(mates))))
        if copies is not None:
            copies.run([as_bytes(sources[place])], [sent_of(relays[mate], rooms[mate]) for mate in mates])
    deliver(relays, rooms)
    for place, relay in enumerate(relays):
        mates = nodes.members(nodes.of[place]).tolist()
        copies = relay.copies_in(tuple(range(len(mates))))
        if copies is not None:
            received = [received_of(relays[mate], rooms[mate]) for mate in mates]
            copies.run(received, [as_bytes(targets[place])])
    for place, device in enumerate(group):
        boxes = exchange_part(step, device).receives
        for peer, which in zip(boxes.peers, boxes.which, strict=True):
            box = tuple(slice(*ends) for ends in zip(boxes.starts[which], boxes.stops[which], strict=True))
            far = nodes.of[peer] != nodes.of[place]
            wanted = expected[place][box] if far else np.full_like(expected[place][box], UNTOUCHED)
            assert np.array_equal(targets[place][box], wanted), (step, place, peer)


def deliver(relays, rooms):
    sent = [room.copy() for room in rooms]
    for place, relay in enumerate(relays):
        if relay.messages is None:
            continue
        _, (counts, offsets) = relay.messages
        for peer in np.flatnonzero(counts):
            (its_counts, its_offsets), _ = relays[peer].messages
            assert its_counts[place] == counts[peer]
            message = sent[peer][its_offsets[place] : its_offsets[place] + its_counts[place]]
            rooms[place][offsets[peer] : offsets[peer] + counts[peer]] = message


def sent_of(relay, room):
    return room[: relay.first]


def received_of(relay, room):
    return room[relay.first :]


def cut(array, box):
    return np.empty(0, array.dtype) if box is None else array[tuple(slice(*ends) for ends in box)].copy()


def check(plan, numbers):
    for step in plan.steps:
        if not isinstance(step, Slice):
            for group in devices_in_groups(step):
                arrive(step, group, [numbers[step.ranks[device]] for device in group])


@given(relayouts(sizes=range(2, 9)), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_what_crosses_between_nodes_arrives_and_nothing_else(case, numbers):
    shape, source, target = case
    check(plan_relayout(shape, "i8", source, target), numbers)


@st.composite
def between(draw):
    source = Mesh(draw(st.sampled_from([range(4), (5, 2, 0, 3)])), [("x", 2), ("y", 2)])
    target = Mesh(draw(st.sampled_from([range(2, 8), (1, 7, 0, 4, 2, 6)])), [("x", 2), ("y", 3)])
    return draw(layouts(source, 2)), draw(layouts(target, 2))


@given(between(), st.tuples(*[st.integers(0, 9)] * 2), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_what_crosses_between_meshes_arrives(pair, shape, numbers):
    machine = Machine(nodes=tuple(numbers))
    check(plan_relayout(shape, "i8", *pair, machine=machine), numbers)


def test_memory_is_within_the_bound():
    mesh = Mesh(range(4), [("x", 4)])
    (step,) = plan_relayout((64,), "i8", Layout(["x"], mesh), Layout([U], mesh)).steps
    communicator = SimpleNamespace(allreduce_max=lambda values: values)
    group = SimpleNamespace(nodes=(0, 1, 2, 3), meeting=None, communicator=lambda: communicator)
    relay = Relay(group, 0, exchange_part(step, 0), ends_of(step, 0), 0, NOBODY)
    assert relay.room == 6 * 16 * 8  # three messages each way
    assert relay.open(1024)
    assert not relay.open(1023)


def test_what_all_ranks_of_a_node_need_crosses_to_it_once():
    mesh = Mesh(range(8), [("x", 8)])
    (step,) = plan_relayout((64,), "i8", Layout(["x"], mesh), Layout([U], mesh)).steps
    incoming = Crossing(Nodes([0] * 4 + [1] * 4), 0, step.receives, False, step.itemsize)
    assert incoming.lengths.tolist() == [0, 4 * 8 * 8]


# -- when it pays -----------------------------------------------------------------------------------------------------


def transpose(ranks, per_node, nbytes, **more):
    """A plan by which every rank sends *nbytes* bytes to every rank."""
    mesh = Mesh(range(ranks), [("x", ranks)])
    shape = 2 * ranks, ranks * nbytes // 16
    return plan_relayout(
        shape, "f8", Layout(["x", U], mesh), Layout([U, "x"], mesh), machine=Machine(nodes=per_node), **more
    )


def chosen(plan):
    (step,) = plan.steps
    assert ("through partners" in str(plan)) == costs.chosen(step, plan.machine)
    return costs.chosen(step, plan.machine)


def test_many_small_messages_go_through_partners():
    assert chosen(transpose(64, 8, 16))
    assert chosen(transpose(64, 8, 64))


def test_long_messages_few_messages_and_what_stays_on_a_node_do_not():
    assert not chosen(transpose(64, 8, 2**16))
    assert not chosen(transpose(8, 1, 16))
    assert not chosen(transpose(64, 0, 16))


def test_what_runs_in_rounds_does_not():
    assert not chosen(transpose(64, 8, 64, max_scratch_bytes=2000))
    assert chosen(transpose(64, 8, 64, max_scratch_bytes=2**20))


def test_permutations_do_not():
    mesh = Mesh(range(16), [("x", 4), ("y", 4)])
    swapped = plan_relayout(
        (64,), "f8", Layout([("x", "y")], mesh), Layout([("y", "x")], mesh), machine=Machine(nodes=4)
    )
    assert not chosen(swapped)


def test_it_can_be_forced(monkeypatch):
    short, long = transpose(64, 8, 16), transpose(64, 8, 2**16)
    monkeypatch.setattr(costs, "ALWAYS", True)
    assert chosen(long)
    assert not chosen(transpose(64, 0, 16))
    monkeypatch.setattr(costs, "ALWAYS", False)
    assert not chosen(short)


def test_the_choice_costs_little_on_large_meshes():
    """It looks at what three devices exchange, as all planning does."""
    assert chosen(transpose(4096, 64, 16))
