"""``python -m meshcomm trace``."""

import sys
from pathlib import Path

from meshcomm.errors import MeshcommError
from meshcomm.measuring.program import merge


def trace(folder: Path, out: Path) -> int:
    """Make one trace of the files in *folder*, and return the exit code."""
    try:
        if out.suffix != ".json":
            raise MeshcommError(f"{out} does not end with .json: the trace is a file of JSON")
        print(merge(folder, out))
    except (MeshcommError, OSError) as error:
        print(f"meshcomm: {error}", file=sys.stderr)
        return 2
    return 0
