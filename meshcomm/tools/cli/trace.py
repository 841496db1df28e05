"""``python -m meshcomm trace``."""

from pathlib import Path

from meshcomm.errors import MeshcommError
from meshcomm.tools.cli.show import on_first_rank
from meshcomm.tools.cli.terminal import say
from meshcomm.tools.measuring.program import merge


def trace(folder: Path, out: Path) -> int:
    """Make one trace of the files in *folder*, and return the exit code. Under mpiexec the first rank does it."""
    return on_first_rank(lambda: _trace(folder, out))


def _trace(folder: Path, out: Path) -> None:
    if out.suffix != ".json":
        raise MeshcommError(f"{out} does not end with .json: the trace is a file of JSON")
    say(merge(folder, out))
