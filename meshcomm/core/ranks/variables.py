"""The environment variables of meshcomm: all names, and checks for unknown names and wrong values."""

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
    *hosts.COMMON_SETTINGS,
    "MESHCOMM_SHARED_MEMORY",
    launchers.EAGER,
    flights.FOLDER,
    hosts.MACHINE_FILE,
    launchers.ALONE,
    TRACE_FOLDER,
)

SWITCHES = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", launchers.ALONE, launchers.EAGER)


def _check_folder(variable: str, content: str) -> None:
    """Raise ``MeshcommError`` if *variable* names a folder in which *content* cannot be written."""
    folder = folder_in(variable)
    if folder is not None:
        existing_path = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
        reason = "it is a file, or in one" if not existing_path.is_dir() else os.strerror(errno.EACCES)
        if not (existing_path.is_dir() and os.access(existing_path, os.W_OK | os.X_OK)):
            raise MeshcommError(f"{variable}={folder}: no {content} can be written there: {reason}")


_PREFIX = "MESHCOMM_"

_READERS = {
    "MESHCOMM_TIMEOUT": abort.timeout_seconds,
    "MESHCOMM_SHARED_MEMORY": rendezvous.shared_limit,
    hosts.MACHINE_FILE: hosts.stored_constants,
    sizes.WHOLE: sizes.whole_below,
}
"""Functions that read the value of a variable before ranks communicate, and raise ``MeshcommError`` if it is wrong."""

_EXTRA_CHECKS: dict[str, Callable[[], object]] = {
    flights.FOLDER: partial(_check_folder, flights.FOLDER, "flight file"),
    TRACE_FOLDER: partial(_check_folder, TRACE_FOLDER, "trace"),
}
"""Checks of variables that no other function checks: they raise ``MeshcommError`` if the value is wrong."""


def find_problems() -> dict[str, str]:
    """Return wrong environment variables of meshcomm by name, each with a text on its problem.

    A name may be misspelt, or in small letters; a switch may be neither on nor off; or a value may be wrong.
    """
    checks = {**_READERS, **_EXTRA_CHECKS}
    if abort.comm_world()[0] > 0:
        del checks[hosts.MACHINE_FILE]  # the first rank reads the file for all, and the others need none
    problems = {name: line for name, check in checks.items() if (line := _error_text(check))}
    for name, value in sorted(os.environ.items()):
        if name in SWITCHES and value.strip().lower() not in ("", *launchers.ON, *launchers.OFF):
            problems[name] = f"{name} is a switch, and {quote(value)} counts as 1: set it to 1 or 0"
        if name.upper().startswith(_PREFIX) and name not in KNOWN:
            stem = name.upper().removeprefix(_PREFIX)
            matches = get_close_matches(stem, [variable.removeprefix(_PREFIX) for variable in KNOWN], 1)
            hint = f"; is it {_PREFIX}{matches[0]}?" if matches else f"; there are {', '.join(sorted(KNOWN))}"
            problems[name] = f"no environment variable of meshcomm is called {name}{hint}"
    return problems


def _error_text(check: Callable[[], object]) -> str:
    try:
        check()
    except MeshcommError as error:
        return str(error)
    return ""


def reset_invalid() -> list[str]:
    """Return the problems, and reset wrong variables in this process, so that each is reported once.

    A switch is set to "1", which a wrong value counts as. Other variables are removed, so that their defaults hold.
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
    problem = _error_text(_EXTRA_CHECKS[TRACE_FOLDER])
    if problem:
        abort.say_once(problem)
    return not problem


@cache
def report_problems() -> None:
    """Print the problems of `find_problems` on the first rank, once, except those that are reported elsewhere.

    With several ranks, calls raise an error for a wrong value. Each host reports that it cannot write a trace.
    """
    rank, size = abort.comm_world()
    reported_elsewhere = {TRACE_FOLDER, *(_READERS if size > 1 else ())}
    if rank == 0:
        for name, line in find_problems().items():
            if name not in reported_elsewhere:
                abort.say(line)
