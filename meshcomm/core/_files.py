"""Safe writing of files in folders that other users can write to: which links are followed, names, and permissions.

A stranger is another user of the host. In a folder that he can write to, he may put a link in the path of a file that
meshcomm writes, or make a file with a name that he can guess. So each file that is written is opened here: a new one
has a random name and is created by us, an old one is no link. Links in its path belong to this user, to root, or lie
in a folder that nobody else can write to. Linux protects single calls of `open` in this way (protected_symlinks in
proc_sys_fs(5)), but not a path that was resolved before.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple, TextIO

PRIVATE, PUBLIC = 0o600, 0o666
"""Permissions of new files: for this user only; for all users, as far as the umask allows."""

UNFINISHED_SUFFIX = ".unfinished"
"""The suffix of the names of files that are not complete."""

_MAX_LINKS = 40
"""Links in the path of a file, as in Linux."""


def opened(path: Path, flags: int, mode: int = PUBLIC) -> int:
    """Open a file and return its descriptor; if it is written, the last part of *path* may not be a link."""
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return os.open(path, flags | os.O_CLOEXEC | (os.O_NOFOLLOW if writes else 0), mode)


def temporary_path(path: Path) -> Path:
    """Return a path beside *path*, with a name that nobody can guess, for a file until it is complete."""
    return path.with_name(f".{path.name}.{SystemRandom().getrandbits(64):016x}{UNFINISHED_SUFFIX}")


@contextlib.contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[TextIO]:
    """Return a context with a new text file, which is renamed to *path* at the end. After an error it is removed.

    It has the permissions *mode*, or those of a file of this user that it replaces.
    """
    path = resolved(path.parent) / path.name
    new_path = temporary_path(path)
    try:
        with _errors_naming(path, new_path):
            with open(_new_file(path, new_path, mode), "w", encoding="utf-8") as file:
                yield file
            new_path.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise


def check_can_create(path: Path) -> None:
    """Raise ``OSError`` if no file can be created at *path*."""
    path = resolved(path.parent) / path.name
    new_path = temporary_path(path)
    with _errors_naming(path, new_path):
        os.close(_new_file(path, new_path, PRIVATE))
        new_path.unlink()


def _new_file(path: Path, new_path: Path, mode: int) -> int:
    """Create *new_path*, which will replace *path*, and return its descriptor."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))
    access = own_access(path)
    fd = opened(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if access else mode)
    if access is not None:
        grant(fd, access)
    return fd


@contextlib.contextmanager
def _errors_naming(path: Path, new_path: Path) -> Iterator[None]:
    """Return a context in which errors of the system name *path* instead of *new_path*."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(new_path), new_path):
            error.filename = str(path)
            if error.filename2 is not None:
                del error.filename2
        raise


class Access(NamedTuple):
    """Access to a file or folder: permissions, with setgid for folders only and without setuid, and the group."""

    mode: int
    group: int


def own_access(path: Path) -> Access | None:
    """Return the access to a file or folder of this user; None if it belongs to another user, or does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
        return None
    inherited = stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0  # new files get the group of the folder
    return Access(status.st_mode & (0o777 | inherited), status.st_gid)


def grant(fd: int, access: Access) -> None:
    """Set the *access* to an open file or folder, and let its owner read and write it.

    If it cannot get the group, its own group gets no more permissions than all users.
    """
    status, (mode, group) = os.fstat(fd), access
    if status.st_gid != group:
        try:
            os.chown(fd, -1, group)
        except OSError:
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    if stat.S_ISDIR(status.st_mode):
        os.chmod(fd, mode | stat.S_IRWXU | (status.st_mode & stat.S_ISGID))
    else:
        os.chmod(fd, mode | stat.S_IRUSR | stat.S_IWUSR)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return *path* as `os.path.realpath` does. ``PermissionError`` for a link that a stranger may have made.

    >>> resolved("/proc/self/../version")
    PosixPath('/proc/version')
    """
    folder, links = "/", 0
    names = os.path.abspath(path).split("/")[:0:-1]
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        next_path = os.path.dirname(folder) if name == ".." else os.path.join(folder, name)
        target = _link_target(next_path)
        if target is None:
            folder = next_path
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        folder = "/" if target.startswith("/") else folder
        names += target.split("/")[::-1]
    return Path(folder)


def _link_target(path: str) -> str | None:
    """Return the target of a link; None if *path* is no link. ``PermissionError`` for a link of a stranger."""
    try:
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return None
        if status.st_uid not in (0, os.geteuid()) and _is_shared(os.path.dirname(path), status.st_uid):
            raise PermissionError(
                errno.EACCES,
                f"a link that belongs to {user_name(status.st_uid)}, in a folder that others can write to: nothing is "
                "written through it",
                path,
            )
        return os.readlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_shared(folder: str, owner: int) -> bool:
    """Return whether users other than this one and root can create files in *folder*, with a link of *owner*."""
    status = os.stat(folder)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    if status.st_uid in (0, os.geteuid()):
        return False
    # In a container that does not map root, files of root seem to belong to the overflow user.
    return not (status.st_uid == owner == _overflow_user())


@cache
def _overflow_user() -> int | None:
    """Return the user that stands for all users unknown in this container, if root is one of them; else None."""
    with contextlib.suppress(OSError, ValueError):
        rows = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if not any(outside == 0 for _, outside, _ in rows):
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def user_name(uid: int) -> str:
    """Return the name and number of a user, for a message."""
    from pwd import getpwuid  # here, as few messages need it

    with contextlib.suppress(KeyError):
        return f"{getpwuid(uid).pw_name} (user {uid})"
    return f"user {uid}"
