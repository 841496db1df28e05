"""Ranks without IPython: they run what is typed at Python's prompt, which talks to rank 0 by a socket."""

import builtins
import contextlib
import io
import queue
import rlcompleter
import sys
import threading
import traceback
import types
from pathlib import Path

from meshcomm.core._callers import in_short
from meshcomm.core._tracing import Value
from meshcomm.core._types import Json
from meshcomm.core.ranks import interruptible
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.held import hold_output, key_of, show_warnings
from meshcomm.tools.interactive.lines import Lines
from meshcomm.tools.interactive.reports import report


def run(job: Job, address: Path) -> None:
    """Run what the prompt at this *address* sends, on all ranks, until it goes."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    show_warnings(job)
    if job.rank:
        hold_output(job)
        while (cell := job.next_cell()) is not None:
            _run_cell(job, cell, module.__dict__)
    else:
        _serve(job, Lines.connected(address), module.__dict__)
    job.end()


def _run_cell(job: Job, cell: Json, names: dict[str, Value]) -> None:
    errors = []
    with job.cell():
        try:
            job.raise_if_stopped()
            exec(compile(cell["text"], cell["file"], cell["mode"]), names)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            with in_short(error):
                lines = "".join(traceback.format_exception(error)).rstrip().split("\n")
            errors.append((type(error).__name__, str(error), key_of(error), lines))
    job.note_end(errors)


def _serve(job: Job, prompt: Lines, names: dict[str, Value]) -> None:
    """Run what the *prompt* sends. A thread reads: it may send an interrupt while a cell runs."""
    received = queue.SimpleQueue[Json]()

    def read() -> None:
        while (message := prompt.receive()) is not None:
            if message == ["interrupt"]:
                job.interrupt()
            else:
                received.put(message)
        job.interrupt()
        received.put(None)

    def ask(text: object = "") -> str:
        prompt.write(["input", str(text)])
        return str(received.get()[1])

    threading.Thread(target=read, daemon=True).start()
    sys.stdout, sys.stderr = Sent(prompt, "stdout"), Sent(prompt, "stderr")
    builtins.input = lambda text="": job.shared("input()", lambda: ask(text))
    while (message := received.get()) is not None:
        kind, *arguments = message
        if kind == "complete":
            prompt.write(["completed", _completed(names, *arguments)])
            continue
        job.begin(arguments[0])
        _run_cell(job, arguments[0], names)
        shown = report(job.outcomes(lambda text: prompt.write(["stderr", f"meshcomm: {text}\n"])))
        lines = [] if shown.error is None else [("stderr", "\n".join(shown.error[2]) + "\n")]
        for stream, text in [*shown.output, *lines]:
            prompt.write([stream, text])
        prompt.write(["done"])


def _completed(names: dict[str, Value], text: str, state: int) -> str | None:
    with contextlib.suppress(Exception), interruptible.alone("to complete a name takes rank 0 alone"):
        return rlcompleter.Completer(names).complete(text, state)
    return None


class Sent(io.TextIOBase):
    """A stream whose text the prompt shows."""

    def __init__(self, prompt: Lines, name: str) -> None:
        self._prompt, self._name = prompt, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Send *text*."""
        self._prompt.write([self._name, text])
        return len(text)
