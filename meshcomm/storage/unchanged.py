"""Where arrays are in a file is true of the file that said so. Another one may have its name when they are read."""

from collections.abc import Iterable
from pathlib import Path

from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats.base import Contents


def check_unchanged(base: Path, found: Contents, names: Iterable[str]) -> None:
    """Raise ``CheckpointError`` if what says where arrays are has changed since it was read.

    Parameters
    ----------
    base: what the files are relative to
    found: what was read
    names: of the arrays
    """
    for file, number, size, changed in {found.origins[name] for name in ("", *names) if name in found.origins}:
        path = base / file if file else base
        if files.identity(path) != (number, size, changed):
            raise CheckpointError(f"{path} has changed since it was opened: open it again")
