"""What ranks ask each other while some of them wait, and what they answer.

There is one question: what do you do, seen from these ranks and their call of this number? Where ranks have a
communicator, a liveness check carries it over MPI (`liveness`). Where they have none yet, sockets do, on each host
(`first_calls`). The watchdog of each rank asks and answers, whatever its main thread does.
"""

from typing import NamedTuple

from meshcomm.core.failures import stacks
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import WatchedTeam, watch


class Answer(NamedTuple):
    """What a rank does, seen from the ranks of a team."""

    calls: int  # how many calls it has made in all; it changes with each one
    team_calls: int  # how many calls it has made on this team
    asked: str  # what the call on this team was that it was asked for; nothing if it does not remember
    operation: str
    """What it waits in now; nothing if it is in no call. Of a rank that makes no more calls: whether it closes."""
    number: int  # the number of that call if it is on this team, else 0
    waits: bool  # whether that call is on this team, and is no request
    others: str  # the ranks of that call if it is on another team
    since: float  # for how many seconds this has been so
    error: str  # what it would raise as soon as the others agree
    ended: bool  # whether it makes no more calls: its program has ended, or it closes the mesh
    noted: int = 0  # how many calls are in the digest of its calls on this team
    digest: int | None = None
    """That digest after the number of calls that it was asked for; None if it does not remember."""
    files: bool = False  # whether it reads or writes a file
    at: str = ""  # the line of the program that it is at, if it is in no call
    over: str = ""  # why it makes no more calls on this team; nothing if it may


class WaitReport(NamedTuple):
    """What a rank that waits has learnt."""

    calls: int  # how many calls the rank had made when it asked
    ended: str  # which ranks have ended without its call, or can make none; or nothing
    text: str  # who is missing
    speaks: bool  # whether this rank is to warn the user: one rank does it for all
    files: bool = False  # whether another rank reads or writes a file: that may take long


def answer(team: WatchedTeam | None, number: int, noted: int = -1, last: Answer | None = None) -> Answer:
    """Return what this rank answers to ranks that wait in call *number* of *team*; None is a team it does not know.

    With the digest after so many *noted* calls. *last* is what it said when it left the team.
    """
    asked = next((call[0] for call in list(watch.recent)[::-1] if call[1] is team and call[2] == number), "")
    now = (last or state(team))._replace(asked=asked, files=watch.is_in_file_io_or_library())
    return now if team is None else now._replace(noted=team.noted, digest=team.digest_after(noted))


def state(team: WatchedTeam | None, ended: bool = False) -> Answer:
    """Return what this rank does now, seen from *team*, or that it has *ended* its calls there."""
    error = f"{type(watch.error).__name__}: {watch.error}" if watch.error is not None else ""
    calls, over = (team.calls, team.turn.over or "") if team is not None else (0, "")
    call = None if ended else watch.call()
    if call is None:
        at = "" if ended else stacks.of_main()
        return Answer(watch.count, calls, "", "", 0, False, "", watch.idle_seconds, error, ended, at=at, over=over)
    number = call[2] if call[1] is team else 0
    others = "" if call[1] is team or call[1] is None else team_name(call[1])
    waits, operation = number > 0, watch.operation()
    return Answer(
        watch.count, calls, "", operation, abs(number), waits, others, watch.idle_seconds, error, False, over=over
    )


def team_name(team: WatchedTeam) -> str:
    """Return the ranks of *team* in COMM_WORLD, in short."""
    return spans(sorted(team.world.ranks_in_comm_world(team.ranks)))
