"""Datasets that replace a region of the variables in a file, by the rules of xarray's `to_zarr(region=)`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import xarray

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Shape
from meshcomm.errors import DTypeError
from meshcomm.storage.meshes import check_limits, common_mesh
from meshcomm.storage.regions import Box, save_boxes
from meshcomm.xarray.appending import FileVariable, as_replicated_tensor, encoded_as, file_variables_of, meshes_in
from meshcomm.xarray.encoding import Encodings

Region: TypeAlias = Mapping[str, slice]
"""The slice of the file for each dimension of the region; along other dimensions the dataset has all elements."""


def save_region(path: Path, dataset: xarray.Dataset, region: Region, encodings: Encodings, limit: int | None) -> None:
    """Write a dataset to a region of a file. Collective over the meshes of the tensors.

    Parameters
    ----------
    path: path of the file with the variables
    dataset: dataset to write
    region: slice of the file along each dimension
    encodings: encodings by the name of a variable
    limit: scratch limit of a rank, in bytes
    """
    check_limits(limit)
    mesh = common_mesh(meshes_in(dataset))
    _check_names(dataset, region)
    file_variables = file_variables_of(path, region, mesh)
    if not file_variables:
        raise FileNotFoundError(2, "There is no file that has the region", str(path))
    starts = {str(name): _start(path, dataset, str(name), file_variables, region) for name in dataset.variables}
    variables = {name: file_variables[name] for name in starts}
    file_data = encoded_as(path, dataset, variables, encodings, compared=starts, mesh=mesh)
    boxes = {}
    for name, array in file_data.arrays.items():
        dtype, shape, start = variables[name].dtype, variables[name].shape, starts[name]
        if dtype.hasobject:
            raise DTypeError(f"{path} has texts of any length in {quote(name)}: no region of these can be written")
        if array.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise DTypeError(f"{quote(name)} is {dtype} in {path}, and {array.dtype} here: convert it")
        boxes[name] = Box(as_replicated_tensor(array, mesh), start + (0,) * (len(shape) - len(start)), shape)
    save_boxes(path, boxes, mesh, limit)


def _check_names(dataset: xarray.Dataset, region: object) -> None:
    """Raise errors unless *region* names dimensions, and each variable has at least one of them."""
    if not isinstance(region, Mapping) or not region:
        raise TypeError(f"region is a dict such as {{'time': slice(10, 20)}}, not {quote(region)}")
    for dim, dim_slice in region.items():
        if dim not in dataset.dims:
            raise ValueError(f"region names {quote(dim)}; the dimensions are {', '.join(map(str, dataset.sizes))}")
        if not isinstance(dim_slice, slice):
            raise TypeError(f"the region along {quote(dim)} is a slice, not {quote(dim_slice)}")
        if dim_slice.step not in (1, None):
            raise ValueError(f"the region along {quote(dim)} has the step {quote(dim_slice.step)}; it may be 1 only")
    unrelated = [str(name) for name, variable in dataset.variables.items() if region.keys().isdisjoint(variable.dims)]
    if unrelated:
        raise ValueError(
            f"{quote(unrelated[0])} has no dimension of the region, {', '.join(region)}: such variables are not "
            f"written, so drop them first: dataset.drop_vars({unrelated})"
        )


def _start(
    path: Path, dataset: xarray.Dataset, name: str, file_variables: Mapping[str, FileVariable], region: Region
) -> Shape:
    """Return the start of a variable along each axis of its array in the file. ``ValueError`` unless it fits."""
    variable, target = dataset.variables[name], file_variables.get(name)
    if target is None:
        raise ValueError(f"{path} has no variable {quote(name)}: a region is of variables that are there")
    dims = tuple(map(str, variable.dims))
    if target.dims[: len(dims)] != dims or (len(target.dims) > len(dims) and target.kind != "|S1"):
        raise ValueError(f"{quote(name)} has the dimensions {target.dims} in {path}, and {dims} here")
    start = []
    for dim, n, length in zip(dims, target.shape, variable.shape, strict=False):
        first, last = _bounds(region[dim], n, dim) if dim in region else (0, n)
        if last - first != length:
            extent = f"the region {first} to {last}" if dim in region else f"{n} elements"
            raise ValueError(f"{quote(name)} has {length} elements along {quote(dim)}, which is {extent} in {path}")
        start.append(first)
    return tuple(start)


def _bounds(dim_slice: slice, n: int, dim: str) -> tuple[int, int]:
    """Return start and stop of a slice of *n* elements. ``ValueError`` if it goes beyond them."""
    for bound in (dim_slice.start, dim_slice.stop):
        if bound is not None and not -n <= as_integer(bound, f"the region along {quote(dim)}") <= n:
            raise ValueError(f"the region along {quote(dim)} names {bound}; the file has {n} elements there")
    first, last, _ = dim_slice.indices(n)
    return first, max(first, last)
