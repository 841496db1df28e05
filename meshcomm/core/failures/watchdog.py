"""The watchdog: it ends a job in which a rank waits too long, and prints which ranks are missing.

It is one thread of each process. Calls only write to `watch`, which the thread reads a few times a second. So a call
costs next to nothing, and needs no timer.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from functools import cache
from traceback import format_exception

from meshcomm.core._callers import shortened_traceback
from meshcomm.core._tuning import (
    ANSWER_WITHIN,
    ASK_AFTER,
    ASK_EVERY,
    ASK_EVERY_WITH_ERROR,
    INTERRUPT_WITHIN,
    TELL_ERROR_AFTER,
    WARN_AFTER,
    WATCH_EVERY,
    WRITE_WITHIN,
)
from meshcomm.core.failures import abort, flights, host_signals, stacks
from meshcomm.core.failures.abort import comm_world, end_job, install_hooks, say, timeout_seconds, who
from meshcomm.core.failures.answers import WaitReport
from meshcomm.core.failures.first_calls import FirstCalls
from meshcomm.core.failures.liveness import LivenessCheck, liveness_of, open_liveness_checks
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import Call, WatchedRankSet, kind, watch


@cache
def install() -> None:
    """Make uncaught exceptions and lost ranks end the job; once per process."""
    install_hooks()
    watchdog = _Watchdog(timeout_seconds(), _signal_file())
    threading.Thread(target=watchdog.run, name="meshcomm watchdog", daemon=True).start()


def _signal_file() -> int | None:
    """Return a pipe that gets the number of each signal at once, even while Python cannot handle it; None if taken."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(ValueError):  # this is not the main thread
        previous_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if previous_fd == -1:
            os.register_at_fork(after_in_child=_give_up_signals)
            return read_end
        signal.set_wakeup_fd(previous_fd)  # such as that of an event loop
    os.close(read_end)
    os.close(write_end)
    return None


def _give_up_signals() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


class _Watchdog:
    """The state of the thread. It ends the job after *timeout* seconds; *signals* is the pipe of `_signal_file`.

    Time is counted in steps of the watchdog, so that time in which the job is stopped does not count.
    """

    def __init__(self, timeout: float, signals: int | None) -> None:
        self._timeout = timeout
        self._signal_file = signals
        self._longest_step = self._step = min(WATCH_EVERY, timeout / 10)
        self._state: tuple[int, ...] = ()
        self._num_polls, self._poll_pause = 0, math.inf  # tests of requests, and seconds since the last
        self._ask_at = self._asks_from = 0.0
        self._warned = False
        self._interrupted: float | None = None  # seconds since SIGINT, if it came in a call
        self._interrupted_call = 0  # number of calls that this rank had made by then
        self._first_calls = FirstCalls(comm_world()[0])

    def run(self) -> None:
        """Watch for ever."""
        while True:
            self._sleep()
            if self._notice_changes():
                self._restart()
            else:
                watch.idle_seconds += self._step
            self._first_calls.serve()
            for liveness in open_liveness_checks():
                liveness.serve()
                self._obey(liveness)
            if watch.error is not None and host_signals.is_ending():
                _print_error()
            self._step = self._next_step()
            call = watch.call()
            if call is not None:
                self._wait(call)

    def _sleep(self) -> None:
        if self._signal_file is None:
            time.sleep(self._step)
        elif select.select([self._signal_file], [], [], self._step)[0]:
            # Outside of a call, Python runs the handler at once, and the program may go on.
            if signal.SIGINT in os.read(self._signal_file, 64) and watch.calls:
                self._interrupted, self._interrupted_call = 0.0, watch.count
            time.sleep(self._step)

    def _next_step(self) -> float:
        """Return the seconds to sleep until the next look: at most what is left of the timeout.

        They are fewer if other ranks wait for answers that this one gathers, or it has an error that may end the job.
        """
        in_haste = any(liveness.gathers() for liveness in open_liveness_checks())
        in_haste |= watch.error is not None and watch.idle_seconds < TELL_ERROR_AFTER
        step, remaining = self._longest_step / (5 if in_haste else 1), self._timeout - watch.idle_seconds
        return remaining if 0.0 < remaining < step else step

    def _notice_changes(self) -> bool:
        """Return whether this rank has made progress since the last look, or is in a library.

        Tests of one request again and again are no progress, if they come at least every tenth of the timeout.
        """
        earlier_polls, self._num_polls = self._num_polls, watch.num_polls
        self._poll_pause = 0.0 if earlier_polls != watch.num_polls else self._poll_pause + self._step
        watch.only_polling = watch.last_polled if not watch.calls and self._poll_pause < self._longest_step else None
        is_polling = not watch.calls and self._poll_pause <= self._timeout / 10
        earlier_state, self._state = self._state, (watch.count, len(watch.calls), watch.progress_count, is_polling)
        return earlier_state != self._state or watch.in_library

    def _restart(self) -> None:
        watch.idle_seconds = 0.0
        self._warned = False
        if self._interrupted_call != watch.count:  # else the call may have begun just before the signal
            self._interrupted = None
        # A rank with an error asks at once: the others may be in an exchange, and not reach the call that agrees.
        self._ask_at = self._asks_from = self._step if watch.error is not None else min(ASK_AFTER, self._timeout / 3)

    def _obey(self, liveness: LivenessCheck) -> None:
        """End the job, or record its end, if other ranks or their answers ask for it."""
        if liveness.expired:
            _record_end(f"another rank ends the job: {liveness.expired}")
            liveness.note_written()
        if liveness.mismatch:
            self._end(liveness.rank_set, f"CollectiveMismatch: {liveness.mismatch}")

    def _wait(self, call: Call) -> None:
        """Ask who is missing while this rank waits in *call*, warn, and end the job."""
        rank_set = call[1]
        if rank_set is not None and not rank_set.world.ends_job_on_failure:
            return
        waited_seconds, call_text = watch.idle_seconds, _call_text(call)
        liveness = liveness_of(rank_set) if rank_set is not None else None
        check = liveness or (self._first_calls if rank_set is not None and not rank_set.name else None)
        if rank_set is not None and check is not None and waited_seconds >= self._ask_at:
            self._ask_at = self._next_question()
            check.ask(call, rank_set.world.ranks_in_comm_world(rank_set.ranks))
        report = check.report if check is not None else None
        if report is not None and report.calls != watch.count:
            report = None
        if report is not None and check is not None and report.files and not report.ended_ranks:
            check.report = None
            self._restart()
            return
        missing = ""
        if check is not None and (report is not None or waited_seconds >= ANSWER_WITHIN + self._asks_from):
            missing = "".join(f"\n  {line}" for line in check.missing_ranks_text(report, abs(call[2])).splitlines())
        if report is not None and check is not None and report.ended_ranks and not check.leaving:
            reason = f"it has waited {waited_seconds:.0f} s in {call_text}, but {report.ended_ranks}{missing}"
            self._end(rank_set, reason, host_signals.code_of_end() or 1)
        if waited_seconds >= self._timeout:
            limit_text = f"longer than MESHCOMM_TIMEOUT={self._timeout:g}"
            explanation = missing or (_NO_CHECK_HINT if liveness is None else "")
            self._end(rank_set, f"it has waited {waited_seconds:.0f} s in {call_text}, {limit_text}{explanation}")
        self._end_if_interrupted(rank_set, call_text)
        self._warn(call_text, report, missing)

    def _next_question(self) -> float:
        """Return the seconds of waiting after which to ask again."""
        interval = ASK_EVERY if watch.error is None else ASK_EVERY_WITH_ERROR
        return watch.idle_seconds + max(min(interval, self._timeout / 10), watch.idle_seconds / 8)

    def _warn(self, call_text: str, report: WaitReport | None, missing_text: str) -> None:
        error, waited_seconds = watch.error, watch.idle_seconds
        if error is not None and waited_seconds >= TELL_ERROR_AFTER and not self._warned:
            self._warned = True
            _print_error(
                f"  It has waited {waited_seconds:.0f} s in {call_text}: the other ranks have not reached this call\n"
            )
        if waited_seconds >= WARN_AFTER and not self._warned:
            self._warned = True
            if report is None or report.is_speaker:
                say(f"{who()} has waited {waited_seconds:.0f} s in {call_text}, and goes on waiting{missing_text}")

    def _end_if_interrupted(self, rank_set: WatchedRankSet | None, call_text: str) -> None:
        if self._interrupted is None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._interrupted += self._step
        if self._interrupted >= INTERRUPT_WITHIN:
            self._end(rank_set, f"KeyboardInterrupt while it waits in {call_text}", 128 + signal.SIGINT)

    def _end(self, rank_set: WatchedRankSet | None, reason: str, code: int = 1) -> None:
        """End the job, after all ranks that can have written their flight files.

        Ranks of a *rank_set* that wait in one operation have the same message; with liveness checks all its ranks do,
        as they know of the others. So one of them on each host prints it.
        """
        flight_line = _record_end(reason)
        program_line = stacks.of_program()
        shared_error, liveness = None, liveness_of(rank_set) if rank_set is not None else None
        if rank_set is not None:
            ranks = spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
            operation_kind = kind(watch.operation()) if liveness is None else ""
            shared_error = host_signals.SharedError(
                f"the watchdogs of ranks {ranks} end the job {operation_kind}", comm_world()[0]
            )
        if liveness is not None:
            liveness.expire(reason)
            deadline = time.monotonic() + min(WRITE_WITHIN, self._timeout / 8)
            while time.monotonic() < deadline and not liveness.is_over and not liveness.all_written:
                liveness.serve()
                time.sleep(0.05)
        location_text = f"\n  This rank is at {program_line}" if program_line else ""
        hint = f"\n  {watch.divergence_hint}" if watch.divergence_hint and code != 128 + signal.SIGINT else ""
        end_job(f"{reason}{location_text}{hint}{flight_line}", code, shared_error)


@cache
def _record_end(reason: str) -> str:
    """Write the flight file and traces of this rank, and print its error, once, as the job ends.

    Return a line for a message with the path of the flight file.
    """
    flight_line = flights.write(reason)
    _print_error()
    abort.write_traces()
    return flight_line


_printed_errors: list[Exception] = []


def _print_error(explanation: str = "") -> None:
    """Print, once, the error that this rank has to raise, and *explanation*: the program may not get to raise it."""
    error = watch.error
    if error is not None and error not in _printed_errors:
        _printed_errors.append(error)
        with shortened_traceback(error):  # empty if it has only lines of meshcomm
            details = "".join(format_exception(error)) if error.__traceback__ is not None else ""
        if not details and (program_line := stacks.of_program()):
            details = f"  This rank is at {program_line}"
        say(f"{who()} has to raise {type(error).__name__}: {error}\n{explanation}{details}".rstrip())
        host_signals.note_reported()


_NO_CHECK_HINT = (
    ". The other ranks cannot be asked: these ranks have not communicated yet, or MPI has no MPI_THREAD_MULTIPLE. "
    "Run again with python -m meshcomm run to see which ranks have ended, and with MESHCOMM_CHECK=1 to see which made "
    "another call"
)


def _call_text(call: Call) -> str:
    _, rank_set, number, _ = call
    text = f"{watch.operation() or call[0]} (its call {watch.count})"
    if rank_set is None:
        return text
    return f"{text} with {len(rank_set.ranks)} ranks" + (f", call {abs(number)} on these ranks" if number else "")
