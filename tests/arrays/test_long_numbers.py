"""Numbers of hundreds and thousands of digits: errors of ours, as for any other number that makes no sense.

Python refuses to write an integer of more than 4,300 digits, also in the message of an error.
"""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, MeshcommError
from support.reference import on_ranks, simulated

U = mc.UNSHARDED
ROWS = np.zeros((4, 4))


def calls(mesh, n):
    """Calls that no integer as long as *n* makes sense in."""
    rows, whole, one_axis = Layout(["x", U], mesh), Layout([U, U], mesh), Layout(["x"], mesh)
    tensor, plan = mc.zeros((4, 4), "f8", rows), mc.plan_relayout((4, 4), "f8", rows, whole)
    return {
        "zeros": lambda: mc.zeros((n, 4), "f8", rows),
        "zeros of one length": lambda: mc.zeros(n, "f8", one_axis),
        "no elements": lambda: mc.zeros((n, 0), "f8", rows),
        "full": lambda: mc.full((4, n), 1, "f8", rows),
        "from_callback": lambda: mc.from_callback((n, 4), "f8", rows, lambda slices: ROWS[slices]),
        "from_local": lambda: mc.from_local(ROWS[:2], rows, global_shape=(n, 4)),
        "fill_value": lambda: mc.full((4, 4), n, "i4", rows),
        "plan_relayout": lambda: mc.plan_relayout((n, 4), "f8", rows, whole),
        "for_device": lambda: plan.for_device(n),
        "block_slices of a device": lambda: rows.block_slices((4, 4), n),
        "num_shards": lambda: rows.num_shards(n),
        "batch_sharded": lambda: Layout.batch_sharded(mesh, "x", n),
        "replicated": lambda: Layout.replicated(mesh, n),
        "create_mesh": lambda: mc.create_mesh([("x", n)]),
        "devices": lambda: mc.create_mesh([("x", 2)], devices=[n, 1]),
        "a mesh's text": lambda: mc.Mesh.from_string(f"|x={'9' * 5000}|*CPU"),
        "distribute": lambda: mc.distribute(ROWS, rows, root=n),
        "to_numpy": lambda: tensor.to_numpy(root=n),
        "sum": lambda: tensor.sum(axis=n),
        "all_to_all by axis": lambda: mc.all_to_all(ROWS, None, n, 0, 2),
        "all_to_all by count": lambda: mc.all_to_all(ROWS, None, 0, 1, n),
        "all_to_all in groups": lambda: mc.all_to_all(ROWS, [[n, 1]], 0, 1, 2),
        "broadcast": lambda: mc.broadcast(ROWS, None, root=n),
        "all_gather": lambda: mc.all_gather(ROWS, None, n),
        "collective_permute": lambda: mc.collective_permute(ROWS, [(n, 1)]),
        "simulate": lambda: mc.simulate(n),
    }


@pytest.mark.parametrize("n", [2**63, 10**300, 10**5000, -(10**300), -(10**5000)], ids=lambda n: f"{n.bit_length()}")
def test_they_are_refused(n):
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        for name, call in calls(mesh, n).items():
            with pytest.raises(MeshcommError) as found:
                call()
            assert len(str(found.value)) < 1000, name
        return mc.relayout(mc.zeros((4, 4), "f8", Layout(["x", U], mesh)), Layout([U, "x"], mesh)).shape

    assert simulated(2, program) == [(4, 4)] * 2


@on_ranks(2)
def test_long_limits():
    mesh = mc.create_mesh([("x", 2)])
    tensor, whole = mc.zeros((4, 4), "f8", Layout(["x", U], mesh)), Layout([U, U], mesh)
    mc.relayout(tensor, whole, max_scratch_bytes=10**5000)
    with pytest.raises(mc.ShapeError, match="zero or more"):
        mc.relayout(tensor, whole, max_scratch_bytes=-(10**5000))
    mc.barrier(mesh, timeout_in_ms=10**400)
