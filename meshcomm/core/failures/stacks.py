"""The stacks of the threads of this process: in short for messages, in full for flight files."""

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
    """Return the stacks of all threads of Python, the main one first, without the caller's unless it is the main one.

    "" if there is no space on disk for the file that they go through.
    """
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = file.read().rstrip("\n").split("\n\n")
    except OSError:
        return ""
    main_id = f"{threading.main_thread().ident or 0:#018x}"
    main_stacks = [stack for stack in stacks if main_id in stack.partition("\n")[0]]
    other_stacks = [stack for stack in stacks if stack not in main_stacks and not stack.startswith("Current thread")]
    return "\n\n".join(main_stacks + other_stacks) + "\n"


def of_program() -> str:
    """Return the calls of the program that called meshcomm in another thread, innermost first; "" without such."""
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            calls = [_frame_text(call) for call in _calls_of_program(frame)]
            if calls:
                return ", called by ".join(calls[:MAX_CALLS]) + (", ..." if len(calls) > MAX_CALLS else "")
    return ""


def of_callers() -> dict[int | None, str]:
    """Return, for each thread in a call of meshcomm, the line that made it: "f.py:9 in step: mc.barrier(m)"."""
    calls = {thread: _calls_of_program(frame) for thread, frame in sys._current_frames().items()}
    return {thread: _with_line(frames[0]) for thread, frames in calls.items() if frames}


def of_main() -> str:
    """Return the line of the program that the main thread is at: "f.py:9 in step"; "" if there is none.

    Calls within libraries do not count: if a program waits in mpi4py or NumPy, it is the line that called them. No
    file is read, as the watchdog calls this: a read could block as the main thread does.
    """
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    for frame, _ in walk_stack(innermost) if innermost is not None else ():
        if not is_ours(frame) and not frame.f_code.co_filename.startswith(_LIBRARIES):
            return _frame_text(frame)
    return ""


def _calls_of_program(innermost: FrameType) -> list[FrameType]:
    """Return the calls around those of meshcomm, up to those that run a program or a thread."""
    frames = (frame for frame, _ in walk_stack(innermost))
    from_meshcomm = dropwhile(lambda frame: not is_ours(frame), frames)
    from_program = dropwhile(is_ours, from_meshcomm)
    return list(takewhile(lambda frame: frame.f_code.co_filename not in _RUNNERS and not is_ours(frame), from_program))


def _frame_text(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _with_line(frame: FrameType) -> str:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    short_line = f"{line[: _MAX_LINE_LENGTH - 3]}..." if len(line) > _MAX_LINE_LENGTH else line
    return f"{_frame_text(frame)}{': ' if short_line else ''}{short_line}"
