"""How a cell reaches all ranks, how it is stopped, and how its outcomes come to rank 0.

Rank 0 sends a cell to the others, runs it, too, and waits for an outcome of each. A thread of each rank listens while
a cell runs: a rank in a loop, asleep or in a call that waits for others can be stopped by a signal to itself.

Ranks may leave a cell at different lines. Rank 0 then stops those that are still in it, compares which collective
calls each of them has made, and lets all begin anew where these differ: meshes and tensors stay.
"""

import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypedDict

from meshcomm.core._types import Json
from meshcomm.core.arrays.spec import forget_recipes
from meshcomm.core.failures.messages import ranks_text
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks import interruptible
from meshcomm.tools.interactive.bell import Bell, ring

POLL_FROM, POLL_TO = 1e-4, 8e-3
"""Seconds between two looks for a cell: at first, and after a while. To sleep takes up to 80 us of CPU."""
LOOK_BESIDES = 0.2
"""Seconds between two looks of a rank that rank 0 wakes."""
LISTEN_EVERY = 0.02
"""Seconds between two looks for a message while a cell runs."""
FAIL_WITHIN = 1.0
"""Seconds in which other ranks may raise the error of a rank themselves, before they are stopped."""
WAIT_WITHIN = 2.0
"""Seconds for which a rank waits for one that has ended the cell: this one may have sent something at its end."""
STOP_WITHIN = 2.0
"""Seconds in which a rank that is stopped should end its cell."""
PARENT_EVERY = 1.0
"""Seconds between two looks whether the process that started this one is still there."""


class Outcome(TypedDict, total=False):
    """How a cell ended on a rank."""

    status: str
    """``ok``, ``error``, or ``stopped`` if something else has ended it."""
    name: str
    """The class of the error."""
    text: str
    key: str
    """The same on ranks with the same error."""
    traceback: list[str]
    output: list[list[str]]
    """Names of streams and texts."""
    warnings: list[str]
    show: bool
    """Whether the output was asked for."""
    facts: list[str]
    """A row of ``%mesh``."""
    states: list[list[Json]]
    """What the rank has called: see `meshcomm.core.ranks.interruptible.states`."""


class Job:
    """All ranks, seen by one of them. Collective over COMM_WORLD to make, before the first mesh."""

    def __init__(self) -> None:
        self._channel = interruptible.begin(self.poll)
        self.rank, self.size = self._channel.rank, self._channel.size
        self.number = 0
        """How many cells have begun."""
        self.running = False
        self.alone = ""
        """Why this rank runs its code alone, if it does."""
        self.outcome = Outcome()
        """What this rank notes for its outcome while a cell runs."""
        self.wake: Callable[[], object] = lambda: None
        """Wakes the event loop of the main thread, if it has one: a signal alone does not."""
        self._bell, self._bells = Bell(), dict[int, str]()
        self._cells = deque[Json]()
        self._values = deque[Json]()
        self._outcomes: dict[int, Outcome] = {}
        self._ended: dict[int, float] = {}
        self._stopped, self._why, self._epoch = 0, "", 1
        self._lock, self._busy = threading.RLock(), threading.Event()
        self._parent = os.getppid()
        if self.rank:
            self._send(0, "bell", self._bell.name)
        threading.Thread(target=self._listen, name="meshcomm cells", daemon=True).start()

    # -- cells --------------------------------------------------------------------------------------------------------

    def begin(self, cell: Json) -> None:
        """Let the other ranks begin a *cell*, which this one begins, too."""
        self._outcomes.clear()
        self._to_others("cell", self.number + 1, cell)

    def next_cell(self) -> Json:
        """Return the next cell for this rank, or None at the end of the job."""
        pause = POLL_FROM
        while True:
            self.poll()
            if self._cells:
                name, *arguments = self._cells.popleft()
                if name != "anew":
                    return arguments[0] if arguments else None
                self._begin_anew(*arguments)
            rings = self._bell.wait(pause)
            pause = POLL_FROM if rings else min(1.2 * pause, LOOK_BESIDES if self._bell.works else POLL_TO)

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Return a context in which this rank runs a cell, and can be stopped."""
        before = signal.getsignal(signal.SIGINT)
        takes = before is signal.default_int_handler or before == signal.SIG_IGN
        with self._lock:
            self.number += 1
            self._ended.clear()
            self._values.clear()
            self._why, self.outcome, self.running = "", Outcome(output=[], warnings=[]), True
        if takes:
            signal.signal(signal.SIGINT, self._interrupted)
        self._busy.set()
        try:
            yield
        finally:
            with self._lock:
                self.running = False
            if takes:
                signal.signal(signal.SIGINT, before)

    @property
    def stopped(self) -> bool:
        """Whether the cell that runs is stopped."""
        return bool(self._why)

    def raise_if_stopped(self) -> None:
        """Raise ``KeyboardInterrupt`` if the cell was stopped before this rank began it."""
        if self._stopped == self.number:
            raise KeyboardInterrupt

    def note_end(self, errors: list[tuple[str, str, str, list[str]]]) -> None:
        """Note how the cell has ended on this rank: with *errors*, by name, text, key and traceback."""
        outcome = self.outcome
        outcome["status"], outcome["states"] = "ok", interruptible.states()
        if errors:
            outcome["status"] = "stopped" if self._why and errors[-1][0] == "KeyboardInterrupt" else "error"
            outcome["name"], outcome["text"], outcome["key"], outcome["traceback"] = errors[-1]
            if outcome["status"] == "stopped" and self._why != "interrupt":
                name, _, text = self._why.partition(": ")
                if text:
                    outcome["status"], outcome["name"], outcome["text"], outcome["key"] = (
                        "error",
                        name,
                        text,
                        self._why,
                    )
        if self.rank:
            self._busy.clear()
            self._send(0, "outcome", self.number, outcome)
        else:
            self._outcomes[0] = outcome

    def outcomes(self, say: Callable[[str], object]) -> list[Outcome]:
        """Return how the cell ended on each rank, when it has on all. *say* says who keeps them waiting."""
        late = False

        def complete() -> bool:
            nonlocal late
            self.poll()
            since = min(self._ended.get(-1, time.monotonic()), time.monotonic())
            if not late and self._why and self._missing() and time.monotonic() > since + STOP_WITHIN:
                late = True
                ranks = ranks_text(self._missing())
                say(f"{ranks} cannot be stopped yet: in code that is not Python's. Restart ends it")
            return len(self._outcomes) == self.size

        interruptible.wait_until(complete)
        self._busy.clear()
        outcomes = [self._outcomes[rank] for rank in range(self.size)]
        if any(outcome["status"] != "ok" for outcome in outcomes):
            self._epoch += 1
            differ = _differ(outcomes)
            self._to_others("anew", self._epoch, differ)
            self._begin_anew(self._epoch, differ)
        return outcomes

    def interrupt(self) -> None:
        """Stop the cell on all ranks. For any thread of rank 0."""
        with self._lock:
            if self._busy.is_set():
                self._stop([*range(self.size)], "interrupt")

    def end(self) -> None:
        """Let all ranks end their programs."""
        if self.rank == 0:
            self._to_others("end")
        self._begin_anew(self._epoch + 1, True)

    # -- what ranks share within a cell -------------------------------------------------------------------------------

    def shared(self, what: str, make: Callable[[], Json]) -> Json:
        """Return on all ranks what *make* returns on rank 0; on a rank that is alone, it is an error but on rank 0."""
        if self.rank and self.alone:
            raise RuntimeError(f"{what} is possible on rank 0 only: {self.alone}")
        if self.rank:
            interruptible.wait_until(self._has_value)
            sent, value = self._values.popleft()
            if sent != what:
                raise RuntimeError(f"rank {self.rank} asks for {what}, but rank 0 for {sent}")
            return value
        value = make()
        if not self.alone and self.running:
            self._to_others("value", self.number, what, value)
        return value

    # -- messages -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handle the messages that have come."""
        with self._lock:
            for source, (name, *arguments) in self._channel.receive():
                if name in ("cell", "anew", "end"):
                    self._cells.append([name, *(arguments[1:] if name == "cell" else arguments)])
                else:
                    getattr(self, f"_on_{name}")(source, *arguments)

    def _send(self, rank: int, name: str, *arguments: object) -> None:
        with self._lock:
            self._channel.send([name, *arguments], rank)

    def _to_others(self, name: str, *arguments: object) -> None:
        for rank in range(1, self.size):
            self._send(rank, name, *arguments)
            if self._bells.get(rank):
                ring(self._bells[rank])

    def _on_bell(self, source: int, name: str) -> None:
        self._bells[source] = name

    def _on_outcome(self, source: int, number: int, outcome: Outcome) -> None:
        if number == self.number:
            self._outcomes[source] = outcome

    def _on_value(self, source: int, number: int, *value: Json) -> None:
        if number == self.number:
            self._values.append(value)

    def _has_value(self) -> bool:
        self.poll()
        return bool(self._values)

    def _on_ended(self, source: int, number: int, ranks: list[int]) -> None:
        if number == self.number:
            for rank in ranks:
                self._ended.setdefault(rank, time.monotonic())

    def _on_stop(self, source: int, number: int, why: str) -> None:
        self._stopped = number
        if number == self.number and self.running:
            self._why = self._why or why
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.wake()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.running:
            interruptible.interrupt()

    def _begin_anew(self, epoch: int, differ: bool) -> None:
        self._epoch = epoch
        interruptible.start_over(epoch, differ)
        if differ:
            forget_recipes()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        looked = time.monotonic()
        while True:
            if self._busy.wait(PARENT_EVERY):
                with self._lock:
                    self.poll()
                    self._look()
                time.sleep(LISTEN_EVERY)
            if time.monotonic() > looked + PARENT_EVERY:
                looked = time.monotonic()
                if os.getppid() != self._parent:
                    os._exit(1)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._outcomes]

    def _stop(self, ranks: list[int], why: str) -> None:
        self._ended.setdefault(-1, time.monotonic())
        for rank in ranks:
            if rank:
                self._send(rank, "stop", self.number, why)
        if 0 in ranks:
            self._on_stop(0, self.number, why)
        self._why = self._why or why

    def _look(self) -> None:
        """Stop what waits in vain: this rank for others that have ended the cell; all, if one has failed."""
        now = time.monotonic()
        if self.rank == 0:
            new = [rank for rank in self._outcomes if rank not in self._ended]
            self._on_ended(0, self.number, new)
            if new and self._missing():
                for rank in self._missing():
                    if rank:
                        self._send(rank, "ended", self.number, [*self._outcomes])
            failed = [rank for rank, outcome in self._outcomes.items() if outcome["status"] == "error"]
            if failed and not self._why and now > min(self._ended[rank] for rank in failed) + FAIL_WITHIN:
                self._stop(self._missing(), "failed")
        if self.running and not self._why:
            since, ranks = interruptible.waits_for()
            gone = sorted(self._ended.keys() & {*ranks} - {self.rank})
            if gone and now > max(since, *(self._ended[rank] for rank in gone)) + WAIT_WITHIN:
                where = watch.operation() or "a call of MPI"
                have = "have" if len(gone) > 1 else "has"
                text = f"CollectiveMismatch: waited in {where} for {ranks_text(gone)}, which {have} ended the cell"
                self._on_stop(0, self.number, text)


def _differ(outcomes: list[Outcome]) -> bool:
    """Return whether ranks have made different collective calls, or can make no more on some communicator."""
    known = [{json.dumps(team[:2]): team[2:] for team in outcome["states"]} for outcome in outcomes]
    for states in known:
        for team, state in states.items():
            _, ranks = json.loads(team)
            if state[-1] is not None or any(known[rank].get(team) != state for rank in ranks):
                return True
    return False
