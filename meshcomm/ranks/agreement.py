"""Agreement on errors, and the end of jobs that can go no further.

Ranks agree on a call before they exchange data in a way that they have not used before: if one of them sees an error,
or calls something else, all raise the same exception and none is left waiting. What cannot be agreed on any more ends
the job: an exception that nobody catches, and a collective call that a rank never joins.

Three environment variables, read when they are first needed: ``MESHCOMM_ABORT=0`` leaves uncaught exceptions
to Python, ``MESHCOMM_TIMEOUT`` is the time in seconds that a collective call may wait (600; 0 for ever), and
``MESHCOMM_CHECK=1`` agrees on every call instead of only on new ones.
"""

import builtins
import os
from functools import cache
from hashlib import blake2b

import numpy as np

from meshcomm import errors
from meshcomm._tuning import COMPARE_EVERY, COMPARE_SHARED_EVERY
from meshcomm.errors import CollectiveMismatch, MeshcommError
from meshcomm.ranks.mpi import MPIWorld
from meshcomm.ranks.teams import Team
from meshcomm.ranks.watchdog import install, watch


@cache
def checks_every_call() -> bool:
    """Return whether ranks are to agree on every call. Local."""
    return os.environ.get("MESHCOMM_CHECK", "0") not in ("", "0")


def fingerprint(text: str) -> int:
    """Return a 62-bit number for *text*, the same on every rank. Local."""
    return int.from_bytes(blake2b(_encoded(text), digest_size=8).digest(), "little") >> 2


def agree(team: Team, call: str, error: Exception | None = None) -> None:
    """Raise the same exception on every rank unless all make the same *call* without *error*. Collective over *team*.

    The calls made since the last agreement are compared too. An *error* of one rank is raised by all of them, as the
    same class; ``CollectiveMismatch`` names the ranks that differ.
    """
    if isinstance(team.world, MPIWorld) and len(team.ranks) > 1:
        install()
    team.chain = fingerprint(f"{team.chain} {call}")
    communicator = team.everyone.communicator()
    team.agrees()
    watch.error = error
    largest = communicator.allreduce_max(np.array([team.chain, -team.chain, error is not None], dtype=np.int64))
    watch.error = None
    if not largest[2] and largest[0] == -largest[1]:
        return
    call = call if len(call) < 500 else f"{call[:500]}... (fingerprint {fingerprint(call):x})"
    name = _shared_class(error).__name__ if error is not None else ""
    report = f"{name}\n{call if error is None else error}"
    reports = [text.decode().partition("\n")[::2] for text in communicator.allgather(_encoded(report))]
    team.chain = 0
    for rank, (its_name, message) in zip(team.ranks, reports, strict=True):
        if its_name == name != "":
            assert error is not None
            raise error
        if its_name:
            raise (_named_class(its_name) or MeshcommError)(f"{message} (seen by rank {rank})") from error
    raise CollectiveMismatch(_differences(team, [message for _, message in reports]))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")  # an error may quote what is no valid text


def chained(team: Team, number: int, exchanges: bool = False) -> None:
    """Note a call that was agreed on before, for the next agreement to compare. Local; every 64th time Collective.

    So a program that makes the same calls over and over does not go on for long after its ranks have diverged. Of
    calls that are *exchanges* of ranks that all share memory it is every 1,024th: these compare the chain with what
    they exchange.
    """
    team.chain = hash((team.chain, number)) >> 2
    team.known_calls += 1 if exchanges and team.shares_memory else COMPARE_SHARED_EVERY // COMPARE_EVERY
    if team.known_calls >= COMPARE_SHARED_EVERY:
        team.known_calls = 0
        agree(team, "something that all ranks agreed on before")


def _named_class(name: str) -> type[Exception] | None:
    """Return the class of exceptions of that name which every rank has and can make of a text, or None."""
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return None
    try:
        found("")
    except TypeError:  # such as UnicodeDecodeError
        return None
    return found


def _shared_class(error: Exception) -> type[Exception]:
    """Return the closest class of *error* that other ranks can raise too."""
    return next(kind for kind in map(_named_class, (kind.__name__ for kind in type(error).__mro__)) if kind)


def _differences(team: Team, calls: list[str]) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, call in zip(team.ranks, calls, strict=True):
        ranks_of.setdefault(call, []).append(rank)
    if len(ranks_of) == 1:
        return (
            f"all ranks call {calls[0]} now, but they made different calls before it. "
            "Run the program with MESHCOMM_CHECK=1 to stop at the first difference"
        )
    lines = [f"  {_some(ranks)}: {call}" for call, ranks in ranks_of.items()]
    return "ranks made different collective calls:\n" + "\n".join(lines)


def _some(ranks: list[int]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}{more}"
