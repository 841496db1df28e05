"""Host signals between processes of a host, here between objects of one process."""

import resource
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshcomm.core.failures import host_signals

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="signals are sockets of Linux"),
    pytest.mark.usefixtures("job"),
]


@pytest.fixture
def error():
    """A function that makes an error; all are closed afterwards."""
    made = []

    def make(text, rank, *tellers):
        made.append(host_signals.SharedError(text, rank, tellers, time.monotonic() + 60.0))
        return made[-1]

    yield make
    for each in made:
        for name in ("_signal", "_first", "_printed"):
            if getattr(each, name, None) is not None:
                getattr(each, name).close()


def test_one_rank_prints_an_error_of_several(error):
    first, second, other = error("alike", 2), error("alike", 3), error("another", 1)
    assert (first.ours, second.ours, other.ours) == (True, False, True)
    assert first.settled(60.0) is first
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(second.settled, 60.0)
        with pytest.raises(TimeoutError):
            waits.result(0.05)
        first.note_printed()
        assert waits.result(30.0) is second
    assert (first.ranks(), other.ranks()) == ([2, 3], [1]), "not rank 0, which no look makes one of them"


def test_of_the_ranks_that_have_waited_in_vain_one_prints(error):
    _, second, third = error("alike", 0), error("alike", 1), error("alike", 2)
    second = second.settled(0.01)
    assert second.ours
    second.note_printed()
    second.note_printed()
    third = third.settled(0.01)
    assert not third.ours
    for each in second, third:
        (each._signal or each._first).close()
    second._printed.close()


def test_an_error_is_not_lost_if_the_rank_that_was_to_print_it_is_gone(error):
    first, second = error("alike", 0), error("alike", 1)
    first._signal.close()
    second = second.settled(60.0)  # at once
    assert second.ours
    second._signal.close()


def test_a_rank_that_has_a_name_but_does_not_listen_yet_is_the_first(error):
    first = socket.socket(socket.AF_UNIX)
    with first, ThreadPoolExecutor() as threads:
        first.bind(host_signals._address("prints alike"))
        second = threads.submit(error, "alike", 1)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        first.listen()
        assert not second.result(30.0).ours


def test_without_signals_each_rank_prints(error, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    first, second = error("alike", 0), error("alike", 1)
    assert first.ours
    assert second.ours
    assert second.ranks() == [1]


def test_a_process_with_as_many_files_as_it_may_have_shows_nothing():
    assert host_signals.ended_ranks([0]) == []  # reads what tells one job from another, which needs files
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        host_signals.show_pending_error(0)  # within an agreement, which it must not leave
        host_signals.wait_for_reports([1], time.monotonic() + 60.0)
        host_signals.note_reported()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_another_user_shows_nothing_to_us(error, monkeypatch):
    first = error("alike", 0)
    monkeypatch.setattr(host_signals, "_is_ours", lambda other: False)
    assert first.ours
    assert error("alike", 1).ours


def test_ranks_that_have_ended():
    assert host_signals.ended_ranks(range(3)) == []
    kept = host_signals._new_signal("ended 1")
    assert host_signals.ended_ranks(range(3)) == [1]
    kept.close()
    assert host_signals.ended_ranks(range(3)) == []


# -- errors that ranks share ------------------------------------------------------------------------------------------


def raised(error, cause=None):
    try:
        raise error from cause
    except ValueError as caught:
        return caught


def test_what_one_rank_saw_is_the_same_error_on_the_others():
    seen = raised(host_signals.note_shared(ValueError("wrong"), "ValueError: wrong", seen=True))
    shared = host_signals.note_shared(ValueError("wrong (seen by rank 1)"), "ValueError: wrong", seen=False)
    assert host_signals.shared_text(seen) == ("ValueError: wrong", True)
    assert host_signals.shared_text(raised(shared, KeyError("of its own"))) == ("ValueError: wrong", False)


def test_what_the_program_raises_in_place_of_a_shared_error():
    def replaced(shared, text):
        return host_signals.shared_text(raised(ValueError(text), raised(shared)))

    seen = host_signals.note_shared(ValueError("wrong"), "ValueError: wrong", seen=True)
    shared = host_signals.note_shared(ValueError("wrong (seen by rank 1)"), "ValueError: wrong", seen=False)
    assert replaced(seen, "mine")[0] == replaced(shared, "mine")[0] != replaced(shared, "other")[0]


def test_other_errors_are_distinguished_by_their_tracebacks():
    one, other = (raised(ValueError("wrong")) for _ in range(2))
    assert host_signals.shared_text(one) == host_signals.shared_text(other)
    assert host_signals.shared_text(ValueError("wrong")) != host_signals.shared_text(one)


# -- ranks that have an error to tell ---------------------------------------------------------------------------------


@pytest.fixture
def waiting():
    """A function that lets another thread wait, at most a minute, until ranks 0 to 2 have reported their errors."""
    with ThreadPoolExecutor() as threads:
        yield lambda: threads.submit(host_signals.wait_for_reports, range(3), time.monotonic() + 60.0)
        host_signals.note_reported()


def test_a_rank_waits_until_another_one_has_reported_its_error(waiting):
    host_signals.show_pending_error(1)
    waits = waiting()
    assert not waits.done()
    with pytest.raises(TimeoutError):
        waits.result(0.05)
    host_signals.show_pending_error(1)  # again, as it prints
    assert not waits.done()
    host_signals.note_reported()
    waits.result(30.0)


def test_no_rank_waits_for_those_that_have_nothing_to_tell(waiting):
    host_signals.note_reported()
    host_signals.show_pending_error(7)
    waiting().result(30.0)


def test_no_rank_waits_for_ever():
    host_signals.show_pending_error(1)
    host_signals.wait_for_reports(range(3), time.monotonic() + 0.05)
    host_signals.note_reported()


def test_a_rank_that_knows_less_leaves_it_to_another(error):
    host_signals.show_pending_error(1)
    with ThreadPoolExecutor(1) as threads:
        shared = threads.submit(error, "alike", 0, 1, 2)
        with pytest.raises(TimeoutError):
            shared.result(0.05)
        prints = error("alike", 1)
        assert (prints.ours, shared.result(30.0).ours) == (True, False), "at once, though rank 1 has not printed yet"
    host_signals.note_reported()
    assert error("nobody", 0, 1, 2).ours, "nobody has an error to tell"
