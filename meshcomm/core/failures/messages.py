"""Texts that several messages share: ranks and lines in short, and why no further call is possible."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from meshcomm.core._types import Ranks
from meshcomm.core._units import some_of
from meshcomm.core.failures.watch import WatchedWorld
from meshcomm.errors import CollectiveMismatch

K = TypeVar("K")

MAX_RANKS = MAX_LINES = 8


def ranks_by_value(ranks: Iterable[int], values: Iterable[K]) -> dict[K, list[int]]:
    """Return the *ranks* that have equal *values*, by the value.

    >>> ranks_by_value([0, 3, 5], "aba")
    {'a': [0, 5], 'b': [3]}
    """
    groups: dict[K, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        groups.setdefault(value, []).append(rank)
    return groups


def ranks_text(ranks: Sequence[int]) -> str:
    """Return *ranks* as text for a message; if there are many, only the first ones.

    >>> ranks_text([3]), ranks_text(range(10))
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    return f"rank{'s' * (len(ranks) > 1)} {some_of(ranks, MAX_RANKS)}"


def spans(ranks: Sequence[int]) -> str:
    """Return ascending *ranks* as text, with intervals.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    intervals: list[list[int]] = []
    for rank in ranks:
        if intervals and rank == intervals[-1][1] + 1:
            intervals[-1][1] = rank
        else:
            intervals.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals)


def first_lines(lines: list[str]) -> list[str]:
    """Return the first *lines*, and dots if there are more."""
    return lines[:MAX_LINES] + ["..."] * (len(lines) > MAX_LINES)


def in_calls(calls: Mapping[int, tuple[str, str]], verb: str, plural_verb: str) -> list[str]:
    """Return lines that say in which calls ranks are.

    *calls* has the operation of each rank, and the line of the program that called it; *verb* and *plural_verb* are
    for one rank and for several.

    >>> in_calls({0: ("barrier", "f.py:9 in step"), 1: ("", ""), 2: ("barrier", "f.py:9 in step")}, "waits", "wait")
    ['ranks 0, 2 wait in barrier, at f.py:9 in step', 'rank 1 waits']
    """
    texts = [f"{operation and f' in {operation}'}{line and f', at {line}'}" for operation, line in calls.values()]
    ranks_by_text = ranks_by_value(calls, texts).items()
    return first_lines(
        [f"{ranks_text(ranks)} {plural_verb if len(ranks) > 1 else verb}{text}" for text, ranks in ranks_by_text]
    )


class Unfinished(Protocol):
    """A nonblocking call that nobody has waited for yet."""

    begun_by: str  # name of the function that began it

    def wait(self) -> object:
        """Wait until it is complete."""


def never_waited_for(requests: Sequence[Unfinished]) -> str:
    """Return the error text for *requests*, nonblocking calls that nobody waited for."""
    more_text = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    return f"{requests[0].begun_by} was never waited for: {requests[0]}{more_text}. Call wait() on each request"


def why_over(error: BaseException, refused_call: str, ranks: Ranks, is_mesh: bool) -> tuple[str, str]:
    """Return why *ranks* make no call after *error*, as a text for these ranks and one for smaller sets of them.

    *refused_call* is the text of a call that this rank refused before, the cause of a mismatch; "" if there is none.
    *is_mesh* says whether the ranks are those of a mesh.

    >>> for text in why_over(KeyError("k"), "", range(4), True):
    ...     print(text.partition("; ")[::2])
    ("an earlier call of these ranks ended with an error (KeyError: 'k')", 'close() the mesh and make it again')
    ("an earlier call ... with an error (KeyError: 'k')", 'close() the mesh over ranks 0-3 and make it again')
    """
    error_text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if refused_call and isinstance(error, CollectiveMismatch):
        error_text += f"; before, this rank did not make a call: {refused_call}"
    cause, over = f"an earlier call of these ranks ended with an error ({error_text})", f"over ranks {spans(ranks)}"
    if is_mesh:
        return f"{cause}; close() the mesh and make it again", f"{cause}; close() the mesh {over} and make it again"
    reason = f"{cause}; to go on, make a mesh {over} and close() it"
    return reason, reason


def explain_none(error: BaseException, worlds: Iterable[WatchedWorld]) -> None:
    """Add a note to *error* if it is about a None, and this process is outside of a mesh of one of the *worlds*."""
    if isinstance(error, AttributeError | TypeError) and "NoneType" in str(error):
        for mesh in filter(None, (world.newest_mesh_without_me() for world in worlds)):
            error.add_note(
                f"this rank is outside of the {mesh}, so t.local and mesh.rank are None here: check first that "
                "mesh.rank is not None, or make a mesh of all ranks: create_mesh([('x', -1)])"
            )
            return
