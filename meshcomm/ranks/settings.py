"""Environment variables that all ranks must have alike."""

import os

from meshcomm._types import Ranks
from meshcomm.errors import MeshError
from meshcomm.failures.messages import some
from meshcomm.ranks.communicator import Communicator

ALIKE = ("MESHCOMM_ABORT", "MESHCOMM_CHECK", "MESHCOMM_TIMEOUT")
"""The others may differ: ranks agree on what they say, or use them alone."""


def compared_settings(communicator: Communicator, ranks: Ranks) -> list[str]:
    """Return the host name of each rank. Collective over *communicator*; *ranks* are the names of its ranks.

    ``MeshError`` on all ranks if an environment variable differs between them.
    """
    mine = [os.uname().nodename, *(os.environ.get(name) or None for name in ALIKE)]
    told = communicator.told(mine)
    for number, name in enumerate(ALIKE, 1):
        values: dict[str | None, list[int]] = {}
        for rank, its in zip(ranks, told, strict=True):
            values.setdefault(its[number], []).append(rank)
        if len(values) > 1:
            texts = [
                f"{value!r} on {some(its)}" if value is not None else f"not set on {some(its)}"
                for value, its in values.items()
            ]
            raise MeshError(f"{name} must be the same on all ranks, but it is {', and '.join(texts)}")
    return [its[0] for its in told]
