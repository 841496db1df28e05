"""What ranks do on two hosts, one function for each case: ``cases.py NAME ARGUMENTS``.

Cases print "as expected" on every rank, or the time before they do what ends the job.
"""

import os
import signal
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

import meshcomm as mc
from meshcomm import __main__ as command

COMM = MPI.COMM_WORLD
LONG = 60.0


def expected():
    print("as expected\n", end="", flush=True)


def stamp():
    print(f"stamp {time.time()}\n", end="", flush=True)


# -- what MPI and meshcomm see ----------------------------------------------------------------------------------------


def places(*hosts):
    """Rank i is on ``hosts[i]``, and shares memory with the ranks of its host alone."""
    names = COMM.allgather(socket.gethostname())
    assert names == list(hosts), names
    node = COMM.Split_type(MPI.COMM_TYPE_SHARED)
    together = node.allgather(COMM.rank)
    assert together == [rank for rank, host in enumerate(hosts) if host == hosts[COMM.rank]], together
    node.Free()
    expected()


def topology():
    """A host with its ranks is a task with its devices."""
    found = mc.Topology.from_comm()
    assert (found.num_tasks, found.num_tpus_per_task) == (2, 2), found
    expected()


def calibrate():
    """What is measured is both within a host and between them."""
    assert command.calibrate(None) == 0
    expected()


# -- relayouts --------------------------------------------------------------------------------------------------------

LINE, SQUARE = [("x", -1)], [("x", 2), ("y", 2)]
ROWS, COLUMNS, WHOLE = ["x", mc.UNSHARDED], [mc.UNSHARDED, "x"], [mc.UNSHARDED, mc.UNSHARDED]
CHANGES = {
    "rows to columns": (LINE, ROWS, COLUMNS),
    "columns to rows": (LINE, COLUMNS, ROWS),
    "swap": (SQUARE, ["x", "y"], ["y", "x"]),
    "gather": (LINE, ROWS, WHOLE),
    "gather in part": (SQUARE, ["x", "y"], ["x", mc.UNSHARDED]),
    "slice": (LINE, WHOLE, COLUMNS),
    "reorder": (SQUARE, [("x", "y"), mc.UNSHARDED], [("y", "x"), mc.UNSHARDED]),
}
EVEN, UNEVEN, SHORT, LONGER = (8, 12), (7, 5), (3, 2), (1031, 517)  # the last: MiBs, which TCP sends in many pieces


def relayouts(*names):
    """The changes with these *names*, or all of them, for lengths that divide and for others."""
    for name in names or CHANGES:
        dims, source, target = CHANGES[name]
        mesh = mc.create_mesh(dims)
        for shape in (EVEN, UNEVEN, SHORT, LONGER):
            check(shape, mc.Layout(source, mesh), mc.Layout(target, mesh), name)
        mesh.close()
    expected()


def check(shape, source, target, name):
    array = np.arange(float(np.prod(shape))).reshape(shape)
    t = mc.from_local(array[source.block_slices(shape, source.mesh.rank)].copy(), source, global_shape=shape)
    for _ in range(2):  # the second time everything is known
        made = mc.relayout(t, target)
        assert np.array_equal(made.local, array[target.block_slices(shape, target.mesh.rank)]), (name, shape)
    assert np.array_equal(made.to_numpy(), array), (name, shape)


# -- ends -------------------------------------------------------------------------------------------------------------


def wait_for_the_others():
    """Wait in a relayout, which the culprit does not join."""
    mesh = mc.create_mesh(LINE)
    t = mc.zeros(UNEVEN, "f8", mc.Layout(ROWS, mesh))
    if COMM.rank != COMM.size - 1:
        mc.relayout(t, mc.Layout(COLUMNS, mesh))
        time.sleep(LONG)


def last_raises():
    wait_for_the_others()
    stamp()
    raise KeyError("culprit")


def last_aborts():
    wait_for_the_others()
    stamp()
    COMM.Abort(3)


def last_is_killed():
    wait_for_the_others()
    stamp()
    os.kill(os.getpid(), signal.SIGKILL)


def all_raise():
    """What all ranks see wrong, all raise, also on two hosts; the mesh stays usable."""
    mesh = mc.create_mesh(LINE)
    t = mc.zeros(UNEVEN, "f8", mc.Layout(ROWS, mesh))
    try:
        mc.relayout(t, mc.Layout(["x"], mesh))
    except mc.LayoutError:
        check(UNEVEN, mc.Layout(ROWS, mesh), mc.Layout(COLUMNS, mesh), "after the error")
        expected()


def sleep():
    COMM.Barrier()
    time.sleep(LONG)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
