"""Changes to a file that a library makes in memory, and that the file then takes at once.

A library such as HDF5 changes a file in many small steps: a process that is killed between two of them leaves a file
that nobody can read. Here it writes to `Changes`, which look like the file with the changes in it. `Changes.apply`
first writes the data behind the old end of the file, which nobody reads yet. Changes before the old end go to a
journal beside the file, and then to the file; if that is cut off, `recover` completes it from the journal.

Other programs may read the file meanwhile. HDF5 locks the files that it reads, and opens no file with an exclusive
lock: we hold one while we write before the old end. A program that has the file open for long does not stop us. So the
lengths of arrays are written last, in `Changes.last`: then all data that they refer to are there.
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
"""Seconds that a save that adds to an HDF5 file waits until nobody reads it; then it continues. A compromise: a loop
of `xarray.open_dataset` closes the file after some milliseconds, a notebook that has it open never does."""

_MAGIC = b"meshcomm journal 1\n"
_MAX_HEAD_LENGTH = 2**26
"""The most bytes of the list of changes in a journal, which has about twenty for each run of bytes."""
_CHECKSUM_SIZE = 4
_STEP_BYTES = 2**24
"""Bytes of a journal that are in memory at once."""
HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of a file of HDF5."""


class Changes:
    """A file of *end* bytes with changes, as a file of Python that can be read and written."""

    def __init__(self, file: File, end: int) -> None:
        self._file, self._old_end, self._size, self._offset = file, end, end, 0
        self._starts: list[int] = []  # offsets of the runs of changed bytes, ascending; none touches the next one
        self._runs: list[bytearray] = []
        self.begun = False  # whether the file has changed before its old end
        self.reserved = 0  # a write of this many bytes, all zero, reserves space that other ranks will write
        self.last: list[tuple[int, int]] = []  # the ranges of bytes (start, stop) that `apply` writes last, in order

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to *offset*, as files of Python do."""
        self._offset = offset + (0, self._offset, self._size)[whence]
        return self._offset

    def tell(self) -> int:
        """Return where the next bytes are read or written."""
        return self._offset

    def read(self, size: int = -1) -> bytes:
        """Return the next *size* bytes."""
        buffer = bytearray(max(0, self._size - self._offset) if size < 0 else size)
        self.readinto(buffer)
        return bytes(buffer)

    def readinto(self, buffer: bytearray) -> int:
        """Fill *buffer* with the next bytes; behind the end they are zeros."""
        view, start, stop = memoryview(buffer).cast("B"), self._offset, self._offset + len(buffer)
        view[:] = bytes(len(view))
        old_size = min(stop, self._old_end) - start
        if old_size > 0:
            self._file.read(np.frombuffer(view[:old_size], np.uint8), start)
        first = max(0, bisect_right(self._starts, start) - 1)
        for run_start, run in zip(self._starts[first:], self._runs[first:], strict=True):
            if run_start >= stop:
                break
            low, high = max(run_start, start), min(run_start + len(run), stop)
            if low < high:
                view[low - start : high - start] = run[low - run_start : high - run_start]
        self._offset = stop
        return len(view)

    def write(self, data: bytes) -> int:
        """Write the next bytes. Zeros behind the old end are not kept: the file has them anyway."""
        array = np.frombuffer(data, np.uint8)
        start, stop = self._offset, self._offset + len(array)
        self._offset, self._size = stop, max(self._size, stop)
        if len(array) == self.reserved and not (array[:PAGE].any() or array[-PAGE:].any()):
            return len(array)
        first = bisect_left(self._starts, start)
        if first and self._starts[first - 1] + len(self._runs[first - 1]) >= start:
            first -= 1
        last = bisect_right(self._starts, stop)
        if first == last:
            if start < self._old_end or array.any():
                self._starts.insert(first, start)
                self._runs.insert(first, bytearray(array))
            return len(array)
        self._join(first, last, start, array)
        return len(array)

    def _join(self, first: int, last: int, start: int, data: Bytes) -> None:
        """Write *data* over the runs *first* to *last* (exclusive), which it touches: they become one run."""
        run_start, run = self._starts[first], self._runs[first]
        if start < run_start:
            run[:0] = bytes(run_start - start)
            run_start = start
        for next_start, next_run in zip(self._starts[first + 1 : last], self._runs[first + 1 : last], strict=True):
            run.extend(bytes(next_start - run_start - len(run)))
            run.extend(next_run)
        run.extend(bytes(max(0, start + len(data) - run_start - len(run))))
        run[start - run_start : start - run_start + len(data)] = data.data
        self._starts[first:last], self._runs[first:last] = [run_start], [run]

    def truncate(self, size: int | None = None) -> int:
        """Let the file end after *size* bytes."""
        self._size = self._offset if size is None else size
        return self._size

    def flush(self) -> None:
        """Do nothing: all goes to the file in `apply`."""

    def _changed_ranges(self, *, appended: bool) -> Iterator[tuple[int, Bytes]]:
        """Yield the offset and the data of each change before the old end; with *appended*, of those behind it."""
        for run_start, run in zip(self._starts, self._runs, strict=True):
            border = min(max(self._old_end - run_start, 0), len(run))
            low, high = (border, len(run)) if appended else (0, border)
            if low < high:
                yield run_start + low, np.frombuffer(run, np.uint8)[low:high]

    def apply(self, journal: File | None) -> None:
        """Write all to the file, and wait until it is on the disk. Without a *journal* nobody needs the old file.

        After an error, the changes before the old end are undone.
        """
        for offset, data in self._changed_ranges(appended=True):
            self._file.write(data, offset)
        if self._file.size() != self._size:
            self._file.ended(self._size)
        changes = self._ordered_changes()
        if journal is not None and changes:
            self._file.sync()
            _write_journal(journal, self._file.status().st_ino, changes)
        if not changes:
            self.begun = True
            self._file.sync()
            return
        old_data = [(offset, files.section(self._file, offset, len(data))) for offset, data in changes]
        self.begun = True
        try:
            _write_changes(self._file, changes)
            self._file.sync()
        except OSError:
            _write_changes(self._file, old_data[::-1])
            self._file.sync()
            self.begun = False
            raise

    def _ordered_changes(self) -> list[tuple[int, Bytes]]:
        """Return the changes before the old end, in the order in which they are written."""
        first_changes: list[tuple[int, Bytes]] = []
        last_changes: list[tuple[int, int, Bytes]] = []
        for offset, data in self._changed_ranges(appended=False):
            begin, end = offset, offset + len(data)
            for (start, stop), number in sorted(zip(self.last, count(), strict=False)):
                low, high = max(start, begin), min(stop, end)
                if low < high:
                    first_changes.append((begin, data[begin - offset : low - offset]))
                    last_changes.append((number, low, data[low - offset : high - offset]))
                    begin = high
            first_changes.append((begin, data[begin - offset :]))
        last_in_order = [(begin, data) for _, begin, data in sorted(last_changes, key=itemgetter(0))]
        return [(begin, data) for begin, data in first_changes + last_in_order if len(data)]


def _write_changes(file: File, changes: Sequence[tuple[int, Bytes | bytes]]) -> None:
    """Write *changes*, offsets with their data, to a file that others may read."""
    with _locked(file):
        for offset, data in changes:
            file.write(data, offset)


@contextmanager
def _locked(file: File) -> Iterator[None]:
    """Hold an exclusive lock of the file, unless others have it open for longer than we wait."""
    deadline = monotonic() + WAIT_FOR_READERS
    while not file.lock() and monotonic() < deadline:
        sleep(0.0005)
    try:
        yield
    finally:
        file.lock(shared=True)


# -- the journal ------------------------------------------------------------------------------------------------------


def journal_of(path: Path) -> Path:
    """Return the path of the journal of a file."""
    return path.with_name(f".{path.name}.journal")


def begin_journal(path: Path) -> File:
    """Return an empty journal for changes to *path*. ``BlockingIOError`` if another save to it is running.

    ``CheckpointError`` if changes were cut off that this user may not complete: see `recover`.
    """
    journal_path = journal_of(path)
    is_new = True
    try:
        journal = files.create(journal_path, mode=PRIVATE)
    except FileExistsError:
        journal, is_new = files.for_writing(journal_path), False
    try:
        if not (journal.lock() and journal.has_a_name()):
            raise BlockingIOError(errno.EAGAIN, "another save to this file goes on", str(path))
        _finish_changes(path, journal)
        owner = journal.status().st_uid
        if not is_new and owner != os.geteuid():  # its owner could change it meanwhile
            raise PermissionError(errno.EACCES, f"it belongs to {user_name(owner)}", str(journal_path))
        journal.ended(0)
    except BaseException:
        journal.close()  # it holds a lock
        raise
    return journal


def end_journal(path: Path, journal: File) -> None:
    """Remove the journal; its changes are in the file, or it has none."""
    with suppress(OSError):
        files.remove(journal_of(path))
    journal.close()


def recover(path: Path) -> None:
    """Complete the changes to *path* that were cut off while they were written, if there are any.

    A journal that another user has made could change any file of the user who reads. So users complete only changes of
    their own journals, to files that they own or share with their group. ``CheckpointError`` says whom the file waits
    for.
    """
    path = Path(os.path.realpath(path))
    journal_path = journal_of(path)
    try:
        status = journal_path.lstat()
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return  # it is not from a save, or the save was cut off before it wrote
        with files.for_reading(journal_path, follow=False) as journal, files.for_reading(path) as file:
            if not journal.lock(shared=True) or not _UnfinishedChanges.read(file, journal):
                return  # a save is running, or was cut off before it changed the file
        with files.for_writing(journal_path) as journal:
            if journal.lock() and journal.has_a_name():
                _finish_changes(path, journal)
                end_journal(path, journal)
    except FileNotFoundError:  # there is no journal, or its save is complete by now
        return
    except OSError as error:
        raise CheckpointError(
            f"{path} waits for {user_name(status.st_uid)}, {_WAITING_TEXT} {journal_path}: {error.strerror}"
        ) from None


_WAITING_TEXT = "whose save to it may have been cut off, and who ends that by opening the file. This is its journal:"


def _finish_changes(path: Path, journal: File) -> None:
    """Write the changes of a complete journal to its file. ``CheckpointError`` unless this user may do so."""
    if not journal.size():
        return
    with files.for_writing(path) as file:
        # Check the open file, not the path: that may soon lead to another file.
        changes = _UnfinishedChanges.read(file, journal)
        if changes is None:
            return
        for open_file, writable_bits in ((journal, 0o022), (file, 0o002)):
            status = open_file.status()
            if status.st_uid != os.geteuid() and (open_file is journal or not status.st_mode & 0o020):
                raise CheckpointError(f"{path} waits for {user_name(status.st_uid)}, {_WAITING_TEXT} {journal.path}")
            if status.st_mode & writable_bits:
                raise CheckpointError(
                    f"{path}: a save to it was cut off, and its end is in {journal.path}. But others can write to "
                    f"{open_file.path}: chmod go-w {open_file.path}, if that is what you saved"
                )
        changes.finish(journal, file)


class _UnfinishedChanges(NamedTuple):
    """Changes to a file of HDF5 that were cut off.

    Their bytes follow one another in the journal, from offset *begin* on. *changes* has the offset in the file and the
    length of each.
    """

    begin: int
    changes: list[tuple[int, int]]

    @classmethod
    def read(cls, file: File, journal: File) -> "_UnfinishedChanges | None":
        """Return the changes to the *file* that the *journal* has.

        None if the journal is not complete, because its save was cut off before the file changed, and if it belongs to
        another file. All its lengths are compared with the sizes of the files before memory is allocated.
        """
        journal_size, file_size, file_inode = journal.size(), file.size(), file.status().st_ino
        is_hdf5 = files.section(file, 0, min(8, file_size)) == HDF5
        head = files.section(journal, 0, min(journal_size, _MAX_HEAD_LENGTH))
        end = head.find(b"\n", len(_MAGIC))
        if not (is_hdf5 and head.startswith(_MAGIC) and end >= 0):
            return None
        try:
            inode, entries = json.loads(head[len(_MAGIC) : end])
            changes = [(int(offset), int(length)) for offset, length in entries]
        except (ValueError, TypeError, RecursionError):
            return None
        is_inside = all(0 <= offset <= offset + length <= file_size for offset, length in changes)
        nbytes = sum(length for _, length in changes)
        if (
            not is_inside
            or nbytes > file_size
            or end + 1 + nbytes + _CHECKSUM_SIZE != journal_size
            or inode != file_inode
        ):
            return None
        crc = 0
        for offset in range(0, journal_size - _CHECKSUM_SIZE, _STEP_BYTES):
            crc = zlib.crc32(
                files.section(journal, offset, min(_STEP_BYTES, journal_size - _CHECKSUM_SIZE - offset)), crc
            )
        if crc.to_bytes(_CHECKSUM_SIZE, "little") != files.section(
            journal, journal_size - _CHECKSUM_SIZE, _CHECKSUM_SIZE
        ):
            return None
        return cls(end + 1, changes)

    def finish(self, journal: File, file: File) -> None:
        """Write the changes to the file."""
        journal_offset = self.begin
        with _locked(file):
            for offset, length in self.changes:
                for step_start in range(0, length, _STEP_BYTES):
                    size = min(_STEP_BYTES, length - step_start)
                    file.write(files.section(journal, journal_offset + step_start, size), offset + step_start)
                journal_offset += length
        file.sync()


def _write_journal(journal: File, inode: int, changes: list[tuple[int, Bytes]]) -> None:
    text = json.dumps([inode, [[offset, len(data)] for offset, data in changes]]).encode() + b"\n"
    if len(_MAGIC) + len(text) > _MAX_HEAD_LENGTH:
        raise CheckpointError(f"{journal.path} would have {len(changes)} changes, more than a journal holds")
    body = _MAGIC + text + b"".join(data.tobytes() for _, data in changes)
    journal.write(body + zlib.crc32(body).to_bytes(4, "little"), 0)
    journal.sync()
    files.sync_folder(journal.path.parent)
