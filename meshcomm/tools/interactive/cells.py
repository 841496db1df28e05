"""Send cells to all ranks, stop them, and collect their outcomes on rank 0.

Rank 0 sends a cell to the other ranks, runs it itself, and waits for the outcome of each rank. While a cell runs, a
thread of each rank listens, and stops the rank by a signal to itself: also in a loop, asleep, or in a call that waits.

Ranks may leave a cell at different lines. Rank 0 then stops those that are still in it, and compares the collective
calls that each of them has made. If these differ, all ranks start over with the next cell: meshes and tensors stay.
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
"""Seconds between two polls for a cell: at first, and after a while. Each sleep takes up to 80 us of CPU."""
POLL_WOKEN = 0.2
"""Seconds between two polls for a cell of a rank that rank 0 can wake."""
LISTEN_EVERY = 0.02
"""Seconds between two polls for a message while a cell runs."""
FAIL_WITHIN = 1.0
"""Seconds after an error on one rank in which other ranks may raise it themselves, before they are stopped."""
WAIT_WITHIN = 2.0
"""Seconds for which a rank waits for a rank that has ended the cell, whose last messages may still be in flight."""
STOP_WITHIN = 2.0
"""Seconds in which a stopped rank should end its cell. Then it is stopped again: some code suppresses errors."""
PARENT_EVERY = 1.0
"""Seconds between two checks whether the process that started this one still runs."""


class Cell(TypedDict, total=False):
    """Code for all ranks.

    Parameters
    ----------
    text: the code
    file, mode: arguments of `compile`; only without IPython
    count, store, silent: arguments of IPython's ``run_cell``; only with IPython
    """

    text: str
    file: str
    mode: str
    count: int
    store: bool
    silent: bool


class Job:
    """The job of a prompt or a notebook, as one rank sees it. Collective over COMM_WORLD, before the first mesh."""

    def __init__(self) -> None:
        self._lock, self._busy = threading.RLock(), threading.Event()  # busy: while a cell runs
        self.gates = Gates(self.send, self.poll)
        self._channel = self.gates.channel
        self.rank, self.size = self._channel.rank, self._channel.size
        self.running = False
        self.outcome = Outcome()
        """The outcome of the cell on this rank, while the cell runs."""
        self.wake: Callable[[], object] = lambda: None
        """Function that wakes the event loop of the main thread, if it has one: a signal alone does not."""
        self._bell = host_signals.Bell(self.rank)
        self._cells, self._values = deque[tuple[bool, Cell | None]](), deque[tuple[str, object]]()
        self._outcomes: dict[int, Outcome] = {}
        self._outcome_times: dict[int, float] = {}
        """By rank, the time at which rank 0 received its outcome."""
        self._stop_reason: tuple[str, str] | None = None
        """The name and the text of the error for which the cell is stopped; None if it is not."""
        self._stopped_at = self._all_stopped_at = 0.0
        self._starts_over = False
        self._parent_pid = os.getppid()
        self.take_signals()
        threading.Thread(target=self._listen, name="meshcomm cells", daemon=True).start()

    def take_signals(self) -> None:
        """Let SIGINT stop a cell that runs, and nothing else."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    # -- cells --------------------------------------------------------------------------------------------------------

    def begin(self, cell: Cell | None) -> None:
        """Begin a *cell* on all ranks. None ends the programs of the other ranks."""
        self._to_others("cell", self._starts_over, cell)
        for rank in range(1, self.size):
            host_signals.ring(rank)
        self.send(0, "cell", self._starts_over, cell)
        self._next_cell()

    def follow(self, run: Callable[[Cell], object]) -> None:
        """Call *run* with each cell that rank 0 sends, until it sends None."""
        while (cell := self._next_cell()) is not None:
            with self.cell():
                if self._stop_reason:
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
        # The error may be a consequence of the stop: another rank has left an exchange.
        if self._stop_reason and "error" in self.outcome:
            self.outcome["error"] = stopped_error(self.outcome["error"], *self._stop_reason)
        self.outcome["states"] = call_states()
        if self.rank:
            self._busy.clear()
        self.send(0, "outcome", self.outcome)

    def note(self, error: BaseException, traceback: list[str]) -> None:
        """Store the *error* with which the cell ends in the outcome."""
        self.outcome["error"] = cell_error(error, traceback)

    def was_stopped_by(self, error: BaseException | None) -> bool:
        """Return whether the cell was stopped, and caused this *error* by that."""
        return bool(self._stop_reason) and isinstance(error, KeyboardInterrupt | CancelledError)

    def finish(self) -> CellError | None:
        """Wait until the cell has ended on all ranks, show their outcomes, and return the error of the cell."""
        has_reported = False

        def complete() -> bool:
            nonlocal has_reported
            self.poll()
            missing_ranks = self._missing_ranks()
            if not has_reported and missing_ranks and 0 < self._all_stopped_at < time.monotonic() - STOP_WITHIN:
                has_reported = True
                advice = "in code that is not Python's. Restart ends it"
                sys.stderr.write(f"meshcomm: {ranks_text(missing_ranks)} cannot be stopped yet: {advice}\n")
                sys.stderr.flush()
            return not missing_ranks

        wait_until(complete)
        self._busy.clear()
        outcomes = [self._outcomes[rank] for rank in range(self.size)]
        has_failed = any("error" in outcome for outcome in outcomes)
        self._starts_over = has_failed and calls_differ([outcome["states"] for outcome in outcomes])
        return show_outcomes(outcomes)

    def interrupt(self) -> bool:
        """Stop the cell on all ranks; return whether a cell runs. Any thread of rank 0 may call this."""
        with self._lock:
            if self._busy.is_set():
                self._stop("KeyboardInterrupt", "")
            return self._busy.is_set()

    def end(self) -> None:
        """Let all ranks end their programs."""
        self._starts_over = True
        self.begin(None)

    # -- values of rank 0 for all ranks -------------------------------------------------------------------------------

    def shared(self, name: str, make: Callable[[], Value]) -> Value:
        """Return on all ranks what *make* returns on rank 0. ``RuntimeError`` on another rank that runs code alone."""
        if self.rank and self.gates.isolation_reason:
            raise RuntimeError(f"{name} is possible on rank 0 only: {self.gates.isolation_reason}")
        if self.rank:
            wait_until(self._has_value)
            sent_name, value = self._values.popleft()
            if sent_name != name:
                raise RuntimeError(f"rank {self.rank} asks for {name}, but rank 0 for {sent_name}")
            return value
        value = make()
        if not self.gates.isolation_reason and self.running:
            self._to_others("value", name, value)
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

    def _on_cell(self, source: int, starts_over: bool, cell: Cell | None) -> None:
        self.gates.begin_epoch()
        self._outcomes.clear()
        self._outcome_times.clear()
        self._values.clear()
        self._stop_reason, self._all_stopped_at = None, 0.0
        self._cells.append((starts_over, cell))

    def _on_outcome(self, source: int, outcome: Outcome) -> None:
        self._outcomes[source], self._outcome_times[source] = outcome, time.monotonic()

    def _on_value(self, source: int, name: str, value: object) -> None:
        self._values.append((name, value))

    def _on_waits(self, source: int, ranks: list[int], call_name: str) -> None:
        gone = [rank for rank in ranks if time.monotonic() > self._outcome_times.get(rank, math.inf) + WAIT_WITHIN]
        if gone:
            verb = "have" if len(gone) > 1 else "has"
            text = f"waited in {call_name} for {ranks_text(gone)}, which {verb} ended the cell"
            self.send(source, "stop", "CollectiveMismatch", text)

    def _on_stop(self, source: int, name: str, text: str) -> None:
        self._stop_reason, self._stopped_at = self._stop_reason or (name, text), time.monotonic()
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
            was_rung = not self._cells and self._bell.wait(pause)
            pause = POLL_FROM if was_rung else min(1.2 * pause, POLL_WOKEN if self._bell.has_rung else POLL_TO)
        starts_over, cell = self._cells.popleft()
        if starts_over:
            start_over()
            forget_recipes()
        return cell

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while os.getppid() == self._parent_pid:
            if self._busy.wait(PARENT_EVERY):
                with self._lock:
                    self.poll()
                    self._check_progress()
                time.sleep(LISTEN_EVERY)
        os._exit(1)

    def _missing_ranks(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._outcomes]

    def _stop(self, name: str, text: str) -> None:
        for rank in self._missing_ranks():
            self.send(rank, "stop", name, text)
        self._all_stopped_at = time.monotonic()

    def _check_progress(self) -> None:
        """Stop all ranks if one has failed, stop this rank again if it goes on, and tell rank 0 whom it waits for."""
        now = time.monotonic()
        failure_times = [self._outcome_times[rank] for rank, outcome in self._outcomes.items() if "error" in outcome]
        if failure_times and not self._all_stopped_at and now > min(failure_times) + FAIL_WITHIN:
            self._stop("", "")
        if self.running and self._stop_reason and now > self._stopped_at + STOP_WITHIN:
            self._on_stop(self.rank, *self._stop_reason)
        begin, ranks = self.gates.awaited()
        if self.running and not self._stop_reason and ranks and now > begin + WAIT_WITHIN:
            self.send(0, "waits", [*ranks], watch.operation() or "a call of MPI")
