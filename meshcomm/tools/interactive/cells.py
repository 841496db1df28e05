"""How a cell reaches all ranks, how it is stopped, and how its outcomes come to rank 0.

Rank 0 sends a cell to the others, runs it, too, and waits for an outcome of each. A thread of each rank listens while
a cell runs: a rank in a loop, asleep or in a call that waits for others can be stopped by a signal to itself.

Ranks may leave a cell at different lines. Rank 0 then stops those that are still in it, and compares which collective
calls each of them has made. Where these differ, all begin anew with the next cell: meshes and tensors stay.
"""

import math
import os
import signal
import sys
import threading
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypedDict

from meshcomm.core._tracing import Value
from meshcomm.core.arrays.spec import forget_recipes
from meshcomm.core.failures import host_signals
from meshcomm.core.failures.messages import ranks_text
from meshcomm.core.failures.watch import watch
from meshcomm.core.ranks.interruptible import Gates, call_states, calls_differ, start_over, wait_until
from meshcomm.tools.interactive.outcomes import (
    CellError,
    Outcome,
    cell_error,
    show_outcomes,
    stopped_error,
    traceback_lines,
)

POLL_FROM, POLL_TO = 1e-4, 8e-3
"""Seconds between two looks for a cell: at first, and after a while. To sleep takes up to 80 us of CPU."""
LOOK_BESIDES = 0.2
"""Seconds between two looks of a rank that rank 0 wakes."""
LISTEN_EVERY = 0.02
"""Seconds between two looks for a message while a cell runs."""
FAIL_WITHIN = 1.0
"""Seconds in which other ranks may raise the error of a rank themselves, before they are stopped."""
WAIT_WITHIN = 2.0
"""Seconds for which a rank waits for one that has ended the cell, which may have sent something at its end."""
STOP_WITHIN = 2.0
"""Seconds in which a rank that is stopped should end its cell. Then it is stopped again: some code loses errors."""
PARENT_EVERY = 1.0
"""Seconds between two looks whether the process that started this one is still there."""


class Cell(TypedDict, total=False):
    """Code for all ranks: a *file* and *mode* at Python's prompt, the rest in IPython."""

    text: str
    file: str
    mode: str
    count: int
    store: bool
    silent: bool


class Job:
    """All ranks, seen by one of them. Collective over COMM_WORLD to make, before the first mesh."""

    def __init__(self) -> None:
        self._lock, self._busy = threading.RLock(), threading.Event()
        self.gates = Gates(self.send, self.poll)
        self._channel = self.gates.channel
        self.rank, self.size = self._channel.rank, self._channel.size
        self.running = False
        self.outcome = Outcome()
        """What this rank notes for its outcome while a cell runs."""
        self.wake: Callable[[], object] = lambda: None
        """Wakes the event loop of the main thread, if it has one: a signal alone does not."""
        self._bell = host_signals.Bell(self.rank)
        self._cells, self._values = deque[tuple[bool, Cell | None]](), deque[tuple[str, object]]()
        self._outcomes: dict[int, Outcome] = {}
        self._ended: dict[int, float] = {}
        """When rank 0 has got outcomes."""
        self._why: tuple[str, str] | None = None
        """Why the cell is stopped: the name and the text of an error."""
        self._stopped_at = self._all_stopped_at = 0.0
        self._anew = False
        self._parent = os.getppid()
        self.take_signals()
        threading.Thread(target=self._listen, name="meshcomm cells", daemon=True).start()

    def take_signals(self) -> None:
        """Let SIGINT stop a cell that runs, and nothing else."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    # -- cells --------------------------------------------------------------------------------------------------------

    def begin(self, cell: Cell | None) -> None:
        """Let the other ranks begin a *cell*, which this one begins, too. None ends their programs."""
        self._to_others("cell", self._anew, cell)
        for rank in range(1, self.size):
            host_signals.ring(rank)
        self.send(0, "cell", self._anew, cell)
        self._next_cell()

    def follow(self, run: Callable[[Cell], object]) -> None:
        """Run each cell that rank 0 sends by *run*, until it sends no more."""
        while (cell := self._next_cell()) is not None:
            with self.cell():
                if self._why:
                    raise KeyboardInterrupt
                run(cell)

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Return a context in which this rank runs a cell, and can be stopped."""
        self.outcome, self.running = Outcome(output="", warnings=[]), True
        self._busy.set()
        try:
            try:
                yield
            finally:
                self.running = False
        except BaseException as error:
            self.note(error, traceback_lines(error))
        if self._why and "error" in self.outcome:  # which may come from that: another rank has left an exchange
            self.outcome["error"] = stopped_error(self.outcome["error"], *self._why)
        self.outcome["states"] = call_states()
        if self.rank:
            self._busy.clear()
        self.send(0, "outcome", self.outcome)

    def note(self, error: BaseException, traceback: list[str]) -> None:
        """Note that the cell ends with this *error*."""
        self.outcome["error"] = cell_error(error, traceback)

    def was_stopped_by(self, error: BaseException | None) -> bool:
        """Return whether the cell was stopped, and this *error* comes from that."""
        return bool(self._why) and isinstance(error, KeyboardInterrupt | CancelledError)

    def finish(self) -> CellError | None:
        """Wait until the cell has ended on all ranks, show what they have to show, and return its error."""
        said = False

        def complete() -> bool:
            nonlocal said
            self.poll()
            missing = self._missing_ranks()
            if not said and missing and 0 < self._all_stopped_at < time.monotonic() - STOP_WITHIN:
                said = True
                how = "in code that is not Python's. Restart ends it"
                sys.stderr.write(f"meshcomm: {ranks_text(missing)} cannot be stopped yet: {how}\n")
                sys.stderr.flush()
            return not missing

        wait_until(complete)
        self._busy.clear()
        outcomes = [self._outcomes[rank] for rank in range(self.size)]
        failed = any("error" in outcome for outcome in outcomes)
        self._anew = failed and calls_differ([outcome["states"] for outcome in outcomes])
        return show_outcomes(outcomes)

    def interrupt(self) -> bool:
        """Stop the cell on all ranks; return whether there is one. For any thread of rank 0."""
        with self._lock:
            if self._busy.is_set():
                self._stop("KeyboardInterrupt", "")
            return self._busy.is_set()

    def end(self) -> None:
        """Let all ranks end their programs."""
        self._anew = True
        self.begin(None)

    # -- what ranks share within a cell -------------------------------------------------------------------------------

    def shared(self, what: str, make: Callable[[], Value]) -> Value:
        """Return on all ranks what *make* returns on rank 0; on a rank that is alone, it is an error but on rank 0."""
        if self.rank and self.gates.why_alone:
            raise RuntimeError(f"{what} is possible on rank 0 only: {self.gates.why_alone}")
        if self.rank:
            wait_until(self._has_value)
            sent, value = self._values.popleft()
            if sent != what:
                raise RuntimeError(f"rank {self.rank} asks for {what}, but rank 0 for {sent}")
            return value
        value = make()
        if not self.gates.why_alone and self.running:
            self._to_others("value", what, value)
        return value

    def _has_value(self) -> bool:
        with self.gates.uninterrupted():
            self.poll()
        return bool(self._values)

    # -- messages -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handle the messages that have come."""
        with self._lock:
            for source, (name, *arguments) in self._channel.receive():
                self._handle(source, str(name), *arguments)

    def send(self, rank: int, name: str, *arguments: object) -> None:
        """Send a message, which may be to this rank."""
        with self._lock:
            if rank == self.rank:
                self._handle(rank, name, *arguments)
            else:
                self._channel.send([name, *arguments], rank)

    def _handle(self, source: int, name: str, *arguments: Value) -> None:
        handle = self.gates.arrived if name == "gate" else getattr(self, f"_on_{name}")
        handle(source, *arguments)

    def _to_others(self, name: str, *arguments: object) -> None:
        for rank in range(1, self.size):
            self.send(rank, name, *arguments)

    def _on_cell(self, source: int, anew: bool, cell: Cell | None) -> None:
        self.gates.begin_epoch()
        self._outcomes.clear()
        self._ended.clear()
        self._values.clear()
        self._why, self._all_stopped_at = None, 0.0
        self._cells.append((anew, cell))

    def _on_outcome(self, source: int, outcome: Outcome) -> None:
        self._outcomes[source], self._ended[source] = outcome, time.monotonic()

    def _on_value(self, source: int, what: str, value: object) -> None:
        self._values.append((what, value))

    def _on_waits(self, source: int, ranks: list[int], where: str) -> None:
        gone = [rank for rank in ranks if time.monotonic() > self._ended.get(rank, math.inf) + WAIT_WITHIN]
        if gone:
            have = "have" if len(gone) > 1 else "has"
            text = f"waited in {where} for {ranks_text(gone)}, which {have} ended the cell"
            self.send(source, "stop", "CollectiveMismatch", text)

    def _on_stop(self, source: int, name: str, text: str) -> None:
        self._why, self._stopped_at = self._why or (name, text), time.monotonic()
        if self.running:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self.wake()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.running:
            self.gates.interrupt()

    def _next_cell(self) -> Cell | None:
        """Return the next cell for this rank, or None at the end of the job."""
        pause = POLL_FROM
        while not self._cells:
            self.poll()
            rung = not self._cells and self._bell.wait(pause)
            pause = POLL_FROM if rung else min(1.2 * pause, LOOK_BESIDES if self._bell.has_rung else POLL_TO)
        anew, cell = self._cells.popleft()
        if anew:
            start_over()
            forget_recipes()
        return cell

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while os.getppid() == self._parent:
            if self._busy.wait(PARENT_EVERY):
                with self._lock:
                    self.poll()
                    self._look()
                time.sleep(LISTEN_EVERY)
        os._exit(1)

    def _missing_ranks(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._outcomes]

    def _stop(self, name: str, text: str) -> None:
        for rank in self._missing_ranks():
            self.send(rank, "stop", name, text)
        self._all_stopped_at = time.monotonic()

    def _look(self) -> None:
        """Stop all if one has failed, and this rank again if it goes on; say for whom it waits."""
        now = time.monotonic()
        failed = [self._ended[rank] for rank, outcome in self._outcomes.items() if "error" in outcome]
        if failed and not self._all_stopped_at and now > min(failed) + FAIL_WITHIN:
            self._stop("", "")
        if self.running and self._why and now > self._stopped_at + STOP_WITHIN:
            self._on_stop(self.rank, *self._why)
        since, ranks = self.gates.awaited()
        if self.running and not self._why and ranks and now > since + WAIT_WITHIN:
            self.send(0, "waits", [*ranks], watch.operation() or "a call of MPI")
