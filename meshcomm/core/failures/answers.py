"""What ranks ask each other while some of them wait, and what they answer.

There is one question: what are you doing? It names the ranks that ask, and the number of the call in which they wait.
Where ranks have a communicator, a liveness check carries it over MPI (`liveness`). Where they have none yet, sockets
do, on each host (`first_calls`). The watchdog of each rank asks and answers, whatever its main thread does.
"""

from typing import NamedTuple

from meshcomm.core.failures import stacks
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import WatchedRankSet, watch


class Answer(NamedTuple):
    """What a rank does, seen from the ranks of a rank set."""

    calls: int  # how many calls it has made in all; it changes with each one
    rank_set_calls: int  # how many calls it has made on this rank set
    requested_call: str  # the operation of the call that the question named; nothing if it is not remembered
    operation: str
    """What it waits in now; nothing if it is in no call. Of a rank that has ended: close, if it closes the mesh."""
    call_number: int  # the number of that call if it is on this rank set, else 0
    is_in_call: bool  # whether that call is on this rank set, and does not wait for a nonblocking call
    other_ranks: str  # the ranks of that call if it is on another rank set
    idle_seconds: float  # for how many seconds this has been so
    error: str  # what it would raise as soon as the others agree
    has_ended: bool  # whether it makes no more calls: its program has ended, or it closes the mesh
    noted_calls: int = 0  # how many calls are in the digest of its calls on this rank set
    digest: int | None = None
    """The digest after as many calls as the question says; None if it is not remembered."""
    uses_files: bool = False  # whether it reads or writes a file, or is in a library
    program_line: str = ""  # the line of the program where it is, if it is in no call
    end_reason: str = ""  # why it makes no more calls on this rank set; nothing if it may


class WaitReport(NamedTuple):
    """What a rank that waits has learnt."""

    calls: int  # how many calls the rank had made when it asked
    ended_ranks: str  # which ranks have ended without its call, or can make none; or nothing
    text: str  # who is missing
    is_speaker: bool  # whether this rank is to warn the user: one rank does it for all
    files: bool = False  # whether another rank reads or writes a file: that may take long


def answer(rank_set: WatchedRankSet | None, number: int, noted_calls: int = -1, last: Answer | None = None) -> Answer:
    """Return what this rank answers to ranks that wait in call *number* of *rank_set*; None if it does not know them.

    The answer has the digest after the first *noted_calls*. *last* is the answer with which it left the rank set.
    """
    recent_calls = reversed(list(watch.recent))
    operation = next((name for name, ranks, n, _ in recent_calls if ranks is rank_set and n == number), "")
    now = (last or state(rank_set))._replace(requested_call=operation, uses_files=watch.is_in_file_io_or_library())
    if rank_set is None:
        return now
    return now._replace(noted_calls=rank_set.noted, digest=rank_set.digest_after(noted_calls))


def state(rank_set: WatchedRankSet | None, has_ended: bool = False) -> Answer:
    """Return what this rank does now, seen from *rank_set*, or, if it *has_ended*, that."""
    error = f"{type(watch.error).__name__}: {watch.error}" if watch.error is not None else ""
    num_calls, end_reason = (0, "") if rank_set is None else (rank_set.calls, rank_set.call_lock.end_reason or "")
    now = Answer(
        watch.count, num_calls, "", "", 0, False, "", watch.idle_seconds, error, has_ended, end_reason=end_reason
    )
    call = None if has_ended else watch.call()
    if call is None:
        return now._replace(program_line="" if has_ended else stacks.of_main())
    _, called_on, number, _ = call
    if called_on is rank_set:  # a negative number waits for a nonblocking call
        return now._replace(operation=watch.operation(), call_number=abs(number), is_in_call=number > 0)
    return now._replace(operation=watch.operation(), other_ranks="" if called_on is None else rank_set_name(called_on))


def rank_set_name(rank_set: WatchedRankSet) -> str:
    """Return the ranks of *rank_set* in COMM_WORLD, in short."""
    return spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
