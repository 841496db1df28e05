"""The environment variables of meshcomm: all their names, and names that are none."""

import os
from difflib import get_close_matches
from functools import cache

from meshcomm.ranks import abort, flights, hosts, launchers, settings, trace_folder

KNOWN = (
    *settings.ALIKE,
    "MESHCOMM_SHARED_MEMORY",
    flights.FOLDER,
    hosts.MACHINE_FILE,
    launchers.ALONE,
    trace_folder.TRACE_FOLDER,
)

_OURS = "MESHCOMM_"


def misspelt() -> list[str]:
    """Return what is wrong with the names of environment variables that look like ours, a line for each."""
    lines = []
    for name in sorted(os.environ):
        if name.startswith(_OURS) and name not in KNOWN:
            close = get_close_matches(name.removeprefix(_OURS), [known.removeprefix(_OURS) for known in KNOWN], 1)
            meant = f"; is it {_OURS}{close[0]}?" if close else f"; there are {', '.join(sorted(KNOWN))}"
            lines.append(f"no environment variable of meshcomm is called {name}{meant}")
    return lines


@cache
def report_misspelt() -> None:
    """Print what `misspelt` finds, on the first rank, once."""
    if abort.comm_world()[0] == 0:
        for line in misspelt():
            abort.say(line)
