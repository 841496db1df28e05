"""Exchanges too large for an int."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from meshcomm import Layout, Machine, plan_relayout
from meshcomm.core import _tuning
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core.arrays.compile import exchanged_boxes, max_block_bytes
from meshcomm.core.plans.plan import plan_direct
from meshcomm.core.ranks import mpi
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.core.transport.exchange import ExchangeSpec
from meshcomm.core.transport.packed import Packed
from support.reference import mesh_of

U = "unsharded"


# -- large counts -----------------------------------------------------------------------------------------------------


class NoRankSet:
    """A rank set that only knows what its MPI can count."""

    def __init__(self, large_counts):
        self.large_counts = large_counts
        self.world, self.machine = SimpleNamespace(takes_turns=False), Machine()

    def group(self, key, color, members):
        return SimpleNamespace(members=members, rank_set=self)


def exchange_of(plan, device, large_counts=True):
    """The exchange of a plan of one step, of which nothing is allocated."""
    (step,) = plan.steps
    members = tuple(step.ranks[d] for d in step.group_of(device))
    group = NoRankSet(large_counts).group(None, 0, members)
    tensor = exchanged_boxes(step, Location(None, device))
    return Packed(group, [tensor], ExchangeSpec(0, max_block_bytes(step)), step.rounds)


@pytest.mark.parametrize("total", [2**31, 2**32, 2**33 + 3 * 2**20, 2**40])
@pytest.mark.parametrize("ranks", [2, 3, 20], ids="{} ranks".format)
def test_counts_and_offsets_of_large_blocks(total, ranks):
    """Each rank sends so many bytes to each other one, also those that it packs first."""
    mesh = mesh_of(ranks)
    for specs in ([["x", U], [U, "x"]], [[U, "x"], ["x", U]]):
        shape = (ranks, total * ranks) if specs[0][0] == "x" else (total * ranks, ranks)
        plan = plan_direct(shape, "u1", *(Layout(s, mesh) for s in specs))
        for device in (0, ranks - 1):
            made = exchange_of(plan, device)
            for side in (made.send, made.receive):
                counts, offsets = (np.asarray(values).tolist() for values in side.counts(0, 1))
                others = [position for position in range(ranks) if position != device]
                assert counts == [0 if position == device else total for position in range(ranks)]
                starts = [offsets[position] for position in others]
                start = starts[0]
                assert starts == [
                    start + i * total if side.packing else position * total for i, position in enumerate(others)
                ]


@pytest.mark.parametrize("itemsize", [1, 16])
def test_rounds_of_large_blocks_make_the_whole(itemsize):
    mesh = mesh_of(2)
    length = 2**40 // itemsize
    plan = plan_relayout((2 * length, 2), f"V{itemsize}", Layout(["x", U], mesh), Layout([U, "x"], mesh))
    (step,) = plan.steps
    made = exchange_of(plan, 0)
    assert made.rounds == step.rounds > 2**40 // DEFAULT_SCRATCH
    assert made.scratch_bytes <= DEFAULT_SCRATCH
    sent = 0
    for number in (0, 1, step.rounds // 2, step.rounds - 1):
        counts, offsets = (np.asarray(values).tolist() for values in made.receive.counts(number, made.rounds))
        length_before = length // step.rounds * number + min(number, length % step.rounds)
        assert offsets[1] == (length + length_before) * itemsize, "received in place"
        assert counts[0] == 0
        sent += counts[1]
        assert counts[1] == made.send.counts(number, made.rounds)[0][1] <= made.send.buffer_bytes(made.rounds)
    assert 4 * (length // step.rounds) * itemsize <= sent <= 4 * (length // step.rounds + 1) * itemsize


@pytest.mark.parametrize(
    ("block", "large_counts", "in_messages"),
    [
        (2**31 - 2, False, False),
        (2**31, False, True),
        (2**31, True, False),
        (2**40, False, True),
        (2**40, True, False),
    ],
)
def test_messages_are_for_an_mpi_that_counts_with_an_int(block, large_counts, in_messages):
    mesh = mesh_of(2)
    plan = plan_direct((2 * block,), "u1", Layout(["x"], mesh), Layout([U], mesh))
    largest = plan.for_device(1)
    assert largest.bytes_moved == block
    # The new block has twice as many bytes, and offsets into it.
    assert exchange_of(plan, 1, large_counts)._in_messages is (
        in_messages or (not large_counts and 2 * block >= 2**31)
    )
    same = plan_direct((block, 2), "u1", Layout([U, "x"], mesh), Layout(["x", U], mesh))
    assert exchange_of(same, 0, large_counts)._in_messages is in_messages


def test_what_is_sent_at_once_can_be_counted():
    class Long:
        """Bytes of which there are too many to make them."""

        def __init__(self, start, stop):
            self.start, self.stop = start, stop

        def __len__(self):
            return self.stop - self.start

        def __getitem__(self, part):
            start, stop, _ = part.indices(len(self))
            return Long(self.start + start, self.start + stop)

    for size in (0, 1, 2**30, 2**31 - 1, 2**31, 2**32 + 5, 2**40):
        messages = mpi._countable(Long(0, size))
        assert sum(map(len, messages)) == size
        assert all(0 < len(message) <= _tuning.MAX_COUNT for message in messages)
        assert all(a.stop == b.start for a, b in pairwise(messages))
