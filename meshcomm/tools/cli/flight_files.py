"""Read flight files, which may be damaged or forged, and find the first call that ranks made differently."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_origin, get_type_hints

from meshcomm.core._arguments import quote
from meshcomm.core.failures.flights import Flight, FlightCall
from meshcomm.core.failures.messages import first_lines, ranks_text
from meshcomm.core.failures.watch import kind
from meshcomm.errors import MeshcommError, printable

_MAX_FILE_BYTES = 2**24
"""Bytes: a larger file is no flight file. One with 64 calls and a dozen threads has some 20 KiB."""

_MULTILINE_ENTRIES = ("reason", "stack")
"""Names of entries whose texts have several lines."""

_MAX_RANKS = 2**23
"""No job has more ranks; a file that says so is no flight file."""

T = TypeVar("T")


def read(folder: Path, damaged: list[str] | None = None) -> list[Flight]:
    """Return the flights in a folder, by rank. ``MeshcommError`` if there are none, or a file is something else.

    With a list *damaged*, errors in files are added to it, and raise only if no file is a flight.
    """
    flights: list[Flight] = []
    problems: list[str] = [] if damaged is None else damaged
    for path in folder.glob("rank-*.json"):
        try:
            flights.append(_read_flight(path))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            problems.append(f"{path} is no flight file: {quote(error)}")
    if problems and (damaged is None or not flights):
        raise MeshcommError(problems[0])
    if not flights:
        raise MeshcommError(f"there are no flight files in {folder}; a rank writes rank-NUMBER.json there")
    return sorted(flights, key=lambda flight: flight["rank"])


def _read_flight(path: Path) -> Flight:
    """Return the flight in a file; raise one of several errors if the file holds none."""
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"it must be a file of at most {_MAX_FILE_BYTES} bytes")
    content = json.loads(path.read_text())
    flight = _plain_entries(content, Flight)
    if not 0 <= flight["rank"] < flight["size"] <= _MAX_RANKS:
        raise ValueError(f"there is no rank {flight['rank']} of {flight['size']}")
    flight["calls"] = [_plain_entries(call, FlightCall) for call in content["calls"]]
    if not all(isinstance(digest, str) for call in flight["calls"] for digest in call["digests"]):
        raise TypeError("digests are texts")
    return flight


def _plain_entries(entries_of_file: Mapping[str, object], entry_types: type[T]) -> T:
    """Return the entries of the ``TypedDict`` *entry_types*; ``TypeError`` if one has another type.

    Characters in texts that could control a terminal are escaped.
    """
    entries = {}
    for name, expected_type in get_type_hints(entry_types).items():
        value = entries_of_file[name]
        value = float(value) if expected_type is float and isinstance(value, int | float | str) else value
        if not isinstance(value, get_origin(expected_type) or expected_type):
            raise TypeError(f"{name} is a {type(value).__name__}")
        lines = value.split("\n") if name in _MULTILINE_ENTRIES and isinstance(value, str) else [value]
        entries[name] = "\n".join(map(printable, lines)) if isinstance(value, str) else value
    return entry_types(**entries)


def first_difference(flights: Iterable[Flight]) -> str | None:
    """Return the first call on one mesh that differs between flights, as text, or "" if none differs.

    None if no call is in two of the flights.

    >>> call = {"operation": "barrier", "ranks": "0-1", "number": 3, "began": 0.0}
    >>> call |= {"digests": ["5a"], "about": "", "rank_set": "0-1 #1"}
    >>> first = {"rank": 0, "calls": [call]}
    >>> print(first_difference([first, {"rank": 1, "calls": [call | {"operation": "to_numpy"}]}]))
    call 3 on ranks 0-1: rank 0 made barrier, rank 1 made to_numpy
    """
    calls_of_rank_sets: dict[str, dict[int, dict[int, FlightCall]]] = {}
    for flight in flights:
        for call in flight["calls"]:
            if call["number"] > 0 and call["rank_set"]:
                calls_of_rank_sets.setdefault(call["rank_set"], {}).setdefault(call["number"], {})[flight["rank"]] = (
                    call
                )
    if not any(len(calls_by_rank) > 1 for calls in calls_of_rank_sets.values() for calls_by_rank in calls.values()):
        return None
    differences = [
        difference
        for calls in calls_of_rank_sets.values()
        if (difference := _first_difference_on_mesh(calls)) is not None
    ]
    return min(differences)[1] if differences else ""


def _first_difference_on_mesh(calls: Mapping[int, Mapping[int, FlightCall]]) -> tuple[float, str] | None:
    """Return the time at which the first different call on a mesh began, and its text; None if all are the same.

    *calls* maps the number of a call to the calls by rank.
    """
    digest_counts: list[dict[int, int]] = []  # for each earlier call, the number of its digests by rank
    for number, calls_by_rank in sorted(calls.items()):
        text = _different_operations(calls_by_rank) or _different_digests(calls_by_rank, digest_counts)
        if text:
            ranks = next(iter(calls_by_rank.values()))["ranks"]
            return min(call["began"] for call in calls_by_rank.values()), f"call {number} on ranks {ranks}: {text}"
        digest_counts.append({rank: len(call["digests"]) for rank, call in calls_by_rank.items() if call["digests"]})
    return None


def _different_operations(calls: Mapping[int, FlightCall]) -> str:
    """Return a text if ranks called different operations, else "". Names that the user gave to calls may differ."""
    ranks_of_operations: dict[str, list[int]] = {}
    for rank, call in calls.items():
        ranks_of_operations.setdefault(kind(call["operation"]), []).append(rank)
    texts = [f"{ranks_text(ranks)} made {calls[ranks[0]]['operation']}" for ranks in ranks_of_operations.values()]
    return ", ".join(first_lines(texts)) if len(texts) > 1 else ""


def _different_digests(calls: Mapping[int, FlightCall], digest_counts: Sequence[Mapping[int, int]]) -> str:
    """Return a text if ranks called the same operation with different arguments, else "".

    Digests that a rank has not noted yet are not compared. The difference is in this call if an earlier call was the
    same on all these ranks: then all have equally many digests of it. *digest_counts* has the number of digests by
    rank, for each earlier call.
    """
    for index in range(max(len(call["digests"]) for call in calls.values())):
        ranks_by_digest: dict[str, list[int]] = {}
        for rank, call in calls.items():
            if index < len(call["digests"]):
                ranks_by_digest.setdefault(call["digests"][index], []).append(rank)
        if len(ranks_by_digest) > 1:
            compared_ranks = {rank for ranks in ranks_by_digest.values() for rank in ranks}
            earlier_call_agrees = any(
                counts.keys() >= compared_ranks and len({counts[rank] for rank in compared_ranks}) == 1
                for counts in digest_counts
            )
            return _difference_text([*ranks_by_digest.values()], calls, index > 0 or earlier_call_agrees)
    return ""


def _difference_text(groups: Sequence[list[int]], calls: Mapping[int, FlightCall], earlier_call_agrees: bool) -> str:
    """Return a text which says that *groups* of ranks called the same operation with different arguments."""
    argument_texts = [calls[ranks[0]]["about"] for ranks in groups]
    texts_differ = len({*argument_texts}) > 1
    who = " and ".join(first_lines([ranks_text(ranks) for ranks in groups]))
    text = f"{who} made {calls[groups[0][0]]['operation']} with different arguments (layouts, shape, dtype, root ...)"
    if not earlier_call_agrees or (argument_texts[0] and not texts_differ):
        text += ", or after different calls, or after an error on one of them"
    if not texts_differ:
        return f"{text}; run again with MESHCOMM_CHECK=1 to see which"
    lines = [
        f"  {ranks_text(ranks)}: {argument_text or 'not known'}"
        for ranks, argument_text in zip(groups, argument_texts, strict=True)
    ]
    return "\n".join([text, *first_lines(lines)])


def missing_ranks(flights: Iterable[Flight]) -> list[int]:
    """Return the ranks of the job that wrote no flight file."""
    flights = list(flights)
    return sorted(
        {*range(max((flight["size"] for flight in flights), default=0))} - {flight["rank"] for flight in flights}
    )
