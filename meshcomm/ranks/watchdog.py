"""The watchdog: it ends a job in which a rank waits for too long."""

import contextlib
import faulthandler
import threading
import time
from functools import cache
from typing import Protocol

from meshcomm.ranks.abort import end_job, install_hooks, say, timeout_seconds, who
from meshcomm.ranks.teams import Team

WARN_AFTER = 60.0


TELL_ERROR_AFTER = 5.0


_POLL = 0.5


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
    """A context in which the watchdog knows that this rank is in a collective call of *team*.

    *team* is None where there is no team yet.
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
    """Make uncaught exceptions and lost ranks end the job; once per process. Local."""
    install_hooks()
    threading.Thread(target=_watchdog, args=(timeout_seconds(),), name="meshcomm watchdog", daemon=True).start()


_HINT = "If other ranks made another call, MESHCOMM_CHECK=1 will name it"


def _watchdog(timeout: float) -> None:
    """Warn about, and then end, a job in which this rank waits in one collective call for too long.

    Time is counted in steps of the watchdog: a job that is stopped for a while does not grow older.
    """
    step = min(_POLL, timeout / 10)
    seen, waited, warned = -1, 0.0, False
    while True:
        time.sleep(step)
        calls = watch.calls[:1]
        if not calls or watch.count != seen:
            seen, waited, warned = watch.count, 0.0, False
            continue
        waited += step
        operation, team = calls[0]
        what = f"has waited {waited:.0f} s in {operation} (its call {seen})"
        what += f" with {len(team.ranks)} ranks" if team is not None else ""
        lost = watch.peers.lost(team) if watch.peers is not None and team is not None else None
        if lost or waited >= timeout:
            _dump()
            why = f", but {lost}" if lost else f", longer than MESHCOMM_TIMEOUT={timeout:g}. {_HINT}"
            end_job(f"it {what}{why}")
        error = watch.error
        if error is not None and waited >= TELL_ERROR_AFTER and not warned:
            warned = True
            say(f"{who()} has to raise {type(error).__name__}: {error}\n  It {what}, who do not come to hear of it")
        if waited >= WARN_AFTER and not warned:
            warned = True
            say(f"{who()} {what}, and waits on")


def _dump() -> None:
    with contextlib.suppress(Exception):  # standard error may be no file
        faulthandler.dump_traceback(all_threads=True)
