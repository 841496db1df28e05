"""Layouts of all kinds on real ranks, which share memory or do not: names, chosen boundaries, blocks dealt round."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout, LayoutError, ShapeError, plan_relayout
from support.random_cases import (
    case_of_kinds,
    least_scratch,
    most_bytes,
)
from support.reference import numbered, random_bits
from support.sampling import sampled
from support.tensors import is_right
from support.verdicts import agree_raises

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
        limits = [least, least + int((case.tightness or 0.5) * most_bytes(case))]
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


def test_what_all_ranks_refuse(there):
    mesh = there(Layout(["x"], mc.Mesh(range(SIZE), {"x": SIZE}))).mesh
    boundaries = (0, *[1] * (SIZE - 1), 7) if SIZE > 1 else (0, 7)
    cuts, dealt = Layout([mc.Cuts("x", boundaries)], mesh), Layout([mc.Cyclic("x", 2)], mesh)
    tensor = mc.distribute(numbered((9,)), dealt)
    if SIZE > 1:
        for call in (
            lambda: mc.distribute(numbered((9,)), cuts),
            lambda: mc.distribute(numbered((9,)) if RANK == 0 else None, cuts, root=0),
            lambda: mc.relayout(tensor, cuts),
            lambda: mc.start_relayout(tensor, cuts),
            lambda: mc.relayout([tensor, tensor], [dealt, cuts]),
            lambda: mc.from_local(np.zeros(3), cuts, (9,)),
            lambda: mc.from_local(np.zeros(3), cuts),
            lambda: mc.zeros((9,), "f8", cuts),
        ):
            with agree_raises(ShapeError):
                call()
            assert is_right(mc.relayout(tensor, Layout(["x"], mesh)), numbered((9,)), Layout(["x"], mesh))
        with agree_raises(LayoutError, "layout.blocks"):
            dealt.block_slices((9,), RANK)
        with agree_raises(ShapeError):
            mc.from_local(np.zeros(2 if RANK else 5), dealt)
    with agree_raises((LayoutError, ShapeError)):
        mc.from_local(np.zeros((2,) * (RANK < SIZE - 1)), "cuts", mesh=mesh)
    assert is_right(mc.relayout(tensor, Layout([U], mesh)), numbered((9,)), Layout([U], mesh))
