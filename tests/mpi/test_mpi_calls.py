"""How many Python functions a warm call runs: they are the latency of a small relayout."""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks import mpi
from meshcomm.storage import kept

SIZE = MPI.COMM_WORLD.size
LIMIT = 22  # calls of Python functions in one warm relayout, the call of relayout included
WARM, TRIES = 3, 200
WHILE_WAITING = {"MPICommunicator.progress"}
"""Not part of a relayout: about every 100 microseconds a rank that waits lets MPI make progress, by a call of Python.
How often depends on the other ranks, not on the code."""


@pytest.fixture
def layouts(world):
    """Rows and columns on a mesh of such a world."""
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    yield mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    world.Barrier()
    mesh.close()


def called(function, limit=LIMIT, folder=""):
    """Return the Python functions that run in a warm call of *function*, of files in *folder*.

    The shortest list of some tries: now and then a call compares digests with the other ranks. The tries end when all
    ranks have a list within the *limit*.
    """
    names = []

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_qualname not in WHILE_WAITING and code.co_filename.startswith(folder):
            names.append(f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_qualname}")

    for _ in range(WARM):
        function()
    found = []
    gc.disable()
    try:
        while len(found) < TRIES:
            MPI.COMM_WORLD.Barrier()
            names = []
            sys.setprofile(note)
            try:
                result = function()
            finally:
                sys.setprofile(None)
            del result  # the count does not contain what frees its memory
            found.append(names[1:])  # without *function* itself
            if most(min(map(len, found))) <= limit:
                break
    finally:
        gc.enable()
    return min(found, key=len)


def most(count):
    """Return the largest *count* of all ranks."""
    return max(MPI.COMM_WORLD.allgather(count))


def test_warm_relayout_makes_few_python_calls(layouts):
    rows, columns = layouts
    tensor = mc.distribute(np.arange(64.0 * 64).reshape(64, 64), rows)
    moved = called(lambda: mc.relayout(tensor, columns))
    assert moved, "the counter sees at least the call of relayout itself"
    assert most(len(moved)) <= LIMIT, report(moved, tensor, columns)


@pytest.mark.parametrize("shape", [(40, 32), (400, 320)])
def test_the_second_load_makes_few_python_calls(shape, layouts, folder, monkeypatch):
    """And one agreement; the file was written long ago."""
    monkeypatch.setattr(kept, "TICK", -(10**18))
    rows, _ = layouts
    mc.save(folder / "a.npy", mc.ones(shape, float, rows))
    mc.barrier(rows.mesh)
    limit, ours = 120, str(Path(mc.__file__).parent)
    names = called(lambda: mc.load(folder / "a.npy", rows), limit, ours)
    assert names
    assert most(len(names)) <= limit, "\n".join(names)
    with mc.count() as counted:
        mc.load(folder / "a.npy", rows)
    assert counted.agreements == 1


WAITS = ("alltoallv", "permute", "allgatherv", "allreduce_max", "allgather", "broadcast", "send", "receive", "barrier")


def test_a_rank_waits_only_within_calls(layouts, comm, monkeypatch, tmp_path_factory):
    """So its watchdog and its flight file know what it waits in."""
    rows, columns = layouts
    outside = set()

    def noting(name, wait):
        def noted(*arguments):
            if not watch.calls:
                outside.add(name)
            return wait(*arguments)

        return noted

    for name in (*WAITS, "split"):
        monkeypatch.setattr(mpi.MPICommunicator, name, noting(name, getattr(mpi.MPICommunicator, name)))
    array, world, groups = np.arange(64.0 * 64).reshape(64, 64), rows.mesh, [[*range(SIZE)]]
    tensor = mc.distribute(array, rows)
    folder = comm.bcast(tmp_path_factory.mktemp("waits"))
    mc.distribute(array, rows, root=0).to_numpy(root=0)
    mc.save(folder / "saved", {"t": mc.relayout(tensor, columns)})
    mc.load(folder / "saved", layout=rows)
    mc.halo(tensor, 1)
    np.sort(tensor, axis=0)
    np.sort(tensor, axis=None)
    mc.all_reduce(mc.all_to_all(np.ones((SIZE, 2)), groups, 0, 0, SIZE), groups)
    np.mean(tensor, axis=0)
    mc.barrier(world)
    with mc.trace(folder / "trace.json"):
        mc.fft.fftn(tensor)
    assert not outside


def test_what_is_not_counted_is_there():
    """The names of calls that are not counted are those of functions."""
    for name in WHILE_WAITING:
        owner, _, function = name.partition(".")
        assert callable(getattr(getattr(mpi, owner), function))


def report(moved, tensor, columns):
    """Return what a warm relayout calls, and how much other ways to move a tensor call: they have no limit."""
    out = mc.empty(tensor.shape, tensor.dtype, columns)
    plan = mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, columns)
    counts = {
        "relayout": len(moved),
        "relayout(out=)": len(called(lambda: mc.relayout(tensor, columns, out=out))),
        "plan.execute": len(called(lambda: plan.execute(tensor))),
        "start_relayout and wait": len(called(lambda: mc.start_relayout(tensor, columns).wait())),
    }
    listed = "\n".join(f"  {number:2} {name}" for number, name in enumerate(moved, 1))
    return (
        f"a warm relayout may make {LIMIT} Python calls; calls on this rank: "
        f"{', '.join(f'{name} {count}' for name, count in counts.items())}. Those of relayout:\n{listed}"
    )
