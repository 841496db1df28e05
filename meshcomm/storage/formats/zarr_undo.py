"""Several files of a zarr store that change together: what they held is noted first, and holds until all have changed.

A store has no file that says which lengths its arrays have together. So a save of snapshots first writes `UNDO`, with
the old text of each file that it replaces. While that is there, our readers take the old texts; the next save puts
them back. The save is complete when `UNDO` is removed. Other programs see arrays of different lengths until then:
xarray refuses these.
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
_LONGEST = 2**26


def change(store: Path, aside: Path, texts: Mapping[str, bytes]) -> None:
    """Replace files of the *store*, all or none: *texts* has their new texts by name. Each is made in *aside* first.

    What an error has cut off is undone.
    """
    old = {name: files.whole(store / name, _LONGEST).decode() for name in texts}
    files.put(aside / UNDO, dumps(old).encode(), store / METADATA)
    files.replace(aside / UNDO, store / UNDO)
    try:
        for name, text in texts.items():
            replace(store / name, text, aside)
    except OSError:
        with suppress(OSError):  # else the next save does
            undo(store, aside)
        raise
    files.remove(store / UNDO)
    with suppress(OSError):  # the new texts count from here on, so this save has not failed
        files.sync_folder(store)


def undo(store: Path, aside: Path) -> None:
    """Put back what a save that was cut off has replaced in the *store*, if there is something."""
    old = old_texts(store)
    for name, text in old.items():
        replace(store / name, text, aside)
    if old:
        files.remove(store / UNDO)
        files.sync_folder(store)


def old_texts(store: Path) -> dict[str, bytes]:
    """Return the texts that count, of files that a save has not replaced all. ``CheckpointError`` for wrong names."""
    try:
        texts = parsed_json(files.whole(store / UNDO, _LONGEST), store / UNDO)
    except FileNotFoundError:
        return {}
    result = {}
    for name, text in texts.items() if isinstance(texts, dict) else [("", texts)]:
        path = PurePosixPath(name)
        inside = path.name.endswith(".json") and not path.is_absolute() and ".." not in path.parts
        if not (inside and isinstance(text, str)) or files.is_below_link(store / path, store):
            raise CheckpointError(f"{store / UNDO} names {quote(name)}, which is no file of metadata in the store")
        result[name] = text.encode()
    return result


def replace(file: Path, text: bytes, aside: Path) -> None:
    """Give a file of a store another text in one step; the new one is made in the folder *aside*."""
    files.put(aside / f"{METADATA}.new", text, file)
    files.replace(aside / f"{METADATA}.new", file)
