"""Relayouts that are started and waited for later, on simulated ranks."""

from types import SimpleNamespace

import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, Layout, LayoutError, MeshcommError, MeshError
from meshcomm.core.arrays import nonblocking
from support.reference import blocks_of, numbered, on_ranks, same_bits, simulated
from support.tensors import is_right

U = "unsharded"
SPECS = [["x", U], [U, "x"], [U, U], [("x", "y"), U], ["y", "x"]]


def grid(rank=None):
    return mc.create_mesh([("x", 2), ("y", 2)])


def test_requests_complete_in_any_order():
    """Every rank starts all pairs of layouts and waits in an order of its own, with relayouts in between."""

    def program(rank):
        mesh = grid()
        layouts = [Layout(specs, mesh) for specs in SPECS]
        arrays = [numbered((7, 5 + i)) for i in range(len(SPECS) ** 2)]
        requests = []
        for i, array in enumerate(arrays):
            a, b = layouts[i // len(SPECS)], layouts[i % len(SPECS)]
            requests.append((mc.start_relayout(mc.distribute(array, a), b), array, b))
            if i % 7 == 0:
                assert is_right(mc.relayout(mc.distribute(array, b), a), array, a)
        order = sorted(range(len(requests)), key=lambda i: (i * (2 * rank + 3)) % 23)
        for request, array, layout in (requests[i] for i in order):
            tensor = request.wait()
            assert is_right(tensor, array, layout)
            assert tensor is request.wait()
            assert request.test()
            assert "complete" in repr(request)
        return len(requests)

    assert simulated(4, program) == [25] * 4


@on_ranks(4)
def test_started_again_and_again_by_plans_that_are_known():
    mesh = grid()
    array = numbered((8, 6))
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    tensor = mc.distribute(array, rows)
    for _ in range(100):
        flying = [mc.start_relayout(tensor, columns) for _ in range(3)]
        assert all(is_right(request.wait(), array, columns) for request in reversed(flying))


@on_ranks(4)
def test_a_loop_of_tests_ends():
    mesh = grid()
    array = numbered((8, 6))
    columns = Layout([U, "y"], mesh)
    requests = [mc.start_relayout(mc.distribute(array, Layout(["x", U], mesh)), columns) for _ in range(3)]
    while any(not request.test() for request in requests):
        pass
    assert all(is_right(request.wait(), array, columns) for request in requests[1:])  # the first one needs no wait


@pytest.mark.parametrize("target", [[U, "x"], [U, U], ["x", U], [U, "y"]])
def test_starting_does_not_wait(target):
    """A rank has started before another one comes, also a gather; only a call that is new is agreed on."""
    events = []

    def program(rank):
        mesh = grid()
        tensor, to = mc.distribute(numbered((8, 6)), Layout(["x", U], mesh)), Layout(target, mesh)
        mc.start_relayout(tensor, to).wait()
        mc.barrier(mesh)
        events.append(("comes", rank))
        request = mc.start_relayout(tensor, to)
        events.append(("has started", rank))
        return is_right(request.wait(), numbered((8, 6)), to)

    assert simulated(4, program) == [True] * 4
    for rank in range(4):
        assert events.index(("has started", rank)) == events.index(("comes", rank)) + 1


def test_between_meshes():
    def program(rank):
        here, there = mc.create_mesh([("x", 3)]), mc.create_mesh([("x", 2)], devices=[3, 1])
        array, target = numbered((7, 5)), Layout([U, "x"], there)
        requests = [mc.start_relayout(mc.distribute(array, Layout(["x", U], here)), target) for _ in range(2)]
        tensors = [request.wait() for request in reversed(requests)]
        if there.rank is None:
            return all(tensor.local is None for tensor in tensors)
        return all(is_right(tensor, array, target) for tensor in tensors)

    assert simulated(5, program) == [True] * 5


@pytest.mark.parametrize("drops", [[0, 1, 2, 3], [2]])
def test_a_dropped_request_is_an_error(drops):
    def program(rank):
        mesh = grid()
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        requests = [mc.start_relayout(mc.distribute(numbered((8, n)), rows), columns) for n in (5, 6)]
        if rank not in drops:
            for request in requests:
                request.wait()

    with pytest.raises(MeshcommError, match=r"never waited for: relayout of \(8, 5\) int64 .* and 1 more") as error:
        simulated(4, program)
    assert any(f"simulated rank {rank} of 4" in error.value.__notes__[0] for rank in drops)


def test_a_request_is_lost_when_its_ranks_make_no_more_calls(monkeypatch):
    """The end of the program then waits for others only."""
    locks = [SimpleNamespace(end_reason=end_reason) for end_reason in (None, "an exchange ended with an error")]
    rank_sets = [None, *(SimpleNamespace(call_lock=lock) for lock in locks)]
    assert [nonblocking.Request(None, rank_set).is_lost for rank_set in rank_sets] == [False, False, True]
    waits = []
    requests = [SimpleNamespace(is_lost=is_lost, wait=lambda i=is_lost: waits.append(i)) for is_lost in (True, False)]
    monkeypatch.setattr(nonblocking, "_requests_over_mpi", dict(enumerate(requests)))
    monkeypatch.setattr(nonblocking, "mpi", lambda: SimpleNamespace(Is_finalized=lambda: False))
    monkeypatch.setattr(nonblocking, "never_waited_for", len)
    monkeypatch.setattr(nonblocking.abort, "end_job", waits.append)
    nonblocking._check_at_exit()
    assert waits == [False, 1], "it waits for one, and says that nobody has waited for one"


def test_plans_dropped_and_meshes_closed_with_requests_on_their_way():
    def program(rank):
        mesh, array = grid(), numbered((8, 6))
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        tensor = mc.distribute(array, rows)
        first = mc.start_relayout(tensor, columns)
        mc.drop_plans(mesh)
        second = mc.start_relayout(tensor, columns)
        mesh.close()
        with pytest.raises(MeshError, match="is closed"):
            mc.start_relayout(tensor, columns)
        return [same_bits(r.wait().local, blocks_of(array, columns)[rank]) for r in (second, first)]

    assert simulated(4, program) == [[True, True]] * 4


def test_a_peer_that_ended_is_noticed_by_a_loop_of_tests():
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        tensor, columns = mc.zeros((8, 6), "i8", Layout(["x", U], mesh)), Layout([U, "x"], mesh)
        mc.start_relayout(tensor, columns).wait()
        if rank == 0:
            request = mc.start_relayout(tensor, columns)
            while not request.test():
                pass

    with pytest.raises(CollectiveMismatch, match="rank 0 asks again and again"):
        simulated(2, program)


def test_ranks_that_start_different_things():
    def program(rank):
        mesh = mc.create_mesh([("x", 2)])
        tensor = mc.zeros((8, 6), "i8", Layout(["x", U], mesh))
        mc.start_relayout(tensor, Layout([U, "x"] if rank else [U, U], mesh))

    with pytest.raises(CollectiveMismatch, match="start_relayout of"):
        simulated(2, program)


def test_what_is_no_tensor_or_does_not_fit_starts_nothing():
    def program(rank):
        mesh = grid()
        tensor, columns = mc.zeros((8, 6), "i8", Layout(["x", U], mesh)), Layout([U, "x"], mesh)
        for operand, target in (([tensor], [columns]), (numbered((8, 6)), columns), (tensor, Layout(["x"], mesh))):
            with pytest.raises(LayoutError):
                mc.start_relayout(operand, target)
        return mc.start_relayout(tensor, columns).wait().shape

    assert simulated(4, program) == [(8, 6)] * 4


@on_ranks(4)
def test_a_result_is_in_the_layout_of_its_own_call():
    """An equal layout of an earlier call may be on a mesh that is closed."""
    tensor = mc.ones(8, float, Layout(["x"], mc.create_mesh([("x", 4)])))
    meshes = []
    for _ in range(2):
        meshes.append(mc.create_mesh([("y", 2)]))
        result = mc.start_relayout(tensor, Layout(["y"], meshes[-1])).wait()
        assert result.layout.mesh is meshes[-1]
        assert meshes[-1].rank is None or (result.to_numpy() == 1).all()
        meshes[-1].close()
