"""Counts and traces of real ranks, with and without shared memory."""

import inspect
import json
import time
from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.arrays.compile import exchanging_steps
from meshcomm.core.ranks import recording
from meshcomm.core.transport import choose
from support.random_cases import any_case
from support.reference import numbered, random_bits
from support.sampling import sampled
from support.traces import check_trace, spans

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = "unsharded"
FOUND = ("waiting for rank ", "moving")  # spans that are found when the traces of all ranks are compared


def counted(function):
    with mc.count() as c:
        made = function()
    return c, made


def on(world, layout):
    """Return *layout* on an equal mesh of another world."""
    mesh = mc.create_mesh(list(layout.mesh.dims), devices=list(layout.mesh.ranks), comm=world)
    return Layout(layout.axes, mesh)


def predicted(plan):
    if RANK not in plan.ranks:
        return 0, 0
    part = plan.for_device(plan.ranks.index(RANK))
    return part.messages, part.bytes_moved


def test_what_plans_predict_is_counted(world):
    """Any relayouts, among some of the ranks or between meshes. What is measured does not change what moves."""
    for number in sampled(range(20_000), 100)[:60]:
        case = any_case(number, ranks=SIZE, sizes=tuple(range(1, SIZE + 1)))
        if max(*case.source.mesh.ranks, *case.target.mesh.ranks, 0) >= SIZE:
            continue  # grids of four
        source, target = on(world, case.source), on(world, case.target)
        tensor = mc.distribute(random_bits(case.shape, case.dtype, seed=1), source)
        plan = mc.plan_relayout(case.shape, case.dtype, source, target)
        for _ in range(2):  # a new call, and a known one
            c, _ = counted(lambda tensor=tensor, target=target: mc.relayout(tensor, target))
            assert (c.messages, c.bytes) == predicted(plan), f"case {number}: {case}"
        if len(exchanging_steps(plan)) == 1:
            c, request = counted(lambda tensor=tensor, target=target: mc.start_relayout(tensor, target))
            assert (c.messages, c.bytes) == predicted(plan), f"nonblocking, case {number}"
            request.wait()


def test_what_is_counted_is_what_came(world):
    """Each rank sends its number, so a new block shows from which ranks its bytes are."""
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    for shape in [(5, 7), (64, 64), (700, 300), (SIZE, 1)]:
        for source, target in [(["x", U], [U, "x"]), ([U, "x"], ["x", U]), (["x", U], [U, U])]:
            before, after = Layout(source, mesh), Layout(target, mesh)
            block = np.full(before.block_shape(shape, RANK), RANK, "u1")
            tensor = mc.from_local(block, before, shape)
            for _ in range(2):
                c, moved = counted(lambda tensor=tensor, after=after: mc.relayout(tensor, after))
                found = Counter(moved.local.ravel().tolist())
                del found[RANK]
                assert (c.messages, c.bytes) == (len(found), sum(found.values())), (shape, source, target)
                assert c.bytes_between_nodes == 0


def test_halos_and_reductions(world):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    t = mc.distribute(numbered((4 * SIZE, 6), "f8"), Layout(["x", U], mesh))
    halo = mc.halo(t, (1, 0))
    neighbours = (RANK > 0) + (RANK < SIZE - 1)
    for _ in range(2):
        c, _ = counted(halo.update)
        assert (c.messages, c.bytes) == (neighbours, neighbours * 6 * 8)
        c, request = counted(halo.start_update)
        assert (c.messages, c.bytes) == (neighbours, neighbours * 6 * 8)
        request.wait()
        c, _ = counted(lambda: mc.all_reduce(np.ones(SIZE), None, comm=world))
        assert (c.messages, c.bytes) == (SIZE - 1, (SIZE - 1) * SIZE * 8)  # all of a small array
        c, _ = counted(lambda: mc.all_reduce(np.ones(4096 * SIZE), None, comm=world))
        assert (c.messages, c.bytes) == (2 * (SIZE - 1), 2 * (SIZE - 1) * 4096 * 8)
        c, _ = counted(lambda: mc.broadcast(np.ones(5), None, SIZE - 1, comm=world))
        assert (c.messages, c.bytes) == ((1, 40) if RANK != SIZE - 1 else (0, 0))
        c, _ = counted(lambda: t.to_numpy(root=0))
        assert c.bytes == (t.nbytes - t.local.nbytes if RANK == 0 else 0)


def test_nothing_is_measured_while_nobody_listens(world, folder, monkeypatch):
    """No clock is read and no note taken by warm calls, also after a trace; while it goes on, they do both."""
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    t = mc.distribute(numbered((64, 64), "f8"), rows)
    halo = mc.halo(t, (1, 0), boundary="periodic")
    called = Counter()

    def spied(name, function):
        return lambda *args, **kwargs: called.update([name]) or function(*args, **kwargs)

    def warm():
        mc.relayout(t, columns)
        mc.start_relayout(t, columns).wait()
        halo.update()
        return t.sum()

    warm()
    for owner in (recording, choose):
        monkeypatch.setattr(owner, "monotonic_ns", spied("monotonic_ns", owner.monotonic_ns))
    for name, method in inspect.getmembers(recording.Recorder, inspect.isfunction):
        monkeypatch.setattr(recording.Recorder, name, spied(name, method))
    with mc.trace(folder / "t.json", world):
        called.clear()
        warm()
        assert {"begin", "describe"} <= set(called)
        assert SIZE == 1 or {"monotonic_ns", "record_exchange", "record_interval"} <= set(called)
    called.clear()
    warm()
    assert not called


def test_a_trace_of_all_ranks(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    t = mc.distribute(numbered((64, 64), "f8"), rows)
    mc.relayout(t, columns)
    path = folder / "t.json"
    with mc.trace(path, world):
        for number in range(3):
            with mc.span("step"):
                u = mc.relayout(t, columns, f"number {number}")
        mc.start_relayout(u, rows).wait()
    if RANK == 0:
        events = check_trace(path, SIZE)
        for rank in range(SIZE):
            names = [event["name"] for event in spans(events, rank)]
            calls = [name for name in names if name.startswith(("relayout", "start", "wait for"))]
            assert names.count("step") == 3
            last = ["start_relayout", "wait for a relayout"][: min(SIZE, 2)]  # one rank alone has nothing to wait for
            assert calls == [*(f"relayout named 'number {i}'" for i in range(3)), *last]
            if SIZE > 1:
                inside = "copy" if "exchange: InPlace" in names else "MPI_Startall"
                assert names.count(inside) >= 3
        (first, *_), (last, *_) = ([e for e in spans(events, rank) if e["name"] == "step"] for rank in (0, SIZE - 1))
        overlap = min(e["ts"] + e["dur"] for e in (first, last)) - max(e["ts"] for e in (first, last))
        assert SIZE == 1 or overlap > 0, "one exchange goes on at one time on all ranks"


def test_a_trace_tells_for_whom_ranks_waited(world, folder):
    """The last rank is late in each kind of operation, and all ranks that need it say so."""
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    t = mc.distribute(numbered((64, 64), "f8"), rows)
    halo = mc.halo(t, (1, 0), boundary="periodic")
    operations = {
        "relayout": lambda: mc.relayout(t, columns),
        "nonblocking": lambda: mc.start_relayout(t, columns).wait(),
        "halo": halo.update,
        "barrier": lambda: mc.barrier(mesh),
        "barrier with a timeout": lambda: mc.barrier(mesh, timeout_in_ms=60_000),
        "broadcast": lambda: mc.broadcast(np.ones(1000), None, SIZE - 1, comm=world),
        "distribute": lambda: mc.distribute(whole, rows, root=SIZE - 1),
    }
    whole = numbered((64, 64), "f8") if RANK == SIZE - 1 else None
    for operation in operations.values():
        operation()
    path = folder / "t.json"
    with mc.trace(path, world):
        for name, operation in operations.items():
            world.Barrier()
            if RANK == SIZE - 1:
                time.sleep(0.1)
            with mc.span(name):
                operation()
    if RANK == 0:
        events = check_trace(path, SIZE)
        for rank in range(SIZE):
            found = spans(events, rank)
            for name in operations:
                (its,) = (e for e in found if (e["cat"], e["name"]) == ("user", name))
                within = [e for e in found if its["ts"] <= e["ts"] < its["ts"] + its["dur"]]
                waited = sum(e["dur"] for e in within if e["name"] == f"waiting for rank {SIZE - 1}")
                needs = name != "halo" or rank in (0, SIZE - 2)
                if rank == SIZE - 1:
                    assert not waited, (name, within)
                elif needs:
                    assert 0 < waited <= its["dur"], (name, rank, within)
                else:
                    assert waited < 50_000, (name, rank, within)


def test_an_exception_of_one_rank_does_not_lose_the_trace(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    path = folder / "t.json"
    caught = None
    try:
        with mc.trace(path, world):
            mc.barrier(mesh)
            if RANK == SIZE - 1:
                raise KeyError("ours")
    except KeyError as error:
        caught = str(error)
    assert caught == ("'ours'" if RANK == SIZE - 1 else None)
    if RANK == 0:
        check_trace(path, SIZE)
    world.Barrier()
    assert sorted(each.name for each in folder.iterdir()) == ["t.json"]


def test_a_path_that_rank_0_cannot_write(world, folder):
    with pytest.raises(OSError, match="nowhere"), mc.trace(folder / "nowhere" / "t.json", world):
        pytest.fail("it began")


def test_a_limit(world, folder):
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    path = folder / "t.json"
    with mc.trace(path, world, limit=10):
        for _ in range(20):
            mc.barrier(mesh)
    if RANK == 0:
        events = check_trace(path, SIZE)
        kept = [[e for e in spans(events, rank) if not e["name"].startswith(FOUND)] for rank in range(SIZE)]
        assert all(len(its) == 10 for its in kept)
        dropped = json.loads(path.read_text())["otherData"]["dropped events by rank"]
        assert set(dropped) == {str(rank) for rank in range(SIZE)}
        assert all(number >= 10 for number in dropped.values())
