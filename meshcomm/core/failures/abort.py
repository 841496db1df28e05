"""The end of a job that cannot go on."""

import atexit
import contextlib
import faulthandler
import fcntl
import math
import os
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from traceback import format_exception
from types import ModuleType, TracebackType
from typing import NoReturn, TextIO, TypeAlias

from meshcomm.core._arguments import quote
from meshcomm.core._callers import in_short
from meshcomm.core._tuning import BECOME_RANK_WITHIN, END_WITHIN, PAUSE_BEFORE_END, POLL_TO
from meshcomm.core.failures import forks, host_signals
from meshcomm.core.failures.forks import exit_code
from meshcomm.core.failures.launchers import forget_launcher, is_on, is_reported_by_another, launched
from meshcomm.core.failures.messages import explain_none, spans
from meshcomm.core.failures.segments import remove_mapped
from meshcomm.core.failures.watch import watch
from meshcomm.errors import MeshcommError


def ends_jobs() -> bool:
    """Return whether an uncaught exception is to end the job: unless ``MESHCOMM_ABORT=0``."""
    return is_on("MESHCOMM_ABORT", "1")


@cache
def install_hooks() -> None:
    """Make an uncaught exception end the job if it has more ranks than this one; once per process.

    A process that a launcher started does so when it imports meshcomm, others with their first mesh.

    The hooks that were there are called first. One that replaces ours later is noticed when Python ends.
    """
    if ends_jobs():
        forks.note_exits()
        sys.excepthook = _ending_excepthook(sys.excepthook)
        threading.excepthook = _ending_thread_excepthook(threading.excepthook)
        atexit.register(_end_if_hook_was_replaced, sys.excepthook)


def timeout_seconds() -> float:
    """Return after how many seconds of waiting a job ends: ``MESHCOMM_TIMEOUT``, by default 600; 0 is never."""
    text = os.environ.get("MESHCOMM_TIMEOUT", "") or "600"
    try:
        timeout = float(text)
    except ValueError:
        timeout = math.nan
    if not timeout >= 0:
        raise MeshcommError(f"MESHCOMM_TIMEOUT must be a number of seconds, or 0 for ever, not {quote(text)}")
    return timeout or math.inf


ExceptHook: TypeAlias = Callable[[type[BaseException], BaseException, TracebackType | None], object]
ThreadHook: TypeAlias = Callable[[threading.ExceptHookArgs], object]


class _RankOutput:
    """How this rank shows what it has printed, if only rank 0 shows its output; and where messages go."""

    stderr: TextIO | None = None
    show: Callable[[bool], object] | None = None


def let_show(stderr: TextIO, show: Callable[[bool], object]) -> None:
    """Let messages of this package go to *stderr*, and an error of this rank alone call *show* first.

    *show* takes whether to show what the rank has printed: not if rank 0 has the same error.
    """
    _RankOutput.stderr, _RankOutput.show = stderr, show


def _show_output(shared: host_signals.Error | None) -> None:
    show, _RankOutput.show = _RankOutput.show, None
    if show is not None:
        end = time.monotonic() + END_WITHIN / 2  # for rank 0 to come, if it has the same error
        while shared is not None and 0 not in shared.ranks() and time.monotonic() < end:
            time.sleep(POLL_TO)
        show(shared is None or 0 not in shared.ranks())


def _ending_excepthook(previous: ExceptHook) -> ExceptHook:
    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        if is_reported_by_another(value):
            return
        shared = None
        try:
            explain_none(value, reversed(watch.worlds))
            in_one_piece = previous is sys.__excepthook__ and comm_world()[1] > 1 and not forks.is_child
            shared = _shared_error(value) if in_one_piece else None
            show_words()  # also where another rank prints them, which is not to end the job before this one knows
            if shared is not None:
                shared = shared.settled(END_WITHIN)
            if shared is None or shared.ours:
                _show_output(shared)
                with in_short(value):
                    traceback = value.__traceback__ or traceback
                    if in_one_piece:  # as other ranks print, too
                        say(f"{who()} has an error:\n{''.join(format_exception(kind, value, traceback))}".rstrip())
                    else:
                        previous(kind, value, traceback)
                if shared is not None:
                    shared.note_printed()
        finally:
            end_job_of_many(f"an uncaught {kind.__name__}", exit_code(value), shared)

    return excepthook


def _shared_error(error: BaseException) -> host_signals.Error | None:
    """Return *error* as one that other ranks may have, too; None for Ctrl-C, which comes at another line on each."""
    if isinstance(error, KeyboardInterrupt):
        return None
    rank, _ = comm_world()
    text, seen = host_signals.shared_text(error)
    # A rank that has seen it prints it with the line that it comes from.
    return host_signals.Error(text, rank, [] if seen else _other_ranks(), _others_tell_until())


def _ending_thread_excepthook(previous: ThreadHook) -> ThreadHook:
    def excepthook(args: threading.ExceptHookArgs) -> None:
        show_words()
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


def end_job_of_many(reason: str, code: int = 1, shared: host_signals.Error | None = None) -> None:
    """End the job if it has more ranks than this one; return if not. *shared* is for an error of several ranks."""
    MPI = _initialised_mpi()
    over = MPI is not None and MPI.Is_finalized()
    if not over and comm_world()[1] > 1 and not forks.is_child:
        end_job(reason + _same_error_text(shared), code, shared)


def end_job(reason: str, code: int = 1, shared: host_signals.Error | None = None) -> NoReturn:
    """Name this rank and *reason* on standard error, and end the MPI job with *code*; does not return.

    Of ranks on this host with the same error *shared*, one does so, for all. Others that have an error to tell may
    tell it first. Whatever a signal handler raises meanwhile, as after a second Ctrl-C, the job ends.
    """
    try:
        _tell_end(reason, shared)
    finally:
        try:
            _abort(code)
        finally:
            os._exit(code)


def _tell_end(reason: str, shared: host_signals.Error | None) -> None:
    write_traces()
    if shared is not None:
        shared = shared.settled(END_WITHIN)
    if shared is None or shared.ours:
        say(f"{who()} ends the job: {reason}")
        if shared is not None:
            shared.note_printed()
        host_signals.note_reported()
        host_signals.show_ending()
        host_signals.let_tell(_other_ranks(), _others_tell_until())
    else:
        host_signals.note_reported()
        time.sleep(END_WITHIN)  # in which the rank that prints the error ends the job


def _abort(code: int) -> None:
    """Let MPI end the job if it can; return if it cannot."""
    is_main = threading.current_thread() is threading.main_thread()
    MPI = _initialised_mpi()
    if MPI is not None:
        _exit_after(END_WITHIN)
    else:
        # A launcher need not notice that a process ends before it became a rank, and the others would wait for it in
        # MPI_Init. So become a rank first, which takes until the others are there. A watchdog cannot: its main thread
        # has already waited for that.
        within = BECOME_RANK_WITHIN if is_main else END_WITHIN
        with contextlib.suppress(MeshcommError):  # the variable is wrong
            within = min(timeout_seconds(), within)
        _exit_after(within)
        MPI = import_module("mpi4py.MPI")
    time.sleep(PAUSE_BEFORE_END)
    _let_be_read(END_WITHIN / 2)
    if MPI.Is_initialized() and not MPI.Is_finalized() and (is_main or MPI.Query_thread() == MPI.THREAD_MULTIPLE):
        remove_mapped()
        MPI.COMM_WORLD.Abort(code)


def _let_be_read(seconds: float, files: Sequence[int] = (1, 2)) -> None:
    """Wait at most so many *seconds* until all that this process has printed into a pipe has been read.

    A launcher that is asked to end the job does not read it any more: on a busy machine, the last words got lost.
    """
    end = time.monotonic() + seconds
    while any(_unread_bytes(file) for file in files) and time.monotonic() < end:
        time.sleep(POLL_TO)


def _unread_bytes(file: int) -> int:
    """Return how many bytes in the pipe *file* nobody has read yet; 0 if it is no pipe, or not known."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(file).st_mode):
            count = bytearray(4)
            fcntl.ioctl(file, termios.FIONREAD, count)
            return int.from_bytes(count, sys.byteorder)
    return 0


def write_traces() -> None:
    """Let this rank's traces be written as they are now, as the job ends."""
    if watch.recorder is not None:
        with contextlib.suppress(Exception):
            watch.recorder.record_job_end()


def _same_error_text(shared: host_signals.Error | None) -> str:
    """Return which ranks have the same error, on the one that prints it, after a moment for them to come."""
    if shared is None or not shared.ours:
        return ""
    time.sleep(PAUSE_BEFORE_END)
    ranks = shared.ranks()
    if len(ranks) == 1:
        return ""
    return f", on {f'all {len(ranks)} ranks' if len(ranks) == comm_world()[1] else f'ranks {spans(ranks)}'} alike"


def show_words() -> None:
    """Show to other ranks on this host that this one has an error to tell: it may end the job, or come too late."""
    rank, size = comm_world()
    if size > 1 and not forks.is_child:
        host_signals.show_words(rank)


def _other_ranks() -> list[int]:
    rank, size = comm_world()
    return [*range(rank), *range(rank + 1, size)]


@cache
def _others_tell_until() -> float:
    """Return until when this rank, which is about to end the job, lets others tell their errors."""
    return time.monotonic() + END_WITHIN


def start_mpi_with_all_ranks() -> None:
    """Initialise MPI if it is not. MPI waits for all ranks; after `timeout_seconds` this process ends.

    Python's own threads do not run meanwhile: a timer of C prints where this process is, and ends it.
    """
    if "mpi4py.MPI" not in sys.modules:
        forget_launcher()
        _exit_after(timeout_seconds(), says=True)
        with contextlib.suppress(ImportError, RuntimeError):  # the next caller that asks for MPI gets it
            import_module("mpi4py.MPI")
        faulthandler.cancel_dump_traceback_later()


def _exit_after(seconds: float, says: bool = False) -> None:
    """End this process in *seconds* whatever it does then, and maybe say where: the timer is no thread of Python."""
    if seconds < math.inf:
        with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere:  # standard error may be no file
            file = sys.stderr if says else os.dup(nowhere.fileno())
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)


def _initialised_mpi() -> ModuleType | None:
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and MPI.Is_initialized() else None


def comm_world() -> tuple[int, int]:
    """Return the rank of this process in COMM_WORLD and the number of ranks, as far as they are known."""
    MPI = _initialised_mpi()
    if MPI is not None and not MPI.Is_finalized():
        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    return launched() or (0, 1)


def show_end() -> None:
    """Show to other ranks on this host that the program has ended here: they may wait for this one."""
    host_signals.note_reported()
    MPI = _initialised_mpi()
    if MPI is not None and not forks.is_child and not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1:
        host_signals.show_end(MPI.COMM_WORLD.rank, forks.noted_code())


def who() -> str:
    """Return the name of this rank for messages: "rank 1 of 4"."""
    rank, size = comm_world()
    return f"rank {rank} of {size}"


def say(text: str) -> None:
    """Print *text* on standard error, after what is still to be printed on standard output."""
    with contextlib.suppress(Exception):  # a closed pipe does not keep us from ending
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        print(
            f"meshcomm: {text}\n", end="", file=_RankOutput.stderr or sys.stderr, flush=True
        )  # in one piece, where others print, too


@cache
def say_once(text: str) -> host_signals.Error:
    """Print *text*, which several ranks may have to say, on standard error: of those on one host, one prints it.

    What this returns shows to others that it is printed. It is kept.
    """
    shared = host_signals.Error(text, comm_world()[0])
    if shared.ours:
        say(text)
    return shared
