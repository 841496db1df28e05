"""Reading of HDF5 files, through the library h5py.

A contiguous dataset has its bytes in one run of the file, and the library says where. Other datasets, in chunks or
compressed, are read through the library.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from types import ModuleType

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.errors import CheckpointError
from meshcomm.storage import files
from meshcomm.storage.changes import recover
from meshcomm.storage.formats.base import (
    TEXTS,
    FileContents,
    Sliced,
    checked_dtype,
    checked_shape,
    reading,
    refuse_many_chunks,
    refuse_overlaps,
)
from meshcomm.storage.formats.hdf5_library import (
    Hdf5Axis,
    Hdf5Dataset,
    Hdf5File,
    Hdf5Group,
    Hdf5Object,
    LowLevelObject,
    h5py_library,
)
from meshcomm.storage.libraries import library
from meshcomm.storage.stored import Stored, in_one_file
from meshcomm.storage.values import attribute

MARK = "_NCProperties"
"""The attribute that says which program wrote a file; netCDF's libraries do not show it."""
NETCDF = (".nc", ".nc4")
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
SCALE_ATTRIBUTES = frozenset(
    ("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid")
)
"""Attributes that attach dimension scales to axes."""
LIBRARY_ATTRIBUTES = SCALE_ATTRIBUTES | {"_Netcdf4Coordinates", MARK, "_nc3_strict"}
"""Attributes that libraries keep for themselves."""
_DEFAULT_FILLS = {
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
    "i1": -127,
    "u1": 2**8 - 1,
    **{f"i{n}": 1 - 2 ** (8 * n - 1) for n in (2, 4)},
    **{f"u{n}": 2 ** (8 * n) - 1 for n in (2, 4)},
    "i8": 2 - 2**63,
    "u8": 2**64 - 2,
}
"""The fill value of netCDF by dtype, for elements that were not written; a file may have another one. Source: netcdf.h
of Unidata."""
MAX_LEVELS, MAX_NAMES = 100, 2**20
_MAX_EXTRA_NAMES, _BYTES_PER_EXTRA_NAME = 500, 64
"""The most additional names of objects in a small file, and bytes of the file for which it may have one more. 30
nested groups with two names each would have 2**30 members."""
_CACHE_BYTES, _CACHE_SLOTS = 2**20, 521
"""Bytes and chunks of a dataset that the library caches decompressed by default."""
_UNEQUAL_SIZES = "its elements have different sizes"


def contents(path: Path) -> FileContents:
    """Return the contents of the HDF5 file. ``CheckpointError`` for another file."""
    h5py = h5py_library()
    recover(path)
    with files.for_reading(path) as file, reading(path), h5py.File(path, "r") as h5_file:
        return contents_in(h5_file, file)


def contents_in(h5_file: Hdf5File, file: files.File) -> FileContents:
    """Return the contents of *file*, opened by the library as *h5_file*. ``CheckpointError`` if it is damaged."""
    path, walk = file.path, _FileWalk(h5py_library(), file.path, file.size(), file.stored())
    metadata = walk.attributes_of(h5_file)
    for name, member in walk.members(h5_file, "", ()):
        walk.add_member(name, member)
    walk.extend_unlimited()
    refuse_overlaps({name: walk.arrays[name] for name in walk.first_names.values()}, path)
    return FileContents(
        walk.arrays,
        metadata,
        attributes={name: values for name, values in walk.attributes.items() if values},
        dims=walk.named_dims(),
        left_out=walk.left_out,
        texts=walk.texts,
        links=walk.links,
        unlimited=tuple({last_key(name): None for name in walk.unlimited}),
    )


class _FileWalk:
    """Collects the contents of a file: each dataset under all its names."""

    def __init__(self, h5py: ModuleType, path: Path, size: int, stored_bytes: int) -> None:
        self._h5py, self._path, self._size = h5py, path, size
        self.arrays: dict[str, Stored] = {}
        self.attributes: dict[str, dict[str, object]] = {}
        self.left_out: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.texts: dict[str, Shape] = {}
        self._dims: dict[str, tuple[str | None, ...]] = {}
        self._coordinates: dict[str, list[int]] = {}  # numbers of dimensions, of scales with more than one axis
        self._dimensions: dict[int, str] = {}
        self._max_extra_names = _MAX_EXTRA_NAMES + stored_bytes // _BYTES_PER_EXTRA_NAME
        self._addresses: set[tuple[int, int]] = set()
        self.unlimited: dict[str, int] = {}  # the lengths of dimensions that may grow, by the names of their scales
        self.first_names: dict[tuple[int, int], str] = {}  # of arrays, by their addresses
        self._name_count = 0

    def members(
        self, group: Hdf5Group, prefix: str, parents: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, Hdf5Dataset | Hdf5Group]]:
        """Yield path and object of each hard link below *group*. A group within itself is not entered again."""
        address = self._address(group)
        if address in parents:
            return
        if len(parents) > MAX_LEVELS:
            raise CheckpointError(f"{self._path} has more than {MAX_LEVELS} levels at {quote(prefix)}")
        for key in list(group):
            name = prefix + _text(key, self._path)
            link = group.get(key, getlink=True)
            if isinstance(link, self._h5py.SoftLink | self._h5py.ExternalLink):
                file_text = f" of {quote(link.filename)}" if isinstance(link, self._h5py.ExternalLink) else ""
                self.links[name] = f"it is a link, to {quote(link.path)}{file_text}: load that"
            if isinstance(link, self._h5py.HardLink):
                self._name_count += 1
                if self._name_count > MAX_NAMES:
                    raise CheckpointError(f"{self._path} has more than {MAX_NAMES} names")
                member = group[key]
                self._addresses.add(self._address(member))
                if self._name_count - len(self._addresses) > self._max_extra_names:
                    raise CheckpointError(f"{self._path} has more than {self._max_extra_names} names for what has one")
                yield name, member
                if isinstance(member, self._h5py.Group):
                    yield from self.members(member, f"{name}/", (*parents, address))

    def add_member(self, name: str, member: Hdf5Dataset | Hdf5Group) -> None:
        """Add a dataset, or the reason why it cannot be loaded."""
        h5py = self._h5py
        if isinstance(member, h5py.Datatype):
            self.left_out[name] = "it is a type, and holds no elements"
        if not isinstance(member, h5py.Dataset):
            return
        keys = set(member.attrs)
        is_scale = "CLASS" in keys and attribute(member.attrs["CLASS"]) == "DIMENSION_SCALE"
        if is_scale and "_Netcdf4Dimid" in keys:
            self._dimensions[int(member.attrs["_Netcdf4Dimid"])] = name
        if is_scale and member.maxshape and member.maxshape[0] is None:
            self.unlimited[name] = member.shape[0]
        if is_scale and "NAME" in keys and str(attribute(member.attrs["NAME"])).startswith(NO_VARIABLE):
            return
        reason = self._why_not(member)
        if reason:
            self.left_out[name] = reason
        if reason == TEXTS:
            self.texts[name] = checked_shape(member.shape, f"{self._path}: dataset {quote(name)}", 16)
        elif reason:
            return
        else:
            self._add(name, member)
        self.attributes[name] = self.attributes_of(member)
        if "_Netcdf4Coordinates" in keys:
            self._coordinates[name] = np.asarray(member.attrs["_Netcdf4Coordinates"]).ravel().tolist()
        elif has_scales(member):
            scales = map(scales_of, member.dims)
            self._dims[name] = tuple(
                axis_scales[0].name.lstrip("/") if axis_scales else dim.label or None
                for dim, axis_scales in zip(member.dims, scales, strict=True)
            )
        elif is_scale and member.ndim == 1:
            self._dims[name] = (name,)

    def _why_not(self, dataset: Hdf5Dataset) -> str:
        """Return the reason why a dataset cannot be loaded; "" if it can."""
        h5py = self._h5py
        try:
            dtype = dataset.dtype
        except TypeError as error:
            return f"NumPy has no such elements: {error}"
        if dataset.shape is None:
            return "it has no elements and no shape"
        for source in dataset.virtual_sources() if dataset.is_virtual else ():
            reason = self._why_not_source(dataset.file, source.file_name, source.dset_name)
            if reason:
                return reason
        other_files = [file for file, *_ in dataset.external or ()]
        if other_files:
            return f"it has its data in other files: {quote(other_files[0])}"
        if dtype.hasobject:
            has_texts = h5py.check_string_dtype(dtype) is not None
            has_references = h5py.check_ref_dtype(dtype) is not None
            return TEXTS if has_texts else "it holds references" if has_references else _UNEQUAL_SIZES
        return ""

    def _why_not_source(self, group: Hdf5Group, file: str, name: str) -> str:
        """Return why a virtual dataset must not have elements of the dataset *name* of a *file*; "" if it may.

        The library would follow links to other files, and would not end for virtual datasets that contain themselves.
        """
        h5py = self._h5py
        if file != ".":
            return f"it has its data in other files: {quote(file)}"
        prefix = f"it has its data in {quote(name)}, which is"
        if "%" in name:
            return f"{prefix} a pattern of names"
        for key in (key for key in name.split("/") if key not in ("", ".")):
            if not isinstance(group, h5py.Group):
                return f"{prefix} in a dataset"
            try:
                link = group.get(key, getlink=True)
            except TypeError:
                return f"{prefix} behind a link of another program"
            if link is None:
                return ""  # a missing dataset has the fill value
            if not isinstance(link, h5py.HardLink):
                return f"{prefix} behind a link"
            group = group[key]
        if not isinstance(group, h5py.Dataset):
            return f"{prefix} no dataset"
        reason = f"{prefix} virtual itself" if group.is_virtual else self._why_not(group)
        return "" if reason == TEXTS else reason

    def _add(self, name: str, dataset: Hdf5Dataset) -> None:
        subject = f"{self._path}: dataset {quote(name)}"
        element_dtype, inner_shape = dataset.dtype.subdtype or (dataset.dtype, ())
        dtype = checked_dtype(element_dtype, subject)
        shape, offset = checked_shape((*dataset.shape, *inner_shape), subject, dtype.itemsize), dataset.id.get_offset()
        stored = in_one_file(name, shape, dtype, offset or 0)
        if dataset.chunks is not None:
            refuse_many_chunks(subject, dataset.shape, dataset.chunks, dtype.itemsize, dataset.id.get_storage_size())
        is_plain = dataset.chunks is None and dataset.compression is None and has_type_of(dataset, dataset.dtype)
        if is_plain and offset is not None and offset + stored.nbytes > self._size:
            raise CheckpointError(f"{subject} ends at byte {offset + stored.nbytes}; the file has {self._size}")
        if not is_plain or (offset is None and stored.nbytes):
            stored = stored.by_library((*(dataset.chunks or (1, *dataset.shape[1:])), *inner_shape)[: len(shape)])
        self.arrays[name] = stored
        self.first_names.setdefault(self._address(dataset), name)

    def attributes_of(self, owner: Hdf5Object) -> dict[str, object]:
        """Return the attributes of the file, or of a dataset, without those of libraries."""
        attributes = {}
        for key in list(owner.attrs):  # h5py holds its lock until the iteration ends
            name = _text(key, self._path)
            if name not in LIBRARY_ATTRIBUTES:
                with suppress(TypeError):  # NumPy cannot hold the value, or it refers to something in this file
                    attributes[name] = self._value(owner.attrs[key])
        return attributes

    def _value(self, value: LowLevelObject) -> object:
        if isinstance(value, self._h5py.Empty):
            return ""
        is_single = isinstance(value, np.ndarray) and value.shape == (1,) and is_netcdf(self._path)
        first_value = value.flat[0] if isinstance(value, np.ndarray) and value.size else value
        if isinstance(first_value, self._h5py.Reference):
            raise TypeError("it refers to something in this file")
        return attribute(value[0] if is_single else value)  # netCDF stores a number as an array of one

    def _address(self, item: Hdf5Object) -> tuple[int, int]:
        info = self._h5py.h5o.get_info(item.id)
        return info.fileno, info.addr

    def extend_unlimited(self) -> None:
        """Extend arrays of netCDF along unlimited dimensions to their length: the rest has the fill value."""
        for name, numbers in self._coordinates.items():
            self._dims[name] = tuple(map(self._dimensions.get, numbers))
        shapes = {name: stored.shape for name, stored in self.arrays.items()} | self.texts
        axes = [(dim, n) for name, dims in self._dims.items() for dim, n in zip(dims, shapes[name], strict=False)]
        for dim, n in axes:
            if dim in self.unlimited:
                self.unlimited[dim] = max(n, self.unlimited[dim])
        for name, dims in self._dims.items() if is_netcdf(self._path) else ():
            lengths = [self.unlimited.get(str(dim), 0) for dim in dims]
            if len(lengths) != len(shapes[name]):
                continue  # these are no names of its axes
            shape = tuple(map(max, shapes[name], lengths))
            if name in self.texts:
                self.texts[name] = checked_shape(shape, f"{self._path}: dataset {quote(name)}", 16)
            elif shape != shapes[name]:
                stored = self.arrays[name]
                checked_shape(shape, f"{self._path}: dataset {quote(name)}", stored.dtype.itemsize)
                self.arrays[name] = stored._replace(shape=shape, segments=())

    def named_dims(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the axes of each array that has some; an axis without a name has ""."""
        shapes = {name: stored.shape for name, stored in self.arrays.items()} | self.texts
        return {
            name: tuple(last_key(dim or "") for dim in dims)
            for name, dims in self._dims.items()
            if any(dims) and len(dims) == len(shapes[name])
        }


def has_scales(dataset: Hdf5Dataset) -> bool:
    """Return whether axes of a dataset have names or scales, in attributes of the types that HDF5 writes.

    With attributes of other types, the library would crash the process when it looks for scales.
    """
    h5py, are_valid = h5py_library(), []
    for key, kind in (("DIMENSION_LIST", "references"), ("DIMENSION_LABELS", "texts")):
        if key in dataset.attrs:
            attr = dataset.attrs.get_id(key)
            item_dtype = h5py.check_vlen_dtype(attr.dtype) if kind == "references" else None
            has_texts = kind == "texts" and h5py.check_string_dtype(attr.dtype) is not None
            has_references = item_dtype is not None and h5py.check_ref_dtype(np.dtype(item_dtype)) is not None
            are_valid.append((has_texts or has_references) and attr.shape == (dataset.ndim,))
    return bool(are_valid) and all(are_valid)


def scales_of(axis: Hdf5Axis) -> list[Hdf5Dataset]:
    """Return the scales of an axis that have a name; none if one of them was removed: HDF5 keeps references to it."""
    with suppress(RuntimeError, KeyError):
        return [scale for scale in axis.values() if scale.name and scale.is_scale]
    return []


def is_netcdf(path: Path) -> bool:
    """Return whether a path has the suffix of netCDF."""
    return path.suffix.lower() in NETCDF


def last_key(name: str) -> str:
    """Return the name within the group."""
    return name.rpartition("/")[2]


def has_type_of(dataset: Hdf5Dataset, dtype: DType) -> bool:
    """Return whether elements of the dataset have the bytes of *dtype*. h5py converts others, such as bfloat16."""
    try:
        return bool(dataset.id.get_type() == h5py_library().h5t.py_create(dtype, logical=True))
    except TypeError:
        return False


class _FilledDataset:
    """A dataset of netCDF that is longer than its written part; the rest has the fill value."""

    def __init__(self, dataset: Hdf5Dataset, shape: Shape) -> None:
        self._dataset, self.shape, self.dtype = dataset, shape, dataset.dtype
        properties = dataset.id.get_create_plist()
        is_set = properties.fill_value_defined() == h5py_library().h5d.FILL_VALUE_USER_DEFINED
        fill = dataset.fillvalue if is_set else _DEFAULT_FILLS.get(self.dtype.str[1:], np.zeros((), self.dtype)[()])
        self._fill = np.asarray(dataset.attrs.get("_FillValue", fill)).ravel()[0]

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        indices = [range(*item.indices(n)) for item, n in zip(index, self.shape, strict=True)]
        block = np.full([len(axis_indices) for axis_indices in indices], self._fill, self.dtype)
        written_indices = tuple(
            axis_indices[: bisect_left(axis_indices, n)]
            for axis_indices, n in zip(indices, self._dataset.shape, strict=True)
        )
        if all(map(len, written_indices)):
            source = tuple(
                slice(axis_indices[0], axis_indices[-1] + 1, axis_indices.step) for axis_indices in written_indices
            )
            block[tuple(slice(len(axis_indices)) for axis_indices in written_indices)] = self._dataset[source]
        return block


def open_dataset(path: Path, name: str, shape: Shape) -> tuple[Sliced, Hdf5File]:
    """Return the dataset *name* of this *shape*, and its file, which the caller has to close."""
    h5py = h5py_library()
    with reading(path):
        h5_file = h5py.File(path, "r")
        dataset = h5_file[name]
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(k)[0] for k in range(properties.get_nfilters()) if dataset.chunks]
        if not all(map(h5py.h5z.filter_avail, filters)):
            library("hdf5plugin", "chunks of this HDF5 dataset need filters")
        nbytes = prod(dataset.chunks or ()) * dataset.dtype.itemsize
        # A chunk that does not fit would be decompressed anew for each part of it.
        if filters and nbytes > _CACHE_BYTES:
            del dataset, properties
            access_properties = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
            access_properties.set_chunk_cache(_CACHE_SLOTS, nbytes, 1.0)
            dataset = h5py.Dataset(h5py.h5d.open(h5_file.id, name.encode(), access_properties))
        return dataset if dataset.shape == shape or dataset.dtype.subdtype else _FilledDataset(dataset, shape), h5_file


def texts(path: Path, name: str, shape: Shape) -> Array:
    """Return the texts of a dataset of texts of any length, as objects of class str. Unwritten texts are empty."""
    with reading(path), h5py_library().File(path, "r") as h5_file:
        written_texts: Array = np.asarray(h5_file[name].asstr(errors="replace")[...], object)
        result = np.full(shape, "", object)
        # A 0-d array would become an element of the result.
        result[tuple(map(slice, written_texts.shape))] = written_texts if written_texts.ndim else written_texts[()]
        return result


def _text(name: object, path: Path) -> str:
    """Return *name*; ``CheckpointError`` if it is bytes, which h5py could not decode."""
    if isinstance(name, str):
        return name
    raise CheckpointError(f"{path}: the name {quote(name)} is no text in UTF-8")
