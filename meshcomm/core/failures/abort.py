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
from meshcomm.core._callers import shortened_traceback
from meshcomm.core._tuning import BECOME_RANK_WITHIN, END_WITHIN, PAUSE_BEFORE_END, POLL_TO
from meshcomm.core.failures import forks, host_signals
from meshcomm.core.failures.forks import exit_code
from meshcomm.core.failures.launchers import forget_launcher, is_on, is_reported_by_another, launched
from meshcomm.core.failures.messages import explain_none, spans
from meshcomm.core.failures.segments import remove_mapped
from meshcomm.core.failures.watch import watch
from meshcomm.errors import MeshcommError


def ends_jobs() -> bool:
    """Return whether an uncaught exception ends the job: unless ``MESHCOMM_ABORT=0``."""
    return is_on("MESHCOMM_ABORT", "1")


@cache
def install_hooks() -> None:
    """Make an uncaught exception end the job if it has more ranks than this one; once per process.

    Processes that a launcher started do so when they import meshcomm, others with their first mesh.

    The previous hooks are called first. A hook that replaces ours later is noticed when Python ends.
    """
    if ends_jobs():
        forks.note_exits()
        sys.excepthook = _ending_excepthook(sys.excepthook)
        threading.excepthook = _ending_thread_excepthook(threading.excepthook)
        atexit.register(_end_if_hook_was_replaced, sys.excepthook)


def timeout_seconds() -> float:
    """Return the seconds of waiting after which a job ends: ``MESHCOMM_TIMEOUT``, by default 600; 0 is never."""
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
    """The stream for messages, and a function that shows the output of this rank, if only rank 0 shows its own."""

    stderr: TextIO | None = None
    show: Callable[[bool], object] | None = None


def set_output(stderr: TextIO, show: Callable[[bool], object]) -> None:
    """Print messages of this package to *stderr*, and call *show* before an error of this rank is printed.

    The argument of *show* is whether to show the output of this rank: False if rank 0 has the same error.
    """
    _RankOutput.stderr, _RankOutput.show = stderr, show


def _show_output(shared_error: host_signals.SharedError | None) -> None:
    show, _RankOutput.show = _RankOutput.show, None
    if show is not None:
        deadline = time.monotonic() + END_WITHIN / 2  # time for rank 0 to show the same error
        while shared_error is not None and 0 not in shared_error.ranks() and time.monotonic() < deadline:
            time.sleep(POLL_TO)
        show(shared_error is None or 0 not in shared_error.ranks())


def _ending_excepthook(previous_hook: ExceptHook) -> ExceptHook:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if is_reported_by_another(error):
            return
        shared_error = None
        try:
            explain_none(error, reversed(watch.worlds))
            prints_in_one_piece = previous_hook is sys.__excepthook__ and comm_world()[1] > 1 and not forks.is_child
            shared_error = _shared_error(error) if prints_in_one_piece else None
            show_pending_error()  # also if another rank prints it: it must not end the job before this one knows
            if shared_error is not None:
                shared_error = shared_error.settled(END_WITHIN)
            if shared_error is None or shared_error.ours:
                _show_output(shared_error)
                with shortened_traceback(error):
                    traceback = error.__traceback__ or traceback
                    if prints_in_one_piece:  # as other ranks print at the same time
                        say(f"{who()} has an error:\n{''.join(format_exception(kind, error, traceback))}".rstrip())
                    else:
                        previous_hook(kind, error, traceback)
                if shared_error is not None:
                    shared_error.note_printed()
        finally:
            end_job_of_many(f"an uncaught {kind.__name__}", exit_code(error), shared_error)

    return excepthook


def _shared_error(error: BaseException) -> host_signals.SharedError | None:
    """Return *error* as one that other ranks may have, too; None for Ctrl-C, which interrupts each at another line."""
    if isinstance(error, KeyboardInterrupt):
        return None
    rank, _ = comm_world()
    text, knows_origin = host_signals.shared_text(error)
    # A rank that knows the origin of the error prints it with that line.
    return host_signals.SharedError(text, rank, [] if knows_origin else _other_ranks(), _report_deadline())


def _ending_thread_excepthook(previous_hook: ThreadHook) -> ThreadHook:
    def excepthook(args: threading.ExceptHookArgs) -> None:
        show_pending_error()
        try:
            previous_hook(args)
        finally:
            if not issubclass(args.exc_type, SystemExit):  # which ends a thread as it should
                thread_name = args.thread.name if args.thread else "unknown"
                end_job_of_many(f"an uncaught {args.exc_type.__name__} in thread {thread_name}")

    return excepthook


def _end_if_hook_was_replaced(our_hook: ExceptHook) -> None:
    last_error: BaseException | None = getattr(sys, "last_value", None)
    if last_error is not None and sys.excepthook is not our_hook:
        end_job_of_many(f"an uncaught {type(last_error).__name__}", exit_code(last_error))


def end_job_of_many(reason: str, code: int = 1, shared: host_signals.SharedError | None = None) -> None:
    """End the job if it has more ranks than this one; return if not. *shared* is for an error of several ranks."""
    MPI = _initialised_mpi()
    is_finalized = MPI is not None and MPI.Is_finalized()
    if not is_finalized and comm_world()[1] > 1 and not forks.is_child:
        end_job(reason + _same_error_text(shared), code, shared)


def end_job(reason: str, code: int = 1, shared: host_signals.SharedError | None = None) -> NoReturn:
    """Print this rank and *reason* on standard error, and end the MPI job with *code*; does not return.

    If several ranks on this host have the same error *shared*, one of them prints it for all. Ranks with another error
    may print theirs first. The job ends even if a signal handler raises meanwhile, as after a second Ctrl-C.
    """
    try:
        _report_end(reason, shared)
    finally:
        try:
            _abort(code)
        finally:
            os._exit(code)


def _report_end(reason: str, shared_error: host_signals.SharedError | None) -> None:
    write_traces()
    if shared_error is not None:
        shared_error = shared_error.settled(END_WITHIN)
    if shared_error is None or shared_error.ours:
        say(f"{who()} ends the job: {reason}")
        if shared_error is not None:
            shared_error.note_printed()
        host_signals.note_reported()
        host_signals.show_ending()
        host_signals.wait_for_reports(_other_ranks(), _report_deadline())
    else:
        host_signals.note_reported()
        time.sleep(END_WITHIN)  # in which the rank that prints the error ends the job


def _abort(code: int) -> None:
    """Let MPI end the job if it can; return if it cannot."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    MPI = _initialised_mpi()
    if MPI is not None:
        _exit_after(END_WITHIN)
    else:
        # A launcher may not notice the end of a process that is no rank yet, and the others would wait for it in
        # MPI_Init. So become a rank first, which takes until the others are there. A watchdog cannot: its main thread
        # has already waited for that.
        end_within = BECOME_RANK_WITHIN if is_main_thread else END_WITHIN
        with contextlib.suppress(MeshcommError):  # the variable is wrong
            end_within = min(timeout_seconds(), end_within)
        _exit_after(end_within)
        MPI = import_module("mpi4py.MPI")
    time.sleep(PAUSE_BEFORE_END)
    _let_be_read(END_WITHIN / 2)
    if (
        MPI.Is_initialized()
        and not MPI.Is_finalized()
        and (is_main_thread or MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    ):
        remove_mapped()
        MPI.COMM_WORLD.Abort(code)


def _let_be_read(seconds: float, fds: Sequence[int] = (1, 2)) -> None:
    """Wait, at most *seconds*, until the output of this process in the pipes *fds* has been read.

    A launcher that is asked to end the job stops reading: on a busy machine, the last messages got lost.
    """
    deadline = time.monotonic() + seconds
    while any(_unread_bytes(fd) for fd in fds) and time.monotonic() < deadline:
        time.sleep(POLL_TO)


def _unread_bytes(fd: int) -> int:
    """Return the number of unread bytes in the pipe *fd*; 0 if it is no pipe, or the number is unknown."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(fd).st_mode):
            byte_count = bytearray(4)
            fcntl.ioctl(fd, termios.FIONREAD, byte_count)
            return int.from_bytes(byte_count, sys.byteorder)
    return 0


def write_traces() -> None:
    """Let the recorder write the traces of this rank, as the job ends."""
    if watch.recorder is not None:
        with contextlib.suppress(Exception):
            watch.recorder.record_job_end()


def _same_error_text(shared_error: host_signals.SharedError | None) -> str:
    """Return, on the rank that prints an error, which ranks have the same one; waits a moment for them to show it."""
    if shared_error is None or not shared_error.ours:
        return ""
    time.sleep(PAUSE_BEFORE_END)
    ranks = shared_error.ranks()
    if len(ranks) == 1:
        return ""
    return f", on {f'all {len(ranks)} ranks' if len(ranks) == comm_world()[1] else f'ranks {spans(ranks)}'} alike"


def show_pending_error() -> None:
    """Show to other ranks on this host that this one has an error to report, and may end the job."""
    rank, size = comm_world()
    if size > 1 and not forks.is_child:
        host_signals.show_pending_error(rank)


def _other_ranks() -> list[int]:
    rank, size = comm_world()
    return [*range(rank), *range(rank + 1, size)]


@cache
def _report_deadline() -> float:
    """Return the time until which this rank, before it ends the job, lets others report their errors."""
    return time.monotonic() + END_WITHIN


def start_mpi_with_all_ranks() -> None:
    """Initialise MPI unless it is. MPI waits for all ranks; after `timeout_seconds` this process ends.

    Threads of Python do not run meanwhile: a timer in C prints the stack of this process, and ends it.
    """
    if "mpi4py.MPI" not in sys.modules:
        forget_launcher()
        _exit_after(timeout_seconds(), prints_stack=True)
        with contextlib.suppress(ImportError, RuntimeError):  # the next caller that asks for MPI gets it
            import_module("mpi4py.MPI")
        faulthandler.cancel_dump_traceback_later()


def _exit_after(seconds: float, prints_stack: bool = False) -> None:
    """End this process in *seconds*, and print its stack if *prints_stack*, by a timer that is no thread of Python."""
    if seconds < math.inf:
        with contextlib.suppress(Exception), open(os.devnull, "w") as null_file:  # standard error may be no file
            file = sys.stderr if prints_stack else os.dup(null_file.fileno())
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)


def _initialised_mpi() -> ModuleType | None:
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and MPI.Is_initialized() else None


def comm_world() -> tuple[int, int]:
    """Return the rank of this process in COMM_WORLD and the number of ranks; (0, 1) if they are unknown."""
    MPI = _initialised_mpi()
    if MPI is not None and not MPI.Is_finalized():
        return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    return launched() or (0, 1)


def show_end() -> None:
    """Show to other ranks on this host that the program of this rank has ended: they may wait for it."""
    host_signals.note_reported()
    MPI = _initialised_mpi()
    if MPI is not None and not forks.is_child and not MPI.Is_finalized() and MPI.COMM_WORLD.size > 1:
        host_signals.show_end(MPI.COMM_WORLD.rank, forks.noted_code())


def who() -> str:
    """Return the name of this rank for messages: "rank 1 of 4"."""
    rank, size = comm_world()
    return f"rank {rank} of {size}"


def say(text: str) -> None:
    """Flush standard output, and print *text* on standard error."""
    with contextlib.suppress(Exception):  # a closed pipe does not keep us from ending
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        print(
            f"meshcomm: {text}\n", end="", file=_RankOutput.stderr or sys.stderr, flush=True
        )  # in one piece, where others print, too


@cache
def say_once(text: str) -> host_signals.SharedError:
    """Print *text* on standard error, unless another rank on this host prints the same text.

    The result, which is kept, shows to other ranks that the text is printed.
    """
    shared_error = host_signals.SharedError(text, comm_world()[0])
    if shared_error.ours:
        say(text)
    return shared_error
