"""A line on the terminal that says how much of a long save or load is done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from meshcomm.blocks.session import Session
from meshcomm.core._types import Bytes
from meshcomm.core._units import unit_of

PROGRESS_AFTER, PROGRESS_EVERY = 2.0, 0.2
"""Seconds before a save or load shows on a terminal how much is done, and from one such line to the next."""

PROGRESS_BYTES = 2**25
"""Bytes of a read or write while a terminal shows how much is done: about 0.1 s on a slow disk."""


class Progress:
    """The progress of a save or load, shown by one rank: it scales its own bytes up to those of all ranks.

    >>> shown = Progress("saving", "runs/a", 2**32)
    >>> shown.text(2**30, 2.0)
    'saving runs/a: 1.0 of 4.0 GiB, 0.5 GiB/s'
    """

    def __init__(self, verb: str, path: object, total: int) -> None:
        self._title, self._total = f"{verb} {path}", total
        self._start_time = self._last_shown_time = time.monotonic()
        self._done_bytes, self._scale = 0.0, 1.0
        self._width = 0

    def expect(self, total: int, nbytes: int) -> None:
        """Say that this rank is about to read or write *nbytes* of the *total* bytes of all ranks."""
        self._scale = total / nbytes if nbytes else 1.0

    def steps(self, data: Bytes, offset: int) -> Iterator[tuple[Bytes, int]]:
        """Yield *data* in steps, each with its offset in the file; the line is written between them."""
        for start in range(0, len(data), PROGRESS_BYTES):
            step = data[start : start + PROGRESS_BYTES]
            yield step, offset + start
            self.add(len(step))

    def add(self, nbytes: int) -> None:
        """Say that this rank has read or written *nbytes* more."""
        self._done_bytes = min(self._done_bytes + nbytes * self._scale, self._total)
        now = time.monotonic()
        if now - self._start_time > PROGRESS_AFTER and now - self._last_shown_time >= PROGRESS_EVERY:
            self._last_shown_time = now
            self._write(self.text(self._done_bytes, now - self._start_time))

    def text(self, nbytes: float, seconds: float) -> str:
        """Return the line."""
        unit, size = unit_of(self._total)
        rate = nbytes / seconds / size if seconds else 0.0
        return f"{self._title}: {nbytes / size:.1f} of {self._total / size:.1f} {unit}, {rate:.1f} {unit}/s"

    def clear(self) -> None:
        """Remove the line, if it was written."""
        if self._width:
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line:{self._width}}" + ("" if line else "\r"))
        sys.stderr.flush()
        self._width = len(line)


class _HasProgress(Protocol):
    progress: Progress | None


@contextmanager
def showing(open_files: _HasProgress, verb: str, path: object, total: int, session: Session) -> Iterator[None]:
    """Let the first rank show on a terminal how many of the *total* bytes of *open_files* are done."""
    if not sys.stderr.isatty() or session.position:
        yield
        return
    open_files.progress = Progress(verb, path, total)
    try:
        yield
    finally:
        open_files.progress.clear()
        open_files.progress = None
