"""What contractions use beyond their operands and results, measured."""

import gc
import tracemalloc

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.memory.scratch import forget_scratch
from support.sampling import sampled

U = "unsharded"
KIB, MIB = 2**10, 2**20
CASES = [
    (["x", "y"], ["x", "y"]),
    ([("x", "y"), U], [("x", "y"), U]),
    ([U, ("x", "y")], [("x", "y"), U]),
    ([("x", "y"), U], [U, ("x", "y")]),
    ([U, ("x", "y")], [U, ("x", "y")]),
    (["y", "x"], [U, ("y", "x")]),
    ([mc.Cyclic("x", 32), mc.Cyclic("y", 16)], [mc.Cyclic("x", 64), mc.Cyclic("y", 64)]),
]


@pytest.mark.parametrize(("a", "b"), sampled(CASES, 4))
def test_measured_memory_is_that_of_the_plan(a, b):
    """Of matrices of 512 x 512, 2 MiB each; NumPy reports what it allocates to tracemalloc."""
    n, limit, ranks = 512, 300 * KIB, 4

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        whole = np.arange(n * n, dtype="f8").reshape(n, n) % 7
        t, u = (mc.distribute(whole, Layout(specs, mesh)) for specs in (a, b))
        plan = mc.plan_einsum("ij,jk->ik", t, u, max_scratch_bytes=limit)
        mc.einsum("ij,jk->ik", t, u, max_scratch_bytes=limit)  # what is kept from call to call is there then
        mc.barrier(mesh)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        product = mc.einsum("ij,jk->ik", t, u, max_scratch_bytes=limit)
        mc.barrier(mesh)
        peak = tracemalloc.get_traced_memory()[1]
        mc.barrier(mesh)
        held = t.local.nbytes + u.local.nbytes + product.local.nbytes
        assert np.array_equal(product.to_numpy(), whole @ whole)
        return before, peak, product.local.nbytes, plan.peak_bytes - held

    forget_scratch()
    tracemalloc.start()
    try:
        with mc.simulate(ranks) as world:
            befores, peaks, new, planned = zip(*world.run(program), strict=True)
    finally:
        tracemalloc.stop()
    assert max(planned) <= limit
    scratch = max(peaks) - min(befores) - sum(new)
    assert scratch <= ranks * planned[0] + MIB // 2
