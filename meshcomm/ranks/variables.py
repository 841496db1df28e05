"""The environment variables of meshcomm: all their names, names that are none, and values that are wrong."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache

from meshcomm._arguments import quote
from meshcomm.errors import MeshcommError
from meshcomm.ranks import abort, flights, hosts, launchers, rendezvous, settings, trace_folder

KNOWN = (
    *settings.ALIKE,
    "MESHCOMM_SHARED_MEMORY",
    flights.FOLDER,
    hosts.MACHINE_FILE,
    launchers.ALONE,
    trace_folder.TRACE_FOLDER,
)

SWITCHES = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", launchers.ALONE)

_OURS = "MESHCOMM_"


def misspelt() -> list[str]:
    """Return what is wrong with environment variables that look like ours, a line for each.

    Their names may be misspelt, or in small letters; a switch may be neither on nor off; and a value may be none that
    the variable can have.
    """
    lines = [line for line in map(_wrong_value, _READ) if line]
    for name, value in sorted(os.environ.items()):
        if name in SWITCHES and value.strip().lower() not in ("", *launchers.ON, *launchers.OFF):
            lines.append(f"{name} is a switch, and {quote(value)} counts as 1: set it to 1 or 0")
        if name.upper().startswith(_OURS) and name not in KNOWN:
            stem = name.upper().removeprefix(_OURS)
            close = get_close_matches(stem, [known.removeprefix(_OURS) for known in KNOWN], 1)
            meant = f"; is it {_OURS}{close[0]}?" if close else f"; there are {', '.join(sorted(KNOWN))}"
            lines.append(f"no environment variable of meshcomm is called {name}{meant}")
    return lines


_READ = (abort.timeout_seconds, rendezvous.shared_limit, hosts.stored_constants, flights.check_folder)
"""What reads the value of a variable, and raises ``MeshcommError`` if it is wrong."""


def _wrong_value(read: Callable[[], object]) -> str:
    try:
        read()
    except MeshcommError as error:
        return str(error)
    return ""


@cache
def report_misspelt() -> None:
    """Print what `misspelt` finds, on the first rank, once."""
    if abort.comm_world()[0] == 0:
        for line in misspelt():
            abort.say(line)
