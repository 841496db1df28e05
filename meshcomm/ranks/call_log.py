"""What a team keeps of its calls: a log, by which ranks notice that they make different ones, and prepared calls."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

from meshcomm._tuning import COMPARE_EVERY, PREPARED_PER_TEAM, REMEMBERED_DIGESTS
from meshcomm.errors import CollectiveMismatch, MeshcommError
from meshcomm.failures.call_history import next_digest
from meshcomm.failures.host_signals import is_shared
from meshcomm.ranks._envelope import Turn

_REFUSED = int.from_bytes(b"refused", "little")  # in the digest instead of a call
_OF_ARGUMENTS = MeshcommError, TypeError, IndexError  # not those of data, as a FloatingPointError in one block
_NOTED = "_noted_as_refusal"  # an attribute of errors

Digest: TypeAlias = tuple[int, int, int]
"""After how many noted calls, the digest of them, and the number of the last call that had begun on the team."""


class PreparedCall:
    """A call that all ranks of a team agreed on, ready to run; *number* is the same on every rank."""

    __slots__ = ("number", "run", "used")

    def __init__(self, run: Callable[..., Any], number: int) -> None:
        self.run = run
        self.number = number
        self.used = 0


class CallLog:
    """The calls that this rank has made on a team: digests, which the ranks compare now and then, and prepared calls.

    All ranks agreed on these, and drop the same ones, by the clock of the team.
    """

    def __init__(self) -> None:
        self.turn = Turn()  # which thread of this rank makes a call on the team, and whether calls are possible
        self.calls = 0  # how many calls this rank has made on the team
        self.call_digest = 0  # a digest of all calls since the ranks last found that they made the same ones
        self.noted = 0  # how many calls are in the digest, or have been, since the ranks last found a difference
        self.comparison_due = False  # whether the ranks should compare their calls now: they have made many known ones
        self.refused = ""
        """What this rank has raised instead of taking part in a call, maybe alone, since the ranks last agreed."""
        self._compare_at = COMPARE_EVERY  # so many noted calls
        self._digests: deque[Digest] = deque(maxlen=REMEMBERED_DIGESTS)
        self._prepared: dict[Hashable, PreparedCall] = {}
        self._clock = 0

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
        if self.turn.over is None and not is_shared(error) and _NOTED not in vars(error):
            error.__dict__[_NOTED] = True
            self.refused = f"{operation} raised {type(error).__name__}: {error}"
            self.note(_REFUSED)

    def digest_after(self, noted: int) -> int | None:
        """Return what the digest was after so many calls; None if that is not remembered, or not so yet."""
        return next((digest for its, digest, _ in list(self._digests) if its == noted), None)

    def last_digests(self) -> "list[Digest]":
        """Return what is remembered of the digest, the oldest first. For other threads."""
        return list(self._digests)

    # -- prepared calls -----------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Return the next time on the clock of the team, the same on all its ranks."""
        self._clock += 1
        return self._clock

    def knows(self, key: Hashable) -> bool:
        """Return whether a call is kept for *key*."""
        return key in self._prepared

    def recall(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, and note it; None if there is none.

        Every rank of the team must ask. After `COMPARE_EVERY` known calls a comparison is due.
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

    def kept(self, key: Hashable) -> PreparedCall | None:
        """Return the call that is kept for *key*, or None; every rank of the team must ask."""
        call = self._prepared.get(key)
        if call is not None:
            call.used = self.tick()
        return call

    def remember(self, key: Hashable, call: PreparedCall) -> None:
        """Keep *call* for *key*; at the limit the one used longest ago is dropped. On every rank."""
        call.used = self.tick()
        self._prepared[key] = call
        if len(self._prepared) > PREPARED_PER_TEAM:
            del self._prepared[min(self._prepared, key=lambda each: self._prepared[each].used)]

    def forget_prepared(self) -> None:
        """Drop all prepared calls. On every rank."""
        self._prepared.clear()

    def known(self) -> dict[int, Hashable]:
        """Return the keys of the calls that are kept, by their numbers. For other threads."""
        return {call.number: key for key, call in self._prepared.copy().items()}
