"""Liveness checks: ranks that wait in a collective call find out which ranks are missing, and what these do.

Each rank set has a side channel. A rank that has waited for a while asks the first rank of the rank set, the
coordinator. The coordinator asks all ranks what they do, and reports to the ranks that wait. Watchdogs exchange
these messages, whatever the main threads do.
"""
# Messages
# ========
#
#   a rank that waits       coordinator              every other rank
#        ── ask ──────────►
#                               ── question ────────────►            once for all that ask
#                               ◄────────────── state ───            or no answer in ANSWER_WITHIN
#        ◄───────── report ──
#
#   an end for all to record:      ── expired ──►  ── write ──►      every rank writes its flight file
#                                                  ◄─────────── written ───
#        ◄──── all written ────                                        when all have
#   a rank that leaves:            ── left ─────►  ── done ───►      when all have left
#                                  ◄───────────────── bye ────
#
# A liveness check costs the coordinator two messages a rank, and only while somebody waits. Only the coordinator sends
# to all others.
#
# Why no message is lost, and none arrives late: the coordinator sends "done" when all ranks, itself included, have
# left, and nothing after it. A rank answers with "bye", and sends nothing after that. Messages from one rank to
# another keep their order. So a rank that has received "done" has received all there is, and the coordinator too when
# it has every "bye". Only then the communicator is freed. A rank that has left still counts: "left" has its last
# answer, and until all have left, it still answers with the digests that a liveness check of the whole rank set needs.

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from meshcomm.core._tuning import ANSWER_WITHIN, ASK_EVERY_WITH_ERROR, POLL_FROM
from meshcomm.core._types import Json
from meshcomm.core.failures.answers import Answer, WaitReport, answer, state
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.missing_ranks import call_mismatch, ended_ranks, is_past, who_is_missing
from meshcomm.core.failures.side_channel import SideChannel
from meshcomm.core.failures.watch import Call, WatchedRankSet, watch

_MAX_PAUSE = 0.02  # seconds, at most, between two looks for messages of a rank that leaves


class _Census:
    """A liveness check, at the coordinator. *members* are positions in the channel."""

    def __init__(self, members: Sequence[int]) -> None:
        self.members = members
        self.number = 0
        self.round = 0
        self.open = False
        self.began = -math.inf
        self.askers: dict[int, tuple[int, int]] = {}
        self.answers: dict[int, Answer] = {}
        self.earlier_answers: dict[int, Answer] = {}
        self.earlier_number = 0
        self.noted_calls = -1  # number of calls after which digests are asked for; -1, in the first round: none


class LivenessCheck:
    """The liveness checks of a rank set.

    Parameters
    ----------
    channel: side channel of the rank set
    rank_set: rank set with its ranks in the order of the channel
    ranks: its ranks in COMM_WORLD
    hosts: host of each rank
    """

    def __init__(
        self, channel: SideChannel, rank_set: WatchedRankSet, ranks: Sequence[int], hosts: Sequence[str]
    ) -> None:
        self.rank_set = rank_set
        self.ranks = tuple(ranks)
        self.name = spans(sorted(ranks))
        self.report: WaitReport | None = None
        self.mismatch = ""  # text on different calls, once the coordinator knows for certain that ranks make such
        self.expired = ""  # why another rank ends the job; "" again once this one has written its flight file
        self.all_written = False  # whether all ranks have written their flight files, after a request of this one
        self._hosts = dict(zip(ranks, hosts, strict=False))
        self._channel = channel
        self._censuses: dict[str, _Census] = {}
        self._last_answers: dict[int, tuple[Answer, dict[str, int]]] = {}
        self._own_answer: Answer | None = None  # with which this rank left
        self._byes: set[int] = set()
        self._ending_positions: set[int] = set()
        self._written_positions: set[int] = set()
        self._done = self.is_over = False
        self._lock = threading.RLock()
        _open.append(self)

    # -- what the watchdog does ---------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer the messages that have arrived."""
        with self._lock:
            for source, (name, *arguments) in self._channel.receive() if not self.is_over else ():
                self._handle(source, str(name), *arguments)
            for ranks_name, census in list(self._censuses.items()):
                self._close_when_complete(ranks_name, census)
                self._begin_when_due(ranks_name, census)

    def ask(self, call: Call, ranks: Sequence[int]) -> None:
        """Ask who is missing in *call* of *ranks*, which are all ranks of this channel, or some."""
        with self._lock:
            if not self._done:
                members = [] if len(ranks) == len(self.ranks) else [self.ranks.index(rank) for rank in ranks]
                self._post(0, "ask", spans(sorted(ranks)) if members else "", members, abs(call[2]), watch.count)

    def gathers(self) -> bool:
        """Return whether this rank is the coordinator, and others wait for the answers that it gathers."""
        with self._lock:
            return bool(self._ending_positions) or any(census.askers for census in self._censuses.values())

    def missing_ranks_text(self, report: WaitReport | None, number: int) -> str:
        """Return the text on missing ranks from the coordinator's *report*; without one, that it does not answer."""
        return report.text if report is not None else who_is_missing({self.ranks[0]: None}, number, self._hosts)

    def expire(self, reason: str) -> None:
        """Ask all ranks to write their flight files, as this rank ends the job."""
        with self._lock:
            if not self._done:
                self._post(0, "expired", reason)

    def note_written(self) -> None:
        """Report that this rank has written its flight file, as another one ends the job."""
        with self._lock:
            self.expired = ""
            if not self._done:
                self._post(0, "written")

    @property
    def leaving(self) -> bool:
        """Whether this rank has left."""
        return self._own_answer is not None

    # -- the end ------------------------------------------------------------------------------------------------------

    def leave(self, closes: bool = False) -> None:
        """Leave: this rank makes no more calls on the rank set. It still has to serve until `is_over`.

        *closes* says that the rank closes the mesh, and that its program goes on.
        """
        with self._lock:
            if not self.leaving:
                self._own_answer = state(self.rank_set, has_ended=True)._replace(
                    operation="close" * closes, noted_calls=self.rank_set.noted
                )
                self._post(
                    0,
                    "left",
                    self._own_answer,
                    {liveness.name: liveness.rank_set.calls for liveness in list(_open)},
                )

    def close(self, call: AbstractContextManager[object]) -> None:
        """Leave, and wait in *call* until all ranks of the rank set have left. Collective over the rank set."""
        if not self.is_over:
            self.leave(closes=True)  # before the call: others may wait in that one
            with call:
                _serve_until(lambda: self.is_over, [self])

    # -- messages -----------------------------------------------------------------------------------------------------

    def _post(self, position: int, name: str, *arguments: object) -> None:
        if position == self._channel.rank:
            self._handle(position, name, *arguments)
        else:
            self._channel.send([name, *arguments], position)

    def _handle(self, source: int, name: str, *arguments: object) -> None:
        getattr(self, f"_on_{name.replace(' ', '_')}")(source, *arguments)

    def _on_ask(self, source: int, ranks_name: str, members: list[int], call_number: int, call_count: int) -> None:
        if self._done:
            return
        census = self._censuses.get(ranks_name)
        if census is None:
            census = self._censuses[ranks_name] = _Census(members or range(len(self.ranks)))
        census.askers[source] = call_number, call_count
        self._begin_when_due(ranks_name, census)

    def _begin_when_due(self, ranks_name: str, census: _Census) -> None:
        """Begin a round of questions to all members, if a rank has asked.

        Some time passes between two rounds, whoever asks: equal answers in both must have been true for a while.
        """
        if census.open or not census.askers or time.monotonic() < census.began + ASK_EVERY_WITH_ERROR:
            return
        call_numbers = [call_number for call_number, _ in census.askers.values()]
        call_numbers += [a.call_number for a in census.answers.values() if a.call_number]
        hindmost = [a for a in census.answers.values() if not is_past(a, min(call_numbers))]
        all_wait = len(census.answers) == len(census.members) and all(a.call_number for a in hindmost)
        census.noted_calls = min((a.noted_calls for a in hindmost), default=-1) if all_wait else -1
        census.earlier_answers, census.earlier_number = census.answers, census.number
        census.number, census.round, census.answers = min(call_numbers), census.round + 1, {}
        census.open, census.began = True, time.monotonic()
        for member in census.members:
            if member in self._last_answers and (ranks_name or census.noted_calls < 0):
                census.answers[member] = self._last_answer_of(member, ranks_name)
            else:
                self._post(member, "question", ranks_name, census.round, census.number, census.noted_calls)

    def _last_answer_of(self, member: int, ranks_name: str) -> Answer:
        """Return the answer of a rank that has left, to a liveness check of *ranks_name*."""
        last, counts = self._last_answers[member]
        return last._replace(rank_set_calls=counts.get(ranks_name, 0), end_reason="") if ranks_name else last

    def _on_question(self, source: int, ranks_name: str, round_number: int, number: int, noted_calls: int) -> None:
        if self.leaving and ranks_name:
            return  # the answer with which this rank left is known
        rank_set: WatchedRankSet | None = self.rank_set
        if ranks_name:
            rank_set = next((liveness.rank_set for liveness in list(_open) if liveness.name == ranks_name), None)
        self._post(source, "state", ranks_name, round_number, answer(rank_set, number, noted_calls, self._own_answer))

    def _on_state(self, source: int, ranks_name: str, round_number: int, fields: list[Json]) -> None:
        census = self._censuses.get(ranks_name)
        if census is not None and census.round == round_number:
            census.answers[source] = Answer._make(fields)

    def _close_when_complete(self, ranks_name: str, census: _Census) -> None:
        if not census.open:
            return
        if len(census.answers) < len(census.members) and time.monotonic() < census.began + ANSWER_WITHIN:
            return
        census.open = False
        for member in self._last_answers.keys() & {*census.members}:
            census.answers.setdefault(member, self._last_answer_of(member, ranks_name))
        answers = {self.ranks[member]: census.answers.get(member) for member in census.members}
        earlier = {self.ranks[member]: census.earlier_answers.get(member) for member in census.members}
        if not ranks_name and census.earlier_number == census.number:
            self.mismatch = self.mismatch or call_mismatch(answers, earlier, census.number)
        for asker, (number, count) in sorted(census.askers.items()):
            text = who_is_missing(answers, number, self._hosts)
            is_speaker = asker == min(census.askers)
            uses_files = any(a is not None and a.uses_files for a in answers.values())
            self._post(asker, "report", count, ended_ranks(answers, earlier, number), text, is_speaker, uses_files)
        census.askers.clear()

    def _on_report(self, source: int, *arguments: Json) -> None:
        self.report = WaitReport._make(arguments)

    def _on_expired(self, source: int, reason: str) -> None:
        if self._done:
            return
        if not self._ending_positions:
            for position in range(len(self.ranks)):
                self._post(position, "write", reason)
        self._ending_positions.add(source)
        self._on_written(source)  # it wrote its file before it sent this

    def _on_write(self, source: int, reason: str) -> None:
        self.expired = reason

    def _on_written(self, source: int) -> None:
        self._written_positions.add(source)
        if len(self._written_positions) == len(self.ranks) and not self._done:
            for position in self._ending_positions:
                self._post(position, "all written")

    def _on_all_written(self, source: int) -> None:
        self.all_written = True

    def _on_left(self, source: int, last_fields: list[Json], call_counts: dict[str, int]) -> None:
        self._last_answers[source] = Answer._make(last_fields), call_counts
        for ranks_name, census in self._censuses.items():
            if source in census.members and census.open:
                census.answers.setdefault(source, self._last_answer_of(source, ranks_name))
        if len(self._last_answers) == len(self.ranks):
            for position in reversed(range(len(self.ranks))):
                self._post(position, "done")

    def _on_done(self, source: int) -> None:
        self._done = True
        self._censuses.clear()
        self._post(0, "bye")
        if self._channel.rank != 0:
            self._end()

    def _on_bye(self, source: int) -> None:
        self._byes.add(source)
        if len(self._byes) == len(self.ranks):
            self._end()

    def _end(self) -> None:
        self.is_over = True
        _open.remove(self)
        self._channel.close()


_open: list[LivenessCheck] = []


def open_liveness_checks() -> list[LivenessCheck]:
    """Return the liveness checks of this rank that are not over, the oldest first."""
    return list(_open)


def liveness_of(rank_set: WatchedRankSet) -> LivenessCheck | None:
    """Return the liveness check of *rank_set*, else that of a larger one; None before the ranks connect."""
    own_check = next((liveness for liveness in list(_open) if liveness.rank_set is rank_set), None)
    if own_check is not None:
        return own_check
    ranks = {*rank_set.world.ranks_in_comm_world(rank_set.ranks)}
    return next((liveness for liveness in list(_open) if ranks <= {*liveness.ranks}), None)


def leave_all(seconds: float) -> bool:
    """Leave all liveness checks, as the program ends, and return whether all ranks left within *seconds*."""
    checks = open_liveness_checks()
    for liveness in checks:
        liveness.leave()
    return _serve_until(lambda: all(liveness.is_over for liveness in checks), checks, seconds)


def _serve_until(
    condition: Callable[[], bool], liveness_checks: Sequence[LivenessCheck], seconds: float = float("inf")
) -> bool:
    deadline, pause = time.monotonic() + seconds, POLL_FROM
    while True:
        for liveness in liveness_checks:
            liveness.serve()
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(1.5 * pause, _MAX_PAUSE)
