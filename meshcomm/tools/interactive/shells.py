"""IPython's shells on ranks: which magics run on which ranks, and what other ranks leave to rank 0."""

import os
import sys
import timeit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.utils.text import SList

from meshcomm.core._callers import shortened_traceback
from meshcomm.core._tracing import Value
from meshcomm.core._units import bytes_text
from meshcomm.core.ranks.hosts import this_host
from meshcomm.tools.interactive.cells import Cell, Job
from meshcomm.tools.interactive.outcomes import traceback_lines
from meshcomm.tools.interactive.streams import prepare

_MAGICS_ON_ALL_RANKS = (
    "time timeit prun run capture cd pushd popd env set_env load_ext reload_ext autoreload reset reset_selective xdel "
    "whos precision"
)
"""IPython's magics that run code, or change results of code, so they run on all ranks. The others run on rank 0."""


class RankShell(InteractiveShell):  # IPython is not typed strictly
    """What the shells of all ranks have in common."""

    job: ClassVar[Job]

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Value:
        """Run a magic, if it runs on this rank."""
        with self._magic(magic_name) as is_run:
            return super().run_line_magic(magic_name, line, _stack_depth + 1) if is_run else None

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Value:
        """Run a magic, if it runs on this rank."""
        with self._magic(magic_name) as is_run:
            return super().run_cell_magic(magic_name, line, cell) if is_run else None

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Value:
        """Return the lines that a command prints on rank 0. Collective within a cell."""
        lines = self.job.shared("the output of a command", lambda: list(super(RankShell, self).getoutput(cmd)))
        return SList(lines) if split else "\n".join(lines)

    def showtraceback(self, exc_tuple: Value = None, *args: Value, **kwargs: Value) -> None:
        """Show an error; the traceback leaves out calls of meshcomm if the program caused the error."""
        kind, error, _ = self._get_exc_info(exc_tuple)
        if self.job.was_stopped_by(error):  # IPython takes long to show where
            self._showtraceback(kind, error, traceback_lines(error))
            return
        with shortened_traceback(error):
            super().showtraceback((kind, error, error.__traceback__), *args, **kwargs)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        if self.job.running:  # until it is known whether other ranks have it, too
            self.job.note(evalue, stb)
        else:
            super()._showtraceback(etype, evalue, stb)

    def note_error(self, result: ExecutionResult) -> None:
        """Store an error that IPython has not shown, such as that of an unknown magic, in the outcome."""
        error = result.error_before_exec or result.error_in_exec
        if error is not None and "error" not in self.job.outcome:
            self.job.note(error, [])

    @contextmanager
    def _magic(self, name: str) -> Iterator[bool]:
        """Return a context for the magic called *name*; its value is whether the magic runs on this rank."""
        gates = self.job.gates
        on_all_ranks = gates.isolation_reason or not self.job.running or self._runs_on_all_ranks(name)
        with ExitStack() as stack:
            if name == "timeit":
                stack.enter_context(self._shared_clock())
            if not on_all_ranks and self.job.rank == 0:
                stack.enter_context(gates.without_others(f"%{name} acts on rank 0 alone"))
            yield bool(on_all_ranks) or self.job.rank == 0

    def _runs_on_all_ranks(self, name: str) -> bool:
        magic = self.find_magic(name) or self.find_magic(name, "cell")
        package = str(getattr(magic, "__module__", "") or "").partition(".")[0]
        return name in _MAGICS_ON_ALL_RANKS.split() or package not in ("IPython", "ipykernel", "matplotlib_inline")

    @contextmanager
    def _shared_clock(self) -> Iterator[None]:
        """Return a context in which all ranks use the clock of rank 0, so that ``%timeit`` repeats alike on all."""
        timer = timeit.default_timer
        timeit.default_timer = lambda: self.job.shared("the time", timer)
        try:
            yield
        finally:
            timeit.default_timer = timer

    def begin(self) -> None:
        """Add ``%%rank``, ``%%each`` and ``%mesh``."""
        for function in (self._rank, self._each):
            self.register_magic_function(function, "cell", function.__name__[1:])
        self.register_magic_function(self._mesh, "line", "mesh")
        prepare(self.job)

    def _rank(self, line: str, cell: str) -> None:
        """%%rank 2: run the cell on rank 2 alone; %%rank 0,2 on these ranks."""
        job, ranks = self.job, [int(text) for text in line.replace(",", " ").split()]
        if not ranks or not all(0 <= rank < job.size for rank in ranks):
            raise ValueError(f"%%rank takes ranks from 0 to {job.size - 1}, such as %%rank 1, not {line!r}")
        if job.rank in ranks:
            job.outcome["show"] = True
            with ExitStack() as stack:
                if len(ranks) == 1:
                    stack.enter_context(job.gates.without_others(f"this code runs on rank {ranks[0]} only"))
                self.run_cell(cell)

    def _each(self, line: str, cell: str) -> None:
        """%%each: run the cell on all ranks, and show the output of each under its number."""
        self.job.outcome["show"] = True
        if self.job.rank == 0:
            sys.stdout.write("rank 0:\n")
        self.run_cell(cell)

    def _mesh(self, line: str) -> None:
        """%mesh: show the ranks, their hosts and the memory that each uses."""
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        memory = bytes_text(pages * os.sysconf("SC_PAGE_SIZE"))
        self.job.outcome["facts"] = [str(self.job.rank), this_host().split()[0], str(os.getpid()), memory]


class RootShell(RankShell):
    """The shell of rank 0, which lets the others run its cells."""

    async def run_ast_nodes(self, nodelist: Value, cell_name: str, *args: Value, **kwargs: Value) -> Value:
        """Run the code of a cell, which has correct syntax, on all ranks; within a cell, run it on this rank only."""
        run = super().run_ast_nodes(nodelist, cell_name, *args, **kwargs)
        if self.job.running or not nodelist:
            return await run
        result = kwargs["result"]
        info, count = result.info, result.execution_count
        self.job.begin(Cell(text=info.raw_cell, count=count, store=info.store_history, silent=info.silent))
        with self.job.cell():
            await run
            self.note_error(result)
        error = self.job.finish()
        if error is None:
            return False
        error_class: type[Exception] = type(error["name"], (RuntimeError,), {})
        if error["traceback"]:  # else IPython has said so
            self._showtraceback(error_class, error_class(error["text"]), error["traceback"])
        result.error_in_exec = result.error_in_exec or error_class(error["text"])
        return True


class QuietDisplay(DisplayHook):
    """Shows results of a rank as text, after all ranks have computed the representation that rank 0 shows."""

    def write_output_prompt(self) -> None:
        """Write nothing: the number of the rank is written instead."""


class FollowerShell(RankShell):
    """The shell of a rank other than 0: it runs the cells that rank 0 sends."""

    displayhook_class = QuietDisplay

    def init_history(self) -> None:
        """Keep no file of the history: rank 0 does."""
        self.config.HistoryManager.enabled = False
        super().init_history()

    def system(self, cmd: str) -> None:
        """Leave commands to rank 0."""
        if self.job.gates.isolation_reason:
            sys.stdout.write(f"!{cmd}: commands run on rank 0\n")

    def ask_exit(self) -> None:
        """Leave the end to rank 0."""

    def run(self, cell: Cell) -> None:
        """Run a *cell* of rank 0."""
        self.execution_count = cell["count"]
        self.note_error(self.run_cell(cell["text"], store_history=cell["store"], silent=cell["silent"]))
        if "matplotlib.pyplot" in sys.modules:  # rank 0 shows figures, and closes them
            sys.modules["matplotlib.pyplot"].close("all")


def follow(job: Job) -> None:
    """Run the cells that rank 0 sends, until it sends None."""
    RankShell.job = job
    shell = FollowerShell.instance()
    shell.begin()
    job.follow(shell.run)
