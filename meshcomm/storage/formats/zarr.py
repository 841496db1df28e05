"""Stores of zarr, version 3: folders in which each chunk of an array is a file.

We write chunks of whole rows, without compression: the bytes of a chunk are those of the array. Others, in chunks of
all kinds, are read through the library zarr. Source: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html.
"""

import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meshcomm._arguments import quote
from meshcomm._tuning import ZARR_CHUNK
from meshcomm._types import DType, Shape
from meshcomm.errors import CheckpointError, DTypeError
from meshcomm.storage import files
from meshcomm.storage.formats.base import Contents, Writer, checked_dtype, checked_shape, parsed_json, reading
from meshcomm.storage.stored import Segment, Stored
from meshcomm.storage.values import attribute

METADATA = "zarr.json"
XARRAY_DIMS = "_ARRAY_DIMENSIONS"  # of version 2, which has no names of axes itself
LONGEST_METADATA = 2**26
KINDS = (
    "bool",
    *(f"{sign}int{n}" for n in (8, 16, 32, 64) for sign in ("", "u")),
    *(f"float{n}" for n in (16, 32, 64)),
    "complex64",
    "complex128",
)
CODECS = {
    *("adler32", "astype", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian", "fletcher32"),
    *("fixedscaleoffset", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits", "pcodec", "quantize", "shuffle"),
    *("sharding_indexed", "transpose", "vlen-bytes", "vlen-utf8", "zfpy", "zlib", "zstd"),
}
"""What may decode chunks. Other codecs, above all pickle, could run any code."""


def library() -> Any:
    """Return zarr; ``ImportError`` says how to get it."""
    try:
        return import_module("zarr")
    except ImportError:
        raise ImportError("this zarr array needs the library zarr: pip install zarr") from None


class ZarrWriter(Writer):
    """A new store: one array, or a group of arrays."""

    separator: ClassVar[str] = "/"

    def would_lose(self) -> list[str]:
        names = [array.name for array in self.arrays]
        return [f"array {quote(name)}" for name in contents(self.path).arrays if name not in names]

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.exists() and not (self.path / METADATA).is_file():
            raise FileExistsError(f"{self.path} is there and is no zarr store; save to a new folder")
        self.remove_leftovers()
        files.make_folder(self.aside)
        folder = files.File(self.aside, 0)
        folder.take_mode_of(self.path)
        self.hold(folder)
        alone = self.node == ["array", "array"]
        if not alone:
            self._put_json(self.aside, {"zarr_format": 3, "node_type": "group", "attributes": self.metadata})
        return self.aside, [self._lay_out_array(array, "" if alone else array.name) for array in self.arrays]

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        super().check_names(names)
        for name in names:
            if any(key == METADATA or key.startswith("__") for key in name.split("/")):
                raise CheckpointError(f"{quote(name)}: zarr keeps {METADATA} and names that begin with __ for itself")

    def _lay_out_array(self, array: Any, name: str) -> Stored:
        folder = self.aside / name
        files.make_folders(folder)
        for group in folder.relative_to(self.aside).parents:
            if str(group) != "." and not (self.aside / group / METADATA).exists():
                self._put_json(self.aside / group, {"zarr_format": 3, "node_type": "group", "attributes": {}})
        row = prod(array.shape[1:]) * array.dtype.itemsize
        rows = max(1, min(array.shape[0], ZARR_CHUNK // max(1, row))) if array.shape else 1
        attributes = self.metadata if not name else {}
        self._put_json(folder, _metadata(array.shape, array.dtype, rows, attributes))
        stored, nbytes = [], prod(array.shape) * array.dtype.itemsize
        size = rows * row if array.shape else nbytes
        for number, start in enumerate(range(0, nbytes, size) if nbytes else ()):
            chunk = folder.joinpath("c", str(number), *["0"] * (len(array.shape) - 1)) if array.shape else folder / "c"
            files.make_folders(chunk.parent)
            with files.create(chunk) as file:
                file.take_mode_of(self.path / METADATA)
                file.sized(size)  # the last chunk is as long as the others
                file.sync()
            relative = str(chunk.relative_to(self.aside))
            stored.append(Segment(relative, start, min(start + size, nbytes), 0))
        return Stored(array.name, array.shape, array.dtype, tuple(stored))

    def _put_json(self, folder: Path, metadata: dict[str, Any]) -> None:
        files.put(folder / METADATA, json.dumps(metadata, indent=2).encode(), self.path / METADATA)

    def commit(self, pieces: object) -> None:
        files.take_folder_modes(self.aside, self.path)
        files.sync_tree(self.aside)
        super().commit([])


def _metadata(shape: Shape, dtype: DType, rows: int, attributes: dict[str, Any]) -> dict[str, Any]:
    if dtype.name not in KINDS:
        raise DTypeError(f"a zarr array cannot hold {dtype}: save it to a folder, which holds every dtype")
    codec: dict[str, Any] = {"name": "bytes"}
    if dtype.itemsize > 1:
        codec["configuration"] = {"endian": "little" if dtype.newbyteorder("<") == dtype else "big"}
    zero: Any = {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(dtype.kind, 0)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows, *shape[1:]] if shape else []}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": zero,
        "codecs": [codec],
        "attributes": attributes,
        "dimension_names": [f"axis_{axis}_of_{n}" for axis, n in enumerate(shape)],
    }


# -- reading ----------------------------------------------------------------------------------------------------------


def contents(path: Path) -> Contents:
    """Return what the store holds. ``CheckpointError`` if it is none."""
    if not (path / METADATA).is_file():
        if (path / ".zgroup").is_file() or (path / ".zarray").is_file():
            return _by_library(path)
        raise CheckpointError(f"{path} is no zarr store: it has no {METADATA}")
    arrays: dict[str, Stored] = {}
    others: dict[str, Shape] = {}
    attributes: dict[str, dict[str, Any]] = {}
    dims: dict[str, tuple[str, ...]] = {}
    metadata: dict[str, Any] = {}
    for file in sorted(path.rglob(METADATA)):
        folder = file.parent
        found = parsed_json(files.whole(file, LONGEST_METADATA), file)
        if not isinstance(found, dict) or found.get("zarr_format") != 3:
            raise CheckpointError(f"{file} is not that of a zarr store of version 3")
        if folder == path and isinstance(found.get("attributes"), dict):
            metadata = found["attributes"]
        if found.get("node_type") == "array":
            name = str(folder.relative_to(path)) if folder != path else "array"
            stored = _stored(path, folder, name, found)
            if stored is None:
                _refuse_links(folder)
                stored, others[name] = _described(path, name)
            arrays[name] = stored
            attributes[name], dims[name] = _described_by(found.get("attributes"), found.get("dimension_names"))
    return Contents(arrays, metadata, by_library=others, **_without_empty(attributes, dims))


def _described_by(attributes: object, dims: object, fill: object = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the attributes of an array, without those of libraries, and the names of its axes, if all have one.

    Of an array of version 2 that xarray has written, *fill* is an attribute, too. In version 3 it writes that in
    base64.
    """
    found = dict(attributes) if isinstance(attributes, dict) else {}
    names = found.pop(XARRAY_DIMS, None)
    if names is not None and fill is not None:
        found.setdefault("_FillValue", attribute(fill))
    text, names = found.get("_FillValue"), names if dims is None else dims
    if isinstance(text, str):
        with suppress(ValueError, struct.error):  # it is another text
            (found["_FillValue"],) = struct.unpack("<d", b64decode(text, validate=True))
    all_named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return found, tuple(names) if all_named else ()  # type: ignore[arg-type]


def _without_empty(attributes: dict[str, dict[str, Any]], dims: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the attributes and the names of axes of arrays that have some."""
    return {
        "attributes": {name: its for name, its in attributes.items() if its},
        "dims": {name: its for name, its in dims.items() if its},
    }


def _stored(path: Path, folder: Path, name: str, found: dict[str, Any]) -> Stored | None:
    """Return where the bytes of the array are; None if the library has to find out."""
    what = f"{folder / METADATA}"
    shape, kind = checked_shape(found.get("shape"), what, 16), found.get("data_type")
    try:
        grid, keys, codecs = found["chunk_grid"], found["chunk_key_encoding"], found["codecs"]
        chunk = checked_shape(grid["configuration"]["chunk_shape"], what)
        endian = codecs[0].get("configuration", {}).get("endian", "little")
        plain = grid["name"] == "regular" and keys["name"] == "default" and not found.get("storage_transformers")
        plain = plain and keys.get("configuration", {}).get("separator", "/") == "/" and kind in KINDS
        plain = plain and len(codecs) == 1 and codecs[0]["name"] == "bytes" and endian in ("little", "big")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    if not plain or len(chunk) != len(shape) or chunk[1:] != shape[1:] or 0 in chunk[:1]:
        return None
    dtype = np.dtype(kind).newbyteorder("<" if endian == "little" else ">")
    size, nbytes = prod(chunk) * dtype.itemsize, prod(shape) * dtype.itemsize
    segments = []
    for number, start in enumerate(range(0, nbytes, size) if nbytes else ()):
        file = folder.joinpath("c", *[str(number), *["0"] * (len(shape) - 1)][: len(shape)])
        if files.is_below_link(file, folder):
            raise CheckpointError(f"{file} is a link; the chunks must be in the folder of the store")
        if not file.exists():
            return None  # a chunk that is missing has the fill value
        with files.for_reading(file) as opened:
            if opened.size() != size:
                raise CheckpointError(f"{file} has {opened.size()} bytes; a chunk of this array has {size}")
        segments.append(Segment(str(file.relative_to(path)), start, min(start + size, nbytes), 0))
    return Stored(name, shape, dtype, tuple(segments))


def _refuse_links(folder: Path) -> None:
    """Raise ``CheckpointError`` if a link is in the *folder*: the library would follow it."""
    link = files.first_link(folder)
    if link is not None:
        raise CheckpointError(f"{link} is a link; the chunks must be in the folder of the store")


def _by_library(path: Path) -> Contents:
    zarr = library()
    _refuse_links(path)
    with reading(path):
        opened = zarr.open(str(path), mode="r")
        alone = isinstance(opened, zarr.Array)
        members = () if alone else opened.members(max_depth=None)
        names = ["array"] if alone else [name for name, member in members if isinstance(member, zarr.Array)]
        metadata = dict(opened.attrs)
    found = {name: _described(path, name) for name in names}
    arrays = {name: stored for name, (stored, _) in found.items()}
    chunks = {name: chunks for name, (_, chunks) in found.items()}
    with reading(path):
        each = {name: opened if alone else opened[name] for name in names}
        its = {name: _described_by(dict(array.attrs), None, array.fill_value) for name, array in each.items()}
    attributes, dims = {name: each for name, (each, _) in its.items()}, {name: each for name, (_, each) in its.items()}
    return Contents(arrays, metadata, by_library=chunks, **_without_empty(attributes, dims))


def _described(path: Path, name: str) -> tuple[Stored, Shape]:
    """Return what the library says of the array, and the shape of its chunks."""
    array = open_array(path, name)
    with reading(path):
        shape, dtype, chunk = array.shape, array.dtype, array.shards or array.chunks
    if dtype.hasobject:
        raise CheckpointError(f"{path}: array {quote(name)} has elements of different sizes")
    checked_dtype(dtype, f"{path}: array {quote(name)}")
    stored = Stored(name, checked_shape(shape, f"{path}: {name}", dtype.itemsize), dtype, ())
    return stored, tuple(max(1, n) for n in chunk)


def open_array(path: Path, name: str) -> Any:
    """Return the array *name*, as the library has it."""
    zarr = library()
    with reading(path):
        opened = zarr.open(str(path), mode="r")
        found = opened if isinstance(opened, zarr.Array) else opened[name]
        if isinstance(found, zarr.Array):
            unknown = [codec for codec in _codecs(found.metadata.to_dict()) if codec not in CODECS]
            if unknown:
                raise CheckpointError(f"{path}: array {quote(name)} has the codec {quote(unknown[0])}, an unknown one")
            return found
    raise CheckpointError(f"{path} has no array {quote(name)}")


def _codecs(metadata: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the codecs in *metadata* of version 2 or 3, with those inside of shards."""
    lists = [metadata.get(key) or [] for key in ("codecs", "index_codecs", "filters")]
    for codec in chain(*lists, filter(None, [metadata.get("compressor")])):
        yield str(codec.get("name", codec.get("id"))).removeprefix("numcodecs.")
        yield from _codecs(codec.get("configuration") or {})
