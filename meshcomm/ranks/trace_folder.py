"""Where ranks write the traces of whole programs. ``import meshcomm`` asks for it, so this file imports little."""

import os
from pathlib import Path

TRACE_FOLDER = "MESHCOMM_TRACE"
"""The environment variable that names the folder for traces of whole programs."""


def trace_folder() -> Path | None:
    """Return the folder in which ranks write the traces of whole programs, if there is one."""
    name = os.environ.get(TRACE_FOLDER, "")
    return Path(name) if name not in ("", "0") else None
