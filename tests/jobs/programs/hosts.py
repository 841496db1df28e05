"""What ranks do on two hosts, one function for each case: ``hosts.py NAME ARGUMENTS``.

Cases print "as expected" on every rank, or the time before they do what ends the job.
"""

import os
import signal
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

if socket.gethostname() == os.environ.get("CLOCK_AHEAD"):  # an hour ahead of the other host's
    clock = time.monotonic_ns
    time.monotonic_ns = lambda: clock() + 3600 * 10**9

import meshcomm as mc
from meshcomm.core.plans import costs
from meshcomm.core.ranks import progress
from meshcomm.core.transport import choose, relay
from meshcomm.tools.cli import calibrate as calibration
from meshcomm.tools.cli.main import main

COMM = MPI.COMM_WORLD
LONG = 600.0  # seconds: longer than any job may take


def expected():
    print("as expected\n", end="", flush=True)


def stamp():
    print(f"stamp {time.time()}\n", end="", flush=True)


# -- what MPI and meshcomm see ----------------------------------------------------------------------------------------


def shared_on(*hosts):
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
    assert calibration.calibrate(None) == 0
    expected()


def info():
    """The command finds both hosts, and measures the network between them."""
    assert main(["info", "--json"]) in (0, 1), "1: on a machine with few cores"
    print("\n", end="")


def trace(path):
    """Three exchanges, in the trace at *path*."""
    mesh = mc.create_mesh(LINE)
    t = mc.ones((64, 64), "f8", mc.Layout(ROWS, mesh))
    with mc.trace(path):
        for _ in range(3):
            with mc.span("step"):
                mc.relayout(t, mc.Layout(COLUMNS, mesh))
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


def rounds(folder):
    """The changes in rounds that are in flight together, also while a program saves to *folder*, or computes."""
    choose.MESSAGE_BYTES = choose.SLOW_MESSAGE_BYTES = 2**14
    mesh = mc.create_mesh(LINE)
    rows, columns = mc.Layout(ROWS, mesh), mc.Layout(COLUMNS, mesh)
    array = np.arange(float(np.prod(LONGER))).reshape(LONGER)
    t = mc.distribute(array, rows)
    for limit in (2**12, 2**16, 2**18, None):
        for source, target in ((rows, columns), (columns, rows)):
            made = mc.relayout(mc.distribute(array, source), target, max_scratch_bytes=limit)
            assert np.array_equal(made.local, array[target.block_slices(LONGER, mesh.rank)]), limit
    requests = [mc.start_relayout(t + number, columns) for number in range(3)]
    assert progress._in_flight <= 3, "of those that are not complete a thread calls MPI"
    mc.save(f"{folder}/while", {"t": t})
    for number in (2, 0, 1):
        while number == 0 and not requests[number].test():
            pass
        made = requests[number].wait()
        assert np.array_equal(made.local, array[columns.block_slices(LONGER, mesh.rank)] + number), number
    assert progress._in_flight == 0
    assert np.array_equal(mc.load(f"{folder}/while", {"t": rows})["t"].to_numpy(), array)
    relayouts("rows to columns", "columns to rows", "gather")


def finalize_in_flight():
    """The program ends MPI while a thread calls MPI for messages that nobody waits for: an error, and no crash."""
    mesh = mc.create_mesh(LINE)
    progress.begin()
    mc.start_relayout(mc.ones((2200, 2200), "f8", mc.Layout(ROWS, mesh)), mc.Layout(COLUMNS, mesh))
    MPI.Finalize()


# -- through aggregators ----------------------------------------------------------------------------------------------


class Opened:
    """Make every exchange between nodes go through aggregators, and count those that do."""

    def __init__(self):
        self.count = self.refused = 0
        costs.ALWAYS = True
        original = relay.Relayed.open

        def counted(its, scratch_limit):
            opened = original(its, scratch_limit)
            self.count += opened
            self.refused += not opened
            return opened

        relay.Relayed.open = counted


def random_relayout(rng):
    """A shape, a source and a target: on one mesh of some or all ranks, or from one to another."""
    ranks = list(range(COMM.size))
    mesh = mc.create_mesh(dims_of(rng, len(ranks)))
    other = mesh
    kind = rng.integers(3)
    if kind:  # some ranks take no part, or only in one
        mesh = mc.create_mesh(dims_of(rng, len(ranks) - 1), devices=ranks[:-1] if rng.integers(2) else ranks[:0:-1])
        other = mc.create_mesh(dims_of(rng, len(ranks) - 1), devices=ranks[1:]) if kind == 2 else mesh
    shape = tuple(rng.integers(0, 12, rng.integers(1, 4)).tolist())
    return shape, layout_of(rng, mesh, len(shape)), layout_of(rng, other, len(shape))


def dims_of(rng, size):
    first = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
    return [("x", first), ("y", size // first)]


def layout_of(rng, mesh, rank):
    axes = [[] for _ in range(rank)]
    for name in rng.permutation(list(mesh.dim_names)).tolist():
        axis = int(rng.integers(-1, rank))
        if axis >= 0:
            axes[axis].append(name)
    return mc.Layout([tuple(names) for names in axes], mesh)


def own_tensor(array, layout):
    """A tensor of a block that is not in shared memory."""
    inside = layout.mesh.rank is not None
    block = array[layout.block_slices(array.shape, layout.mesh.rank)].copy() if inside else None
    return mc.from_local(block, layout, global_shape=array.shape)


def through_aggregators(count, unshared=""):
    """Random relayouts, from blocks of our own and from those of the library; one host may share no memory."""
    if socket.gethostname() == unshared:
        os.environ["MESHCOMM_SHARED_MEMORY"] = "0"
    opened, rng = Opened(), np.random.default_rng(COMM.size)
    for number in range(int(count)):
        shape, source, target = random_relayout(rng)
        array = np.arange(float(np.prod(shape))).reshape(shape)
        shared, own = mc.distribute(array, source), own_tensor(array, source)
        for t, out in ((shared, None), (own, None), (shared, own_tensor(array * 0, target)), (shared, None)):
            made = mc.relayout(t, target, out=out)
            if made.local is not None:
                wanted = array[target.block_slices(shape, target.mesh.rank)]
                assert np.array_equal(made.local, wanted), (number, shape, source, target)
        for mesh in {id(layout.mesh): layout.mesh for layout in (source, target)}.values():
            mesh.close()
    most = COMM.allreduce(opened.count, MPI.MAX)  # a rank may be outside of most meshes
    assert most > int(count) // 4, most
    expected()


def no_memory_for_aggregators():
    """Where one rank has no memory that others see, all go on without aggregators."""
    opened = Opened()
    if COMM.rank == COMM.size - 1:
        relay.shared_scratch = lambda size: None
    relayouts("rows to columns", "gather")
    assert opened.refused > 0
    assert opened.count == 0


def gather_of(lines):
    """A gather of so many lines, directly or through aggregators as the environment says."""
    if os.environ.get("THROUGH"):
        Opened()
    else:
        costs.ALWAYS = False
    mesh = mc.create_mesh(LINE)
    t = mc.ones((int(lines), 128), "f8", mc.Layout(ROWS, mesh))
    for _ in range(10):
        mc.relayout(t, mc.Layout(WHOLE, mesh))
    expected()


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
    time.sleep(0.2)  # or the launcher may end before it has passed on what was printed
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


def spin():
    while True:
        pass


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
