"""IPython's shells on ranks: which magics run where, and what a rank other than 0 keeps of its output."""

import os
import sys
import timeit
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import ClassVar

from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell

from meshcomm.core._callers import in_short, is_ours
from meshcomm.core._tracing import Value
from meshcomm.core._units import bytes_text
from meshcomm.core.ranks import interruptible
from meshcomm.core.ranks.hosts import this_host
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.held import draw_pictures, hold_output, key_of, show_warnings

EVERYWHERE = frozenset(
    (
        *(
            "time",
            "timeit",
            "prun",
            "run",
            "capture",
            "cd",
            "pushd",
            "popd",
            "env",
            "set_env",
            "load_ext",
            "reload_ext",
        ),
        *(
            "autoreload",
            "reset",
            "reset_selective",
            "xdel",
            "whos",
            "precision",
            "rank",
            "each",
            "mesh",
            "memit",
            "lprun",
        ),
    )
)
"""Magics that run code, or change what code computes: on all ranks. Others of IPython act on rank 0."""


class OfRanks(InteractiveShell):  # type: ignore[misc]  # IPython is not typed strictly
    """What the shells of all ranks have in common."""

    job: ClassVar[Job]
    errors: ClassVar[list[tuple[str, str, str, list[str]]]] = []

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> Value:
        """Run a magic, on this rank or not."""
        clock = self._shared_clock() if magic_name == "timeit" else nullcontext()
        with clock:
            return self._where(magic_name, lambda: super(OfRanks, self).run_line_magic(magic_name, line, _stack_depth))

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Value:
        """Run a magic, on this rank or not."""
        clock = self._shared_clock() if magic_name == "timeit" else nullcontext()
        with clock:
            return self._where(magic_name, lambda: super(OfRanks, self).run_cell_magic(magic_name, line, cell))

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Value:
        """Return the lines that a command prints on rank 0. Collective within a cell."""
        lines = self.job.shared("the output of a command", lambda: list(super(OfRanks, self).getoutput(cmd)))
        return self._as_lines(lines) if split else "\n".join(lines)

    def showtraceback(self, exc_tuple: Value = None, *args: Value, **named: Value) -> None:
        """Show an error without the calls of meshcomm, if it blames the program."""
        kind, error, _ = self._get_exc_info(exc_tuple)
        if self.job.stopped and isinstance(error, KeyboardInterrupt | CancelledError):
            self._showtraceback(KeyboardInterrupt, KeyboardInterrupt(), _lines_of_program(error))
            return
        with in_short(error):
            super().showtraceback((kind, error, error.__traceback__), *args, **named)

    def _where(self, name: str, run: Callable[[], Value]) -> Value:
        if self.job.alone or not self.job.running or self._is_everywhere(name):
            return run()
        if self.job.rank:
            return None
        with on_one(self.job, f"%{name} acts on rank 0 alone"):
            return run()

    def _is_everywhere(self, name: str) -> bool:
        magic = self.find_magic(name) or self.find_magic(name, "cell")
        home = str(getattr(magic, "__module__", "") or "").partition(".")[0]
        return name in EVERYWHERE or home not in ("IPython", "ipykernel", "matplotlib_inline")

    @staticmethod
    def _as_lines(lines: list[str]) -> Value:
        from IPython.utils.text import SList

        return SList(lines)

    @contextmanager
    def _shared_clock(self) -> Iterator[None]:
        """Return a context in which all ranks see the times of rank 0: else each would choose its own repeats."""
        own = timeit.default_timer
        timeit.default_timer = lambda: self.job.shared("the time", own)
        try:
            yield
        finally:
            timeit.default_timer = own


@contextmanager
def on_one(job: Job, reason: str) -> Iterator[None]:
    """Return a context in which this rank is alone: calls that need others are errors with this *reason*."""
    before, job.alone = job.alone, reason
    try:
        with interruptible.alone(reason):
            yield
    finally:
        job.alone = before


class Quiet(DisplayHook):  # type: ignore[misc]
    """Shows results of a rank as text, after all ranks have computed what rank 0 shows of them."""

    def write_output_prompt(self) -> None:
        """Write nothing: the number of the rank is written instead."""


class Follower(OfRanks):
    """The shell of a rank other than 0: it runs the cells that rank 0 sends."""

    displayhook_class = Quiet

    def init_history(self) -> None:
        """Keep no file of what was typed: rank 0 does."""
        self.config.HistoryManager.enabled = False
        super().init_history()

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.errors.append((etype.__name__, str(evalue), key_of(evalue), stb))

    def system(self, cmd: str) -> None:
        """Leave commands to rank 0."""
        if self.job.alone:
            sys.stdout.write(f"!{cmd}: commands run on rank 0\n")

    def ask_exit(self) -> None:
        """Leave the end to rank 0."""


def _lines_of_program(error: BaseException) -> list[str]:
    """Return where in the program this rank was stopped: no calls of libraries, which take long to show."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_library(frame)]
    lines = traceback.StackSummary.extract(iter(frames)).format()
    return [text.rstrip() for text in ("Traceback (most recent call last):", *lines, "KeyboardInterrupt")]


def _is_library(frame: FrameType) -> bool:
    return is_ours(frame) or str(frame.f_globals.get("__name__")).partition(".")[0] in ("IPython", "asyncio")


def add_magics(shell: OfRanks) -> None:
    """Add ``%%rank``, ``%%each`` and ``%mesh``, and let warnings be those of all ranks."""
    job = shell.job

    def rank(line: str, cell: str) -> None:
        """%%rank 2: run the cell on rank 2 alone; %%rank 0,2 on these ranks."""
        ranks = [int(text) for text in line.replace(",", " ").split()]
        if not ranks or not all(0 <= chosen < job.size for chosen in ranks):
            raise ValueError(f"%%rank takes ranks from 0 to {job.size - 1}, such as %%rank 1, not {line!r}")
        if job.rank in ranks:
            job.outcome["show"] = True
            with on_one(job, f"this code runs on rank {ranks[0]} only") if len(ranks) == 1 else nullcontext():
                shell.run_cell(cell)

    def each(line: str, cell: str) -> None:
        """%%each: run the cell on all ranks, and show the output of each under its number."""
        job.outcome["show"] = True
        if job.rank == 0:
            sys.stdout.write("rank 0:\n")
        shell.run_cell(cell)

    def mesh(line: str) -> None:
        """%mesh: show the ranks, their hosts and the memory that each uses."""
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        memory = bytes_text(pages * os.sysconf("SC_PAGE_SIZE"))
        job.outcome["facts"] = [str(job.rank), this_host().split()[0], str(os.getpid()), memory]

    for function in (rank, each):
        shell.register_magic_function(function, "cell")
    shell.register_magic_function(mesh, "line")
    show_warnings(job)


def follow(job: Job) -> None:
    """Run the cells that rank 0 sends, until it sends no more."""
    OfRanks.job = job
    draw_pictures()
    shell = Follower.instance()
    hold_output(job)
    add_magics(shell)
    while (cell := job.next_cell()) is not None:
        shell.errors.clear()
        with job.cell():
            try:
                job.raise_if_stopped()
                shell.execution_count = cell["count"]
                result = shell.run_cell(cell["text"], store_history=cell["store"], silent=cell["silent"])
                error = result.error_before_exec or result.error_in_exec
                if error is not None and not shell.errors:
                    shell.errors.append((type(error).__name__, str(error), key_of(error), []))
            except KeyboardInterrupt as error:
                shell.showtraceback((type(error), error, error.__traceback__))
        if "matplotlib.pyplot" in sys.modules:  # rank 0 shows figures, and closes them
            sys.modules["matplotlib.pyplot"].close("all")
        job.note_end(shell.errors)
    job.end()
