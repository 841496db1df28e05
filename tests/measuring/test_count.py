"""What `mc.count` counts is what moves, and what plans predict."""

import threading

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, MeshError
from support.random_cases import any_case
from support.reference import numbered, random_bits, simulated
from support.sampling import sampled

U = "unsharded"
RANKS = 6


def rows_and_columns(size):
    mesh = mc.create_mesh([("x", size)])
    return Layout(["x", U], mesh), Layout([U, "x"], mesh)


def in_rows(size):
    rows, columns = rows_and_columns(size)
    return mc.distribute(numbered((4, 6), "f8"), rows), columns


def counted(function):
    with mc.count() as c:
        function()
    return c


# -- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [False, True], ids=["names", "all kinds"])
def test_what_plans_predict_is_counted_and_moves(kinds):
    """Against the plan, and against what simulated ranks hand to each other."""

    def program(world, number):
        case = any_case(number, ranks=RANKS)
        tensor = mc.distribute(random_bits(case.shape, case.dtype, seed=1), case.source)
        mc.barrier(mc.create_mesh([("all", RANKS)]))
        before = world.bytes_moved[world.rank]
        c = counted(lambda: mc.relayout(tensor, case.target))
        mc.barrier(mc.create_mesh([("all", RANKS)]))
        plan = mc.plan_relayout(case.shape, case.dtype, case.source, case.target)
        if world.rank not in plan.ranks:
            return (c.messages, c.bytes), (0, 0), world.bytes_moved[world.rank] - before
        part = plan.for_device(plan.ranks.index(world.rank))
        return (c.messages, c.bytes), (part.messages, part.bytes_moved), world.bytes_moved[world.rank] - before

    moved = 0
    for number in sampled(range(int(kinds), 100_000, 2), 120)[:100]:
        with mc.simulate(RANKS) as world:
            for found, predicted, handed in world.run(program, world, number):
                assert found == predicted, f"case {number}"
                assert found[1] == handed, f"case {number}"
                moved += handed
    assert moved > 0


def operations():
    """Calls on two ranks, by the operation that they count as, with the bytes that each rank receives."""
    rows, columns = rows_and_columns(2)
    t = mc.distribute(numbered((4, 6), "f8"), rows)
    halo, other = mc.halo(t, (1, 0)), mc.halo(t, (1, 0))
    return {
        "relayout": (lambda: mc.relayout(t, columns, "a name"), 2 * 3 * 8),
        "relayout of 2 tensors": (lambda: mc.relayout([t, t], columns), 2 * 2 * 3 * 8),
        "start_relayout": (lambda: mc.start_relayout(t, columns).wait(), 2 * 3 * 8),
        "halo update": (halo.update, 6 * 8),
        "start of a halo update": (lambda: halo.start_update().wait(), 6 * 8),
        "update of 2 halos": (lambda: mc.update_halos([halo, other]), 2 * 6 * 8),
        "map_overlap": (lambda: mc.map_overlap(lambda block: block * 2, t, (1, 0), "nearest"), 6 * 8),
        "to_numpy": (t.to_numpy, 2 * 6 * 8),
        "all_to_all": (lambda: mc.all_to_all(np.zeros((4, 2), "i4"), None, 0, 0, 2), 2 * 2 * 4),
        "all_gather": (lambda: mc.all_gather(np.zeros((4, 2), "i4"), None, 0), 4 * 2 * 4),
        "all_reduce": (lambda: mc.all_reduce(np.zeros(10), None), 5 * 8 + 5 * 8),
        "reduce_scatter": (lambda: mc.reduce_scatter(np.zeros(10), None, 0), 5 * 8),
        "fft": (lambda: mc.fft.fft(t + 0j, axis=0), 2 * 3 * 16),
        "rfftn": (lambda: mc.fft.rfftn(t), 2 * 2 * 16),
        "barrier": (lambda: mc.barrier(rows.mesh), 0),
    }


def test_each_operation_counts_its_own():
    def program(rank):
        found = {}
        for name, (call, expected) in operations().items():
            c = counted(call)
            found[name] = {key: its.bytes for key, its in c.operations.items() if its.bytes}, c.bytes, expected
        return found

    for found in simulated(2, program):
        for name, (by_operation, total, expected) in found.items():
            assert total == expected, name
            assert len(by_operation) == bool(expected), (name, by_operation)
            assert all(name in key for key in by_operation), (name, by_operation)


def test_the_root_alone_receives_what_it_gathers():
    def program(rank):
        rows, _ = rows_and_columns(3)
        t = mc.distribute(numbered((6, 2), "f8") if rank == 1 else None, rows, root=1)
        whole = t.to_numpy() if rank == 2 else (t.to_numpy(), None)[1]
        gathered, sent = counted(lambda: t.to_numpy(root=0)), counted(lambda: mc.distribute(whole, rows, root=2))
        return gathered.bytes, gathered.messages, sent.bytes, sent.messages

    block = 2 * 2 * 8
    assert simulated(3, program) == [(2 * block, 2, block, 1), (0, 0, block, 1), (0, 0, 0, 0)]


def test_files(tmp_path):
    """A file of rows is written from columns: save relays out, and load as well."""

    def program(rank):
        columns = rows_and_columns(2)[1]
        t = mc.distribute(numbered((128, 128), "f8"), columns)
        c = counted(lambda: mc.save(tmp_path / "a.npy", t))
        d = counted(lambda: mc.load(tmp_path / "a.npy", columns))
        return c, d, counted(lambda: mc.start_save(tmp_path / "b.npy", t).wait())

    for c, d, e in simulated(2, program):
        assert {name: its.calls for name, its in e.operations.items()} == {"start_save": 2, "wait for a save": 1}
        assert e.bytes == e.operations["start_save"].bytes == c.bytes
        assert (set(c.operations), set(d.operations)) == ({"save"}, {"load"}), "relayouts within them are theirs"
        assert c.operations["save"].calls == 2, "it agrees on its arguments first"
        assert d.operations["load"].calls == 1
        assert c.bytes == d.bytes == 128 * 128 * 8 // 4, "files have rows"
        assert c.agreements > 0


def test_small_files(tmp_path):
    """One rank reads a small array for all."""
    np.save(tmp_path / "a.npy", numbered((4, 4), "f8"))

    def program(rank):
        return counted(lambda: mc.load(tmp_path / "a.npy", rows_and_columns(2)[0])).bytes

    assert simulated(2, program) == [0, 4 * 4 * 8]


def test_a_sort_counts_what_other_ranks_send():
    def program(rank):
        t = mc.distribute(np.arange(100.0)[::-1].copy(), Layout(["x"], mc.create_mesh([("x", 2)])))
        return counted(lambda: np.sort(t)).bytes

    for received in simulated(2, program):
        assert received >= 50 * 8


# -- the numbers ------------------------------------------------------------------------------------------------------


def test_calls_seconds_and_agreements():
    def program(rank):
        t, columns = in_rows(2)
        mc.barrier(t.mesh)  # the first call connects the ranks
        with mc.count() as c:
            mc.relayout(t, columns)
            first = c.agreements
            mc.relayout(t, columns)
        its = c.operations["relayout"]
        assert (c.calls, its.calls, c.messages) == (2, 2, 2)
        assert 0 < its.seconds == c.seconds
        return first, c.agreements

    assert simulated(2, program) == [(1, 1)] * 2, "only a new call is agreed on"


def test_nested_counts_and_what_is_outside():
    def program(rank):
        t, columns = in_rows(2)
        with mc.count() as outer:
            mc.relayout(t, columns)
            with mc.count() as inner:
                mc.relayout(t, columns)
        mc.relayout(t, columns)
        with inner:
            mc.relayout(t, columns)
        return outer.calls, inner.calls, outer.messages, inner.messages

    assert simulated(2, program) == [(2, 2, 2, 2)] * 2


def test_a_count_within_itself_is_refused():
    with mc.count() as c, pytest.raises(MeshError, match="goes on already"), c:
        pass


def test_opened_outside_it_counts_all_simulated_ranks():
    def program():
        t, columns = in_rows(2)
        mc.relayout(t, columns)

    with mc.simulate(2) as world, mc.count() as c:
        world.run(program)
    assert (c.operations["relayout"].calls, c.messages, c.bytes) == (2, 2, sum(world.bytes_moved))


def test_an_error_ends_the_count_and_the_call():
    def program(rank):
        t, columns = in_rows(2)
        with pytest.raises(KeyError), mc.count() as c:
            mc.from_callback((4, 6), "f8", t.layout, lambda slices: {}["nothing"])
        with mc.count() as after:
            mc.relayout(t, columns)
        return c.bytes, list(after.operations)

    assert simulated(2, program) == [(0, ["relayout"])] * 2


def test_threads_have_calls_of_their_own():
    """What another thread does in the meantime is not within the call of this one."""
    mesh = mc.create_mesh([("x", 1)])
    t = mc.ones((2, 2), "f8", Layout(["x", U], mesh))

    def callback(slices):
        other = threading.Thread(target=lambda: mc.barrier(mesh))
        other.start()
        other.join()
        return np.zeros((2, 2))

    with mc.count() as c:
        mc.barrier(mesh)
        mc.from_callback((2, 2), "f8", t.layout, callback)
    assert c.operations["barrier"].calls == 2


def test_the_table():
    def program(rank):
        rows, columns = rows_and_columns(2)
        t = mc.distribute(numbered((400, 600), "f8"), rows)
        c = counted(lambda: mc.relayout(t, columns))
        c.operations["relayout"].seconds = 0.25
        return c

    c, _ = simulated(2, program)
    assert str(c) == c.table()
    assert c.table().splitlines() == [
        "operation  calls  messages    bytes  between nodes   seconds",
        "relayout       1         1  480,000              0  0.250000",
        "total          1         1  480,000              0  0.250000",
    ]
    assert repr(c) == "Count(calls=1, messages=1, bytes=480000)"
    assert mc.Count().table().splitlines()[1].split() == ["total", "0", "0", "0", "0", "0.000000"]


def test_between_nodes(monkeypatch):
    """With two ranks on each of two nodes, half of the exchange is between nodes and more of the messages."""
    from meshcomm.core.ranks import hosts, simulate

    monkeypatch.setattr(hosts, "this_host", lambda: f"host {simulate.current_rank().rank // 2}")

    def program(rank):
        rows, columns = rows_and_columns(4)
        t = mc.distribute(numbered((8, 8), "f8"), rows)
        return counted(lambda: mc.relayout(t, columns))

    for c in simulated(4, program):
        assert (c.messages, c.messages_between_nodes) == (3, 2)
        assert (c.bytes, c.bytes_between_nodes) == (3 * 32, 2 * 32)
