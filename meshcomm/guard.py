"""Agreement on errors, and the end of jobs that can go no further.

Ranks agree on a call before they exchange data in a way that they have not used before: if one of them sees an error,
or calls something else, all raise the same exception and none is left waiting. What cannot be agreed on any more ends
the job: an exception that nobody catches, and a collective call that a rank never joins.

Three environment variables, read when they are first needed: ``MESHCOMM_ABORT=0`` leaves uncaught exceptions
to Python, ``MESHCOMM_TIMEOUT`` is the time in seconds that a collective call may wait (600; 0 for ever), and
``MESHCOMM_CHECK=1`` agrees on every call instead of only on new ones.
"""

import atexit
import builtins
import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from types import TracebackType
from typing import Any, NoReturn, Protocol

import numpy as np

from meshcomm import errors, groups
from meshcomm.errors import CollectiveMismatch, MeshcommError
from meshcomm.groups import MPIWorld, Team

WARN_AFTER = 60.0
TELL_ERROR_AFTER = 5.0
COMPARE_EVERY = 64
COMPARE_SHARED_EVERY = 1024
_POLL = 0.5
_PAUSE = 0.1  # for launchers to pass on what was said, and for other ranks with the same error to say so


class Peers(Protocol):
    """What is known about ranks that have ended; there is something under ``python -m meshcomm run``."""

    def enter(self, team: Team) -> None:
        """Count a collective call of this rank on *team*."""

    def lost(self, team: Team) -> str | None:
        """Say which rank of *team* has ended without the call that this rank is in, or None."""


class _Watch:
    """What this rank is doing; written by the calls, read by the watchdog."""

    __slots__ = ("calls", "count", "error", "peers")

    def __init__(self) -> None:
        self.count = 0
        # A call may make another one; the first is what the user called.
        self.calls: list[tuple[str, Team | None]] = []
        self.peers: Peers | None = None
        # What this rank would raise as soon as the others agree.
        self.error: Exception | None = None


watch = _Watch()


def begin(operation: str, team: Team | None) -> None:
    """Tell the watchdog that this rank enters a collective call; each call has its `end`. Local.

    *team* is None where there is no team yet.
    """
    watch.count += 1
    watch.calls.append((operation, team))
    if watch.peers is not None and team is not None:
        watch.peers.enter(team)


def end() -> None:
    """Tell the watchdog that this rank has left the collective call. Local."""
    watch.calls.pop()


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


# What launchers tell each process of its rank, and of the number of ranks.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


def launched() -> tuple[int, int] | None:
    """Return the rank that a launcher gave this process, and of how many; None if there was no launcher. Local.

    Read from the environment: MPI does not have to be loaded, nor initialised.
    """
    for names in _LAUNCHERS:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return None


def ends_jobs() -> bool:
    """Return whether an uncaught exception is to end the job: unless ``MESHCOMM_ABORT=0``. Local."""
    return os.environ.get("MESHCOMM_ABORT", "1") != "0"


@cache
def install_hooks() -> None:
    """Make an uncaught exception end the job if it has more ranks than this one; once per process. Local.

    The hooks that were there are called first. One that replaces ours later is noticed when Python ends.
    """
    if ends_jobs():
        sys.excepthook = _ending_excepthook(sys.excepthook)
        threading.excepthook = _ending_thread_excepthook(threading.excepthook)
        atexit.register(_end_if_hook_was_replaced, sys.excepthook)


@cache
def install() -> None:
    """Make uncaught exceptions and lost ranks end the job; once per process. Local."""
    install_hooks()
    threading.Thread(target=_watchdog, args=(_timeout(),), name="meshcomm watchdog", daemon=True).start()


def _timeout() -> float:
    text = os.environ.get("MESHCOMM_TIMEOUT", "600")
    try:
        timeout = float(text)
    except ValueError:
        timeout = math.nan
    if not timeout >= 0:
        raise MeshcommError(f"MESHCOMM_TIMEOUT must be a number of seconds, or 0 for ever, not {text!r}")
    return timeout or math.inf


ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _ending_excepthook(previous: ExceptHook) -> ExceptHook:
    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        try:
            previous(kind, value, traceback)
        finally:
            end_job_of_many(f"an uncaught {kind.__name__}", exit_code(value))

    return excepthook


def _ending_thread_excepthook(previous: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def excepthook(args: Any) -> None:
        try:
            previous(args)
        finally:
            if not issubclass(args.exc_type, SystemExit):  # which ends a thread as it should
                name = args.thread.name if args.thread else "unknown"
                end_job_of_many(f"an uncaught {args.exc_type.__name__} in thread {name}")

    return excepthook


def _end_if_hook_was_replaced(ours: ExceptHook) -> None:
    value: BaseException | None = getattr(sys, "last_value", None)
    if value is not None and sys.excepthook is not ours:
        end_job_of_many(f"an uncaught {type(value).__name__}", exit_code(value))


def exit_code(error: BaseException) -> int:
    """Return the code with which Python ends for an uncaught *error*. Local."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def end_job_of_many(reason: str, code: int = 1) -> None:
    """End the job if it has more ranks than this one; return if not. Local."""
    if groups._forked:
        return
    MPI = _initialised_mpi()
    if MPI is None:
        _, ranks = launched() or (0, 1)
    else:
        ranks = 1 if MPI.Is_finalized() else MPI.COMM_WORLD.size
    if ranks > 1:
        end_job(reason, code)


def end_job(reason: str, code: int = 1) -> NoReturn:
    """Name this rank and *reason* on standard error, and end the MPI job with *code*. Local; does not return."""
    _say(f"{_who()} ends the job: {reason}")
    MPI = _initialised_mpi()
    if MPI is not None:
        _exit_after(2.0)
    else:
        # Launchers need not notice the end of a process that never was a rank, while the others wait for it in
        # MPI_Init. So become one, which takes until the others come there.
        _exit_after(_timeout())
        MPI = groups.mpi()
    time.sleep(_PAUSE)
    here = threading.current_thread() is threading.main_thread()
    if MPI.Is_initialized() and not MPI.Is_finalized() and (here or MPI.Query_thread() == MPI.THREAD_MULTIPLE):
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


def _initialised_mpi() -> Any:
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and MPI.Is_initialized() else None


def _who() -> str:
    MPI = _initialised_mpi()
    if MPI is not None and not MPI.Is_finalized():
        return f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"
    rank, size = launched() or (0, 1)
    return f"rank {rank} of {size}"


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # a closed pipe does not keep us from ending
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        print(f"meshcomm: {text}", file=sys.stderr, flush=True)


def _exit_after(seconds: float) -> None:
    """End this process in *seconds* whatever it does then: the timer is not a thread of Python."""
    if seconds < math.inf:
        with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(seconds, exit=True, file=os.dup(nowhere.fileno()))


_HINT = "If other ranks made another call, MESHCOMM_CHECK=1 will name it"


def _watchdog(timeout: float) -> None:
    """Warn about, and then end, a job in which this rank waits in one collective call for too long.

    Time is counted in steps of the watchdog: a job that is stopped for a while does not grow older.
    """
    step = min(_POLL, timeout / 10)
    seen, waited, warned = -1, 0.0, False
    while True:
        time.sleep(step)
        calls = watch.calls[:1]
        if not calls or watch.count != seen:
            seen, waited, warned = watch.count, 0.0, False
            continue
        waited += step
        operation, team = calls[0]
        what = f"has waited {waited:.0f} s in {operation} (its call {seen})"
        what += f" with {len(team.ranks)} ranks" if team is not None else ""
        lost = watch.peers.lost(team) if watch.peers is not None and team is not None else None
        if lost or waited >= timeout:
            _dump()
            why = f", but {lost}" if lost else f", longer than MESHCOMM_TIMEOUT={timeout:g}. {_HINT}"
            end_job(f"it {what}{why}")
        error = watch.error
        if error is not None and waited >= TELL_ERROR_AFTER and not warned:
            warned = True
            _say(f"{_who()} has to raise {type(error).__name__}: {error}\n  It {what}, who do not come to hear of it")
        if waited >= WARN_AFTER and not warned:
            warned = True
            _say(f"{_who()} {what}, and waits on")


def _dump() -> None:
    with contextlib.suppress(Exception):  # standard error may be no file
        faulthandler.dump_traceback(all_threads=True)
