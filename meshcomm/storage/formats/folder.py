"""Checkpoints: a folder with the bytes of all arrays, and a manifest that describes them.

::

    step-000100/
        manifest.json            the tree, the arrays, and the checksum of each range of the data
        data-5d0c96d2a8e14f30    the arrays in row-major order, each from a multiple of 4 KiB on, long ones of a stripe

The manifest is the index: see :mod:`meshcomm.storage.formats.indexed` for how a save replaces an old checkpoint.
"""

import json
import re
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._json import read
from meshcomm.core._tuning import PAGE
from meshcomm.core._types import JsonObject
from meshcomm.core.arrays.trees import names_in
from meshcomm.core.layouts.dtype_text import dtype_text
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.checksums import CHECKSUM_RANGE, Piece, combine_checksums
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import (
    FileContents,
    checked_dtype,
    checked_shape,
    lost,
    parsed_json,
    refuse_overlaps,
)
from meshcomm.storage.formats.indexed import IndexedWriter
from meshcomm.storage.routes import MAX_UNEVEN
from meshcomm.storage.stored import Stored, in_one_file, known_dtype
from meshcomm.storage.values import all_values

MANIFEST = "manifest.json"
KIND, VERSION = "meshcomm checkpoint", 1
MAX_MANIFEST_LENGTH = 2**30
_DATA_NAME = re.compile(r"data-[0-9a-f]{16}")
_CHECKSUM_LINE = re.compile(rb',\n"crc32": ([0-9]{1,10})\}\n')


class FolderWriter(IndexedWriter):
    """Writes a new checkpoint, in a new folder or in place of an old checkpoint."""

    checks: ClassVar[bool] = True
    any_tree: ClassVar[bool] = True
    data_name_pattern = _DATA_NAME
    _made_folder = False  # whether this save made the folder

    @property
    def index(self) -> Path:
        return self.path / MANIFEST

    def names_in_index(self) -> set[str]:
        data = _manifest(self.path)["file"]
        if not isinstance(data, dict):
            raise CheckpointError(f"{self.index} names no data file")
        return {str(data.get("name"))}

    def would_lose(self) -> list[str]:
        if not (self.path / MANIFEST).is_file() or not _may_be_replaced(self.path):
            return []  # there is nothing, or `begin` refuses the folder
        try:
            return lost(contents(self.path), [array.name for array in self.arrays])
        except CheckpointError:  # it is damaged
            return []

    def begin(self) -> tuple[Path, list[Stored]]:
        path = self.path
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; a checkpoint is a folder")
        if path.is_dir() and not _may_be_replaced(path):
            raise FileExistsError(f"{path} holds other files and is no checkpoint; save to a new folder")
        # Raises an error before the work begins.
        _json_bytes([self.node, self.metadata, [array.name for array in self.arrays]])
        self._made_folder = files.make_folder(path)
        self.remove_leftovers()
        self._data_name = f"data-{self.tag}"
        with self.new_data(self._data_name) as file:
            stored = self._lay_out(file)
            file.sync()
        return path, stored

    def _lay_out(self, file: File) -> list[Stored]:
        stored, end, file_unit = [], 0, file.unit()
        for array in self.arrays:
            # Else ranks do not cut it at multiples of `file_unit`.
            is_shared = array.nbytes >= 2 * MAX_UNEVEN * file_unit
            unit = file_unit if is_shared else PAGE
            end += -end % unit
            stored.append(in_one_file(array.name, array.shape, array.dtype, end, self._data_name)._replace(unit=unit))
            end += array.nbytes
        end += -end % PAGE
        file.sized(end)
        self._stored, self._size = stored, end
        return stored

    def commit(self, pieces: list[Piece]) -> None:
        from importlib.metadata import version  # here, as its import takes long

        entries = {
            array.name: {
                "shape": list(array.shape),
                "dtype": json.loads(dtype_text(array.dtype)),
                "offset": stored.begin,
                "layout": array.layout,
            }
            for array, stored in zip(self.arrays, self._stored, strict=True)
        }
        manifest = {
            "kind": KIND,
            "version": VERSION,
            "written_by": f"meshcomm {version('meshcomm')}, NumPy {np.__version__}",
            "metadata": self.metadata,
            "tree": self.node,
            "arrays": entries,
            "file": {"name": self._data_name, "size": self._size, "range": CHECKSUM_RANGE},
            "checksums": _range_checksums(pieces, self._size),
        }
        text = _manifest_lines(manifest)
        text += f',\n"crc32": {zlib.crc32(text)}}}\n'.encode()
        if len(text) > MAX_MANIFEST_LENGTH:
            raise CheckpointError(f"the manifest of a checkpoint has at most {MAX_MANIFEST_LENGTH} bytes")
        self.swap(text)

    def abandon(self) -> None:
        super().abandon()
        if self._made_folder:
            files.remove_if_empty(self.path)


def _json_bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _manifest_lines(manifest: Mapping[str, object]) -> bytes:
    """Return *manifest* as JSON without its last brace, with a line for each key and for each array."""
    lines = []
    for key, value in manifest.items():
        if key == "arrays" and isinstance(value, dict):
            array_lines = b",\n".join(_json_bytes(name) + b": " + _json_bytes(entry) for name, entry in value.items())
            lines.append(_json_bytes(key) + b": {\n" + array_lines + b"}")
        else:
            lines.append(_json_bytes(key) + b": " + _json_bytes(value))
    return b"{" + b",\n".join(lines)


def _may_be_replaced(path: Path) -> bool:
    """Return whether the folder holds a checkpoint, or only files that unfinished saves have left."""
    if (path / MANIFEST).exists():
        with files.for_reading(path / MANIFEST) as file:
            return KIND.encode() in files.section(file, 0, min(file.size(), PAGE))
    return all(_DATA_NAME.fullmatch(entry.name.removeprefix(f"{MANIFEST}.")) for entry in files.entries(path))


def _range_checksums(pieces: list[Piece], size: int) -> list[int]:
    """Return the checksum of each range of the data file; bytes between arrays are zeros."""
    crcs = []
    number = 0
    for start in range(0, size, CHECKSUM_RANGE):
        stop, crc, end = min(start + CHECKSUM_RANGE, size), 0, start
        while number < len(pieces) and pieces[number][1] < stop:
            _, offset, length, piece_crc = pieces[number]
            crc = combine_checksums(_with_zeros(crc, offset - end), piece_crc, length)
            end, number = offset + length, number + 1
        crcs.append(_with_zeros(crc, stop - end))
    return crcs


def _with_zeros(crc: int, count: int) -> int:
    return zlib.crc32(bytes(count), crc) if count > 0 else crc


# -- reading ----------------------------------------------------------------------------------------------------------


def contents(path: Path) -> FileContents:
    """Return the contents of the checkpoint. ``CheckpointError`` if there is none, or if it is damaged."""
    if not path.is_dir():
        raise CheckpointError(f"{path} is no checkpoint, which is a folder")
    label, manifest = f"{path / MANIFEST}", _manifest(path)
    origins = {"": (MANIFEST, *files.identity(path / MANIFEST))}
    data = manifest["file"]
    if (
        not isinstance(data, dict)
        or not _DATA_NAME.fullmatch(str(data.get("name")))
        or type(data.get("size")) is not int
    ):
        raise CheckpointError(f"{label} names no data file")
    if data.get("range") != CHECKSUM_RANGE:
        raise CheckpointError(f"{label}: ranges of {quote(data.get('range'))} bytes; they must have {CHECKSUM_RANGE}")
    data_file, nbytes, checks = str(data["name"]), read(int, data, "size"), manifest["checksums"]
    if not isinstance(checks, list) or len(checks) != -(-nbytes // CHECKSUM_RANGE):
        raise CheckpointError(f"{label} has not one checksum for each range of the data")
    _refuse_link(path / data_file)
    try:
        with files.for_reading(path / data_file) as file:
            size = file.size()
    except FileNotFoundError:
        raise CheckpointError(f"{label} names the file {data_file}, which is not there") from None
    if size != nbytes:
        raise CheckpointError(f"{path / data_file} has {size} bytes; by its manifest it has {nbytes}")
    entries = _entries(manifest, label)
    arrays = {name: _stored_array(name, entry, nbytes, label, data_file) for name, entry in entries.items()}
    refuse_overlaps(arrays, label)
    missing = [name for name in names_in(manifest["tree"], all_values) if name not in arrays]
    if missing:
        raise CheckpointError(f"{label}: the tree names {quote(missing[0])}, which is no array of the checkpoint")
    return FileContents(
        arrays,
        read(dict, manifest, "metadata"),
        read(list, manifest, "tree"),
        {data_file: read(list, checks)},
        {data_file: nbytes},
        hints={name: str(entry.get("layout", "")) for name, entry in entries.items()},
        origins=origins,
    )


def _refuse_link(file: Path) -> None:
    if file.is_symlink():
        raise CheckpointError(f"{file} is a link; all of a checkpoint must be in its folder")


def _manifest(path: Path) -> JsonObject:
    _refuse_link(path / MANIFEST)
    try:
        text = files.whole(path / MANIFEST, MAX_MANIFEST_LENGTH)
    except FileNotFoundError:
        checkpoints = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
        advice = (
            f"It has checkpoints, such as {checkpoints[-1]}"
            if checkpoints
            else "It is another folder, or its save was cut off"
        )
        raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}. {advice}") from None
    end = _CHECKSUM_LINE.search(text, max(0, len(text) - 40))
    if end is None or end.end() != len(text) or zlib.crc32(text[: end.start()]) != int(end[1]):
        raise CheckpointError(f"{path / MANIFEST} is damaged: its checksum is wrong")
    manifest = parsed_json(text, path / MANIFEST)
    required = {"kind", "version", "metadata", "tree", "arrays", "file", "checksums"}
    if not isinstance(manifest, dict) or not required <= set(manifest) or manifest["kind"] != KIND:
        raise CheckpointError(f"{path / MANIFEST} is not that of a {KIND}")
    if manifest["version"] != VERSION:
        raise CheckpointError(
            f"{path} has version {quote(manifest['version'])}; this meshcomm reads version {VERSION}"
        )
    if not isinstance(manifest["metadata"], dict):
        raise CheckpointError(f"{path / MANIFEST}: the metadata are {quote(manifest['metadata'])}, no object")
    return manifest


def _entries(manifest: JsonObject, subject: str) -> dict[str, JsonObject]:
    arrays = manifest["arrays"]
    arrays = arrays if isinstance(arrays, dict) else {"": None}
    entries = {name: entry for name, entry in arrays.items() if isinstance(entry, dict)}
    if len(entries) < len(arrays):
        raise CheckpointError(f"{subject}: arrays are no object of objects")
    return entries


def _stored_array(name: str, entry: JsonObject, size: int, label: str, file: str) -> Stored:
    try:
        dtype = known_dtype(json.dumps(entry.get("dtype")))
    except (DTypeError, RecursionError) as error:
        raise CheckpointError(f"{label}: array {quote(name)}: {error}") from None
    checked_dtype(dtype, f"{label}: array {quote(name)}")
    shape = checked_shape(entry.get("shape"), f"{label}: array {quote(name)}", dtype.itemsize)
    offset, nbytes = entry.get("offset"), prod(shape) * dtype.itemsize
    if type(offset) is not int or offset < 0 or offset + nbytes > size:
        raise CheckpointError(f"{label}: array {quote(name)} of {nbytes} bytes at {quote(offset)} is not in the data")
    return in_one_file(name, shape, dtype, offset, file)
