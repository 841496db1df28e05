"""Arrays of zarr that only the library zarr can read or write: in chunks of all kinds, and of version 2."""

from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeAlias

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import AnyDict, Array, Shape
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.formats import zarr_store
from meshcomm.storage.formats.base import Sliced, reading
from meshcomm.storage.libraries import library

Metadata: TypeAlias = AnyDict
"""The metadata of an array of zarr, of version 2 or 3."""

CODECS = {
    *("adler32", "astype", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "endian", "fletcher32"),
    *("fixedscaleoffset", "gzip", "jenkins_lookup3", "lz4", "lzma", "packbits", "pcodec", "quantize", "shuffle"),
    *("sharding_indexed", "transpose", "vlen-bytes", "vlen-utf8", "zfpy", "zlib", "zstd"),
}
"""The codecs that may decode chunks. Others, above all pickle, could run any code."""


def zarr_library() -> ModuleType:
    """Return zarr; ``ImportError`` says how to get it."""
    return library("zarr", "this zarr array needs the library zarr")


class _Array(Sliced, Protocol):
    """An array of zarr, version 2 or 3."""

    chunks: Shape
    shards: Shape | None
    metadata: "_MetadataObject"


class _MetadataObject(Protocol):
    def to_dict(self) -> Metadata: ...


def refuse_unsafe_files(folder: Path, max_chunk_bytes: int | None = None) -> None:
    """Raise ``CheckpointError`` if the *folder* has a file that the library should not open.

    That is a link, a pipe, a file of metadata that is too long, or a chunk of more than *max_chunk_bytes*.
    """
    for entry in files.below(folder):
        is_metadata = entry.suffix == ".json" or entry.name in zarr_store.VERSION_2_FILES
        problem = files.problem_with(entry, zarr_store.MAX_METADATA_LENGTH if is_metadata else max_chunk_bytes)
        if problem:
            raise CheckpointError(f"{quote(str(entry))} {problem}; all of a store must be in its folder")


def texts(path: Path, name: str) -> Array:
    """Return the texts of an array of texts of any length: objects, of the class str."""
    array = open_array(path, name)
    with reading(path):
        return np.asarray(array[(slice(None),) * len(array.shape)], object)


def open_array(path: Path, name: str) -> _Array:
    """Return the array *name* as an object of the library."""
    zarr = zarr_library()
    with reading(path):
        opened = zarr.open(str(path), mode="r")
        array: _Array = opened if isinstance(opened, zarr.Array) else opened[name]
        is_array = isinstance(array, zarr.Array)  # else it is a group
        if not is_array:
            raise CheckpointError(f"{path} has no array {quote(name)}")
    unknown = [codec for codec in codecs_in(array.metadata.to_dict()) if codec not in CODECS]
    if unknown:
        raise CheckpointError(f"{path}: array {quote(name)} has the codec {quote(unknown[0])}, an unknown one")
    return array


def write_box(path: Path, name: str, index: tuple[slice, ...], block: Array) -> None:
    """Write *block* to the slices *index* of an array, by the library. When it returns, the chunks are on the disk."""
    open_array(path, name)  # it refuses unknown codecs
    zarr = zarr_library()
    with reading(path):
        opened = zarr.open(str(path), mode="r+")
        array = opened if isinstance(opened, zarr.Array) else opened[name]
    if not block.size:
        return
    with files.at_files():
        array[index] = block
    chunk_shape = array.shards or array.chunks
    chunk_ranges = [
        range(axis_slice.start // n, -(-axis_slice.stop // n))
        for axis_slice, n in zip(index, chunk_shape, strict=True)
    ]
    folder = path if isinstance(opened, zarr.Array) else path / name
    for chunk_index in product(*chunk_ranges):
        chunk = folder / array.metadata.encode_chunk_key(chunk_index)
        if chunk.exists():  # a chunk with only the fill value has no file
            with files.for_writing(chunk) as file:
                file.sync()
            files.sync_folder(chunk.parent)


def codecs_in(metadata: Metadata) -> Iterator[str]:
    """Yield the names of the codecs in *metadata* of version 2 or 3, with those inside of shards."""
    codec_lists = [metadata.get(key) or [] for key in ("codecs", "index_codecs", "filters")]
    for codec_metadata in chain(*codec_lists, filter(None, [metadata.get("compressor")])):
        yield str(codec_metadata.get("name", codec_metadata.get("id"))).removeprefix("numcodecs.")
        yield from codecs_in(codec_metadata.get("configuration") or {})
