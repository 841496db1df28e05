"""Ranks without IPython: rank 0 is Python's prompt, which reads lines from a terminal, and all ranks run them."""

import builtins
import code
import contextlib
import rlcompleter
import sys
import types
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path

from meshcomm.core._types import Json
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.outcomes import report
from meshcomm.tools.interactive.streams import CalledStream, keep_streams, prepare
from meshcomm.tools.interactive.terminal import Messages


def run(job: Job, address: Path) -> None:
    """Run what is typed in the terminal at this *address*, on all ranks, until it goes."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    prepare(job)
    if job.rank:
        keep_streams(job)
        job.follow(_execute)
    else:
        with contextlib.suppress(EOFError):
            RankConsole(job, address).begin()
        job.end()


def _execute(cell: Json) -> None:
    exec(compile(cell["text"], cell["file"], cell["mode"]), vars(sys.modules["__main__"]))


class RankConsole(code.InteractiveConsole):
    """Python's prompt on rank 0."""

    def __init__(self, job: Job, address: Path) -> None:
        super().__init__()
        at_once = {"interrupt": job.interrupt, "complete": self._complete, "gone": job.interrupt}
        self._job, self._terminal = job, Messages(Client(str(address)), at_once)

    def begin(self) -> None:
        """Run the file of the command, and what is typed after it."""
        sys.stdout, sys.stderr = (CalledStream(partial(self._terminal.write, name)) for name in ("stdout", "stderr"))
        builtins.input = lambda prompt="": self._job.shared("input()", lambda: self.raw_input(str(prompt)))
        _, *file = self._terminal.receive()
        if file:
            self._run(*file, "exec")
        self.interact(f"Python {sys.version.split()[0]} on {self._job.size} ranks of meshcomm", "")

    def raw_input(self, prompt: str = "") -> str:
        """Return a line that is typed in the terminal."""
        self._terminal.write("read", prompt)
        kind, *line = self._terminal.receive()
        if kind == "break":
            self._job.interrupt()
            raise KeyboardInterrupt
        if kind == "gone":
            raise EOFError
        return str(*line)

    def runsource(self, source: str, filename: str = "<input>", symbol: str = "single") -> bool:
        """Run *source* on all ranks, and return whether more lines are needed. Errors of syntax are shown here."""
        try:
            if self.compile(source, filename, symbol) is None:
                return True
        except (OverflowError, SyntaxError, ValueError):
            self.showsyntaxerror(filename)
            return False
        if source.strip() in {"exit()", "quit()"}:
            raise EOFError
        self._run(source, filename, symbol)
        return False

    def _run(self, text: str, file: str, mode: str) -> None:
        cell = {"text": text, "file": file, "mode": mode}
        self._job.begin(cell)
        with self._job.cell():
            _execute(cell)
        output, error = report(self._job.outcomes(lambda text: self.write(f"meshcomm: {text}\n")))
        for stream, shown in output:
            self._terminal.write(stream, shown)
        if error is not None:
            self.write("\n".join(error[2]) + "\n")

    def _complete(self, text: str, state: int) -> None:
        completed = None
        with contextlib.suppress(Exception), self._job.gates.alone("completion uses rank 0 alone"):
            completed = rlcompleter.Completer(vars(sys.modules["__main__"])).complete(text, state)
        self._terminal.write("completed", completed)
