"""Flight files: what each rank did last, written when a job ends because a rank waits for too long.

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

from meshcomm.core._files import ASIDE, replacing, resolved
from meshcomm.core.failures import stacks
from meshcomm.core.failures.abort import comm_world
from meshcomm.core.failures.launchers import folder_in, job_name
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import kind, watch

FOLDER = "MESHCOMM_FLIGHTS"
"""The environment variable that names the folder of the flight files; 0 is none."""

KEPT_FOR = 7 * 24 * 3600.0
"""Seconds. The next job that writes to a new folder in the folder for temporary files removes those that are older."""

_NAME = re.compile(r"meshcomm-flights-[0-9a-f]{32}")


class Flown(TypedDict):
    """A call of the flight recorder."""

    operation: str
    ranks: str
    number: int
    began: float  # seconds since 1970
    digests: list[str]
    """What it has noted, as `meshcomm.core.ranks.call_log.CallNotes` has it; none if that is not known."""
    about: str  # its arguments; nothing if they are not known
    rank_set: str  # the same for calls on one mesh, on all its ranks; nothing if they had not communicated yet


class Flight(TypedDict):
    """What a rank did last."""

    rank: int
    size: int
    host: str
    process: int
    reason: str
    written: float  # seconds since 1970
    waits: str  # the operation that it waits in; nothing if it is in none
    since: float  # for how many seconds this has been so
    at: str  # the line of the program that it is at; nothing if it is in none
    calls: list[Flown]
    stack: str


def folder() -> Path | None:
    """Return the folder for the flight files of this job, or None if there are to be none."""
    if _is_named():
        return folder_in(FOLDER)
    return Path(tempfile.gettempdir()) / f"meshcomm-flights-{job_name()}"


def _is_named() -> bool:
    return bool(os.environ.get(FOLDER))


@cache
def _first_time() -> list[str]:
    return []


def write(reason: str) -> str:
    """Write the flight file of this rank, once, and return where it is, as the end of a message.

    Without a file, the message ends with where the threads of this rank are.
    """
    written = _first_time()
    if not written:
        written.append("")
        where = folder()
        try:
            if where is not None:
                _write(where, reason)
                written[0] = f"\n  What each rank did last, and where it is: python -m meshcomm flights {where}"
            else:
                written[0] = f"\n{stacks.whole()}"
        except Exception as error:  # whatever it is, the last words of the job must be printed
            written[0] = f"\n  What this rank did last could not be written: {error}\n{stacks.whole()}"
    return written[0]


def _write(where: Path, reason: str) -> None:
    if _is_named():
        where = resolved(where)
    if not where.is_dir():
        with contextlib.suppress(FileExistsError):
            where.mkdir(mode=0o700, parents=True)
            if not _is_named():
                remove_old(where.parent, time.time() - KEPT_FOR)
    # Another user may have made the folder first, in a folder of everybody.
    if not _is_named() and (where.is_symlink() or where.stat().st_uid != os.getuid()):
        raise PermissionError(f"{where} belongs to somebody else")
    flight = _flight(reason)
    with replacing(where / f"rank-{flight['rank']}.json") as file:
        json.dump(flight, file, indent=1)


def remove_old(parent: Path, before: float) -> None:
    """Remove the folders of flight files in *parent* that this user's jobs wrote last *before* a time.

    Only what a job writes there is removed, and no link is followed. What cannot be removed stays.
    """
    for old in parent.iterdir():
        with contextlib.suppress(OSError):
            about = old.lstat()
            is_ours = _NAME.fullmatch(old.name) and stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            if is_ours and about.st_mtime < before:
                for path in (*old.glob("rank-*.json"), *old.glob(f".rank-*.json.*{ASIDE}")):
                    path.unlink()
                old.rmdir()


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


def _calls(clock: float) -> list[Flown]:
    """Return the calls of the flight recorder; *clock* is when `time.monotonic` was 0."""
    recent = list(watch.recent)
    numbers = {number for _, _, number, _ in recent}
    notes = {rank_set: rank_set.history(numbers) for _, rank_set, _, _ in recent if rank_set is not None}
    calls = []
    for operation, rank_set, number, began in recent:
        digests, about = ((), "") if rank_set is None else notes[rank_set].get(number, ((), ""))
        calls.append(
            Flown(
                operation=operation,
                ranks=spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
                if rank_set is not None
                else "",
                number=number,
                began=clock + began,
                digests=list(digests),
                about=about.removeprefix(f"{kind(operation)}, "),
                rank_set=rank_set.name if rank_set is not None else "",
            )
        )
    return calls
