"""Agreement of ranks on a call, and on what is wrong with it.

Ranks agree on a call before they exchange data in a way that they have not used before: if one of them sees an error,
or makes another call, all raise the same exception and none is left waiting.

``MESHCOMM_CHECK=1``, read when it is first needed, agrees on every call instead of only on new ones.
"""

import builtins
from functools import cache, lru_cache
from hashlib import blake2b

import numpy as np

from meshcomm import errors
from meshcomm.errors import CollectiveMismatch, MeshcommError
from meshcomm.ranks import abort, signs, watchdog
from meshcomm.ranks.launchers import is_on
from meshcomm.ranks.missing import some
from meshcomm.ranks.teams import Team, next_digest
from meshcomm.ranks.watch import kind, watch


@cache
def checks_every_call() -> bool:
    """Return whether ranks are to agree on every call."""
    return is_on("MESHCOMM_CHECK")


def fingerprint(text: str) -> int:
    """Return a 62-bit number for *text*, the same on every rank."""
    return int.from_bytes(blake2b(_encoded(text), digest_size=8).digest(), "little") >> 2


@lru_cache(256)
def of_operation(operation: str | None) -> int:
    """Return a number for an *operation*, without the name that the user gave it."""
    return fingerprint(kind(operation or ""))


def agree(team: Team, call: str, error: Exception | None = None, value: int = 0) -> int:
    """Raise the same exception on every rank unless all make the same *call* without *error*. Collective over *team*.

    The calls since the last agreement are compared too. All ranks raise the *error* of one rank, as the same class.
    ``CollectiveMismatch`` names the ranks whose calls differ; no call can follow it. Return the largest *value* of all
    ranks.
    """
    if team.world.guarded and len(team.ranks) > 1:
        watchdog.install()
    if watch.recorder is not None:
        watch.recorder.agreed()
    communicator = team.everyone.communicator()
    if watch.error is None:
        signs.note_told()  # of an error before: this rank goes on
    step = next_digest(team.call_digest, of_operation(team.turn.operation))  # the same also if one sees an error
    digest = team.compare(fingerprint(call))
    mine = [digest, -digest, step, -step, error is not None, value]
    told = watch.error
    watch.error = error or told
    try:
        most = communicator.allreduce_max(np.array(mine, dtype=np.int64)).tolist()
    except Exception as problem:
        team.explain(problem)
        raise
    finally:
        watch.error = told
    differ, is_wrong = most[0] != -most[1], most[4]
    if not differ and not is_wrong:
        team.refused = ""  # all ranks refused it
        return int(most[5])
    if error is not None and team.world.guarded:
        abort.show_words()  # before the others know: they leave it to this rank
    _refuse(team, call, error, in_step=is_wrong and most[2] == -most[3])
    raise AssertionError("no rank has told why")


def _refuse(team: Team, call: str, error: Exception | None, in_step: bool) -> None:
    """Raise what is wrong, the same on every rank. No call can follow unless ranks are *in_step*. Collective.

    Ranks at different steps of a program would exchange data of different steps.
    """
    call = call if len(call) < 500 else f"{call[:500]}... (fingerprint {fingerprint(call):x})"
    name = _shared_class(error).__name__ if error is not None else ""
    if team.refused:
        call = f"{call}, after {team.refused}"
    report = f"{name}\n{call if error is None else error}"
    reports = [text.decode().partition("\n")[::2] for text in team.everyone.communicator().allgather(_encoded(report))]
    mismatch = CollectiveMismatch(_differences(team, [message for _, message in reports]))
    if not in_step:
        team.fail(mismatch)
    team.start_over()
    for rank, (its_name, message) in zip(team.ranks, reports, strict=True):
        if its_name == name != "":
            assert error is not None
            raise signs.note_shared(error, f"{name}: {error}", seen=True)
        if its_name:
            told_by = (_named_class(its_name) or MeshcommError)(f"{message} (seen by rank {rank})")
            raise signs.note_shared(told_by, f"{its_name}: {message}", seen=False) from error
    raise mismatch


def compare_known(team: Team, error: Exception | None = None) -> None:
    """Compare the calls since the last agreement, before a call that needs none itself. Collective over *team*.

    All ranks raise the *error* that one of them has found.
    """
    agree(team, "something that all ranks agreed on before", error)


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # an error may quote bytes that are no valid text


def _named_class(name: str) -> type[Exception] | None:
    """Return the class of exceptions of that name which every rank has and can make of a text, or None."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        found("")
    except TypeError:  # it needs more than a text, as UnicodeDecodeError does
        return None
    return found


def _shared_class(error: Exception) -> type[Exception]:
    """Return the closest class of *error* that other ranks can raise too."""
    return next(kind for kind in map(_named_class, (kind.__name__ for kind in type(error).__mro__)) if kind)


def _differences(team: Team, calls: list[str]) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, call in zip(team.ranks, calls, strict=True):
        ranks_of.setdefault(call, []).append(rank)
    if len(ranks_of) == 1:
        return (
            f"all ranks call {calls[0]} now, but they made different calls before it. "
            "Run again with MESHCOMM_CHECK=1 to stop at the first difference"
        )
    lines = [f"  {some(ranks)}: {call}" for call, ranks in ranks_of.items()]
    return "ranks made different collective calls:\n" + "\n".join(lines)
