"""The contents of a zarr store, which of them meshcomm wrote, and whether arrays may be added.

Beside the metadata of each array that we write is a small file, `MARK`. zarr does not read other files in the folder
of an array. The mark has digests of the metadata of the array, and of the attributes of the store as we wrote them: so
we see whether another program has changed them.
"""

import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from meshcomm.core._arguments import quote
from meshcomm.core._types import JsonObject
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats.base import parsed_json
from meshcomm.storage.formats.zarr_metadata import METADATA
from meshcomm.storage.formats.zarr_undo import UNDO

MAX_METADATA_LENGTH = 2**26
MARK = ".meshcomm.json"
VERSION_2_FILES = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
_NODE_FILES = (METADATA, ".zgroup", ".zarray")


def digest(value: object) -> str:
    """Return a short digest of *value*, a value of JSON: different values have different digests."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def mark(metadata: object, root: object) -> bytes:
    """Return the mark of an array with these *metadata*, in a store with the attributes *root*.

    *root* is None if another program wrote these attributes.
    """
    return json.dumps({"array": digest(metadata), "root": None if root is None else digest(root)}).encode()


def node(folder: Path) -> JsonObject | None:
    """Return the metadata of the array or group in *folder*, also of version 2; None if it is neither."""
    if (folder / METADATA).is_file():
        return _parsed(folder / METADATA)
    for name, kind in ((".zarray", "array"), (".zgroup", "group")):
        if (folder / name).is_file():
            metadata, attributes_file = _parsed(folder / name), folder / ".zattrs"
            other_fields = {
                "data_type": metadata.get("dtype"),
                "attributes": _parsed(attributes_file) if attributes_file.is_file() else {},
            }
            return metadata | other_fields | {"node_type": kind, "zarr_format": 2}
    return None


def refuse_link(file: Path, folder: Path) -> None:
    """Raise ``CheckpointError`` if *file* is a link, or below one that is in the *folder*."""
    if files.is_below_link(file, folder):
        raise CheckpointError(f"{quote(str(file))} is a link; all of a store must be in its folder")


def is_store(path: Path) -> bool:
    """Return whether *path* is a store, also a damaged one, or an empty folder."""
    return path.is_dir() and (not files.entries(path) or any((path / name).is_file() for name in _NODE_FILES))


def attributes_of(metadata: JsonObject | None) -> JsonObject:
    """Return the attributes of an array or a group."""
    attributes = (metadata or {}).get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _parsed(file: Path) -> JsonObject:
    value = parsed_json(files.whole(file, MAX_METADATA_LENGTH), file)
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds {quote(value)}; it must hold an object")
    return value


class StoreListing(NamedTuple):
    """The metadata of the arrays and groups of a store, by name, and other files. The root has the name ""."""

    arrays: dict[str, JsonObject]
    groups: dict[str, JsonObject]
    others: list[str]
    ours: set[str]
    """The arrays that are as meshcomm wrote them."""
    roots: set[str]
    """Digests of the attributes of the root, as meshcomm wrote them."""

    @property
    def root_is_ours(self) -> bool:
        """Return whether nobody else has written the attributes of the root."""
        attributes = attributes_of(self.groups.get(""))
        return not attributes or digest(attributes) in self.roots


_CONSOLIDATED = "consolidated_metadata"


def look(path: Path) -> StoreListing:
    """Return a listing of the store, without chunks."""
    listing, folders = StoreListing({}, {}, [], set(), set()), [path]
    while folders:
        folder = folders.pop()
        name = "" if folder == path else folder.relative_to(path).as_posix()
        metadata = node(folder)
        is_array = metadata is not None and metadata.get("node_type") == "array"
        if metadata is not None:
            (listing.arrays if is_array else listing.groups)[name] = metadata
        if is_array and (folder / MARK).is_file():
            mark_fields = _parsed(folder / MARK)
            if mark_fields.get("array") == digest(metadata):
                listing.ours.add(name)
                listing.roots.add(str(mark_fields.get("root")))
        expected_names = {METADATA, MARK, "c"} if is_array else {METADATA, UNDO}
        if metadata is not None and metadata.get("zarr_format") == 2:  # its chunks may have any names
            expected_names = {entry.name for entry in files.entries(folder)} if is_array else set(VERSION_2_FILES)
        for entry in files.entries(folder):
            if entry.name in expected_names:
                continue
            if entry.is_dir() and not entry.is_symlink() and not is_array:
                folders.append(entry)
            else:
                listing.others.append(entry.relative_to(path).as_posix())
    return listing


def lost(path: Path, names: Iterable[str], attributes: Iterable[str]) -> list[str]:
    """Return texts for people that list what the store loses if arrays *names* replace it.

    The new store has the *attributes* with these names.
    """
    listing, texts, saved_names, new_keys = look(path), [], set(names), set(attributes)
    for name, metadata in sorted(listing.arrays.items()):
        if name not in listing.ours or name not in saved_names:
            kind = metadata.get("data_type")
            text, shape = kind.get("name") if isinstance(kind, dict) else kind, metadata.get("shape")
            lengths = str(tuple(shape)) if isinstance(shape, list) else quote(shape)
            texts.append(f"array {quote(name or 'array')} {lengths} {text}")
    texts += [
        f"attributes of the group {quote(n)}"
        for n, group in sorted(listing.groups.items())
        if n and attributes_of(group)
    ]
    if not listing.root_is_ours:
        texts += [f"attribute {quote(key)}" for key in attributes_of(listing.groups.get("")) if key not in new_keys]
    return texts + [f"file {quote(name)}" for name in sorted(listing.others)]


def refuse_to_add(path: Path, names: Iterable[str]) -> None:
    """Raise ``CheckpointError`` unless arrays *names* can be added to the store, or replace arrays there."""
    root = node(path)
    if root is None:
        raise CheckpointError(f"{path} is there and is no zarr store: nothing can be added to it")
    if root.get("zarr_format") != 3:
        raise CheckpointError(
            f"{path} is a zarr store of version 2, to which meshcomm adds nothing. "
            f"A copy of version 3: meshcomm convert {path} NEW.zarr"
        )
    if root.get("node_type") != "group":
        raise CheckpointError(f"{path} is one zarr array, no group: nothing can be added to it")
    for name in names:
        if not name:
            raise CheckpointError(f'{path} is a group: an array that is added needs a name, as in {{"a": tensor}}')
        folder, keys = path, name.split("/")
        for number, key in enumerate(keys, 1):
            folder = folder / key
            _refuse_node(folder, name, last=number == len(keys))


def _refuse_node(folder: Path, name: str, *, last: bool) -> None:
    if folder.is_symlink():
        raise CheckpointError(f"{folder} is a link; arrays must be in the folder of the store")
    if not folder.exists():
        return
    metadata = node(folder) if folder.is_dir() else None
    if metadata is None or metadata.get("zarr_format") != 3:
        raise CheckpointError(f"{folder} is there, and is no group and no array of zarr, version 3")
    if last and metadata.get("node_type") != "array":
        raise CheckpointError(f"array {quote(name)} would replace the group {folder}")
    if not last and metadata.get("node_type") != "group":
        raise CheckpointError(f"array {quote(name)} would be in {folder}, which is an array, no group")


def without_consolidated(metadata: JsonObject) -> JsonObject:
    """Return the metadata of a group without its copies of the metadata below it, which may become outdated."""
    return {key: value for key, value in metadata.items() if key != _CONSOLIDATED}


def is_consolidated(metadata: JsonObject) -> bool:
    """Return whether a group has copies of the metadata below it."""
    return metadata.get(_CONSOLIDATED) is not None


def with_consolidated(metadata: JsonObject, listing: StoreListing) -> JsonObject:
    """Return the metadata of the root with copies of the metadata of all arrays and groups, as zarr writes them."""
    children: JsonObject = {
        name: without_consolidated(value) for name, value in sorted((listing.groups | listing.arrays).items()) if name
    }
    return metadata | {_CONSOLIDATED: {"kind": "inline", "must_understand": False, "metadata": children}}
