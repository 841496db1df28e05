"""The calls of a rank set: a log, by which ranks notice that they make different ones, and prepared calls.

Calls record nothing for flight files: these are made from the digests and keys that are kept anyway.
"""
# Which calls the log knows
# =========================
#
# (A) A rank set keeps its last `REMEMBERED_DIGESTS` digests, each with the number of the call that had begun last. A
#     call may note no digest (it is local), one, or several (it agrees again, or makes other calls within it). Digests
#     that it notes after a call within it count as those of the inner call.
# (B) A digest is of all calls since the ranks last found a difference. In a correct program all ranks have the same
#     digest after the same number of noted calls. From the first different call on, all digests differ.
# (C) The oldest call in the log may have noted more digests than the log still has, so its digests may equal later
#     ones of another rank. It is left out, unless nothing was noted before it.
# (D) A digest has no arguments. But a call that the ranks had made before is prepared, and its key has the arguments.
#     The digest before the call, and the number of the prepared call, give the digest after it: so the key is found.
#     None is found for calls that are agreed on each time, for a prepared call that is dropped, and for the call after
#     one with an error, or after one within others: these change the digest once more.

from collections import deque
from collections.abc import Container, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._tuning import COMPARE_EVERY, PREPARED_PER_RANK_SET, REMEMBERED_DIGESTS
from meshcomm.core._types import AnyFunction
from meshcomm.core.failures.host_signals import is_shared
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks._call_scope import CallLock
from meshcomm.errors import CollectiveMismatch, MeshcommError

_REFUSED_CALL = int.from_bytes(b"refused", "little")  # in the digest instead of a call
_ARGUMENT_ERRORS = MeshcommError, TypeError, IndexError  # not those of data, such as a FloatingPointError
_MAX_TEXT_LENGTH = 400  # letters
_NOTED_ATTRIBUTE = "_noted_as_refusal"  # an attribute of errors


_CALL_ATTRIBUTES = (
    "calls",
    "call_digest",
    "noted",
    "comparison_due",
    "refused",
    "_compare_at",
    "_digests",
    "_asked",
    "_clock",
)


class CallNotes(NamedTuple):
    """The digests of a call, and its arguments."""

    digests: tuple[str, ...] = ()  # the digests that it noted, as hexadecimal numbers
    about: str = ""  # the arguments that belong to the first digest; "" if they are unknown


class PreparedCall:
    """A call that all ranks of a rank set agreed on, ready to run; *number* is the same on every rank."""

    __slots__ = ("number", "run", "used")

    def __init__(self, run: AnyFunction, number: int) -> None:
        self.run = run
        self.number = number
        self.used = 0


class CallLog:
    """The calls of this rank on a rank set: digests, which the ranks compare now and then, and prepared calls.

    All ranks have agreed on the prepared calls, and drop the same ones, by the clock of the rank set.
    """

    def __init__(self) -> None:
        self.call_lock = CallLock()  # one thread of this rank at a time makes calls; it also says if none is possible
        self.calls = 0  # number of calls that this rank has made on the rank set
        self.call_digest = 0  # digest of all calls since the ranks last found a difference
        self.noted = 0  # number of calls in the digest
        self.comparison_due = False  # whether to compare calls now, after many known ones
        self.refused = ""
        """The error that this rank, maybe alone, raised instead of a call since the ranks last agreed; "" if none."""
        self._compare_at = COMPARE_EVERY  # number of noted calls at which a comparison is due
        # The number of noted calls, their digest, and the number of the last call that had begun on the rank set.
        self._digests: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED_DIGESTS)
        self._prepared: dict[Hashable, PreparedCall] = {}
        self._asked: set[Hashable] = set()
        self._clock = 0  # the same on all ranks of the rank set

    def note(self, number: int) -> None:
        """Note the call *number*, which ranks compare later; after `COMPARE_EVERY` such calls a comparison is due."""
        self.noted += 1
        self.call_digest = next_digest(self.call_digest, number)
        self._digests.append((self.noted, self.call_digest, self.calls))
        self.comparison_due = self.noted >= self._compare_at

    def compare(self, number: int) -> int:
        """Note the call *number*, which all ranks now compare, and return the digest of the calls so far."""
        self.note(number)
        self._compare_at, self.comparison_due = self.noted + COMPARE_EVERY, False
        return self.call_digest

    def start_over(self) -> None:
        """Forget the calls and their number: the ranks have found a difference."""
        self.call_digest = self.noted = 0
        self._compare_at = COMPARE_EVERY
        self._digests.clear()
        self.refused = ""

    def note_error(self, operation: str, error: BaseException, joined: bool) -> None:
        """Note that *operation* ends with *error* on this rank; *joined* says whether it has joined the others in it.

        If it has not, and an argument is wrong, the rank refuses the call. A mismatch names the call that was refused.
        """
        if isinstance(error, CollectiveMismatch) and self.refused:
            error.add_note(f"Before, this rank did not make a call: {self.refused}")
            self.refused = ""
        if not joined and isinstance(error, _ARGUMENT_ERRORS) and not isinstance(error, RuntimeError):
            self.refuse(operation, error)

    def refuse(self, operation: str, error: BaseException) -> None:
        """Note that this rank raises *error* instead of *operation*, on which it has not agreed with others.

        The others may have made one call more, or refuse it, too: the next comparison finds out. All errors count as
        the same call, and each error counts once, also if it passes through several calls.
        """
        if self.call_lock.end_reason is None and not is_shared(error) and _NOTED_ATTRIBUTE not in vars(error):
            error.__dict__[_NOTED_ATTRIBUTE] = True
            self.refused = f"{operation} raised {type(error).__name__}: {error}"
            self.note(_REFUSED_CALL)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Return a context in which no call is noted: none of them reaches the other ranks."""
        saved = vars(self) | {"_digests": self._digests.copy(), "_asked": self._asked.copy()}
        try:
            yield
        finally:
            vars(self).update((name, saved[name]) for name in _CALL_ATTRIBUTES)

    def digest_after(self, noted: int) -> int | None:
        """Return the digest after *noted* calls; None if it is not kept any more, or not known yet."""
        return next((digest for count, digest, _ in list(self._digests) if count == noted), None)

    def history(self, calls: Container[int]) -> dict[int, CallNotes]:
        """Return the notes of those *calls*, by their numbers, that have noted any. Safe in other threads."""
        notes: dict[int, CallNotes] = {}
        digests, digest_before = list(self._digests), 0
        keys = {call.number: key for key, call in self._prepared.copy().items()}
        oldest_call = digests[0][2] if digests and digests[0][0] > 1 else None
        for _, digest, call in digests:
            if call != oldest_call and call in calls:
                call_notes = notes.get(call) or CallNotes(about=_call_arguments(digest_before, digest, keys))
                notes[call] = call_notes._replace(digests=(*call_notes.digests, f"{digest % 2**64:x}"))
            digest_before = digest
        return notes

    # -- prepared calls -----------------------------------------------------------------------------------------------

    def knows(self, key: Hashable) -> bool:
        """Return whether a call is kept for *key*."""
        return key in self._prepared

    def recall(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, and note it; None if there is none.

        Every rank of the rank set must call this. After `COMPARE_EVERY` known calls a comparison is due.
        """
        call = self._prepared.get(key)
        if call is None:
            return None
        self._clock += 1
        call.used = self._clock
        self.noted += 1  # as in `note`, inlined: every relayout comes through here
        self.call_digest = hash((self.call_digest, call.number)) >> 2
        self._digests.append((self.noted, self.call_digest, self.calls))
        self.comparison_due = self.noted >= self._compare_at
        return call

    def prepared_call(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, or None; every rank of the rank set must call this."""
        call = self._prepared.get(key)
        if call is not None:
            self._clock += 1
            call.used = self._clock
        return call

    def remember(self, key: Hashable, call: PreparedCall) -> None:
        """Keep *call* for *key*; at the limit, drop a few that were used longest ago. On every rank."""
        self._clock += 1
        call.used, self._prepared[key] = self._clock, call
        if len(self._prepared) > PREPARED_PER_RANK_SET:
            oldest_first = sorted(self._prepared.items(), key=lambda item: item[1].used)
            for old_key, _ in oldest_first[: 1 + PREPARED_PER_RANK_SET // 16]:
                del self._prepared[old_key]

    def is_new(self, key: Hashable) -> bool:
        """Return whether *key* was not asked for before, as far as is remembered; the same on every rank.

        A call that is made once, as in a loop over rows, may take longer to prepare than to run in a simple way.
        """
        if key in self._asked:
            return False
        if len(self._asked) >= PREPARED_PER_RANK_SET:
            self._asked.clear()
        self._asked.add(key)
        return True

    def forget_prepared(self) -> None:
        """Drop all prepared calls. On every rank."""
        self._prepared.clear()
        self._asked.clear()


def next_digest(digest_before: int, number: int) -> int:
    """Return the digest of all calls: *digest_before* is that of the calls before the call *number*."""
    return hash((digest_before, number)) >> 2


def _call_arguments(digest_before: int, digest: int, keys: Mapping[int, Hashable]) -> str:
    """Return the arguments of the call that turns *digest_before* into *digest*; *keys* has keys by call number."""
    text = key_text(next((key for number, key in keys.items() if next_digest(digest_before, number) == digest), None))
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 3]}..."


def key_text(key: Hashable) -> str:
    """Return the arguments in the key of a call as text; without those that have no short text.

    >>> rows = Layout(["x", "unsharded"], Mesh(range(2), [("x", 2)]))
    >>> key_text(("start", rows, (4, 6), np.dtype("f8"), None))
    'start, [x, unsharded] on mesh x=2 over ranks 0 to 1, (4, 6), float64'
    """
    arguments = key if isinstance(key, tuple) else (key,)
    return ", ".join(text for text in map(_argument_text, arguments) if text)


def _argument_text(argument: object) -> str:
    if isinstance(argument, Layout):
        return f"{argument.specs_text} on {argument.mesh}"
    if isinstance(argument, str | Mesh | np.dtype):
        return str(argument)
    if isinstance(argument, tuple) and not all(isinstance(entry, int) for entry in argument):
        entries_text = ", ".join(filter(None, map(_argument_text, argument)))
        return entries_text and f"({entries_text})"
    return quote(argument) if isinstance(argument, bool | int | float | complex | tuple) else ""
