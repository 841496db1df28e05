"""Reading of zarr stores: locations of chunks of whole rows in their files; other arrays need the library zarr."""

import struct
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._json import read
from meshcomm.core._types import JsonObject, Shape
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats import zarr_store, zarr_undo
from meshcomm.storage.formats.base import (
    TEXTS,
    FileContents,
    checked_dtype,
    checked_shape,
    parsed_json,
    reading,
    refuse_many_chunks,
)
from meshcomm.storage.formats.zarr_library import codecs_in, open_array, refuse_unsafe_files, zarr_library
from meshcomm.storage.formats.zarr_metadata import METADATA as METADATA
from meshcomm.storage.formats.zarr_metadata import dtype_of
from meshcomm.storage.stored import Segment, Stored
from meshcomm.storage.values import attribute

XARRAY_DIMS = "_ARRAY_DIMENSIONS"  # in version 2, which has no names of axes


def contents(path: Path) -> FileContents:
    """Return the contents of the store. ``CheckpointError`` if *path* is no store."""
    if not (path / METADATA).is_file():
        if (path / ".zgroup").is_file() or (path / ".zarray").is_file():
            return _by_library(path)
        raise CheckpointError(f"{path} is no zarr store: it has no {METADATA}")
    arrays: dict[str, Stored] = {}
    attributes: dict[str, dict[str, object]] = {}
    dims: dict[str, tuple[str, ...]] = {}
    metadata: JsonObject = {}
    origins: dict[str, tuple[str, int, int, int]] = {}
    old_texts = zarr_undo.old_texts(path)
    for file in sorted(path.rglob(METADATA)):
        folder, origin = file.parent, (file.relative_to(path).as_posix(), *files.identity(file))
        zarr_store.refuse_link(file, folder)
        text = old_texts.get(file.relative_to(path).as_posix())
        node = parsed_json(files.whole(file, zarr_store.MAX_METADATA_LENGTH) if text is None else text, file)
        if not isinstance(node, dict) or node.get("zarr_format") != 3:
            raise CheckpointError(f"{file} is not that of a zarr store of version 3")
        if folder == path:
            metadata = zarr_store.attributes_of(node)
        if node.get("node_type") == "array":
            name = str(folder.relative_to(path)) if folder != path else "array"
            stored = _stored_from_metadata(path, folder, name, node)
            if stored is None:
                refuse_unsafe_files(folder)
            arrays[name] = stored or _stored_by_library(path, name, checked_shape(node.get("shape"), str(file), 16))
            attributes[name], dims[name] = _attributes_and_dims(node.get("attributes"), node.get("dimension_names"))
            origins[name] = origin
    return _file_contents(arrays, metadata, attributes, dims)._replace(origins=origins)


def _attributes_and_dims(
    attributes: object, dims: object, fill: object = None
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the attributes of an array, without those of libraries, and the names of its axes, if all have one.

    In version 2, xarray uses *fill*, the fill value, as an attribute. In version 3 it writes one in base64.
    """
    own_attributes = dict(attributes) if isinstance(attributes, dict) else {}
    names = own_attributes.pop(XARRAY_DIMS, None)
    if names is not None and fill is not None:
        own_attributes.setdefault("_FillValue", attribute(fill))
    text, names = own_attributes.get("_FillValue"), names if dims is None else dims
    if isinstance(text, str):
        with suppress(ValueError, struct.error):  # it is another text
            (own_attributes["_FillValue"],) = struct.unpack("<d", b64decode(text, validate=True))
    names = names if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else ()
    return own_attributes, tuple(names)


def _stored_from_metadata(path: Path, folder: Path, name: str, metadata: JsonObject) -> Stored | None:
    """Return the location of the bytes of the array; None if the library has to read it."""
    subject = f"{folder / METADATA}"
    shape = checked_shape(metadata.get("shape"), subject, 16)
    try:
        dtype = dtype_of(metadata["data_type"])
        grid, key_encoding = (read(dict, metadata, key) for key in ("chunk_grid", "chunk_key_encoding"))
        codecs, chunk = (
            read(list, metadata, "codecs"),
            checked_shape(grid["configuration"]["chunk_shape"], subject),
        )
        endian = codecs[0].get("configuration", {}).get("endian", "little")
        is_plain = (
            grid["name"] == "regular"
            and key_encoding["name"] == "default"
            and not metadata.get("storage_transformers")
        )
        is_plain = is_plain and key_encoding.get("configuration", {}).get("separator", "/") == "/"
        is_plain = is_plain and len(codecs) == 1 and codecs[0]["name"] == "bytes" and endian in ("little", "big")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    if dtype is None or not is_plain or len(chunk) != len(shape) or chunk[1:] != shape[1:] or 0 in chunk[:1]:
        return None
    checked_shape(shape, subject, dtype.itemsize)
    refuse_many_chunks(subject, shape, chunk, dtype.itemsize)
    dtype = dtype.newbyteorder("<" if endian == "little" else ">")
    size, nbytes = prod(chunk) * dtype.itemsize, prod(shape) * dtype.itemsize
    segments = []
    for number, start in enumerate(range(0, nbytes, size) if nbytes else ()):
        file = folder.joinpath("c", *[str(number), *["0"] * (len(shape) - 1)][: len(shape)])
        zarr_store.refuse_link(file, folder)
        if not file.exists():
            return None  # a chunk that is missing has the fill value
        with files.for_reading(file) as chunk_file:
            if chunk_file.size() != size:
                raise CheckpointError(f"{file} has {chunk_file.size()} bytes; a chunk of this array has {size}")
        segments.append(Segment(str(file.relative_to(path)), start, min(start + size, nbytes), 0))
    return Stored(name, shape, dtype, tuple(segments))


def _by_library(path: Path) -> FileContents:
    zarr = zarr_library()
    refuse_unsafe_files(path)
    with reading(path):
        store = zarr.open(str(path), mode="r")
        is_single = isinstance(store, zarr.Array)
        members = () if is_single else store.members(max_depth=None)
        names = ["array"] if is_single else [name for name, member in members if isinstance(member, zarr.Array)]
        metadata = dict(store.attrs)
    arrays, attributes, dims, origins = {}, {}, {}, {}
    for name in names:
        file = path / ("" if is_single else name) / ".zarray"
        if file.exists():
            origins[name] = (file.relative_to(path).as_posix(), *files.identity(file))
        arrays[name] = _stored_by_library(path, name)
        with reading(path):
            array = store if is_single else store[name]
            attributes[name], dims[name] = _attributes_and_dims(dict(array.attrs), None, array.fill_value)
    return _file_contents(arrays, metadata, attributes, dims)._replace(origins=origins)


def _file_contents(
    arrays: dict[str, Stored],
    metadata: Mapping[str, object],
    attributes: dict[str, dict[str, object]],
    dims: dict[str, tuple[str, ...]],
) -> FileContents:
    """Return the contents of a store. Those of *arrays* that have the dtype object are texts of any length."""
    texts = {name: stored.shape for name, stored in arrays.items() if stored.dtype.hasobject}
    return FileContents(
        {name: stored for name, stored in arrays.items() if name not in texts},
        metadata,
        attributes={name: values for name, values in attributes.items() if values},
        dims={name: names for name, names in dims.items() if names},
        left_out=dict.fromkeys(texts, TEXTS),
        texts=texts,
    )


def _stored_by_library(path: Path, name: str, shape: Shape | None = None) -> Stored:
    """Return the description of the array by the library; *shape*, if given, replaces its shape."""
    array = open_array(path, name)
    with reading(path):
        shape, dtype, chunk = shape or array.shape, array.dtype, array.shards or array.chunks
    if dtype.kind == "T" or "vlen-utf8" in codecs_in(array.metadata.to_dict()):
        return Stored(name, checked_shape(shape, f"{path}: {name}", 16), np.dtype(object), ())
    if dtype.hasobject:
        raise CheckpointError(f"{path}: array {quote(name)} has elements of different sizes")
    checked_dtype(dtype, f"{path}: array {quote(name)}")
    stored = Stored(name, checked_shape(shape, f"{path}: {name}", dtype.itemsize), dtype, ())
    folder = path / name
    refuse_unsafe_files(folder if folder.is_dir() else path, 2 * prod(chunk) * dtype.itemsize + 2**20)
    refuse_many_chunks(f"{path}: {name}", shape, array.chunks, dtype.itemsize)
    return stored.by_library(chunk)
