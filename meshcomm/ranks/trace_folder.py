"""Where ranks write the traces of whole programs. ``import meshcomm`` asks for it, so this file imports little."""

import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TRACE_FOLDER = "MESHCOMM_TRACE"
"""The environment variable that names the folder for traces of whole programs."""


def trace_folder() -> "Path | None":
    """Return the folder in which ranks write the traces of whole programs, if there is one."""
    name = os.environ.get(TRACE_FOLDER, "")
    if name in ("", "0"):
        return None
    from pathlib import Path

    return Path(name)


def check_trace_folder() -> None:
    """Make the folder for traces. ``MeshcommError`` if this rank cannot write its trace there."""
    folder = trace_folder()
    if folder is None:
        return
    import tempfile

    from meshcomm.errors import MeshcommError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is a file, or in one" if is_file else error.strerror
        raise MeshcommError(f"{TRACE_FOLDER}={folder}: no trace can be written there: {why}") from None


@cache
def is_trace_possible() -> bool:
    """Print that this rank cannot write its trace, if so; return whether it can, or wants none."""
    if trace_folder() is None:
        return True
    from meshcomm.errors import MeshcommError
    from meshcomm.failures.abort import say_once

    try:
        check_trace_folder()
    except MeshcommError as error:
        say_once(str(error))
        return False
    return True
