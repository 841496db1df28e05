"""Scratch memory: buffers that are kept from call to call, one for each use and thread."""

import threading
from collections.abc import Callable
from typing import TypeAlias

from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Bytes
from meshcomm.core.memory import pools
from meshcomm.core.memory.blocks import NOTHING

Buffer: TypeAlias = Callable[[str, int], Bytes]
"""A function from the name of a use, and a number of bytes, to a buffer."""

_buffers = threading.local()
_NO_BUFFERS = NOTHING, NOTHING


def own_buffer(use: str, size: int) -> Bytes:
    """Return a new buffer of *size* bytes, for one use only."""
    return pools.allocate_unshared(size)


def scratch(use: str, size: int) -> Bytes:
    """Return a buffer of *size* bytes, valid until the next call for the same *use* by this thread.

    Buffers within the default scratch limit are kept from call to call; larger ones are made each time.
    """
    buffer, view = getattr(_buffers, use, _NO_BUFFERS)
    if len(view) == size:  # as in loops
        return view
    if len(buffer) < size:
        buffer = pools.allocate_unshared(size)
    view = buffer[:size]
    if len(buffer) <= DEFAULT_SCRATCH:
        setattr(_buffers, use, (buffer, view))
    return view


def shared_scratch(size: int) -> Bytes | None:
    """Return *size* bytes of memory that the node's ranks share; None if there are none.

    All exchanges of this thread use the same bytes, one exchange at a time.
    """
    if size == 0:
        return NOTHING
    buffer: Bytes | None = getattr(_buffers, "shared", None)
    if buffer is None or len(buffer) < size:
        buffer = pools.allocate(size)
        if buffer is None:
            return None
        _buffers.shared = buffer
    return buffer[:size]


def forget_scratch() -> None:
    """Free the buffers that are kept for this thread."""
    _buffers.__dict__.clear()
