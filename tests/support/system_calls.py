"""System calls of saves and loads, numbered: at one of them the process dies, or the call fails."""

import os
import signal
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from meshcomm.storage import files

NAMES = (
    *("open", "close", "pwrite", "preadv", "ftruncate", "fsync", "fstat"),
    *("replace", "mkdir", "rmdir", "unlink", "listdir", "scandir", "chmod", "fchmod"),
)
WHEN = ("before", "half", "after")


class Call:
    """One system call: its name, its arguments, and `run`, which makes it."""

    def __init__(self, name, args, run):
        self.name, self.args, self.run = name, args, run

    def __repr__(self):
        return f"{self.name}{self.args!r}"[:200]


@contextmanager
def watched(look):
    """Call *look* with the number of each call and with the call itself, instead of making it."""
    numbers = count()
    with pytest.MonkeyPatch.context() as patch:

        def watch(module, name):
            function = getattr(module, name)
            run = (lambda *args, **kwargs: None) if name == "fsync" else function  # a process that dies loses nothing

            def call(*args, **kwargs):
                return look(next(numbers), Call(name, args, lambda *new_args: run(*(new_args or args), **kwargs)))

            patch.setattr(module, name, call)

        for name in NAMES:
            watch(os, name)
        for name in ("_exchange", "_allocate"):
            watch(files, name)
        yield


def calls_of(program):
    """Return the calls that *program* makes, in their order."""
    calls = []

    def look(number, call):
        calls.append(call)
        return call.run()

    with watched(look):
        program()
    return calls


def killed(program, call_number, moment):
    """Run *program* in a process that dies at call *call_number*; return whether it died, or came to its end.

    *moment* is "before", "half" or "after": when it dies, relative to the call.
    """

    def look(number, call):
        if number != call_number:
            return call.run()
        if moment == "after":
            with suppress(OSError):
                call.run()
        elif moment == "half" and call.name == "pwrite":
            half_of(call)
        return os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            with watched(look):
                program()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def half_of(call):
    """Write the first half of the data of the call, at least one byte."""
    number, data, offset = call.args
    return call.run(number, data[: -(-len(data) // 2)], offset)


def failing(call_number, code):
    """Return a context in which call *call_number* fails with the error *code*."""

    def look(number, call):
        if number != call_number:
            return call.run()
        if call.name == "close":
            call.run()  # the number is free even if the system reports an error
        path = call.args[0] if call.args and not isinstance(call.args[0], int) else None
        raise OSError(code, os.strerror(code), *([str(path)] if path is not None else []))

    return watched(look)


@contextmanager
def short(max_bytes):
    """Let a call read or write at most *max_bytes* bytes."""

    def look(number, call):
        if call.name == "pwrite":
            file, data, offset = call.args
            return call.run(file, data[:max_bytes], offset)
        if call.name == "preadv":
            file, (buffer,), offset = call.args
            return call.run(file, [buffer[:max_bytes]], offset)
        return call.run()

    with watched(look):
        yield
