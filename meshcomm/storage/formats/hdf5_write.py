"""HDF5 and netCDF-4 files are written here: one rank makes what describes the arrays, all ranks write their data.

The library, whose wheels are serial, writes to `Changes`: a new file gets its name, and an old one its changes, when
all data are on the disk. It says where the data go: contiguous datasets have one run of bytes, and it finds room for a
chunk when it is given zeros of the right size.

netCDF-4 is HDF5 in which axes have dimension scales. Source: "netCDF-4 File Format" in the NetCDF User's Guide, which
Unidata publishes.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meshcomm._arguments import quote
from meshcomm._tuning import HDF5_CHUNK
from meshcomm._types import DType, Json, Shape
from meshcomm.errors import CheckpointError, DTypeError, ShapeError
from meshcomm.storage import files
from meshcomm.storage.changes import Changes, begin_journal, end_journal, recover
from meshcomm.storage.files import File
from meshcomm.storage.formats.base import Described, Writer, reading
from meshcomm.storage.formats.hdf5 import MARK, library
from meshcomm.storage.stored import Chunks, Stored, in_one_file

LARGEST_CHUNK = 2**32 - 1
"""Bytes of a chunk, by the format."""

_PLUGINS = {"zstd": 32015, "blosc": 32001}
"""Filters that are registered with the HDF Group, and come with hdf5plugin."""

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


class Hdf5Writer(Writer):
    """A new HDF5 file, or an old one that gets more datasets."""

    separator: ClassVar[str] = "/"
    adds: ClassVar[bool] = True
    has_attributes: ClassVar[bool] = True
    has_chunks: ClassVar[bool] = True
    netcdf: ClassVar[bool] = False
    """Whether all axes have dimension scales."""

    _made: Any = None
    _journal: File | None = None
    _changes: Changes

    @property
    def _adding(self) -> bool:
        return self.mode == "a" and self._journal is not None

    def would_lose(self) -> list[str]:
        if self.path.is_dir() or not self.path.stat().st_size:
            return []  # `begin` refuses a folder
        recover(self.path)
        with reading(self.path), library().File(self.path, "r") as found:
            things = list(_inventory(found))
            ours = _is_ours(found, things)
        saved = {array.name for array in self.arrays}
        return [text for name, text, _ in things if not (ours and (name in saved or not text.startswith("dataset")))]

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
        self._datasets: dict[str, Any] = {}
        self._replaced: list[Any] = []  # while these are open, the library leaves the room alone that they had
        with files.at_files():
            stored = [self._lay_out(array) for array in self.arrays]
            for array in self.arrays:
                self._name_axes(array)
                self._put_attributes(self._datasets[array.name], array.attributes, array.dtype)
            self._put_attributes(self._made, self.metadata, None)
        ends = [segment.offset + segment.stop - segment.start for each in stored for segment in each.segments]
        self._file.sized(max([self._end, *ends]))
        return self.aside if self._journal is None else self.path, stored

    def _create(self) -> None:
        with files.create(self.aside) as file:
            file.take_mode_of(self.path)
        self._file = files.for_writing(self.aside)
        self.hold(self._file)
        self._end = 0
        self._changes = Changes(self._file, 0)
        with files.at_files():
            self._made = library().File(self._changes, "w", track_order=self.netcdf)
        self._ours = True

    def _open(self) -> None:
        self._journal = begin_journal(self.path)
        self._file = files.for_writing(self.path)
        self._held.append(self._file)
        if not self._file.lock(shared=True):
            raise BlockingIOError(11, "another program has the file open for writing", str(self.path))
        self._end = _end_of(self._file)
        self._changes = Changes(self._file, self._end)
        with reading(self.path):
            self._made = library().File(self._changes, "r+")
        if self._made.userblock_size:
            raise CheckpointError(f"{self.path} begins with a block of another program: nothing can be added to it")
        with reading(self.path):
            self._ours = _is_ours(self._made, list(_inventory(self._made)))

    def _check(self, array: Described) -> None:
        kinds = "iuf" if self.netcdf else None
        if kinds and (
            array.dtype.kind not in kinds or array.dtype.itemsize not in (1, 2, 4, 8) or array.dtype == "f2"
        ):
            raise DTypeError(f"a netCDF file cannot hold {array.dtype}, of array {quote(array.name)}: save it to .h5")
        chunks = self._chunks_of(array)
        nbytes = prod(chunks or ()) * array.dtype.itemsize
        if chunks and nbytes > LARGEST_CHUNK:
            raise ShapeError(
                f"chunks of {quote(array.name)} would have {nbytes} bytes; in HDF5 at most {LARGEST_CHUNK}"
            )

    def _chunks_of(self, array: Described) -> Shape | None:
        """Return the lengths of the chunks; None for an array that is in one run."""
        if 0 in array.shape or not array.shape or not (array.chunks or array.codecs):
            return None
        return array.chunks or default_chunks(array.shape, array.dtype.itemsize, HDF5_CHUNK)

    def _lay_out(self, array: Described) -> Stored:
        """Make the dataset, and return where its data go."""
        h5py, chunks = library(), self._chunks_of(array)
        old = self._old(array.name)
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks is None:
            how.set_layout(h5py.h5d.CONTIGUOUS)
            how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        else:
            how.set_chunk(chunks)
            for codec, level in array.codecs:
                _set_filter(h5py, how, codec, level)
        how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple(array.shape) if array.shape else h5py.h5s.create(h5py.h5s.SCALAR)
        made = h5py.h5d.create(self._made.id, None, _kind(h5py, array.name, array.dtype), space, how)
        self._link(array.name, h5py.Dataset(made), old)
        if chunks is not None:
            codecs = tuple(("zlib" if codec == "gzip" else codec, level) for codec, level in array.codecs)
            return Stored(array.name, array.shape, array.dtype, (), chunks=Chunks(chunks, codecs))
        return in_one_file(array.name, array.shape, array.dtype, made.get_offset() or 0)

    def _old(self, name: str) -> Any:
        """Return the dataset that the array *name* replaces, or None. ``CheckpointError`` for a group."""
        h5py = library()
        keys = name.split("/")
        for above in ("/".join(keys[:n]) for n in range(1, len(keys))):
            if above in self._made and not isinstance(self._made[above], h5py.Group):
                raise CheckpointError(f"{self.path}: {quote(above)} is an array, so {quote(name)} cannot be in it")
        if self._made.get(name, getlink=True) is None:
            return None
        found = self._made.get(name)
        if isinstance(self._made.get(name, getlink=True), h5py.HardLink) and isinstance(found, h5py.Dataset):
            return found
        kind = "a group" if isinstance(found, h5py.Group) else "a link"
        raise CheckpointError(f"{self.path}: {quote(name)} is {kind} there, and cannot become an array")

    def _link(self, name: str, made: Any, old: Any) -> None:
        """Give the dataset its name, and what belongs to the one that had it."""
        if old is not None:
            self._replaced.append(old)
            for key in old.attrs:
                if key not in _OF_SCALES:
                    made.attrs.create(key, old.attrs[key], dtype=old.attrs.get_id(key).dtype)
            del self._made[name]
        self._made[name] = made
        self._datasets[name] = made
        if old is not None:
            _take_scales(self._made, old, made)

    def _name_axes(self, array: Described) -> None:
        """Attach a dimension scale to each axis that has a name."""
        made, dims = self._datasets[array.name], array.dims
        if dims is None and self.netcdf and not made.is_scale and not any(len(axis) for axis in made.dims):
            dims = tuple(f"axis_{axis}_of_{n}" for axis, n in enumerate(array.shape))
        if dims == (array.name.rpartition("/")[2],):
            self._make_scale(made, dims[0])
            return
        for axis, dim in enumerate(dims or ()):
            if self.netcdf and dim == array.name:
                raise ValueError(f"the array {quote(dim)} has several axes, so none of them can have its name")
            for old in made.dims[axis].values():
                made.dims[axis].detach_scale(old)
            made.dims[axis].attach_scale(self._scale(dim, array.shape[axis], array))

    def _scale(self, dim: str, length: int, array: Described) -> Any:
        """Return the dimension scale *dim*, which is made if it is not there."""
        group = array.name.rpartition("/")[0]
        name = f"{group}/{dim}" if group and f"{group}/{dim}" in self._made else dim
        found = self._made.get(name)
        if found is None:
            found = self._made.create_dataset(name, (length,), ">f4")
            self._make_scale(found, f"{_NO_VARIABLE}{length:10}")
        if not isinstance(found, library().Dataset) or found.shape != (length,):
            has = getattr(found, "shape", "no shape")
            axis = f"the axis {quote(dim)} of {quote(array.name)} has the length {length}"
            raise ShapeError(f"{self.path}: {axis}, but {quote(name)} there has {has}")
        if not found.is_scale:
            self._make_scale(found, dim)
        return found

    def _make_scale(self, found: Any, text: str) -> None:
        if not found.is_scale:
            found.make_scale(text)
            known = [each.attrs["_Netcdf4Dimid"] for each in self._scales()]
            found.attrs["_Netcdf4Dimid"] = np.int32(max(known, default=-1) + 1)

    def _scales(self) -> Iterator[Any]:
        for found in self._made.values():
            if isinstance(found, library().Dataset) and "_Netcdf4Dimid" in found.attrs:
                yield found

    def _put_attributes(self, made: Any, attributes: Mapping[str, Json], dtype: DType | None) -> None:
        for key, value in attributes.items():
            found = _attribute(value, self.netcdf)
            if dtype is not None and key in ("_FillValue", "missing_value"):
                found = np.asarray(found, dtype).reshape(-1)
            try:
                made.attrs[key] = found
            except (TypeError, ValueError, OSError, RuntimeError) as error:
                raise TypeError(f"an HDF5 file cannot hold the metadata {quote(key)}: {error}") from None

    def place(self, name: str, chunks: list[tuple[Shape, int]]) -> list[tuple[str, int]]:
        made, found = self._datasets[name], []
        zeros = memoryview(bytes(max((nbytes for _, nbytes in chunks), default=0)))
        with files.at_files():
            for index, nbytes in chunks:
                start = tuple(i * n for i, n in zip(index, made.chunks, strict=True))
                made.id.write_direct_chunk(start, zeros[:nbytes])
                found.append(("", made.id.get_chunk_info_by_coord(start).byte_offset))
        return found

    def commit(self, pieces: object) -> None:
        made, self._made = self._made, None
        with files.at_files():
            if self._ours:
                made.attrs[MARK] = _mark(list(_inventory(made)))
            self._datasets, self._replaced = {}, []
            made.close()
        self._changes.apply(self._journal)
        if self._journal is None:
            super().commit([])
            return
        end_journal(self.path, self._journal)
        self._journal = None
        self.release()

    def abandon(self) -> None:
        made, self._made = self._made, None
        self._datasets, self._replaced = {}, []
        with suppress(Exception):
            if made is not None:
                made.close()
        if self.mode == "w" or self._journal is None:
            super().abandon()
            return
        journal, self._journal = self._journal, None
        with suppress(OSError):
            if not self._changes.begun:
                self._file.ended(self._end)
                end_journal(self.path, journal)
        journal.close()
        with suppress(OSError):
            self.release()


class NetcdfWriter(Hdf5Writer):
    """A new netCDF-4 file, or an old one that gets more variables."""

    netcdf: ClassVar[bool] = True


_OF_SCALES = frozenset(("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS"))


def default_chunks(shape: Shape, itemsize: int, most: int) -> Shape:
    """Return lengths of chunks of at most *most* bytes: whole rows, if they are not too long.

    >>> default_chunks((100, 50), 8, 4000), default_chunks((3, 4, 1000), 8, 4000)
    ((10, 50), (1, 1, 500))
    """
    steps = list(shape)
    for axis in range(len(shape)):
        row = prod(steps[axis + 1 :]) * itemsize
        if row * steps[axis] <= most:
            break
        steps[axis] = max(1, most // row)
    return tuple(steps)


def _kind(h5py: Any, name: str, dtype: DType) -> Any:
    """Return the type of elements in the file."""
    if dtype.isbuiltin == 2:  # of another package, such as bfloat16
        raise DTypeError(f"an HDF5 file cannot hold {dtype}, of array {quote(name)}: save it to a folder")
    try:
        kind = h5py.h5t.py_create(dtype, logical=True)
    except TypeError as error:
        raise DTypeError(f"an HDF5 file cannot hold {dtype}: {error}; save it to a folder") from None
    if kind.get_size() != dtype.itemsize:
        raise DTypeError(f"an HDF5 file has elements of another size for {dtype}; save it to a folder")
    return kind


def _set_filter(h5py: Any, how: Any, codec: str, level: int | None) -> None:
    if codec == "shuffle":
        how.set_shuffle()
    elif codec == "gzip":
        how.set_deflate(4 if level is None else level)
    else:
        if not h5py.h5z.filter_avail(_PLUGINS[codec]):
            try:
                __import__("hdf5plugin")
            except ImportError:
                raise ImportError(f"{codec} in HDF5 files needs hdf5plugin: pip install hdf5plugin") from None
        values = (
            (3 if level is None else level,) if codec == "zstd" else (0, 0, 0, 0, 5 if level is None else level, 1, 1)
        )
        how.set_filter(_PLUGINS[codec], 0, values)


def _attribute(value: Any, netcdf: bool) -> Any:
    """Return what the library takes for a value of metadata; ``TypeError`` for dicts and None."""
    if value is None or isinstance(value, Mapping):
        raise TypeError(f"attributes are numbers, texts and lists of these, not {quote(value)}")
    if isinstance(value, str):
        return value
    found = np.asarray(value)
    if found.dtype.kind in "US":
        return np.asarray(found.astype("U"), library().string_dtype())
    if found.dtype.kind not in "biufc":
        raise TypeError(f"attributes are numbers, texts and lists of these, not {quote(value)}")
    return found.astype("i1") if netcdf and found.dtype.kind == "b" else found[()]


def _take_scales(file: Any, old: Any, made: Any) -> None:
    """Attach the scales of *old* to *made*, which replaces it; where *old* is a scale of others, so is *made*."""
    for axis, scales in enumerate(old.dims):
        for scale in scales.values():
            old.dims[axis].detach_scale(scale)
            if made.shape[axis : axis + 1] == scale.shape:
                made.dims[axis].attach_scale(scale)
    if not old.is_scale:
        return
    users = [(file[reference], int(axis)) for reference, axis in old.attrs.get("REFERENCE_LIST", ())]
    name = old.attrs["NAME"]
    made.make_scale(name if isinstance(name, str) else name.decode())
    for user, axis in users:
        user.dims[axis].detach_scale(old)
        user.dims[axis].attach_scale(made)


def _end_of(file: File) -> int:
    """Return where the file ends, as its superblock says: a save that was cut off may have left more."""
    head = files.section(file, 0, min(file.size(), 64))
    if not head.startswith(b"\x89HDF\r\n\x1a\n") or len(head) < 48:
        return file.size()
    version = head[8]
    size, first = (head[13], 24 + 4 * (version == 1)) if version < 2 else (head[9], 12)
    return min(file.size(), int.from_bytes(head[first + 2 * size : first + 3 * size], "little"))


# -- what is in a file ------------------------------------------------------------------------------------------------


def _inventory(file: Any) -> Iterator[tuple[str, str, str]]:
    """Yield all that is in a file: the name, what it is for people, and what tells it from others."""
    h5py, seen = library(), set()

    def attributes(name: str, found: Any) -> Iterator[tuple[str, str, str]]:
        for key in found.attrs:
            if key not in _OF_SCALES and key not in (MARK, "_Netcdf4Dimid"):
                of = f" of {name}" if name else ""
                yield f"{name}@{key}", f"attribute {quote(key)}{of}", repr(found.attrs.get(key))

    def inside(group: Any, above: str) -> Iterator[tuple[str, str, str]]:
        for key in group:
            name = f"{above}{key}"
            found = group.get(key) if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
            if found is None:
                yield name, f"link {quote(name)}", ""
                continue
            yield from attributes(name, found)
            if isinstance(found, h5py.Dataset):
                kind = "dimension" if _is_no_variable(found) else "dataset"
                yield name, f"{kind} {quote(name)} {found.shape} {found.dtype}", ""
            elif isinstance(found, h5py.Group):
                address = h5py.h5o.get_info(found.id).addr
                if address not in seen:
                    seen.add(address)
                    if not len(found):
                        yield name, f"group {quote(name)}", ""
                    yield from inside(found, f"{name}/")
            else:
                yield name, f"type {quote(name)}", ""

    yield from attributes("", file)
    yield from inside(file, "")


def _is_no_variable(found: Any) -> bool:
    """Return whether the dataset is a dimension only."""
    name = found.attrs.get("NAME", "")
    return (name if isinstance(name, bytes) else str(name).encode()).startswith(_NO_VARIABLE.encode())


def _mark(things: list[tuple[str, str, str]]) -> str:
    """Return the mark of a file that holds these things, all written by meshcomm."""
    from importlib.metadata import version  # here, as its import takes long

    crc = zlib.crc32(repr(sorted(things)).encode())
    return f"version=2,meshcomm={version('meshcomm')},content={crc:08x},hdf5={library().version.hdf5_version}"


def _is_ours(file: Any, things: list[tuple[str, str, str]]) -> bool:
    """Return whether meshcomm wrote all that is in a file."""
    mark = file.attrs.get(MARK, "")
    mark = mark.decode(errors="replace") if isinstance(mark, bytes) else str(mark)
    content = f",content={zlib.crc32(repr(sorted(things)).encode()):08x}"
    return "meshcomm=" in mark and content in mark
