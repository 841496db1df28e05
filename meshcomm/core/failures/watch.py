"""The state of this rank: its calls write it, its watchdog reads it, also for other ranks.

A call only writes a few attributes, and the watchdog reads them a few times a second. So calls cost next to nothing.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from meshcomm.core._tuning import FILE_CALL_WITHIN, FILE_IO_GRACE, KEPT_CALLS
from meshcomm.core._types import Ranks
from meshcomm.core.failures.recorder import CallListener


class WatchedCallLock(Protocol):
    """The call lock of the ranks of a rank set."""

    # Why the ranks can make no call any more; None while they can.
    @property
    def end_reason(self) -> str | None: ...


class WatchedWorld(Protocol):
    """The attributes of a `meshcomm.core.ranks.rank_sets.World` that this folder uses."""

    @property
    def ends_job_on_failure(self) -> bool: ...
    # The ranks in COMM_WORLD of *ranks* of this world.
    def ranks_in_comm_world(self, ranks: Ranks) -> tuple[int, ...]: ...
    # The newest mesh that this process is not in; None if there is none.
    def newest_mesh_without_me(self) -> object: ...
    # All rank sets of this rank, also those that have not communicated yet.
    def all_rank_sets(self) -> "Sequence[WatchedRankSet]": ...


class WatchedRankSet(Protocol):
    """The attributes of a `meshcomm.core.ranks.rank_sets.RankSet` that this folder uses."""

    @property
    def world(self) -> WatchedWorld: ...
    @property
    def ranks(self) -> Ranks: ...
    @property
    def name(self) -> str: ...
    # The call lock.
    @property
    def call_lock(self) -> WatchedCallLock: ...
    # The number of calls begun on the rank set.
    @property
    def calls(self) -> int: ...
    # The number of calls in the digest.
    @property
    def noted(self) -> int: ...
    # The digest after the first *noted* calls; None if it is not kept.
    def digest_after(self, noted: int) -> int | None: ...
    # The calls of these numbers and their texts.
    def history(self, calls: Container[int]) -> Mapping[int, tuple[tuple[str, ...], str]]: ...


Call: TypeAlias = "tuple[str, WatchedRankSet | None, int, float]"
"""A call: its operation, its rank set (None if there is none yet), its number there, and the time when it began.

The number is 0 if the call is not counted, and -n if it waits for nonblocking call n. The time is that of
`time.monotonic`. It is a plain tuple, as the compiled `CallScope` makes one for each call."""

NAMED = " named "
"""The text between an operation and the name that the user gave a call: ranks may give different names."""


class _RankState:
    """The calls and other activities of this rank."""

    __slots__ = (
        *("any_closed", "calls", "count", "divergence_hint", "errors", "file_at", "idle_seconds", "in_file"),
        *("in_library", "last_polled", "num_polls", "only_polling", "progress_count", "recent", "recorder"),
        *("simulated", "worlds"),
    )

    def __init__(self) -> None:
        # The number of calls begun.
        self.count = 0
        # The calls in progress, one within the other; the first is that of the user.
        self.calls: list[Call] = []
        # The last calls, for the flight recorder.
        self.recent: deque[Call] = deque(maxlen=KEPT_CALLS)
        # Pending errors: threads of this rank raise them as soon as the others agree.
        self.errors: list[Exception] = []
        # The time when file I/O last began or ended, and whether it is in progress.
        self.file_at, self.in_file = -math.inf, False
        # Whether this rank is in another library, which may compute for hours without a call of meshcomm.
        self.in_library = False
        # The number of tests of nonblocking calls that found them incomplete, and the last call tested so.
        self.num_polls = 0
        self.last_polled: Call | None = None
        # `last_polled` while this rank does nothing but poll, else None: set by the watchdog.
        self.only_polling: Call | None = None
        # The number of nonblocking calls completed, and of beginnings and ends of file I/O: a change is progress.
        self.progress_count = 0
        # The listener to calls and exchanges while they are counted or traced, else None.
        self.recorder: CallListener | None = None
        self.simulated: int | None = None  # the simulated rank that runs now, if any
        # For a NumPy script run unchanged on all ranks: the explanation added to errors; "" otherwise.
        self.divergence_hint = ""
        # Whether a mesh was closed; if so, fast paths check that theirs is open.
        self.any_closed = False
        # The worlds over MPI, the oldest first.
        self.worlds: Sequence[WatchedWorld] = ()
        # The seconds for which the watchdog has seen no change.
        self.idle_seconds = 0.0

    @property
    def error(self) -> Exception | None:
        """The pending error; the last one, if several threads have one."""
        return next(iter(self.errors[-1:]), None)

    @contextlib.contextmanager
    def pending_error(self, error: Exception | None) -> Iterator[None]:
        """Make *error*, if any, a pending error of this rank during a ``with`` statement of one of its threads."""
        errors = [] if error is None else [error]
        self.errors += errors
        try:
            yield
        finally:
            for raised in errors:
                self.errors.remove(raised)

    def call(self) -> "Call | None":
        """Return the innermost call that this rank is in, or None. Safe in other threads: a slice is atomic."""
        return next(iter(self.calls[-1:]), self.only_polling)

    def note_file_io(self, begins: bool) -> None:
        """Note that file I/O of this rank *begins*, or has ended: it may take long, but the rank is not stuck."""
        self.file_at, self.in_file = time.monotonic(), begins
        self.progress_count += 1

    @contextlib.contextmanager
    def in_library_call(self) -> Iterator[None]:
        """Do not count the time of a ``with`` statement as idle: this rank calls a library that may take long."""
        self.in_library = True
        try:
            yield
        finally:
            self.in_library = False

    def is_in_file_io_or_library(self) -> bool:
        """Return whether this rank reads or writes files, or is in a library."""
        return self.in_library or time.monotonic() - self.file_at < (
            FILE_CALL_WITHIN if self.in_file else FILE_IO_GRACE
        )

    def operation(self) -> str:
        """Return the operation that the user called; "" if there is none. Safe in other threads."""
        call = next(iter(self.calls[:1]), self.only_polling)
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
