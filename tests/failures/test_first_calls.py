"""Who is missing before ranks have communicated: several ranks of one process ask each other."""

import json
import sys
from types import SimpleNamespace

import pytest

from meshcomm.core.failures import first_calls, host_signals
from meshcomm.core.failures.answers import Answer
from meshcomm.core.failures.first_calls import FirstCalls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals are sockets of Linux")

IDLE = Answer(3, 0, "", "", 0, False, "", 4.0, "", False)
WAITS = IDLE._replace(rank_set_calls=1, operation="barrier", call_number=1, is_in_call=True)
CALL = ("barrier", None, 1, 0.0)


@pytest.fixture
def ranks(monkeypatch, job):
    """A function that makes ranks which do these things, and lets the first one ask all of them."""
    now = SimpleNamespace(does=None)
    monkeypatch.setattr(first_calls, "answer", lambda rank_set, number: now.does)
    made = []

    def close():
        for each in made:
            each._forget()
            each._questions._signal.close()
        made.clear()

    def report(*does, silent=(), absent=()):
        close()
        found = {rank: FirstCalls(rank) for rank in range(len(does)) if rank not in absent}
        made.extend(found.values())
        found[0].ask(CALL, range(len(does)))
        for rank in [rank for rank in found if rank not in silent][::-1]:  # the one that asks is the last
            now.does = does[rank]
            found[rank].serve()
        report.first = found[0]
        return found[0].report

    yield report
    close()


COMPUTES = "rank 2 has not arrived: it has been outside meshcomm for 4 s, before its first call on these ranks"
ELSEWHERE = "rank 1 has not arrived: it has waited 4 s in relayout on ranks 1-2 (another mesh or communicator)"
UNASKED = "rank 2 cannot be asked: it has made no mesh yet, or runs on another host"


@pytest.mark.parametrize(
    ("does", "absent", "found"),
    [
        ([WAITS, WAITS, IDLE], (), {"text": COMPUTES, "is_speaker": True, "files": False, "ended_ranks": ""}),
        ([WAITS, IDLE._replace(operation="relayout", other_ranks="1-2"), WAITS], (), {"text": ELSEWHERE}),
        ([IDLE._replace(rank_set_calls=1), WAITS, IDLE], (), {"is_speaker": False}),  # the first speaks
        (
            [WAITS, WAITS, IDLE],
            (2,),
            {"text": UNASKED},
        ),
        ([WAITS, WAITS, WAITS], (), {"text": ""}),
        ([WAITS, IDLE._replace(uses_files=True)], (), {"files": True}),
    ],
)
def test_reports(ranks, does, absent, found):
    report = ranks(*does, absent=absent)
    assert {name: getattr(report, name) for name in found} == found


def test_a_rank_that_does_not_answer(ranks, monkeypatch):
    assert ranks(WAITS, IDLE, silent=(1,)) is None, "it may still"
    monkeypatch.setattr(first_calls, "ANSWER_WITHIN", -1.0)
    assert "rank 1 does not answer: it is stopped" in ranks(WAITS, WAITS, IDLE, silent=(1,), absent=(2,)).text


@pytest.mark.parametrize("no_answer", [[3], 3])
def test_what_is_no_answer_is_none(ranks, no_answer):
    assert "does not answer" in ranks(WAITS, no_answer).text
    assert first_calls._parsed_answer(b"[3") is None


def test_ranks_that_have_ended_are_reported_at_the_second_sight(ranks, fresh_watch):
    """They may have ended after this call, which then completes in a moment."""
    with host_signals._new_signal("ended 1"):
        assert ranks(WAITS, WAITS, IDLE).ended_ranks == ""
        ranks.first.ask(CALL, range(3))
        assert ranks.first.report.ended_ranks == "rank 1 has ended without it"
        fresh_watch.count, ranks.first.report = 1, None  # the next call
        ranks.first.ask(CALL, range(3))
        assert ranks.first.report is None


@pytest.fixture
def rank_sets(fresh_watch):
    """Two rank sets of a world whose ranks 0 and 1 are ranks 2 and 3 of the job; this rank waits on the first."""
    world = SimpleNamespace(ranks_in_comm_world=lambda ranks: [rank + 2 for rank in ranks])
    waits, other = (
        SimpleNamespace(
            world=world,
            ranks=ranks,
            calls=calls,
            noted=0,
            digest_after={}.get,
            call_lock=SimpleNamespace(end_reason=None),
        )
        for ranks, calls in ((range(2), 1), (range(1, 2), 5))
    )
    world.all_rank_sets = lambda: [other, waits]
    fresh_watch.worlds, fresh_watch.calls = [world], [("barrier", waits, 1, 0.0)]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (["2-3", 1], (1, "barrier", 1, True, "")),
        (["3", 6], (5, "barrier", 0, False, "2-3")),
        (["0-3", 1], (0, "barrier", 0, False, "2-3")),
    ],
)
def test_the_answer_is_seen_from_the_ranks_that_ask(rank_sets, question, found):
    answer = first_calls._parsed_answer(first_calls._reply(json.dumps(question).encode()))
    seen = answer.rank_set_calls, answer.operation, answer.call_number, answer.is_in_call, answer.other_ranks
    assert seen == found


def test_a_question_that_is_on_its_way_is_answered_later(job):
    questions = host_signals.Questions(7)
    other = host_signals._connection_to("answers 7")
    broken = host_signals.answer_channel(7, b"no question")
    with other, broken:
        questions.answer(first_calls._reply)
        other.sendall(b'["0-1", 1]')
        questions.answer(first_calls._reply)
        assert first_calls._parsed_answer(other.recv(1000)).rank_set_calls == 0
        assert broken.recv(1000) == b""
    questions._signal.close()
