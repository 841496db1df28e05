"""The pools of this process: memory that the ranks of the node share, and memory of this process only."""

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
"""The pool that other processes of the node map, once there is one."""


def allocate(nbytes: int) -> Bytes | None:
    """Return *nbytes* bytes of any value that the ranks of the node share, or None if there are none."""
    return None if shared is None else shared.allocate(nbytes)


def allocate_unshared(nbytes: int) -> Bytes:
    """Return *nbytes* bytes of any value.

    Memory of large blocks is kept for later ones, as that of shared blocks is: to get pages from the system takes
    longer than to copy a block.
    """
    pool = _unshared_pool() if nbytes > POOLED_FROM else None
    block: Bytes | None = None if pool is None else pool.allocate(nbytes)
    return np.empty(nbytes, dtype=np.uint8) if block is None else block


@cache
def _unshared_pool() -> Pool | None:
    """Return a pool that may grow to all memory, if the system lets us reserve addresses without memory."""
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
            return Pool(reservable(all_memory()), private=True)
    except (OSError, ValueError, MemoryError):
        pass
    return None


def locate(array: object) -> int:
    """Return where in the pool of this process a contiguous *array* is, or -1 if it is not, or only in part."""
    return -1 if shared is None else shared.locate(array)


def all_memory() -> int:
    """Return how much memory this process may have."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits()])


def reservable(nbytes: int) -> int:
    """Return how much address space a pool of *nbytes* may reserve, or all pools that a process maps to share.

    Under RLIMIT_AS this is at most a fraction of what the process has left: the rest is for the program.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return nbytes
    with suppress(OSError, ValueError):  # no /proc: none of it counts as taken
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
    """Return the pool of this process that others can map, made with *nbytes* bytes if there is none yet.

    ``OSError``, ``ValueError`` or ``MemoryError`` if the system has no such memory.
    """
    global shared
    if shared is None:
        shared = Pool(nbytes)
    return shared


def unshare() -> None:
    """Make no more blocks in the pool that others can map: nobody does. It is unmapped once its blocks are freed."""
    global shared
    shared = None


def own_pool() -> Pool:
    """Return the pool of this process that others can map; there must be one."""
    assert shared is not None
    return shared
