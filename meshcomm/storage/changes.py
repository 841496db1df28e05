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
import stat
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import numpy as np

from meshcomm.core._files import PRIVATE, user_name
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import Bytes
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.files import File

WAIT_FOR_READERS = 0.2
"""Seconds. So long a save that adds to an HDF5 file waits until nobody reads it; then it goes on. A compromise: a loop
of `xarray.open_dataset` leaves it alone after some milliseconds, a notebook that has it open never does."""

_KIND = b"meshcomm journal 1\n"
_MAX_HEAD_LENGTH = 2**26
"""Bytes of the list of changes in a journal: some twenty for each run of bytes."""
_SUM = 4
_STEP = 2**24
"""Bytes of a journal that are in memory at once."""
HDF5 = b"\x89HDF\r\n\x1a\n"
"""How a file of HDF5 begins."""


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
        array = np.frombuffer(data, np.uint8)
        start, stop = self._at, self._at + len(array)
        self._at, self._size = stop, max(self._size, stop)
        if len(array) == self.reserved and not (array[:PAGE].any() or array[-PAGE:].any()):
            return len(array)
        first = bisect_left(self._starts, start)
        if first and self._starts[first - 1] + len(self._runs[first - 1]) >= start:
            first -= 1
        last = bisect_right(self._starts, stop)
        if first == last:
            if start < self._end or array.any():
                self._starts.insert(first, start)
                self._runs.insert(first, bytearray(array))
            return len(array)
        self._join(first, last, start, array)
        return len(array)

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
            _write(journal, self._file.status().st_ino, changes)
        if not changes:
            self.begun = True
            self._file.sync()
            return
        had = [(offset, files.section(self._file, offset, len(data))) for offset, data in changes]
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


def _put(file: File, changes: Sequence[tuple[int, Bytes | bytes]]) -> None:
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
    """Return the journal for changes to *path*, empty. ``BlockingIOError`` if another save to it goes on.

    ``CheckpointError`` if changes were cut off that this user may not end: see `recover`.
    """
    name = journal_of(path)
    is_new = True
    try:
        journal = files.create(name, mode=PRIVATE)
    except FileExistsError:
        journal, is_new = files.for_writing(name), False
    try:
        if not (journal.lock() and journal.has_a_name()):
            raise BlockingIOError(errno.EAGAIN, "another save to this file goes on", str(path))
        _finish(path, journal)
        owner = journal.status().st_uid
        if not is_new and owner != os.geteuid():  # its owner could change it meanwhile
            raise PermissionError(errno.EACCES, f"it belongs to {user_name(owner)}", str(name))
        journal.ended(0)
    except BaseException:
        journal.close()  # it holds a lock
        raise
    return journal


def end_journal(path: Path, journal: File) -> None:
    """Remove the journal: its changes are in the file, or it has none."""
    with suppress(OSError):
        files.remove(journal_of(path))
    journal.close()


def recover(path: Path) -> None:
    """End the changes to *path* that were cut off while they were written, if there are any.

    A journal that a stranger has made could change any file of whoever reads: so a user ends only changes of a journal
    of his own, to a file that he owns or shares with its group. ``CheckpointError`` says whose file waits for whom.
    """
    path = Path(os.path.realpath(path))
    name = journal_of(path)
    try:
        status = name.lstat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return  # no save has left it, or it was cut off before it wrote
        with files.for_reading(name, follow=False) as journal, files.for_reading(path) as file:
            if not journal.lock(shared=True) or not _UnfinishedChanges.read(file, journal):
                return  # a save goes on, or has not come to the file
        with files.for_writing(name) as journal:
            if journal.lock() and journal.has_a_name():
                _finish(path, journal)
                end_journal(path, journal)
    except FileNotFoundError:  # there is none, or its save has come to its end
        return
    except OSError as error:
        raise CheckpointError(
            f"{path} waits for {user_name(status.st_uid)}, {_WHY} {name}: {error.strerror}"
        ) from None


_WHY = "whose save to it may have been cut off, and who ends that by opening the file. This is its journal:"


def _finish(path: Path, journal: File) -> None:
    """Write to the file what its journal has, if that is complete. ``CheckpointError`` unless this user may do so."""
    if not journal.size():
        return
    with files.for_writing(path) as file:
        # Of the file that is open: the path may lead to another one soon.
        changes = _UnfinishedChanges.read(file, journal)
        if changes is None:
            return
        for handle, writers in ((journal, 0o022), (file, 0o002)):
            status = handle.status()
            if status.st_uid != os.geteuid() and (handle is journal or not status.st_mode & 0o020):
                raise CheckpointError(f"{path} waits for {user_name(status.st_uid)}, {_WHY} {journal.path}")
            if status.st_mode & writers:
                raise CheckpointError(
                    f"{path}: a save to it was cut off, and its end is in {journal.path}. But others can write to "
                    f"{handle.path}: chmod go-w {handle.path}, if that is what you saved"
                )
        changes.finish(journal, file)


class _UnfinishedChanges(NamedTuple):
    """Changes to a file of HDF5 that were cut off: where their bytes begin in the journal, and where each goes."""

    begin: int
    changes: list[tuple[int, int]]

    @classmethod
    def read(cls, file: File, journal: File) -> "_UnfinishedChanges | None":
        """Return the changes to the *file* that the *journal* has.

        None if it is not complete, as its save was cut off before the file changed, and if it belongs to another file.
        All that it says is compared with the bytes that are there, before memory is asked for.
        """
        size, limit, number = journal.size(), file.size(), file.status().st_ino
        is_hdf5 = files.section(file, 0, min(8, limit)) == HDF5
        head = files.section(journal, 0, min(size, _MAX_HEAD_LENGTH))
        end = head.find(b"\n", len(_KIND))
        if not (is_hdf5 and head.startswith(_KIND) and end >= 0):
            return None
        try:
            inode, entries = json.loads(head[len(_KIND) : end])
            changes = [(int(offset), int(length)) for offset, length in entries]
        except (ValueError, TypeError, RecursionError):
            return None
        inside = all(0 <= offset <= offset + length <= limit for offset, length in changes)
        nbytes = sum(length for _, length in changes)
        if not inside or nbytes > limit or end + 1 + nbytes + _SUM != size or inode != number:
            return None
        crc = 0
        for at in range(0, size - _SUM, _STEP):
            crc = zlib.crc32(files.section(journal, at, min(_STEP, size - _SUM - at)), crc)
        if crc.to_bytes(_SUM, "little") != files.section(journal, size - _SUM, _SUM):
            return None
        return cls(end + 1, changes)

    def finish(self, journal: File, file: File) -> None:
        """Write the changes to the file."""
        at = self.begin
        with _alone(file):
            for offset, length in self.changes:
                for done in range(0, length, _STEP):
                    step = min(_STEP, length - done)
                    file.write(files.section(journal, at + done, step), offset + done)
                at += length
        file.sync()


def _write(journal: File, number: int, changes: list[tuple[int, Bytes]]) -> None:
    text = json.dumps([number, [[offset, len(data)] for offset, data in changes]]).encode() + b"\n"
    if len(_KIND) + len(text) > _MAX_HEAD_LENGTH:
        raise CheckpointError(f"{journal.path} would have {len(changes)} changes, more than a journal holds")
    body = _KIND + text + b"".join(data.tobytes() for _, data in changes)
    journal.write(body + zlib.crc32(body).to_bytes(4, "little"), 0)
    journal.sync()
    files.sync_folder(journal.path.parent)
