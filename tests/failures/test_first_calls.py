"""Who is missing before ranks have communicated: several ranks of one process ask each other."""

import sys
from types import SimpleNamespace

import pytest

from meshcomm.failures import first_calls, host_signals
from meshcomm.failures.first_calls import FirstCalls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signs are sockets of Linux")

IDLE = {
    "calls": 3,
    "made": {},
    "operation": "",
    "number": 0,
    "ranks": "",
    "since": 4.0,
    "error": "",
    "files": False,
} | {"at": ""}
WAITS = IDLE | {"made": {"0-2": 1}, "operation": "barrier", "number": 1, "ranks": "0-2"}
CALL = ("barrier", None, 1, 0.0)


@pytest.fixture
def ranks(monkeypatch, tmp_path):
    """A function that makes ranks which do these things, and lets the first one ask all of them."""
    monkeypatch.setattr(host_signals, "job_name", lambda: str(tmp_path))
    now = SimpleNamespace(does=None)
    monkeypatch.setattr(first_calls, "_what_this_rank_does", lambda: now.does)
    made = []

    def close():
        for each in made:
            each._forget()
            each._sign.close()
        made.clear()

    def report(*does, silent=(), absent=()):
        close()
        found = {rank: FirstCalls(rank) for rank in range(len(does)) if rank not in absent}
        made.extend(found.values())
        found[0].ask(CALL, range(len(does)))
        for rank in [rank for rank in found if rank not in silent][::-1]:  # the one that asks is the last
            now.does = does[rank]
            found[rank].serve()
        return found[0].report

    yield report
    close()


def test_a_rank_that_computes(ranks):
    report = ranks(WAITS, WAITS, IDLE)
    assert (
        report.text
        == "rank 2 has not arrived: it has been outside meshcomm for 4 s, before its first call on these ranks"
    )
    assert (report.speaks, report.files, report.ended) == (True, False, "")


def test_ranks_that_wait_elsewhere_or_later(ranks):
    other = WAITS | {"made": {"1-2": 1}, "operation": "relayout", "ranks": "1-2"}
    found = ranks(WAITS, other, WAITS).text
    assert found == "rank 1 has not arrived: it has waited 4 s in relayout on ranks 1-2 (another mesh or communicator)"


def test_the_first_that_waits_speaks_for_all(ranks):
    report = ranks(IDLE | {"made": {"0-2": 1}}, WAITS, IDLE)
    assert not report.speaks


def test_ranks_that_cannot_be_asked(ranks):
    report = ranks(WAITS, WAITS, IDLE, absent=(2,))
    assert report.text == "rank 2 cannot be asked: it has made no mesh yet, or runs on another host"


def test_all_are_there(ranks):
    assert ranks(WAITS, WAITS, WAITS).text == ""


def test_a_rank_that_reads_a_file(ranks):
    assert ranks(WAITS, IDLE | {"files": True}).files


def test_a_rank_that_does_not_answer(ranks, monkeypatch):
    assert ranks(WAITS, IDLE, silent=(1,)) is None, "it may still"
    monkeypatch.setattr(first_calls, "ANSWER_WITHIN", -1.0)
    assert "rank 1 does not answer: it is stopped" in ranks(WAITS, WAITS, IDLE, silent=(1,), absent=(2,)).text


def test_what_is_no_answer_is_none(ranks, monkeypatch):
    monkeypatch.setattr(first_calls.json, "dumps", lambda told: "[3")
    assert "does not answer" in ranks(WAITS, IDLE).text
