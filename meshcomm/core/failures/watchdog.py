"""The watchdog: it ends a job in which a rank waits for too long, and says who is missing.

It is one thread for each process. Calls only write what they do; the thread looks at this a few times a second. So a
call costs next to nothing, and no timer has to be armed.
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

from meshcomm.core._callers import in_short
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
    """Return a file that gets the number of each signal at once, even while Python cannot handle it; None if taken."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(ValueError):  # this is not the main thread
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before == -1:
            os.register_at_fork(after_in_child=_give_up_signals)
            return reading
        signal.set_wakeup_fd(before)  # that of an event loop, say
    os.close(reading)
    os.close(writing)
    return None


def _give_up_signals() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


class _Watchdog:
    """What the thread knows. Ends the job after *timeout* seconds; *signals* is a file with the numbers of signals.

    Time is counted in steps of the watchdog, so that the time in which a job is stopped does not count.
    """

    def __init__(self, timeout: float, signals: int | None) -> None:
        self._timeout = timeout
        self._signal_file = signals
        self._longest_step = self._step = min(WATCH_EVERY, timeout / 10)
        self._seen: tuple[int, ...] = ()
        self._tests, self._untested = 0, math.inf  # tests of requests, and seconds without one
        self._ask_at = self._asked_first = 0.0
        self._warned = False
        self._interrupted: float | None = None  # seconds since the signal,
        self._interrupted_in = 0  # which came when this rank had made so many calls
        self._first_calls = FirstCalls(comm_world()[0])

    def run(self) -> None:
        """Look around for ever."""
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
                _tell_error()
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
                self._interrupted, self._interrupted_in = 0.0, watch.count
            time.sleep(self._step)

    def _next_step(self) -> float:
        """Return how many seconds to sleep until the next look: no longer than a rank that waits may still wait.

        They are fewer if other ranks wait for what this one gathers, or it has an error that the job may end with.
        """
        haste = any(liveness.gathers() for liveness in open_liveness_checks())
        haste |= watch.error is not None and watch.idle_seconds < TELL_ERROR_AFTER
        step, left = self._longest_step / (5 if haste else 1), self._timeout - watch.idle_seconds
        return left if 0.0 < left < step else step

    def _notice_changes(self) -> bool:
        """Return whether this rank has done anything since the last look, or is in a library.

        To test the same request again and again is nothing, if the pauses are not longer than a tenth of the timeout.
        """
        tests, self._tests = self._tests, watch.num_polls
        self._untested = 0.0 if tests != watch.num_polls else self._untested + self._step
        watch.only_polling = watch.last_polled if not watch.calls and self._untested < self._longest_step else None
        polls = not watch.calls and self._untested <= self._timeout / 10
        seen, self._seen = self._seen, (watch.count, len(watch.calls), watch.progress_count, polls)
        return seen != self._seen or watch.in_library

    def _restart(self) -> None:
        watch.idle_seconds = 0.0
        self._warned = False
        if self._interrupted_in != watch.count:  # else the call may have begun just before the signal
            self._interrupted = None
        # A rank with an error knows at once that something is wrong: the others may exchange, and not come to hear it.
        self._ask_at = self._asked_first = self._step if watch.error is not None else min(ASK_AFTER, self._timeout / 3)

    def _obey(self, liveness: LivenessCheck) -> None:
        """Do what other ranks, or their answers, demand of all."""
        if liveness.expired:
            _tell_what_happened(f"another rank ends the job: {liveness.expired}")
            liveness.note_written()
        if liveness.mismatch:
            self._end(liveness.rank_set, f"CollectiveMismatch: {liveness.mismatch}")

    def _wait(self, call: Call) -> None:
        """Look after a rank that waits in *call*: ask who is missing, warn, and end the job."""
        rank_set = call[1]
        if rank_set is not None and not rank_set.world.ends_job_on_failure:
            return
        waited, text = watch.idle_seconds, _call_text(call)
        liveness = liveness_of(rank_set) if rank_set is not None else None
        check = liveness or (self._first_calls if rank_set is not None and not rank_set.name else None)
        if rank_set is not None and check is not None and waited >= self._ask_at:
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
        if check is not None and (report is not None or waited >= ANSWER_WITHIN + self._asked_first):
            missing = "".join(f"\n  {line}" for line in check.missing_ranks_text(report, abs(call[2])).splitlines())
        if report is not None and check is not None and report.ended_ranks and not check.leaving:
            reason = f"it has waited {waited:.0f} s in {text}, but {report.ended_ranks}{missing}"
            self._end(rank_set, reason, host_signals.code_of_end() or 1)
        if waited >= self._timeout:
            limit = f"longer than MESHCOMM_TIMEOUT={self._timeout:g}"
            more = missing or (_HINT if liveness is None else "")
            self._end(rank_set, f"it has waited {waited:.0f} s in {text}, {limit}{more}")
        self._end_if_interrupted(rank_set, text)
        self._warn(text, report, missing)

    def _next_question(self) -> float:
        """Return after how many seconds of waiting to ask again."""
        every = ASK_EVERY if watch.error is None else ASK_EVERY_WITH_ERROR
        return watch.idle_seconds + max(min(every, self._timeout / 10), watch.idle_seconds / 8)

    def _warn(self, text: str, report: WaitReport | None, missing: str) -> None:
        error, waited = watch.error, watch.idle_seconds
        if error is not None and waited >= TELL_ERROR_AFTER and not self._warned:
            self._warned = True
            _tell_error(f"  It has waited {waited:.0f} s in {text}: the other ranks have not reached this call\n")
        if waited >= WARN_AFTER and not self._warned:
            self._warned = True
            if report is None or report.is_speaker:
                say(f"{who()} has waited {waited:.0f} s in {text}, and goes on waiting{missing}")

    def _end_if_interrupted(self, rank_set: WatchedRankSet | None, text: str) -> None:
        if self._interrupted is None or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._interrupted += self._step
        if self._interrupted >= INTERRUPT_WITHIN:
            self._end(rank_set, f"KeyboardInterrupt while it waits in {text}", 128 + signal.SIGINT)

    def _end(self, rank_set: WatchedRankSet | None, reason: str, code: int = 1) -> None:
        """End the job, after all ranks that can have written what they do.

        Ranks of a *rank_set* that wait in one operation say the same; with liveness checks, all of its ranks do, as
        they hear of the others. So one of them on each host says it.
        """
        flight_line = _tell_what_happened(reason)
        where = stacks.of_program()
        shared, liveness = None, liveness_of(rank_set) if rank_set is not None else None
        if rank_set is not None:
            ranks = spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
            waits = kind(watch.operation()) if liveness is None else ""
            shared = host_signals.Error(f"the watchdogs of ranks {ranks} end the job {waits}", comm_world()[0])
        if liveness is not None:
            liveness.expire(reason)
            end = time.monotonic() + min(WRITE_WITHIN, self._timeout / 8)
            while time.monotonic() < end and not liveness.is_over and not liveness.all_written:
                liveness.serve()
                time.sleep(0.05)
        at = f"\n  This rank is at {where}" if where else ""
        why = f"\n  {watch.divergence_hint}" if watch.divergence_hint and code != 128 + signal.SIGINT else ""
        end_job(f"{reason}{at}{why}{flight_line}", code, shared)


@cache
def _tell_what_happened(reason: str) -> str:
    """Tell what this rank did, once, as the job ends: in its flight file and traces, and with the error that it has.

    Return where the flight file is, as a line for a message.
    """
    flight_line = flights.write(reason)
    _tell_error()
    abort.write_traces()
    return flight_line


_printed: list[Exception] = []


def _tell_error(why: str = "") -> None:
    """Print, once, the error that this rank has to raise, and *why* it has not: the program may not get to do so."""
    error = watch.error
    if error is not None and error not in _printed:
        _printed.append(error)
        with in_short(error):  # nothing is left if only lines of ours are in it
            details = "".join(format_exception(error)) if error.__traceback__ is not None else ""
        if not details and (where := stacks.of_program()):
            details = f"  This rank is at {where}"
        say(f"{who()} has to raise {type(error).__name__}: {error}\n{why}{details}".rstrip())
        host_signals.note_reported()


_HINT = (
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
