"""Flight files: what each rank did last, written when a job ends because a rank waits for too long.

Each rank writes one file of JSON. ``python -m meshcomm flights`` reads those of all ranks. Only the user who runs the
job may read the files, as they show paths and source lines. A file that is read may be anything.
"""

import contextlib
import errno
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_origin, get_type_hints

from meshcomm._arguments import quote
from meshcomm.errors import MeshcommError
from meshcomm.failures import stacks
from meshcomm.failures.abort import comm_world
from meshcomm.failures.call_history import NOTHING, noted
from meshcomm.failures.launchers import job_name
from meshcomm.failures.messages import MOST_LINES, some, spans
from meshcomm.failures.watch import kind, watch

FOLDER = "MESHCOMM_FLIGHTS"
"""The environment variable that names the folder of the flight files; 0 is none."""

_LARGEST_FILE = 2**24
"""Bytes: a flight file that is larger is none. Those of 64 calls and a dozen threads have some 20 KiB."""

_MOST_RANKS = 2**24
"""No job has more ranks; a file that says so is no flight file."""

KEPT_FOR = 7 * 24 * 3600.0
"""Seconds. The next job that writes to a new folder in the folder for temporary files removes those that are older."""

_PREFIX = "meshcomm-"

T = TypeVar("T")


class Flown(TypedDict):
    """A call of the flight recorder."""

    operation: str
    ranks: str
    number: int
    began: float
    """Seconds since 1970."""
    digests: list[str]
    """What it has noted, as `meshcomm.failures.call_history.Noted` has it; none if that is not known."""
    about: str
    """Its arguments; nothing if they are not known."""
    team: str
    """The same for calls on one mesh, on all its ranks; nothing if they had not communicated yet."""


_WITHOUT_ARGUMENTS = {"digests": [], "about": "", "team": ""}  # what calls of older versions do not have


class Flight(TypedDict):
    """What a rank did last."""

    rank: int
    size: int
    host: str
    process: int
    reason: str
    written: float
    """Seconds since 1970."""
    waits: str
    """The operation that it waits in; nothing if it is in none."""
    since: float
    """For how many seconds this has been so."""
    at: str
    """The line of the program that it is at; nothing if it is in none."""
    calls: list[Flown]
    stack: str


def folder() -> Path | None:
    """Return the folder for the flight files of this job, or None if there are to be none."""
    name = _folder_of_user()
    if name:
        return Path(name) if name != "0" else None
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{job_name().replace('/', '-')}"


def _folder_of_user() -> str:
    return os.environ.get(FOLDER, "")


def check_folder() -> None:
    """Raise ``MeshcommError`` if the user names a folder in which no file can be written. Nothing is made there."""
    name = _folder_of_user()
    if name not in ("", "0"):
        above = (os.path.abspath(name), *map(str, Path(os.path.abspath(name)).parents))
        there = next(each for each in above if os.path.exists(each))
        why = "it is a file, or in one" if not os.path.isdir(there) else os.strerror(errno.EACCES)
        if not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
            raise MeshcommError(f"{FOLDER}={name}: no flight file can be written there: {why}")


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
    if not where.is_dir():
        with contextlib.suppress(FileExistsError):
            where.mkdir(mode=0o700, parents=True)
            if not _folder_of_user():
                remove_old(where.parent, time.time() - KEPT_FOR)
    # Others know the name of a folder of ours in a folder of everybody, and may have made it first.
    if not _folder_of_user() and (where.is_symlink() or where.stat().st_uid != os.getuid()):
        raise PermissionError(f"{where} belongs to somebody else")
    flight = _flight(reason)
    path = where / f"rank-{flight['rank']}.json"
    # A new file that only this user may read; it is never one that somebody else has put there, nor behind a link.
    with tempfile.NamedTemporaryFile("w", dir=where, prefix=f".{path.name}.", delete=False) as new:
        json.dump(flight, new, indent=1)
    Path(new.name).replace(path)


def remove_old(parent: Path, before: float) -> None:
    """Remove the folders of flight files in *parent* that this user's jobs wrote last *before* a time.

    Only what a job writes there is removed, and no link is followed. What cannot be removed stays.
    """
    for old in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            about = old.lstat()
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and about.st_mtime < before:
                for path in (*old.glob("rank-*.json"), *old.glob(".rank-*.json.*")):
                    path.unlink()
                old.rmdir()


def _flight(reason: str) -> Flight:
    rank, size = comm_world()
    calls = _calls(time.time() - time.monotonic())
    now = time.time()
    return Flight(
        rank=rank,
        size=size,
        host=os.uname().nodename,
        process=os.getpid(),
        reason=reason,
        written=now,
        waits=watch.operation(),
        since=watch.since,
        at=stacks.of_program().partition(", called by ")[0] or stacks.of_main(),
        calls=calls,
        stack=stacks.whole(),
    )


def _calls(clock: float) -> list[Flown]:
    """Return the calls of the flight recorder; *clock* is when `time.monotonic` was 0."""
    recent = list(watch.recent)
    numbers = {number for _, _, number, _ in recent}
    notes = {team: noted(team, numbers) for _, team, _, _ in recent if team is not None}
    calls = []
    for operation, team, number, began in recent:
        note = notes[team].get(number, NOTHING) if team is not None else NOTHING
        calls.append(
            Flown(
                operation=operation,
                ranks=spans(sorted(team.world.ranks_in_comm_world(team.ranks))) if team is not None else "",
                number=number,
                began=clock + began,
                digests=list(note.digests),
                about=note.about.removeprefix(f"{kind(operation)}, "),
                team=team.name if team is not None else "",
            )
        )
    return calls


def read(folder: Path, damaged: list[str] | None = None) -> list[Flight]:
    """Return the flights in a folder, by rank. ``MeshcommError`` if there are none, or a file is something else.

    With a list *damaged*, what is wrong with a file is added to it, as long as another file is a flight.
    """
    found: list[Flight] = []
    wrong: list[str] = [] if damaged is None else damaged
    for path in folder.glob("rank-*.json"):
        try:
            found.append(_read(path))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            wrong.append(f"{path} is no flight file: {quote(error)}")
    if wrong and (damaged is None or not found):
        raise MeshcommError(wrong[0])
    if not found:
        raise MeshcommError(f"there are no flight files in {folder}; a rank writes rank-NUMBER.json there")
    return sorted(found, key=lambda flight: flight["rank"])


def _read(path: Path) -> Flight:
    """Return what is in a file; one of several errors if that is no flight."""
    if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"it must be a file of at most {_LARGEST_FILE} bytes")
    told = json.loads(path.read_text())
    flight = _plain({"at": ""} | told, Flight)
    if not 0 <= flight["rank"] < flight["size"] <= _MOST_RANKS:
        raise ValueError(f"there is no rank {flight['rank']} of {flight['size']}")
    flight["calls"] = [_plain(_WITHOUT_ARGUMENTS | call, Flown) for call in told["calls"]]
    if not all(isinstance(digest, str) for call in flight["calls"] for digest in call["digests"]):
        raise TypeError("digests are texts")
    return flight


def _plain(told: Mapping[str, Any], form: type[T]) -> T:
    """Return the entries that *form* has, if they are of its types; texts without what steers a terminal."""
    entries = {}
    for name, wanted in get_type_hints(form).items():
        value = float(told[name]) if wanted is float else told[name]
        if not isinstance(value, get_origin(wanted) or wanted):
            raise TypeError(f"{name} is a {type(value).__name__}")
        entries[name] = _printable(value) if isinstance(value, str) else value
    return form(**entries)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def first_difference(flights: Iterable[Flight]) -> str | None:
    """Return the first call on one mesh that flights have differently, or nothing. None if none is in two of them.

    >>> call = {"operation": "barrier", "ranks": "0-1", "number": 3, "began": 0.0}
    >>> call |= {"digests": ["5a"], "about": "", "team": "0-1 #1"}
    >>> first = {"rank": 0, "calls": [call]}
    >>> print(first_difference([first, {"rank": 1, "calls": [call | {"operation": "to_numpy"}]}]))
    call 3 on ranks 0-1: rank 0 made barrier, rank 1 made to_numpy
    """
    made: dict[str, dict[int, dict[int, Flown]]] = {}
    for flight in flights:
        for call in flight["calls"]:
            if call["number"] > 0 and call["team"]:
                made.setdefault(call["team"], {}).setdefault(call["number"], {})[flight["rank"]] = call
    if not any(len(its) > 1 for calls in made.values() for its in calls.values()):
        return None
    found = [first for calls in made.values() if (first := _first_of(calls)) is not None]
    return min(found)[1] if found else ""


def _first_of(calls: Mapping[int, Mapping[int, Flown]]) -> tuple[float, str] | None:
    """Return when the first different call on a mesh began, and what it is. *calls* are by their numbers, by rank."""
    before: list[dict[int, int]] = []  # for each call before, how many digests each rank has of it
    for number, its in sorted(calls.items()):
        different = _different_operations(its) or _different_digests(its, before)
        if different:
            ranks = next(iter(its.values()))["ranks"]
            return min(call["began"] for call in its.values()), f"call {number} on ranks {ranks}: {different}"
        before.append({rank: len(call["digests"]) for rank, call in its.items() if call["digests"]})
    return None


def _different_operations(calls: Mapping[int, Flown]) -> str:
    """Return what ranks made if it was not the same; names that the user gave calls may differ."""
    made: dict[str, list[int]] = {}
    for rank, call in calls.items():
        made.setdefault(kind(call["operation"]), []).append(rank)
    listed = [f"{some(ranks)} made {calls[ranks[0]]['operation']}" for ranks in made.values()]
    return ", ".join(_some_of(listed)) if len(listed) > 1 else ""


def _different_digests(calls: Mapping[int, Flown], before: Sequence[Mapping[int, int]]) -> str:
    """Return that ranks made the same operation differently, if they did.

    What one rank has not noted yet is not compared. The difference is in this call if one before it was the same on
    all these ranks: then all have equally many digests of it. *before* says how many, for each call before.
    """
    for index in range(max(len(call["digests"]) for call in calls.values())):
        alike: dict[str, list[int]] = {}
        for rank, call in calls.items():
            if index < len(call["digests"]):
                alike.setdefault(call["digests"][index], []).append(rank)
        if len(alike) > 1:
            compared = {rank for ranks in alike.values() for rank in ranks}
            same = any(its.keys() >= compared and len({its[rank] for rank in compared}) == 1 for its in before)
            return _told([*alike.values()], calls, index > 0 or same)
    return ""


def _told(groups: Sequence[list[int]], calls: Mapping[int, Flown], alike_before: bool) -> str:
    """Return that *groups* of ranks made the same operation differently."""
    about = [calls[ranks[0]]["about"] for ranks in groups]
    known = len({*about}) > 1
    who = " and ".join(_some_of([some(ranks) for ranks in groups]))
    text = f"{who} made {calls[groups[0][0]]['operation']} with different arguments ({_ARGUMENTS})"
    if not alike_before or (about[0] and not known):
        text += ", or after different calls, or after an error on one of them"
    if not known:
        return f"{text}; run again with MESHCOMM_CHECK=1 to see which"
    lines = [f"  {some(ranks)}: {its or 'not known'}" for ranks, its in zip(groups, about, strict=True)]
    return "\n".join([text, *_some_of(lines)])


_ARGUMENTS = "layouts, shape, dtype, root ..."


def _some_of(texts: list[str]) -> list[str]:
    return texts[:MOST_LINES] + ["..."] * (len(texts) > MOST_LINES)


def missing_ranks(flights: Iterable[Flight]) -> list[int]:
    """Return the ranks of the job that wrote no flight file."""
    flights = list(flights)
    return sorted({*range(max((flight["size"] for flight in flights), default=0))} - {its["rank"] for its in flights})
