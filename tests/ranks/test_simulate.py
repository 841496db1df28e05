"""Simulated worlds: they end whatever the ranks do, and say who waits where."""

import inspect
import os
import signal
import threading
import time

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, Layout, MeshError
from support.reference import numbered, simulated

U = "unsharded"


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def test_results_come_rank_by_rank():
    with mc.simulate(3) as world:
        assert world.run(lambda a, b: (world.rank, a + b), 1, 2) == [(0, 3), (1, 3), (2, 3)]
        assert world.size == 3


def test_a_rank_that_raises_is_reported_with_its_own_exception():
    class OursError(Exception):
        pass

    problem = OursError("no disk")

    def program(rank):
        if rank == 1:
            raise problem
        mc.all_reduce([1], None)

    with pytest.raises(OursError) as caught:
        simulated(3, program)
    assert caught.value is problem
    (note,) = problem.__notes__
    assert note == f"on simulated rank 1 of 3\n  ranks 0, 2 wait in all_reduce, at {line(program, 3)}"


def test_the_first_rank_that_raises_is_the_culprit():
    def program(rank):
        if rank == 2:
            raise KeyError("first")
        mc.all_reduce([1], None)

    with pytest.raises(KeyError, match="first"):
        simulated(4, program)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_exits_are_reported_too(error):
    def program(rank):
        if rank == 0:
            raise error
        mc.all_gather([rank], None, 0)

    with pytest.raises(type(error)):
        simulated(2, program)


def test_a_rank_that_returns_early_is_named():
    def program(rank):
        if rank != 1:
            mc.all_reduce([1], None)

    with pytest.raises(CollectiveMismatch, match=r"vain:\n  ranks 0, 2 wait in all_reduce, .*\n  rank 1 returned"):
        simulated(3, program)


def line(program, number):
    """Return a line of *program* as messages name it; its ``def`` is line 0."""
    lines, first = inspect.getsourcelines(program)
    return f"{__file__}:{first + number} in program: {lines[number].strip()}"


def waits_in_vain(size, program):
    """Return the lines of the message that simulated ranks end with."""
    with pytest.raises(CollectiveMismatch) as caught:
        simulated(size, program)
    return str(caught.value).split("\n")


def test_ranks_that_wait_are_named_with_the_calls_of_the_program():
    """Not with what these calls do to exchange, agree or compare."""

    def program(rank):
        mesh = mc.create_mesh([("x", 4)])
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        t = mc.distribute(numbered((4, 4)), rows)
        mc.relayout(t, columns)
        if rank == 0:
            mc.relayout(t, columns, name="step 3")
        if rank == 1:
            t.to_numpy(root=2)
        if rank == 2:
            mc.all_gather(t.local, [[0, 1], [2, 3]], 0)

    assert waits_in_vain(4, program) == [
        "simulated ranks wait for each other in vain:",
        f"  rank 0 waits in relayout named 'step 3', at {line(program, 6)}",
        f"  rank 1 waits in to_numpy, at {line(program, 8)}",
        f"  rank 2 waits in all_gather, at {line(program, 10)}",
        "  rank 3 returned",
    ]


def test_different_known_calls_are_named():
    def program(rank):
        mesh = mc.create_mesh([("x", 3)])
        t = mc.distribute(numbered((4, 4)), Layout(["x", U], mesh))
        mc.relayout(t, Layout([U, "x"], mesh))
        if rank:
            mc.relayout(t, Layout([U, "x"], mesh))
        else:
            mc.barrier(mesh, "here")

    assert waits_in_vain(3, program)[:3] == [
        "simulated ranks made different calls:",
        f"  rank 0 is in barrier 'here', at {line(program, 7)}",
        f"  ranks 1, 2 are in relayout, at {line(program, 5)}",
    ]


def test_the_list_of_ranks_that_wait_is_short():
    def program(rank):
        if rank != 19:
            mc.barrier(mc.create_mesh([("x", 20)]), f"{rank:02}")

    found = waits_in_vain(20, program)
    assert len(found) == 11
    assert found[-2:] == ["  ...", "  rank 19 returned"]


def test_ranks_that_call_different_operations():
    def program(rank):
        (mc.all_reduce if rank else mc.broadcast)(np.zeros(2), None)

    with pytest.raises(CollectiveMismatch) as caught:
        simulated(2, program)
    assert "rank 0: broadcast" in str(caught.value)
    assert "rank 1: all_reduce" in str(caught.value)


def test_ranks_that_call_in_different_order():
    def program(rank):
        calls = [lambda: mc.all_reduce(np.zeros(2), None), lambda: mc.all_gather(np.zeros(3), None, 0)]
        for call in calls if rank else reversed(calls):
            call()

    with pytest.raises(CollectiveMismatch, match="different collective calls"):
        simulated(2, program)


def test_a_different_order_of_known_calls_is_found_too():
    """When nothing is new, nothing is agreed on; the next agreement, or the ranks that wait, tell."""

    def program(rank):
        pairs = [(0, 1), (1, 0)]
        calls = [lambda: mc.all_reduce(np.zeros(2), None), lambda: mc.collective_permute(np.zeros(3), pairs)]
        for call in calls:
            call()
        for call in calls if rank else reversed(calls):
            call()
        mc.all_gather(np.zeros(1), None, 0)

    with pytest.raises(CollectiveMismatch):
        simulated(2, program)


def test_known_calls_that_only_some_ranks_repeat():
    def program(rank):
        for _ in range(2 + rank):
            mc.all_gather(np.zeros(2), None, 0)

    with pytest.raises(CollectiveMismatch, match=r"rank 1 waits in all_gather.*\n  rank 0 returned"):
        simulated(2, program)


def test_ranks_that_pass_different_arrays():
    def program(rank, arrays):
        mc.all_gather(arrays[rank], None, 0)

    for arrays in (
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2, "f4"), np.zeros(2, "i4")],
        [np.zeros(2), np.zeros((2, 1))],
    ):
        with pytest.raises(CollectiveMismatch, match=r"rank 0: all_gather.*\n.*rank 1: all_gather"):
            simulated(2, program, arrays)


def test_ranks_that_relayout_differently():
    def program(rank, layouts):
        mesh = mc.create_mesh([("x", 2)])
        tensor = mc.distribute(numbered((4, 4)), Layout(["x", U], mesh))
        mc.relayout(tensor, Layout(layouts[rank], mesh))

    for layouts in ([[U, "x"], [U, U]], [["x", U], [U, U]]):
        with pytest.raises(CollectiveMismatch, match="relayout of"):
            simulated(2, program, layouts)


def test_ranks_that_see_a_mesh_in_different_orders():
    def program(rank):
        mesh = mc.create_mesh([("x", 2)], devices=[0, 1] if rank else [1, 0])
        tensor = mc.zeros((4, 4), "i4", Layout(["x", U], mesh))
        mc.relayout(tensor, Layout([U, "x"], mesh))

    with pytest.raises(CollectiveMismatch, match="ranks made different collective calls"):
        simulated(2, program)


def test_what_a_dying_program_does_in_its_finally_does_not_hang():
    cleaned = []

    def program(rank):
        try:
            if rank == 0:
                raise ValueError("ends here")
            mc.all_reduce([1], None)
        finally:
            cleaned.append(rank)
            if rank:
                mc.all_reduce([2], None)

    with pytest.raises(ValueError, match="ends here"):
        simulated(3, program)
    assert sorted(cleaned) == [0, 1, 2]


def test_no_except_clause_keeps_a_waiting_rank_alive():
    def program(rank):
        if rank:
            for _ in range(3):
                try:
                    mc.all_reduce([1], None)
                except Exception:
                    pytest.fail("the end of a simulated rank is no Exception")

    with pytest.raises(CollectiveMismatch, match="rank 0 returned"):
        simulated(2, program)


def test_a_world_is_usable_after_a_failed_program():
    with mc.simulate(2) as world:
        for _ in range(3):
            with pytest.raises(CollectiveMismatch):
                world.run(lambda: world.rank or mc.all_reduce([1], None))
            assert [x.tolist() for x in world.run(lambda: mc.all_reduce([world.rank, 1], None))] == [[1, 2]] * 2


def test_results_are_the_same_in_every_run():
    order = []

    def program(rank):
        for i in range(3):
            order.append((rank, i))
            mc.all_reduce([1.0], None)

    simulated(4, program)
    first, order[:] = list(order), []
    simulated(4, program)
    assert order == first


def test_nested_worlds():
    with mc.simulate(2) as outer:
        mesh = mc.create_mesh()
        with mc.simulate(3) as inner:
            assert mc.create_mesh().size == 3
            assert inner.run(lambda: mc.create_mesh().size) == [3] * 3
            assert outer.run(lambda: mc.create_mesh().size) == [2] * 2
        assert mc.create_mesh().size == 2
        assert mc.create_mesh() == mesh


def test_a_program_runs_in_no_other_program():
    with mc.simulate(2) as world, mc.simulate(2) as other:
        for inner in (world, other):
            with pytest.raises(MeshError, match="one program at a time"):
                world.run(lambda inner=inner: inner.run(int))
        assert world.run(int) == [0, 0]


def test_meshes_of_a_world_need_its_ranks():
    with mc.simulate(2) as world:
        mesh = mc.create_mesh([("x", 2)])
        layout = Layout(["x"], mesh)
        assert layout.block_slices((3,), 1) == (slice(2, 3),), "what is pure works anywhere"
        assert "create_mesh" not in repr(mesh)
        for use in (lambda: mc.zeros((3,), "f8", layout), lambda: mc.all_reduce([1], None), lambda: world.rank):
            with pytest.raises(MeshError, match=r"world\.run"):
                use()
        tensors = world.run(lambda: mc.zeros((3,), "f8", layout))
    with pytest.raises(MeshError, match=r"world\.run"):
        tensors[0].to_numpy()
    with mc.simulate(2) as other, pytest.raises(MeshError):
        other.run(lambda: mc.zeros((3,), "f8", layout))


def test_mesh_rank_is_the_device():
    with mc.simulate(3) as world:
        meshes = [mc.create_mesh(), mc.create_mesh([("x", 2)], devices=[2, 0])]
        assert world.run(lambda: [mesh.rank for mesh in meshes]) == [[0, 1], [1, None], [2, 0]]


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", None, True], ids=repr)
def test_worlds_have_a_positive_number_of_ranks(size):
    with pytest.raises(MeshError, match="simulated world"):
        mc.simulate(size)


def test_numpy_integers_are_sizes():
    assert mc.simulate(np.int64(2)).size == 2


def test_traffic_is_counted_per_rank():
    with mc.simulate(4) as world:

        def program():
            mesh = mc.create_mesh([("x", 4)])
            mc.relayout(mc.distribute(numbered((6, 5), "i2"), Layout(["x", U], mesh)), Layout([U, "x"], mesh))

        world.run(program)
        mesh = mc.create_mesh([("x", 4)])
        plan = mc.plan_relayout((6, 5), "i2", Layout(["x", U], mesh), Layout([U, "x"], mesh))
        parts = [plan.for_device(d) for d in range(4)]
        assert world.bytes_moved == [part.bytes_moved for part in parts]
        assert world.messages == [part.messages for part in parts]
        world.run(program)
        assert world.bytes_moved == [2 * part.bytes_moved for part in parts], "counted since the world was made"


def test_many_ranks():
    size = 64
    assert simulated(size, lambda rank: int(mc.all_reduce([rank], None)[0])) == [size * (size - 1) // 2] * size


def test_no_communicator_is_left():
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        mc.relayout(mc.zeros((4, 4), "i4", Layout(["x", "y"], mesh)), Layout([U, "x"], mesh))
        opened = mesh.world.here().communicators
        mesh.close()
        return opened, mesh.world.here().communicators

    assert all(opened >= 1 and left == 0 for opened, left in simulated(4, program))


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where the shell has let this process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_rank_that_computes(ctrl_c):
    def program():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        end = time.process_time() + 60
        while time.process_time() < end:
            pass

    with mc.simulate(2) as world:
        with pytest.raises(KeyboardInterrupt):
            world.run(program)
        assert world.run(lambda: 1) == [1, 1]
