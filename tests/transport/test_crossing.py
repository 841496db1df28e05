"""Exchanges between nodes through aggregators: who exchanges for whom, what lies where, and when it pays. No MPI."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcomm import Layout, Machine, Mesh, plan_relayout
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.plans import costs
from meshcomm.core.plans.step import Slice
from meshcomm.core.transport.crossing import BufferCopies, Crossing, Nodes
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec
from meshcomm.core.transport.relay import Relayed
from support.reference import numbered
from support.strategies import layouts, relayouts

U = "unsharded"
UNTOUCHED = -1


# -- who exchanges for whom -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24))
def test_ranks_share_the_other_nodes_evenly(numbers):
    nodes = Nodes(numbers)
    for node in range(nodes.count):
        members = nodes.members(node).tolist()
        taken = [nodes.aggregator(node, other) for other in range(nodes.count) if other != node]
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


def described(step, group, position):
    """The boxes that the devices of a *group* exchange in *step*, for the one at *position*."""
    return BoxExchange(
        step.itemsize,
        position,
        lambda position: step.held_box(group[position]),
        lambda position: step.target_box(group[position]),
        lambda position: step.sends(group[position]),
        lambda position: step.receives(group[position]),
    )


def arrive(step, group, numbers):
    """Run what goes through aggregators among the devices of a *group*, and check all that arrives and does not."""
    array = numbered(step.shape)
    nodes = Nodes(numbers)
    tensors = [described(step, group, position) for position in range(len(group))]
    ranks = [BufferCopies(nodes, tensor) for tensor in tensors]
    sources = [cut(array, step.held_box(device)) for device in group]
    expected = [cut(array, step.target_box(device)) for device in group]
    targets = [np.full_like(each, UNTOUCHED) for each in expected]
    buffers = [np.full(rank.buffer_bytes, 0xEE, np.uint8) for rank in ranks]
    for rank, source in zip(ranks, sources, strict=True):
        copies = rank.out(tuple(range(len(rank.members))))
        if copies is not None:
            copies.run([as_bytes(source)], [buffers[peer][: ranks[peer].sent_bytes] for peer in rank.members])
    deliver(ranks, buffers)
    for rank, target in zip(ranks, targets, strict=True):
        copies = rank.into(tuple(range(len(rank.members))))
        if copies is not None:
            copies.run([buffers[peer][ranks[peer].sent_bytes :] for peer in rank.members], [as_bytes(target)])
    for position, tensor in enumerate(tensors):
        boxes = tensor.receives
        for peer, which in zip(boxes.peers, boxes.which, strict=True):
            box = tuple(slice(*ends) for ends in zip(boxes.starts[which], boxes.stops[which], strict=True))
            box = within(box, step.target_box(group[position]))
            off_node = nodes.of[peer] != nodes.of[position]
            wanted = expected[position][box] if off_node else np.full_like(expected[position][box], UNTOUCHED)
            assert np.array_equal(targets[position][box], wanted), (step, position, peer)


def within(box, block):
    """A box of the global array, in the indices of the block that holds it."""
    return tuple(slice(s.start - start, s.stop - start) for s, (start, _) in zip(box, block, strict=True))


def deliver(ranks, buffers):
    sent = [buffer.copy() for buffer in buffers]
    for position, rank in enumerate(ranks):
        if rank.messages is None:
            continue
        _, (counts, offsets) = rank.messages
        for peer in np.flatnonzero(counts):
            (its_counts, its_offsets), _ = ranks[peer].messages
            assert its_counts[position] == counts[peer]
            message = sent[peer][its_offsets[position] : its_offsets[position] + its_counts[position]]
            buffers[position][offsets[peer] : offsets[peer] + counts[peer]] = message


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


def test_memory_is_within_the_scratch_limit():
    mesh = Mesh(range(4), [("x", 4)])
    (step,) = plan_relayout((64,), "i8", Layout(["x"], mesh), Layout([U], mesh)).steps
    communicator = SimpleNamespace(allreduce_max=lambda values: values)
    group = SimpleNamespace(nodes=(0, 1, 2, 3), rendezvous=None, communicator=lambda: communicator)
    relayed = Relayed(group, described(step, range(4), 0), ExchangeSpec(0, 0), None)
    assert relayed.scratch_bytes == 6 * 16 * 8  # three messages each way
    assert relayed.open(1024)
    assert not relayed.open(1023)


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


def pays(plan):
    (step,) = plan.steps
    assert ("between nodes through" in str(plan)) == costs.relay_pays(step, plan.machine)
    return costs.relay_pays(step, plan.machine)


def test_many_small_messages_go_through_aggregators():
    assert pays(transpose(64, 8, 16))
    assert pays(transpose(64, 8, 64))


def test_long_messages_few_messages_and_what_stays_on_a_node_do_not():
    assert not pays(transpose(64, 8, 2**16))
    assert not pays(transpose(8, 1, 16))
    assert not pays(transpose(64, 0, 16))


def test_what_runs_in_rounds_does_not():
    assert not pays(transpose(64, 8, 64, max_scratch_bytes=2000))
    assert pays(transpose(64, 8, 64, max_scratch_bytes=2**20))


def test_permutations_do_not():
    mesh = Mesh(range(16), [("x", 4), ("y", 4)])
    swapped = plan_relayout(
        (64,), "f8", Layout([("x", "y")], mesh), Layout([("y", "x")], mesh), machine=Machine(nodes=4)
    )
    assert not pays(swapped)


@pytest.mark.parametrize("always", [True, False])
def test_it_can_be_forced(always, monkeypatch):
    monkeypatch.setattr(costs, "ALWAYS", always)
    assert [pays(transpose(64, 8, length)) for length in (16, 2**16)] == [always] * 2
    assert not pays(transpose(64, 0, 16))


def test_the_choice_costs_little_on_large_meshes():
    """It looks at what three devices exchange, as all planning does."""
    assert pays(transpose(4096, 64, 16))
