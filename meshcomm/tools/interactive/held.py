"""What ranks other than 0 keep of their output and their warnings, with IPython or without."""

import builtins
import io
import sys
import warnings
from importlib import import_module
from typing import TextIO

from meshcomm.core.arrays import conditions
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.failures import host_signals
from meshcomm.tools.interactive.cells import Job

_LONGEST_OUTPUT = 1 << 17
"""Characters that a rank keeps of what it prints in a cell: half from the beginning, half from the end."""


class Held(io.TextIOBase):
    """A stream of a rank whose output is shown if it fails, or if asked."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Keep *text*, or forget what is in the middle."""
        output: list[list[str]] = self._job.outcome.setdefault("output", [])
        if output and output[-1][0] == self._name:
            output[-1][1] += text
        else:
            output.append([self._name, text])
        last = output[-1]
        if len(last[1]) > 2 * _LONGEST_OUTPUT:
            half = _LONGEST_OUTPUT // 2
            last[1] = f"{last[1][:half]}\n...\n{last[1][-half:]}"
        return len(text)


def hold_output(job: Job) -> None:
    """Keep what this rank prints, for its outcome; let ``input`` be that of rank 0."""
    sys.stdout, sys.stderr = Held(job, "stdout"), Held(job, "stderr")
    builtins.input = lambda prompt="": job.shared("input()", str)


def key_of(error: BaseException) -> str:
    """Return a text that is the same on ranks with the same error."""
    return host_signals.shared_text(error)[0] if host_signals.is_shared(error) else f"{type(error).__name__}: {error}"


def show_warnings(job: Job) -> None:
    """Let warnings be noted in outcomes; rank 0 shows its own at once."""
    usual = warnings.showwarning

    def show(  # noqa: PLR0917 - Python's parameters
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        job.outcome.setdefault("warnings", []).append(f"{category.__name__}: {message}\n")
        if job.rank == 0:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    conditions.begin()  # operations may wait with this as what shows warnings usually
    if is_scripted() and job.size > 1:
        conditions.let_see(True)


def draw_pictures() -> None:
    """Let tensors, layouts, meshes and plans have their pictures, also if the program has not imported meshcomm."""
    for name in ("layouts", "meshes", "plans"):
        import_module(f"meshcomm.tools.pictures.of_{name}")
