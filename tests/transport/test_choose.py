"""Which way the bytes go, for which facts, alike on all ranks; and that each way moves what the plan says."""

import sys
from collections import Counter
from contextlib import suppress
from itertools import product

import numpy as np
import pytest

from meshcomm import CollectiveMismatch, Layout, Machine, plan_relayout
from meshcomm.core._tuning import MAX_HEADER_BLOCK_BYTES, MESSAGE_BYTES, ROUND_BYTES, SLOW_MESSAGE_BYTES
from meshcomm.core.arrays.compile import exchanged_boxes, exchanging_steps
from meshcomm.core.layouts.boxes import Boxes
from meshcomm.core.memory.scratch import scratch
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.core.transport import choose
from meshcomm.core.transport.exchange import BoxExchange, ExchangeSpec
from meshcomm.core.transport.local_copies import block_offsets
from support.in_process_groups import ALONE, anything, own_pools, rows_to_columns
from support.in_process_ranks import PAGE
from support.reference import mesh_of
from support.sampling import sampled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

U = "unsharded"
ONE_NODE, TWO_NODES, NO_SHARING = [0, 0, 0, 0], [0, 1, 0, 1], [ALONE] * 4
WITH_ONE_ALONE = [0, ALONE, 0, 0]
HOSTS = {"one node": ONE_NODE, "two nodes": TWO_NODES, "one alone": WITH_ONE_ALONE, "no sharing": NO_SHARING}


@pytest.fixture
def ranks(monkeypatch):
    """A function that makes ranks on the hosts that are given."""
    with own_pools(monkeypatch) as make:
        yield make


def moved(rank, operation, cases, source_shared=True, target_shared=True):
    """Run an *operation* and check the new blocks."""
    sources = [rank.block(len(case.source(rank.position)), source_shared) for case in cases]
    for source, case in zip(sources, cases, strict=True):
        source[:] = case.source(rank.position)
    wanted = [case.target(rank.position) for case in cases]
    offsets = block_offsets([len(its) for its in wanted])
    memory = rank.block(offsets[-1], target_shared)
    targets = [memory[start : start + len(its)] for start, its in zip(offsets, wanted, strict=False)]
    operation.run(sources, targets, memory if len(cases) > 1 else None)
    for target, its in zip(targets, wanted, strict=True):
        assert np.array_equal(target, its)


def operation_of(rank, cases, **terms):
    tensors = [case.tensor(rank.position) for case in cases]
    terms = {"max_block_bytes": sum(case.max_block_bytes for case in cases)} | terms
    return choose.exchange(rank.group, tensors, ExchangeSpec(1, **terms))


def gather(size):
    case = rows_to_columns(size, (8, 8))
    case.targets = [((0, 8), (0, 8))] * size
    return case


def ring(size):
    case = rows_to_columns(size, (8, 8))
    case.targets = case.sources[1:] + case.sources[:1]
    return case


def broadcast(size):
    case = rows_to_columns(size, (8, 8))
    case.targets = case.sources[1:2] * size
    return case


# -- the way ----------------------------------------------------------------------------------------------------------

WAYS = [
    # hosts, terms, what is exchanged, the way
    ("no sharing", {}, rows_to_columns, "Packed"),
    ("no sharing", {"permutes": True}, ring, "Permuted"),
    ("no sharing", {"gathers": True}, gather, "Gathered"),
    ("no sharing", {"relay_pays": True}, rows_to_columns, "Packed"),
    ("no sharing", {"root": 1}, broadcast, "Broadcast"),
    ("one node", {}, rows_to_columns, "InPlace"),
    ("one node", {"permutes": True}, ring, "InPlace"),
    ("one node", {"gathers": True}, gather, "InPlace"),
    ("one node", {"relay_pays": True}, rows_to_columns, "InPlace"),
    ("one node", {"root": 1}, broadcast, "InPlace"),
    ("two nodes", {}, rows_to_columns, "_Mixed"),
    ("two nodes", {"root": 1}, broadcast, "Broadcast"),
    ("two nodes", {"permutes": True}, ring, "_Mixed"),
    ("two nodes", {"gathers": True}, gather, "_Mixed"),
    ("two nodes", {"relay_pays": True}, rows_to_columns, "Relayed"),
    ("two nodes", {"relay_pays": True, "scratch_limit": 10}, rows_to_columns, "_Mixed"),
    ("one alone", {}, rows_to_columns, "_Mixed"),
    ("one alone", {"relay_pays": True}, rows_to_columns, "Relayed"),
]


@pytest.mark.parametrize(("hosts", "terms", "case", "way"), WAYS)
def test_the_way(ranks, hosts, terms, case, way):
    case = case(4)

    def program(rank):
        operation = operation_of(rank, [case], **terms)
        for _ in range(3):
            moved(rank, operation, [case])
        return type(operation._way).__name__, rank.communicator.calls

    results = ranks(HOSTS[hosts]).results(program)
    assert {found for found, _ in results} == {way}
    assert len({tuple(calls) for _, calls in results}) == 1, "all ranks make the same collective calls"


@pytest.mark.parametrize(
    ("max_block_bytes", "how"), [(MAX_HEADER_BLOCK_BYTES, "DigestHeader"), (MAX_HEADER_BLOCK_BYTES + 1, "Pairs")]
)
def test_ranks_that_bring_another_number_are_found(ranks, max_block_bytes, how):
    case = rows_to_columns(4, (8, 8))

    def program(rank):
        operation = operation_of(rank, [case], max_block_bytes=max_block_bytes)
        for _ in range(3):
            moved(rank, operation, [case])
        assert type(operation._over_mpi()._comparing).__name__ == how
        spec = ExchangeSpec(1 + (rank.position == 2), max_block_bytes)
        other = choose.exchange(rank.group, [case.tensor(rank.position)], spec)
        with pytest.raises(CollectiveMismatch, match="ranks 0, 1, 3" if rank.position == 2 else "rank 2"):
            moved(rank, other, [case])

    ranks(NO_SHARING).results(program)


@pytest.mark.parametrize("hosts", HOSTS)
def test_several_tensors_are_never_relayed_or_gathered(ranks, hosts):
    cases = [rows_to_columns(4, (7, 9), dtype="V3"), anything(4, 2, dtype="V2")]

    def program(rank):
        operation = operation_of(rank, cases, relay_pays=True)
        moved(rank, operation, cases)
        return type(operation._way).__name__

    way = {"one node": "InPlace", "no sharing": "Packed"}.get(hosts, "_Mixed")
    assert ranks(HOSTS[hosts]).results(program) == [way] * 4


def test_a_rank_by_itself_exchanges_with_nobody(ranks):
    def program(rank):
        case = rows_to_columns(1)
        operation = operation_of(rank, [case])
        moved(rank, operation, [case])
        return type(operation).__name__, rank.communicator.calls

    assert ranks([ALONE]).results(program) == [("LocalCopy", [])]


@pytest.mark.parametrize(("full", "way"), [(False, "Relayed"), (True, "_Mixed")])
def test_where_one_rank_has_no_memory_nobody_relays(ranks, full, way):
    case = rows_to_columns(4)

    def program(rank):
        taken = []
        for size in (PAGE, 1) if full and rank.position == 0 else ():
            while (memory := rank.pool.allocate(size)) is not None:
                taken.append(memory)
        operation = operation_of(rank, [case], relay_pays=True)
        moved(rank, operation, [case], not taken, not taken)
        return type(operation._way).__name__

    assert ranks(TWO_NODES).results(program) == [way] * 4


def test_a_group_that_was_opened_again_chooses_again(ranks):
    """Its rendezvous may be another one, or none."""
    case = rows_to_columns(4)

    def program(rank):
        group = rank.group
        operation, found = operation_of(rank, [case]), []
        kept = group.rendezvous, group.nodes
        for rendezvous, nodes in (kept, (None, None), (kept[0], (0, 0, 0, 0))):
            group.rendezvous, group.nodes = rendezvous, nodes
            moved(rank, operation, [case])
            way = operation._way
            moved(rank, operation, [case])
            assert operation._way is way, "while it is open the way stays"
            found.append(type(way).__name__)
        return found

    assert ranks(ONE_NODE).results(program) == [["InPlace", "Packed", "InPlace"]] * 4


@pytest.mark.parametrize(
    ("max_block_bytes", "oversubscribed", "one_node", "rounds", "expected"),
    [
        (4 * ROUND_BYTES, False, True, 1, 4),
        (4 * ROUND_BYTES, True, True, 1, 1),
        (4 * ROUND_BYTES, False, False, 1, 1),
        (4 * ROUND_BYTES, False, True, 9, 9),
        (4 * ROUND_BYTES, True, True, 9, 9),
        (8, False, True, 1, 1),
    ],
)
def test_rounds(ranks, max_block_bytes, oversubscribed, one_node, rounds, expected):
    """As many as the scratch limit asks for, or as the caches do, on a node with a processor for each rank."""
    case = rows_to_columns(8, (9, 9))

    def program(rank):
        rank_set = rank.group.rank_set
        rank_set._machine, rank_set.oversubscribed = Machine(nodes=0 if one_node else (0, 1) * 4), oversubscribed
        operation = operation_of(rank, [case], rounds=rounds, max_block_bytes=max_block_bytes)
        moved(rank, operation, [case])
        return operation._way.rounds, len(rank.communicator.calls)

    calls = expected if max_block_bytes > 8 else 0  # one small round goes in channels
    assert ranks([ALONE] * 8).results(program) == [(expected, calls)] * 8


@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [ALONE] * 4], ids=["two nodes", "no sharing"])
@pytest.mark.parametrize(("scratch_limit", "window"), [(2**25, 4), (0, 1)])
def test_rounds_between_hosts_are_in_flight_together(ranks, hosts, scratch_limit, window):
    """As many as the scratch limit allows: the results are right, and each round is one collective call."""
    case = rows_to_columns(4, (16, 16))

    def program(rank):
        operation = operation_of(rank, [case], scratch_limit=scratch_limit, max_block_bytes=16 * MESSAGE_BYTES)
        for _ in range(2):
            moved(rank, operation, [case])
        packed = operation._way if hosts[0] is ALONE else operation._way._off_node
        return packed.rounds, packed._window, rank.communicator.calls.count("alltoallv")

    assert ranks(hosts).results(program) == [(4, window, 8)] * 4


@pytest.mark.parametrize("seconds", [0.0, 1e-6])
def test_messages_are_shorter_on_a_slow_network(ranks, seconds):
    case = rows_to_columns(2, (8, 8))

    def program(rank):
        rank.group.rank_set._machine = Machine(nodes=(0, 1), beta_between=seconds)
        return operation_of(rank, [case], max_block_bytes=4 * MESSAGE_BYTES)._over_mpi().rounds

    assert ranks([ALONE] * 2).results(program) == [2 * MESSAGE_BYTES // SLOW_MESSAGE_BYTES if seconds else 2] * 2


@pytest.mark.parametrize(
    ("gathered", "count", "at_once"), [(2**17, 2, True), (2**17 + 1, 2, False), (2**31, 2**20, False)]
)
def test_small_blocks_are_gathered_at_once(gathered, count, at_once):
    assert choose.gathers_at_once(gathered, count) == at_once


# -- nonblocking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("permutes", [False, True])
def test_nonblocking_exchanges_start_without_waiting(ranks, hosts, permutes):
    case = ring(4) if permutes else rows_to_columns(4)

    def program(rank):
        here = rank.position
        operation = choose.Nonblocking(
            rank.group, [case.tensor(here)], ExchangeSpec(1, case.max_block_bytes, permutes=permutes)
        )
        in_flight = []
        for _ in range(2):  # two at the same time
            source, target = case.source(here), np.zeros(len(case.target(here)), np.uint8)
            in_flight.append((operation.start([source], [target], lambda use, size: np.empty(size, np.uint8)), target))
        for request, target in in_flight:
            request.wait()
            assert np.array_equal(target, case.target(here))
            assert request.test()

    ranks(HOSTS[hosts]).results(program)


# -- exchanges that are repeated --------------------------------------------------------------------------------------


def neighbours(size, itemsize):
    """Each rank has a row of three: what it gets from the rank before, its own, what it gets from the one after."""
    block = ((0, 3),)

    def boxes(peers, position, at):
        kept = [(peer, (to,)) for peer, to in zip(peers, at, strict=True) if peer is not None]
        found = np.array([to for _, to in kept], dtype=np.intp).reshape(len(kept), 1)
        who = np.array([peer for peer, _ in kept], dtype=np.intp)
        order = np.lexsort([found[:, 0], who])
        return Boxes(who[order], np.arange(len(kept), dtype=np.intp), found[order], found[order] + 1)

    class Rows(BoxExchange):
        def in_source(self, position, region, boxes):
            own = boxes._replace(starts=boxes.starts * 0 + 1, stops=boxes.stops * 0 + 2)
            return super().in_source(position, region, own)

    def sends(position):
        return boxes([(position + 1) % size, (position - 1) % size], position, [0, 2])

    def receives(position):
        return boxes([(position - 1) % size, (position + 1) % size], position, [0, 2])

    return lambda position: Rows(itemsize, position, lambda _: block, lambda _: block, sends, receives)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hosts", HOSTS)
def test_repeated_exchanges(ranks, hosts, shared):
    """On each node by a channel, if all blocks there are shared; by messages with all others."""
    tensors = [neighbours(4, 8), neighbours(4, 2)]

    def program(rank):
        here = rank.position
        blocks = [rank.block(3 * its(here).itemsize, shared or here != 2) for its in tensors]
        views = [block.view(f"u{its(here).itemsize}") for block, its in zip(blocks, tensors, strict=True)]
        its = choose.RepeatedExchange(
            rank.group, [its(here) for its in tensors], ExchangeSpec(1, 24, is_in_place=True), blocks
        )
        for turn in range(5):
            for number, view in enumerate(views):
                view[:] = 0, 10 * turn + here + number, 0
            if turn % 2:
                its.run()
            else:
                pending = its.start(lambda use, size: np.empty(size, np.uint8))
                pending.wait()
                assert pending.test()
            for number, view in enumerate(views):
                assert view.tolist() == [10 * turn + each % 4 + number for each in (here - 1, here, here + 1)]
        return its._channel is not None, its._messages is not None, len(rank.communicator.received)

    found = ranks(HOSTS[hosts]).results(program)
    alone = {"one node": [[], [0, 1, 2, 3]], "two nodes": [[], [0, 2]], "one alone": [[1], [0, 1, 2, 3]]}
    without = alone.get(hosts, [[0, 1, 2, 3]] * 2)[not shared]
    assert [channel for channel, _, _ in found] == [rank not in without for rank in range(4)]
    sends = hosts != "one node" or not shared
    assert [messages for _, messages, _ in found] == [sends] * 4
    assert sends or not any(received for _, _, received in found)


def test_repeated_exchanges_that_differ_are_found_out(ranks):
    tensor = neighbours(4, 8)

    def program(rank):
        blocks = [rank.block(24, True)]
        its = choose.RepeatedExchange(
            rank.group, [tensor(rank.position)], ExchangeSpec(1, 24, is_in_place=True), blocks
        )
        its.run()
        rank.group.rank_set.call_digest += rank.position == 2
        if rank.position == 0:  # its neighbours fail, perhaps after all that it needs is done
            with suppress(CollectiveMismatch):
                its.run()
            return
        with pytest.raises(CollectiveMismatch, match="made another collective call"):
            its.run()
        assert rank.group.rank_set.call_lock.end_reason

    ranks(ONE_NODE).results(program)


# -- messages on the node while others are in flight ------------------------------------------------------------------


def mixed(ranks):
    """Exchange blocks that nobody shares: messages on the node, while those to the other node are in flight."""
    case = rows_to_columns(4, (64, 64))

    def program(rank):
        operation = operation_of(rank, [case], stages=False)
        for _ in range(2):
            moved(rank, operation, [case], False, False)
        assert type(operation._way).__name__ == "_Mixed"
        assert set(rank.communicator.received) == {0, 1, 2, 3} - {rank.position}

    ranks(TWO_NODES).results(program)


def test_messages_on_the_node_do_not_touch_what_is_in_flight(ranks):
    mixed(ranks)


def test_with_one_buffer_for_both_they_would(ranks, monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(choose, "_off_node_buffer", scratch)
    with pytest.raises((AssertionError, CollectiveMismatch)):  # the data differ, or the digest that goes with them
        mixed(ranks)


@pytest.mark.parametrize(("missing", "with_messages"), [(0, [True, False, False]), (1, [True, True, True])])
def test_what_is_in_flight_and_what_is_staged_share_one_limit(ranks, missing, with_messages):
    """A block is staged at the second run if the limit has room for it beside the messages to the other node."""
    case = rows_to_columns(4, (1024, 256))  # large messages have no header, whatever the limit

    def program(rank):
        needed = operation_of(rank, [case])
        moved(rank, needed, [case], False, False)
        limit = len(case.source(rank.position)) + needed._way._off_node.scratch_bytes - missing
        operation, found, received = operation_of(rank, [case], scratch_limit=limit), [], rank.communicator.received
        for _ in with_messages:
            received.clear()
            moved(rank, operation, [case], False, False)
            found.append(received[(rank.position + 2) % 4] > 0)
        return found

    assert ranks(TWO_NODES).results(program) == [with_messages] * 4


# -- what moves is what the plan says ---------------------------------------------------------------------------------

HEADER = 8
"""The bytes of the digest that goes with each small message; a plan counts without them."""

CHANGES = {  # of one step, in one group of all ranks
    "rows to columns": ((4,), ["x", U], [U, "x"]),
    "columns to rows": ((4,), [U, "x"], ["x", U]),
    "gather": ((4,), ["x", U], [U, U]),
    "gather of boxes": ((2, 2), ["x", "y"], [U, U]),
    "swap": ((2, 2), ["x", "y"], ["y", "x"]),
    "reorder": ((2, 2), [("x", "y"), U], [("y", "x"), U]),
}


@pytest.mark.parametrize(
    ("nodes", "change", "shape"),
    sampled(product([*((hosts, False) for hosts in HOSTS), ("two nodes", True)], CHANGES, [(8, 12), (7, 5), (3, 2)])),
    ids=str,
)
def test_what_the_plan_predicts_is_what_is_counted(ranks, nodes, change, shape):
    """Each rank sends its number, so a new block shows from which ranks its bytes are, whichever way they came."""
    (hosts, relays), (dims, source, target) = nodes, CHANGES[change]
    mesh = mesh_of(*dims)
    plan = plan_relayout(shape, "u1", Layout(source, mesh), Layout(target, mesh))
    (step,) = exchanging_steps(plan)
    assert tuple(step.group_of(0)) == (0, 1, 2, 3)

    def program(rank):
        here = Location(None, rank.position)
        tensor = exchanged_boxes(step, here)
        terms = ExchangeSpec(1, 100, relay_pays=relays, permutes=step.permutes)
        operation = choose.exchange(rank.group, [tensor], terms)
        block = rank.block(tensor.source_bytes(rank.position), True)
        new = rank.block(tensor.target_bytes(rank.position), True)
        block[:], new[:] = rank.position, 0xEE
        operation.run([block], [new])
        return Counter(new.tolist()), rank.communicator.received

    for device, (found, over_mpi) in enumerate(ranks(HOSTS[hosts]).results(program)):
        del found[device]
        predicted = plan.for_device(device)
        assert sum(found.values()) == predicted.bytes_moved
        assert len(found) == predicted.messages
        if relays:
            continue  # an aggregator receives for others
        shared = {
            peer
            for peer, host in enumerate(HOSTS[hosts])
            if host == HOSTS[hosts][device] and host is not ALONE and peer != device
        }
        assert over_mpi == Counter({peer: count + HEADER for peer, count in found.items() if peer not in shared})


@pytest.mark.parametrize("seed", sampled(range(60), 15))
def test_any_boxes_any_hosts_any_memory(ranks, seed):
    """Replicas, empty blocks, nodes of different sizes; blocks that are shared on some ranks, in some calls."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    hosts = [ALONE if host == 3 else int(host) for host in rng.integers(0, 4, size)]
    case = anything(size, seed, dtype=f"V{1 + seed % 5}")
    relays = bool(seed % 2)

    def program(rank):
        operation = operation_of(rank, [case], relay_pays=relays, rounds=1 if relays else 1 + seed % 3)
        for number in range(4):
            shared = np.random.default_rng([seed, number, rank.position]).random(2) < 0.5
            moved(rank, operation, [case], *shared)
        return rank.communicator.calls

    calls = ranks(hosts).results(program)
    assert all(its == calls[0] for its in calls)
