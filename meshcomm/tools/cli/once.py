"""What all ranks of a command have to say, said once."""

import time

from meshcomm.core._tuning import END_WITHIN, POLL_TO
from meshcomm.core.failures.host_signals import Error
from meshcomm.core.failures.launchers import launched
from meshcomm.tools.cli.terminal import say

COME_WITHIN = 5.0
"""Seconds in which ranks come that have to say the same of a command, after the first one. Ranks of a busy machine
start at different times; those of another host never come."""


def print_once(text: str) -> None:
    """Print *text* on standard error, on one rank of each host: the first that comes. No rank returns before that.

    The rank that prints also waits for others that come later. Many launchers end all ranks as soon as one ends; where
    they do not, a rank that comes when all others have gone prints it again.
    """
    rank, size = launched() or (0, 1)
    claim = Error("what is wrong with the command", rank).settled(END_WITHIN) if size > 1 else None
    if claim is None or claim.ours:
        say(text, error=True)
    if claim is not None and claim.ours:
        claim.note_printed()
        ranks_seen, end = {rank}, time.monotonic() + COME_WITHIN
        while len(ranks_seen) < size and time.monotonic() < end:
            ranks_seen.update(claim.ranks())
            time.sleep(POLL_TO)
