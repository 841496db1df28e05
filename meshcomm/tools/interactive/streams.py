"""What a rank does with its output, its input and its warnings while cells run, with IPython or without."""

import builtins
import io
import sys
import warnings
from collections.abc import Callable
from importlib import import_module

from meshcomm.core._tracing import Value
from meshcomm.core.arrays import conditions
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.tools.interactive.cells import Job

_LONGEST_OUTPUT = 1 << 17
"""Characters that a rank keeps of what it prints in a cell: half from the beginning, half from the end."""


class CalledStream(io.TextIOBase):
    """A stream that calls *take* with what is written to it."""

    def __init__(self, take: Callable[[str], object]) -> None:
        self._take = take

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Let *text* be taken."""
        self._take(text)
        return len(text)


def keep_streams(job: Job) -> None:
    """Keep what this rank prints, for its outcome; let ``input`` be that of rank 0."""

    def keep(text: str) -> None:
        output = job.outcome.get("output", "") + text
        if len(output) > 2 * _LONGEST_OUTPUT:
            half = _LONGEST_OUTPUT // 2
            output = f"{output[:half]}\n...\n{output[-half:]}"
        job.outcome["output"] = output

    sys.stdout = sys.stderr = CalledStream(keep)
    builtins.input = lambda prompt="": job.shared("input()", str)


def prepare(job: Job) -> None:
    """Let warnings be noted in outcomes, which rank 0 shows at once; let tensors, meshes and plans have pictures."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Value) -> None:
        job.outcome.setdefault("warnings", []).append(f"{category.__name__}: {message}\n")
        if job.rank == 0:
            usual(message, category, *where)

    warnings.showwarning = show
    conditions.begin()  # operations may wait with this as what shows warnings usually
    if is_scripted() and job.size > 1:
        conditions.let_see(True)
    for name in ("layouts", "meshes", "plans"):  # also if the program does not import meshcomm
        import_module(f"meshcomm.tools.pictures.of_{name}")
