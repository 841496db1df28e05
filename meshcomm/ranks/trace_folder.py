"""Where ranks write the traces of whole programs. ``import meshcomm`` asks for it, so this file imports little."""

import os
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
