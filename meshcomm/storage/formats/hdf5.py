"""HDF5 files are read here, through the library h5py.

A dataset that is contiguous has its bytes in one run of the file, and the library says where. Others, in chunks or
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
    Low,
    h5py_library,
)
from meshcomm.storage.libraries import library
from meshcomm.storage.stored import Stored, in_one_file
from meshcomm.storage.values import attribute

MARK = "_NCProperties"
"""The attribute that says which program wrote a file; netCDF's libraries do not show it."""
NETCDF = (".nc", ".nc4")
NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
OF_SCALES = frozenset(("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid"))
"""Attributes that say which axes have which dimension scales."""
OF_LIBRARIES = OF_SCALES | {"_Netcdf4Coordinates", MARK, "_nc3_strict"}
"""Attributes that libraries keep for themselves."""
_FILLS = {
    "f4": 9.969209968386869e36,
    "f8": 9.969209968386869e36,
    "i1": -127,
    "u1": 2**8 - 1,
    **{f"i{n}": 1 - 2 ** (8 * n - 1) for n in (2, 4)},
    **{f"u{n}": 2 ** (8 * n) - 1 for n in (2, 4)},
    "i8": 2 - 2**63,
    "u8": 2**64 - 2,
}
"""What netCDF has where nothing was written, by dtype, unless the file says it. Source: netcdf.h of Unidata."""
MAX_LEVELS, MAX_NAMES = 100, 2**20
_NAMES_AGAIN, _BYTES_OF_NAME = 500, 64
"""Names of what has another name, in a small file, and one more for so many bytes. 30 groups in each other, each with
two names, have 2**30 members."""
_CACHE, _SLOTS = 2**20, 521
"""Bytes and chunks of a dataset that the library keeps decompressed by default."""
_UNEQUAL = "its elements have different sizes"


def contents(path: Path) -> FileContents:
    """Return what the HDF5 file holds. ``CheckpointError`` for another file."""
    h5py = h5py_library()
    recover(path)
    with files.for_reading(path) as file, reading(path), h5py.File(path, "r") as opened:
        return contents_in(opened, file)


def contents_in(opened: Hdf5File, file: files.File) -> FileContents:
    """Return what a *file* holds that the library has *opened*. ``CheckpointError`` if it cannot be loaded."""
    path, walk = file.path, _Walk(h5py_library(), file.path, file.size(), file.stored())
    metadata = walk.attributes_of(opened)
    for name, member in walk.members(opened, "", ()):
        walk.see(name, member)
    walk.lengthen()
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


class _Walk:
    """What is found in a file: a dataset under each of its names."""

    def __init__(self, h5py: ModuleType, path: Path, size: int, stored: int) -> None:
        self._h5py, self._path, self._size = h5py, path, size
        self.arrays: dict[str, Stored] = {}
        self.attributes: dict[str, dict[str, object]] = {}
        self.left_out: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.texts: dict[str, Shape] = {}
        self._dims: dict[str, tuple[str | None, ...]] = {}
        self._coordinates: dict[str, list[int]] = {}  # numbers of dimensions, of scales with more than one axis
        self._dimensions: dict[int, str] = {}
        self._most_again = _NAMES_AGAIN + stored // _BYTES_OF_NAME
        self._seen: set[tuple[int, int]] = set()
        self.unlimited: dict[str, int] = {}  # the lengths of dimensions that may grow, by the names of their scales
        self.first_names: dict[tuple[int, int], str] = {}  # of arrays, by their addresses
        self._count = 0

    def members(
        self, group: Hdf5Group, prefix: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, Hdf5Dataset | Hdf5Group]]:
        """Yield what hard links lead to below *group*, by path. A group within itself is not entered again."""
        address = self._address(group)
        if address in above:
            return
        if len(above) > MAX_LEVELS:
            raise CheckpointError(f"{self._path} has more than {MAX_LEVELS} levels at {quote(prefix)}")
        for key in list(group):
            name = prefix + _text(key, self._path)
            link = group.get(key, getlink=True)
            if isinstance(link, self._h5py.SoftLink | self._h5py.ExternalLink):
                where = f" of {quote(link.filename)}" if isinstance(link, self._h5py.ExternalLink) else ""
                self.links[name] = f"it is a link, to {quote(link.path)}{where}: load that"
            if isinstance(link, self._h5py.HardLink):
                self._count += 1
                if self._count > MAX_NAMES:
                    raise CheckpointError(f"{self._path} has more than {MAX_NAMES} names")
                member = group[key]
                self._seen.add(self._address(member))
                if self._count - len(self._seen) > self._most_again:
                    raise CheckpointError(f"{self._path} has more than {self._most_again} names for what has one")
                yield name, member
                if isinstance(member, self._h5py.Group):
                    yield from self.members(member, f"{name}/", (*above, address))

    def see(self, name: str, member: Hdf5Dataset | Hdf5Group) -> None:
        """Note a dataset, or why it cannot be loaded."""
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
        why = self._why_not(member)
        if why:
            self.left_out[name] = why
        if why == TEXTS:
            self.texts[name] = checked_shape(member.shape, f"{self._path}: dataset {quote(name)}", 16)
        elif why:
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
        """Return why a dataset cannot be loaded; "" if it can."""
        h5py = self._h5py
        try:
            dtype = dataset.dtype
        except TypeError as error:
            return f"NumPy has no such elements: {error}"
        if dataset.shape is None:
            return "it has no elements and no shape"
        for source in dataset.virtual_sources() if dataset.is_virtual else ():
            why = self._why_not_source(dataset.file, source.file_name, source.dset_name)
            if why:
                return why
        others = [file for file, *_ in dataset.external or ()]
        if others:
            return f"it has its data in other files: {quote(others[0])}"
        if dtype.hasobject:
            text = h5py.check_string_dtype(dtype) is not None
            refers = h5py.check_ref_dtype(dtype) is not None
            return TEXTS if text else "it holds references" if refers else _UNEQUAL
        return ""

    def _why_not_source(self, group: Hdf5Group, file: str, name: str) -> str:
        """Return why a virtual dataset cannot have elements of the dataset *name* of a *file*; "" if it can.

        The library would follow links to other files, and virtual datasets that are made of themselves for ever.
        """
        h5py = self._h5py
        if file != ".":
            return f"it has its data in other files: {quote(file)}"
        what = f"it has its data in {quote(name)}, which is"
        if "%" in name:
            return f"{what} a pattern of names"
        for key in (key for key in name.split("/") if key not in ("", ".")):
            if not isinstance(group, h5py.Group):
                return f"{what} in a dataset"
            try:
                link = group.get(key, getlink=True)
            except TypeError:
                return f"{what} behind a link of another program"
            if link is None:
                return ""  # what is not there has the fill value
            if not isinstance(link, h5py.HardLink):
                return f"{what} behind a link"
            group = group[key]
        if not isinstance(group, h5py.Dataset):
            return f"{what} no dataset"
        why = f"{what} virtual itself" if group.is_virtual else self._why_not(group)
        return "" if why == TEXTS else why

    def _add(self, name: str, dataset: Hdf5Dataset) -> None:
        what = f"{self._path}: dataset {quote(name)}"
        kind, inner = dataset.dtype.subdtype or (dataset.dtype, ())
        dtype = checked_dtype(kind, what)
        shape, offset = checked_shape((*dataset.shape, *inner), what, dtype.itemsize), dataset.id.get_offset()
        stored = in_one_file(name, shape, dtype, offset or 0)
        if dataset.chunks is not None:
            refuse_many_chunks(what, dataset.shape, dataset.chunks, dtype.itemsize, dataset.id.get_storage_size())
        plain = dataset.chunks is None and dataset.compression is None and has_type_of(dataset, dataset.dtype)
        if plain and offset is not None and offset + stored.nbytes > self._size:
            raise CheckpointError(f"{what} ends at byte {offset + stored.nbytes}; the file has {self._size}")
        if not plain or (offset is None and stored.nbytes):
            stored = stored.by_library((*(dataset.chunks or (1, *dataset.shape[1:])), *inner)[: len(shape)])
        self.arrays[name] = stored
        self.first_names.setdefault(self._address(dataset), name)

    def attributes_of(self, owner: Hdf5Object) -> dict[str, object]:
        """Return the attributes of the file, or of a dataset, without those of libraries."""
        attributes = {}
        for key in list(owner.attrs):  # h5py holds its lock until this has come to its end
            name = _text(key, self._path)
            if name not in OF_LIBRARIES:
                with suppress(TypeError):  # NumPy has no such values, or no other file has them
                    attributes[name] = self._value(owner.attrs[key])
        return attributes

    def _value(self, value: Low) -> object:
        if isinstance(value, self._h5py.Empty):
            return ""
        alone = isinstance(value, np.ndarray) and value.shape == (1,) and is_netcdf(self._path)
        first = value.flat[0] if isinstance(value, np.ndarray) and value.size else value
        if isinstance(first, self._h5py.Reference):
            raise TypeError("it refers to something in this file")
        return attribute(value[0] if alone else value)  # to netCDF a number is an array of one

    def _address(self, item: Hdf5Object) -> tuple[int, int]:
        info = self._h5py.h5o.get_info(item.id)
        return info.fileno, info.addr

    def lengthen(self) -> None:
        """Give all arrays of netCDF that may grow the length of their dimension: what nobody has written is filled."""
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
        """Return the names of axes, of arrays that have some: "" is that of an axis without one."""
        shapes = {name: stored.shape for name, stored in self.arrays.items()} | self.texts
        return {
            name: tuple(last_key(dim or "") for dim in dims)
            for name, dims in self._dims.items()
            if any(dims) and len(dims) == len(shapes[name])
        }


def has_scales(dataset: Hdf5Dataset) -> bool:
    """Return whether axes of a dataset have names or scales, by attributes that are as HDF5 writes them.

    The library ends the process when it looks for scales in others.
    """
    h5py, right = h5py_library(), []
    for key, kind in (("DIMENSION_LIST", "references"), ("DIMENSION_LABELS", "texts")):
        if key in dataset.attrs:
            attr = dataset.attrs.get_id(key)
            inner = h5py.check_vlen_dtype(attr.dtype) if kind == "references" else None
            of_texts = kind == "texts" and h5py.check_string_dtype(attr.dtype) is not None
            refers = inner is not None and h5py.check_ref_dtype(np.dtype(inner)) is not None
            right.append((of_texts or refers) and attr.shape == (dataset.ndim,))
    return bool(right) and all(right)


def scales_of(axis: Hdf5Axis) -> list[Hdf5Dataset]:
    """Return the scales of an axis that have a name; none if one of them is gone: HDF5 keeps references to it."""
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


class _Filled:
    """A dataset of netCDF that is longer than what was written: there it has its fill value."""

    def __init__(self, dataset: Hdf5Dataset, shape: Shape) -> None:
        self._dataset, self.shape, self.dtype = dataset, shape, dataset.dtype
        how = dataset.id.get_create_plist()
        is_set = how.fill_value_defined() == h5py_library().h5d.FILL_VALUE_USER_DEFINED
        fill = dataset.fillvalue if is_set else _FILLS.get(self.dtype.str[1:], np.zeros((), self.dtype)[()])
        self._fill = np.asarray(dataset.attrs.get("_FillValue", fill)).ravel()[0]

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        indices = [range(*item.indices(n)) for item, n in zip(index, self.shape, strict=True)]
        block = np.full([len(span) for span in indices], self._fill, self.dtype)
        there = tuple(span[: bisect_left(span, n)] for span, n in zip(indices, self._dataset.shape, strict=True))
        if all(map(len, there)):
            source = tuple(slice(span[0], span[-1] + 1, span.step) for span in there)
            block[tuple(slice(len(span)) for span in there)] = self._dataset[source]
        return block


def open_dataset(path: Path, name: str, shape: Shape) -> tuple[Sliced, Hdf5File]:
    """Return the dataset *name* of this *shape*, and its file, which has to be closed."""
    h5py = h5py_library()
    with reading(path):
        opened = h5py.File(path, "r")
        dataset = opened[name]
        how = dataset.id.get_create_plist()
        unknown = [how.get_filter(k)[0] for k in range(how.get_nfilters()) if dataset.chunks]
        if not all(map(h5py.h5z.filter_avail, unknown)):
            library("hdf5plugin", "chunks of this HDF5 dataset need filters")
        nbytes = prod(dataset.chunks or ()) * dataset.dtype.itemsize
        if unknown and nbytes > _CACHE:  # a chunk that does not fit would be decompressed anew for each part of it
            del dataset, how
            access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
            access.set_chunk_cache(_SLOTS, nbytes, 1.0)
            dataset = h5py.Dataset(h5py.h5d.open(opened.id, name.encode(), access))
        return dataset if dataset.shape == shape or dataset.dtype.subdtype else _Filled(dataset, shape), opened


def texts(path: Path, name: str, shape: Shape) -> Array:
    """Return the texts of a dataset of texts of any length: objects, of the class str. Those not written are empty."""
    with reading(path), h5py_library().File(path, "r") as opened:
        written: Array = np.asarray(opened[name].asstr(errors="replace")[...], object)
        result = np.full(shape, "", object)
        # Without axes it would be an array in an array.
        result[tuple(map(slice, written.shape))] = written if written.ndim else written[()]
        return result


def _text(name: object, path: Path) -> str:
    """Return *name*; ``CheckpointError`` if it is bytes, which h5py could not decode."""
    if isinstance(name, str):
        return name
    raise CheckpointError(f"{path}: the name {quote(name)} is no text in UTF-8")
