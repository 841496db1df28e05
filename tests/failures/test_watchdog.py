"""The watchdog in one process: signals that it hears. How it ends jobs is tested in tests/jobs."""

import os
import signal
import socket

import pytest

from meshcomm.core._tuning import WATCH_EVERY
from meshcomm.core.failures import watchdog
from meshcomm.core.failures.watch import watch


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


def test_ctrl_c_just_after_a_call_has_begun_counts_until_the_next_call(pipe, monkeypatch):
    monkeypatch.setattr(watch, "count", watch.count)
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    dog = watchdog._Watchdog(1.0, pipe[0])
    dog._notice_changes()
    watch.count += 1
    monkeypatch.setattr(watch, "calls", [("relayout", None, 1, 0.0)])
    os.write(pipe[1], bytes([signal.SIGINT]))
    dog._sleep()
    assert dog._notice_changes()
    dog._restart()
    assert dog._interrupted == 0.0
    watch.count += 1
    dog._restart()
    assert dog._interrupted is None


def test_time_in_a_library_does_not_count(pipe, monkeypatch):
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    monkeypatch.setattr(watch, "calls", [("scalapack's pdgesvd", None, 1, 0.0)])
    dog = watchdog._Watchdog(1.0, pipe[0])
    dog._notice_changes()
    with watch.in_library_call():
        assert dog._notice_changes()
        assert watch.is_in_file_io_or_library(), "others that wait for this rank know that it goes on"
    assert not dog._notice_changes()
    assert not watch.in_library


def test_ctrl_c_outside_of_a_call_is_left_to_python(pipe, monkeypatch):
    monkeypatch.setattr(watch, "calls", [])
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    dog = watchdog._Watchdog(1.0, pipe[0])
    os.write(pipe[1], bytes([signal.SIGINT]))
    dog._sleep()
    assert dog._interrupted is None


@pytest.mark.parametrize(("since", "step"), [(1.0, WATCH_EVERY), (2.8, 0.2), (3.0, WATCH_EVERY)])
def test_the_last_look_is_at_the_timeout(pipe, monkeypatch, since, step):
    monkeypatch.setattr(watch, "errors", [])
    monkeypatch.setattr(watch, "idle_seconds", since)
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    monkeypatch.setattr(watchdog, "open_liveness_checks", list)
    assert watchdog._Watchdog(3.0, pipe[0])._next_step() == pytest.approx(step)


@pytest.mark.parametrize(("error", "asks"), [(None, False), (KeyError("culprit"), True)])
def test_a_rank_with_an_error_asks_at_once_who_is_missing(pipe, monkeypatch, error, asks):
    """The others may exchange, and never come to hear of it."""
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    monkeypatch.setattr(watch, "errors", [error] if error else [])
    dog = watchdog._Watchdog(600.0, pipe[0])
    dog._restart()
    assert (dog._ask_at <= 2 * WATCH_EVERY) == asks


@pytest.mark.parametrize("haste", [False, True])
@pytest.mark.parametrize("pause", [0.01, 0.1, 0.3, 3.0])
def test_to_test_a_request_with_pauses_is_to_wait(pipe, monkeypatch, pause, haste):
    """The time goes on between tests, and what the rank does is noted in the moments after each test."""
    timeout = 60.0
    monkeypatch.setattr(watchdog, "FirstCalls", lambda rank: None)
    monkeypatch.setattr(watch, "last_polled", ("tests of a relayout", None, 1, 0.0))
    monkeypatch.setattr(watch, "num_polls", 0)  # other tests of this process may have tested requests
    for name in ("only_polling", "idle_seconds"):
        monkeypatch.setattr(watch, name, getattr(watch, name))
    dog = watchdog._Watchdog(timeout, pipe[0])
    if haste:
        dog._step /= 5
    dog._notice_changes()
    changes = tells = 0
    for look in range(round(20.0 / dog._step)):
        watch.num_polls += int(look * dog._step / pause) - int((look - 1) * dog._step / pause)
        changes += dog._notice_changes()
        tells += watch.only_polling is not None
    assert changes == 1, "it begins to test"
    assert tells >= (look * 0.9 if pause < WATCH_EVERY else 5)
    for _ in range(round(timeout / 10 / dog._step) + 2):
        changes += dog._notice_changes()
    assert changes == 2, "it tests no more"
    assert watch.only_polling is None
