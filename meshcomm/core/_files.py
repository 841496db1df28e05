"""How new files come to disks that other users write to as well: which links are followed, names, and permissions.

A stranger is another user of the host. In a folder that he can write to, he may put a link in the way of a file that
we write, or make a file with a name that he can guess. So each file that is written is opened here: a new one has a
random name and is made by us, an old one is no link. Links on the way to it belong to this user, to root, or lie in a
folder that nobody else can write to. Linux protects single calls of `open` in such a way (protected_symlinks in
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
"""Permissions of new files: for this user only, and those that the umask leaves."""

ASIDE = ".unfinished"
"""How the names end of files that are not complete."""

_MAX_LINKS = 40
"""Links on the way to a file, as in Linux."""


def opened(path: Path, flags: int, mode: int = PUBLIC) -> int:
    """Return the number of an opened file; of what is written, the last part of *path* may not be a link."""
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    return os.open(path, flags | os.O_CLOEXEC | (os.O_NOFOLLOW if writes else 0), mode)


def temporary_path(path: Path) -> Path:
    """Return a new name, which nobody can guess, for what is written beside *path* until it is complete."""
    return path.with_name(f".{path.name}.{SystemRandom().getrandbits(64):016x}{ASIDE}")


@contextlib.contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[TextIO]:
    """Give a new text file that gets the name *path* when it is complete. After an error it is removed.

    It has the permissions *mode*, or those of a file of this user that it replaces.
    """
    path = resolved(path.parent) / path.name
    new = temporary_path(path)
    try:
        with _errors_naming(path, new):
            with open(_new_file(path, new, mode), "w", encoding="utf-8") as file:
                yield file
            new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def check_can_create(path: Path) -> None:
    """Raise ``OSError`` if no file can be made for the name *path*."""
    path = resolved(path.parent) / path.name
    new = temporary_path(path)
    with _errors_naming(path, new):
        os.close(_new_file(path, new, PRIVATE))
        new.unlink()


def _new_file(path: Path, new: Path, mode: int) -> int:
    """Return the number of the new file *new*, which is to replace *path*."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe, and no file", str(path))
    access = own_access(path)
    number = opened(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if access else mode)
    if access is not None:
        grant(number, access)
    return number


@contextlib.contextmanager
def _errors_naming(path: Path, new: Path) -> Iterator[None]:
    """Name *path* in errors of the system, and not the file that is to become it."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(new), new):
            error.filename = str(path)
            if error.filename2 is not None:
                del error.filename2
        raise


class Access(NamedTuple):
    """Who may do what with a file or folder: permissions without setuid and its kin, and the group."""

    mode: int
    group: int


def own_access(path: Path) -> Access | None:
    """Return who may do what with a file or folder of this user; None for another one's, and if nothing is there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if status.st_uid != os.geteuid() or stat.S_ISLNK(status.st_mode):
        return None
    inherits = stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0  # new files get the group of the folder
    return Access(status.st_mode & (0o777 | inherits), status.st_gid)


def grant(number: int, access: Access) -> None:
    """Give an open file or folder the permissions of another one, and those to write it.

    Where it cannot have the group, its own one gets no more than everybody.
    """
    status, (mode, group) = os.fstat(number), access
    if status.st_gid != group:
        try:
            os.chown(number, -1, group)
        except OSError:
            mode &= ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    if stat.S_ISDIR(status.st_mode):
        os.chmod(number, mode | stat.S_IRWXU | (status.st_mode & stat.S_ISGID))
    else:
        os.chmod(number, mode | stat.S_IRUSR | stat.S_IWUSR)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return *path* as `os.path.realpath` does. ``PermissionError`` for a link that a stranger may have put there.

    >>> resolved("/proc/self/../version")
    PosixPath('/proc/version')
    """
    folder, links = "/", 0
    parts = os.path.abspath(path).split("/")[:0:-1]
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        there = os.path.dirname(folder) if part == ".." else os.path.join(folder, part)
        target = _link_target(there)
        if target is None:
            folder = there
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        folder = "/" if target.startswith("/") else folder
        parts += target.split("/")[::-1]
    return Path(folder)


def _link_target(path: str) -> str | None:
    """Return where a link leads to; None if this is none. ``PermissionError`` for a link of a stranger."""
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
    """Return whether users other than this one and root can make files in a folder, in which *owner* has a link."""
    status = os.stat(folder)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    if status.st_uid in (0, os.geteuid()):
        return False
    # In a container that does not know root, what belongs to root seems to belong to nobody.
    return not (status.st_uid == owner == _overflow_user())


@cache
def _overflow_user() -> int | None:
    """Return which user all users are that this container does not know, if root is one of them."""
    with contextlib.suppress(OSError, ValueError):
        rows = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        if not any(outside == 0 for _, outside, _ in rows):
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return None


def user_name(number: int) -> str:
    """Return the name and number of a user, for a message."""
    from pwd import getpwuid  # here, as few messages need it

    with contextlib.suppress(KeyError):
        return f"{getpwuid(number).pw_name} (user {number})"
    return f"user {number}"
