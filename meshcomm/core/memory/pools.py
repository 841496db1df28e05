"""The pools of this process: one that the ranks of the node share, and one of this process only."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from meshcomm.core._tuning import MAX_ADDRESS_SPACE_SHARE, POOLED_FROM
from meshcomm.core._types import Bytes
from meshcomm.core.memory._pool import Pool

shared: Pool | None = None
"""The pool that other processes of the node map; None before it is made."""


def allocate(nbytes: int) -> Bytes | None:
    """Return *nbytes* bytes of any value that the ranks of the node share; None if there are none."""
    return None if shared is None else shared.allocate(nbytes)


def allocate_unshared(nbytes: int) -> Bytes:
    """Return *nbytes* bytes of any value.

    Memory of large blocks is kept for later ones, as in the shared pool: to get pages from the system takes longer
    than to copy a block.
    """
    pool = _unshared_pool() if nbytes > POOLED_FROM else None
    block: Bytes | None = None if pool is None else pool.allocate(nbytes)
    return np.empty(nbytes, dtype=np.uint8) if block is None else block


@cache
def _unshared_pool() -> Pool | None:
    """Return a pool that may grow to all memory; None if the system reserves no addresses without memory."""
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
            return Pool(reservable(all_memory()), private=True)
    except (OSError, ValueError, MemoryError):
        pass
    return None


def locate(array: object) -> int:
    """Return the offset of a contiguous *array* in the shared pool of this process; -1 if it is not fully inside."""
    return -1 if shared is None else shared.locate(array)


def all_memory() -> int:
    """Return the bytes of memory that this process may have."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits()])


def reservable(nbytes: int) -> int:
    """Return the bytes of address space that a pool of *nbytes* may reserve, or all shared pools that a process maps.

    With RLIMIT_AS it is at most a fraction of the free address space: the rest is for the program.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return nbytes
    with suppress(OSError, ValueError):  # without /proc, all of it counts as free
        limit -= int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(nbytes, int(limit * MAX_ADDRESS_SPACE_SHARE)))


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits on the memory of this process's control groups, of version 1 or 2, and of those above them."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, name = Path("/sys/fs/cgroup"), "memory.max"
            elif "memory" in controllers.split(","):
                root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
            else:
                continue
            group = root / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max", or a group that is not visible from inside a container
                    yield int((folder / name).read_text())


def share(nbytes: int) -> Pool:
    """Return the shared pool of this process; if there is none yet, make one with *nbytes* bytes.

    ``OSError``, ``ValueError`` or ``MemoryError`` if the system has no such memory.
    """
    global shared
    if shared is None:
        shared = Pool(nbytes)
    return shared


def unshare() -> None:
    """Make no more blocks in the shared pool, as no other rank maps it. It is unmapped once its blocks are freed."""
    global shared
    shared = None


def own_pool() -> Pool:
    """Return the shared pool of this process, which must exist."""
    assert shared is not None
    return shared
