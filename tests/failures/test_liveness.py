"""Liveness checks: what answers mean, and that no message of ranks that leave at any time is lost or left over.

Jobs in which ranks wait in vain are in tests/jobs/test_scenarios.py.
"""

import json
import time
from collections import deque
from itertools import permutations
from types import SimpleNamespace

import pytest

from meshcomm.core._tuning import ANSWER_WITHIN, ASK_EVERY_WITH_ERROR
from meshcomm.core.failures import liveness, missing_ranks
from meshcomm.core.failures.answers import Answer
from meshcomm.core.failures.liveness import LivenessCheck

COMPUTES = Answer(9, 3, "", "", 0, False, "", 4.0, "", False)
WAITS = Answer(9, 4, "relayout", "relayout", 4, True, "", 4.0, "", False)


# -- verdicts ---------------------------------------------------------------------------------------------------------


def test_different_calls_are_a_mismatch_if_nobody_has_moved():
    answers = {0: WAITS, 1: WAITS._replace(requested_call="barrier", operation="barrier"), 2: WAITS}
    text = missing_ranks.call_mismatch(answers, answers, 4)
    assert text.splitlines() == [
        "ranks made different collective calls as call 4 on ranks 0-2:",
        "  ranks 0, 2: relayout",
        "  rank 1: barrier",
    ]


OTHER = WAITS._replace(requested_call="barrier", operation="barrier")
INNOCENT = {
    "the same call": WAITS,
    "a call later, which all have made": WAITS._replace(rank_set_calls=5, call_number=5, operation="to_numpy"),
    "the same call under another name": WAITS._replace(
        requested_call="relayout named 'b'", operation="relayout named 'b'"
    ),
    "computes": COMPUTES,
    "has ended": OTHER._replace(has_ended=True),
    "waits for a request": OTHER._replace(is_in_call=False),
    "waits on another rank set": OTHER._replace(is_in_call=False, other_ranks="1-2", call_number=0),
    "does not remember": OTHER._replace(requested_call=""),
    "does not answer": None,
}


@pytest.mark.parametrize("answer", INNOCENT.values(), ids=INNOCENT)
def test_what_may_be_right_is_no_mismatch(answer):
    answers = {0: WAITS, 1: answer}
    assert missing_ranks.call_mismatch(answers, answers, 4) == ""


@pytest.mark.parametrize("before", [{}, {0: WAITS}, {0: WAITS, 1: OTHER._replace(calls=8)}, {0: None, 1: OTHER}])
def test_a_rank_that_moves_is_no_mismatch(before):
    assert missing_ranks.call_mismatch({0: WAITS, 1: OTHER}, before, 4) == ""


PAST = {
    "has ended after this call": COMPUTES._replace(rank_set_calls=4, has_ended=True),
    "has ended later": COMPUTES._replace(rank_set_calls=9, has_ended=True),
    "computes after this call": COMPUTES._replace(rank_set_calls=4, calls=11),
    "waits on another rank set": COMPUTES._replace(rank_set_calls=5, operation="barrier", other_ranks="1-2"),
}


@pytest.mark.parametrize("answer", PAST.values(), ids=PAST)
def test_ranks_that_have_made_the_call_do_not_hide_a_mismatch(answer):
    answers = {0: WAITS, 1: answer, 2: OTHER}
    text = missing_ranks.call_mismatch(answers, answers | {1: COMPUTES}, 4)
    assert text.splitlines()[1:] == ["  rank 0: relayout", "  rank 2: barrier"]
    assert missing_ranks.call_mismatch({0: WAITS, 1: answer}, {0: WAITS, 1: answer}, 4) == "", (
        "one rank alone differs from none"
    )
    assert missing_ranks.call_mismatch({0: answer, 1: answer}, {0: answer, 1: answer}, 4) == ""


@pytest.mark.parametrize(
    ("past", "text"),
    [
        ({"digest": 6}, "relayout, and went on"),
        ({"digest": 6, "requested_call": "barrier"}, "barrier, and went on"),
        ({"digest": 6, "requested_call": "barrier", "has_ended": True}, "barrier, and ended"),
        ({"digest": 6, "requested_call": ""}, "another call, and went on"),
        ({"noted_calls": 3, "has_ended": True}, "relayout, and ended"),
    ],
)
def test_a_rank_that_has_made_another_call_instead_is_a_mismatch(past, text):
    waits = WAITS._replace(digest=5, noted_calls=4)
    made = COMPUTES._replace(rank_set_calls=4, requested_call="relayout", noted_calls=4)._replace(**past)
    answers = {0: waits, 1: made}
    lines = [
        "ranks made different collective calls as call 4 on ranks 0-1:",
        "  rank 0: relayout",
        f"  rank 1: {text}",
    ]
    more = ["  with other arguments, or after other calls: run again with MESHCOMM_CHECK=1 to see which"]
    assert missing_ranks.call_mismatch(answers, answers, 4).splitlines() == lines + more * text.startswith("relayout")
    later, ended = {"noted_calls": 3, "digest": None}, {"noted_calls": 4, "has_ended": True}
    for innocent in ({"digest": 5}, {"digest": None}, later, ended):
        answers = {
            0: waits,
            1: COMPUTES._replace(rank_set_calls=4, requested_call="relayout", noted_calls=4)._replace(**innocent),
        }
        assert missing_ranks.call_mismatch(answers, answers, 4) == "", innocent


REQUEST = WAITS._replace(requested_call="start_relayout", operation="wait for a relayout", is_in_call=False, digest=7)


def test_ranks_that_wait_for_requests_are_compared_by_their_digests():
    answers = {0: WAITS._replace(digest=6), 1: REQUEST}
    assert missing_ranks.call_mismatch(answers, answers, 4).splitlines() == [
        "ranks made different collective calls now or before, on ranks 0-1:",
        "  rank 0: relayout",
        "  rank 1: wait for a relayout",
        "  with other arguments, or after other calls: run again with MESHCOMM_CHECK=1 to see which",
    ]


@pytest.mark.parametrize("other", [{"digest": 7}, {"digest": None}, {"digest": 7, "call_number": 0}])
def test_requests_that_may_be_right_are_no_mismatch(other):
    answers = {0: WAITS._replace(**other), 1: REQUEST}
    assert missing_ranks.call_mismatch(answers, answers, 4) == ""


def test_only_the_call_of_the_hindmost_rank_is_compared():
    """The program may have caught an earlier difference, and gone on."""
    assert missing_ranks.call_mismatch({0: WAITS, 1: OTHER}, {0: WAITS, 1: OTHER}, 3) == ""


SAYS = [
    (COMPUTES, "has not arrived: it has been outside meshcomm for 4 s, after call 3 on these ranks"),
    (
        COMPUTES._replace(rank_set_calls=0),
        "has not arrived: it has been outside meshcomm for 4 s, before its first call on these ranks",
    ),
    (
        COMPUTES._replace(operation="barrier", other_ranks="1-2"),
        "has not arrived: it has waited 4 s in barrier on ranks 1-2 (another mesh or communicator)",
    ),
    (
        WAITS._replace(rank_set_calls=3, call_number=3),
        "has not arrived: it has waited 4 s in relayout, call 3 on these ranks",
    ),
    (COMPUTES._replace(has_ended=True), "has ended, after call 3"),
    (
        WAITS._replace(error="KeyError: 1"),
        "has waited 4 s in relayout, call 4 on these ranks; it has to raise KeyError: 1",
    ),
    (
        None,
        "does not answer: it is stopped or lost, or runs code that keeps other threads of Python from running (on ho",
    ),
]


@pytest.mark.parametrize(("answer", "text"), SAYS)
def test_reports_say_what_missing_ranks_do(answer, text):
    assert missing_ranks.who_is_missing({0: WAITS, 1: answer}, 4, {1: "b"}).startswith(f"rank 1 {text}")


def test_reports_say_that_all_have_come():
    text = missing_ranks.who_is_missing({0: WAITS, 1: COMPUTES._replace(rank_set_calls=4)}, 4, {})
    assert text.splitlines() == [
        "all of ranks 0-1 have come to this call",
        "rank 0 has waited 4 s in relayout, call 4 on these ranks",
        "rank 1 went on, and has been outside meshcomm for 4 s",
    ]


def test_reports_on_many_ranks_are_short():
    text = missing_ranks.who_is_missing(dict.fromkeys(range(5000), COMPUTES), 4, {})
    assert text.startswith(
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4992 more have not arrived: they have been outside meshcomm for 4 s"
    )
    assert len(text) < 200


# -- messages ---------------------------------------------------------------------------------------------------------


class Channel:
    """One end of a side channel within a process: messages wait in the queues of *ends* until they are received."""

    def __init__(self, ends, rank):
        self.ends, self.rank, self.size, self.queue, self.closed = ends, rank, len(ends), deque(), False

    def send(self, message, rank):
        assert not self.closed, "a rank sends after it has received all"
        self.ends[rank].queue.append((self.rank, json.loads(json.dumps(message))))

    def receive(self):
        found, self.queue = list(self.queue), deque()
        return found

    def close(self):
        assert not self.queue, f"rank {self.rank} has not received {self.queue}"
        self.closed = True


@pytest.fixture
def clock(monkeypatch):
    """The time of liveness checks: it only goes on as a test says."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(liveness, "time", SimpleNamespace(monotonic=lambda: now.seconds, sleep=time.sleep))
    return now


@pytest.fixture
def rank_set(clock):
    """A function that makes the liveness checks of some ranks."""

    def make(size):
        ends = [None] * size
        ends[:] = [Channel(ends, rank) for rank in range(size)]
        rank_sets = [
            SimpleNamespace(
                calls=3, liveness=None, noted=3, digest_after={3: 7}.get, call_lock=SimpleNamespace(end_reason=None)
            )
            for _ in range(size)
        ]
        return [
            LivenessCheck(ends[r], rank_sets[r], range(size), [f"host{r}" for r in range(size)]) for r in range(size)
        ]

    yield make
    liveness._open.clear()


CALL = ("relayout", None, 4, 0.0)


def serve(ranks, turns=4):
    for _ in range(turns):
        for each in ranks:
            each.serve()


def test_a_rank_that_asks_gets_a_report(rank_set):
    ranks = rank_set(3)
    ranks[2].ask(CALL, range(3))
    serve(ranks)
    assert ranks[2].report.text.startswith("ranks 0, 1, 2 have not arrived")
    assert (ranks[2].report.is_speaker, ranks[2].report.ended_ranks) == (True, "")
    assert ranks[0].report is None, "who does not ask gets none"


def test_one_of_those_that_ask_speaks(rank_set):
    ranks = rank_set(3)
    ranks[2].ask(CALL, range(3))
    ranks[1].ask(CALL, range(3))
    serve(ranks)
    assert [ranks[1].report.is_speaker, ranks[2].report.is_speaker] == [True, False]


def test_a_rank_that_has_left_counts_as_ended(rank_set):
    ranks = rank_set(3)
    ranks[1].leave()
    ranks[2].ask(CALL, range(3))
    serve(ranks)
    assert ranks[2].report.ended_ranks == "rank 1 has ended without it"


def test_a_rank_that_has_left_still_tells_its_digests(rank_set):
    ranks = rank_set(3)
    ranks[1].leave()
    serve(ranks)
    ranks[0]._post(1, "question", "", 0, 3, 3)
    ranks[0]._censuses[""] = census = liveness._Census(range(3))
    serve(ranks)
    answer = census.answers[1]
    assert (answer.digest, answer.noted_calls, answer.rank_set_calls, answer.has_ended) == (7, 3, 3, True)
    ranks[0]._post(1, "question", "1-2", 0, 3, 3)
    ranks[1].serve()
    assert not ranks[0]._channel.queue, "of other rank sets it has answered all when it left"


def test_a_rank_that_has_left_and_does_not_answer_counts_as_it_said_then(rank_set, clock):
    ranks = rank_set(3)
    ranks[1].leave()
    serve(ranks)
    census = ranks[0]._censuses[""] = liveness._Census(range(3))
    census.open, census.began, census.askers = True, clock.seconds, {2: (4, 0)}
    ranks[0].serve()
    assert census.open
    clock.seconds += ANSWER_WITHIN
    ranks[0].serve()
    answer = census.answers[1]
    assert (answer.digest, answer.noted_calls, answer.rank_set_calls, answer.has_ended) == (None, 3, 3, True)


def test_a_rank_that_has_failed_counts_after_two_liveness_checks(rank_set, clock):
    ranks = rank_set(3)
    ranks[1].rank_set.call_lock.end_reason = "an exchange ended with an error (KeyError)"
    found = []
    for _ in range(2):
        ranks[2].ask(CALL, range(3))
        serve(ranks)
        found.append(ranks[2].report.ended_ranks)
        clock.seconds += ASK_EVERY_WITH_ERROR
    assert found == ["", f"rank 1 makes no more calls on these ranks: {ranks[1].rank_set.call_lock.end_reason}"]


def test_two_liveness_checks_are_apart_though_several_ranks_ask(rank_set, clock):
    """What both tell alike is a verdict, but not if it was so for a moment only."""
    ranks = rank_set(3)
    ranks[1].rank_set.call_lock.end_reason = "an exchange ended with an error (KeyError)"
    ranks[2].ask(CALL, range(3))
    serve(ranks)
    clock.seconds += ASK_EVERY_WITH_ERROR / 2
    ranks[0].ask(CALL, range(3))
    serve(ranks)
    assert ranks[0].report is None
    assert ranks[0].gathers(), "the answer is due"
    clock.seconds += ASK_EVERY_WITH_ERROR / 2
    serve(ranks)
    assert "makes no more calls" in ranks[0].report.ended_ranks
    assert not ranks[0].gathers()


def test_a_rank_that_fails_in_a_later_call_holds_nobody_up():
    failed = {0: WAITS, 1: COMPUTES._replace(rank_set_calls=5, end_reason="an exchange ended with an error")}
    assert missing_ranks.ended_ranks(failed, failed, 4) == ""


def test_a_rank_that_does_not_answer_is_named(rank_set, clock):
    ranks = rank_set(3)
    ranks[2].ask(CALL, range(3))
    serve([ranks[0], ranks[2]])
    assert ranks[2].report is None
    clock.seconds += ANSWER_WITHIN
    serve([ranks[0], ranks[2]])
    assert "rank 1 does not answer" in ranks[2].report.text
    assert "(on host host1)" in ranks[2].report.text


def test_all_are_reported_that_one_expires(rank_set):
    ranks = rank_set(3)
    ranks[1].expire("it has waited")
    serve(ranks)
    assert [each.expired for each in ranks] == ["it has waited"] * 3


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_a_rank_that_ends_the_job_hears_when_all_have_written(rank_set, order):
    ranks = rank_set(3)
    ranks[1].expire("it has waited")
    ranks[2].expire("it has waited, too")
    serve(ranks)
    assert not ranks[1].all_written, "rank 0 has not written"
    for rank in order:
        ranks[rank].note_written()
        ranks[rank].note_written()
    serve(ranks)
    assert [each.all_written for each in ranks] == [False, True, True]
    assert [each.expired for each in ranks] == [""] * 3


@pytest.mark.parametrize("order", [*permutations(range(3))])
@pytest.mark.parametrize("asks", range(3))
def test_no_message_is_left_over_whoever_leaves_first(rank_set, order, asks):
    ranks = rank_set(3)
    for rank in order:
        ranks[asks].ask(CALL, range(3))
        ranks[(asks + 1) % 3].expire("")
        ranks[rank].serve()
        ranks[rank].note_written()
        ranks[rank].leave()
    serve(ranks)
    assert all(each.is_over for each in ranks)
    assert all(each._channel.closed for each in ranks)
    assert liveness.open_liveness_checks() == []
    for each in ranks:  # nothing happens any more
        each.ask(CALL, range(3))
        each.leave()
        each.serve()


def test_ranks_of_a_rank_set_without_a_channel_are_asked_over_one_of_more(rank_set):
    ranks = rank_set(4)
    ranks[3].ask(CALL, [1, 3])
    serve(ranks)
    assert ranks[3].report.text.startswith("ranks 1, 3 have not arrived"), "ranks outside are not asked"


def pair_of(calls):
    """Make the liveness check of ranks 1 and 3, which are a rank set of their own that has made so many calls."""
    own = SimpleNamespace(
        calls=calls, liveness=None, noted=0, digest_after={}.get, call_lock=SimpleNamespace(end_reason=None)
    )
    return LivenessCheck(Channel([None, None], 1), own, [1, 3], ["host1", "host3"])


@pytest.mark.parametrize(("calls", "text"), [(9, ""), (4, ""), (3, "rank 1 has ended"), (None, "rank 1 has ended")])
def test_a_rank_that_leaves_tells_its_calls_on_each_rank_set(rank_set, clock, calls, text):
    """And why it makes no more calls on all ranks is no reason for others."""
    ranks = rank_set(4)
    if calls is not None:
        pair_of(calls)
    ranks[1].rank_set.call_lock.end_reason = "an exchange ended with an error (KeyError)"
    ranks[1].leave()
    for _ in range(2):
        ranks[3].ask(CALL, [1, 3])
        serve(ranks)
        clock.seconds += ASK_EVERY_WITH_ERROR
    assert ranks[3].report.ended_ranks.startswith(text)
    assert "KeyError" not in ranks[3].report.ended_ranks
    assert bool(ranks[3].report.ended_ranks) == bool(text)


def test_nobody_waits_for_the_answer_of_a_rank_that_leaves_meanwhile(rank_set):
    ranks = rank_set(4)
    ranks[3].ask(CALL, [1, 3])
    ranks[0].serve()
    ranks[1].leave()
    serve(ranks)
    assert ranks[3].report.ended_ranks == "rank 1 has ended without it"
