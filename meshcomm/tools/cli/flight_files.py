"""Flight files, as the command reads them, and the first call that ranks made differently. A file may be anything."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_origin, get_type_hints

from meshcomm.core._arguments import quote
from meshcomm.core.failures.flights import Flight, Flown
from meshcomm.core.failures.messages import first_of, ranks_text
from meshcomm.core.failures.watch import kind
from meshcomm.errors import MeshcommError, printable

_MAX_FILE_BYTES = 2**24
"""Bytes: a flight file that is larger is none. Those of 64 calls and a dozen threads have some 20 KiB."""

_OF_LINES = ("reason", "stack")
"""Texts of several lines."""

_MAX_RANKS = 2**23
"""No job has more ranks; a file that says so is no flight file."""

T = TypeVar("T")


def read(folder: Path, damaged: list[str] | None = None) -> list[Flight]:
    """Return the flights in a folder, by rank. ``MeshcommError`` if there are none, or a file is something else.

    With a list *damaged*, what is wrong with a file is added to it, as long as another file is a flight.
    """
    flights: list[Flight] = []
    wrong: list[str] = [] if damaged is None else damaged
    for path in folder.glob("rank-*.json"):
        try:
            flights.append(_read_flight(path))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            wrong.append(f"{path} is no flight file: {quote(error)}")
    if wrong and (damaged is None or not flights):
        raise MeshcommError(wrong[0])
    if not flights:
        raise MeshcommError(f"there are no flight files in {folder}; a rank writes rank-NUMBER.json there")
    return sorted(flights, key=lambda flight: flight["rank"])


def _read_flight(path: Path) -> Flight:
    """Return what is in a file; one of several errors if that is no flight."""
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"it must be a file of at most {_MAX_FILE_BYTES} bytes")
    content = json.loads(path.read_text())
    flight = _plain_entries(content, Flight)
    if not 0 <= flight["rank"] < flight["size"] <= _MAX_RANKS:
        raise ValueError(f"there is no rank {flight['rank']} of {flight['size']}")
    flight["calls"] = [_plain_entries(call, Flown) for call in content["calls"]]
    if not all(isinstance(digest, str) for call in flight["calls"] for digest in call["digests"]):
        raise TypeError("digests are texts")
    return flight


def _plain_entries(entries_of_file: Mapping[str, object], form: type[T]) -> T:
    """Return the entries that *form* has, if they are of its types; texts without what steers a terminal."""
    entries = {}
    for name, wanted in get_type_hints(form).items():
        value = entries_of_file[name]
        value = float(value) if wanted is float and isinstance(value, int | float | str) else value
        if not isinstance(value, get_origin(wanted) or wanted):
            raise TypeError(f"{name} is a {type(value).__name__}")
        lines = value.split("\n") if name in _OF_LINES and isinstance(value, str) else [value]
        entries[name] = "\n".join(map(printable, lines)) if isinstance(value, str) else value
    return form(**entries)


def first_difference(flights: Iterable[Flight]) -> str | None:
    """Return the first call on one mesh that flights have differently, or nothing. None if none is in two of them.

    >>> call = {"operation": "barrier", "ranks": "0-1", "number": 3, "began": 0.0}
    >>> call |= {"digests": ["5a"], "about": "", "rank_set": "0-1 #1"}
    >>> first = {"rank": 0, "calls": [call]}
    >>> print(first_difference([first, {"rank": 1, "calls": [call | {"operation": "to_numpy"}]}]))
    call 3 on ranks 0-1: rank 0 made barrier, rank 1 made to_numpy
    """
    calls_of_rank_sets: dict[str, dict[int, dict[int, Flown]]] = {}
    for flight in flights:
        for call in flight["calls"]:
            if call["number"] > 0 and call["rank_set"]:
                calls_of_rank_sets.setdefault(call["rank_set"], {}).setdefault(call["number"], {})[flight["rank"]] = (
                    call
                )
    if not any(len(of_ranks) > 1 for calls in calls_of_rank_sets.values() for of_ranks in calls.values()):
        return None
    differences = [first for calls in calls_of_rank_sets.values() if (first := _first_of(calls)) is not None]
    return min(differences)[1] if differences else ""


def _first_of(calls: Mapping[int, Mapping[int, Flown]]) -> tuple[float, str] | None:
    """Return when the first different call on a mesh began, and what it is. *calls* are by their numbers, by rank."""
    before: list[dict[int, int]] = []  # for each call before, how many digests each rank has of it
    for number, of_ranks in sorted(calls.items()):
        different = _different_operations(of_ranks) or _different_digests(of_ranks, before)
        if different:
            ranks = next(iter(of_ranks.values()))["ranks"]
            return min(call["began"] for call in of_ranks.values()), f"call {number} on ranks {ranks}: {different}"
        before.append({rank: len(call["digests"]) for rank, call in of_ranks.items() if call["digests"]})
    return None


def _different_operations(calls: Mapping[int, Flown]) -> str:
    """Return what ranks made if it was not the same; names that the user gave calls may differ."""
    ranks_of_operations: dict[str, list[int]] = {}
    for rank, call in calls.items():
        ranks_of_operations.setdefault(kind(call["operation"]), []).append(rank)
    listed = [f"{ranks_text(ranks)} made {calls[ranks[0]]['operation']}" for ranks in ranks_of_operations.values()]
    return ", ".join(first_of(listed)) if len(listed) > 1 else ""


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
            same = any(
                counts.keys() >= compared and len({counts[rank] for rank in compared}) == 1 for counts in before
            )
            return _difference_text([*alike.values()], calls, index > 0 or same)
    return ""


def _difference_text(groups: Sequence[list[int]], calls: Mapping[int, Flown], alike_before: bool) -> str:
    """Return that *groups* of ranks made the same operation differently."""
    about = [calls[ranks[0]]["about"] for ranks in groups]
    differs = len({*about}) > 1
    who = " and ".join(first_of([ranks_text(ranks) for ranks in groups]))
    text = f"{who} made {calls[groups[0][0]]['operation']} with different arguments (layouts, shape, dtype, root ...)"
    if not alike_before or (about[0] and not differs):
        text += ", or after different calls, or after an error on one of them"
    if not differs:
        return f"{text}; run again with MESHCOMM_CHECK=1 to see which"
    lines = [f"  {ranks_text(ranks)}: {call or 'not known'}" for ranks, call in zip(groups, about, strict=True)]
    return "\n".join([text, *first_of(lines)])


def missing_ranks(flights: Iterable[Flight]) -> list[int]:
    """Return the ranks of the job that wrote no flight file."""
    flights = list(flights)
    return sorted(
        {*range(max((flight["size"] for flight in flights), default=0))} - {flight["rank"] for flight in flights}
    )
