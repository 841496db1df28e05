"""Stores of zarr, version 3: folders in which each chunk of an array is a file.

Without compression we write chunks of whole rows: the bytes of a chunk are those of the array. Arrays in other chunks
are read through the library zarr.

A store, and each array and group that is added to one, is made beside the store, and gets its name in one step.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from math import prod
from pathlib import Path

from meshcomm.core._arguments import quote
from meshcomm.core._files import own_access
from meshcomm.core._json import read
from meshcomm.core._types import DType, JsonObject, Shape
from meshcomm.errors import CheckpointError, ShapeError
from meshcomm.storage import files
from meshcomm.storage.chunked import default_chunk
from meshcomm.storage.codecs import with_levels
from meshcomm.storage.files import File
from meshcomm.storage.formats import zarr_store, zarr_undo
from meshcomm.storage.formats.base import ArrayToSave, checked_shape, groups_above
from meshcomm.storage.formats.snapshots import SnapshotWriter, chunks_of_snapshots, copy_that_grows
from meshcomm.storage.formats.zarr_metadata import METADATA as METADATA
from meshcomm.storage.formats.zarr_metadata import array_metadata, as_attributes, codecs_of, dtype_of, group_metadata
from meshcomm.storage.stored import Chunking, Segment, Stored

ZARR_CHUNK = 2**26
"""The most bytes of an uncompressed chunk of a saved array, which has at least one row. A compromise: readers read
whole chunks, and few files are better on a network."""


class ZarrWriter(SnapshotWriter):
    """Writes a new store, of one array or a group of arrays, or adds arrays to an existing store."""

    _new_files: Sequence[Path] = ()
    """Paths of new chunks of snapshots in the store itself, which are removed if the save fails."""

    @classmethod
    def check_names(cls, names: list[str]) -> None:
        super().check_names(names)
        for name in names:
            if any(key == METADATA or key.startswith("__") for key in name.split("/")):
                raise CheckpointError(f"{quote(name)}: zarr keeps {METADATA} and names that begin with __ for itself")

    @classmethod
    def holds(cls, value: object) -> bool:
        with suppress(TypeError):
            as_attributes({"": value})
            return True
        return False

    @cached_property
    def _names(self) -> dict[str, str]:
        """The path of each array in the store: "" for one tensor that is saved alone."""
        is_single = self.node == ["array", "array"]
        return {array.name: "" if is_single else array.name for array in self.arrays}

    def would_lose(self) -> list[str]:
        self._refuse_foreign()
        return zarr_store.lost(self.path, self._names.values(), self.metadata)

    def _refuse_foreign(self) -> None:
        if self.path.exists() and not zarr_store.is_store(self.path):
            raise FileExistsError(f"{self.path} is there and is no zarr store; save to a new folder")

    def begin(self) -> tuple[Path, list[Stored]]:
        self._new_files = ()
        self._groups: set[str] = set()
        self._like = self.path / METADATA if self.path.exists() else None  # new files get its permissions
        self._refuse_foreign()
        self._is_adding = self.mode == "a" and self.path.is_dir() and bool(files.entries(self.path))
        if self._is_adding:
            zarr_store.refuse_to_add(self.path, self._names.values())
        self.remove_leftovers()
        access = own_access(self.path)
        files.make_folder(self.temporary_path, 0o777 if access is None else 0o700)
        folder = files.File(self.temporary_path, 0)
        folder.take(access)
        self.hold(folder)
        if self._is_adding:
            zarr_undo.undo(self.path, self.temporary_path)
            self._listing = zarr_store.look(self.path)
        self._check_dims()
        attributes = self._root_attributes()
        if "" not in self._names.values():
            self._put_json(self.temporary_path, group_metadata(attributes))
        self.count_snapshots()
        return self.temporary_path, [self._lay_out(array, attributes) for array in self.arrays]

    def _check_dims(self) -> None:
        """Raise ``ShapeError`` if axes of one name have different lengths: xarray does not open such a store."""
        lengths: dict[str, int] = {}
        if self._is_adding:
            for name, metadata in self._listing.arrays.items():
                if name not in self._names.values():
                    dims, shape = (read(list, metadata.get(key) or []) for key in ("dimension_names", "shape"))
                    lengths |= zip(dims, shape, strict=False)
        for array in self.arrays:
            for dim, n in zip(array.dims or (), array.shape, strict=False):
                if lengths.setdefault(dim, n) != n:
                    raise ShapeError(
                        f"{self.path}: the axis {quote(dim)} of {quote(array.name)} has {n}, not {lengths[dim]}"
                    )

    def old_snapshots(self, name: str) -> tuple[Shape, DType | None, bool] | None:
        metadata = zarr_store.node(self.path / name) if self._is_adding else None
        if metadata is None:
            return None
        shape, dtype = checked_shape(metadata.get("shape"), name), dtype_of(metadata.get("data_type"))
        byte_order = (read(dict, metadata, "codecs", 0).get("configuration") or {}).get("endian", "little")
        return shape, dtype and dtype.newbyteorder("<" if byte_order == "little" else ">"), True

    def _lay_out(self, array: ArrayToSave, attrs: JsonObject) -> Stored:
        if array.grows is None:
            return self._lay_out_array(array, attrs)
        if self._count:
            return self._grow(array)
        dims = array.dims or tuple(f"axis_{axis}_of_{n}" for axis, n in enumerate(array.shape))
        shape, dims = (array.steps, *array.shape), (array.grows, *dims)
        return self._lay_out_array(array._replace(shape=shape, dims=dims, chunks=chunks_of_snapshots(array)), attrs)

    def _grow(self, array: ArrayToSave) -> Stored:
        """Reserve space for more snapshots in files of the store itself, and return the location of their data."""
        metadata = zarr_store.node(self.path / array.name) or {}
        chunk = checked_shape(read(object, metadata, "chunk_grid", "configuration", "chunk_shape"), array.name)
        try:
            codecs = codecs_of(metadata["codecs"], self.path / array.name)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. {copy_that_grows(self.path)}") from None
        return self.lay_out_snapshots(array, Chunking(chunk, codecs))

    def reserve(self, name: str, index: Shape, nbytes: int, *, syncs: bool = True) -> tuple[str, int]:
        with self._new_chunk(name, index) as file:
            if nbytes:
                file.sized(nbytes)
            if syncs:
                file.sync()
        return os.path.relpath(file.path, self.temporary_path), 0

    def _root_attributes(self) -> JsonObject:
        """Return the new attributes of the root, and remember whether meshcomm wrote all of them."""
        attributes, self._root_is_ours = as_attributes(self.metadata), True
        if not self._is_adding:
            return attributes
        listing = zarr_store.look(self.path)
        self._root_is_ours = listing.root_is_ours
        return zarr_store.attributes_of(listing.groups.get("")) | attributes

    def _lay_out_array(self, array: ArrayToSave, root_attributes: JsonObject) -> Stored:
        folder, shape, itemsize = self.temporary_path / self._names[array.name], array.shape, array.dtype.itemsize
        files.make_folders(folder)
        for group in groups_above(self._names[array.name]):
            if group not in self._groups:
                self._groups.add(group)
                self._put_json(self.temporary_path / group, group_metadata({}))
        codecs = with_levels(array.codecs) if shape else ()
        chunk = array.chunks
        if array.dims is None and self._is_adding:
            array = array._replace(dims=self._old_dims(array))
        if chunk is None:
            rows = max(1, min(shape[0], ZARR_CHUNK // max(1, prod(shape[1:]) * itemsize))) if shape else 1
            chunk = default_chunk(shape, itemsize) if codecs else (rows, *shape[1:])[: len(shape)]
        attributes = as_attributes(array.attributes)
        if folder == self.temporary_path:  # the array is the root of the store
            attributes = root_attributes | attributes
        metadata = array_metadata(array, chunk, codecs, attributes)
        self._put_json(folder, metadata)
        mark = zarr_store.mark(metadata, root_attributes if self._root_is_ours else None)
        files.put(folder / zarr_store.MARK, mark, self._like, syncs=False)
        if codecs or chunk[1:] != shape[1:]:
            return Stored(array.name, shape, array.dtype, (), chunks=Chunking(chunk, codecs))
        nbytes, chunk_bytes = prod(shape) * itemsize, prod(chunk) * itemsize
        return Stored(array.name, shape, array.dtype, tuple(self._segments(array, nbytes, chunk_bytes)))

    def _old_dims(self, array: ArrayToSave) -> tuple[str, ...] | None:
        """Return the names of the axes of the array that is replaced, if it has the same number of axes."""
        names = read(list, (zarr_store.node(self.path / array.name) or {}).get("dimension_names") or [])
        return tuple(names) if len(names) == len(array.shape) and all(isinstance(n, str) for n in names) else None

    def _segments(self, array: ArrayToSave, nbytes: int, chunk_bytes: int) -> Iterator[Segment]:
        """Make the files of an array of *nbytes*, in chunks of whole rows of *chunk_bytes*."""
        for number, start in enumerate(range(0, nbytes, chunk_bytes) if nbytes else ()):
            index = (number, *[0] * (len(array.shape) - 1)) if array.shape else ()
            file = self._new_chunk(array.name, index)
            with file:
                file.sized(chunk_bytes)  # the last chunk is as long as the others
            yield Segment(str(file.path.relative_to(self.temporary_path)), start, min(start + chunk_bytes, nbytes), 0)

    def _new_chunk(self, name: str, index: Shape) -> File:
        """Return the file of a chunk: a new one, or that of a snapshot, which a killed job may have left."""
        store_folder = self.path if self._count else self.temporary_path
        path = store_folder.joinpath(self._names[name], "c", *map(str, index))
        zarr_store.refuse_link(path, store_folder)
        files.make_folders(path.parent)
        if self._count and path.exists():
            return files.for_writing(path)
        file = files.create(path, self._like)
        if self._count:
            self._new_files = [*self._new_files, path]
        return file

    def _put_json(self, folder: Path, metadata: JsonObject) -> None:
        files.put(folder / METADATA, _as_json(metadata), self._like, syncs=folder == self.temporary_path)

    def commit(self, pieces: object) -> None:
        self.refuse_another()
        files.take_folder_modes(self.temporary_path, self.path)
        # Ranks have synced the chunks that they wrote.
        files.sync_tree(self.temporary_path, (METADATA, zarr_store.MARK))
        if not self._is_adding:
            super().commit([])
            return
        root = zarr_store.node(self.path)
        assert root is not None
        new_root = zarr_store.without_consolidated(root) | {"attributes": self._root_attributes()}
        if self._count:
            self._extend_arrays(root, new_root)
        else:
            self._move_into(self.temporary_path, self.path)
            if zarr_store.is_consolidated(root):
                new_root = zarr_store.with_consolidated(new_root, zarr_store.look(self.path))
            if new_root != zarr_store.node(self.path):
                self._replace_metadata(self.path, new_root)
        self._new_files = ()
        with suppress(OSError):  # the next save tries again
            files.remove(self.temporary_path)
        self.release()

    def abandon(self) -> None:
        for path in self._new_files:
            with suppress(OSError):
                files.remove(path)
        super().abandon()

    def _extend_arrays(self, root: JsonObject, new_root: JsonObject) -> None:
        """Extend all arrays by the new snapshots, in one step; the metadata of the root change to *new_root*."""
        texts = {}
        for array in self.arrays:  # the last one is the axis, if that has numbers
            metadata = self._listing.arrays[array.name]
            metadata["shape"] = [self._count + array.steps, *read(list, metadata, "shape")[1:]]
            texts[f"{array.name}/{METADATA}"] = _as_json(metadata)
            if array.name in self._listing.ours:
                root_attributes = new_root["attributes"] if self._root_is_ours else None
                texts[f"{array.name}/{zarr_store.MARK}"] = zarr_store.mark(metadata, root_attributes)
        if zarr_store.is_consolidated(root):
            new_root = zarr_store.with_consolidated(new_root, self._listing)
        if new_root != root:
            texts[METADATA] = _as_json(new_root)
        zarr_undo.change(self.path, self.temporary_path, texts)

    def _move_into(self, new_folder: Path, group: Path) -> None:
        """Move each array and each new group below *new_folder* into *group*, in one step each."""
        metadata = zarr_store.node(group) or {}
        if zarr_store.is_consolidated(metadata):  # its copies of metadata of changed arrays must not be read
            self._replace_metadata(group, zarr_store.without_consolidated(metadata))
        for folder in filter(Path.is_dir, files.entries(new_folder)):
            target = group / folder.name
            if ((target.is_dir() and zarr_store.node(target)) or {}).get("node_type") == "group":
                self._move_into(folder, target)
            else:
                files.replace(folder, target)

    def _replace_metadata(self, folder: Path, metadata: JsonObject) -> None:
        zarr_undo.replace(folder / METADATA, _as_json(metadata), self.temporary_path)


def _as_json(metadata: JsonObject) -> bytes:
    return json.dumps(metadata).encode()
