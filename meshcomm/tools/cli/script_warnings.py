"""Warnings of the ranks of a script: what NumPy warns of on any rank is shown once, at its line.

A division by zero may be in the block of one rank only, whose output is held back. That rank shows it at once. The
ranks of a host find by a host signal, without communication, that another one has shown the same text. Other warnings
are of the script itself, and the same on all ranks: rank 0 shows them.
"""

import sys
import warnings
from typing import TextIO

from meshcomm.core.failures import host_signals

_MOST = 256
"""Texts of which ranks tell each other: each takes an open file. Of more, rank 0 shows its own."""


class ShownOnce:
    """What shows the warnings of this rank in place of `warnings.showwarning`.

    Parameters
    ----------
    rank: this one in COMM_WORLD
    stderr: where it can show what others do not; what it prints may be held back
    """

    def __init__(self, rank: int, stderr: TextIO) -> None:
        self._rank, self._stderr, self._usual = rank, stderr, warnings.showwarning
        self._held = sys.stderr if rank else None
        self._claims: dict[str, host_signals.Error] = {}

    def show(  # noqa: PLR0917 - Python's parameters
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Show a warning, as `warnings.showwarning` does, unless another rank does."""
        text = warnings.formatwarning(message, category, filename, lineno, line)
        is_redirected = file is not None or (self._rank and sys.stderr is not self._held)
        if is_redirected or not issubclass(category, RuntimeWarning) or not self._can_tell(text):
            self._usual(message, category, filename, lineno, file, line)
        elif self._claims[text].ours:
            stream = self._stderr if self._rank else sys.stderr
            stream.write(text)
            stream.flush()

    def _can_tell(self, text: str) -> bool:
        """Return whether ranks of this host can tell each other who shows *text*; this one says so if it is first."""
        if text not in self._claims and sys.platform == "linux" and len(self._claims) < _MOST:
            self._claims[text] = host_signals.Error(f"warning {text}", self._rank)
        return text in self._claims
