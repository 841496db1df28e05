"""Memory shared by the ranks of a node: which ranks share it, how much, and the meetings of those that do.

A block that is made with `allocate` lies in the pool of this process, which the other ranks of the node have mapped
when they first `meet`. Ranks that have met can copy straight between their blocks with `Rendezvous.exchange`, whether
these are in a pool or not, as long as one of the two is.

``MESHCOMM_SHARED_MEMORY`` is how much the ranks of a node may use together, such as ``500M`` or ``2G``, by default
half of the memory that they can have; 0 turns sharing off. It is read when ranks first meet.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshcomm import _late
from meshcomm.errors import MeshcommError
from meshcomm.groups import Bytes, Communicator
from meshcomm.memory._pool import Mapping, Memory, Pool
from meshcomm.memory._rendezvous import Rendezvous, Routes

__all__ = ["Rendezvous", "Routes", "allocate", "allocate_unshared", "describe", "exchange", "locate", "meet"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

ALWAYS_NEW = 2**17  # bytes up to which the C library keeps memory itself

_pool: Pool | None = None
_mappings: dict[str, Mapping] = {}  # of the pools of other processes, by their tokens; to the end of the program
_why_not: str | None = None  # the last reason not to share memory; "" once this process has shared some


def allocate(nbytes: int) -> Bytes | None:
    """Return *nbytes* bytes of any value that the ranks of the node share, or None if there are none. Local."""
    return None if _pool is None else _pool.allocate(nbytes)


def allocate_unshared(nbytes: int) -> Bytes:
    """Return *nbytes* bytes of any value. Local.

    Memory of large blocks is kept for later ones, as that of shared blocks is: to get pages from the system takes
    longer than to copy a block.
    """
    pool = _unshared_pool() if nbytes > ALWAYS_NEW else None
    block: Bytes | None = None if pool is None else pool.allocate(nbytes)
    return np.empty(nbytes, dtype=np.uint8) if block is None else block


@cache
def _unshared_pool() -> Pool | None:
    """Return a pool that may grow to all memory, if the system lets us reserve addresses without memory."""
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() != "2":
            return Pool(_all_memory(), private=True)
    except (OSError, ValueError, MemoryError):
        pass
    return None


def locate(array: Any) -> int:
    """Return where in the pool of this process a contiguous *array* is, or -1 if it is not, or only in part. Local."""
    return -1 if _pool is None else _pool.locate(array)


@_late.provides("meet")
def meet(communicator: Communicator, ranks: tuple[int, ...]) -> tuple[Rendezvous | None, tuple[int, ...] | None]:
    """Return the meeting of those ranks of *communicator* that are on this node, or None. Collective.

    None, on all of them, if there is one rank only, or one cannot share memory with another; `describe` says why. The
    second is the same on all ranks: a number for each, equal for ranks in one meeting, or None if none meet. The first
    call of a program, which should be over all its ranks, decides how much a rank may share. While ranks wait
    for each other they let MPI make progress. *ranks* are what errors call the ranks. ``MeshcommError``, on all ranks,
    if MESHCOMM_SHARED_MEMORY is no size.
    """
    me = communicator.rank
    everyone = _told(communicator, _introduction())
    error = next((its["error"] for its in everyone if its["error"]), None)
    if error is not None:
        raise MeshcommError(error)
    if all(_obstacle(everyone, rank) for rank in range(len(everyone))):  # all ranks see the same
        _note(_obstacle(everyone, me))
        return None, None
    mates = _mates(everyone, me)
    offer = _offer(_obstacle(everyone, me), _neighbours(everyone, me))
    offers = _told(communicator, offer)
    memories, obstacle = _mapped([(everyone[rank]["pid"], offers[rank]) for rank in mates], mates.index(me))
    obstacles = _told(communicator, obstacle)
    nodes = _nodes(everyone, obstacles)
    reason = next((obstacles[mate] for mate in mates if obstacles[mate]), "")
    if reason:
        if offer["line"] >= 0:
            _own().close_lines(offer["line"])
        _note(reason)
        return None, nodes
    lines = [offers[rank]["line"] for rank in mates]
    clock = max(offers[rank]["clock"] for rank in mates)
    _note("")
    names = [ranks[rank] for rank in mates]
    return Rendezvous(_own(), memories, lines, mates.index(me), clock, mates, names, communicator.progress), nodes


def exchange(
    meeting: Rendezvous, routes: Routes, copies: Any, number: int, source: Any, target: Any, several: Any = None
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Exchange with the copies that ``copies(reads, writes)`` returns, if there are none yet; return what is left."""
    if not meeting.exchange(routes, number, source, target, several):
        try:
            routes.plan(*copies(routes.reads_from, routes.writes_to))
        except BaseException:
            meeting.abandon()
            raise
        meeting.resume()
    return routes.left


def describe() -> str:
    """Say whether the ranks of this node share memory, and how much, or why not. Local."""
    if _why_not == "":
        return f"up to {_size(_own().share)} per rank, of which {_size(_own().used)} are in use"
    introduction = _introduction()
    if introduction["error"]:
        return f"error: {introduction['error']}"
    reason = _why_not or introduction["obstacle"]
    return f"off: {reason}" if reason else f"up to {_size(introduction['limit'])} for all ranks of this node"


def _note(reason: str) -> None:
    global _why_not
    if _why_not != "":
        _why_not = reason


def _told(communicator: Communicator, message: Any) -> list[Any]:
    return [json.loads(text) for text in communicator.allgather(json.dumps(message).encode())]


def _introduction() -> dict[str, Any]:
    """Return where this process runs, how much memory the ranks of its node may share, and why not to share it."""
    where = {"host": "", "processes": "", "pid": os.getpid(), "limit": 0, "obstacle": "", "error": ""}
    try:
        where["limit"] = _limit()
        # Containers of one machine that have names of their own count as hosts of their own, as for MPI.
        where["host"] = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.uname().nodename}"
        where["processes"] = os.readlink("/proc/self/ns/pid")
    except MeshcommError as error:
        where["error"] = str(error)
    except OSError as error:
        where["obstacle"] = f"this system has no memory to share between processes ({error})"
    if not where["limit"]:
        where["obstacle"] = "MESHCOMM_SHARED_MEMORY=0"
    return where


def _limit() -> int:
    """Return how many bytes the ranks of this node may share."""
    text = os.environ.get("MESHCOMM_SHARED_MEMORY", "")
    if not text:
        return _all_memory() // 2
    size = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if size is None:
        raise MeshcommError(f"MESHCOMM_SHARED_MEMORY must be a size such as 500M or 2G, or 0, not {text!r}")
    return int(float(size[1]) * _UNITS[size[2].upper()])


def _all_memory() -> int:
    """Return how much memory this process may have."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits()])


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
            for place in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max", or a group that is not visible from inside a container
                    yield int((place / name).read_text())


def _mates(everyone: list[Any], rank: int) -> list[int]:
    """Return the ranks that see each other's processes."""
    mine = everyone[rank]
    return [
        other
        for other, its in enumerate(everyone)
        if (its["host"], its["processes"]) == (mine["host"], mine["processes"])
    ]


def _nodes(everyone: list[Any], obstacles: list[str]) -> tuple[int, ...] | None:
    """Return a number for each rank, equal for those that share memory, or None if none do."""
    together: dict[Any, list[int]] = {}
    for rank, its in enumerate(everyone):
        together.setdefault((its["host"], its["processes"]), []).append(rank)
    nodes = list(range(len(everyone)))
    for mates in together.values():
        for mate in mates if not any(obstacles[rank] for rank in mates) else ():
            nodes[mate] = mates[0]
    return tuple(nodes) if len(set(nodes)) < len(nodes) else None


def _neighbours(everyone: list[Any], rank: int) -> int:
    """Return how many ranks use the memory of this node, other containers and what the launcher says included."""
    hosts = [its["host"] for its in everyone]
    launched = [os.environ.get(name, "") for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")]
    return max(hosts.count(hosts[rank]), *(int(text) for text in launched if text.isdigit()), 1)


def _obstacle(everyone: list[Any], rank: int) -> str:
    """Return why a rank cannot share memory with others, as far as all ranks know, or nothing."""
    mates = _mates(everyone, rank)
    for mate in mates:
        if everyone[mate]["obstacle"]:
            return f"{everyone[mate]['obstacle']} on rank {mate}"
    if len(mates) == 1:
        return "no other rank is on this node, or sees the processes of this one"
    if len({everyone[mate]["pid"] for mate in mates}) < len(mates):
        return "the ranks are threads of one process"
    return ""


def _offer(obstacle: str, ranks: int) -> dict[str, Any]:
    """Return how others find the pool of this process and its lines in a new meeting, or why they cannot."""
    global _pool
    offer: dict[str, Any] = {"obstacle": obstacle, "line": -1}
    if obstacle:
        return offer
    try:
        if _pool is None:
            _pool = Pool(max(1, _limit() // ranks))
    except (OSError, ValueError, MemoryError) as error:
        return offer | {"obstacle": f"no memory to share could be made ({error})"}
    line = _pool.open_lines()
    if line < 0:
        return offer | {"obstacle": "there is no room for the lines of another meeting"}
    return offer | {
        "fd": _pool.fd,
        "size": _pool.size,
        "token": _pool.token.hex(),
        "line": line,
        "clock": _pool.clock,
    }


def _mapped(offers: list[tuple[int, Any]], me: int) -> tuple[list[Memory], str]:
    """Return the memory of the ranks with these processes and offers, or why one of them cannot be mapped."""
    obstacle = next((offer["obstacle"] for _, offer in offers if offer["obstacle"]), "")
    if obstacle:
        return [], obstacle
    memories: list[Memory] = []
    for place, (process, offer) in enumerate(offers):
        try:
            memories.append(_own() if place == me else _mapping(process, offer))
        except OSError as error:
            return [], f"the memory of process {process} cannot be mapped ({error})"
    return memories, ""


def _mapping(process: int, offer: dict[str, Any]) -> Mapping:
    """Return the pool of another process; ``OSError`` if there is none."""
    token = offer["token"]
    if token not in _mappings:
        path = f"/proc/{process}/fd/{offer['fd']}"
        # Looked at before it is opened, which has effects on some files, should it be that of another process.
        if not os.readlink(path).startswith("/memfd:meshcomm"):
            raise OSError("it is not where it should be")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _mappings[token] = Mapping(fd, offer["size"], bytes.fromhex(token))
        finally:
            os.close(fd)
    return _mappings[token]


def _own() -> Pool:
    assert _pool is not None
    return _pool


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
