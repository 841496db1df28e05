"""Numbers of hundreds and thousands of digits: errors of ours, as for any other number that makes no sense.

Python refuses to write an integer of more than 4,300 digits, also in the message of an error.
"""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, MeshcommError
from support.numpy_law import alternatives
from support.reference import on_ranks, simulated

U = mc.UNSHARDED
ROWS = np.zeros((4, 4))


CALLS = (
    "mc.zeros({(n, 4)|(n, 0)}, 'f8', rows)",
    "mc.zeros(n, 'f8', Layout(['x'], mesh))",
    "mc.full({(4, n), 1|(4, 4), n}, 'i4', rows)",
    "mc.from_callback((n, 4), 'f8', rows, lambda slices: ROWS[slices])",
    "mc.from_local(ROWS[:2], rows, global_shape=(n, 4))",
    "mc.plan_relayout((n, 4), 'f8', rows, whole)",
    "mc.plan_relayout((4, 4), 'f8', rows, whole).for_device(n)",
    "rows.{block_slices((4, 4), n|num_shards(n})",
    "Layout.{batch_sharded(mesh, 'x'|replicated(mesh}, n)",
    "mc.create_mesh({[('x', n)]|[('x', 2)], devices=[n, 1]})",
    "mc.Mesh.from_string('|x=' + '9' * 5000 + '|*CPU')",
    "mc.{distribute(ROWS, rows|broadcast(ROWS, None}, root=n)",
    "mc.zeros((4, 4), 'f8', rows).{to_numpy(root|sum(axis}=n)",
    "mc.all_to_all(ROWS, {None, n, 0, 2|None, 0, 1, n|[[n, 1]], 0, 1, 2})",
    "mc.all_gather(ROWS, None, n)",
    "mc.collective_permute(ROWS, [(n, 1)])",
    "mc.simulate(n)",
)
"""Calls that no integer as long as n makes sense in."""


@pytest.mark.parametrize("n", [2**63, 10**300, 10**5000, -(10**300), -(10**5000)], ids=lambda n: f"{n.bit_length()}")
def test_they_are_refused(n):
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        rows, whole = Layout(["x", U], mesh), Layout([U, U], mesh)
        names = {"mc": mc, "Layout": Layout, "ROWS": ROWS, "mesh": mesh, "rows": rows, "whole": whole, "n": n}
        for call in [call for text in CALLS for call in alternatives(text)]:
            with pytest.raises(MeshcommError) as found:
                eval(call, names)
            assert len(str(found.value)) < 1000, call
        return mc.relayout(mc.zeros((4, 4), "f8", rows), Layout([U, "x"], mesh)).shape

    assert simulated(2, program) == [(4, 4)] * 2


@on_ranks(2)
def test_long_limits():
    mesh = mc.create_mesh([("x", 2)])
    tensor, whole = mc.zeros((4, 4), "f8", Layout(["x", U], mesh)), Layout([U, U], mesh)
    mc.relayout(tensor, whole, max_scratch_bytes=10**5000)
    with pytest.raises(mc.ShapeError, match="zero or more"):
        mc.relayout(tensor, whole, max_scratch_bytes=-(10**5000))
    mc.barrier(mesh, timeout_in_ms=10**400)
