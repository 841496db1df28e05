"""What ranks agree on, what the watchdog hears, and how a process learns that it is one of several.

How jobs end is tested in tests/jobs/test_failures.py.
"""

import math
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import errors
from meshcomm.blocks.session import in_session
from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core import _tuning
from meshcomm.core.failures import abort, forks, host_signals
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.calls import join_and_raise
from meshcomm.core.ranks.meshes import location_in
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.ranks.simulate import SimulatedRank
from support.in_process_ranks import output_of


class Ended(BaseException):
    """Raised by the tests instead of the end of the job."""


@pytest.fixture
def ends(monkeypatch, launched_as):
    """The reasons for which the job would have ended; it counts as one of two ranks."""
    reasons = []

    def end_job(reason, code=1, shared=None):
        reasons.append((reason, code))
        raise Ended

    launched_as(1, 2)
    monkeypatch.setattr(abort, "end_job", end_job)
    return reasons


def agreed(*errors_of_ranks):
    """Return the exception that each rank raises if the ranks see these errors."""

    def program():
        mesh = mc.create_mesh([("x", len(errors_of_ranks))])
        try:
            agreement.agree(location_in(mesh).rank_set, "the call", errors_of_ranks[mesh.rank])
        except Exception as error:
            return error
        return None

    with mc.simulate(len(errors_of_ranks)) as world:
        return world.run(program)


def test_ranks_with_an_error_in_different_calls_make_no_more():
    """All raise the error. But they are at different steps, and equal calls would exchange data of those."""

    def program():
        mesh = mc.create_mesh([("x", 2)])
        wrong = mc.Layout(["x"], mesh)
        with pytest.raises(mc.MeshcommError, match="axes" if mesh.rank else "seen by rank 1"):
            mc.from_local(np.zeros((2, 2)), wrong) if mesh.rank else mc.barrier(mesh)
        with pytest.raises(mc.MeshError, match=r"calls:\n  rank 0: barrier .*\n  rank 1: from_local, which has "):
            mc.barrier(mesh)

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.parametrize("wrong", [1, 2])
def test_an_error_of_one_rank_does_not_hide_that_calls_differ(wrong):
    """The others, or that rank and another one, relay tensors of other shapes."""

    def program():
        mesh = mc.create_mesh([("x", 3)])
        rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
        t = mc.zeros((6, 6 if mesh.rank == 1 else 9), "f8", rows)
        with pytest.raises(mc.ShapeError, match="out has shape") as raised:
            mc.relayout(t, columns, out=mc.zeros((2, 2), "f8", columns) if mesh.rank == wrong else None)
        assert "ranks made different collective calls" in raised.value.__notes__[0]
        with pytest.raises(mc.MeshError, match=rf"rank {wrong}: relayout .*, which has an error: out has shape"):
            mc.barrier(mesh)

    with mc.simulate(3) as world:
        world.run(program)


def test_after_a_mismatch_meshes_over_some_of_the_ranks_make_no_call():
    """Also those that are made later, until the first mesh is closed."""

    def program():
        mesh, pair = mc.create_mesh([("x", 3)]), mc.create_mesh([("x", 2)])
        one = mc.create_mesh([("x", 1)], devices=[mesh.rank])
        if pair.rank is not None:
            mc.barrier(pair)
        with pytest.raises(mc.CollectiveMismatch):
            mc.barrier(mesh, f"of rank {mesh.rank}")
        other = mc.create_mesh([("x", 2)], devices=[1, 2])
        for each in (pair, other):
            if each.rank is not None:
                with pytest.raises(
                    mc.MeshError, match=r"(?s)barrier 'of rank 0'.*close\(\) the mesh over ranks 0-2 and"
                ):
                    mc.barrier(each)
        assert mc.ones(3, "f8", mc.Layout(["x"], one)).to_numpy().tolist() == [1, 1, 1]
        mesh.close()
        for each in (mc.create_mesh([("x", 3)]), pair, other):
            if each.rank is not None:
                mc.barrier(each)

    with mc.simulate(3) as world:
        world.run(program)


def test_after_a_mismatch_between_meshes_an_error_says_how_to_go_on():
    def moved(shape):
        first, second = (mc.create_mesh([("x", 1)], devices=[rank]) for rank in range(2))
        return mc.relayout(mc.zeros(shape, "f8", mc.Layout(["x"], first)), mc.Layout(["x"], second))

    def program():
        rank = world.rank
        with pytest.raises(mc.CollectiveMismatch):
            moved((2 + rank,))
        with pytest.raises(mc.MeshError, match=r"to go on, make a mesh over ranks 0-1 and close\(\) it"):
            moved((2,))
        mc.create_mesh([("x", 2)]).close()
        moved((2,))

    with mc.simulate(2) as world:
        world.run(program)


def test_a_mismatch_tells_which_call_a_rank_has_refused():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
        t = mc.zeros((4, 4), "f8", rows)
        for step in range(3):
            if (mesh.rank, step) == (1, 1):
                with pytest.raises(IndexError):
                    t.sum(axis=7)
                continue
            try:
                mc.relayout(t, columns)
            except mc.CollectiveMismatch as error:
                return getattr(error, "__notes__", [])
        return "no difference"

    with mc.simulate(2) as world:
        first, second = world.run(program)
    assert first == []
    (note,) = second
    assert note.startswith("Before, this rank did not make a call: sum raised AxisError: axis 7")


def test_ranks_count_alike_after_a_difference_that_the_program_has_caught():
    """One rank has made a call more, but what a liveness check compares later are calls after as many others."""

    def program():
        mesh = mc.create_mesh([("x", 2)])
        rank_set = location_in(mesh).rank_set
        for number in range(3 + mesh.rank):
            rank_set.note(number)
        with pytest.raises(errors.CollectiveMismatch):
            agreement.agree(rank_set, "the call")
        agreement.agree(rank_set, "the next call")
        return rank_set.noted, rank_set.digest_after(rank_set.noted)

    with mc.simulate(2) as world:
        first, second = world.run(program)
    assert first == second
    assert first[0] == 1


def test_without_an_error_nothing_is_raised():
    assert agreed(None, None, None) == [None, None, None]


@pytest.mark.parametrize("kind", [errors.ShapeError, ValueError, MemoryError, OSError])
def test_an_error_of_one_rank_is_raised_by_all(kind):
    mine = kind("what is wrong")
    raised = agreed(None, mine, None)
    assert raised[1] is mine
    assert [type(error) for error in raised] == [kind] * 3
    assert "what is wrong (seen by rank 1)" in str(raised[0])


class PrivateError(errors.ShapeError):
    """A class that other ranks do not know by name."""


@pytest.mark.parametrize(
    ("error", "shared"),
    [
        (PrivateError("wrong"), errors.ShapeError),
        (np.exceptions.AxisError(3, 2), errors.AxisError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "wrong"), UnicodeError),
        (ExceptionGroup("wrong", [ValueError()]), Exception),
    ],
)
def test_an_error_that_others_cannot_make_is_raised_as_its_base(error, shared):
    raised = agreed(error, None)
    assert raised[0] is error
    assert type(raised[1]) is shared


def test_different_errors_become_the_one_of_the_first_rank():
    raised = agreed(None, errors.GroupError("first"), errors.ShapeError("second"))
    assert [type(error) for error in raised] == [errors.GroupError] * 3
    assert "first (seen by rank 1)" in str(raised[2])
    assert isinstance(raised[2].__cause__, errors.ShapeError), "the rank's own error is not lost"


def test_an_error_may_quote_what_is_no_text():
    raised = agreed(None, ValueError("the file '\udc80\n'"))
    assert "\\udc80" in str(raised[0])


def test_different_calls_name_the_ranks():
    def program():
        mesh = mc.create_mesh([("x", 20)])
        agreement.agree(location_in(mesh).rank_set, "a" * 600 if mesh.rank == 3 else "b")

    with mc.simulate(20) as world, pytest.raises(errors.CollectiveMismatch) as caught:
        world.run(program)
    assert "rank 3: aaa" in str(caught.value)
    assert "ranks 0, 1, 2, 4, 5, 6, 7, 8 and 11 more: b" in str(caught.value)


def operations():
    return [(operation, rank_set, number) for operation, rank_set, number, _ in watch.calls]


def rank_set_of_one():
    return RankSet(SimulatedRank(mc.simulate(1), 0), range(1))


def test_a_call_inside_a_call_does_not_end_it():
    rank_set = rank_set_of_one()
    with CallScope("outer", rank_set):
        with CallScope("inner", rank_set):
            assert operations() == [("outer", rank_set, 1), ("inner", rank_set, 2)]
            assert (rank_set.call_lock.operation, rank_set.call_lock.depth) == ("outer", 2)
        assert operations() == [("outer", rank_set, 1)]
    assert operations() == []
    assert (rank_set.call_lock.operation, rank_set.call_lock.depth) == (None, 0)


def test_two_threads_cannot_make_calls_on_one_rank_set_at_the_same_time():
    """Neither gets a result: which call the other ranks meet is not known."""
    rank_set, other = rank_set_of_one(), rank_set_of_one()

    def second():
        with CallScope("free", other):
            assert [operation for operation, *_ in operations()] == ["first", "free"]
        with pytest.raises(errors.MeshError, match="first and second"), CallScope("second", rank_set):
            raise AssertionError

    def first():
        with CallScope("first", rank_set):
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    with pytest.raises(errors.MeshError, match="two threads"):
        first()
    assert operations() == []
    with pytest.raises(errors.MeshError, match="two threads"), CallScope("later", rank_set):
        raise AssertionError
    assert operations() == []


def test_a_failed_exchange_ends_the_calls_of_a_rank_set():
    rank_set = rank_set_of_one()
    with CallScope("relayout", rank_set):
        pass
    rank_set.fail(KeyError("lost"))
    with pytest.raises(errors.MeshError, match=r"KeyError: 'lost'.*close\(\) it"), CallScope("next", rank_set):
        raise AssertionError


def test_a_signal_never_leaves_a_call_behind():
    """A handler may raise at any step of a call. The watchdog must not take the call for one that goes on."""
    program = """
import signal, sys
from meshcomm.core.ranks._call_scope import CallScope
from meshcomm.core.ranks.simulate import SimulatedRank, simulate
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.core.failures.watch import watch
class Interrupt(Exception): pass
armed = False
def handler(*_):
    global armed
    if armed:
        armed = False
        raise Interrupt
signal.signal(signal.SIGALRM, handler)
rank_set = RankSet(SimulatedRank(simulate(1), 0), range(1))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for hit in range(2000):
    try:
        armed = True
        while True:
            with CallScope("outer", rank_set):
                with CallScope("inner", rank_set):
                    pass
    except Interrupt:
        pass
    assert watch.calls == [] and rank_set.call_lock.depth == 0, (hit, watch.calls, rank_set.call_lock.depth)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print("as expected")
"""
    assert output_of(program) == "as expected\n"


def test_every_operation_leaves_the_watchdog_as_it_was():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows = mc.distribute(np.arange(6).reshape(3, 2), mc.Layout(["x", mc.UNSHARDED], mesh), root=0)
        mc.relayout(rows, mc.Layout([mc.UNSHARDED, "x"], mesh)).to_numpy()
        mc.all_gather(np.zeros(2), None, 0)
        with pytest.raises(errors.GroupError):
            mc.all_to_all(np.zeros(2), [[0, 1]], 0, 0, 3)

    before = watch.count
    with mc.simulate(2) as world:
        world.run(program)
    assert watch.calls == []
    assert watch.count > before


def test_an_agreement_that_is_interrupted_leaves_no_error():
    def interrupted(values):
        assert isinstance(watch.error, KeyError)
        raise KeyboardInterrupt

    def program(rank):
        mesh = mc.create_mesh([("x", 1)])
        mc.barrier(mesh)
        rank_set = location_in(mesh).rank_set
        rank_set.everyone.communicator().allreduce_max = interrupted
        with pytest.raises(KeyboardInterrupt):
            agreement.agree(rank_set, "a call", KeyError("wrong"))
        assert watch.error is None

    with mc.simulate(1) as world:
        world.run(program, None)


def test_a_rank_with_an_error_in_a_known_call_shows_that_before_it_takes_part(job, launched_as):
    launched_as(1, 2)
    wrong, seen = errors.ShapeError("wrong"), []
    with mc.simulate(1) as world:
        rank_set = world.run(rank_set_of_one)[0]
        rank_set.world.ends_job_on_failure = True
        try:
            with pytest.raises(errors.ShapeError, match="wrong"):
                join_and_raise(wrong, rank_set, lambda: seen.append(host_signals._is_shown("tells 1")))
        finally:
            host_signals.note_reported()
    assert seen == [True], "the others would end the job before this rank has reported its error"


def test_errors_of_two_threads_leave_none():
    """Whichever of them ends first."""
    first, second = watch.pending_error(KeyError(1)), watch.pending_error(KeyError(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert str(watch.error) == "2"
    second.__exit__(None, None, None)
    assert watch.error is None


@pytest.mark.parametrize(
    ("text", "timeout"), [("2.5", 2.5), ("0", math.inf), ("inf", math.inf), ("", 600), (None, 600)]
)
def test_timeout(monkeypatch, text, timeout):
    monkeypatch.delenv("MESHCOMM_TIMEOUT", raising=False)
    if text is not None:
        monkeypatch.setenv("MESHCOMM_TIMEOUT", text)
    assert abort.timeout_seconds() == timeout


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_timeout_must_be_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("MESHCOMM_TIMEOUT", text)
    with pytest.raises(errors.MeshcommError, match="MESHCOMM_TIMEOUT must be a number of seconds"):
        abort.timeout_seconds()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit("in words"), 1),
    ],
)
def test_exit_code(error, code):
    assert abort.exit_code(error) == code


def test_the_hook_calls_the_one_before_and_ends_the_job_even_if_that_fails(ends):
    shown = []

    def previous(kind, value, traceback):
        shown.append(value)
        raise OSError("nowhere to write to")

    error = KeyError("culprit")
    with pytest.raises(Ended):
        abort._ending_excepthook(previous)(KeyError, error, None)
    assert shown == [error]
    assert ends == [("an uncaught KeyError", 1)]


def test_sys_exit_in_a_thread_ends_only_the_thread(ends):
    hook = abort._ending_thread_excepthook(lambda args: None)
    hook(threading.ExceptHookArgs((SystemExit, SystemExit(1), None, None)))
    assert ends == []
    with pytest.raises(Ended):
        hook(threading.ExceptHookArgs((KeyError, KeyError(), None, threading.Thread(name="spinner"))))
    assert ends == [("an uncaught KeyError in thread spinner", 1)]


def test_a_hook_that_replaced_ours_is_noticed_at_exit(ends, monkeypatch):
    monkeypatch.setattr(sys, "last_value", KeyError("culprit"), raising=False)
    abort._end_if_hook_was_replaced(sys.excepthook)
    assert ends == []
    with pytest.raises(Ended):
        abort._end_if_hook_was_replaced(lambda *error: None)
    assert ends == [("an uncaught KeyError", 1)]


def test_a_process_alone_and_a_forked_one_end_no_job(ends, launched_as, monkeypatch):
    launched_as(0, 1)
    abort.end_job_of_many("a reason")
    launched_as(1, 2)
    monkeypatch.setattr(forks, "is_child", True)
    abort.end_job_of_many("a reason")
    assert ends == []


def test_known_calls_that_differ_are_found_before_long():
    def program():
        for op in ("sum", "max"):
            mc.all_reduce(np.ones(2), None, op)
        op = "max" if world.rank == 1 else "sum"  # which exchange the same bytes
        for calls[world.rank] in range(1000):
            mc.all_reduce(np.ones(2), None, op)

    calls = [0, 0]
    with mc.simulate(2) as world, pytest.raises(errors.CollectiveMismatch, match="MESHCOMM_CHECK"):
        world.run(program)
    assert max(calls) < _tuning.COMPARE_EVERY


@pytest.mark.parametrize("at_root", [False, True])
def test_a_rank_without_memory_for_what_it_compares_or_sends(monkeypatch, at_root):
    """It raises, and no other rank waits for it or goes on alone."""
    copied = np.ascontiguousarray

    def short_of_memory(array):
        if world.rank == 0 and array.size:
            raise MemoryError("no memory for a copy")
        return copied(array)

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        tensor, plain = mc.ones(4, float, layout), np.arange(8.0)[::2]  # not contiguous: it has to be copied
        at = plain if layout.mesh.rank == 0 else None
        call = (lambda: mc.distribute(at, layout, root=0)) if at_root else (lambda: tensor + plain)
        with pytest.raises(MemoryError, match="no memory for a copy"):
            call()
        mc.barrier(layout.mesh)

    monkeypatch.setattr(
        "meshcomm.core.arrays.create.np", SimpleNamespace(**{**vars(np), "ascontiguousarray": short_of_memory})
    )
    with mc.simulate(2) as world:
        world.run(program)


def test_a_rank_is_reported_of_the_mesh_that_it_is_outside_of_not_of_the_root_of_to_numpy():
    def program():
        inner, mesh = mc.create_mesh([("inner", 2)]), mc.create_mesh([("x", 3)])
        tensor = mc.zeros(4, float, mc.Layout(["inner"], inner))
        mc.ones(3, float, mc.Layout(["x"], mesh)).to_numpy(root=0)
        if inner.rank is None:
            assert tensor.local is None
            return location_in(mesh).rank_set.world.newest_mesh_without_me() is inner
        return True

    with mc.simulate(3) as world:
        assert all(world.run(program))


@pytest.mark.parametrize("value", [np.array(1), b"x", np.int64(3), np.datetime64("2000")])
def test_what_cannot_travel_is_an_error_on_all_ranks(value):
    """One rank looks it up, or tells it: the others do not wait for it."""

    def program():
        mesh = mc.create_mesh([("x", -1)])
        with pytest.raises(TypeError, match="not JSON serializable"):
            broadcast_from_device("look", mesh, "what is there", lambda: value)
        assert broadcast_from_device("look", mesh, "what is there", lambda: 3) == 3
        with pytest.raises(TypeError, match="not JSON serializable"):
            in_session("tell", mesh, lambda call: call.allgather(value if call.device == mesh.size - 1 else 1))

    for ranks in (1, 2, 3):
        with mc.simulate(ranks) as world:
            world.run(program)
