"""The outcome of a cell on each rank, and the outcome that rank 0 shows."""

import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TypedDict

from meshcomm.core._callers import is_ours, shortened_traceback
from meshcomm.core.failures import host_signals
from meshcomm.core.failures.messages import ranks_by_value, spans
from meshcomm.core.ranks.interruptible import RankSetState


class CellError(TypedDict):
    """The error with which a cell ends on a rank."""

    name: str
    """The class of the error; "" if the rank was stopped because of other ranks."""
    text: str
    key: str
    """A text that is equal on ranks with the same error."""
    traceback: list[str]


class Outcome(TypedDict, total=False):
    """The outcome of a cell on a rank."""

    error: CellError
    output: str
    warnings: list[str]
    show: bool
    """Whether the user asked for the output of this rank."""
    facts: list[str]
    """A row of ``%mesh``."""
    states: dict[str, RankSetState]
    """The calls that the rank has made: see `meshcomm.core.ranks.interruptible.call_states`."""


def cell_error(error: BaseException, lines: list[str]) -> CellError:
    """Return *error*, with the *lines* of its traceback, as an entry of an outcome."""
    name, text = type(error).__name__, str(error)
    key = host_signals.shared_text(error)[0] if host_signals.is_shared(error) else f"{name}: {text}"
    return CellError(name=name, text=text, key=key, traceback=lines)


def stopped_error(error: CellError, name: str, text: str) -> CellError:
    """Return *error*, of a rank that was stopped, with the *name* and *text* of the error for which it was stopped."""
    last_line = f"{name}: {text}".removesuffix(": ")
    lines = error["traceback"]
    if lines and lines[-1].startswith("KeyboardInterrupt"):  # by which the rank was stopped
        lines = lines[:-1]
    return CellError(
        name=name, text=text, key=last_line, traceback=lines if name in "".join(lines[-1:]) else [*lines, last_line]
    )


def traceback_lines(error: BaseException) -> list[str]:
    """Return the traceback of *error*, from the program on and without calls of meshcomm."""
    entry = error.__traceback__
    while entry is not None and _runs_cells(entry.tb_frame):
        entry = entry.tb_next
    with shortened_traceback(error.with_traceback(entry)):
        return "".join(traceback.format_exception(error)).rstrip().split("\n")


def _runs_cells(frame: FrameType) -> bool:
    return is_ours(frame) or str(frame.f_globals.get("__name__")).partition(".")[0] in ("IPython", "asyncio")


def show_outcomes(outcomes: Sequence[Outcome]) -> CellError | None:
    """Show the output and warnings of ranks other than 0, and return the error of the cell.

    An error of all ranks is shown once, other errors with their ranks.
    """
    for rank, outcome in enumerate(outcomes):
        if rank and outcome.get("show"):
            sys.stdout.write(f"rank {rank}:\n{outcome['output']}")
    _show_mesh_rows(outcomes)
    shown_warnings = outcomes[0]["warnings"]
    sys.stderr.writelines(
        dict.fromkeys(text for outcome in outcomes for text in outcome["warnings"] if text not in shown_warnings)
    )
    sys.stderr.flush()
    all_errors = {rank: outcome["error"] for rank, outcome in enumerate(outcomes) if "error" in outcome}
    own_errors = {rank: error for rank, error in all_errors.items() if error["name"]}
    groups = list(ranks_by_value(own_errors, [error["key"] for error in own_errors.values()]).values())
    if not groups or len(groups[0]) == len(outcomes):
        return own_errors.get(0)
    lines: list[str] = []
    for ranks in groups:
        error, outcome = own_errors[ranks[0]], outcomes[ranks[0]]
        if ranks[0] and outcome["output"] and not outcome.get("show"):
            sys.stdout.write(f"rank {ranks[0]} has printed:\n{outcome['output']}")
        error_line = [f"{error['name']}: {error['text']}"]
        lines += [f"{_ranks_text(ranks)} of {len(outcomes)}:", *(error["traceback"] or error_line)]
    sys.stdout.flush()
    first_error = own_errors[groups[0][0]]
    return {**first_error, "text": f"{first_error['text']} (on {_ranks_text(groups[0])})", "traceback": lines}


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"


def _show_mesh_rows(outcomes: Sequence[Outcome]) -> None:
    rows = [["rank", "host", "process", "memory"], *(outcome["facts"] for outcome in outcomes if "facts" in outcome)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if len(rows) > 1 else ():
        sys.stdout.write("  ".join(map(str.ljust, row, widths)).rstrip() + "\n")
