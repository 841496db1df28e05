"""Scratch memory, kept from call to call."""

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from meshcomm._tuning import ALIGNED_FROM, DEFAULT_SCRATCH, LINE
from meshcomm._types import Bytes
from meshcomm.memory.pools import allocate, allocate_unshared

_scratch = threading.local()


Room: TypeAlias = Callable[[str, int], Bytes]


def own_room(use: str, size: int) -> Bytes:
    """Return *size* bytes for one use only. Local."""
    return np.empty(size, dtype=np.uint8)


def scratch(use: str, size: int) -> Bytes:
    """Return *size* bytes to write to until the next call for the same *use* by this thread. Local.

    What the default bound allows is kept from call to call; more is made each time.
    """
    if size > DEFAULT_SCRATCH:
        return allocate_unshared(size)
    kept: Bytes | None = getattr(_scratch, use, None)
    if kept is None or len(kept) < size:
        kept = allocate_unshared(size)
        setattr(_scratch, use, kept)
    return kept[:size]


def scratch_like(block: Bytes, use: str, size: int) -> Bytes:
    """Return `scratch` that begins where *block* does within a cache line, if it is large. Local.

    MPI copies twice as fast between such. What one rank's block is like the others' mostly are as well.
    """
    if size < ALIGNED_FROM:
        return scratch(use, size)
    over = block.__array_interface__["data"][0] % LINE
    return scratch(use, size + LINE)[over : over + size]


def shared_scratch(size: int) -> Bytes | None:
    """Return *size* bytes in memory that the node's ranks share, or None if there are none. Local.

    They are the same for all exchanges of this thread that have asked for no more, of which one uses them at a time.
    """
    if size == 0:
        return np.empty(0, dtype=np.uint8)
    kept: Bytes | None = getattr(_scratch, "shared", None)
    if kept is None or len(kept) < size:
        kept = allocate(size)
        if kept is None:
            return None
        _scratch.shared = kept
    return kept[:size]


def forget_scratch() -> None:
    """Give back what `scratch` keeps for this thread. Local."""
    _scratch.__dict__.clear()
