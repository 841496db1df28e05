"""Changes to a file that a library makes in memory, and that the file then takes at once.

A library such as HDF5 changes a file in many small steps: a process that is killed between two of them leaves a file
that nobody can read. Here it writes to `Changes`, which look like the file with the changes in it. `Changes.apply`
first writes what is behind the end that the file had, which nobody reads yet. What changes before that end is in a
journal beside the file before it is in the file; `recover` ends what was cut off from there.

Other programs may read the file meanwhile. HDF5 locks what it reads: it opens no file that we hold for us alone, which
we do while we write before the old end. A program that has the file open for long does not stop us. So what says how
long arrays are comes last, in `Changes.last`: then all that they refer to is there.
"""

import errno
import json
import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from meshcomm.core._tuning import PAGE, WAIT_FOR_READERS
from meshcomm.core._types import Bytes
from meshcomm.storage import files
from meshcomm.storage.files import File

_KIND = b"meshcomm journal 1\n"


class Changes:
    """A file of *end* bytes with changes, as a file of Python that can be read and written."""

    def __init__(self, file: File, end: int) -> None:
        self._file, self._end, self._size, self._at = file, end, end, 0
        self._starts: list[int] = []  # of runs of bytes that have changed, ascending; none touches the next one
        self._runs: list[bytearray] = []
        self.begun = False  # whether the file has changed before its old end
        self.reserved = 0  # what has as many bytes, all zero, is free space for what others write
        self.last: list[tuple[int, int]] = []  # the bytes that `apply` writes last, in turn: where they begin, and end

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to *offset*, as files of Python do."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return where the next bytes are read or written."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next *size* bytes."""
        into = bytearray(max(0, self._size - self._at) if size < 0 else size)
        self.readinto(into)
        return bytes(into)

    def readinto(self, into: bytearray) -> int:
        """Fill *into* with the next bytes; behind the end they are zeros."""
        view, start, stop = memoryview(into).cast("B"), self._at, self._at + len(into)
        view[:] = bytes(len(view))
        old = min(stop, self._end) - start
        if old > 0:
            self._file.read(np.frombuffer(view[:old], np.uint8), start)
        first = max(0, bisect_right(self._starts, start) - 1)
        for begin, run in zip(self._starts[first:], self._runs[first:], strict=True):
            if begin >= stop:
                break
            low, high = max(begin, start), min(begin + len(run), stop)
            if low < high:
                view[low - start : high - start] = run[low - begin : high - begin]
        self._at = stop
        return len(view)

    def write(self, data: bytes) -> int:
        """Write the next bytes. Zeros behind the end that the file had are there by themselves: they are not kept."""
        found = np.frombuffer(data, np.uint8)
        start, stop = self._at, self._at + len(found)
        self._at, self._size = stop, max(self._size, stop)
        if len(found) == self.reserved and not (found[:PAGE].any() or found[-PAGE:].any()):
            return len(found)
        first = bisect_left(self._starts, start)
        if first and self._starts[first - 1] + len(self._runs[first - 1]) >= start:
            first -= 1
        last = bisect_right(self._starts, stop)
        if first == last:
            if start < self._end or found.any():
                self._starts.insert(first, start)
                self._runs.insert(first, bytearray(found))
            return len(found)
        self._join(first, last, start, found)
        return len(found)

    def _join(self, first: int, last: int, start: int, data: Bytes) -> None:
        """Write *data* over runs *first* to *last*, which it touches: they become one."""
        begin, run = self._starts[first], self._runs[first]
        if start < begin:
            run[:0] = bytes(begin - start)
            begin = start
        for other, more in zip(self._starts[first + 1 : last], self._runs[first + 1 : last], strict=True):
            run.extend(bytes(other - begin - len(run)))
            run.extend(more)
        run.extend(bytes(max(0, start + len(data) - begin - len(run))))
        run[start - begin : start - begin + len(data)] = data.data
        self._starts[first:last], self._runs[first:last] = [begin], [run]

    def truncate(self, size: int | None = None) -> int:
        """Let the file end after *size* bytes."""
        self._size = self._at if size is None else size
        return self._size

    def flush(self) -> None:
        """Do nothing: all goes to the file in `apply`."""

    def _changed(self, *, new: bool) -> Iterator[tuple[int, Bytes]]:
        """Yield what has changed, and where it begins: before the old end, or with *new* behind it."""
        for begin, run in zip(self._starts, self._runs, strict=True):
            border = min(max(self._end - begin, 0), len(run))
            low, high = (border, len(run)) if new else (0, border)
            if low < high:
                yield begin + low, np.frombuffer(run, np.uint8)[low:high]

    def apply(self, journal: File | None) -> None:
        """Write all to the file, and wait until it is on the disk. Without a *journal* nobody needs the old file.

        What an error cuts off is undone.
        """
        for offset, data in self._changed(new=True):
            self._file.write(data, offset)
        if self._file.size() != self._size:
            self._file.ended(self._size)
        changes = self._in_order()
        if journal is not None and changes:
            self._file.sync()
            _write(journal, self._file.number(), changes)
        if not changes:
            self.begun = True
            self._file.sync()
            return
        had = [(offset, files.as_bytes_of(files.section(self._file, offset, len(data)))) for offset, data in changes]
        self.begun = True
        try:
            _put(self._file, changes)
            self._file.sync()
        except OSError:
            _put(self._file, had[::-1])
            self._file.sync()
            self.begun = False
            raise

    def _in_order(self) -> list[tuple[int, Bytes]]:
        """Return what has changed before the old end, in the order in which it is written."""
        first: list[tuple[int, Bytes]] = []
        last: list[tuple[int, int, Bytes]] = []
        for offset, data in self._changed(new=False):
            at, end = offset, offset + len(data)
            for (start, stop), number in sorted(zip(self.last, count(), strict=False)):
                low, high = max(start, at), min(stop, end)
                if low < high:
                    first.append((at, data[at - offset : low - offset]))
                    last.append((number, low, data[low - offset : high - offset]))
                    at = high
            first.append((at, data[at - offset :]))
        in_turn = [(at, data) for _, at, data in sorted(last, key=itemgetter(0))]
        return [(at, data) for at, data in first + in_turn if len(data)]


def _put(file: File, changes: list[tuple[int, Bytes]]) -> None:
    """Write *changes* to a file that others may read."""
    with _alone(file):
        for offset, data in changes:
            file.write(data, offset)


@contextmanager
def _alone(file: File) -> Iterator[None]:
    """Hold the file alone, unless others have it open for longer than we wait."""
    end = monotonic() + WAIT_FOR_READERS
    while not file.lock() and monotonic() < end:
        sleep(0.0005)
    try:
        yield
    finally:
        file.lock(shared=True)


# -- the journal ------------------------------------------------------------------------------------------------------


def journal_of(path: Path) -> Path:
    """Return the name of the journal of a file."""
    return path.with_name(f".{path.name}.journal")


def begin_journal(path: Path) -> File:
    """Return the journal for changes to *path*, empty. ``BlockingIOError`` if another save to it goes on."""
    name = journal_of(path)
    try:
        found = files.create(name)
    except FileExistsError:
        found = files.for_writing(name)
    if not (found.lock() and found.has_a_name()):
        found.close()
        raise BlockingIOError(errno.EAGAIN, "another save to this file goes on", str(path))
    try:
        _finish(path, found)
        found.ended(0)
    except BaseException:
        found.close()  # it holds a lock
        raise
    return found


def end_journal(path: Path, journal: File) -> None:
    """Remove the journal: its changes are in the file, or it has none."""
    with suppress(OSError):
        files.remove(journal_of(path))
    journal.close()


def recover(path: Path) -> None:
    """End the changes to *path* that were cut off while they were written, if there are any."""
    name = journal_of(path)
    if not name.exists():
        return
    try:
        found = files.for_writing(name)
    except FileNotFoundError:  # its save has come to its end
        return
    try:
        if found.lock() and found.has_a_name():
            _finish(path, found)
            end_journal(path, found)
    finally:
        found.close()


def _write(journal: File, number: int, changes: list[tuple[int, Bytes]]) -> None:
    text = json.dumps([number, [[offset, len(data)] for offset, data in changes]]).encode() + b"\n"
    body = _KIND + text + b"".join(data.tobytes() for _, data in changes)
    journal.write(files.as_bytes_of(body + zlib.crc32(body).to_bytes(4, "little")), 0)
    journal.sync()
    files.sync_folder(journal.path.parent)


def _finish(path: Path, journal: File) -> None:
    """Write what a complete journal has to its file. One that is not complete was cut off before the file changed."""
    size = journal.size()
    text = files.section(journal, 0, size)
    if not text.startswith(_KIND) or zlib.crc32(text[:-4]).to_bytes(4, "little") != text[-4:]:
        return
    head = text.index(b"\n", len(_KIND))
    number, changes = json.loads(text[len(_KIND) : head])
    at = head + 1
    with files.for_writing(path) as file:
        if file.number() != number:
            return  # another file has the name now
        found = []
        for offset, length in changes:
            found.append((offset, files.as_bytes_of(text[at : at + length])))
            at += length
        _put(file, found)
        file.sync()
