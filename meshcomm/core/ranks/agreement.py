"""Agreement of ranks on a call, and on what is wrong with it.

Ranks agree on a call before they exchange data in a way that they have not used before: if one of them sees an error,
or makes another call, all raise the same exception and none is left waiting.

``MESHCOMM_CHECK=1``, read when it is first needed, agrees on every call instead of only on new ones.
"""

import builtins
import json
import re
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from meshcomm import errors
from meshcomm.core._callers import program_line
from meshcomm.core.failures import abort, host_signals, watchdog
from meshcomm.core.failures.launchers import is_on
from meshcomm.core.failures.messages import ranks_by_value, ranks_text
from meshcomm.core.failures.watch import kind, watch
from meshcomm.core.ranks.call_log import next_digest
from meshcomm.core.ranks.rank_sets import RankSet
from meshcomm.errors import CollectiveMismatch, MeshcommError


@cache
def checks_every_call() -> bool:
    """Return whether ranks are to agree on every call."""
    return is_on("MESHCOMM_CHECK")


def fingerprint(text: str) -> int:
    """Return a 62-bit number for *text*, the same on every rank."""
    text = without_addresses(text)
    return int.from_bytes(blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest(), "little") >> 2


def without_addresses(text: str) -> str:
    """Return *text* with the reprs of objects in it, but not where these are in the memory of this rank.

    >>> without_addresses("all_reduce by <object object at 0x7f0c1a2b3c40>")
    'all_reduce by <object object>'
    """
    return _ADDRESS.sub("", text) if "0x" in text else text


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@lru_cache(256)
def of_operation(operation: str | None) -> int:
    """Return a number for an *operation*, without the name that the user gave it."""
    return fingerprint(kind(operation or ""))


def agree(rank_set: RankSet, call: str | None, error: Exception | None = None, value: int = 0) -> int:
    """Raise the same exception on every rank unless all make the same *call* without *error*. Collective.

    The calls since the last agreement are compared too. All ranks raise the *error* of one rank, as the same class; a
    rank whose *error* hides which call it makes passes None as *call*. ``CollectiveMismatch`` names the ranks whose
    calls differ. No call can follow if they do. Return the largest *value* of all ranks.
    """
    if rank_set.world.ends_job_on_failure and len(rank_set.ranks) > 1:
        watchdog.install()
    if watch.recorder is not None:
        watch.recorder.record_agreement()
    communicator = rank_set.everyone.communicator()
    if watch.error is None:
        host_signals.note_reported()  # of an error before: this rank goes on
    before = next_digest(rank_set.call_digest, of_operation(rank_set.call_lock.operation))
    digest = rank_set.compare(fingerprint(call or ""))
    values = [digest, -digest, before, -before, error is not None, value]
    if error is not None and rank_set.world.ends_job_on_failure:
        abort.show_words()  # before the others know, and also if they never come: they leave it to this rank
    with watch.pending_error(error):
        try:
            largest = communicator.allreduce_max(np.array(values, dtype=np.int64)).tolist()
        except Exception as problem:
            rank_set.explain(problem)
            raise
    if largest[0] == -largest[1] and not largest[4]:
        rank_set.refused = ""  # all ranks refused it
        return int(largest[5])
    raise _agreed_error(rank_set, call, error, in_step=largest[2] == -largest[3])


def _agreed_error(rank_set: RankSet, call: str | None, error: Exception | None, in_step: bool) -> Exception:
    """Return the error of one rank, or that calls differ, as all ranks raise it. Collective over *rank_set*.

    No call can follow unless the ranks are at the same step of the program: else equal calls would give them data of
    different steps. They are if they were *in_step* before, in one operation, and make the same call as far as they
    know.
    """
    call = call and without_addresses(call)
    if call is not None and len(call) >= 500:
        call = f"{call[:500]}... (fingerprint {fingerprint(call):x})"
    # The closest class that other ranks can raise, too; that of None is none.
    name = next((cls.__name__ for cls in type(error).__mro__ if _named_class(cls.__name__)), "")
    # An error may quote bytes that are no valid text.
    fields = [call, kind(rank_set.call_lock.operation or ""), rank_set.refused, name, str(error), _script_line()]
    message = json.dumps([text and text.encode(errors="backslashreplace").decode() for text in fields]).encode()
    reports = [_CallReport(*json.loads(text)) for text in rank_set.everyone.communicator().allgather(message)]
    mismatch = None
    if not in_step or len({report.call for report in reports if report.call is not None}) > 1:
        mismatch = CollectiveMismatch(_differences(rank_set, reports))
        rank_set.fail(mismatch)
    rank_set.start_over()
    first = next((number for number, report in enumerate(reports) if report.name), None)
    if first is None:
        assert mismatch is not None
        return mismatch
    report = reports[first]
    if error is not None and report.name == name:
        shared = host_signals.note_shared(error, f"{name}: {error}", seen=True)
    else:
        relayed = (_named_class(report.name) or MeshcommError)(
            f"{report.error} (seen by rank {rank_set.ranks[first]})"
        )
        relayed.__cause__ = error
        shared = host_signals.note_shared(relayed, f"{report.name}: {report.error}", seen=False)
    if mismatch is not None:
        shared.add_note(str(mismatch))
    return shared


class _CallReport(NamedTuple):
    """The call of a rank, and what is wrong with it, for the other ranks."""

    call: str | None
    operation: str
    refused: str
    name: str
    error: str
    line: str

    def __str__(self) -> str:
        text = (self.call or self.operation) + self.line
        if self.refused:
            text += f", after {self.refused}"
        return text + f", which has an error: {self.error}" * bool(self.name)


def _script_line() -> str:
    """Return where in a script this rank is: one that nobody wrote for ranks makes no calls that are known by name."""
    line = program_line() if watch.divergence_hint else None
    return "" if line is None else f", at line {line.number} of {line.file}"


def compare_known(rank_set: RankSet, error: Exception | None = None) -> None:
    """Compare the calls since the last agreement, before a call that needs none itself. Collective over *rank_set*.

    All ranks raise the *error* that one of them has found.
    """
    agree(rank_set, "something that all ranks agreed on before", error)


def _named_class(name: str) -> type[Exception] | None:
    """Return the class of exceptions of that name which every rank has and can make of a text, or None."""
    cls = next(filter(None, (getattr(module, name, None) for module in (errors, builtins, np.linalg))), None)
    if isinstance(cls, type) and issubclass(cls, Exception):
        with suppress(TypeError):  # it needs more than a text, as UnicodeDecodeError does
            cls("")
            return cls
    return None


def _differences(rank_set: RankSet, reports: "list[_CallReport]") -> str:
    ranks_of = ranks_by_value(rank_set.ranks, map(str, reports))
    if len(ranks_of) == 1:
        return (
            f"all ranks call {reports[0].call or reports[0].operation} now, but they made different calls before it. "
            "Run again with MESHCOMM_CHECK=1 to stop at the first difference"
        )
    lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in ranks_of.items()]
    return "ranks made different collective calls:\n" + "\n".join(lines)
