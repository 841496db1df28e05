"""Processes that are forked from a rank: they are no ranks themselves, and must not end MPI.

A child that ended as Python programs do would finalise the MPI of its parent. MPICH then ends the job, and Open MPI
hangs. So when the child ends, Python flushes its files and exits at once, with the child's own exit code.
"""

import atexit
import builtins
import contextlib
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

is_child = False
"""Whether this process was forked from a rank and is none itself."""
_last_exit_code = 0


def exit_code(error: BaseException) -> int:
    """Return the code with which Python ends for an uncaught *error*."""
    if isinstance(error, KeyboardInterrupt):
        return 130  # 128 + SIGINT
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def note_exits() -> None:
    """From now on, note the exit code with which the program ends: `atexit` handlers do not get it."""
    sys.exit = _noting_exit
    for name in {"exit", "quit"} & vars(builtins).keys():
        setattr(builtins, name, _noting_exit)


def noted_code() -> int:
    """Return the code of the last call of ``sys.exit``, modulo 256; 0 if there was none."""
    return _last_exit_code & 0xFF


def _become_child() -> None:
    """Note that this process is a child."""
    global is_child
    if "mpi4py.MPI" in sys.modules and not is_child:
        is_child = True
        note_exits()
        sys.excepthook = _noting_hook(sys.excepthook)


def _noting_exit(status: object = None, /) -> NoReturn:
    global _last_exit_code
    error = SystemExit(status)
    _last_exit_code = exit_code(error)
    raise error


def _noting_hook(previous_hook: Callable[..., object]) -> Callable[..., object]:
    def excepthook(error_type: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        global _last_exit_code
        _last_exit_code = exit_code(error)
        previous_hook(error_type, error, traceback)

    return excepthook


@atexit.register
def _end_child() -> None:
    if is_child:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(noted_code())


os.register_at_fork(after_in_child=_become_child)
