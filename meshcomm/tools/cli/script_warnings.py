"""Warnings in a script on several ranks: NumPy's warnings on any rank are shown once, with their line.

A division by zero may happen in the block of one rank only, and the output of that rank may be held back. It still
shows the warning at once. By a host signal, without communication, the ranks of a host know that another rank has
shown the same text. Other warnings come from the script itself, and are the same on all ranks: rank 0 shows them.
"""

import sys
import warnings
from typing import TextIO

from meshcomm.core.failures import host_signals

_MAX_TEXTS = 256
"""The most texts that ranks signal to each other: each takes an open file. Of further texts, rank 0 shows its own."""


class WarningPrinter:
    """Shows the warnings of this rank, in place of `warnings.showwarning`.

    Parameters
    ----------
    rank: the rank of this process in COMM_WORLD
    stderr: stream for warnings that no other rank shows; ``sys.stderr`` may be held back
    """

    def __init__(self, rank: int, stderr: TextIO) -> None:
        self._rank, self._stderr, self._usual_show = rank, stderr, warnings.showwarning
        self._captured_stream = sys.stderr if rank else None
        self._claims: dict[str, host_signals.SharedError] = {}

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
        is_redirected = file is not None or (self._rank and sys.stderr is not self._captured_stream)
        if is_redirected or not issubclass(category, RuntimeWarning) or not self._can_tell(text):
            self._usual_show(message, category, filename, lineno, file, line)
        elif self._claims[text].ours:
            stream = self._stderr if self._rank else sys.stderr
            stream.write(text)
            stream.flush()

    def _can_tell(self, text: str) -> bool:
        """Return whether the ranks of this host agree on who shows *text*: the first rank that asks here."""
        if text not in self._claims and sys.platform == "linux" and len(self._claims) < _MAX_TEXTS:
            self._claims[text] = host_signals.SharedError(f"warning {text}", self._rank)
        return text in self._claims
