"""What messages say about where a program is, and what tracebacks leave out."""

import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from types import SimpleNamespace

import pytest

import meshcomm as mc
from meshcomm.core import _callers
from meshcomm.core._callers import shortened_traceback
from meshcomm.core.failures import abort, stacks
from meshcomm.core.ranks._call_scope import CallLock, CallScope


def test_the_line_of_the_main_thread_is_that_of_the_program_not_of_the_library_it_is_in():
    found, waits = [], threading.Event()  # to wait is a function of Python in a library, as mpi4py's are of C

    def look():
        found.append(stacks.of_main())
        waits.set()

    thread = threading.Thread(target=look)

    def step():
        thread.start()
        assert waits.wait(60)

    step()
    thread.join()
    lines = [step.__code__.co_firstlineno + 1, step.__code__.co_firstlineno + 2]
    assert found[0] in [f"{__file__}:{line} in step" for line in lines]


def caught(call):
    with pytest.raises(BaseException) as error:
        call()
    return error.value


def wrong_layout():
    mesh = mc.Mesh(range(1), [("x", 1)])
    return mc.Layout(["y"], mesh)


def different_calls():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        if mesh.rank:
            mc.barrier(mesh)
        else:
            mc.ones((4,), "f8", mc.Layout(["x"], mesh)).to_numpy()

    with mc.simulate(2) as world:
        world.run(program)


def in_compiled_code():
    lock = CallLock()
    lock.end("it is over")
    with CallScope("a call", SimpleNamespace(call_lock=lock, calls=0)):
        pass


def names(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


ERRORS = {
    wrong_layout: ["caught", "wrong_layout", "__new__"],
    different_calls: ["caught", "different_calls", "run", "program", "to_numpy"],
    in_compiled_code: ["caught", "in_compiled_code"],
}


@pytest.mark.parametrize(("call", "short"), ERRORS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_error_of_the_caller_shows_the_calls_of_the_program_only(call, short):
    error = caught(call)
    whole = names(error)
    with shortened_traceback(error):
        assert names(error) == short
    assert names(error) == whole, "a debugger has them all, after it"


def test_nothing_is_left_out_of_a_mistake_of_ours_nor_for_developers(monkeypatch):
    layout = mc.Layout([], mc.Mesh(range(1), [("x", 1)]))
    ours = caught(lambda: mc.from_callback((), "f8", layout, lambda slices: {}["no error of meshcomm"]))
    whole = names(ours)
    assert len(whole) > 4
    with shortened_traceback(ours):
        assert names(ours) == whole
    error = caught(different_calls)
    whole = names(error)
    monkeypatch.setattr(_callers, "sys", SimpleNamespace(flags=SimpleNamespace(dev_mode=True)))
    with shortened_traceback(error):
        assert names(error) == whole


def test_errors_that_are_raised_from_others_are_short_too():
    def program():
        try:
            wrong_layout()
        except mc.LayoutError as error:
            raise mc.MeshError("no mesh") from error

    error = caught(program)
    error.__cause__.__cause__ = error  # a circle
    with shortened_traceback(error):
        assert names(error.__cause__) == ["program", "wrong_layout", "__new__"]
    assert "_canonical_axes" in names(error.__cause__)


def test_the_hook_prints_it_in_short(launched_as):
    shown = []

    def previous(kind, value, its):
        shown.append([frame.name for frame in traceback.extract_tb(its)])

    launched_as(0, 1)
    error = caught(wrong_layout)
    abort._ending_excepthook(previous)(type(error), error, error.__traceback__)
    assert shown == [ERRORS[wrong_layout]]


def test_of_all_threads_the_main_one_comes_first():
    ends = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        threads.submit(ends.wait)
        first, *others = threads.submit(stacks.whole).result().split("\n\n")
        ends.set()
    assert f"{threading.main_thread().ident:#018x}" in first.partition("\n")[0]
    assert "test_of_all_threads_the_main_one_comes_first" in first
    assert others
    assert not any(lines.startswith("Current thread") for lines in others), "the one that asks is left out"


def interrupted():
    def interrupt(slices):
        raise KeyboardInterrupt

    mc.from_callback((), "f8", mc.Layout([], mc.Mesh(range(1), [("x", 1)])), interrupt)


@pytest.mark.parametrize("call", [wrong_layout, interrupted])
def test_a_traceback_is_printed_in_one_piece(call, job, launched_as, monkeypatch):
    written, shared = [], []
    launched_as(1, 3)
    monkeypatch.setattr(abort, "end_job_of_many", lambda reason, code, error: shared.append(error))
    error = caught(call)
    with redirect_stderr(SimpleNamespace(write=written.append, flush=lambda: None)):
        abort._ending_excepthook(sys.__excepthook__)(type(error), error, error.__traceback__)
    assert [error is not None for error in shared] == [call is wrong_layout]  # Ctrl-C is another error on each rank
    for error in filter(None, shared):
        error._signal.close()
        error._printed.close()
    (piece,) = filter(None, written)
    first, second, *_, last = piece.splitlines()
    assert first == "meshcomm: rank 1 of 3 has an error:"
    assert second == "Traceback (most recent call last):"
    assert last.startswith("meshcomm.LayoutError: " if call is wrong_layout else "KeyboardInterrupt")
    if call is interrupted:
        assert "in interrupt\n" in piece
        assert "in _called\n" not in piece
