"""What a rank set keeps of its calls: a log, by which ranks notice that they make different ones, and prepared calls.

Calls leave nothing for flight files: their history is made of what is kept anyway.
"""
# What is known, and of which calls
# =================================
#
# (A) A rank set keeps its last `REMEMBERED_DIGESTS` digests, each with the number of the call that had begun last. A
#     call may note none (it is local), one, or several (it agrees again, or makes others within it). What it notes
#     after a call within it counts as that one's.
# (B) Digests are of all calls since the ranks last found a difference. In a right program all ranks have the same ones
#     after equally many noted calls. From the first different call on, all of them differ.
# (C) The oldest call that a rank set remembers may have noted more than is remembered, so its digests may equal later
#     ones of another rank. It is left out, unless nothing came before it.
# (D) A digest does not say what the call was about. But a call that the ranks had made before has a program, whose key
#     has the arguments; and the digest before it, together with the number of the program, gives the digest after it.
#     The key is looked for like this. None is found for calls that are agreed on each time, for one whose program is
#     dropped, and for the call after one with an error, or after one within others: they change the digest once more.

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

_REFUSED = int.from_bytes(b"refused", "little")  # in the digest instead of a call
_OF_ARGUMENTS = MeshcommError, TypeError, IndexError  # not those of data, as a FloatingPointError in one block
_MAX_TEXT_LENGTH = 400  # letters
_NOTED = "_noted_as_refusal"  # an attribute of errors


_OF_CALLS = (
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
    """What a call has noted."""

    digests: tuple[str, ...] = ()  # the digest of all calls after each call that it noted, as hexadecimal numbers
    about: str = ""  # the arguments of the first of them; nothing if they are not known


class PreparedCall:
    """A call that all ranks of a rank set agreed on, ready to run; *number* is the same on every rank."""

    __slots__ = ("number", "run", "used")

    def __init__(self, run: AnyFunction, number: int) -> None:
        self.run = run
        self.number = number
        self.used = 0


class CallLog:
    """The calls of this rank on a rank set: digests, which the ranks compare now and then, and prepared calls.

    All ranks agreed on these, and drop the same ones, by the clock of the rank set.
    """

    def __init__(self) -> None:
        self.call_lock = CallLock()  # which thread of this rank makes calls here, and whether any are possible
        self.calls = 0  # how many calls this rank has made on the rank set
        self.call_digest = 0  # a digest of all calls since the ranks last found that they made the same ones
        self.noted = 0  # how many calls are in the digest, or have been, since the ranks last found a difference
        self.comparison_due = False  # whether the ranks should compare their calls now: they have made many known ones
        self.refused = ""
        """What this rank has raised instead of taking part in a call, maybe alone, since the ranks last agreed."""
        self._compare_at = COMPARE_EVERY  # so many noted calls
        # After how many noted calls, the digest of them, and the number of the last call that had begun on the rank
        # set.
        self._digests: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED_DIGESTS)
        self._prepared: dict[Hashable, PreparedCall] = {}
        self._asked: set[Hashable] = set()
        self._clock = 0  # the same on all ranks of the rank set

    def note(self, number: int) -> None:
        """Note a call that the ranks compare later; after `COMPARE_EVERY` such calls a comparison is due."""
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
        """Forget which calls were made, and how many: the ranks have found a difference."""
        self.call_digest = self.noted = 0
        self._compare_at = COMPARE_EVERY
        self._digests.clear()
        self.refused = ""

    def note_error(self, operation: str, error: BaseException, joined: bool) -> None:
        """Note that *operation* ends with *error* on this rank, before or after it has *joined* the others.

        If before, and an argument is wrong, the rank refuses the call. A mismatch tells which one was refused.
        """
        if isinstance(error, CollectiveMismatch) and self.refused:
            error.add_note(f"Before, this rank did not make a call: {self.refused}")
            self.refused = ""
        if not joined and isinstance(error, _OF_ARGUMENTS) and not isinstance(error, RuntimeError):
            self.refuse(operation, error)

    def refuse(self, operation: str, error: BaseException) -> None:
        """Note that this rank raises *error* in place of *operation*, on which it has not agreed with others.

        They have made one call more, unless they refuse one, too: the next comparison finds out. Errors count alike,
        and each counts once, whatever else it leaves.
        """
        if self.call_lock.end_reason is None and not is_shared(error) and _NOTED not in vars(error):
            error.__dict__[_NOTED] = True
            self.refused = f"{operation} raised {type(error).__name__}: {error}"
            self.note(_REFUSED)

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Return a context whose calls leave no trace: none of them reaches the other ranks."""
        before = vars(self) | {"_digests": self._digests.copy(), "_asked": self._asked.copy()}
        try:
            yield
        finally:
            vars(self).update((name, before[name]) for name in _OF_CALLS)

    def digest_after(self, noted: int) -> int | None:
        """Return what the digest was after so many calls; None if that is not remembered, or not so yet."""
        return next((digest for count, digest, _ in list(self._digests) if count == noted), None)

    def history(self, calls: Container[int]) -> dict[int, CallNotes]:
        """Return what calls have noted, by their numbers: of *calls*, those that did. For other threads."""
        notes: dict[int, CallNotes] = {}
        digests, before = list(self._digests), 0
        keys = {call.number: key for key, call in self._prepared.copy().items()}
        oldest = digests[0][2] if digests and digests[0][0] > 1 else None
        for _, digest, call in digests:
            if call != oldest and call in calls:
                noted = notes.get(call) or CallNotes(about=_call_arguments(before, digest, keys))
                notes[call] = noted._replace(digests=(*noted.digests, f"{digest % 2**64:x}"))
            before = digest
        return notes

    # -- prepared calls -----------------------------------------------------------------------------------------------

    def knows(self, key: Hashable) -> bool:
        """Return whether a call is kept for *key*."""
        return key in self._prepared

    def recall(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, and note it; None if there is none.

        Every rank of the rank set must ask. After `COMPARE_EVERY` known calls a comparison is due.
        """
        call = self._prepared.get(key)
        if call is None:
            return None
        self._clock += 1
        call.used = self._clock
        self.noted += 1  # as `note` does, without calls: this is on the way of every relayout
        self.call_digest = hash((self.call_digest, call.number)) >> 2
        self._digests.append((self.noted, self.call_digest, self.calls))
        self.comparison_due = self.noted >= self._compare_at
        return call

    def prepared_call(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, or None; every rank of the rank set must ask."""
        call = self._prepared.get(key)
        if call is not None:
            self._clock += 1
            call.used = self._clock
        return call

    def remember(self, key: Hashable, call: PreparedCall) -> None:
        """Keep *call* for *key*; at the limit those used longest ago are dropped, some at once. On every rank."""
        self._clock += 1
        call.used, self._prepared[key] = self._clock, call
        if len(self._prepared) > PREPARED_PER_RANK_SET:
            oldest = sorted(self._prepared.items(), key=lambda item: item[1].used)
            for old_key, _ in oldest[: 1 + PREPARED_PER_RANK_SET // 16]:
                del self._prepared[old_key]

    def is_new(self, key: Hashable) -> bool:
        """Return whether *key* is new among the last `PREPARED_PER_RANK_SET` ones, the same on every rank.

        A loop over rows makes a call once that takes longer to prepare than to run in a simple way.
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


def next_digest(before: int, number: int) -> int:
    """Return the digest of all calls after the call *number*."""
    return hash((before, number)) >> 2


def _call_arguments(before: int, digest: int, keys: Mapping[int, Hashable]) -> str:
    """Return the arguments of the call, one of *keys* by number, that makes *digest* of the one *before*."""
    text = key_text(next((key for number, key in keys.items() if next_digest(before, number) == digest), None))
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 3]}..."


def key_text(key: Hashable) -> str:
    """Return the arguments in the key of a call, as text for people; nothing if none of them has a short one.

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
        inside = ", ".join(filter(None, map(_argument_text, argument)))
        return inside and f"({inside})"
    return quote(argument) if isinstance(argument, bool | int | float | complex | tuple) else ""
