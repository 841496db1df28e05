"""Flight files: the last calls and the stack of each rank, written when a job ends because a rank waits too long.

Each rank writes one file of JSON; ``python -m meshcomm flights`` reads them. They show paths and source lines, so only
the user who runs the job may read them.
"""

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TypedDict

from meshcomm.core._files import UNFINISHED_SUFFIX, replacing, resolved
from meshcomm.core.failures import stacks
from meshcomm.core.failures.abort import comm_world
from meshcomm.core.failures.launchers import folder_in, job_name
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import kind, watch

FOLDER = "MESHCOMM_FLIGHTS"
"""The environment variable with the folder of the flight files; 0 turns them off."""

KEPT_FOR = 7 * 24 * 3600.0
"""Seconds. Older folders are removed when a job makes a new folder beside them."""

_NAME = re.compile(r"meshcomm-flights-[0-9a-f]{32}")


class FlightCall(TypedDict):
    """A call of the flight recorder."""

    operation: str
    ranks: str
    number: int
    began: float  # seconds since 1970
    digests: list[str]
    """Digests that it noted, as in `meshcomm.core.ranks.call_log.CallNotes`; none if unknown."""
    about: str  # its arguments; "" if unknown
    rank_set: str  # name of its rank set, the same on all its ranks; "" if they had not communicated yet


class Flight(TypedDict):
    """The flight file of a rank."""

    rank: int
    size: int
    host: str
    process: int
    reason: str
    written: float  # seconds since 1970
    waits: str  # operation that it waits in; "" if none
    since: float  # seconds for which it has been in this state
    at: str  # line of the program that it is at; "" if none
    calls: list[FlightCall]
    stack: str


def folder() -> Path | None:
    """Return the folder for the flight files of this job, or None if none are written."""
    if _is_named():
        return folder_in(FOLDER)
    return Path(tempfile.gettempdir()) / f"meshcomm-flights-{job_name()}"


def _is_named() -> bool:
    return bool(os.environ.get(FOLDER))


@cache
def _message_cache() -> list[str]:
    return []


def write(reason: str) -> str:
    """Write the flight file of this rank, once, and return its path as the end of a message.

    Without a file, the message ends with the stacks of the threads of this rank.
    """
    stored_message = _message_cache()
    if not stored_message:
        stored_message.append("")
        folder_path = folder()
        try:
            if folder_path is not None:
                _write(folder_path, reason)
                stored_message[0] = (
                    f"\n  What each rank did last, and where it is: python -m meshcomm flights {folder_path}"
                )
            else:
                stored_message[0] = f"\n{stacks.whole()}"
        except Exception as error:  # of any class: the last message of the job must be printed
            stored_message[0] = f"\n  What this rank did last could not be written: {error}\n{stacks.whole()}"
    return stored_message[0]


def _write(folder_path: Path, reason: str) -> None:
    if _is_named():
        folder_path = resolved(folder_path)
    if not folder_path.is_dir():
        with contextlib.suppress(FileExistsError):
            folder_path.mkdir(mode=0o700, parents=True)
            if not _is_named():
                remove_old(folder_path.parent, time.time() - KEPT_FOR)
    # Another user may have made the folder first, in a folder of everybody.
    if not _is_named() and (folder_path.is_symlink() or folder_path.stat().st_uid != os.getuid()):
        raise PermissionError(f"{folder_path} belongs to somebody else")
    flight = _flight(reason)
    with replacing(folder_path / f"rank-{flight['rank']}.json") as file:
        json.dump(flight, file, indent=1)


def remove_old(parent: Path, time_limit: float) -> None:
    """Remove the folders of flight files in *parent* that this user's jobs wrote last before *time_limit*.

    Only files that a job writes there are removed, and no link is followed. Files that cannot be removed stay.
    """
    for entry in parent.iterdir():
        with contextlib.suppress(OSError):
            status = entry.lstat()
            is_ours = _NAME.fullmatch(entry.name) and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_ours and status.st_mtime < time_limit:
                for path in (*entry.glob("rank-*.json"), *entry.glob(f".rank-*.json.*{UNFINISHED_SUFFIX}")):
                    path.unlink()
                entry.rmdir()


def _flight(reason: str) -> Flight:
    rank, size = comm_world()
    return Flight(
        rank=rank,
        size=size,
        host=os.uname().nodename,
        process=os.getpid(),
        reason=reason,
        written=time.time(),
        waits=watch.operation(),
        since=watch.idle_seconds,
        at=stacks.of_program().partition(", called by ")[0] or stacks.of_main(),
        calls=_calls(time.time() - time.monotonic()),
        stack=stacks.whole(),
    )


def _calls(clock_start: float) -> list[FlightCall]:
    """Return the calls of the flight recorder; *clock_start*: time since 1970 at which `time.monotonic` was 0."""
    recent_calls = list(watch.recent)
    numbers = {number for _, _, number, _ in recent_calls}
    notes = {rank_set: rank_set.history(numbers) for _, rank_set, _, _ in recent_calls if rank_set is not None}
    calls = []
    for operation, rank_set, number, began in recent_calls:
        digests, about = ((), "") if rank_set is None else notes[rank_set].get(number, ((), ""))
        calls.append(
            FlightCall(
                operation=operation,
                ranks=spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
                if rank_set is not None
                else "",
                number=number,
                began=clock_start + began,
                digests=list(digests),
                about=about.removeprefix(f"{kind(operation)}, "),
                rank_set=rank_set.name if rank_set is not None else "",
            )
        )
    return calls
