"""Ranks whose first calls on a mesh differ: all of them raise, whatever the calls are."""

import itertools

import numpy as np
import pytest

import meshcomm as mc
from support.verdicts import agree_mismatch

CALLS = {
    "relayout": lambda t, columns: mc.relayout(t, columns),
    "start_relayout": lambda t, columns: mc.start_relayout(t, columns).wait(),
    "to_numpy": lambda t, columns: t.to_numpy(),
    "sum": lambda t, columns: t.sum(),
    "barrier": lambda t, columns: mc.barrier(t.mesh),
    "from_local": lambda t, columns: mc.from_local(t.local, t.layout),
    "from_root": lambda t, columns: mc.distribute(np.zeros(t.shape), columns, root=0),
    "drop_plans": lambda t, columns: mc.drop_plans(t.mesh),
    "with_array": lambda t, columns: t + np.ones(t.shape),
}


@pytest.mark.parametrize(("first", "other"), list(itertools.combinations(CALLS, 2)))
def test_different_first_calls(comm, own, first, other):
    rows, columns = own
    t = mc.zeros((4, 4), "f8", rows)
    if comm.size > 1:
        with agree_mismatch(rows.mesh, "ranks made different collective calls"):
            CALLS[other if comm.rank == 0 else first](t, columns)
