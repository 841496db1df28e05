"""The watchdog in one process: signals that it hears. How it ends jobs is tested in tests/jobs."""

import os
import signal
import socket

import pytest

from meshcomm.core._tuning import WATCH_EVERY
from meshcomm.core.failures import watchdog


@pytest.fixture
def dog_of(pipe, job, fresh_watch):
    """A function that makes a watchdog with a timeout, which hears of signals through the pipe."""
    dogs = []

    def make(timeout):
        dogs.append(watchdog._Watchdog(timeout, pipe[0]))
        return dogs[-1]

    yield make
    for dog in dogs:
        if dog._first_calls._questions._signal is not None:
            dog._first_calls._questions._signal.close()


def test_signals_of_an_event_loop_stay_its_own():
    theirs, ours = socket.socketpair()
    with theirs, ours:
        ours.setblocking(False)
        before = signal.set_wakeup_fd(ours.fileno())
        try:
            assert watchdog._signal_file() is None
        finally:
            kept = signal.set_wakeup_fd(before)
        assert kept == ours.fileno()


def test_ctrl_c_just_after_a_call_has_begun_counts_until_the_next_call(pipe, dog_of, fresh_watch):
    dog = dog_of(1.0)
    dog._notice_changes()
    fresh_watch.count += 1
    fresh_watch.calls = [("relayout", None, 1, 0.0)]
    os.write(pipe[1], bytes([signal.SIGINT]))
    dog._sleep()
    assert dog._notice_changes()
    dog._restart()
    assert dog._interrupted == 0.0
    fresh_watch.count += 1
    dog._restart()
    assert dog._interrupted is None


def test_time_in_a_library_does_not_count(dog_of, fresh_watch):
    fresh_watch.calls = [("scalapack's pdgesvd", None, 1, 0.0)]
    dog = dog_of(1.0)
    dog._notice_changes()
    with fresh_watch.in_library_call():
        assert dog._notice_changes()
        assert fresh_watch.is_in_file_io_or_library(), "others that wait for this rank know that it goes on"
    assert not dog._notice_changes()
    assert not fresh_watch.in_library


def test_ctrl_c_outside_of_a_call_is_left_to_python(pipe, dog_of):
    dog = dog_of(1.0)
    os.write(pipe[1], bytes([signal.SIGINT]))
    dog._sleep()
    assert dog._interrupted is None


@pytest.mark.parametrize(("since", "step"), [(1.0, WATCH_EVERY), (2.8, 0.2), (3.0, WATCH_EVERY)])
def test_the_last_look_is_at_the_timeout(dog_of, fresh_watch, since, step):
    fresh_watch.idle_seconds = since
    assert dog_of(3.0)._next_step() == pytest.approx(step)


@pytest.mark.parametrize(("error", "asks"), [(None, False), (KeyError("culprit"), True)])
def test_a_rank_with_an_error_asks_at_once_who_is_missing(dog_of, fresh_watch, error, asks):
    """The others may exchange, and never come to hear of it."""
    dog = dog_of(600.0)
    with fresh_watch.pending_error(error):
        dog._restart()
    assert (dog._ask_at <= 2 * WATCH_EVERY) == asks


@pytest.mark.parametrize("haste", [False, True])
@pytest.mark.parametrize("pause", [0.01, 0.1, 0.3, 3.0])
def test_to_test_a_request_with_pauses_is_to_wait(dog_of, fresh_watch, pause, haste):
    """The time goes on between tests, and what the rank does is noted in the moments after each test."""
    timeout = 60.0
    fresh_watch.last_polled = "tests of a relayout", None, 1, 0.0
    dog = dog_of(timeout)
    if haste:
        dog._step /= 5
    dog._notice_changes()
    changes = tells = 0
    for look in range(round(20.0 / dog._step)):
        fresh_watch.num_polls += int(look * dog._step / pause) - int((look - 1) * dog._step / pause)
        changes += dog._notice_changes()
        tells += fresh_watch.only_polling is not None
    assert changes == 1, "it begins to test"
    assert tells >= (look * 0.9 if pause < WATCH_EVERY else 5)
    for _ in range(round(timeout / 10 / dog._step) + 2):
        changes += dog._notice_changes()
    assert changes == 2, "it tests no more"
    assert fresh_watch.only_polling is None
