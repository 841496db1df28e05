"""Where the threads of this process are: in short for messages, in full for flight files."""

import faulthandler
import os
import runpy
import sys
import tempfile
import threading
from itertools import dropwhile, takewhile
from pathlib import Path
from traceback import walk_stack
from types import FrameType

MOST_CALLS = 3
"""Calls of the program that a message names."""

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_RUNNERS = (threading.__file__, runpy.__file__, "<frozen runpy>")


def whole() -> str:
    """Return where all threads of Python are; nothing if there is no disk space to find out."""
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()
    except OSError:
        return ""


def of_program() -> str:
    """Return where the program is that has called meshcomm in another thread, innermost call first; else nothing."""
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident():
            calls = _calls_of_program(frame)
            if calls:
                return ", called by ".join(calls[:MOST_CALLS]) + (", ..." if len(calls) > MOST_CALLS else "")
    return ""


def _calls_of_program(innermost: FrameType) -> list[str]:
    """Return the calls around those of meshcomm, up to those that run a program or a thread."""
    frames = (frame for frame, _ in walk_stack(innermost))
    ours = dropwhile(lambda frame: not _is_ours(frame), frames)
    around = takewhile(lambda frame: not _is_runner(frame), dropwhile(_is_ours, ours))
    return [f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in around]


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _is_runner(frame: FrameType) -> bool:
    return frame.f_code.co_filename in _RUNNERS or _is_ours(frame)
