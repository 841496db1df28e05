"""Writing of HDF5 and netCDF-4 files: one rank writes the descriptions of the arrays, all ranks write their data.

The library, whose wheels are serial, writes to `Changes`: a new file gets its name, and an old one its changes, when
all data are on the disk. The library also decides the locations of the data: a contiguous dataset has one run of
bytes. For a chunk it reserves space when it writes zeros of the right size.

netCDF-4 is HDF5 in which axes have dimension scales. Source: "netCDF-4 File Format" in the NetCDF User's Guide, which
Unidata publishes.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.errors import CheckpointError, DTypeError, ShapeError
from meshcomm.storage import files
from meshcomm.storage.changes import Changes, begin_journal, end_journal, recover
from meshcomm.storage.chunked import default_chunk
from meshcomm.storage.codecs import with_levels
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import ArrayToSave, groups_above, reading
from meshcomm.storage.formats.hdf5 import LIBRARY_ATTRIBUTES, MARK, contents_in
from meshcomm.storage.formats.hdf5_headers import pieces_of_header
from meshcomm.storage.formats.hdf5_inventory import inventory, is_ours, mark_of
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, Hdf5File, Hdf5Group, LowLevelObject, h5py_library
from meshcomm.storage.formats.hdf5_located import located
from meshcomm.storage.formats.hdf5_scales import Scales, is_scale, name_axes, transfer_scales
from meshcomm.storage.formats.snapshots import SnapshotWriter, chunks_of_snapshots
from meshcomm.storage.libraries import library
from meshcomm.storage.options import Codecs
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Chunking, Stored, in_one_file

MAX_NAME_LENGTH = 256
"""Characters of a name in netCDF."""

MAX_CHUNK_BYTES = 2**32 - 1
"""Bytes of a chunk, by the format."""

_NETCDF = frozenset(("f4", "f8", "S1", *(f"{kind}{n}" for kind in "iu" for n in (1, 2, 4, 8))))
"""The dtypes of elements in netCDF, by their names in NumPy."""

_PLUGINS = {"zstd": 32015, "blosc": 32001}
"""Filters that are registered with the HDF Group, and come with hdf5plugin."""

_ENCODERS = {1: "zlib", 2: "shuffle", 32015: "zstd", 32001: "blosc"}
"""The codecs of chunks, by the number of the filter."""


class Hdf5Writer(SnapshotWriter):
    """Writes a new HDF5 file, or adds datasets to an old one."""

    metadata_types: ClassVar[tuple[type, ...]] = (str, int, float, bool, list)
    netcdf: ClassVar[bool] = False
    """Whether all axes have dimension scales."""

    _h5_file: Hdf5File | None = None
    _journal: File | None = None
    _changes: Changes | None = None

    @property
    def _hdf5(self) -> Hdf5File:
        """The file as an object of the library."""
        assert self._h5_file is not None
        return self._h5_file

    @classmethod
    def holds(cls, value: object) -> bool:
        with suppress(TypeError, ValueError):
            _attribute(value, cls.netcdf)
            return True
        return False

    def would_lose(self) -> list[str]:
        if self.path.is_dir() or not self.path.stat().st_size:
            return []  # `begin` refuses a folder
        recover(self.path)
        with reading(self.path), h5py_library().File(self.path, "r") as h5_file:
            entries = list(inventory(h5_file))
            file_is_ours = is_ours(h5_file, entries)
        saved_names = {array.name for array in self.arrays}
        return [
            text
            for name, text, _ in entries
            if not (file_is_ours and (name in saved_names or not text.startswith("dataset")))
        ]

    def begin(self) -> tuple[Path, list[Stored]]:
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a folder, and cannot become a file")
        for array in self.arrays:
            self._check(array)
        self.remove_leftovers()
        if self.mode == "a" and self.path.exists():
            self._open()
        else:
            self._create()
        self._datasets: dict[str, Hdf5Dataset] = {}
        self._replaced_datasets: list[Hdf5Dataset] = []  # while these are open, the library does not reuse their space
        with files.at_files():
            self.count_snapshots()
            stored = [self._grow(array) if array.grows else self._lay_out(array) for array in self.arrays]
            name_all = self.netcdf or any(array.grows for array in self.arrays)
            scales = Scales(self._hdf5, new=self._journal is None)
            for array in sorted(self.arrays, key=_is_named_later):
                name_axes(scales, self._datasets[array.name], array, name_all=name_all)
                self._put_attributes(self._datasets[array.name], array.attributes, array.dtype)
            self._put_attributes(self._hdf5, self.metadata, None)
        ends = [segment.offset + segment.stop - segment.start for array in stored for segment in array.segments]
        self._file.sized(max([self._old_end, *ends]))
        return self.temporary_path if self._journal is None else self.path, stored

    def _create(self) -> None:
        files.create(self.temporary_path, self.path).close()
        self._file = files.for_writing(self.temporary_path)
        self.hold(self._file)
        self._old_end = 0
        self._changes = Changes(self._file, 0)
        with files.at_files():
            self._h5_file = h5py_library().File(self._changes, "w", track_order=self.netcdf)
        self._writes_mark = True

    def _open(self) -> None:
        self._journal = begin_journal(self.path)
        self._file = files.for_writing(self.path)
        self._locked.append(self._file)
        if not self._file.lock(shared=True):
            raise BlockingIOError(11, "another program has the file open for writing", str(self.path))
        if files.section(self._file, 0, min(3, self._file.size())) == b"CDF":
            raise CheckpointError(f"{self.path} is a classic netCDF file, which is only read: save to a new file")
        self._old_end = _end_of(self._file)
        self._changes = Changes(self._file, self._old_end)
        with reading(self.path):
            self._h5_file = h5py_library().File(self._changes, "r+")
        if self._hdf5.userblock_size:
            raise CheckpointError(f"{self.path} begins with a block of another program: nothing can be added to it")
        with reading(self.path):
            only_grows = not self.metadata and all(array.grows for array in self.arrays)
            if only_grows:
                self.count_snapshots()
                only_grows = self._count > 0
            self._writes_mark = not only_grows and is_ours(self._hdf5)  # snapshots do not change the mark
            if not only_grows:
                contents_in(self._hdf5, self._file)  # raises an error if the file could not be loaded afterwards

    def _check(self, array: ArrayToSave) -> None:
        if self.netcdf and array.dtype.newbyteorder("=").str[1:] not in _NETCDF:
            supported = "integers of 8 to 64 bits, floats of 32 and 64, and characters (S1)"
            raise DTypeError(f"a netCDF file holds {supported}, not {array.dtype} as {quote(array.name)} has")
        if self.netcdf and (array.name.strip() != array.name or len(array.name) > MAX_NAME_LENGTH):
            raise ValueError(f"no name of netCDF: {quote(array.name)}; it begins or ends with a space, or is too long")
        chunks = self._chunks_of(array)
        nbytes = prod(chunks or ()) * array.dtype.itemsize
        if chunks and nbytes > MAX_CHUNK_BYTES:
            raise ShapeError(
                f"chunks of {quote(array.name)} would have {nbytes} bytes; in HDF5 at most {MAX_CHUNK_BYTES}"
            )

    def _chunks_of(self, array: ArrayToSave) -> Shape | None:
        """Return the lengths of the chunks; None for a contiguous array."""
        if array.grows:
            return chunks_of_snapshots(array)
        if array.unlimited and not array.chunks:
            first_is_unlimited = array.dims is not None and array.dims[0] in array.unlimited
            row_chunk = chunks_of_snapshots(array._replace(shape=array.shape[1:]))
            return row_chunk if first_is_unlimited else default_chunk(array.shape, array.dtype.itemsize)
        if not array.unlimited and (not array.nbytes or not array.shape or not (array.chunks or array.codecs)):
            return None
        return array.chunks or default_chunk(array.shape, array.dtype.itemsize)

    def _lay_out(self, array: ArrayToSave) -> Stored:
        """Make the dataset, and return the location of its data."""
        chunks = self._chunks_of(array)
        old_dataset = self._existing_dataset(array.name)
        dataset = self._new_dataset(array, array.shape, chunks)
        self._link(array.name, dataset, old_dataset)
        if chunks is not None:
            return Stored(array.name, array.shape, array.dtype, (), chunks=Chunking(chunks, _codecs(dataset)))
        return in_one_file(array.name, array.shape, array.dtype, dataset.id.get_offset() or 0)

    def _new_dataset(self, array: ArrayToSave, shape: Shape, chunks: Shape | None) -> Hdf5Dataset:
        """Return a new dataset without a name."""
        h5py = h5py_library()
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks is None:
            properties.set_layout(h5py.h5d.CONTIGUOUS)
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        else:
            properties.set_chunk(chunks)
            for codec, level in with_levels(array.codecs):
                _set_filter(h5py, properties, codec, level)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        dims = (array.grows, *shape[1:]) if array.grows else array.dims or shape  # names of axes, or lengths
        unlimited = (array.grows, *array.unlimited)
        max_shape = tuple(h5py.h5s.UNLIMITED if dim in unlimited else n for dim, n in zip(dims, shape, strict=True))
        dataspace = h5py.h5s.create_simple(shape, max_shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
        h5_type = _h5_type(h5py, array.name, array.dtype)
        return h5py.Dataset(h5py.h5d.create(self._hdf5.id, None, h5_type, dataspace, properties))

    def old_snapshots(self, name: str) -> tuple[Shape, DType | None, bool] | None:
        dataset = self._existing_dataset(name)
        return None if dataset is None else (dataset.shape, dataset.dtype, dataset.maxshape[:1] == (None,))

    def _grow(self, array: ArrayToSave) -> Stored:
        """Reserve space for snapshots, and return the location of their data."""
        dataset = self._existing_dataset(array.name)
        if dataset is None:
            dataset = self._new_dataset(array, (0, *array.shape), self._chunks_of(array))
            self._link(array.name, dataset, None)
        self._datasets[array.name] = dataset
        dataset.resize(self._count + array.steps, axis=0)
        assert dataset.chunks is not None
        return self.lay_out_snapshots(array, Chunking(dataset.chunks, _codecs(dataset)))

    def _existing_dataset(self, name: str) -> Hdf5Dataset | None:
        """Return the dataset that the array *name* replaces, or None. ``CheckpointError`` for a group."""
        if self._journal is None:  # the file is new
            return None
        h5py = h5py_library()
        for group in groups_above(name):
            if group in self._hdf5 and not isinstance(self._hdf5[group], h5py.Group):
                raise CheckpointError(f"{self.path}: {quote(group)} is an array, so {quote(name)} cannot be in it")
        if self._hdf5.get(name, getlink=True) is None:
            return None
        member = self._hdf5.get(name)
        if isinstance(self._hdf5.get(name, getlink=True), h5py.HardLink) and isinstance(member, h5py.Dataset):
            return member
        kind = "a group" if isinstance(member, h5py.Group) else "a link"
        raise CheckpointError(f"{self.path}: {quote(name)} is {kind} there, and cannot become an array")

    def _link(self, name: str, dataset: Hdf5Dataset, old_dataset: Hdf5Dataset | None) -> None:
        """Give the dataset its name, and the scales of the old dataset with this name."""
        if old_dataset is not None:
            self._replaced_datasets.append(old_dataset)
            del self._hdf5[name]
        self._hdf5[name] = dataset
        self._datasets[name] = dataset
        if old_dataset is not None:
            transfer_scales(self._hdf5, old_dataset, dataset)

    def _put_attributes(
        self, owner: Hdf5Dataset | Hdf5Group, attributes: Mapping[str, object], dtype: DType | None
    ) -> None:
        for key, value in attributes.items():
            if key in LIBRARY_ATTRIBUTES:
                raise TypeError(f"HDF5 and netCDF keep the attribute {quote(key)} for themselves")
            if dtype is None and isinstance(value, Mapping):
                names = ", ".join(array.name for array in self.arrays)
                raise TypeError(f"the metadata {quote(key)} are a dict, as an array has them; the arrays are {names}")
            h5_value = _attribute(value, self.netcdf)
            if dtype is not None and key in ("_FillValue", "missing_value"):
                h5_value = np.asarray(h5_value, dtype).reshape(-1)
            try:
                owner.attrs[key] = h5_value
            except (TypeError, ValueError, OSError, RuntimeError) as error:
                raise TypeError(f"an HDF5 file cannot hold the metadata {quote(key)}: {error}") from None

    def reserve(self, name: str, index: Shape, nbytes: int, *, syncs: bool = True) -> tuple[str, int]:
        dataset_id = self._datasets[name].id
        lengths = dataset_id.get_create_plist().get_chunk()
        start = tuple(i * n for i, n in zip(index, lengths, strict=True))
        assert self._changes is not None
        if nbytes:
            self._changes.reserved = nbytes
            dataset_id.write_direct_chunk(start, np.zeros(nbytes, np.uint8))
            self._changes.reserved = 0
        return "", int(dataset_id.get_chunk_info_by_coord(start).byte_offset)

    def located(self, name: str, selection: Selection) -> Stored | None:
        """Return the locations of a *selection* of an array in the file; None if the library has to write it."""
        dataset = self._hdf5[name]
        with files.at_files():
            return located(dataset, name, selection)

    def write_box(self, name: str, index: tuple[slice, ...], block: Array) -> None:
        """Write a *block* to a box of an array, through the library: it is in the file after `commit`."""
        dataset = self._hdf5[name]
        with files.at_files():
            for axis, axis_slice in enumerate(index):  # a netCDF dataset may be shorter than its array
                if axis_slice.stop > dataset.shape[axis]:
                    dataset.resize(axis_slice.stop, axis=axis)
            dataset[index] = block

    def commit(self, pieces: object) -> None:
        h5_file, self._h5_file = self._h5_file, None
        assert h5_file is not None
        with files.at_files():
            if self._writes_mark:
                h5_file.attrs[MARK] = mark_of(h5_file)
            h5_file.flush()
            assert self._changes is not None
            self._changes.last = [
                span for dataset in self._grown_datasets() for span in pieces_of_header(dataset, self._changes)
            ]
            self._datasets, self._replaced_datasets = {}, []
            h5_file.close()
        self._changes.apply(self._journal)
        if self._journal is None:
            super().commit([])
            return
        journal, self._journal = self._journal, None
        with suppress(OSError):  # all data are on the disk: this save has not failed
            end_journal(self.path, journal)
        with suppress(OSError):
            self.release()

    def _grown_datasets(self) -> Iterator[Hdf5Dataset]:
        """Yield the datasets that have grown: snapshots, and then the scales of their first axis."""
        growing_datasets = [self._datasets[array.name] for array in self.arrays if array.grows]
        yield from sorted(growing_datasets, key=lambda dataset: dataset.is_scale)
        for dataset in growing_datasets:
            yield from dataset.dims[0].values()

    def abandon(self) -> None:
        h5_file, self._h5_file = self._h5_file, None
        self._datasets, self._replaced_datasets = {}, []
        with suppress(Exception):
            if h5_file is not None:
                h5_file.close()
        if self.mode == "w" or self._journal is None:
            super().abandon()
            return
        journal, self._journal = self._journal, None
        with suppress(OSError):
            if self._changes is None:  # another program has the file open, or it is not an HDF5 file
                end_journal(self.path, journal)
            elif not self._changes.begun:
                self._file.ended(self._old_end)
                end_journal(self.path, journal)
        journal.close()
        with suppress(OSError):
            self.release()


class NetcdfWriter(Hdf5Writer):
    """Writes a new netCDF-4 file, or adds variables to an old one."""

    netcdf: ClassVar[bool] = True


def _is_named_later(array: ArrayToSave) -> bool:
    """Return whether the axes of an array are named later than scales with several axes."""
    dims = array.dims or ()
    return len(dims) < 2 or not is_scale(array.name, dims)


def _h5_type(h5py: ModuleType, name: str, dtype: DType) -> LowLevelObject:
    """Return the type of the library for elements of *dtype*."""
    if dtype.isbuiltin == 2:  # of another package, such as bfloat16
        raise DTypeError(f"an HDF5 file cannot hold {dtype}, of array {quote(name)}: save it to a folder")
    try:
        h5_type = h5py.h5t.py_create(dtype, logical=True)
    except TypeError as error:
        raise DTypeError(f"an HDF5 file cannot hold {dtype}: {error}; save it to a folder") from None
    if h5_type.get_size() != dtype.itemsize:
        raise DTypeError(f"an HDF5 file has elements of another size for {dtype}; save it to a folder")
    return h5_type


def _set_filter(h5py: ModuleType, properties: LowLevelObject, codec: str, level: int) -> None:
    if codec == "shuffle":
        properties.set_shuffle()
    elif codec == "gzip":
        properties.set_deflate(level)
    else:
        if not h5py.h5z.filter_avail(_PLUGINS[codec]):
            library("hdf5plugin", f"{codec} in HDF5 files needs hdf5plugin")
        values = (level,) if codec == "zstd" else (0, 0, 0, 0, level, 1, 1)
        properties.set_filter(_PLUGINS[codec], 0, values)


def _codecs(dataset: Hdf5Dataset) -> Codecs:
    """Return the codecs of the chunks of a dataset. ``CheckpointError`` for an unknown filter."""
    properties = dataset.id.get_create_plist()
    codecs: list[tuple[str, int | None]] = []
    for number in range(properties.get_nfilters()):
        filter_id, _, values, name = properties.get_filter(number)
        if filter_id not in _ENCODERS:
            raise CheckpointError(
                f"chunks of {quote(dataset.name)} have the filter {quote(name)}, which is not known here"
            )
        codec = _ENCODERS[filter_id]
        levels = {"zlib": values[:1], "zstd": values[:1], "blosc": values[4:5]}.get(codec, ())
        codecs.append((codec, int(levels[0]) if len(levels) else None))
    return tuple(codecs)


def _attribute(value: object, netcdf: bool) -> object:
    """Return a value of metadata converted for the library. ``TypeError`` for dicts and None."""
    if isinstance(value, str):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError(f"an attribute has no lists of several lengths, as {quote(value)} has") from None
    if netcdf and array.ndim > 1:
        raise TypeError(f"an attribute of netCDF has one axis at most, not the shape {array.shape}")
    if array.dtype.kind in "US":
        return np.asarray(array.astype("U"), h5py_library().string_dtype())
    # The library of netCDF reads only those compound types that have a name.
    if array.dtype.names is not None and not netcdf:
        return array[()]
    if array.dtype.kind not in "biufc":
        raise TypeError(f"attributes are numbers, texts and lists of these, not {quote(value)}")
    return array.astype("i1") if netcdf and array.dtype.kind == "b" else array[()]


def _end_of(file: File) -> int:
    """Return the end of the file by its superblock: a save that was cut off may have left more bytes."""
    superblock = files.section(file, 0, min(file.size(), 64))
    if not superblock.startswith(b"\x89HDF\r\n\x1a\n") or len(superblock) < 48:
        return file.size()
    version = superblock[8]
    address_size, addresses_offset = (superblock[13], 24 + 4 * (version == 1)) if version < 2 else (superblock[9], 12)
    return min(
        file.size(),
        int.from_bytes(
            superblock[addresses_offset + 2 * address_size : addresses_offset + 3 * address_size], "little"
        ),
    )
