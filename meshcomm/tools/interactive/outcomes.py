"""How a cell ends on each rank, and what rank 0 shows of that."""

import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple, TypedDict

from meshcomm.core._callers import in_short, is_ours
from meshcomm.core._types import Json
from meshcomm.core.failures import host_signals
from meshcomm.core.failures.messages import ranks_by_value, spans


class CellError(TypedDict):
    """With what a cell ends on a rank."""

    name: str
    """The class of the error; nothing if the rank was stopped because of others."""
    text: str
    key: str
    """The same on ranks with the same error."""
    traceback: list[str]


class Outcome(TypedDict, total=False):
    """How a cell ends on a rank."""

    error: CellError
    output: str
    warnings: list[str]
    show: bool
    """Whether the output was asked for."""
    facts: list[str]
    """A row of ``%mesh``."""
    states: dict[str, list[Json]]
    """What the rank has called: see `meshcomm.core.ranks.interruptible.call_states`."""


class CellReport(NamedTuple):
    """What is to be shown after the output of rank 0: streams with texts, and the error of the cell."""

    output: list[tuple[str, str]]
    error: tuple[str, str, list[str]] | None
    """Its class, its text and the lines of its traceback."""


def cell_error(error: BaseException, lines: list[str]) -> CellError:
    """Return *error*, with the *lines* of its traceback, as outcomes have it."""
    name, text = type(error).__name__, str(error)
    key = host_signals.shared_text(error)[0] if host_signals.is_shared(error) else f"{name}: {text}"
    return CellError(name=name, text=text, key=key, traceback=lines)


def traceback_lines(error: BaseException) -> list[str]:
    """Return the traceback of *error*, from the program on and without calls of meshcomm."""
    entry = error.__traceback__
    while entry is not None and _runs_cells(entry.tb_frame):
        entry = entry.tb_next
    with in_short(error.with_traceback(entry)):
        return "".join(traceback.format_exception(error)).rstrip().split("\n")


def _runs_cells(frame: FrameType) -> bool:
    return is_ours(frame) or str(frame.f_globals.get("__name__")).partition(".")[0] in ("IPython", "asyncio")


def report(outcomes: Sequence[Outcome]) -> CellReport:
    """Return what to show of a cell: an error of all ranks once, others with the ranks that have them."""
    output = [
        ("stdout", f"rank {rank}:\n{outcome['output']}")
        for rank, outcome in enumerate(outcomes)
        if rank and outcome.get("show")
    ]
    output += _facts(outcomes) + _warnings(outcomes)
    errors = {
        rank: outcome["error"]
        for rank, outcome in enumerate(outcomes)
        if "error" in outcome and outcome["error"]["name"]
    }
    if not errors:
        return CellReport(output, None)
    groups = list(ranks_by_value(errors, [error["key"] for error in errors.values()]).values())
    first = errors[groups[0][0]]
    if len(groups[0]) == len(outcomes):
        return CellReport(output, (first["name"], first["text"], first["traceback"]))
    lines: list[str] = []
    for ranks in groups:
        error, outcome = errors[ranks[0]], outcomes[ranks[0]]
        if ranks[0] and outcome["output"] and not outcome.get("show"):
            output.append(("stdout", f"rank {ranks[0]} has printed:\n{outcome['output']}"))
        last = f"{error['name']}: {error['text']}".removesuffix(": ")
        lines += [f"rank{'s' * (len(ranks) > 1)} {spans(ranks)} of {len(outcomes)}:", *error["traceback"]]
        if not error["traceback"] or error["name"] not in error["traceback"][-1]:  # or it was stopped
            lines.append(last)
    text = f"{first['text']} (on rank{'s' * (len(groups[0]) > 1)} {spans(groups[0])})"
    return CellReport(output, (first["name"], text, lines))


def _facts(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    rows = [outcome["facts"] for outcome in outcomes if "facts" in outcome]
    if not rows:
        return []
    rows = [["rank", "host", "process", "memory"], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [("stdout", "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows))]


def _warnings(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return the warnings that rank 0 has not shown, each once."""
    texts = dict.fromkeys(text for outcome in outcomes[1:] for text in outcome["warnings"])
    return [("stderr", text) for text in texts if text not in outcomes[0]["warnings"]]
