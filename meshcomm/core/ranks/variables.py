"""The environment variables of meshcomm: all their names, names that are none, and values that are wrong."""

import errno
import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache, partial

from meshcomm.core._arguments import quote
from meshcomm.core.failures import abort, flights, launchers
from meshcomm.core.failures.launchers import TRACE_FOLDER, folder_in
from meshcomm.core.ranks import hosts, rendezvous, sizes
from meshcomm.errors import MeshcommError

KNOWN = (
    *hosts.ALIKE,
    "MESHCOMM_SHARED_MEMORY",
    launchers.EAGER,
    flights.FOLDER,
    hosts.MACHINE_FILE,
    launchers.ALONE,
    TRACE_FOLDER,
)

SWITCHES = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", launchers.ALONE, launchers.EAGER)


def _check_folder(variable: str, what: str) -> None:
    """Raise ``MeshcommError`` if *variable* names a folder in which *what* cannot be written. Makes nothing."""
    folder = folder_in(variable)
    if folder is not None:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
        why = "it is a file, or in one" if not existing.is_dir() else os.strerror(errno.EACCES)
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise MeshcommError(f"{variable}={folder}: no {what} can be written there: {why}")


_OURS = "MESHCOMM_"

_READERS = {
    "MESHCOMM_TIMEOUT": abort.timeout_seconds,
    "MESHCOMM_SHARED_MEMORY": rendezvous.shared_limit,
    hosts.MACHINE_FILE: hosts.stored_constants,
    sizes.WHOLE: sizes.whole_below,
}
"""Functions that read the value of a variable before ranks communicate: ``MeshcommError`` if it is wrong."""

_EXTRA_CHECKS: dict[str, Callable[[], object]] = {
    flights.FOLDER: partial(_check_folder, flights.FOLDER, "flight file"),
    TRACE_FOLDER: partial(_check_folder, TRACE_FOLDER, "trace"),
}
"""Checks of variables whose value nothing else validates: ``MeshcommError`` if it is wrong."""


def find_problems() -> dict[str, str]:
    """Return the environment variables that look like ours and are wrong, each with its problem.

    Their names may be misspelt, or in small letters; a switch may be neither on nor off; and a value may be none that
    the variable can have.
    """
    checks = {**_READERS, **_EXTRA_CHECKS}
    if abort.comm_world()[0] > 0:
        del checks[hosts.MACHINE_FILE]  # the first rank reads the file for all, and the others need none
    problems = {name: line for name, check in checks.items() if (line := _error_text(check))}
    for name, value in sorted(os.environ.items()):
        if name in SWITCHES and value.strip().lower() not in ("", *launchers.ON, *launchers.OFF):
            problems[name] = f"{name} is a switch, and {quote(value)} counts as 1: set it to 1 or 0"
        if name.upper().startswith(_OURS) and name not in KNOWN:
            stem = name.upper().removeprefix(_OURS)
            close = get_close_matches(stem, [variable.removeprefix(_OURS) for variable in KNOWN], 1)
            meant = f"; is it {_OURS}{close[0]}?" if close else f"; there are {', '.join(sorted(KNOWN))}"
            problems[name] = f"no environment variable of meshcomm is called {name}{meant}"
    return problems


def _error_text(check: Callable[[], object]) -> str:
    try:
        check()
    except MeshcommError as error:
        return str(error)
    return ""


def reset_invalid() -> list[str]:
    """Return the problems, and reset invalid variables in this process, so that each is reported once.

    A switch is set to "1", as which it counts. The other variables are removed, so that their defaults hold.
    """
    problems = find_problems()
    for name in problems:
        if name in SWITCHES:
            os.environ[name] = "1"
        else:
            del os.environ[name]
    return list(problems.values())


@cache
def check_trace_folder() -> bool:
    """Return False, and print why, if a trace is requested that cannot be written."""
    wrong = _error_text(_EXTRA_CHECKS[TRACE_FOLDER])
    if wrong:
        abort.say_once(wrong)
    return not wrong


@cache
def report_problems() -> None:
    """Print the problems of `find_problems` on the first rank, once, but not those that are reported elsewhere.

    If there are other ranks, calls raise an error for a wrong value. Each host reports that it cannot write a trace.
    """
    rank, size = abort.comm_world()
    reported_elsewhere = {TRACE_FOLDER, *(_READERS if size > 1 else ())}
    if rank == 0:
        for name, line in find_problems().items():
            if name not in reported_elsewhere:
                abort.say(line)
