"""Agreement on errors, and the end of jobs that can go no further.

Ranks agree on a call before they exchange data in a way that they have not used before: if one of them sees an error,
or calls something else, all raise the same exception and none is left waiting. What cannot be agreed on any more ends
the job: an exception that nobody catches, and a collective call that a rank never joins.

Three environment variables, read when the guard is installed or used: ``MESHCOMM_ABORT=0`` leaves uncaught exceptions
to Python, ``MESHCOMM_TIMEOUT`` is the time in seconds that a collective call may wait (600; 0 for ever), and
``MESHCOMM_CHECK=1`` agrees on every call instead of only on new ones.
"""

import builtins
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from types import TracebackType
from typing import Any

import numpy as np

from meshcomm import errors, groups
from meshcomm.errors import CollectiveMismatch, MeshcommError
from meshcomm.groups import Team

WARN_AFTER = 60.0


class _Watch:
    """What this rank is doing; written by the calls, read by the watchdog."""

    __slots__ = ("count", "operation", "team")

    def __init__(self) -> None:
        self.count = 0
        self.operation: str | None = None
        self.team: Team | None = None


watch = _Watch()


def begin(operation: str, team: Team) -> None:
    """Tell the watchdog that this rank enters a collective call. Local."""
    watch.count += 1
    watch.team = team
    watch.operation = operation


def end() -> None:
    """Tell the watchdog that this rank has left the collective call. Local."""
    watch.operation = None


def checks_every_call() -> bool:
    """Return whether ranks are to agree on every call. Local."""
    return os.environ.get("MESHCOMM_CHECK", "0") not in ("", "0")


def fingerprint(text: str) -> int:
    """Return a 62-bit number for *text*, the same on every rank. Local."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 2


def agree(team: Team, call: str, error: Exception | None = None) -> None:
    """Raise the same exception on every rank unless all make the same *call* without *error*. Collective over *team*.

    The calls made since the last agreement are compared too. An *error* of one rank is raised by all of them, as the
    same class; ``CollectiveMismatch`` names the ranks that differ.
    """
    team.chain = fingerprint(f"{team.chain} {call}")
    communicator = team.everyone.communicator()
    largest = communicator.allreduce_max(np.array([team.chain, -team.chain, error is not None], dtype=np.int64))
    if not largest[2] and largest[0] == -largest[1]:
        return
    call = call if len(call) < 500 else f"{call[:500]}... (fingerprint {fingerprint(call):x})"
    report = f"{type(error).__name__}\n{error}" if error is not None else f"\n{call}"
    reports = [text.decode().partition("\n")[::2] for text in communicator.allgather(report.encode())]
    team.chain = 0
    if error is not None:
        raise error
    for rank, (name, message) in zip(team.ranks, reports, strict=True):
        if name:
            raise _error_class(name)(f"{message} (seen by rank {rank})")
    raise CollectiveMismatch(_differences(team, [message for _, message in reports]))


def chained(team: Team, number: int) -> None:
    """Note a call that was agreed on before, for the next agreement to compare. Local."""
    team.chain = hash((team.chain, number)) >> 2


def _error_class(name: str) -> Callable[[str], Exception]:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else MeshcommError


def _differences(team: Team, calls: list[str]) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, call in zip(team.ranks, calls, strict=True):
        ranks_of.setdefault(call, []).append(rank)
    if len(ranks_of) == 1:
        return (
            f"all ranks call {calls[0]} now, but they made different calls before it. "
            "Run the program with MESHCOMM_CHECK=1 to stop at the first difference"
        )
    lines = [
        f"  rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {call}" for call, ranks in ranks_of.items()
    ]
    return "ranks made different collective calls:\n" + "\n".join(lines)


def launched_ranks() -> int | None:
    """Return how many ranks a launcher started this process as one of, or None if there was no launcher. Local.

    Read from the environment: MPI does not have to be loaded, nor initialised.
    """
    sizes = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]
    if "PMIX_RANK" in os.environ:
        sizes.append("SLURM_STEP_NUM_TASKS")
    text = next((os.environ[name] for name in sizes if name in os.environ), "")
    return int(text) if text.isdigit() else None


@cache
def install_hooks() -> None:
    """Make an uncaught exception end the job if it has more ranks than this one; once per process. Local."""
    if os.environ.get("MESHCOMM_ABORT", "1") != "0":
        sys.excepthook = _ending_excepthook(sys.excepthook)
        threading.excepthook = _ending_thread_excepthook(threading.excepthook)


@cache
def install() -> None:
    """Make uncaught exceptions and lost ranks end the job; once per process. Local."""
    install_hooks()
    timeout = _timeout()
    if timeout:
        threading.Thread(target=_watchdog, args=(timeout,), name="meshcomm watchdog", daemon=True).start()


def _timeout() -> float:
    text = os.environ.get("MESHCOMM_TIMEOUT", "600")
    try:
        return max(0.0, float(text))
    except ValueError:
        raise MeshcommError(f"MESHCOMM_TIMEOUT must be a number of seconds, not {text!r}") from None


ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _ending_excepthook(previous: ExceptHook) -> ExceptHook:
    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        previous(kind, value, traceback)
        end_job_of_many(f"an uncaught {kind.__name__}")

    return excepthook


def _ending_thread_excepthook(previous: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def excepthook(args: Any) -> None:
        previous(args)
        if args.exc_type is not SystemExit:
            name = args.thread.name if args.thread else "unknown"
            end_job_of_many(f"an uncaught {args.exc_type.__name__} in thread {name}")

    return excepthook


def end_job_of_many(reason: str, code: int = 1) -> None:
    """End the job if it has more ranks than this one; return if not. Local."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.size == 1 or groups._forked:
        return
    end_job(reason, code)


def end_job(reason: str, code: int = 1) -> None:
    """Name this rank and *reason* on standard error, and end the MPI job with *code*. Local; does not return."""
    MPI = groups.mpi()
    world = MPI.COMM_WORLD
    print(f"meshcomm: rank {world.rank} of {world.size} ends the job: {reason}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # An MPI that cannot be aborted from here still notices that a process is gone.
    last = threading.Timer(2.0, os._exit, (code,))
    last.daemon = True
    last.start()
    if threading.current_thread() is threading.main_thread() or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        world.Abort(code)
    os._exit(code)


def _watchdog(timeout: float) -> None:
    """Warn about, and then end, a job in which this rank waits in one collective call for too long."""
    seen, since, warned = -1, time.monotonic(), False
    while True:
        time.sleep(min(1.0, timeout / 10))
        now = time.monotonic()
        if watch.operation is None or watch.count != seen:
            seen, since, warned = watch.count, now, False
            continue
        waited, operation, team = now - since, watch.operation, watch.team
        members = f"{len(team.ranks)} ranks" if team else "its ranks"
        what = f"has waited {waited:.0f} s in {operation} (call {seen}) with {members}"
        if waited > timeout:
            faulthandler.dump_traceback(all_threads=True)
            end_job(f"it {what}, longer than MESHCOMM_TIMEOUT={timeout:g}")
        elif waited > WARN_AFTER and not warned:
            warned = True
            print(f"meshcomm: this rank {what}; still waiting", file=sys.stderr, flush=True)
