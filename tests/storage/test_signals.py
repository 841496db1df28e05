"""Signals that a program counts, in one process; tests/jobs/test_files.py has real ranks."""

import os
import signal
import threading

import pytest

import meshcomm as mc
from meshcomm.storage import signals


@pytest.fixture
def usr2():
    """A signal that nobody counts yet, and that does what it did before when the test is over."""
    before = signal.getsignal(signal.SIGUSR2)
    signals._counts.pop(signal.SIGUSR2, None)
    yield signal.SIGUSR2
    signals._counts.pop(signal.SIGUSR2, None)
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("name", ["SIGUSR9", "", "SIGKILL", "STOP", 0, -1, 9999, True, None, 1.5, "SIG"])
def test_what_is_no_signal_is_refused(name):
    with pytest.raises(ValueError, match="is no signal that a program can handle"):
        signals.number_of(name)


def test_signals_are_counted_and_the_handler_before_is_called(usr2):
    seen = []
    signal.signal(usr2, lambda number, frame: seen.append(number))
    signals.count(usr2)
    signals.count(usr2)
    assert signals.arrived(usr2) == 0
    for _ in range(3):
        os.kill(os.getpid(), usr2)
    assert signals.arrived(usr2) == 3
    assert seen == [usr2] * 3


def test_only_the_main_thread_can_begin(usr2):
    caught = []

    def other():
        try:
            signals.count(usr2)
        except ValueError as error:
            caught.append(str(error))

    for _ in range(2):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        signals.count(usr2)
    assert caught == ["SIGUSR2 is not handled yet, and only the main thread can begin to"]


def wanted_at(run, at, steps=6):
    """Return the steps at which a checkpoint is wanted, when signals arrive before the steps of *at*."""
    found = []
    for step in range(steps):
        for _ in range(at.count(step)):
            os.kill(os.getpid(), signal.SIGUSR2)
        if run.wanted():
            found.append(step)
            run.save(step, {"step": step})
    return found


def test_each_request_is_answered_once(usr2, tmp_path):
    with mc.simulate(1) as world:
        run = mc.Checkpoints(tmp_path, save_on="USR2")
        assert world.run(lambda: wanted_at(run, [])) == [[]]
    # The handler runs in the main thread only, which a simulated rank is not: so without a simulated world.
    run = mc.Checkpoints(tmp_path, save_on=usr2)
    assert wanted_at(run, [1, 1, 4]) == [1, 4]
    assert mc.Checkpoints(tmp_path, save_on=usr2).wanted() is False


def test_signals_during_the_save_that_they_asked_for_are_one_request(usr2, tmp_path):
    run = mc.Checkpoints(tmp_path, save_on="SIGUSR2")
    os.kill(os.getpid(), usr2)
    assert run.wanted()
    os.kill(os.getpid(), usr2)
    run.save(0, {"step": 0})
    assert not run.wanted()
    run.save(1, {"step": 1})  # nobody has asked for this one: it answers nothing
    os.kill(os.getpid(), usr2)
    assert run.wanted()


def test_a_signal_during_another_save_is_not_lost(usr2, tmp_path):
    run = mc.Checkpoints(tmp_path, save_on="SIGUSR2")
    os.kill(os.getpid(), usr2)
    run.save(0, {"step": 0})
    assert run.wanted()
    assert not run.wanted()


def test_without_a_signal_nothing_is_wanted(tmp_path):
    with pytest.raises(ValueError, match="save_on="):
        mc.Checkpoints(tmp_path).wanted()
