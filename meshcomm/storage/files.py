"""Files as ranks read and write them. All calls of the operating system that change or read files are made here."""

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

from meshcomm.core._files import ASIDE, PRIVATE, PUBLIC, Access, grant, opened, own_access
from meshcomm.core._tracing import Value
from meshcomm.core._types import Bytes, Indices
from meshcomm.core.failures.watch import watch
from meshcomm.errors import CheckpointError
from meshcomm.storage._runs import read_runs
from meshcomm.storage.stripes import XATTR, unit_of

MAX_CALL_BYTES = 2**30
"""Bytes of one read. Linux takes at most 0x7ffff000; more is done in several calls."""

READ_AHEAD = 2**17
"""Bytes. By default Linux reads so many ahead, maybe no more when it is asked to; so it is asked several times. A
compromise: on one disk it made no difference."""

WRITTEN_AT_ONCE = 2**22
"""Bytes of one write. The disk begins with each one at once, and does not wait until all is written. A compromise, not
measured by itself."""

counts: Counter[str] = Counter()
"""What this process did with files: bytes ``read`` and ``written``, and the calls for it, ``reads`` and ``writes``."""


class File:
    """An open file. Reads and writes name their offset, so that ranks share no position."""

    def __init__(self, path: Path, flags: int, mode: int = PUBLIC) -> None:
        self.path, self.written = path, 0
        self._number = opened(path, flags, mode)

    def write(self, data: Bytes | bytes, offset: int) -> None:
        """Write all of *data* at *offset*. The system may write less than it is given; then the rest follows."""
        done, view = 0, memoryview(data if isinstance(data, bytes) else data.data)
        while done < len(view):
            with _naming(self.path):
                written = os.pwrite(self._number, view[done : done + WRITTEN_AT_ONCE], offset + done)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written", str(self.path))
            if written == WRITTEN_AT_ONCE and _sync_file_range is not None:
                # The disk begins to write, while this rank does something else; `sync` waits for it.
                _sync_file_range(self._number, offset + done, written, _SYNC_FILE_RANGE_WRITE)
            done += written
        self.written += done
        counts["written"] += done
        counts["writes"] += 1

    def read(self, into: Bytes, offset: int) -> None:
        """Fill *into* with the bytes at *offset*; ``CheckpointError`` if the file ends before."""
        done, view = 0, into.data
        while done < len(view):
            with _naming(self.path):
                count = os.preadv(self._number, [view[done : done + MAX_CALL_BYTES]], offset + done)
            if count == 0:
                end = offset + len(view)
                raise CheckpointError(f"{self.path} ends at byte {offset + done}, but its data go to byte {end}")
            done += count
        counts["read"] += done
        counts["reads"] += 1

    def read_runs(self, into: Bytes, offsets: Indices, lengths: Indices) -> None:
        """Fill *into* with runs of bytes, one after the other; ``CheckpointError`` if the file ends before."""
        with _naming(self.path):
            count = read_runs(self._number, offsets, lengths, into)
        if count < len(into):
            end = int((offsets + lengths).max())
            raise CheckpointError(f"{self.path} ends at byte {self.size()}, but its data go to byte {end}")
        counts["read"] += count
        counts["reads"] += len(offsets)

    def is_in_memory(self, offset: int) -> bool:
        """Return whether the system has the byte at *offset* in its memory; False where it does not tell."""
        flag = getattr(os, "RWF_NOWAIT", 0)
        try:
            return bool(flag) and os.preadv(self._number, [bytearray(1)], offset, flag) == 1
        except OSError:  # it would have to wait for the disk, or the file system cannot tell
            return False

    def expect(self, offset: int, size: int) -> None:
        """Tell the system that these bytes will be read soon."""
        with _naming(self.path):
            for begin in range(offset, offset + size, READ_AHEAD):
                length = min(READ_AHEAD, offset + size - begin)
                os.posix_fadvise(self._number, begin, length, os.POSIX_FADV_WILLNEED)

    def sized(self, size: int) -> None:
        """Give the file *size* bytes, on the disk where the file system can: a full disk is an error here."""
        with _naming(self.path):
            if size:
                with _ignoring_errors(errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    _allocate(self._number, size)
            os.ftruncate(self._number, size)

    def ended(self, size: int) -> None:
        """Let the file end after *size* bytes; what is new are zeros."""
        with _naming(self.path):
            os.ftruncate(self._number, size)

    def size(self) -> int:
        """Return the length in bytes."""
        return self.status().st_size

    def stored(self) -> int:
        """Return the bytes that the file has on the disk: a file with holes is longer."""
        status = self.status()
        return min(status.st_size, status.st_blocks * 512)

    def unit(self) -> int:
        """Return the bytes that the file system stores and locks as one, a stripe or a block: `unit_of`."""
        try:
            striping = os.getxattr(self._number, XATTR)
        except OSError:  # it is not Lustre
            striping = b""
        return unit_of(self.status().st_blksize, striping)

    def is_regular(self) -> bool:
        """Return whether this is a file, no folder, pipe or device."""
        try:  # as `_naming`, but the system knows this of an open file: it does not take long
            return stat.S_ISREG(os.fstat(self._number).st_mode)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def take(self, access: Access | None) -> None:
        """Give the file, or folder, the permissions of another one, and those to write it."""
        if access is not None:
            with _naming(self.path), _ignoring_errors(errno.EPERM, errno.EOPNOTSUPP):
                grant(self._number, access)

    def has_a_name(self) -> bool:
        """Return whether nobody has removed the file since it was opened."""
        return self.status().st_nlink > 0

    def is_at(self, path: Path) -> bool:
        """Return whether the file, or folder, has the name *path*."""
        return os.path.samestat(self.status(), path.lstat())

    def status(self) -> os.stat_result:
        """Return what the system knows of the file."""
        with _naming(self.path):
            return os.fstat(self._number)

    def sync(self) -> None:
        """Wait until the data are on the disk."""
        with _naming(self.path):
            os.fsync(self._number)

    def forget(self) -> None:
        """Tell the system that nobody will read the file soon. What is not yet on the disk stays in its cache."""
        with _naming(self.path), _ignoring_errors(errno.EINVAL, errno.ENOSYS):
            os.posix_fadvise(self._number, 0, 0, os.POSIX_FADV_DONTNEED)

    def lock(self, *, shared: bool = False) -> bool:
        """Hold the file until it is closed, or the process ends; return False if another process holds it.

        With *shared* others may hold it so, too.
        """
        try:
            fcntl.flock(self._number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # this file system has no locks
            return True
        return True

    def close(self) -> None:
        """Close the file. What a network file system could not write, it may say only now."""
        number, self._number = self._number, -1
        if number >= 0:
            with _naming(self.path):
                os.close(number)

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_system(name: str, *kinds: type) -> Callable[..., int] | None:
    """Return a call of the system that Python does not have; None where there is none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        function.argtypes = kinds
    return function


# It begins to write a range of a file.
_sync_file_range = _of_system("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2
# Unlike posix_fallocate, it never writes to each block of a file where the file system cannot allocate them.
_fallocate = _of_system("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_renameat2 = _of_system("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


def _allocate(number: int, size: int) -> None:
    """Give an open file *size* bytes on the disk."""
    while _fallocate is not None and _fallocate(number, 0, 0, size):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


class _naming:  # noqa: N801
    """Name the file in errors of the system, which knows its number only. The watchdog lets the call take its time.

    It is a class because calls of the system are many, and a generator takes longer than some of them. Without *path*
    errors stay as they are.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._before = watch.in_file  # a library may be at this file, too
        watch.note_file_io(True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        watch.note_file_io(self._before)
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

    It has the permissions of *like*, if this user has such a file, and never others: who opened it would keep it.
    """
    access = None if like is None else own_access(like)
    file = File(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode if access is None else PRIVATE)
    file.take(access)
    return file


def for_writing(path: Path) -> File:
    """Return the file at *path*, which is there and no link."""
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
    into = np.empty(size, dtype=np.uint8)
    file.read(into, offset)
    return into.tobytes()


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


def take_folder_modes(new: Path, old: Path) -> None:
    """Give *new* and the folders below it the permissions of the folder *old*, if this user has one."""
    access = own_access(old)
    with _ignoring_errors(errno.EPERM, errno.EOPNOTSUPP):
        if access is not None:
            for _, _, _, number in os.fwalk(new):  # which goes through no link
                grant(number, access)


def sync_tree(path: Path, names: Container[str]) -> None:
    """Wait until the names in the folder and all below it are on the disk, and the files there with one of *names*."""
    for root, _, inside in os.walk(path, topdown=False):
        for name in (name for name in inside if name in names):
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
    return any(entry.is_symlink() for entry in (path, *takewhile(lambda above: above != folder, path.parents)))


def below(folder: Path) -> Iterator[Path]:
    """Yield all that is in the folder and below it, but for the folders; no link is followed."""
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries_of:
            for entry in entries_of:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield Path(entry.path)


def odd(path: Path, largest: int | None) -> str:
    """Return, for people, why no library should open a file; nothing for a regular file of at most so many bytes."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if largest is not None and status.st_size > largest:
        return f"has {status.st_size} bytes, more than the {largest} that it may have"
    return ""


def make_folders(path: Path) -> None:
    """Make the folder and those above it, unless they are there."""
    path.mkdir(parents=True, exist_ok=True)


def entries(path: Path) -> list[Path]:
    """Return what is in the folder."""
    return sorted(path.iterdir())


def remove_if_empty(path: Path) -> None:
    """Remove the folder, unless something is in it."""
    with contextlib.suppress(OSError):
        path.rmdir()


def replace(aside: Path, path: Path) -> None:
    """Give the file or folder *aside* the name *path*, in one step, and remove what had that name.

    At no time is there neither: a folder changes names with the old one, where the system can.
    """
    if aside.is_dir() and path.exists():
        _exchange(aside, path)
        sync_folder(path.parent)
        with contextlib.suppress(OSError):  # the next save tries again
            remove(aside)
    else:
        os.replace(aside, path)
    sync_folder(path.parent)


def _exchange(one: Path, other: Path) -> None:
    names = os.fsencode(one), os.fsencode(other)
    if _renameat2 is None or _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno() or errno.ENOSYS
        raise OSError(
            code, f"{os.strerror(code)}: two folders cannot change names here; remove {other} first", str(one)
        )


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        with _naming(path):
            shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def leftovers(path: Path) -> Iterator[Path]:
    """Yield what saves to *path* that were cut off have left beside it: files and folders that no process holds."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}{re.escape(ASIDE)}")
    for entry in entries(path.parent):
        if ours.fullmatch(entry.name) and is_free(entry):
            yield entry


def is_free(path: Path) -> bool:
    """Return whether no process holds the file or folder, see `File.lock`; so it is if there is none."""
    try:
        # A network file system locks only what can be written.
        with File(path, os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_NONBLOCK) as file:
            return file.lock()
    except FileNotFoundError:
        return True
    except OSError:
        return False


_NAME_ASIDE = re.compile(rf"\.([^/]+)\.[0-9a-f]{{16}}{re.escape(ASIDE)}")


def with_final_names(error: Exception) -> Exception:
    """Return *error* with the paths that its user knows: what `aside` names is called by the name that it will get.

    >>> print(with_final_names(OSError(28, "No space left on device", "/d/.a.npy.0123456789abcdef.unfinished")))
    [Errno 28] No space left on device: '/d/a.npy'
    """
    error.args = tuple(_final_name(arg) for arg in error.args)
    if isinstance(error, OSError):
        for name in ("strerror", "filename"):
            if getattr(error, name) is not None:
                setattr(error, name, _final_name(getattr(error, name)))
        if error.filename2 is not None:  # a change of names: now both are alike
            del error.filename2
    return error


def _final_name(text: Value) -> Value:
    return _NAME_ASIDE.sub(r"\1", str(text)) if isinstance(text, str | Path) else text


@contextlib.contextmanager
def final_names() -> Iterator[None]:
    """Give errors the paths that their user knows: `with_final_names`."""
    try:
        yield
    except Exception as error:
        with_final_names(error)
        raise
