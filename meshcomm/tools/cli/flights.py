"""``python -m meshcomm flights``."""

from collections.abc import Sequence
from pathlib import Path

from meshcomm.core.failures.flights import Flight
from meshcomm.core.failures.messages import ranks_text
from meshcomm.tools.cli.flight_files import first_difference, missing_ranks, read
from meshcomm.tools.cli.show import on_first_rank
from meshcomm.tools.cli.terminal import say

_SHOWN_CALLS = 5


def flights(folder: Path) -> int:
    """Print what the flight files in *folder* say, and return the exit code. Under mpiexec the first rank does it."""
    damaged: list[str] = []
    return on_first_rank(lambda: say(summary(read(folder, damaged), damaged)))


def summary(flights_read: Sequence[Flight], damaged: Sequence[str] = ()) -> str:
    """Return where each rank is, the first difference between ranks, their last calls and their stacks, as text.

    *damaged* has lines about files that are no flights.
    """
    lines = [
        f"{len(flights_read)} of {max(flight['size'] for flight in flights_read)} ranks wrote what they did last",
        "",
    ]
    lines += [_rank_line(flight) for flight in flights_read]
    absent_ranks = missing_ranks(flights_read)
    if absent_ranks:
        cause = " that can be read" if damaged else ": killed, stopped, or ended before"
        lines.append(f"{ranks_text(absent_ranks)} wrote nothing{cause}")
    lines += damaged
    difference = first_difference(flights_read)
    if difference is not None:
        no_difference = (
            "the operations that all of them remember are the same, and so are arguments as far as they are known"
        )
        lines += ["", f"first difference: {difference}" if difference else no_difference]
    elif len(flights_read) > 1:
        lines += ["", "calls cannot be compared: no two of these ranks remember the same call"]
    for flight in flights_read:
        lines += ["", f"rank {flight['rank']} on host {flight['host']}, process {flight['process']}"]
        reason = flight["reason"].partition("\n")[0]
        last_calls = flight["calls"][-_SHOWN_CALLS:]
        lines += [f"  {reason}", f"  its last {len(last_calls)} calls, of {len(flight['calls'])} that are kept:"]
        for call in last_calls:
            age = f"{flight['written'] - call['began']:.3f} s ago"
            arguments_text = f": {call['about']}" if call["about"] else ""
            lines.append(f"    {call['operation']}{_call_text(call['number'], call['ranks'])}, {age}{arguments_text}")
        lines += ["  " + line for line in flight["stack"].splitlines()]
    return "\n".join(lines)


def _rank_line(flight: Flight) -> str:
    if flight["waits"]:
        activity = f"waits in {flight['waits']}"
        if flight["calls"]:
            activity += _call_text(flight["calls"][-1]["number"], flight["calls"][-1]["ranks"])
    else:
        activity = "is outside meshcomm"
    location = f", at {flight['at']}" if flight["at"] else ""
    return f"rank {flight['rank']}: {activity} for {flight['since']:.1f} s{location}"


def _call_text(number: int, ranks: str) -> str:
    return f", call {abs(number)} on ranks {ranks}" if number else ""
