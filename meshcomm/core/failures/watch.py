"""What this rank does: written by its calls, read by its watchdog and by other ranks.

A call only writes what it is. The watchdog looks at this a few times a second, so a call costs next to nothing.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from meshcomm.core._tuning import FILE_CALL_WITHIN, FILES_AGAIN_WITHIN, KEPT_CALLS
from meshcomm.core._types import Ranks
from meshcomm.core.failures.recorder import CallListener


class CallState(Protocol):
    """Whether calls are possible."""

    @property
    def over(self) -> str | None: ...


class WatchedWorld(Protocol):
    """Where a program runs, as far as this folder asks; `meshcomm.core.ranks.teams` says what each entry is."""

    @property
    def guarded(self) -> bool: ...
    def ranks_in_comm_world(self, ranks: Ranks) -> tuple[int, ...]: ...
    def outside_of(self) -> object: ...
    def open_or_not(self) -> "Sequence[WatchedTeam]": ...


class WatchedTeam(Protocol):
    """Ranks of a world that make collective calls together, as far as this folder asks."""

    @property
    def world(self) -> WatchedWorld: ...
    @property
    def ranks(self) -> Ranks: ...
    @property
    def name(self) -> str: ...
    @property
    def turn(self) -> CallState: ...
    @property
    def calls(self) -> int: ...
    @property
    def noted(self) -> int: ...
    def digest_after(self, noted: int) -> int | None: ...
    def history(self, calls: Container[int]) -> Mapping[int, tuple[tuple[str, ...], str]]: ...


Call: TypeAlias = "tuple[str, WatchedTeam | None, int, float]"
"""An operation, its team if there is one yet, its number among the calls on that team, and when it began.

The number is 0 if the call is not counted, and -n if it waits for what call n has started. Times are those of
`time.monotonic`."""

NAMED = " named "
"""What separates an operation from the name that the user gave a call: ranks may give different names."""


class _RankState:
    """What this rank is doing."""

    __slots__ = (
        *("any_closed", "calls", "completed", "count", "errors", "file_at", "in_file", "in_library"),
        *("recent", "recorder", "script", "simulated", "since", "tested", "testing", "tests", "worlds"),
    )

    def __init__(self) -> None:
        self.count = 0
        # A call may make another one; the first is what the user called.
        self.calls: list[Call] = []
        # The flight recorder.
        self.recent: deque[Call] = deque(maxlen=KEPT_CALLS)
        # What its threads would raise as soon as the others agree.
        self.errors: list[Exception] = []
        # When it last began or ended to read or write a file, and whether it is at it.
        self.file_at, self.in_file = -math.inf, False
        # Whether it is in another library, which may compute for hours without a call of ours.
        self.in_library = False
        # Tests of nonblocking calls that were not complete, the last such call, and how many calls were completed.
        self.tests = 0
        self.tested: Call | None = None
        self.completed = 0
        # The same if this rank does nothing but test: known to the watchdog.
        self.testing: Call | None = None
        # The listener to calls and exchanges, while somebody counts or traces them.
        self.recorder: CallListener | None = None
        self.simulated: int | None = None  # the simulated rank that runs now
        # Of a script that knows no ranks: why they part. Errors say so, and name its line on each rank.
        self.script = ""
        self.any_closed = False  # a mesh: calls that take the short way look whether it is theirs
        # The worlds over MPI, the oldest first.
        self.worlds: Sequence[WatchedWorld] = ()
        # Seconds for which the watchdog has seen no change.
        self.since = 0.0

    @property
    def error(self) -> Exception | None:
        """What this rank would raise as soon as the others agree; the last one, if several threads have one."""
        return next(iter(self.errors[-1:]), None)

    @contextlib.contextmanager
    def having(self, error: Exception | None) -> Iterator[None]:
        """Let this rank have this *error* to raise, if any, in a ``with`` statement of one of its threads."""
        errors = [] if error is None else [error]
        self.errors += errors
        try:
            yield
        finally:
            for raised in errors:
                self.errors.remove(raised)

    def call(self) -> "Call | None":
        """Return the call that this rank is in, the innermost one, or None. For other threads: a slice is atomic."""
        return next(iter(self.calls[-1:]), self.testing)

    def file(self, begins: bool) -> None:
        """Note that this rank begins to read or write a file, or has done so: it may take long, but is not stuck."""
        self.file_at, self.in_file = time.monotonic(), begins
        self.completed += 1

    @contextlib.contextmanager
    def library(self) -> Iterator[None]:
        """Let the time in a ``with`` statement not count: this rank calls a library that may take long."""
        self.in_library = True
        try:
            yield
        finally:
            self.in_library = False

    def files(self) -> bool:
        """Return whether this rank reads or writes files, or is in a library."""
        return self.in_library or time.monotonic() - self.file_at < (
            FILE_CALL_WITHIN if self.in_file else FILES_AGAIN_WITHIN
        )

    def operation(self) -> str:
        """Return the operation that the user called, or nothing. For other threads."""
        call = next(iter(self.calls[:1]), self.testing)
        return call[0] if call is not None else ""


watch = _RankState()


def kind(operation: str) -> str:
    """Return *operation* without the name that the user gave the call.

    >>> kind("relayout named 'step 3'"), kind("barrier 'start'")
    ('relayout', "barrier 'start'")
    """
    return operation.partition(NAMED)[0]


def named_operation(operation: str, name: str | None) -> str:
    """Return *operation* with the *name* that the user gave the call, if any.

    >>> named_operation("relayout", "step 3")
    "relayout named 'step 3'"
    """
    return f"{operation}{NAMED}{name!r}" if name else operation
