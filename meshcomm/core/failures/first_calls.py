"""Questions about missing ranks in the first call of some ranks, before they have communicated: without MPI.

A liveness check needs a communicator, which ranks make together in their first call. If one of them does not make that
call, the others ask through sockets: the watchdog of each rank on the host answers. Ranks on other hosts cannot be
asked, nor ranks that have not made a mesh yet.
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
    """Questions to and from *rank* of COMM_WORLD, this one, about first calls.

    `report` has the last answers about the call that this rank waits in, or is None.
    """

    leaving = False  # no rank has left ranks that have not communicated

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._questions = host_signals.Questions(rank)
        self._connections: dict[int, socket.socket] = {}
        self._unreachable_ranks: list[int] = []
        self._answers: dict[int, Answer | None] = {}
        # Name of the ranks, number of the call, number of all calls of this rank, and time of the question.
        self._question: tuple[str, int, int, float] | None = None
        # Number of calls at the last look, and ranks that had ended.
        self._last_sighting: tuple[int, list[int]] = (0, [])
        self.report: WaitReport | None = None

    def serve(self) -> None:
        """Answer other ranks, and read their answers."""
        self._questions.answer(_reply)
        if self._question is None:
            return
        for rank, connection in self._connections.items():
            if rank not in self._answers:
                with contextlib.suppress(OSError):  # no answer yet, or none any more
                    self._answers[rank] = _parsed_answer(host_signals.receive_message(connection))
        ranks_name, call_number, call_count, asked_at = self._question
        if len(self._answers) == len(self._connections) or time.monotonic() > asked_at + ANSWER_WITHIN:
            self._forget()
            self.report = self._conclude(ranks_name, call_number, call_count)

    def ask(self, call: Call, ranks: Sequence[int]) -> None:
        """Ask the others of *ranks* what they do, unless the last question is still open.

        Ranks that have ended are reported when they are seen twice: they may have ended after this call, which then
        completes in a moment.
        """
        call_number = abs(call[2])
        if self._question is None:
            self._question = spans(sorted(ranks)), call_number, watch.count, time.monotonic()
            question = json.dumps(self._question[:2]).encode()
            self._answers = {}
            connections = {rank: host_signals.answer_channel(rank, question) for rank in ranks if rank != self._rank}
            self._connections = {rank: channel for rank, channel in connections.items() if channel is not None}
            self._unreachable_ranks = [rank for rank in connections if rank not in self._connections]
        earlier_sighting, self._last_sighting = self._last_sighting, (watch.count, host_signals.ended_ranks(ranks))
        if self._last_sighting[1] and earlier_sighting == self._last_sighting:
            self.report = WaitReport(watch.count, has_ended(self._last_sighting[1]), "", True)

    def missing_ranks_text(self, report: WaitReport | None, number: int) -> str:
        """Return the text on the missing ranks of *report*; "" without a report."""
        return report.text if report is not None else ""

    def _forget(self) -> None:
        self._question = None
        for connection in self._connections.values():
            connection.close()

    def _conclude(self, ranks_name: str, number: int, call_count: int) -> WaitReport:
        answers: dict[int, Answer | None] = {self._rank: answer(_rank_set_named(ranks_name), number)}
        answers |= {rank: self._answers.get(rank) for rank in self._connections}
        waiting = [rank for rank, a in answers.items() if a is not None and a.is_in_call and a.call_number == number]
        lines = [who_is_missing(dict(sorted(answers.items())), number, {})] if len(waiting) < len(answers) else []
        if self._unreachable_ranks:
            reason = (
                "it has made no mesh yet, or runs"
                if len(self._unreachable_ranks) == 1
                else "they have made no mesh yet, or run"
            )
            lines.append(f"{ranks_text(self._unreachable_ranks)} cannot be asked: {reason} on another host")
        uses_files = any(a is not None and a.uses_files for a in answers.values())
        return WaitReport(call_count, "", "\n".join(lines), self._rank == min(waiting, default=self._rank), uses_files)


def _reply(question: bytes) -> bytes:
    ranks_name, call_number = json.loads(question)
    return json.dumps(answer(_rank_set_named(ranks_name), call_number)).encode()


def _parsed_answer(message: bytes) -> Answer | None:
    with contextlib.suppress(ValueError, TypeError):  # it is no answer
        return Answer(*json.loads(message))
    return None


def _rank_set_named(ranks_name: str) -> WatchedRankSet | None:
    """Return the rank set of the ranks with *ranks_name*: that of the current call, if its name fits."""
    call = watch.call()
    rank_sets = [call[1]] if call is not None and call[1] is not None else []
    rank_sets += [rank_set for world in watch.worlds for rank_set in world.all_rank_sets()]
    return next((rank_set for rank_set in rank_sets if rank_set_name(rank_set) == ranks_name), None)
