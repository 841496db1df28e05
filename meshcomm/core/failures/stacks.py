"""Where the threads of this process are: in short for messages, in full for flight files."""

import faulthandler
import linecache
import os
import runpy
import sys
import sysconfig
import tempfile
import threading
from itertools import dropwhile, takewhile
from traceback import walk_stack
from types import FrameType

from meshcomm.core._callers import is_ours

MAX_CALLS = 3
"""Calls of the program that a message names."""

_MAX_LINE_LENGTH = 80
"""Characters of a line of the program that a message shows."""

_RUNNERS = (threading.__file__, runpy.__file__, "<frozen runpy>")
_LIBRARIES = ("<frozen ", *{f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")})


def whole() -> str:
    """Return where all threads of Python are, the main one first, without the one that asks, if it is another.

    Nothing if there is no disk space to find out.
    """
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            threads = file.read().rstrip("\n").split("\n\n")
    except OSError:
        return ""
    main = f"{threading.main_thread().ident or 0:#018x}"
    first = [lines for lines in threads if main in lines.partition("\n")[0]]
    others = [lines for lines in threads if lines not in first and not lines.startswith("Current thread")]
    return "\n\n".join(first + others) + "\n"


def of_program() -> str:
    """Return where the program is that has called meshcomm in another thread, innermost call first; else nothing."""
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            calls = [_frame_text(call) for call in _calls_of_program(frame)]
            if calls:
                return ", called by ".join(calls[:MAX_CALLS]) + (", ..." if len(calls) > MAX_CALLS else "")
    return ""


def of_callers() -> dict[int | None, str]:
    """Return the line that has called meshcomm for each thread that is in a call: "f.py:9 in step: mc.barrier(m)"."""
    calls = {thread: _calls_of_program(frame) for thread, frame in sys._current_frames().items()}
    return {thread: _with_line(around[0]) for thread, around in calls.items() if around}


def of_main() -> str:
    """Return the line of the program that the main thread is at: "f.py:9 in step"; else nothing.

    Calls into libraries do not count: of a program that waits in mpi4py or NumPy it is the line that called them. No
    file is read, as the watchdog asks: that could take as long as what the main thread is stuck in.
    """
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    for frame, _ in walk_stack(innermost) if innermost is not None else ():
        if not is_ours(frame) and not frame.f_code.co_filename.startswith(_LIBRARIES):
            return _frame_text(frame)
    return ""


def _calls_of_program(innermost: FrameType) -> list[FrameType]:
    """Return the calls around those of meshcomm, up to those that run a program or a thread."""
    frames = (frame for frame, _ in walk_stack(innermost))
    ours = dropwhile(lambda frame: not is_ours(frame), frames)
    theirs = dropwhile(is_ours, ours)
    return list(takewhile(lambda frame: frame.f_code.co_filename not in _RUNNERS and not is_ours(frame), theirs))


def _frame_text(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _with_line(frame: FrameType) -> str:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    cut = f"{line[: _MAX_LINE_LENGTH - 3]}..." if len(line) > _MAX_LINE_LENGTH else line
    return f"{_frame_text(frame)}{': ' if cut else ''}{cut}"
