"""Agreement of ranks on a call, and on its errors.

Ranks agree on a new call before they exchange data: if one of them sees an error, or makes another call, all raise the
same exception and none waits in vain.

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
    """Return whether ranks agree on every call, and not on new ones only."""
    return is_on("MESHCOMM_CHECK")


def fingerprint(text: str) -> int:
    """Return a 62-bit number for *text*, the same on every rank."""
    text = without_addresses(text)
    return int.from_bytes(blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest(), "little") >> 2


def without_addresses(text: str) -> str:
    """Return *text* without the memory addresses in the reprs of objects.

    >>> without_addresses("all_reduce by <object object at 0x7f0c1a2b3c40>")
    'all_reduce by <object object>'
    """
    return _ADDRESS.sub("", text) if "0x" in text else text


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@lru_cache(256)
def operation_number(operation: str | None) -> int:
    """Return a number for an *operation*, the same with and without a name that the user gave the call."""
    return fingerprint(kind(operation or ""))


def agree(rank_set: RankSet, call: str | None, error: Exception | None = None, value: int = 0) -> int:
    """Raise the same exception on every rank unless all make the same *call* without *error*. Collective.

    The calls since the last agreement are compared, too. All ranks raise the *error* of one rank, as the same class. A
    rank that does not know its call, because of the *error*, passes None as *call*. ``CollectiveMismatch`` names the
    ranks with different calls; no call can follow it. Return the largest *value* of all ranks.
    """
    if rank_set.world.ends_job_on_failure and len(rank_set.ranks) > 1:
        watchdog.install()
    if watch.recorder is not None:
        watch.recorder.record_agreement()
    communicator = rank_set.everyone.communicator()
    if watch.error is None:
        host_signals.note_reported()  # an earlier error, after which this rank goes on
    digest_before = next_digest(rank_set.call_digest, operation_number(rank_set.call_lock.operation))
    digest = rank_set.compare(fingerprint(call or ""))
    values = [digest, -digest, digest_before, -digest_before, error is not None, value]
    if error is not None and rank_set.world.ends_job_on_failure:
        # Before the others know of the error, and also if they never come: this rank reports it.
        abort.show_pending_error()
    with watch.pending_error(error):
        try:
            largest = communicator.allreduce_max(np.array(values, dtype=np.int64)).tolist()
        except Exception as mpi_error:
            rank_set.explain(mpi_error)
            raise
    if largest[0] == -largest[1] and not largest[4]:
        rank_set.refused = ""  # all ranks refused that call
        return int(largest[5])
    raise _agreed_error(rank_set, call, error, in_step=largest[2] == -largest[3])


def _agreed_error(rank_set: RankSet, call: str | None, error: Exception | None, in_step: bool) -> Exception:
    """Return the exception that all ranks raise: the error of one rank, or that calls differ. Collective.

    No call can follow unless the ranks are at the same step of the program: else equal calls would give them data of
    different steps. They are if they were *in_step* before, in one operation, and make the same call if they know it.
    """
    call = call and without_addresses(call)
    if call is not None and len(call) >= 500:
        call = f"{call[:500]}... (fingerprint {fingerprint(call):x})"
    # The closest base class that other ranks can raise, too; "" without an error.
    class_name = next((cls.__name__ for cls in type(error).__mro__ if _named_class(cls.__name__)), "")
    # The message of an error may have bytes that are no valid text.
    fields = [call, kind(rank_set.call_lock.operation or ""), rank_set.refused, class_name, str(error), _script_line()]
    message = json.dumps([text and text.encode(errors="backslashreplace").decode() for text in fields]).encode()
    reports = [_CallReport(*json.loads(text)) for text in rank_set.everyone.communicator().allgather(message)]
    mismatch = None
    if not in_step or len({report.call for report in reports if report.call is not None}) > 1:
        mismatch = CollectiveMismatch(_differences(rank_set, reports))
        rank_set.fail(mismatch)
    rank_set.start_over()
    failed_position = next((position for position, report in enumerate(reports) if report.error_class), None)
    if failed_position is None:
        assert mismatch is not None
        return mismatch
    report = reports[failed_position]
    if error is not None and report.error_class == class_name:
        shared_error = host_signals.note_shared(error, f"{class_name}: {error}", seen=True)
    else:
        relayed_error = (_named_class(report.error_class) or MeshcommError)(
            f"{report.error} (seen by rank {rank_set.ranks[failed_position]})"
        )
        relayed_error.__cause__ = error
        shared_error = host_signals.note_shared(relayed_error, f"{report.error_class}: {report.error}", seen=False)
    if mismatch is not None:
        shared_error.add_note(str(mismatch))
    return shared_error


class _CallReport(NamedTuple):
    """The call of a rank and its error, as text for the other ranks."""

    call: str | None
    operation: str
    refused: str
    error_class: str
    error: str
    line: str

    def __str__(self) -> str:
        text = (self.call or self.operation) + self.line
        if self.refused:
            text += f", after {self.refused}"
        return text + f", which has an error: {self.error}" * bool(self.error_class)


def _script_line() -> str:
    """Return the line of a NumPy script that this rank is at; "" for other programs, whose calls have names."""
    line = program_line() if watch.divergence_hint else None
    return "" if line is None else f", at line {line.number} of {line.file}"


def compare_known(rank_set: RankSet, error: Exception | None = None) -> None:
    """Compare the calls since the last agreement, before a call that needs no agreement. Collective over *rank_set*.

    All ranks raise the *error* of one of them.
    """
    agree(rank_set, "something that all ranks agreed on before", error)


def _named_class(name: str) -> type[Exception] | None:
    """Return the class of exceptions of that name, if all ranks have it and can make one from a text; else None."""
    cls = next(filter(None, (getattr(module, name, None) for module in (errors, builtins, np.linalg))), None)
    if isinstance(cls, type) and issubclass(cls, Exception):
        with suppress(TypeError):  # it needs more than a text, as UnicodeDecodeError does
            cls("")
            return cls
    return None


def _differences(rank_set: RankSet, reports: "list[_CallReport]") -> str:
    ranks_by_report = ranks_by_value(rank_set.ranks, map(str, reports))
    if len(ranks_by_report) == 1:
        return (
            f"all ranks call {reports[0].call or reports[0].operation} now, but they made different calls before it. "
            "Run again with MESHCOMM_CHECK=1 to stop at the first difference"
        )
    lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in ranks_by_report.items()]
    return "ranks made different collective calls:\n" + "\n".join(lines)
