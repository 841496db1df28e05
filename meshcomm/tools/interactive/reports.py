"""What rank 0 shows of the other ranks when a cell has ended."""

from collections.abc import Sequence
from typing import NamedTuple

from meshcomm.core.failures.messages import ranks_by_value, spans
from meshcomm.tools.interactive.cells import Outcome


class Report(NamedTuple):
    """What is to be shown after the output of rank 0: streams with texts, and the error of the cell."""

    output: list[tuple[str, str]]
    error: tuple[str, str, list[str]] | None
    """Its class, its text and the lines of its traceback."""


def report(outcomes: Sequence[Outcome]) -> Report:
    """Return what to show of a cell: an error of all ranks once, others with the ranks that have them."""
    output: list[tuple[str, str]] = []
    for rank, outcome in enumerate(outcomes):
        if rank and outcome.get("show"):
            output.append(("stdout", f"rank {rank}:\n"))
            output += [(stream, text) for stream, text in outcome["output"]]
    output += _facts(outcomes) + _warnings(outcomes)
    failed = [rank for rank, outcome in enumerate(outcomes) if outcome["status"] == "error"]
    if not failed:
        stopped = next((outcome for outcome in outcomes if outcome["status"] == "stopped"), None)
        return Report(output, None if stopped is None else _error(stopped))
    groups = sorted(ranks_by_value(failed, [outcomes[rank]["key"] for rank in failed]).values())
    if len(groups) == 1 and len(failed) == len(outcomes):
        return Report(output, _error(outcomes[0]))
    for ranks in groups:
        outcome = outcomes[ranks[0]]
        if ranks[0] and not outcome.get("show"):
            texts = [(stream, text) for stream, text in outcome["output"]]
            output += [("stdout", f"rank {ranks[0]} has printed:\n"), *texts] if texts else []
    lines: list[str] = []
    for ranks in groups:
        name, text, traceback = _error(outcomes[ranks[0]])
        heading = f"rank{'s' * (len(ranks) > 1)} {spans(ranks)} of {len(outcomes)}:"
        lines += [heading, *(traceback or [f"{name}: {text}"])]
        if traceback and name not in traceback[-1]:  # it was stopped while it waited in vain
            lines.append(f"{name}: {text}")
    name, text, _ = _error(outcomes[groups[0][0]])
    return Report(output, (name, f"{text} (on rank{'s' * (len(groups[0]) > 1)} {spans(groups[0])})", lines))


def _error(outcome: Outcome) -> tuple[str, str, list[str]]:
    return outcome["name"], outcome["text"], outcome["traceback"]


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
