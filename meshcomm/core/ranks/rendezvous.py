"""Which ranks share the memory of a node, how much of it, and how they map each other's pools.

`meshcomm.core.memory.blocks.new_bytes` makes blocks in the pool of this process. In `open_rendezvous`, the ranks of a
node map each other's pools. Then two ranks can copy straight between their blocks if at least one of the two blocks is
in a pool.

``MESHCOMM_SHARED_MEMORY`` is the total memory that the ranks of a node may share, such as ``500M`` or ``2G``. The
default is half of the memory that they can have; 0 turns sharing off. The variable is read when ranks first open a
rendezvous.

Ranks open a rendezvous in three steps, each an all_gather. After each step all ranks know the same, so they agree on
the next one:

1. each rank's host, and why it cannot share memory, if so (`Introduction`)
2. each rank's pool, and its lines in it (`PoolOffer`)
3. why it could not map the pools of its local peers, if so
"""

import os
from collections.abc import Sequence
from typing import TypedDict

from meshcomm.core._units import bytes_text
from meshcomm.core.failures.messages import ranks_by_value
from meshcomm.core.memory._pool import Mapping, Memory
from meshcomm.core.memory._rendezvous import Rendezvous
from meshcomm.core.memory.pools import all_memory, own_pool, reservable, share, unshare
from meshcomm.core.ranks.communicator import Communicator
from meshcomm.core.ranks.hosts import this_host
from meshcomm.core.ranks.sizes import size_in
from meshcomm.errors import MeshcommError

_mappings: dict[str, Mapping] = {}  # mapped pools of other processes, by their tokens; kept to the end of the program
_why_not: str | None = None  # the last reason not to share memory; "" once this process has shared some


class Introduction(TypedDict):
    """The host of a rank, and the memory that the ranks of its node may share."""

    host: str
    processes: str  # PID namespace: ranks in different ones cannot map each other's pools
    pid: int
    limit: int  # in bytes
    obstacle: str  # why it cannot share memory; "" if it can
    error: str  # text of an error for all ranks to raise; "" without one


class PoolOffer(TypedDict):
    """The pool of a rank, for others to map, and its lines for the new rendezvous."""

    obstacle: str  # why there is no offer (then the other fields are not valid); "" if there is one
    lines: int
    fd: int
    size: int
    token: str
    clock: int


def open_rendezvous(
    communicator: Communicator, ranks: tuple[int, ...]
) -> tuple[Rendezvous | None, tuple[int, ...] | None]:
    """Return the rendezvous of the ranks of *communicator* that share memory with this one, and the map of all nodes.

    Collective over *communicator*. *ranks* are the numbers of its ranks in errors.

    The rendezvous is None, on all ranks of this node, if the node has only this rank, or if one of them cannot share
    memory with another. `describe` says why. The map is the same on all ranks: a number for each rank, equal for ranks
    that share memory; it is None if none do. ``MeshcommError``, on all ranks, if MESHCOMM_SHARED_MEMORY is no size.

    The first call of a program decides how much memory a rank may share, and should be over all its ranks. While ranks
    wait for each other, they let MPI make progress.
    """
    own_rank = communicator.rank
    introductions = communicator.allgather_json(_introduction())
    error = next((introduction["error"] for introduction in introductions if introduction["error"]), None)
    if error is not None:
        raise MeshcommError(error)
    hosts = [(introduction["host"], introduction["processes"]) for introduction in introductions]
    groups = list(ranks_by_value(range(len(introductions)), hosts).values())
    peers = next(group for group in groups if own_rank in group)
    if all(_obstacle(introductions, group) for group in groups):  # all ranks see the same
        _note_reason(_obstacle(introductions, peers))
        return None, None
    offer = _pool_offer(_obstacle(introductions, peers), _ranks_on_host(introductions, own_rank))
    offers = communicator.allgather_json(offer)
    memories, obstacle = _mapped_memories(
        [(introductions[rank]["pid"], offers[rank]) for rank in peers], peers.index(own_rank)
    )
    obstacles = communicator.allgather_json(obstacle)
    nodes = _nodes(groups, obstacles)
    reason = next((obstacles[peer] for peer in peers if obstacles[peer]), "")
    if reason:
        if offer["lines"] >= 0:
            own_pool().close_lines(offer["lines"])
        _note_reason(reason)
        if _why_not != "":  # no other ranks share with this one either
            unshare()
            _mappings.clear()
        return None, nodes
    lines = [offers[rank]["lines"] for rank in peers]
    clock = max(offers[rank]["clock"] for rank in peers)
    _note_reason("")
    names = [ranks[rank] for rank in peers]
    return Rendezvous(
        own_pool(), memories, lines, peers.index(own_rank), clock, peers, names, communicator.progress
    ), nodes


def describe() -> str:
    """Return a text that says whether the ranks of this node share memory, and how much, or why not."""
    if _why_not == "":
        return f"up to {bytes_text(own_pool().share)} per rank, of which {bytes_text(own_pool().used)} are in use"
    introduction = _introduction()
    if introduction["error"]:
        return f"error: {introduction['error']}"
    reason = _why_not or introduction["obstacle"]
    return f"off: {reason}" if reason else f"up to {bytes_text(introduction['limit'])} for all ranks of this node"


def _note_reason(reason: str) -> None:
    global _why_not
    if _why_not != "":
        _why_not = reason


def _introduction() -> Introduction:
    """Return the `Introduction` of this process."""
    result = Introduction(host="", processes="", pid=os.getpid(), limit=0, obstacle="", error="")
    try:
        result["limit"] = shared_limit()
        result["host"] = this_host()
        result["processes"] = os.readlink("/proc/self/ns/pid")
    except MeshcommError as error:
        result["error"] = str(error)
    except OSError as error:
        result["obstacle"] = f"this system has no memory to share between processes ({error})"
    if not result["limit"]:
        result["obstacle"] = "MESHCOMM_SHARED_MEMORY=0"
    return result


def shared_limit() -> int:
    """Return the bytes that the ranks of this node may share; ``MeshcommError`` if the variable is no size."""
    nbytes = size_in("MESHCOMM_SHARED_MEMORY", "500M or 2G, or 0")
    return all_memory() // 2 if nbytes is None else nbytes


def _nodes(groups: list[list[int]], obstacles: list[str]) -> tuple[int, ...] | None:
    """Return a number for each rank, equal for ranks that share memory; None if none do."""
    nodes = list(range(len(obstacles)))
    for peers in groups:
        for peer in peers if not any(obstacles[rank] for rank in peers) else ():
            nodes[peer] = peers[0]
    return tuple(nodes) if len(set(nodes)) < len(nodes) else None


def _ranks_on_host(introductions: Sequence[Introduction], rank: int) -> int:
    """Return the number of ranks on the host of *rank*: those of *introductions*, or as many as the launcher says."""
    hosts = [introduction["host"] for introduction in introductions]
    launcher_counts = [os.environ.get(name, "") for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")]
    return max(hosts.count(hosts[rank]), *(int(text) for text in launcher_counts if text.isdigit()), 1)


def _obstacle(introductions: Sequence[Introduction], peers: list[int]) -> str:
    """Return why *peers*, ranks of one host and PID namespace, cannot share memory; "" if they can, so far."""
    for peer in peers:
        if introductions[peer]["obstacle"]:
            return f"{introductions[peer]['obstacle']} on rank {peer}"
    if len(peers) == 1:
        return "no other rank is on this node, or sees the processes of this one"
    if len({introductions[peer]["pid"] for peer in peers}) < len(peers):
        return "the ranks are threads of one process"
    return ""


def _pool_offer(obstacle: str, ranks: int) -> PoolOffer:
    """Return the `PoolOffer` of this process; with *obstacle*, if that is not "".

    *ranks* is the number of ranks on the node: each of their pools gets an equal share of the memory.
    """
    if not obstacle:
        try:
            pool = share(max(1, reservable(shared_limit()) // ranks))
        except (OSError, ValueError, MemoryError) as error:
            obstacle = f"no memory to share could be made ({error})"
        else:
            lines, token = pool.open_lines(), pool.token.hex()
            if lines >= 0:
                return PoolOffer(obstacle="", lines=lines, fd=pool.fd, size=pool.size, token=token, clock=pool.clock)
            obstacle = "there is no free space for the lines of another rendezvous"
    return PoolOffer(obstacle=obstacle, lines=-1, fd=-1, size=0, token="", clock=0)


def _mapped_memories(offers: list[tuple[int, PoolOffer]], own_position: int) -> tuple[list[Memory], str]:
    """Return the memory of each rank, from its process and offer, and ""; or [] and why one cannot be mapped."""
    obstacle = next((offer["obstacle"] for _, offer in offers if offer["obstacle"]), "")
    if obstacle:
        return [], obstacle
    memories: list[Memory] = []
    for position, (process, offer) in enumerate(offers):
        try:
            memories.append(own_pool() if position == own_position else _mapped_pool(process, offer))
        except OSError as error:
            return [], f"the memory of process {process} cannot be mapped ({error})"
    return memories, ""


def _mapped_pool(process: int, offer: PoolOffer) -> Mapping:
    """Return the pool of another process; ``OSError`` if there is none."""
    token = offer["token"]
    if token not in _mappings:
        path = f"/proc/{process}/fd/{offer['fd']}"
        # A check before it is opened: it may belong to another process, and some files react to being opened.
        if not os.readlink(path).startswith("/memfd:meshcomm"):
            raise OSError("it is not where it should be")
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _mappings[token] = Mapping(fd, offer["size"], bytes.fromhex(token))
        finally:
            os.close(fd)
    return _mappings[token]
