"""The watchdog: it ends a job in which a rank waits for too long.

It is one thread for each process. Calls only write what they do; the thread looks at this a few times a second. So a
call costs next to nothing, and no timer has to be armed.
"""

import contextlib
import faulthandler
import threading
import time
from functools import cache
from typing import Protocol

from meshcomm._tuning import TELL_ERROR_AFTER, WARN_AFTER, WATCH_EVERY
from meshcomm.ranks.abort import end_job, install_hooks, say, timeout_seconds, who
from meshcomm.ranks.teams import Team


class Peers(Protocol):
    """What is known about ranks that have ended; there is something under ``python -m meshcomm run``."""

    def enter(self, team: Team) -> None:
        """Count a collective call of this rank on *team*."""

    def lost(self, team: Team) -> str | None:
        """Say which rank of *team* has ended without the call that this rank is in, or None."""


class _Watch:
    """What this rank is doing; written by the calls, read by the watchdog."""

    __slots__ = ("calls", "count", "error", "peers")

    def __init__(self) -> None:
        self.count = 0
        # A call may make another one; the first is what the user called.
        self.calls: list[tuple[str, Team | None]] = []
        self.peers: Peers | None = None
        # What this rank would raise as soon as the others agree.
        self.error: Exception | None = None


watch = _Watch()


class waiting:  # noqa: N801 - a context, as contextlib.suppress
    """A context in which the watchdog knows that this rank is in a collective call.

    *team* is None if there is no team yet.
    """

    __slots__ = ("_operation", "_team")

    def __init__(self, operation: str, team: Team | None) -> None:
        self._operation = operation
        self._team = team

    def __enter__(self) -> None:
        watch.count += 1
        watch.calls.append((self._operation, self._team))
        if watch.peers is not None and self._team is not None:
            watch.peers.enter(self._team)

    def __exit__(self, *exception: object) -> None:
        watch.calls.pop()


@cache
def install() -> None:
    """Make uncaught exceptions and lost ranks end the job; once per process."""
    install_hooks()
    threading.Thread(target=_watchdog, args=(timeout_seconds(),), name="meshcomm watchdog", daemon=True).start()


_HINT = "If other ranks made another call, MESHCOMM_CHECK=1 will name it"


def _watchdog(timeout: float) -> None:
    """Warn about, and then end, a job in which this rank waits in one collective call for too long.

    Time is counted in steps of the watchdog, so that the time in which a job is stopped does not count.
    """
    step = min(WATCH_EVERY, timeout / 10)
    seen, waited, warned = -1, 0.0, False
    while True:
        time.sleep(step)
        calls = watch.calls[:1]
        if not calls or watch.count != seen:
            seen, waited, warned = watch.count, 0.0, False
            continue
        waited += step
        operation, team = calls[0]
        call = f"{operation} (its call {seen})" + (f" with {len(team.ranks)} ranks" if team is not None else "")
        lost = watch.peers.lost(team) if watch.peers is not None and team is not None else None
        if lost or waited >= timeout:
            _dump()
            why = f", but {lost}" if lost else f", longer than MESHCOMM_TIMEOUT={timeout:g}. {_HINT}"
            end_job(f"it has waited {waited:.0f} s in {call}{why}")
        error = watch.error
        if error is not None and waited >= TELL_ERROR_AFTER and not warned:
            warned = True
            told = f"{who()} has to raise {type(error).__name__}: {error}"
            say(f"{told}\n  It has waited {waited:.0f} s in {call}: the other ranks have not reached this call")
        if waited >= WARN_AFTER and not warned:
            warned = True
            say(f"{who()} has waited {waited:.0f} s in {call}, and goes on waiting")


def _dump() -> None:
    with contextlib.suppress(Exception):  # standard error may be no file
        faulthandler.dump_traceback(all_threads=True)
