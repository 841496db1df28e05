"""The in-place transport in one process: ranks are threads, and map each other's pools."""

import sys
from itertools import product

import numpy as np
import pytest

from meshcomm import CollectiveMismatch, MeshError
from meshcomm.core.transport.exchange import ExchangeSpec
from meshcomm.core.transport.in_place import InPlace
from meshcomm.core.transport.local_copies import LocalCopies, block_offsets
from meshcomm.core.transport.packed import MessagesOnNode
from support.in_process_groups import Case, FailedElsewhere, anything, own_pools, rows_to_columns
from support.sampling import sampled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this memory")

MARK = 0xEE


@pytest.fixture
def ranks(monkeypatch):
    """A function that makes ranks on the hosts that are given."""
    with own_pools(monkeypatch) as make:
        yield make


class Recorder:
    """Stands for the exchange of what copies cannot move: notes what is left, and moves nothing."""

    def __init__(self):
        self.left = []

    def run(self, left, sources, targets):
        self.left.append(left)


def in_place(rank, cases, remaining=None, **terms):
    tensors = [case.tensor(rank.position) for case in cases]
    terms = ExchangeSpec(1, max(case.max_block_bytes for case in cases), **terms)
    if remaining is None:
        remaining = MessagesOnNode(rank.group, tensors, terms, terms.rounds)
    return InPlace(rank.group, tensors, terms, remaining)


def moved(rank, exchange, case, source_shared, target_shared):
    """Run an *exchange* of one tensor and return the new block, as bytes."""
    its, wanted = case.source(rank.position), case.target(rank.position)
    source, target = rank.block(len(its), source_shared), rank.block(len(wanted), target_shared)
    source[:], target[:] = its, MARK
    exchange.run([source], [target])
    assert np.array_equal(source, its), "the block before is as it was"
    source[:] = 0  # it is this rank's own again
    return target


# -- one tensor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_shared", [True, False])
@pytest.mark.parametrize("source_shared", [True, False])
@pytest.mark.parametrize("size", [2, 3])
def test_one_tensor(ranks, size, source_shared, target_shared):
    case = rows_to_columns(size, (7, 5), dtype="V6")

    def program(rank):
        exchange = in_place(rank, [case])
        for _ in range(3):
            target = moved(rank, exchange, case, source_shared, target_shared)
            assert np.array_equal(target, case.target(rank.position))
        return len(rank.communicator.received)

    with_messages = ranks([0] * size).results(program)
    neither = not source_shared and not target_shared
    assert with_messages == [size - 1 if neither else 0] * size, "who shares a block sends no messages"


def test_other_ranks_of_the_group_are_passed_over(ranks):
    """Two hosts: what would come from the other one is left as it was."""
    case = rows_to_columns(4, (8, 8))
    hosts = [0, 1, 0, 1]

    def program(rank):
        target = moved(rank, in_place(rank, [case], Recorder()), case, True, True).reshape(8, 2)
        wanted = case.target(rank.position).reshape(8, 2)
        for peer in range(4):
            rows = slice(2 * peer, 2 * peer + 2)
            here = hosts[peer] == hosts[rank.position]
            assert np.array_equal(target[rows], wanted[rows] if here else np.full((2, 2), MARK)), peer

    ranks(hosts).results(program)


# -- several tensors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_shared", [True, False])
@pytest.mark.parametrize("sources_shared", [True, False])
@pytest.mark.parametrize("size", [2, 3])
def test_several_tensors(ranks, size, sources_shared, memory_shared):
    cases = [rows_to_columns(size, (7, 5), dtype="V3"), anything(size, 4, dtype="V8"), Case((4,), *same(size), seed=3)]

    def program(rank):
        exchange = in_place(rank, cases)
        wanted = [case.target(rank.position) for case in cases]
        offsets = block_offsets([len(its) for its in wanted])
        for _ in range(3):
            sources = [rank.block(len(case.source(rank.position)), sources_shared) for case in cases]
            for source, case in zip(sources, cases, strict=True):
                source[:] = case.source(rank.position)
            memory = rank.block(offsets[-1], memory_shared)
            memory[:] = MARK
            targets = [memory[start : start + len(its)] for start, its in zip(offsets, wanted, strict=False)]
            exchange.run(sources, targets, memory)
            for target, its in zip(targets, wanted, strict=True):
                assert np.array_equal(target, its)
        return len(rank.communicator.received) > 0

    results = ranks([0] * size).results(program)
    if memory_shared:
        assert results == [False] * size, "who writes to shared memory sends no messages"
    else:
        assert any(results)


def same(size):
    """Boxes of four elements: one holder before, all after."""
    return [((0, 4),)] + [((4, 4),)] * (size - 1), [((0, 4),)] * size


# -- staging ----------------------------------------------------------------------------------------------------------


def received(rank):
    return sum(rank.communicator.received.values())


@pytest.mark.parametrize(
    ("terms", "stages"),
    [({}, True), ({"stages": False}, False), ({"scratch_limit": 17}, False), ({"scratch_limit": 18}, True)],
)
def test_blocks_are_staged_from_the_second_time_on(ranks, terms, stages):
    """Each rank sends 12 of its 18 bytes, as messages, until its block is staged."""
    case = Case((54,), [((18 * i, 18 * i + 18),) for i in range(3)], [((0, 54),)] * 3)

    def program(rank):
        exchange, counts = in_place(rank, [case], **terms), []
        for _ in range(4):
            before = received(rank)
            assert np.array_equal(moved(rank, exchange, case, False, False), case.target(rank.position))
            counts.append(received(rank) - before)
        return counts

    assert ranks([0] * 3).results(program) == [[36, 0, 0, 0] if stages else [36] * 4] * 3


@pytest.mark.parametrize(("source_shared", "target_shared"), [(True, False), (False, True)])
def test_a_block_is_not_staged_if_others_reach_it_or_the_new_one(ranks, source_shared, target_shared):
    case = rows_to_columns(2)

    def program(rank):
        exchange = in_place(rank, [case])
        for shared in ((False, False), (source_shared, target_shared)):
            assert np.array_equal(moved(rank, exchange, case, *shared), case.target(rank.position))
        return exchange._staging is None

    assert ranks([0] * 2).results(program) == [True] * 2


def test_without_memory_to_stage_in_messages_go_on(ranks, monkeypatch):
    case = rows_to_columns(2)

    def program(rank):
        exchange = in_place(rank, [case])
        held = []
        while (block := rank.pool.allocate(2**16)) is not None:  # all that the pool has
            held.append(block)
        for _ in range(3):
            assert np.array_equal(moved(rank, exchange, case, False, False), case.target(rank.position))
        return received(rank)

    assert all(count > 0 for count in ranks([0] * 2, share=2**18).results(program))


# -- what is left -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", sampled(list(product([False, True], repeat=6)), 20))
def test_what_is_left_is_what_neither_rank_shares(ranks, shared):
    """Both ends of a pair say so, and nothing of it was copied."""
    sources_shared, targets_shared = shared[:3], shared[3:]
    case = rows_to_columns(3, (6, 6))

    def program(rank):
        recorder, here = Recorder(), rank.position
        target = moved(rank, in_place(rank, [case], recorder), case, sources_shared[here], targets_shared[here])
        wanted, target = case.target(here).reshape(6, 2), target.reshape(6, 2)
        for peer in range(3):
            rows = slice(2 * peer, 2 * peer + 2)
            came = peer == here or sources_shared[peer] or targets_shared[here]
            assert np.array_equal(target[rows], wanted[rows] if came else np.full((2, 2), MARK)), peer
        return recorder.left

    for here, left in enumerate(ranks([0] * 3).results(program)):
        others = [peer for peer in range(3) if peer != here]
        senders = tuple(peer for peer in others if not sources_shared[peer] and not targets_shared[here])
        receivers = tuple(peer for peer in others if not sources_shared[here] and not targets_shared[peer])
        found = tuple(tuple(sorted(peers)) for peers in left[0]) if left else ((), ())
        assert found == (senders, receivers)
        assert len(left) == (found != ((), ()))


# -- errors -----------------------------------------------------------------------------------------------------------


def test_who_cannot_make_its_copies_tells_the_others(ranks, monkeypatch):
    case = rows_to_columns(3)
    made = LocalCopies.reads_and_writes

    def failing(self, reads_from, writes_to):
        if self.position == 1:
            raise MemoryError("no copies")
        return made(self, reads_from, writes_to)

    monkeypatch.setattr(LocalCopies, "reads_and_writes", failing)

    def program(rank):
        exchange = in_place(rank, [case])
        kind = MemoryError if rank.position == 1 else CollectiveMismatch
        with pytest.raises(kind) as raised:
            moved(rank, exchange, case, True, True)
        with pytest.raises(MeshError, match="ended with an error"):
            moved(rank, exchange, case, True, True)
        return str(raised.value)

    first, second, third = ranks([0] * 3).results(program)
    assert second == "no copies"
    assert "number 1 has left an exchange with rank number 0 with an error" in first
    assert "has left an exchange with rank number 2 with an error" in third


def test_ranks_that_made_other_calls_before_are_found_out(ranks):
    case = rows_to_columns(2)

    def program(rank):
        exchange = in_place(rank, [case])
        moved(rank, exchange, case, True, True)
        rank.group.rank_set.note(7 + rank.position)
        moved(rank, exchange, case, True, True)

    results = ranks([0] * 2).run(program)
    assert any(isinstance(result, CollectiveMismatch) for result in results)
    assert all(isinstance(result, CollectiveMismatch | FailedElsewhere) for result in results)


# -- the copies themselves --------------------------------------------------------------------------------------------


def copied_by(case, size, how):
    """Run the copies of all ranks, one after the other; *how* gives the peers that a rank reads from and writes to."""
    members = tuple(range(size))
    ranks = [LocalCopies([case.tensor(position)], members) for position in members]
    sources = [case.source(position).copy() for position in members]
    targets = [np.full(len(case.target(position)), MARK, np.uint8) for position in members]
    for rank in ranks:
        reads_from, writes_to = how(rank)
        reads, writes = rank.reads_and_writes(reads_from, writes_to)
        own = (rank.position,) if len(case.tensor(rank.position).sends.of(rank.position)) else ()
        if reads is not None:
            reads.run(only(sources, reads_from + own), [targets[rank.position]])
        if writes is not None:
            writes.run([sources[rank.position]], only(targets, writes_to if reads_from else writes_to + own))
    return targets


def only(blocks, positions):
    return [block if position in positions else None for position, block in enumerate(blocks)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("case", [rows_to_columns, lambda size: anything(size, 1), lambda size: anything(size, 2)])
def test_all_read_or_all_write(case, size):
    case = case(size)
    everybody_reads = copied_by(case, size, lambda rank: (tuple(peer for peer, _ in rank.pairs(True)), ()))
    everybody_writes = copied_by(case, size, lambda rank: ((), tuple(peer for peer, _ in rank.pairs(False))))
    for position in range(size):
        assert np.array_equal(everybody_reads[position], case.target(position))
        assert np.array_equal(everybody_writes[position], case.target(position))


def test_the_rank_with_the_shorter_runs_copies():
    """The other side is then touched in whole cache lines."""
    case = rows_to_columns(2, (6, 6))  # a box is 3 by 3: a row of it in a block of 6 columns, all of it in one of 3
    (pair,) = LocalCopies([case.tensor(0)], (0, 1)).pairs(False)
    assert pair == (1, True), "the sender has runs of 3, the receiver one of 9"
    back = Case((6, 6), case.targets, case.sources)
    (pair,) = LocalCopies([back.tensor(0)], (0, 1)).pairs(False)
    assert pair == (1, False)


def test_several_tensors_are_always_written():
    """Their new blocks lie in one array, which can be found; their blocks lie anywhere."""
    cases = [rows_to_columns(2, (6, 6)), rows_to_columns(2, (4, 4))]
    copies = LocalCopies([case.tensor(0) for case in cases], (0, 1))
    assert copies.pairs(True) == copies.pairs(False) == [(1, True)]


def test_blocks_in_one_array_begin_on_lines_of_their_own():
    offsets = block_offsets([1, 0, 64, 65, 7])
    assert offsets == [0, 64, 64, 128, 256, 320]
