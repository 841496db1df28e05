"""What ends before its time: nonblocking calls that nobody has waited for, and teams that make no call any more."""

from collections.abc import Sequence
from typing import Protocol

from meshcomm._types import Ranks
from meshcomm.errors import CollectiveMismatch
from meshcomm.ranks.missing import spans


class Unfinished(Protocol):
    """A nonblocking call that nobody has waited for yet."""

    begun_by: str
    """The function that began it."""

    def wait(self) -> object:
        """Wait until it is complete."""


def never_waited_for(left: Sequence[Unfinished]) -> str:
    """Return the error that names nonblocking calls which nobody waited for."""
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return f"{left[0].begun_by} was never waited for: {left[0]}{more}. Call wait() on each request"


def why_over(error: BaseException, refused: str, ranks: Ranks, is_mesh: bool) -> tuple[str, str]:
    """Return why *ranks*, those of a mesh or not, make no call after *error*, and the same for some of these ranks.

    *refused* says which call this rank refused before, if any: the cause of a mismatch.

    >>> for text in why_over(KeyError("k"), "", range(4), True):
    ...     print(text.partition("; ")[::2])
    ("an earlier call of these ranks ended with an error (KeyError: 'k')", 'close() the mesh and make it again')
    ("an earlier call ... with an error (KeyError: 'k')", 'close() the mesh over ranks 0-3 and make it again')
    """
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if refused and isinstance(error, CollectiveMismatch):
        what += f"; before, this rank did not make a call: {refused}"
    what, over = f"an earlier call of these ranks ended with an error ({what})", f"over ranks {spans(ranks)}"
    if is_mesh:
        return f"{what}; close() the mesh and make it again", f"{what}; close() the mesh {over} and make it again"
    how = f"{what}; to go on, make a mesh {over} and close() it"
    return how, how
