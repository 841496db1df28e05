"""xarray's datasets are saved here: xarray encodes them by netCDF's conventions (CF), and all ranks write them."""

import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from xarray.coding import strings
from xarray.conventions import cf_encoder, encode_dataset_coordinates

from meshcomm._arguments import as_path, quote
from meshcomm._types import Array, Json
from meshcomm.arrays.create import distribute, told_by_root
from meshcomm.arrays.dtensor import DTensor
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.ranks.calls import collective
from meshcomm.storage.decoding import CODING
from meshcomm.storage.formats.known import contents, writer_for
from meshcomm.storage.load import PathLike
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.opened import Store
from meshcomm.storage.options import Chunks, Compression
from meshcomm.storage.save import save as save_tree
from meshcomm.storage.series import Series
from meshcomm.storage.values import node_of_value, value_of_node

_MIDNIGHT = re.compile(r"[T ]0?0:00(:00(\.0*)?)?$")
"""The end of units such as "days since 2000-01-01 00:00:00", which xarray leaves out, or not."""

_CHUNKS = ("chunksizes", "chunks")
_DEFLATE = {"zlib": "gzip", "gzip": "gzip", "zstd": "zstd", "blosc": "blosc"}
_KNOWN = (
    *("dtype", *CODING, "units", "calendar", "char_dim_name", *_CHUNKS, *_DEFLATE),
    *("compression", "complevel", "compression_opts", "shuffle"),
)
"""What an encoding may have."""


def save(
    path: PathLike,
    dataset: xarray.Dataset | xarray.DataArray,
    *,
    mode: str = "w",
    append_dim: str | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
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
    dataset: or a `DataArray`
    mode: ``"w"``, or ``"a"`` to keep what is in the file, and add or replace these variables
    append_dim: add what lies along this dimension behind what is in the file. It is the first dimension of all
        variables that have it. The others are written only if the file is new
    encoding: by the name of a variable: ``dtype``, ``scale_factor``, ``add_offset``, ``_FillValue``, ``units``,
        ``calendar``, as xarray has them, and ``zlib``, ``complevel``, ``shuffle``, ``chunksizes``
    overwrite, chunks, compression, max_scratch_bytes: as for `meshcomm.save`

    The errors of `meshcomm.save`; ``ValueError`` if *append_dim* does not fit.

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
    where = as_path(path, "save(path, dataset)")
    if not writer_for(where).has_attributes:
        raise TypeError(f"a dataset is saved to an .nc, .zarr or .h5 file, not to {where}")
    _check_names(dataset, encoding or {})
    asked = {name: dict(own) for name, own in (encoding or {}).items()}
    own = _own_options(asked, chunks, compression)
    if append_dim is not None:
        _append(where, dataset, append_dim, asked, own._replace(limit=max_scratch_bytes))
        return
    found = _encoded(dataset, asked, where)
    save_tree(
        where, found.arrays, mode=mode, overwrite=overwrite, max_scratch_bytes=max_scratch_bytes, **own.of(found)
    )


def _check_names(dataset: xarray.Dataset, encoding: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ``ValueError`` for names that no file can have, and encodings that xarray does not know."""
    names = list(map(str, dataset.variables))
    within = next((name for name in names if "/" in name), None)
    if within is not None:
        raise ValueError(f"no name of a variable: {quote(within)}; it has a /, which is for groups")
    for name, own in encoding.items():
        if name not in names:
            raise ValueError(f"encoding names {quote(name)}; the variables are {', '.join(names)}")
        unknown = next((key for key in own if key not in _KNOWN), None)
        if unknown is not None:
            raise ValueError(f"encoding of {quote(name)} has {quote(unknown)}; it may have {', '.join(_KNOWN)}")


class Encoded(NamedTuple):
    """A dataset as it is in a file: arrays, the names of their axes, and attributes.

    Attributes are those of the file, and dicts of those of the arrays by their names.
    """

    arrays: dict[str, Any]
    dims: dict[str, tuple[str, ...]]
    attributes: dict[str, Json]

    def only(self, names: list[str], *, of_file: bool) -> "Encoded":
        """Return the arrays *names*; *of_file* says whether the attributes of the file are kept."""
        kept = {
            key: value for key, value in self.attributes.items() if key in names or (of_file and key not in self.dims)
        }
        return Encoded({name: self.arrays[name] for name in names}, {name: self.dims[name] for name in names}, kept)


class OwnOptions(NamedTuple):
    """What is not xarray's: chunks and compression by the name of a variable, and the scratch limit."""

    chunks: Chunks
    compression: Compression
    limit: int | None = None

    def of(self, found: Encoded) -> dict[str, Any]:
        """Return the options of `meshcomm.save` for these arrays."""
        chunks, codecs = (_only(given, found.arrays) for given in (self.chunks, self.compression))
        return {"dims": found.dims, "metadata": found.attributes, "chunks": chunks, "compression": codecs}


def _only(given: Json, names: Container[str]) -> Json:
    """Return what options by name say of *names*; others are for all arrays."""
    return {name: each for name, each in given.items() if name in names} if isinstance(given, Mapping) else given


def _own_options(asked: dict[str, dict[str, Any]], chunks: Chunks, compression: Compression) -> OwnOptions:
    """Take chunks and compression out of the encodings that are *asked* for."""
    by_chunks, by_codecs = {}, {}
    for name, own in asked.items():
        lengths = [own.pop(key) for key in _CHUNKS if key in own]
        names = [_DEFLATE[key] for key in _DEFLATE if own.pop(key, False)]
        given = own.pop("compression", None)
        names += [_DEFLATE.get(given, given)] if given else []
        level, shuffle = own.pop("complevel", own.pop("compression_opts", None)), own.pop("shuffle", False)
        if lengths:
            by_chunks[name] = lengths[0]
        if names:
            codec = names[0] if level is None else (names[0], level)
            by_codecs[name] = ["shuffle", codec] if shuffle else [codec]
    if (by_chunks and chunks is not None) or (by_codecs and compression is not None):
        raise ValueError("chunks and compression are given by encoding, or as arguments, not both")
    return OwnOptions(by_chunks or chunks, by_codecs or compression)


def _encoded(dataset: xarray.Dataset, asked: Mapping[str, Mapping[str, Any]], path: Path) -> Encoded:
    """Return the dataset as xarray encodes it. Collective: it may compute with the tensors."""
    variables, attributes = encode_dataset_coordinates(dataset)
    for name, variable in variables.items():
        variables[name] = copied = variable.copy(deep=False)
        kept = {
            key: value for key, value in variable.encoding.items() if key != "dtype" or value not in (bool, "bool")
        }
        copied.encoding = dict(asked.get(str(name), kept))  # as in xarray, what is asked for is all of it
    variables, attributes = cf_encoder(variables, attributes)
    found = {str(name): _with_texts(each, str(name), path) for name, each in variables.items()}
    both = [name for name in found if name in attributes]
    if both:
        raise ValueError(f"{quote(both[0])} is the name of a variable and of an attribute of the dataset")
    return Encoded(
        {name: each.data for name, each in found.items()},
        {name: tuple(map(str, each.dims)) for name, each in found.items()},
        dict(attributes)
        | {name: dict(sorted(each.attrs.items(), key=lambda item: str(item[0]))) for name, each in found.items()},
    )


def _with_texts(variable: xarray.Variable, name: str, path: Path) -> xarray.Variable:
    """Return a variable whose texts are as the file holds them: characters in netCDF, else texts of one length."""
    if variable.dtype.kind not in "OSTU":
        return variable
    if path.suffix.lower() == ".zarr":
        return variable.astype("U")
    texts, characters = strings.EncodedStringCoder(allows_unicode=False), strings.CharacterArrayCoder()  # type: ignore[no-untyped-call]
    encoded = strings.ensure_fixed_length_bytes(texts.encode(variable.astype("U"), name))
    found: xarray.Variable = characters.encode(encoded, name)  # type: ignore[no-untyped-call]
    return found


def _append(
    path: Path, dataset: xarray.Dataset, dim: str, asked: dict[str, dict[str, Any]], options: OwnOptions
) -> None:
    """Write what lies along *dim* as snapshots of a series. Collective."""
    growing = [str(name) for name, each in dataset.variables.items() if dim in each.dims]
    if not growing:
        raise ValueError(f"append_dim names {quote(dim)}; the dimensions are {', '.join(map(str, dataset.sizes))}")
    later = next((name for name in growing if dataset[name].dims[0] != dim), None)
    if later is not None:
        raise ValueError(f"{quote(dim)} is not the first dimension of {quote(later)}: transpose it")
    mesh = common_mesh(each.data.mesh for each in dataset.variables.values() if isinstance(each.data, DTensor))
    there = _there(path, dim, mesh)
    _check_variables(path, dataset, dim, there)
    for name, held in there.items():
        if name in dataset.variables and (held.grows or held.values is not None):
            asked[name] = held.encoding(is_date=dataset[name].dtype.kind in "mM")
    found = _encoded(dataset, asked, path)
    _check_encoded(path, dataset, there, found)
    others = [name for name in found.arrays if name not in growing]
    if others and not there:
        static = found.only(others, of_file=False)
        save_tree(path, static.arrays, mode="a", max_scratch_bytes=options.limit, **options.of(static))
    _append_snapshots(path, found.only(growing, of_file=not there), dim, mesh, options)


class Held(NamedTuple):
    """A variable of a file: its attributes and dtype, whether it has the dimension that grows, and its coordinates."""

    attributes: dict[str, Any]
    dtype: str
    grows: bool
    values: Any
    """Those of a coordinate of another dimension, as they are in the file; else None."""

    def encoding(self, *, is_date: bool) -> dict[str, Any]:
        """Return how more of its elements are encoded."""
        keys = (*CODING, *(("units", "calendar") if is_date else ()))
        return {"dtype": self.dtype} | {key: value for key, value in self.attributes.items() if key in keys}


def _there(path: Path, dim: str, mesh: Mesh) -> dict[str, Held]:
    """Return the variables of a file by name; nothing if it is not there. Collective."""

    def look() -> Json:
        if not path.exists():
            return node_of_value({})
        found, held = contents(path), {}
        with Store(path) as store:
            for name, stored in found.arrays.items():
                dims = found.dims.get(name, ())
                is_index = dims == (name,) and name != dim and stored.dtype.kind in "biuf"
                values = store[name][...] if is_index else None
                held[name] = [dict(found.attributes.get(name, {})), stored.dtype.str, dim in dims, values]
        return node_of_value(held)

    with collective("save", mesh) as here:
        told = look() if here is None else told_by_root(0, look, f"append to {path}", mesh, here)
    return {name: Held(*each) for name, each in value_of_node(told).items()}


def _check_variables(path: Path, dataset: xarray.Dataset, dim: str, there: Mapping[str, Held]) -> None:
    """Raise ``ValueError`` unless a dataset has what grows in the file, in dtypes that the file can hold."""
    for name, held in there.items():
        if name not in dataset.variables:
            if held.grows:
                raise ValueError(
                    f"{path} has {quote(name)} along {quote(dim)}: a dataset that is appended needs it, too"
                )
            continue
        kinds = dataset[name].dtype.kind, np.dtype(held.dtype).kind
        if kinds[0] in "fc" and kinds[1] in "iu" and "scale_factor" not in held.attributes:
            raise ValueError(f"{quote(name)} is {held.dtype} in {path}, and {dataset[name].dtype} here: convert it")


def _check_encoded(path: Path, dataset: xarray.Dataset, there: Mapping[str, Held], found: Encoded) -> None:
    """Raise ``ValueError`` unless dates have the units of the file, and coordinates are its own."""
    for name, held in there.items():
        if name not in found.arrays:
            continue
        had, needs = (str(its.get("units")) for its in (held.attributes, found.attributes[name]))
        if dataset[name].dtype.kind in "mM" and _MIDNIGHT.sub("", had) != _MIDNIGHT.sub("", needs):
            raise ValueError(f"{quote(name)} does not fit the units of the file, {had}: it needs {needs}")
        if held.values is not None and not np.array_equal(np.asarray(found.arrays[name]), held.values):
            raise ValueError(f"the coordinates {quote(name)} are others than those in {path}")


def _append_snapshots(path: Path, found: Encoded, dim: str, mesh: Mesh, options: OwnOptions) -> None:
    """Append each element of the arrays along their first axis. Collective over *mesh*."""
    wide = {name: array for name, array in found.arrays.items() if array.ndim > 1 or isinstance(array, DTensor)}
    if not wide:
        wide = {name: array for name, array in found.arrays.items() if name != dim}
    tensors = {name: _as_tensor(array, mesh) for name, array in wide.items()}
    numbers = {name: np.asarray(array) for name, array in found.arrays.items() if name not in wide}
    count = len(next(iter(found.arrays.values())))
    if not count:
        return
    first = {name: tensor[0] for name, tensor in tensors.items()}
    with Series(
        path,
        {name: tensor.layout for name, tensor in first.items()},
        shape={name: tensor.shape for name, tensor in first.items()},
        dtype={name: tensor.dtype for name, tensor in first.items()},
        axis=dim,
        max_scratch_bytes=options.limit,
        **options.of(Encoded(first, {name: found.dims[name][1:] for name in first}, found.attributes)),
    ) as series:
        for k in range(count):
            now = first if k == 0 else {name: tensor[k] for name, tensor in tensors.items()}
            series.append(**now, **{name: values[k] for name, values in numbers.items()})


def _as_tensor(array: Array | DTensor, mesh: Mesh) -> DTensor:
    return array if isinstance(array, DTensor) else distribute(array, Layout.replicated(mesh, array.ndim))
