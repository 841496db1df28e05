"""Limits on scratch memory: predicted, and counted in lockstep."""

from itertools import product

import pytest

from meshcomm import Layout, Machine, Mesh, ShapeError, plan_relayout
from meshcomm.core._tuning import DEFAULT_SCRATCH
from support.lockstep import blocks_between, lockstep
from support.random_cases import Case, least_scratch
from support.reference import mesh_of, random_bits, same_bits, tuple_layouts
from support.sampling import sampled

U = "unsharded"


# -- every pair of layouts --------------------------------------------------------------------------------------------


MESHES = [(mesh_of(*sizes), mesh_of(*sizes)) for sizes in [(3,), (2, 2), (2, 3)]]


MESHES += [
    (Mesh(range(3), {"x": 3}), Mesh([4, 1], {"x": 2})),
    (Mesh(range(4), {"x": 2, "y": 2}), Mesh([3, 0, 2, 1], {"x": 4})),
]


@pytest.mark.parametrize("meshes", MESHES, ids=lambda pair: f"{list(pair[0].ranks)} to {list(pair[1].ranks)}")
@pytest.mark.parametrize("shape", [(13,), (7, 5), (4, 3, 4)], ids=str)
def test_scratch_is_within_every_bound(meshes, shape):
    """From the minimum, which the error states, to no bound at all: what is predicted, and what is counted."""
    array, rounds = random_bits(shape, "V3"), 0
    pairs = list(product(*(list(tuple_layouts(mesh, len(shape))) for mesh in meshes)))
    tried = sampled(pairs[:: 1 + len(pairs) // 25], 24)
    for source, target in tried:
        least = least_scratch(Case(shape, array.dtype, source, target, Machine(), None))
        blocks, expected = (None, None)
        for bound in sorted({least, least + 1, 2 * least, least + 40, None}, key=lambda b: (b is None, b)):
            plan = plan_relayout(shape, array.dtype, source, target, bound)
            blocks = blocks or blocks_between(array, source, plan)
            expected = expected or blocks_between(array, target, plan)
            run = lockstep(plan, blocks)
            limit = DEFAULT_SCRATCH if bound is None else bound
            assert max(run.scratch) <= limit, f"bound {bound} of\n{plan}"
            for device, (block, wanted) in enumerate(zip(run.blocks, expected, strict=True)):
                assert (block is None and wanted is None) or same_bits(block, wanted), f"bound {bound} of\n{plan}"
                ends = sum(b.nbytes for b in (blocks[device], wanted) if b is not None)
                peak = plan.for_device(device).peak_bytes
                assert run.peak_bytes[device] <= peak <= ends + limit, f"device {device}, bound {bound} of\n{plan}"
            rounds = max([rounds, *(step.rounds for step in plan.steps)])
    assert rounds > 1 or len(shape) == 1 or len(tried) < 10, "boxes of vectors are never packed"


def test_the_minimum_is_stated_and_works():
    mesh = mesh_of(4)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    said = r"max_scratch_bytes=31 is too little .*: the minimum is 32 bytes, one element of each box$"
    with pytest.raises(ShapeError, match=said):
        plan_relayout((8, 8), "f8", rows, columns, 31)
    assert plan_relayout((8, 8), "f8", rows, columns, 32).steps[0].rounds > 1
    assert plan_relayout((8, 8), "f8", rows, Layout([U, U], mesh), 0).steps[0].rounds == 1, "received in place"


def test_the_default_is_bounded_too():
    mesh = mesh_of(2)
    plan = plan_relayout((2**14, 2**14), "f4", Layout(["x", U], mesh), Layout([U, "x"], mesh))
    assert plan.steps[0].rounds > 1
    assert plan.peak_bytes <= 2 * 2**29 + DEFAULT_SCRATCH
