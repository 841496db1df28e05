"""Dimension scales: datasets of HDF5 that name the axes of others. netCDF-4 calls them dimensions.

A dimension without a variable is a scale without data. A variable with the name of its first dimension is the scale
itself. A scale of several axes, such as an array of characters for texts, lists their dimensions in an attribute: HDF5
does not allow scales on scales.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import numpy as np

from meshcomm.core._arguments import quote
from meshcomm.core._types import Shape
from meshcomm.errors import ShapeError
from meshcomm.storage.formats.base import ArrayToSave
from meshcomm.storage.formats.hdf5 import NO_VARIABLE, has_scales, last_key, scales_of
from meshcomm.storage.formats.hdf5_inventory import is_no_variable
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, Hdf5Group, h5py_library


class Scales:
    """The dimension scales of a *file*: cached, and numbered as in netCDF. *new* says whether the file is new."""

    def __init__(self, file: Hdf5Group, *, new: bool) -> None:
        datasets = (item for item in file.values() if isinstance(item, h5py_library().Dataset))
        numbers = [int(item.attrs["_Netcdf4Dimid"]) for item in datasets if "_Netcdf4Dimid" in item.attrs]
        self.file, self.new, self._numbers = file, new, count(max(numbers, default=-1) + 1)
        self._cache: dict[tuple[str, int, str], Hdf5Dataset] = {}

    def make_scale(self, dataset: Hdf5Dataset, text: str) -> None:
        """Make a dataset a scale, named *text*."""
        if not dataset.is_scale:
            dataset.make_scale(text)
            dataset.attrs["_Netcdf4Dimid"] = np.int32(next(self._numbers))

    def get_or_create(self, length: int, dim: str, array: ArrayToSave) -> Hdf5Dataset:
        """Return the scale *dim* for an axis of *array* of this *length*; make it if it does not exist."""
        key = array.name.rpartition("/")[0], length, dim
        if key not in self._cache:
            self._cache[key] = _find_or_create_scale(self, length, dim, array)
        return self._cache[key]


def name_axes(scales: Scales, dataset: Hdf5Dataset, array: ArrayToSave, *, name_all: bool) -> None:
    """Attach a scale to each axis of *dataset* that has a name, or with *name_all* to all axes."""
    if array.dims is None and not array.grows and not name_all:
        return
    has_old_scales = not scales.new and (dataset.is_scale or any(map(scales_of, dataset.dims)))
    if array.grows and has_old_scales:
        _grow_scales(dataset)
        return
    dims = array.dims
    if dims is None and name_all and not dataset.is_scale:
        # An array that replaces another one may have got its scales.
        axis_scales = [scales_of(axis) for axis in dataset.dims] if has_old_scales else [[] for _ in array.shape]
        old_scales = enumerate(zip(array.shape, axis_scales, strict=False))
        dims = tuple(last_key(old[0].name) if old else f"axis_{axis}_of_{n}" for axis, (n, old) in old_scales)
    if array.grows and dims is not None:
        dims = (array.grows, *dims)
    if dims is not None and is_scale(array.name, dims):
        scales.make_scale(dataset, dims[0])
        if len(dims) > 1:
            other_scales = [scales.get_or_create(dataset.shape[a], dims[a], array) for a in range(1, len(dims))]
            dataset.attrs["_Netcdf4Coordinates"] = np.array(
                [scale.attrs["_Netcdf4Dimid"] for scale in (dataset, *other_scales)], "i4"
            )
        return
    for axis, dim in enumerate(dims or ()):
        if dim == array.name:
            raise ValueError(f"the array {quote(dim)} has several axes, so only the first one can have its name")
        for old in scales_of(dataset.dims[axis]) if has_old_scales else ():
            dataset.dims[axis].detach_scale(old)
        dataset.dims[axis].attach_scale(scales.get_or_create(dataset.shape[axis], dim, array))


def is_scale(name: str, dims: Sequence[str]) -> bool:
    """Return whether an array with axes *dims* is the scale of its first axis: both have the same name."""
    return tuple(dims[:1]) == (last_key(name),)


def _grow_scales(dataset: Hdf5Dataset) -> None:
    """Extend the scales of the first axis to its new length, unless the dataset is a scale itself."""
    for scale in scales_of(dataset.dims[0]) if not dataset.is_scale else ():
        if scale.shape[0] < dataset.shape[0] and scale.maxshape[0] is None:
            scale.resize(dataset.shape[0], axis=0)


def _find_or_create_scale(scales: Scales, length: int, dim: str, array: ArrayToSave) -> Hdf5Dataset:
    """Return the scale *dim* of this *length*; ``ShapeError`` if an object of that name has another length."""
    file, group = scales.file, array.name.rpartition("/")[0]
    name = f"{group}/{dim}" if group and f"{group}/{dim}" in file else dim
    scale = file.get(name)
    if scale is None:
        grows = dim == array.grows or dim in array.unlimited
        options: dict[str, tuple[int | None]] = {"maxshape": (None,), "chunks": (1024,)} if grows else {}
        scale = file.create_dataset(name, (length,), ">f4", **options)
        scales.make_scale(scale, f"{NO_VARIABLE}.{length:10}")
    if isinstance(scale, h5py_library().Dataset) and scale.maxshape == (None,) and is_no_variable(scale):
        scale.resize(max(length, scale.shape[0]), axis=0)
    is_matching_scale = isinstance(scale, h5py_library().Dataset) and scale.is_scale and scale.shape[:1] == (length,)
    if not is_matching_scale and (not isinstance(scale, h5py_library().Dataset) or scale.shape != (length,)):
        shape: Shape | str = getattr(scale, "shape", "no shape")
        axis = f"the axis {quote(dim)} of {quote(array.name)} has the length {length}"
        raise ShapeError(f"{axis}, but {quote(name)} in the file has {shape}")
    scales.make_scale(scale, dim)
    return scale


def transfer_scales(file: Hdf5Group, old_dataset: Hdf5Dataset, new_dataset: Hdf5Dataset) -> None:
    """Attach the scales of *old_dataset* to *new_dataset*, which replaces it also as a scale of other datasets."""
    for axis, h5_axis in enumerate(old_dataset.dims if has_scales(old_dataset) else ()):
        for scale in scales_of(h5_axis):
            old_dataset.dims[axis].detach_scale(scale)
            if new_dataset.shape[axis : axis + 1] == scale.shape:
                new_dataset.dims[axis].attach_scale(scale)
    if not old_dataset.is_scale:
        return
    users = []
    for reference, axis in old_dataset.attrs.get("REFERENCE_LIST", ()):
        with suppress(ValueError, KeyError):  # that dataset was removed
            users.append((file[reference], int(axis)))
    if users and new_dataset.shape[:1] != old_dataset.shape[:1]:
        raise ShapeError(
            f"{quote(new_dataset.name)} is the scale of other arrays: it must keep the shape {old_dataset.shape}"
        )
    new_dataset.make_scale(last_key(new_dataset.name))
    for user, axis in users:
        user.dims[axis].detach_scale(old_dataset)
        user.dims[axis].attach_scale(new_dataset)
    if "_Netcdf4Dimid" in old_dataset.attrs:
        new_dataset.attrs["_Netcdf4Dimid"] = old_dataset.attrs["_Netcdf4Dimid"]
