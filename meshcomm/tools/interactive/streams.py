"""Output, input and warnings of a rank while cells run, with IPython or without."""

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

_MAX_OUTPUT_LENGTH = 1 << 17
"""Characters that a rank keeps of its output in a cell: half from the beginning, half from the end."""


class OutcomeStream(io.TextIOBase):
    """A stream of a rank that adds its text to the outcome of the cell. It is shown if the rank fails, or if asked."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Append *text* to the output; of a long output, drop the middle."""
        output = self._job.outcome.get("output", "") + text
        if len(output) > 2 * _MAX_OUTPUT_LENGTH:
            half = _MAX_OUTPUT_LENGTH // 2
            output = f"{output[:half]}\n...\n{output[-half:]}"
        self._job.outcome["output"] = output
        return len(text)


def share_input(job: Job) -> None:
    """Let ``input`` return on all ranks what it returns on rank 0."""
    original_input: Callable[[object], str] = builtins.input
    builtins.input = lambda prompt="": job.shared("input()", lambda: original_input(prompt))


def prepare(job: Job) -> None:
    """Let rank 0 show warnings and ask for input for all ranks. Give layouts, meshes and plans their pictures."""
    if job.rank:
        sys.stdout = sys.stderr = OutcomeStream(job)
    share_input(job)
    original_show: Value = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *location: object) -> None:
        job.outcome.setdefault("warnings", []).append(f"{category.__name__}: {message}\n")
        if job.rank == 0:
            original_show(message, category, *location)

    module: Value = warnings  # Python calls it by position
    module.showwarning = show
    conditions.begin()  # so that operations may wait although `show` has replaced the usual function
    if is_scripted() and job.size > 1:
        conditions.agree_on_conditions(True)
    for name in ("layouts", "meshes", "plans"):  # also if the program does not import meshcomm
        import_module(f"meshcomm.tools.pictures.of_{name}")
