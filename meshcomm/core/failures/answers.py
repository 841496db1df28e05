"""The question that ranks ask each other while some of them wait, and the answers.

There is one question: what are you doing? It names the ranks that ask, and the number of the call in which they wait.
If ranks have a communicator, a liveness check sends the question over MPI (`liveness`). If they have none yet, it goes
through sockets on each host (`first_calls`). The watchdog of a rank asks and answers, whatever its main thread does.
"""

from typing import NamedTuple

from meshcomm.core.failures import stacks
from meshcomm.core.failures.messages import spans
from meshcomm.core.failures.watch import WatchedRankSet, watch


class Answer(NamedTuple):
    """The answer of a rank: what it does, seen from a rank set."""

    calls: int  # number of all calls that it has made
    rank_set_calls: int  # number of calls that it has made on this rank set
    requested_call: str  # operation of the call that the question named; "" if it is not remembered
    operation: str
    """Operation that it waits in; "" if it is in no call. Of a rank that has ended: "close" if it closed the mesh."""
    call_number: int  # number of that call if it is on this rank set, else 0
    is_in_call: bool  # whether that call is on this rank set, and does not wait for a nonblocking call
    other_ranks: str  # ranks of that call if it is on another rank set
    idle_seconds: float  # seconds since this last changed
    error: str  # error that it will raise as soon as the others agree; "" if none
    has_ended: bool  # whether it makes no more calls: its program has ended, or it closes the mesh
    noted_calls: int = 0  # number of calls in the digest of its calls on this rank set
    digest: int | None = None
    """Digest after the number of calls that the question names; None if it is not remembered."""
    uses_files: bool = False  # whether it reads or writes a file, or is in a library
    program_line: str = ""  # line of the program that it is at, if it is in no call
    end_reason: str = ""  # why it makes no more calls on this rank set; "" if it may


class WaitReport(NamedTuple):
    """The answers of other ranks in short, for a rank that waits."""

    calls: int  # number of calls that the rank had made when it asked
    ended_ranks: str  # text on the ranks that have ended without its call, or can make none; "" without such
    text: str  # text on the missing ranks
    is_speaker: bool  # whether this rank warns the user: one rank does so for all
    files: bool = False  # whether another rank reads or writes a file: that may take long


def answer(
    rank_set: WatchedRankSet | None, number: int, noted_calls: int = -1, last_answer: Answer | None = None
) -> Answer:
    """Return the answer of this rank to ranks that wait in call *number* of *rank_set*, which is None if unknown here.

    The answer has the digest after the first *noted_calls*. *last_answer* is the one with which it left the rank set.
    """
    recent_calls = reversed(list(watch.recent))
    call = next(
        (
            call_operation
            for call_operation, call_rank_set, call_number, _ in recent_calls
            if call_rank_set is rank_set and call_number == number
        ),
        "",
    )
    reply = (last_answer or state(rank_set))._replace(requested_call=call, uses_files=watch.is_in_file_io_or_library())
    if rank_set is None:
        return reply
    return reply._replace(noted_calls=rank_set.noted, digest=rank_set.digest_after(noted_calls))


def state(rank_set: WatchedRankSet | None, has_ended: bool = False) -> Answer:
    """Return the answer for what this rank does now, seen from *rank_set*, or for a rank that *has_ended*."""
    error = f"{type(watch.error).__name__}: {watch.error}" if watch.error is not None else ""
    call_count, end_reason = (0, "") if rank_set is None else (rank_set.calls, rank_set.call_lock.end_reason or "")
    result = Answer(
        watch.count, call_count, "", "", 0, False, "", watch.idle_seconds, error, has_ended, end_reason=end_reason
    )
    call = None if has_ended else watch.call()
    if call is None:
        return result._replace(program_line="" if has_ended else stacks.of_main())
    _, call_rank_set, number, _ = call
    if call_rank_set is rank_set:  # a negative number waits for a nonblocking call
        return result._replace(operation=watch.operation(), call_number=abs(number), is_in_call=number > 0)
    return result._replace(
        operation=watch.operation(), other_ranks="" if call_rank_set is None else rank_set_name(call_rank_set)
    )


def rank_set_name(rank_set: WatchedRankSet) -> str:
    """Return the ranks of *rank_set* in COMM_WORLD, in short."""
    return spans(sorted(rank_set.world.ranks_in_comm_world(rank_set.ranks)))
