"""Who is missing in the first call of some ranks, before they have communicated: asked without MPI.

A roll call needs a communicator, which ranks make together in their first call. If one of them does not come to that
call, the others ask through sockets: each rank on the host answers for itself, by its watchdog. Ranks on other hosts
cannot be asked, nor ranks that have not made a mesh yet.
"""

import contextlib
import json
import socket
import time
from collections.abc import Sequence

from meshcomm._tuning import ANSWER_WITHIN
from meshcomm._types import Json
from meshcomm.failures import host_signals, stacks
from meshcomm.failures.messages import some, spans
from meshcomm.failures.roll_call import Report
from meshcomm.failures.stragglers import Answer
from meshcomm.failures.stragglers import report as who_is_missing
from meshcomm.failures.watch import Call, Team, watch

_LARGEST_ANSWER = 2**16
"""Bytes. An answer has some hundred."""


class FirstCalls:
    """What *rank* of COMM_WORLD tells ranks that ask, and learns from those that it asks.

    `report` is what it has learnt last about the call that it waits in, or None.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sign = host_signals.answering(rank)
        self._asked: dict[int, socket.socket | None] = {}
        self._told: dict[int, bytes] = {}
        self._about: tuple[Call, Sequence[int], int, float] | None = None
        self.report: Report | None = None

    def serve(self) -> None:
        """Answer other ranks, and read what they have answered."""
        host_signals.answer(self._sign, lambda: json.dumps(_what_this_rank_does()).encode())
        if self._about is None:
            return
        for rank, other in self._asked.items():
            if other is not None and rank not in self._told:
                with contextlib.suppress(OSError):  # no answer yet, or none any more
                    message = bytearray(_LARGEST_ANSWER)
                    self._told[rank] = bytes(message[: other.recv_into(message)])
        reachable = [rank for rank, other in self._asked.items() if other is not None]
        call, ranks, count, began = self._about
        if len(self._told) == len(reachable) or time.monotonic() > began + ANSWER_WITHIN:
            self._forget()
            self.report = self._conclude(call, ranks, count)

    def ask(self, call: Call, ranks: Sequence[int]) -> None:
        """Ask the others of *ranks* what they do, unless the last question is still open."""
        if self._about is None:
            self._about = call, ranks, watch.count, time.monotonic()
            self._told = {}
            self._asked = {rank: host_signals.asking(rank) for rank in ranks if rank != self._rank}

    def _forget(self) -> None:
        self._about = None
        for other in self._asked.values():
            if other is not None:
                other.close()

    def _conclude(self, call: Call, ranks: Sequence[int], count: int) -> Report:
        name, number = spans(sorted(ranks)), abs(call[2])
        answers = {self._rank: _as_answer(_what_this_rank_does(), name)}
        unknown = [rank for rank, other in self._asked.items() if other is None]
        for rank, other in self._asked.items():
            if other is not None:
                answers[rank] = _as_answer(_read(self._told.get(rank, b"")), name)
        waiting = [rank for rank, its in answers.items() if its is not None and its.waits and its.number == number]
        lines = [who_is_missing(dict(sorted(answers.items())), number, {})] if len(waiting) < len(answers) else []
        if unknown:
            one = len(unknown) == 1
            why = f"{'it has' if one else 'they have'} made no mesh yet, or {'runs' if one else 'run'} on another host"
            lines.append(f"{some(unknown)} cannot be asked: {why}")
        files = any(its is not None and its.files for its in answers.values())
        return Report(count, "", "\n".join(lines), self._rank == min(waiting, default=self._rank), files)


def _what_this_rank_does() -> dict[str, Json]:
    """Return what this rank does, whoever asks."""
    call = watch.call()
    team = call[1] if call is not None else None
    error = f"{type(watch.error).__name__}: {watch.error}" if watch.error is not None else ""
    return {
        "calls": watch.count,
        "made": {_name(team): team.calls for world in watch.worlds for team in world.open_or_not()},
        "operation": watch.operation(),
        "number": call[2] if call is not None else 0,
        "ranks": _name(team) if team is not None else "",
        "since": watch.since,
        "error": error,
        "files": watch.files(),
        "at": stacks.of_main() if call is None else "",
    }


def _name(team: Team) -> str:
    return spans(sorted(team.world.ranks_in_comm_world(team.ranks)))


def _read(text: bytes) -> dict[str, Json] | None:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return None  # no answer


def _as_answer(told: dict[str, Json] | None, name: str) -> Answer | None:
    """Return what a rank has told as its answer to a roll call of the ranks called *name*."""
    if told is None:
        return None
    here = told["ranks"] == name
    return Answer(
        calls=told["calls"],
        made=told["made"].get(name, 0),
        asked="",
        operation=told["operation"],
        number=abs(told["number"]) if here else 0,
        waits=here and told["number"] > 0,
        others="" if here else told["ranks"],
        since=told["since"],
        error=told["error"],
        ended=False,
        files=told["files"],
        at=told["at"],
    )
