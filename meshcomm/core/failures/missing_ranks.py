"""What the answers of a liveness check mean: who is missing, who has ended, and whether ranks make different calls.

Pure functions of what ranks have answered. Ranks are those of COMM_WORLD.
"""
# Which verdicts are sure
# =======================
#
# A verdict ends a program, so it must never be wrong about a right one. Ranks may be in different calls for long, and
# all be in the right: rank 0 is in a large exchange (call 5), while rank 1 had little to receive there and waits in
# call 6. "All wait, and in different calls" is therefore no proof. These are:
#
# (A) The calls on a rank set are numbered, and all its ranks make the same ones in the same order. So two ranks whose
#     n-th calls on a rank set are different operations are wrong, whatever they do now. Each rank remembers its last
#     calls. Only the call that the hindmost rank is in is compared, not one before it: a program may have caught the
#     error of an earlier difference, and gone on. All ranks that have not made it must be in a call, and none may have
#     moved between two liveness checks: ranks that still agree on this call raise ``CollectiveMismatch`` by themselves
#     once the last one is there. Calls of one operation differ if the digests of the calls differ after equally many
#     of them. Each rank remembers its last digests; they are asked for after as many calls as the hindmost rank has
#     noted. A rank that has made this call, and is in none on the rank set now, has made another one if its digest
#     differs, or if it has ended after fewer noted calls.
# (B) A rank that has ended makes no more calls. A rank that waits in call n for one that has ended after fewer calls
#     waits in vain.
# (C) A rank whose exchange on a rank set ended with an error makes no more calls on it: it raises MeshError. Ranks
#     that wait in a later call wait in vain. So do those that still wait in the call that failed: it may not have sent
#     all, and what they get cannot be trusted. It counts if it has failed before two liveness checks.
#
# Waiting for a request is no call of its own: ranks may wait for requests in any order. The number is then that of the
# call that started it, which is enough for (B). Of (A) only the digests apply: if ranks do nothing but wait, and their
# digests differ after equally many calls, they have made different ones. Names that users give their calls are no
# operations, and may differ.

import re
from collections.abc import Collection, Mapping, Sequence

from meshcomm.core.failures.answers import Answer
from meshcomm.core.failures.messages import MAX_LINES, first_of, ranks_by_value, ranks_text, spans
from meshcomm.core.failures.watch import kind

Answers = Mapping[int, Answer | None]
"""The answer of each rank of a rank set, None for those that gave none."""


def call_mismatch(answers: Answers, before: Answers, number: int) -> str:
    """Return what is different if the ranks are certain to make different calls, else nothing.

    *before* are the answers of an earlier liveness check; both asked for call *number*.

    >>> still = Answer(5, 2, "", "", 2, True, "", 1.0, "", False)
    >>> barrier = still._replace(requested_call="barrier", operation="barrier")
    >>> answers = {0: barrier, 1: still._replace(requested_call="to_numpy")}
    >>> print(call_mismatch(answers, answers, 2))
    ranks made different collective calls as call 2 on ranks 0-1:
      rank 0: barrier
      rank 1: to_numpy
    >>> alike = still._replace(requested_call="barrier", digest=5)
    >>> call_mismatch({0: alike, 1: alike}, {0: alike, 1: alike}, 2)
    ''
    >>> print(call_mismatch({0: alike, 1: alike._replace(digest=6)}, {0: alike, 1: alike}, 2))
    ranks made different collective calls as call 2 on ranks 0-1:
      rank 0: barrier
      rank 1: barrier
      with other arguments, or after other calls: run again with MESHCOMM_CHECK=1 to see which
    """
    calls: dict[tuple[str, int | None, str], list[int]] = {}
    past = {rank: answer for rank, answer in answers.items() if answer is not None and is_past(answer, number)}
    waiting = {rank: answer for rank, answer in answers.items() if rank not in past}
    for rank, answer in waiting.items():
        earlier = before.get(rank)
        if answer is None or earlier is None or answer.has_ended:
            return ""
        if not answer.call_number or not answer.requested_call:
            return ""
        seen = answer.calls, answer.call_number, answer.operation
        if seen != (earlier.calls, earlier.call_number, earlier.operation):
            return ""
        error = f"; it has to raise {answer.error}" if answer.error else ""
        operation = answer.requested_call if answer.is_in_call else answer.operation
        calls.setdefault((operation, answer.digest, error), []).append(rank)
    if number != min((answer.call_number for answer in waiting.values() if answer), default=0):
        return ""
    in_calls = all(answer.is_in_call for answer in waiting.values() if answer)
    kinds = {kind(operation) for operation, _, _ in calls}
    by_digests = not in_calls or len(kinds) == 1
    if by_digests:
        digests = {digest for _, digest, _ in calls}
        noted_calls = min(answer.noted_calls for answer in waiting.values() if answer)
        others = {rank: answer for rank, answer in past.items() if _differs(answer, digests, noted_calls)}
        if None in digests or (len(digests) == 1 and not others):
            return ""
        for rank, answer in others.items():
            operation = answer.requested_call or "another call"
            kinds.add(kind(operation))
            text = f"{operation}, and {'ended' if answer.has_ended else 'went on'}"
            calls.setdefault((text, answer.digest, ""), []).append(rank)
    lines = [f"  {ranks_text(ranks)}: {text}{error}" for (text, _, error), ranks in calls.items()][:MAX_LINES]
    if by_digests and (len(kinds) == 1 or not in_calls):
        lines.append("  with other arguments, or after other calls: run again with MESHCOMM_CHECK=1 to see which")
    where = f"{f'as call {number}' if in_calls else 'now or before,'} on ranks {spans(sorted(answers))}"
    return f"ranks made different collective calls {where}:\n" + "\n".join(lines)


def _differs(answer: Answer, digests: Collection[int | None], noted_calls: int) -> bool:
    """Return whether a rank has made other calls than one of those that have *digests* after so many *noted_calls*."""
    ended_before = answer.has_ended and answer.noted_calls < noted_calls
    return ended_before or (answer.digest is not None and answer.digest not in digests)


def is_past(answer: Answer, number: int) -> bool:
    """Return whether a rank has made call *number* of the rank set, and is in no call of it now."""
    return not answer.call_number and answer.rank_set_calls >= number


def ended_ranks(answers: Answers, before: Answers, number: int) -> str:
    """Return which ranks have ended without call *number*, or have failed on this rank set, or nothing.

    *before* are the answers of an earlier liveness check.

    >>> done = Answer(5, 2, "", "", 0, False, "", 1.0, "", True)
    >>> ended_ranks({0: done, 1: done._replace(rank_set_calls=3)}, {}, 3)
    'rank 0 has ended without it'
    >>> ended_ranks({0: done._replace(operation="close"), 1: done._replace(rank_set_calls=3)}, {}, 3)
    'rank 0 has closed the mesh without it'
    >>> failed = {0: done._replace(has_ended=False, end_reason="an exchange ended with an error (KeyError)"), 1: None}
    >>> ended_ranks(failed, failed, 2)
    'rank 0 makes no more calls on these ranks: an exchange ended with an error (KeyError)'
    >>> ended_ranks(failed, {}, 2)
    ''
    """
    gone = [rank for rank, a in answers.items() if a is not None and a.has_ended and a.rank_set_calls < number]
    if gone:
        closed = any(answer is not None and answer.operation for rank, answer in answers.items() if rank in gone)
        return has_ended(gone, closed)
    for rank, answer in answers.items():
        earlier = before.get(rank)
        if (
            answer is not None
            and earlier is not None
            and answer.end_reason
            and earlier.end_reason
            and answer.rank_set_calls <= number
        ):
            return f"rank {rank} makes no more calls on these ranks: {answer.end_reason}"
    return ""


def has_ended(ranks: Sequence[int], closed: bool = False) -> str:
    """Return that *ranks* have ended, or have *closed* the mesh, before a call."""
    left = "closed the mesh" if closed else "ended"
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} {left} without it"


def who_is_missing(answers: Answers, number: int, hosts: Mapping[int, str]) -> str:
    """Return a text on the ranks that are not in call *number* of their rank set, or on all if all have come to it.

    >>> behind = Answer(9, 3, "", "", 0, False, "", 4.0, "", False, program_line="heat.py:9 in step")
    >>> waits = behind._replace(operation="to_numpy", call_number=4, rank_set_calls=4, is_in_call=True)
    >>> print(who_is_missing({0: waits, 1: behind}, 4, {}))
    rank 1 has not arrived: it has been outside meshcomm for 4 s, after call 3 on these ranks,
      now at heat.py:9 in step
    """
    late = {rank: a for rank, a in answers.items() if a is None or a.rank_set_calls < number or a.error}
    texts = [(_activity(a, number), _whereabouts(a, hosts.get(rank, ""))) for rank, a in (late or answers).items()]
    lines = [
        f"{ranks_text(ranks)} {_plural(text) if len(ranks) > 1 else text}{where}"
        for (text, where), ranks in ranks_by_value(late or answers, texts).items()
    ]
    if not late:
        lines.insert(0, f"all of ranks {spans(sorted(answers))} have come to this call")
    return "\n".join(first_of(lines))


def _whereabouts(answer: Answer | None, host: str) -> str:
    if answer is None:
        return host and f" (on host {host})"
    return f",\n  now at {answer.program_line}" if answer.program_line and not answer.has_ended else ""


def _activity(answer: Answer | None, number: int) -> str:
    if answer is None:
        return "does not answer: it is stopped or lost, or runs code that keeps other threads of Python from running"
    seconds = f"{answer.idle_seconds:.0f} s"
    waited = f"has waited {seconds} in {answer.operation}"
    this_call = f", call {answer.call_number} on these ranks" if answer.call_number else ""
    elsewhere = f" on ranks {answer.other_ranks} (another mesh or communicator)" if answer.other_ranks else ""
    calls = answer.rank_set_calls
    after = f"after call {calls} on these ranks" if calls else "before its first call on these ranks"
    if answer.has_ended:
        what = f"has {'closed the mesh' if answer.operation else 'ended'}, {after}"
    elif calls < number and answer.operation:
        what = f"has not arrived: it {waited}{this_call or elsewhere}"
    elif calls < number:
        what = f"has not arrived: it has been outside meshcomm for {seconds}, {after}"
    elif this_call:
        what = f"{waited}{this_call}"
    elif answer.operation:
        what = f"went on, and {waited}{elsewhere}"
    else:
        what = f"went on, and has been outside meshcomm for {seconds}"
    return f"{what}; it has to raise {answer.error}" if answer.error else what


def _plural(text: str) -> str:
    """Return *text* as it is said of several ranks.

    >>> _plural("has not arrived: it has waited 4 s in barrier")
    'have not arrived: they have waited 4 s in barrier'
    >>> _plural("has waited 4 s in wait for a relayout")
    'have waited 4 s in wait for a relayout'
    """
    what, reason, error = text.partition("; it has to raise ")
    for one, many in (("does not", "do not"), ("it is", "they are"), ("it", "they"), ("has", "have")):
        what = re.sub(rf"\b{one}\b", many, what)
    return (
        what.replace("or runs", "or run").replace("before its", "before their")
        + reason.replace("it has", "they have")
        + error
    )
