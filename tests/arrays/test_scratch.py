"""Scratch memory that relayouts use, measured."""

import gc
import tracemalloc

import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.memory.scratch import forget_scratch
from support.sampling import sampled

U = "unsharded"
MIB = 2**20
PAIRS = [
    (["x", U, U], [U, "x", U]),
    ([U, "x", U], ["x", U, U]),
    (["x", "y", U], ["y", U, "x"]),
    ([U, ("x", "y"), U], [U, U, "y"]),
    ([U, "x", "y"], ["x", U, U]),
    ([U, U, ("x", "y")], [U, ("y", "x"), U]),
]
MEASURED = [(many, *pair) for pair in PAIRS for many in (False, True)]


@pytest.mark.parametrize(("many", "source", "target"), sampled(MEASURED, 3))
def test_measured_scratch_is_within_64_kib(many, source, target):
    """Of an array of 32 MiB; NumPy reports what it allocates to tracemalloc."""
    shape, bound, ranks = ((64, 256, 256) if not many else (64, 128, 128)), 2**16, 4

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        a, b = Layout(source, mesh), Layout(target, mesh)
        count = 4 if many else 1
        tensors = [mc.ones(shape, "f8", a) for _ in range(count)]
        mc.barrier(mesh)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        moved = (
            mc.relayout(tensors, b, max_scratch_bytes=bound)
            if many
            else [mc.relayout(tensors[0], b, max_scratch_bytes=bound)]
        )
        mc.barrier(mesh)
        peak = tracemalloc.get_traced_memory()[1]
        mc.barrier(mesh)
        assert all((tensor.local == 1).all() for tensor in moved)
        return before, peak, sum(tensor.local.nbytes for tensor in moved)

    forget_scratch()
    tracemalloc.start()
    try:
        with mc.simulate(ranks) as world:
            before, peaks, new = zip(*world.run(program), strict=True)
    finally:
        tracemalloc.stop()
    scratch = max(peaks) - min(before) - sum(new)
    assert scratch <= ranks * bound + MIB
