"""What ranks ask each other while some of them wait, and what they answer.

There is one question: what do you do, seen from these ranks and their call of this number? Where ranks have a
communicator, a liveness check carries it over MPI (`liveness`). Where they have none yet, sockets do, on each host
(`first_calls`). The watchdog of each rank asks and answers, whatever its main thread does.
"""

from typing import NamedTuple

from meshcomm.core.failures import stacks
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import WatchedRankSet, watch


class Answer(NamedTuple):
    """What a rank does, seen from the ranks of a rank set."""

    calls: int  # how many calls it has made in all; it changes with each one
    rank_set_calls: int  # how many calls it has made on this rank set
    requested_call: str  # what the call on this rank set was that it was asked for; nothing if it does not remember
    operation: str
    """What it waits in now; nothing if it is in no call. Of a rank that makes no more calls: whether it closes."""
    number: int  # the number of that call if it is on this rank set, else 0
    waits: bool  # whether that call is on this rank set, and is no request
    others: str  # the ranks of that call if it is on another rank set
    since: float  # for how many seconds this has been so
    error: str  # what it would raise as soon as the others agree
    ended: bool  # whether it makes no more calls: its program has ended, or it closes the mesh
    noted_calls: int = 0  # how many calls are in the digest of its calls on this rank set
    digest: int | None = None
    """That digest after the number of calls that it was asked for; None if it does not remember."""
    files: bool = False  # whether it reads or writes a file
    at: str = ""  # the line of the program that it is at, if it is in no call
    end_reason: str = ""  # why it makes no more calls on this rank set; nothing if it may


class WaitReport(NamedTuple):
    """What a rank that waits has learnt."""

    calls: int  # how many calls the rank had made when it asked
    ended: str  # which ranks have ended without its call, or can make none; or nothing
    text: str  # who is missing
    speaks: bool  # whether this rank is to warn the user: one rank does it for all
    files: bool = False  # whether another rank reads or writes a file: that may take long


def answer(rank_set: WatchedRankSet | None, number: int, noted_calls: int = -1, last: Answer | None = None) -> Answer:
    """Return what this rank answers to ranks that wait in call *number* of *rank_set*; None if it does not know them.

    With the digest after so many *noted_calls*. *last* is what it said when it left the rank set.
    """
    name = next((call[0] for call in list(watch.recent)[::-1] if call[1] is rank_set and call[2] == number), "")
    now = (last or state(rank_set))._replace(requested_call=name, files=watch.is_in_file_io_or_library())
    if rank_set is None:
        return now
    return now._replace(noted_calls=rank_set.noted, digest=rank_set.digest_after(noted_calls))


def state(rank_set: WatchedRankSet | None, ended: bool = False) -> Answer:
    """Return what this rank does now, seen from *rank_set*, or that it has *ended* its calls there."""
    error = f"{type(watch.error).__name__}: {watch.error}" if watch.error is not None else ""
    calls, over = (rank_set.calls, rank_set.call_lock.end_reason or "") if rank_set is not None else (0, "")
    call = None if ended else watch.call()
    if call is None:
        at = "" if ended else stacks.of_main()
        return Answer(
            watch.count, calls, "", "", 0, False, "", watch.idle_seconds, error, ended, at=at, end_reason=over
        )
    number = call[2] if call[1] is rank_set else 0
    others = "" if call[1] is rank_set or call[1] is None else rank_set_name(call[1])
    waits, operation = number > 0, watch.operation()
    return Answer(
        watch.count,
        calls,
        "",
        operation,
        abs(number),
        waits,
        others,
        watch.idle_seconds,
        error,
        False,
        end_reason=over,
    )


def rank_set_name(rank_set: WatchedRankSet) -> str:
    """Return the ranks of *rank_set* in COMM_WORLD, in short."""
    return spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
