"""Ranks without IPython: rank 0 shows Python's prompt, and all ranks run the lines that are typed."""

import code
import contextlib
import rlcompleter
import signal
import sys
import types
from pathlib import Path

from meshcomm.tools.interactive.cells import Cell, Job
from meshcomm.tools.interactive.streams import prepare
from meshcomm.tools.interactive.terminal import take_terminal


def run(job: Job, address: Path) -> None:
    """Run the lines that are typed in the terminal lent at the socket *address*, until Ctrl-D."""
    file = "" if job.rank else take_terminal(job, address)
    sys.modules["__main__"] = types.ModuleType("__main__")
    prepare(job)
    if job.rank:
        job.follow(_execute)
        return
    console = RankConsole(job)
    with contextlib.suppress(EOFError):
        if file:
            console.run(Path(file).read_text(), file, "exec")
        console.interact(f"Python {sys.version.split()[0]} on {job.size} ranks of meshcomm", "")
    job.end()


def _execute(cell: Cell) -> None:
    exec(compile(cell["text"], cell["file"], cell["mode"]), vars(sys.modules["__main__"]))


class RankConsole(code.InteractiveConsole):
    """Python's prompt on rank 0."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        with contextlib.suppress(ImportError):
            import readline

            readline.set_completer(self._completion)
            readline.parse_and_bind("tab: complete")

    def raw_input(self, prompt: str = "") -> str:
        """Return a line that the user types; Ctrl-C interrupts it."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().raw_input(prompt)
        finally:
            self._job.take_signals()

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
        self.run(source, filename, symbol)
        return False

    def run(self, text: str, file: str, mode: str) -> None:
        """Run code on all ranks, and show their outcomes."""
        cell = Cell(text=text, file=file, mode=mode)
        self._job.begin(cell)
        with self._job.cell():
            _execute(cell)
        error = self._job.finish()
        if error is not None:
            self.write("\n".join(error["traceback"]) + "\n")

    def _completion(self, text: str, state: int) -> str | None:
        with contextlib.suppress(Exception), self._job.gates.without_others("completion uses rank 0 alone"):
            return rlcompleter.Completer(vars(sys.modules["__main__"])).complete(text, state)
        return None
