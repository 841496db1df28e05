"""Files that ranks read and write. All calls of the operating system that change or read files are made here."""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Container, Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np

from meshcomm.core._files import PRIVATE, PUBLIC, UNFINISHED_SUFFIX, Access, grant, opened, own_access
from meshcomm.core._tracing import Value
from meshcomm.core._types import Bytes, Indices
from meshcomm.core.failures.watch import watch
from meshcomm.errors import CheckpointError
from meshcomm.storage._runs import read_runs
from meshcomm.storage.stripes import XATTR, unit_of

MAX_CALL_BYTES = 2**30
"""The most bytes of one read. Linux takes at most 0x7ffff000; more bytes take several calls."""

READ_AHEAD = 2**17
"""Bytes that Linux reads ahead by default. A request for more may be cut to this size, so there are several requests.
A compromise: on one disk it made no difference."""

WRITTEN_AT_ONCE = 2**22
"""The most bytes of one write. The disk begins with each write at once, and does not wait until all is written. A
compromise, not measured by itself."""

counts: Counter[str] = Counter()
"""Counts of this process: bytes ``read`` and ``written``, and the calls for it, ``reads`` and ``writes``."""


class File:
    """An open file. Reads and writes have an offset as argument, so that ranks share no file position."""

    def __init__(self, path: Path, flags: int, mode: int = PUBLIC) -> None:
        self.path, self.written = path, 0
        self._descriptor = opened(path, flags, mode)

    def write(self, data: Bytes | bytes, offset: int) -> None:
        """Write all of *data* at *offset*. The system may write only some of it; then the rest follows."""
        total, view = 0, memoryview(data if isinstance(data, bytes) else data.data)
        while total < len(view):
            with _naming(self.path):
                count = os.pwrite(self._descriptor, view[total : total + WRITTEN_AT_ONCE], offset + total)
            if count == 0:
                raise OSError(errno.EIO, "nothing was written", str(self.path))
            if count == WRITTEN_AT_ONCE and _sync_file_range is not None:
                # The disk begins to write, while this rank does something else; `sync` waits for it.
                _sync_file_range(self._descriptor, offset + total, count, _SYNC_FILE_RANGE_WRITE)
            total += count
        self.written += total
        counts["written"] += total
        counts["writes"] += 1

    def read(self, buffer: Bytes, offset: int) -> None:
        """Fill *buffer* with the bytes at *offset*; ``CheckpointError`` if the file ends before."""
        total, view = 0, buffer.data
        while total < len(view):
            with _naming(self.path):
                count = os.preadv(self._descriptor, [view[total : total + MAX_CALL_BYTES]], offset + total)
            if count == 0:
                end = offset + len(view)
                raise CheckpointError(f"{self.path} ends at byte {offset + total}, but its data go to byte {end}")
            total += count
        counts["read"] += total
        counts["reads"] += 1

    def read_runs(self, buffer: Bytes, offsets: Indices, lengths: Indices) -> None:
        """Fill *buffer* with runs of bytes, one after the other; ``CheckpointError`` if the file ends before."""
        with _naming(self.path):
            count = read_runs(self._descriptor, offsets, lengths, buffer)
        if count < len(buffer):
            end = int((offsets + lengths).max())
            raise CheckpointError(f"{self.path} ends at byte {self.size()}, but its data go to byte {end}")
        counts["read"] += count
        counts["reads"] += len(offsets)

    def is_in_memory(self, offset: int) -> bool:
        """Return whether the system has the byte at *offset* in its memory; False where it does not tell."""
        flag = getattr(os, "RWF_NOWAIT", 0)
        try:
            return bool(flag) and os.preadv(self._descriptor, [bytearray(1)], offset, flag) == 1
        except OSError:  # it would have to wait for the disk, or the file system cannot tell
            return False

    def expect(self, offset: int, size: int) -> None:
        """Tell the system that these bytes will be read soon."""
        with _naming(self.path):
            for begin in range(offset, offset + size, READ_AHEAD):
                length = min(READ_AHEAD, offset + size - begin)
                os.posix_fadvise(self._descriptor, begin, length, os.POSIX_FADV_WILLNEED)

    def sized(self, size: int) -> None:
        """Give the file *size* bytes, on the disk where the file system can: a full disk is an error here."""
        with _naming(self.path):
            if size:
                with _ignoring_errors(errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    _allocate(self._descriptor, size)
            os.ftruncate(self._descriptor, size)

    def ended(self, size: int) -> None:
        """Let the file end after *size* bytes; new bytes are zeros."""
        with _naming(self.path):
            os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Return the length in bytes."""
        return self.status().st_size

    def stored(self) -> int:
        """Return the number of bytes that are allocated on the disk: less than the size if the file has holes."""
        status = self.status()
        return min(status.st_size, status.st_blocks * 512)

    def unit(self) -> int:
        """Return the size in bytes of the unit that the file system stores and locks: `unit_of`."""
        try:
            striping = os.getxattr(self._descriptor, XATTR)
        except OSError:  # it is not Lustre
            striping = b""
        return unit_of(self.status().st_blksize, striping)

    def is_regular(self) -> bool:
        """Return whether this is a file, no folder, pipe or device."""
        try:  # as `_naming`, but the watchdog need not know: fstat is fast
            return stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def take(self, access: Access | None) -> None:
        """Give the file, or folder, the permissions *access* of another one, and permission to write it."""
        if access is not None:
            with _naming(self.path), _ignoring_errors(errno.EPERM, errno.EOPNOTSUPP):
                grant(self._descriptor, access)

    def has_a_name(self) -> bool:
        """Return whether nobody has removed the file since it was opened."""
        return self.status().st_nlink > 0

    def is_at(self, path: Path) -> bool:
        """Return whether the file, or folder, has the name *path*."""
        return os.path.samestat(self.status(), path.lstat())

    def status(self) -> os.stat_result:
        """Return the result of ``fstat``."""
        with _naming(self.path):
            return os.fstat(self._descriptor)

    def sync(self) -> None:
        """Wait until the data are on the disk."""
        with _naming(self.path):
            os.fsync(self._descriptor)

    def forget(self) -> None:
        """Tell the system that nobody will read the file soon. Data that are not yet on the disk stay in its cache."""
        with _naming(self.path), _ignoring_errors(errno.EINVAL, errno.ENOSYS):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def lock(self, *, shared: bool = False) -> bool:
        """Lock the file until it is closed, or the process ends; return False if another process holds a lock.

        With *shared* other processes may hold shared locks, too.
        """
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            return True
        return True

    def close(self) -> None:
        """Close the file. A network file system may report only now that it could not write some data."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _naming(self.path):
                os.close(descriptor)

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _system_function(name: str, *argument_types: type) -> Callable[..., int] | None:
    """Return a function of the C library that Python does not have; None if this system has none of this name."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = argument_types
    return function


# It begins to write a range of a file.
_sync_file_range = _system_function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2
# Unlike posix_fallocate, it never writes to each block of a file where the file system cannot allocate them.
_fallocate = _system_function("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_renameat2 = _system_function("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


def _allocate(descriptor: int, size: int) -> None:
    """Give an open file *size* bytes on the disk."""
    while _fallocate is not None and _fallocate(descriptor, 0, 0, size):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


class _naming:  # noqa: N801
    """Add the path of the file to errors of the system, and tell the watchdog that the call may take long.

    It is a class because calls of the system are many, and a generator takes longer than some of them. Without *path*
    errors are unchanged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._was_in_file = watch.in_file  # true if a library that reads or writes a file makes this call
        watch.note_file_io(True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        watch.note_file_io(self._was_in_file)
        if isinstance(error, OSError) and self._path is not None:
            error.filename = error.filename or str(self._path)


def at_files() -> contextlib.AbstractContextManager[None]:
    """Tell the watchdog that this rank reads or writes a file, which may take long."""
    return _naming()


@contextlib.contextmanager
def _ignoring_errors(*codes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise


def create(path: Path, like: Path | None = None, mode: int = PUBLIC) -> File:
    """Return a new file for reading and writing; ``FileExistsError`` if there is one.

    It has the permissions of *like*, if this user has such a file, from the start: another user who once opened the
    file could keep it open.
    """
    access = None if like is None else own_access(like)
    file = File(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode if access is None else PRIVATE)
    file.take(access)
    return file


def for_writing(path: Path) -> File:
    """Return the existing file at *path*, which is no link."""
    return File(path, os.O_RDWR)


def for_reading(path: Path, *, follow: bool = True) -> File:
    """Return the file at *path*; ``CheckpointError`` unless it is a regular file. Links are followed if *follow*."""
    file = File(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))  # a pipe would wait for a writer
    if not file.is_regular():
        file.close()
        raise CheckpointError(f"{path} is no regular file")
    return file


def put(path: Path, data: bytes, like: Path | None = None, *, syncs: bool = True) -> None:
    """Write *data* to a new file, on the disk when this returns. It has the permissions of *like*, if there is one.

    Without *syncs*, `sync_tree` of a folder above waits for the disk: for many files that takes a third of the time.
    """
    with create(path, like) as file:
        file.write(data, 0)
        if syncs:
            file.sync()


def whole(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most *limit* bytes; ``CheckpointError`` if it is longer."""
    with for_reading(path) as file:
        size = file.size()
        if size > limit:
            raise CheckpointError(f"{path} has {size} bytes; a file of this kind has at most {limit}")
        return section(file, 0, size)


def section(file: File, offset: int, size: int) -> bytes:
    """Return *size* bytes of *file* from *offset* on."""
    buffer = np.empty(size, dtype=np.uint8)
    file.read(buffer, offset)
    return buffer.tobytes()


def identity(path: Path, *, opens: bool = False) -> tuple[int, int, int]:
    """Return the identity of a file: its number, its size, and the time of its last change.

    It differs from that of another file with the same name, and from that of the same file after a change. The number
    of the device is not in it, as that differs between hosts. With *opens* a network file system asks its server.
    """
    if opens:
        with File(path, os.O_RDONLY | os.O_NONBLOCK) as file:
            status = file.status()
    else:
        status = os.stat(path)
    return status.st_ino, status.st_size, status.st_ctime_ns


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder are on the disk."""
    with _ignoring_errors(errno.EACCES, errno.EBADF, errno.EINVAL), File(path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        folder.sync()  # some file systems cannot


def take_folder_modes(new_folder: Path, old_folder: Path) -> None:
    """Give *new_folder* and the folders below it the permissions of *old_folder*, if this user has such a folder."""
    access = own_access(old_folder)
    with _ignoring_errors(errno.EPERM, errno.EOPNOTSUPP), _naming(new_folder):
        if access is not None:
            for _, _, _, descriptor in os.fwalk(new_folder):  # it follows no links
                grant(descriptor, access)


def sync_tree(path: Path, names: Container[str]) -> None:
    """Wait until the names in the folder and all below it are on the disk, and the files there with one of *names*."""
    for root, _, file_names in os.walk(path, topdown=False):
        for name in (name for name in file_names if name in names):
            with for_writing(Path(root, name)) as file:
                file.sync()
        sync_folder(Path(root))


def make_folder(path: Path, mode: int = 0o777) -> bool:
    """Make the folder, unless it is there; return whether it is new. ``FileNotFoundError`` without its parent."""
    try:
        path.mkdir(mode)
    except FileExistsError:
        if path.is_dir():
            return False
        raise
    sync_folder(path.parent)
    return True


def is_below_link(path: Path, folder: Path) -> bool:
    """Return whether *path* is a symbolic link, or is below one that is in the *folder*."""
    return any(entry.is_symlink() for entry in (path, *takewhile(lambda parent: parent != folder, path.parents)))


def below(folder: Path) -> Iterator[Path]:
    """Yield the files in the folder and below it; no link is followed."""
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as scan:
            for entry in scan:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield Path(entry.path)


def problem_with(path: Path, max_bytes: int | None) -> str:
    """Return a text that says why no library should open a file; "" for a regular file of at most *max_bytes*."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if max_bytes is not None and status.st_size > max_bytes:
        return f"has {status.st_size} bytes, more than the {max_bytes} that it may have"
    return ""


def make_folders(path: Path) -> None:
    """Make the folder and those above it, unless they are there."""
    path.mkdir(parents=True, exist_ok=True)


def entries(path: Path) -> list[Path]:
    """Return the paths in the folder."""
    return sorted(path.iterdir())


def remove_if_empty(path: Path) -> None:
    """Remove the folder, unless something is in it."""
    with contextlib.suppress(OSError):
        path.rmdir()


def replace(temporary_path: Path, path: Path) -> None:
    """Rename the file or folder *temporary_path* to *path*, in one step, and remove the old one with that name.

    At any time there is one with that name: two folders exchange their names, where the system can.
    """
    if temporary_path.is_dir() and path.exists():
        _exchange(temporary_path, path)
        sync_folder(path.parent)
        with contextlib.suppress(OSError):  # the next save tries again
            remove(temporary_path)
    else:
        os.replace(temporary_path, path)
    sync_folder(path.parent)


def _exchange(path: Path, other_path: Path) -> None:
    names = os.fsencode(path), os.fsencode(other_path)
    if _renameat2 is None or _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno() or errno.ENOSYS
        raise OSError(
            code, f"{os.strerror(code)}: two folders cannot change names here; remove {other_path} first", str(path)
        )


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        with _naming(path):
            shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def leftovers(path: Path) -> Iterator[Path]:
    """Yield the files and folders that unfinished saves to *path* have left beside it, and that no process holds."""
    name_pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}{re.escape(UNFINISHED_SUFFIX)}")
    for entry in entries(path.parent):
        if name_pattern.fullmatch(entry.name) and is_free(entry):
            yield entry


def is_free(path: Path) -> bool:
    """Return whether no process holds the file or folder, see `File.lock`; True if it does not exist."""
    try:
        # A network file system locks only files that are open for writing.
        with File(path, os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_NONBLOCK) as file:
            return file.lock()
    except FileNotFoundError:
        return True
    except OSError:
        return False


_TEMPORARY_NAME = re.compile(rf"\.([^/]+)\.[0-9a-f]{{16}}{re.escape(UNFINISHED_SUFFIX)}")


def with_final_names(error: Exception) -> Exception:
    """Return *error* with the paths that its user knows: temporary names are replaced by the final ones.

    >>> print(with_final_names(OSError(28, "No space left on device", "/d/.a.npy.0123456789abcdef.unfinished")))
    [Errno 28] No space left on device: '/d/a.npy'
    """
    error.args = tuple(_final_name(arg) for arg in error.args)
    if isinstance(error, OSError):
        for name in ("strerror", "filename"):
            if getattr(error, name) is not None:
                setattr(error, name, _final_name(getattr(error, name)))
        if error.filename2 is not None:  # an error of a rename: now both names are equal
            del error.filename2
    return error


def _final_name(text: Value) -> Value:
    return _TEMPORARY_NAME.sub(r"\1", str(text)) if isinstance(text, str | Path) else text


@contextlib.contextmanager
def final_names() -> Iterator[None]:
    """Replace temporary paths in errors by the final ones: `with_final_names`."""
    try:
        yield
    except Exception as error:
        with_final_names(error)
        raise
