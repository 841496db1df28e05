"""Layouts of all kinds on real ranks, which share memory or do not: names, chosen boundaries, cyclic blocks."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import ShapeError, plan_relayout
from support.random_cases import (
    case_of_kinds,
    least_scratch,
    max_block_bytes,
)
from support.reference import random_bits
from support.sampling import sampled
from support.tensors import is_right

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SIZES = tuple(size for size in (1, 2, 2, 3, 3, 4, 5, 6, 8) if size <= SIZE)
U = "unsharded"
EACH = 8


@pytest.mark.parametrize("block", sampled(range(max(12, 60 // SIZE)), 5))
def test_random_relayouts(there, block):
    """As they are, within a limit, by a plan, into given memory, started, and all at once."""
    tensors, arrays, layouts, requests = [], [], [], []
    for number in range(EACH):
        case = case_of_kinds(10_000 * SIZE + EACH * block + number, ranks=SIZE, sizes=SIZES)
        array, source, target = random_bits(case.shape, case.dtype, number), there(case.source), there(case.target)
        tensor = mc.distribute(array, source)
        assert is_right(tensor, array, source), f"{case}"
        assert is_right(mc.relayout(tensor, target), array, target), f"{case}"
        least = least_scratch(case._replace(source=source, target=target, machine=mc.Machine()))
        limits = [least, least + int((case.tightness or 0.5) * max_block_bytes(case))]
        for limit in limits:
            try:
                plan = plan_relayout(case.shape, case.dtype, source, target, limit, case.machine)
            except ShapeError:  # the least of another machine
                plan = plan_relayout(case.shape, case.dtype, source, target, None, case.machine)
            assert is_right(plan.execute(tensor), array, target), f"{plan}"
        out = mc.zeros(case.shape, case.dtype, target)
        assert mc.relayout(tensor, target, out=out) is out
        assert is_right(out, array, target), f"{case}"
        requests.append(mc.start_relayout(tensor, target))
        tensors.append(tensor)
        arrays.append(array)
        layouts.append(target)
    moved = mc.relayout(tensors, layouts)
    for i in np.random.default_rng(RANK).permutation(len(requests)):
        assert is_right(requests[i].wait(), arrays[i], layouts[i]), f"started: {tensors[i]} to {layouts[i]}"
        assert is_right(moved[i], arrays[i], layouts[i]), f"all at once: {tensors[i]} to {layouts[i]}"
