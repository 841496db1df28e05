"""Saving of xarray's datasets: xarray encodes them by netCDF's conventions (CF), and all ranks write them."""

from collections.abc import Iterable, Mapping

import xarray

from meshcomm.core._arguments import as_path, quote
from meshcomm.storage.formats.known import writer_for
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.options import Chunks, Compression, SaveOptions
from meshcomm.storage.request import PathLike
from meshcomm.storage.save import save_with
from meshcomm.xarray.appending import append, check_packed, meshes_in
from meshcomm.xarray.encoding import KNOWN, Encoding, encode_dataset, storage_options
from meshcomm.xarray.objects import without_objects
from meshcomm.xarray.regions import Region, save_region


def save(
    path: PathLike,
    dataset: xarray.Dataset | xarray.DataArray,
    *,
    mode: str = "w",
    append_dim: str | None = None,
    region: Region | None = None,
    encoding: Mapping[str, Encoding] | None = None,
    unlimited_dims: str | Iterable[str] | None = None,
    overwrite: bool | None = None,
    chunks: Chunks = None,
    compression: Compression = None,
    max_scratch_bytes: int | None = None,
) -> None:
    """Save a dataset of xarray, each rank its blocks of the tensors. Collective over the meshes of the tensors.

    xarray encodes it, by the ``encoding`` of the variables: dates, masks, scales, coordinates. Arrays of NumPy are the
    same on all ranks.

    Parameters
    ----------
    path: an ``.nc``, ``.zarr`` or ``.h5`` file
    dataset: a `Dataset` or a `DataArray`
    mode: ``"w"``, or ``"a"`` to keep the contents of the file, and add or replace these variables
    append_dim: dimension along which to append the dataset to the file. It is the first dimension of all variables
        that have it. Other variables are written only if the file is new
    region: part of the variables in the file to overwrite, such as ``{"time": slice(10, 20)}``; nothing else changes.
        All variables are in the file, with these dimensions and dtypes, and have a dimension of the region. Drop
        others first
    encoding: a dict by the name of a variable, with ``dtype``, ``scale_factor``, ``add_offset``, ``_FillValue``,
        ``units``, ``calendar``, as in xarray, and ``zlib``, ``complevel``, ``shuffle``, ``chunksizes``
    unlimited_dims: names of dimensions that other programs may make longer, in .nc and .h5; by default those of the
        file that the dataset was opened from
    overwrite, chunks, compression, max_scratch_bytes: as for `meshcomm.save`

    The errors of `meshcomm.save`; ``ValueError`` if *append_dim* does not fit, or if numbers are out of the range of
    the integers that an encoding packs them into. Appended data are refused, with a ``ValueError`` on all ranks, if
    the file would return other values: for a lossy cast, a longer text, a value out of the range of packed numbers,
    and coordinates or a calendar that are not those of the file.

    >>> import tempfile, numpy as np, xarray, meshcomm as mc, meshcomm.xarray
    >>> path = tempfile.mkdtemp() + "/a.nc"
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     field = xarray.DataArray(mc.ones((4, 3), "f4", rows), dims=["lat", "lon"], attrs={"units": "K"})
    ...     mc.xarray.save(path, field.to_dataset(name="t"))
    >>> with mc.simulate(2) as world:
    ...     _ = world.run(program)
    >>> xarray.open_dataset(path, engine="h5netcdf").t.sum().item()
    12.0
    """
    if isinstance(dataset, xarray.DataArray):
        dataset = dataset.to_dataset(name=dataset.name or "__xarray_dataarray_variable__")
    if not isinstance(dataset, xarray.Dataset):
        raise TypeError(f"save takes a Dataset or a DataArray of xarray, not {quote(dataset)}")
    file_path = as_path(path, "save(path, dataset)")
    if not writer_for(file_path).has_attributes:
        raise TypeError(f"a dataset is saved to an .nc, .zarr or .h5 file, not to {file_path}")
    dataset = without_objects(dataset)
    _check_names(dataset, encoding or {})
    encodings = {name: dict(entry) for name, entry in (encoding or {}).items()}
    file_options = storage_options(encodings, chunks, compression)
    if region is not None:
        if append_dim is not None:
            raise ValueError("region is for what is in the file, append_dim for what comes behind it: give one")
        save_region(file_path, dataset, region, encodings, max_scratch_bytes)
        return
    if append_dim is not None:
        append(file_path, dataset, append_dim, encodings, file_options._replace(limit=max_scratch_bytes))
        return
    unlimited = _unlimited(dataset, unlimited_dims)
    file_data = encode_dataset(dataset, encodings, file_path)
    check_packed(file_path, dataset, file_data, encodings, common_mesh(meshes_in(dataset)))
    options = SaveOptions(overwrite=overwrite, mode=mode, unlimited=unlimited, **file_options.of(file_data))
    save_with(file_path, file_data.arrays, options, max_scratch_bytes)


def _unlimited(dataset: xarray.Dataset, option: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of dimensions that may grow. ``ValueError`` for names that the dataset has not."""
    if option is None:
        return tuple(sorted(dim for dim in dataset.encoding.get("unlimited_dims", ()) if dim in dataset.dims))
    names = (option,) if isinstance(option, str) else tuple(option)
    unknown = next((name for name in names if name not in dataset.dims), None)
    if unknown is not None:
        dims_text = ", ".join(map(str, dataset.sizes))
        raise ValueError(f"unlimited_dims names {quote(unknown)}; the dimensions are {dims_text}")
    return names


def _check_names(dataset: xarray.Dataset, encoding: Mapping[str, Encoding]) -> None:
    """Raise ``ValueError`` for names that no file can have, and encodings that xarray does not know."""
    names = list(map(str, dataset.variables))
    nested_name = next((name for name in names if "/" in name), None)
    if nested_name is not None:
        raise ValueError(f"no name of a variable: {quote(nested_name)}; it has a /, which is for groups")
    for name, entry in encoding.items():
        if name not in names:
            raise ValueError(f"encoding names {quote(name)}; the variables are {', '.join(names)}")
        unknown = next((key for key in entry if key not in KNOWN), None)
        if unknown is not None:
            raise ValueError(f"encoding of {quote(name)} has {quote(unknown)}; it may have {', '.join(KNOWN)}")
