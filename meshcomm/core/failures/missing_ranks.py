"""Verdicts on the answers of a liveness check: who is missing, who has ended, whether ranks make different calls.

Pure functions of the answers. Ranks are those of COMM_WORLD.
"""
# Which verdicts are sure
# =======================
#
# A verdict ends a program, so it must never be wrong about a correct one. In a correct program ranks may be in
# different calls for long: rank 0 is in a large exchange (call 5), while rank 1 had little to receive there and waits
# in call 6. "All wait, and in different calls" is therefore no proof. These are proofs:
#
# (A) The calls on a rank set are numbered, and all its ranks make the same ones in the same order. So a program is
#     wrong if the n-th calls of two ranks on a rank set are different operations, whatever they do now. Each rank
#     remembers its last calls. Only the call of the hindmost rank is compared, not one before it: a program may have
#     caught the error of an earlier difference, and gone on. All ranks that have not completed this call must be in a
#     call, and none may have moved between two liveness checks: ranks that still agree on this call raise
#     ``CollectiveMismatch`` by themselves once the last one is there. Calls of one operation differ if the digests
#     after the same number of calls differ. Each rank remembers its last digests; the one asked for is after the
#     number of calls that the hindmost rank has noted. A rank that has completed this call, and is in none on the rank
#     set now, has made another one if its digest differs, or if it has ended after fewer noted calls.
# (B) A rank that has ended makes no more calls. A rank that waits in call n for one that has ended after fewer calls
#     waits in vain.
# (C) A rank whose exchange on a rank set ended with an error makes no more calls on it: it raises MeshError. Ranks
#     that wait in a later call wait in vain. So do ranks that still wait in the call that failed: the failed rank may
#     not have sent all, and what they get cannot be trusted. The failure counts if it is seen in two liveness checks.
#
# Waiting for a request is no call of its own: ranks may wait for requests in any order. The number is then that of the
# call that started it, which is enough for (B). Of (A) only the digests apply: if ranks do nothing but wait, and their
# digests differ after the same number of calls, they have made different ones. Names that users give their calls are
# no operations, and may differ.

import re
from collections.abc import Collection, Mapping, Sequence

from meshcomm.core.failures.answers import Answer
from meshcomm.core.failures.messages import MAX_LINES, first_lines, ranks_by_value, ranks_text, spans
from meshcomm.core.failures.watch import kind

Answers = Mapping[int, Answer | None]
"""The answer of each rank of a rank set; None for a rank that gave none."""


def call_mismatch(answers: Answers, earlier_answers: Answers, number: int) -> str:
    """Return the text on different calls if the ranks make different ones for certain, else "".

    *earlier_answers* are those of an earlier liveness check; both asked for call *number*.

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
    past_answers = {rank: answer for rank, answer in answers.items() if answer is not None and is_past(answer, number)}
    waiting_answers = {rank: answer for rank, answer in answers.items() if rank not in past_answers}
    for rank, answer in waiting_answers.items():
        earlier_answer = earlier_answers.get(rank)
        if answer is None or earlier_answer is None or answer.has_ended:
            return ""
        if not answer.call_number or not answer.requested_call:
            return ""
        waiting_state = answer.calls, answer.call_number, answer.operation
        if waiting_state != (earlier_answer.calls, earlier_answer.call_number, earlier_answer.operation):
            return ""
        error = f"; it has to raise {answer.error}" if answer.error else ""
        operation = answer.requested_call if answer.is_in_call else answer.operation
        calls.setdefault((operation, answer.digest, error), []).append(rank)
    if number != min((answer.call_number for answer in waiting_answers.values() if answer), default=0):
        return ""
    all_in_calls = all(answer.is_in_call for answer in waiting_answers.values() if answer)
    kinds = {kind(operation) for operation, _, _ in calls}
    by_digests = not all_in_calls or len(kinds) == 1
    if by_digests:
        digests = {digest for _, digest, _ in calls}
        noted_calls = min(answer.noted_calls for answer in waiting_answers.values() if answer)
        differing = {rank: answer for rank, answer in past_answers.items() if _differs(answer, digests, noted_calls)}
        if None in digests or (len(digests) == 1 and not differing):
            return ""
        for rank, answer in differing.items():
            operation = answer.requested_call or "another call"
            kinds.add(kind(operation))
            text = f"{operation}, and {'ended' if answer.has_ended else 'went on'}"
            calls.setdefault((text, answer.digest, ""), []).append(rank)
    lines = [f"  {ranks_text(ranks)}: {text}{error}" for (text, _, error), ranks in calls.items()][:MAX_LINES]
    if by_digests and (len(kinds) == 1 or not all_in_calls):
        lines.append("  with other arguments, or after other calls: run again with MESHCOMM_CHECK=1 to see which")
    call_text = f"{f'as call {number}' if all_in_calls else 'now or before,'} on ranks {spans(sorted(answers))}"
    return f"ranks made different collective calls {call_text}:\n" + "\n".join(lines)


def _differs(answer: Answer, digests: Collection[int | None], noted_calls: int) -> bool:
    """Return whether a rank has made other calls than a rank with one of *digests* after *noted_calls* calls."""
    ended_earlier = answer.has_ended and answer.noted_calls < noted_calls
    return ended_earlier or (answer.digest is not None and answer.digest not in digests)


def is_past(answer: Answer, number: int) -> bool:
    """Return whether a rank has completed call *number* of the rank set, and is in none of its calls now."""
    return not answer.call_number and answer.rank_set_calls >= number


def ended_ranks(answers: Answers, earlier_answers: Answers, number: int) -> str:
    """Return the text on ranks that have ended without call *number*, or have failed on this rank set; else "".

    *earlier_answers* are those of an earlier liveness check.

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
    ranks = [rank for rank, a in answers.items() if a is not None and a.has_ended and a.rank_set_calls < number]
    if ranks:
        closed_mesh = any(answer is not None and answer.operation for rank, answer in answers.items() if rank in ranks)
        return has_ended(ranks, closed_mesh)
    for rank, answer in answers.items():
        earlier_answer = earlier_answers.get(rank)
        if (
            answer is not None
            and earlier_answer is not None
            and answer.end_reason
            and earlier_answer.end_reason
            and answer.rank_set_calls <= number
        ):
            return f"rank {rank} makes no more calls on these ranks: {answer.end_reason}"
    return ""


def has_ended(ranks: Sequence[int], closed: bool = False) -> str:
    """Return the text that *ranks* have ended, or have *closed* the mesh, before a call."""
    verb = "closed the mesh" if closed else "ended"
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} {verb} without it"


def who_is_missing(answers: Answers, number: int, hosts: Mapping[int, str]) -> str:
    """Return the text on the ranks that are not in call *number* of their rank set; on all ranks if all are in it.

    >>> behind = Answer(9, 3, "", "", 0, False, "", 4.0, "", False, program_line="heat.py:9 in step")
    >>> waits = behind._replace(operation="to_numpy", call_number=4, rank_set_calls=4, is_in_call=True)
    >>> print(who_is_missing({0: waits, 1: behind}, 4, {}))
    rank 1 has not arrived: it has been outside meshcomm for 4 s, after call 3 on these ranks,
      now at heat.py:9 in step
    """
    missing = {rank: a for rank, a in answers.items() if a is None or a.rank_set_calls < number or a.error}
    texts = [(_activity(a, number), _whereabouts(a, hosts.get(rank, ""))) for rank, a in (missing or answers).items()]
    lines = [
        f"{ranks_text(ranks)} {_plural(text) if len(ranks) > 1 else text}{whereabouts}"
        for (text, whereabouts), ranks in ranks_by_value(missing or answers, texts).items()
    ]
    if not missing:
        lines.insert(0, f"all of ranks {spans(sorted(answers))} have come to this call")
    return "\n".join(first_lines(lines))


def _whereabouts(answer: Answer | None, host: str) -> str:
    if answer is None:
        return host and f" (on host {host})"
    return f",\n  now at {answer.program_line}" if answer.program_line and not answer.has_ended else ""


def _activity(answer: Answer | None, number: int) -> str:
    if answer is None:
        return "does not answer: it is stopped or lost, or runs code that keeps other threads of Python from running"
    seconds = f"{answer.idle_seconds:.0f} s"
    waited_text = f"has waited {seconds} in {answer.operation}"
    call_text = f", call {answer.call_number} on these ranks" if answer.call_number else ""
    elsewhere_text = f" on ranks {answer.other_ranks} (another mesh or communicator)" if answer.other_ranks else ""
    calls = answer.rank_set_calls
    after_text = f"after call {calls} on these ranks" if calls else "before its first call on these ranks"
    if answer.has_ended:
        activity = f"has {'closed the mesh' if answer.operation else 'ended'}, {after_text}"
    elif calls < number and answer.operation:
        activity = f"has not arrived: it {waited_text}{call_text or elsewhere_text}"
    elif calls < number:
        activity = f"has not arrived: it has been outside meshcomm for {seconds}, {after_text}"
    elif call_text:
        activity = f"{waited_text}{call_text}"
    elif answer.operation:
        activity = f"went on, and {waited_text}{elsewhere_text}"
    else:
        activity = f"went on, and has been outside meshcomm for {seconds}"
    return f"{activity}; it has to raise {answer.error}" if answer.error else activity


def _plural(text: str) -> str:
    """Return *text*, a singular, in the plural.

    >>> _plural("has not arrived: it has waited 4 s in barrier")
    'have not arrived: they have waited 4 s in barrier'
    >>> _plural("has waited 4 s in wait for a relayout")
    'have waited 4 s in wait for a relayout'
    """
    activity, reason, error = text.partition("; it has to raise ")
    for singular, plural in (("does not", "do not"), ("it is", "they are"), ("it", "they"), ("has", "have")):
        activity = re.sub(rf"\b{singular}\b", plural, activity)
    return (
        activity.replace("or runs", "or run").replace("before its", "before their")
        + reason.replace("it has", "they have")
        + error
    )
