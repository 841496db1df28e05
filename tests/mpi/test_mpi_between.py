"""Relayouts between meshes, within bounds, many at once, started, and into given memory, under mpiexec."""

import os
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout, LayoutError, MeshError, plan_relayout
from meshcomm.core.memory import scratch
from meshcomm.core.plans import step
from meshcomm.core.ranks import mpi
from meshcomm.core.transport import choose, packed
from support.reference import blocks_of, numbered, same_bits
from support.tensors import is_right
from support.verdicts import agree_raises

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = "unsharded"
MIB = 2**20


@contextmanager
def meshes_on():
    """A function from a mesh to one of a new communicator, which ends with all of its meshes."""
    comm, made = WORLD.Dup(), {}

    def there(layout):
        mesh = layout.mesh
        if mesh not in made:
            made[mesh] = mc.create_mesh([tuple(dim) for dim in mesh.dims], devices=list(mesh.ranks), comm=comm)
        return Layout(layout.axes, made[mesh])

    yield there
    for mesh in made.values():
        mesh.close()
    comm.Free()


def rows_and_columns(mesh):
    return Layout(["x", U], mesh), Layout([U, "x"], mesh)


# -- without waiting --------------------------------------------------------------------------------------------------


def test_requests_complete_in_any_order():
    mesh = mc.create_mesh([("x", SIZE)])
    specs = [["x", U], [U, "x"], [U, U]]
    pairs = [(Layout(a, mesh), Layout(b, mesh)) for a in specs for b in specs]
    for _ in range(3):
        arrays = [numbered((2 * SIZE + i, 5)) for i in range(len(pairs))]
        tensors = [mc.distribute(array, a) for array, (a, _) in zip(arrays, pairs, strict=True)]
        requests = [mc.start_relayout(t, b) for t, (_, b) in zip(tensors, pairs, strict=True)]
        assert is_right(mc.relayout(tensors[1], pairs[1][1]), arrays[1], pairs[1][1]), "one that waits in between"
        for i in np.random.default_rng(RANK).permutation(len(requests)):
            while i % 2 and not requests[i].test():
                pass
            assert is_right(requests[i].wait(), arrays[i], pairs[i][1])
    mesh.close()


def test_what_a_request_needs_stays_until_it_is_complete():
    """Plans are dropped, communicators freed and tensors forgotten while it is on its way."""
    mesh = mc.create_mesh([("x", SIZE)])
    rows, columns = rows_and_columns(mesh)
    array = numbered((200 * SIZE, 100))
    requests = [mc.start_relayout(mc.distribute(array, rows), columns)]
    mc.drop_plans(mesh)
    requests.append(mc.start_relayout(mc.distribute(array, rows), columns))
    expected = blocks_of(array, columns)[RANK]
    mesh.close()
    with agree_raises(MeshError, "is closed"):
        mc.start_relayout(mc.zeros((4, 4), "i8", rows), columns)
    assert all(same_bits(request.wait().local, expected) for request in reversed(requests))


# -- in messages ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_counts(monkeypatch):
    """An MPI that can count to 100 only, and messages of at most 64 bytes."""
    monkeypatch.setattr(mpi, "MAX_MESSAGE_BYTES", 64)
    for module in (step, choose, packed):
        monkeypatch.setattr(module, "MAX_COUNT", 100)
    monkeypatch.setattr(mpi.MPIWorld, "large_counts", False, raising=False)


@pytest.mark.usefixtures("small_counts")
def test_exchanges_in_messages_that_mpi_can_count(monkeypatch):
    lengths = []
    cut = mpi._countable

    def counting(data):
        messages = cut(data)
        lengths.append([len(message) for message in messages])
        return messages

    monkeypatch.setattr(mpi, "_countable", counting)
    with meshes_on() as there:
        layouts = [there(Layout(s, mc.Mesh(range(SIZE), {"x": SIZE}))) for s in (["x", U], [U, "x"], [U, U])]
        layouts.append(there(Layout(["x", U], mc.Mesh(list(range(SIZE))[::-1], {"x": SIZE}))))
        layouts[0].mesh.world.here().large_counts = False
        array = numbered((13 * SIZE + 1, 7))
        for source in layouts:
            for target in layouts:
                tensor = mc.distribute(array, source)
                for bound in (None, 4096):
                    assert is_right(mc.relayout(tensor, target, max_scratch_bytes=bound), array, target)
                first, second = mc.start_relayout(tensor, target), mc.start_relayout(tensor, target)
                moved = mc.relayout(tensor, target)
                assert all(is_right(t, array, target) for t in (second.wait(), moved, first.wait()))
    assert SIZE == 1 or max(map(len, lengths)) > 1
    assert all(length <= 64 for found in lengths for length in found)


def available():
    """The bytes of memory that are free, or can be."""
    with open("/proc/meminfo") as lines:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return found["MemAvailable"]


@pytest.mark.slow
def test_more_than_2_gib_from_each_rank_to_the_other():
    """Run it with 2 ranks: a column of pages moves from one to the other, in place on both sides and packed."""
    pages = 2**19 + 2**15  # of 4 KiB: 2.1 GiB for each rank
    needed = 2 * 3 * pages * 4096 + 2**30
    enough = WORLD.bcast(os.path.exists("/proc/meminfo") and available() > needed)
    if SIZE != 2 or not enough:
        pytest.skip(f"with 2 ranks and {needed / 2**30:.0f} GiB of free memory only")
    mesh = mc.create_mesh([("x", 2)])
    whole, other = Layout(["x", U], mesh), Layout(["x", U], mc.create_mesh([("x", 2)], devices=[1, 0]))
    mine = np.empty((pages, 512), "i8")
    mine[:, 0] = np.arange(pages) + 2**40 * RANK
    mine[:, -1] = mine[:, 0]
    tensor = mc.from_local(mine, whole, global_shape=(2 * pages, 512))
    moved = mc.relayout(tensor, other)
    assert moved.nbytes == 2 * pages * 4096
    assert moved.local.nbytes > 2**31
    for column in (0, -1):
        assert np.array_equal(moved.local[:, column], np.arange(pages) + 2**40 * (1 - RANK))


# -- memory -----------------------------------------------------------------------------------------------------------

PAIRS = [(["x", U], [U, "x"]), ([U, "x"], ["x", U]), ([U, "x"], [U, U])]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_measured_scratch_is_within_64_kib(source, target):
    mesh = mc.create_mesh([("x", SIZE)])
    a, b = Layout(source, mesh), Layout(target, mesh)
    tensor = mc.ones((2048, 2048) if SIZE <= 4 else (1024, 1024), "f8", a)  # 32 MiB, or time
    scratch.forget_scratch()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        moved = mc.relayout(tensor, b, max_scratch_bytes=2**16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (moved.local == 1).all()
    assert peak - before - moved.local.nbytes <= 2**16 + MIB
    mesh.close()


def test_a_loop_allocates_nothing_after_its_first_turn():
    mesh = mc.create_mesh([("x", SIZE)])
    rows, columns = rows_and_columns(mesh)
    tensor, out = mc.ones((512, 512), "f8", rows), mc.zeros((512, 512), "f8", columns)
    plan = plan_relayout((512, 512), "f8", columns, rows)
    many = [mc.ones((16, 16), "f4", rows) for _ in range(8)]
    outs = [mc.zeros((16, 16), "f4", columns) for _ in range(8)]

    def turn():
        mc.relayout(tensor, columns, out=out)
        plan.execute(out, out=tensor)
        mc.relayout(many, columns, out=outs)

    for _ in range(3):
        turn()
    tracemalloc.start()
    try:
        for _ in range(20):
            turn()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**16
    assert all((t.local == 1).all() for t in (tensor, out, *outs))
    mesh.close()


# -- out= -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["read-only", "overlapping"])
def test_all_ranks_refuse_what_the_last_one_sees(what):
    mesh = mc.create_mesh([("x", SIZE)])
    rows, columns = rows_and_columns(mesh)
    shape, culprit = (SIZE, SIZE), RANK == SIZE - 1
    memory = np.zeros(3 * SIZE, "i8")
    tensor = mc.from_local(memory[:SIZE].reshape(1, SIZE), rows, global_shape=shape)
    start = SIZE - 1 if what == "overlapping" and culprit else SIZE
    out = mc.from_local(memory[start : start + SIZE].reshape(SIZE, 1), columns, global_shape=shape)
    out.local.flags.writeable = not (what == "read-only" and culprit)
    text = "cannot be written to" if what == "read-only" else "shares memory"
    for _ in range(2):
        with agree_raises(LayoutError, text):
            mc.relayout(tensor, columns, out=out)
        with agree_raises(LayoutError, text):
            mc.relayout([tensor], [columns], out=[out])
        with agree_raises(LayoutError, text):
            mc.start_relayout(tensor, columns, out=out)
    mesh.close()
