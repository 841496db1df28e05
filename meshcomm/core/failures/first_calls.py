"""Who is missing in the first call of some ranks, before they have communicated: asked without MPI.

A liveness check needs a communicator, which ranks make together in their first call. If one of them does not come to
that call, the others ask through sockets: each rank on the host answers for itself, by its watchdog. Ranks on other
hosts cannot be asked, nor ranks that have not made a mesh yet.
"""

import contextlib
import json
import socket
import time
from collections.abc import Sequence

from meshcomm.core._tuning import ANSWER_WITHIN
from meshcomm.core.failures import host_signals
from meshcomm.core.failures.answers import Answer, WaitReport, answer, rank_set_name
from meshcomm.core.failures.messages import ranks_text, spans
from meshcomm.core.failures.missing_ranks import has_ended, who_is_missing
from meshcomm.core.failures.watch import Call, WatchedRankSet, watch


class FirstCalls:
    """What *rank* of COMM_WORLD answers ranks that ask, and learns from those that it asks.

    `report` is what it has learnt last about the call that it waits in, or None.
    """

    leaving = False  # no rank has left ranks that have not communicated

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._questions = host_signals.Questions(rank)
        self._asked: dict[int, socket.socket] = {}
        self._unknown: list[int] = []  # those that cannot be asked
        self._answers: dict[int, Answer | None] = {}
        self._question: tuple[str, int, int, float] | None = None
        self._ended: tuple[int, list[int]] = 0, []
        self.report: WaitReport | None = None

    def serve(self) -> None:
        """Answer other ranks, and read what they have answered."""
        self._questions.answer(_reply)
        if self._question is None:
            return
        for rank, other in self._asked.items():
            if rank not in self._answers:
                with contextlib.suppress(OSError):  # no answer yet, or none any more
                    self._answers[rank] = _parsed_answer(host_signals.receive_message(other))
        name, number, count, began = self._question
        if len(self._answers) == len(self._asked) or time.monotonic() > began + ANSWER_WITHIN:
            self._forget()
            self.report = self._conclude(name, number, count)

    def ask(self, call: Call, ranks: Sequence[int]) -> None:
        """Ask the others of *ranks* what they do, unless the last question is still open.

        Ranks that have ended are reported at the second sight: they may have ended after this call, which then
        completes in a moment.
        """
        number = abs(call[2])
        if self._question is None:
            self._question = spans(sorted(ranks)), number, watch.count, time.monotonic()
            message = json.dumps(self._question[:2]).encode()
            self._answers = {}
            others = {rank: host_signals.answer_channel(rank, message) for rank in ranks if rank != self._rank}
            self._asked = {rank: other for rank, other in others.items() if other is not None}
            self._unknown = [rank for rank in others if rank not in self._asked]
        before, self._ended = self._ended, (watch.count, host_signals.ended_ranks(ranks))
        if self._ended[1] and before == self._ended:
            self.report = WaitReport(watch.count, has_ended(self._ended[1]), "", True)

    def missing_ranks_text(self, report: WaitReport | None, number: int) -> str:
        """Return who is missing in call *number*, as far as this rank knows."""
        return report.text if report is not None else ""

    def _forget(self) -> None:
        self._question = None
        for other in self._asked.values():
            other.close()

    def _conclude(self, name: str, number: int, count: int) -> WaitReport:
        answers: dict[int, Answer | None] = {self._rank: answer(_rank_set_called(name), number)}
        answers |= {rank: self._answers.get(rank) for rank in self._asked}
        waiting = [rank for rank, a in answers.items() if a is not None and a.is_in_call and a.call_number == number]
        lines = [who_is_missing(dict(sorted(answers.items())), number, {})] if len(waiting) < len(answers) else []
        if self._unknown:
            why = (
                "it has made no mesh yet, or runs" if len(self._unknown) == 1 else "they have made no mesh yet, or run"
            )
            lines.append(f"{ranks_text(self._unknown)} cannot be asked: {why} on another host")
        files = any(a is not None and a.uses_files for a in answers.values())
        return WaitReport(count, "", "\n".join(lines), self._rank == min(waiting, default=self._rank), files)


def _reply(question: bytes) -> bytes:
    name, number = json.loads(question)
    return json.dumps(answer(_rank_set_called(name), number)).encode()


def _parsed_answer(message: bytes) -> Answer | None:
    with contextlib.suppress(ValueError, TypeError):  # it is no answer
        return Answer(*json.loads(message))
    return None


def _rank_set_called(name: str) -> WatchedRankSet | None:
    """Return the rank set of the ranks called *name*: that of the call that goes on, if it fits."""
    call = watch.call()
    rank_sets = [call[1]] if call is not None and call[1] is not None else []
    rank_sets += [rank_set for world in watch.worlds for rank_set in world.all_rank_sets()]
    return next((rank_set for rank_set in rank_sets if rank_set_name(rank_set) == name), None)
