"""Print a text, which all ranks of a command have, once."""

import time

from meshcomm.core._tuning import END_WITHIN, POLL_TO
from meshcomm.core.failures.host_signals import SharedError
from meshcomm.core.failures.launchers import launched
from meshcomm.tools.cli.terminal import say

COME_WITHIN = 5.0
"""Seconds for which the first rank waits for others with the same text. Ranks of a busy machine start at different
times; those of another host never come."""


def print_once(text: str) -> None:
    """Print *text* on standard error, on the first rank of each host that arrives. No rank returns before that.

    The rank that prints also waits for ranks that arrive later, because many launchers end all ranks as soon as one
    ends. A rank that arrives after all others have ended prints the text again.
    """
    rank, size = launched() or (0, 1)
    claim = SharedError("what is wrong with the command", rank).settled(END_WITHIN) if size > 1 else None
    if claim is None or claim.ours:
        say(text, error=True)
    if claim is not None and claim.ours:
        claim.note_printed()
        ranks_seen, deadline = {rank}, time.monotonic() + COME_WITHIN
        while len(ranks_seen) < size and time.monotonic() < deadline:
            ranks_seen.update(claim.ranks())
            time.sleep(POLL_TO)
