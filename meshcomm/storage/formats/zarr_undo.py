"""Changes of several files of a zarr store together: their old texts are saved first, and used until all have changed.

A store has no single file with the lengths of all arrays. So a save of snapshots first writes `UNDO`, with the old
text of each file that it replaces. While `UNDO` exists, our readers use the old texts; the next save restores them.
The save is complete when `UNDO` is removed. Until then other programs see arrays of different lengths: xarray refuses
these.
"""

from collections.abc import Mapping
from contextlib import suppress
from json import dumps
from pathlib import Path, PurePosixPath

from meshcomm.core._arguments import quote
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats.base import parsed_json
from meshcomm.storage.formats.zarr_metadata import METADATA

UNDO = ".meshcomm.undo.json"
_MAX_TEXT_LENGTH = 2**26


def change(store: Path, temporary_folder: Path, texts: Mapping[str, bytes]) -> None:
    """Replace files of the *store*, all or none: *texts* has their new texts by name.

    New files are first made in *temporary_folder*. After an error the old texts are restored.
    """
    file_texts = {name: files.whole(store / name, _MAX_TEXT_LENGTH).decode() for name in texts}
    files.put(temporary_folder / UNDO, dumps(file_texts).encode(), store / METADATA)
    files.replace(temporary_folder / UNDO, store / UNDO)
    try:
        for name, text in texts.items():
            replace(store / name, text, temporary_folder)
    except OSError:
        with suppress(OSError):  # otherwise the next save restores them
            undo(store, temporary_folder)
        raise
    files.remove(store / UNDO)
    with suppress(OSError):  # the new texts count from here on, so this save has not failed
        files.sync_folder(store)


def undo(store: Path, temporary_folder: Path) -> None:
    """Restore the files of the *store* that an unfinished save has replaced, if there are any."""
    file_texts = old_texts(store)
    for name, text in file_texts.items():
        replace(store / name, text, temporary_folder)
    if file_texts:
        files.remove(store / UNDO)
        files.sync_folder(store)


def old_texts(store: Path) -> dict[str, bytes]:
    """Return the old texts of files if a save of them is not complete. ``CheckpointError`` for wrong names."""
    try:
        texts = parsed_json(files.whole(store / UNDO, _MAX_TEXT_LENGTH), store / UNDO)
    except FileNotFoundError:
        return {}
    result = {}
    for name, text in texts.items() if isinstance(texts, dict) else [("", texts)]:
        path = PurePosixPath(name)
        is_valid = path.name.endswith(".json") and not path.is_absolute() and ".." not in path.parts
        if not (is_valid and isinstance(text, str)) or files.is_below_link(store / path, store):
            raise CheckpointError(f"{store / UNDO} names {quote(name)}, which is no file of metadata in the store")
        result[name] = text.encode()
    return result


def replace(file: Path, text: bytes, temporary_folder: Path) -> None:
    """Replace the text of a file of a store in one step; the new file is made in *temporary_folder*."""
    files.put(temporary_folder / f"{METADATA}.new", text, file)
    files.replace(temporary_folder / f"{METADATA}.new", file)
