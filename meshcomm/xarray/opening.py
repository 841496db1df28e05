"""Files as xarray's datasets: variables are read where they are used, each rank its block; xarray decodes them.

Source of the conventions: https://cfconventions.org. The interface of a backend of xarray:
https://docs.xarray.dev/en/stable/internals/how-to-add-new-backend.html.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import glob, has_magic
from typing import Any, ClassVar, TypeAlias

import numpy as np
import xarray
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.core import indexing

from meshcomm.blocks.make import on_blocks
from meshcomm.blocks.session import in_session
from meshcomm.blocks.small import broadcast_from_device
from meshcomm.core._arguments import as_path, quote
from meshcomm.core._types import AnyDict, Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED, Spec
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.meshes import create_mesh, get_default_mesh
from meshcomm.errors import CheckpointError, LayoutError, MeshError
from meshcomm.storage.decoding import CODING, Coding, as_netcdf, coding_of
from meshcomm.storage.formats.known import contents, texts
from meshcomm.storage.kept import SharedContents, check_unchanged, shared_contents
from meshcomm.storage.load import load_shared
from meshcomm.storage.opened import Store
from meshcomm.storage.request import LoadRequest, PathLike

_DURATIONS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")

Cuts: TypeAlias = Mapping[str, Spec]
"""The sharding spec of each dimension, by its name."""


def open(
    path: PathLike | Sequence[object],
    layout: Cuts | None = None,
    *,
    mesh: Mesh | None = None,
    group: str | None = None,
    preprocess: Callable[[xarray.Dataset], xarray.Dataset] | None = None,
    combine: str = "by_coords",
    concat_dim: object = None,
    compat: str = "override",
    data_vars: object = "minimal",
    coords: object = "minimal",
    join: str = "exact",
    combine_attrs: object = "override",
    **options: Any,
) -> xarray.Dataset:
    """Return a file as a dataset of xarray with tensors as variables. Collective over the mesh.

    Only the header and the coordinates of dimensions are read at once, other data when they are used: select first,
    then compute. A variable with a dimension in *layout* becomes a tensor; each rank reads its block. Coordinates of
    dimensions, texts, dates and all other variables are arrays of NumPy, the same on all ranks.

    Parameters
    ----------
    path: a netCDF file, a zarr store of version 2 or 3, an HDF5 file, or another one that `load` reads; or a list of
        them, or a pattern such as ``"tas_*.nc"``: these are read at once, and joined by their coordinates as
        `xarray.combine_by_coords` does. For ``combine="nested"`` also a list of lists
    layout: mesh dimensions that cut dimensions of the dataset: ``{"lat": "x"}``, or ``{"lat": "x", "lon": "y"}``
    mesh: mesh of the tensors; by default that of `default_mesh`, or all ranks along the only mesh dimension that
        *layout* names
    group: the path of a group in the file
    preprocess: function that is applied to the dataset of each file first, such as a selection
    combine, concat_dim, compat, data_vars, coords, join, combine_attrs: how several files are joined, as for
        `xarray.open_mfdataset`: ``join="outer"`` if their coordinates differ
    options: options of `xarray.open_dataset`, such as ``decode_times=False``, ``drop_variables=["a"]``

    ``LayoutError`` if *layout* does not fit the file, ``MeshError`` without a mesh, ``ValueError`` for files that
    cannot be joined in this way, and the errors of `meshcomm.load`.

    >>> import tempfile, numpy as np, xarray, meshcomm as mc, meshcomm.xarray
    >>> path = tempfile.mkdtemp() + "/a.nc"
    >>> warm = xarray.Dataset({"t": (("lat", "lon"), np.arange(12.0).reshape(4, 3))}, {"lat": [10, 20, 30, 40]})
    >>> warm.to_netcdf(path, engine="h5netcdf")
    >>> def program():
    ...     t = mc.xarray.open(path, {"lat": "x"}).t
    ...     return t.data.local.shape, t.mean("lat").data.to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     world.run(program)[0]
    ((2, 3), [4.5, 5.5, 6.5])
    """
    is_single = isinstance(path, str | os.PathLike) and not has_magic(os.fspath(path))
    paths: list[Any] = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise ValueError("open needs a path, or a list with one path at least")
    if not is_single and isinstance(path, str | os.PathLike):
        cuts = _cuts(layout, mesh)
        mesh = _mesh_for(cuts, mesh)
        paths = _matching_files(os.fspath(path), mesh)
    if combine != "nested" and (combine != "by_coords" or concat_dim is not None):
        raise ValueError(f"combine={quote(combine)}: it is 'by_coords', or 'nested', which has a concat_dim")

    def open_one(one_path: PathLike) -> xarray.Dataset:
        dataset = xarray.open_dataset(one_path, engine=Backend, layout=layout, mesh=mesh, group=group, **options)
        dataset = preprocess(dataset) if preprocess else dataset
        return dataset if is_single else dataset.load()  # otherwise xarray would convert lazy data to arrays of NumPy

    if is_single:
        return open_one(paths[0])
    join_options: AnyDict = {"compat": compat, "data_vars": data_vars, "coords": coords, "join": join}
    join_options |= {"combine_attrs": combine_attrs} | ({"concat_dim": concat_dim} if combine == "nested" else {})
    join_all = xarray.combine_nested if combine == "nested" else xarray.combine_by_coords
    result = join_all(_map_nested(open_one, paths), **join_options)
    assert isinstance(result, xarray.Dataset)  # for arrays without names it would have another type
    return result


def _map_nested(function: Callable[[PathLike], xarray.Dataset], paths: Iterable[Any]) -> list[Any]:
    """Return the results of *function* for paths, in the same nested lists as *paths*."""
    return [_map_nested(function, path) if isinstance(path, list | tuple) else function(path) for path in paths]


class Backend(BackendEntrypoint):
    """The engine "meshcomm" of xarray: ``xarray.open_dataset(path, engine="meshcomm", layout={"lat": "x"})``.

    Its options *layout*, *mesh* and *group* are those of `open`.
    """

    __module__ = "meshcomm.xarray"
    description: ClassVar[str] = "Tensors of meshcomm, which each rank reads its block of"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("filename_or_obj", "layout", "mesh", "group", "drop_variables", "mask_and_scale", "decode_times"),
        *("concat_characters", "decode_coords", "use_cftime", "decode_timedelta"),
    )

    def open_dataset(  # type: ignore[override]
        self,
        filename_or_obj: PathLike,
        *,
        layout: Cuts | None = None,
        mesh: Mesh | None = None,
        group: str | None = None,
        drop_variables: str | Iterable[str] | None = None,
        mask_and_scale: bool | Mapping[str, bool] | None = None,
        **decoders: Any,
    ) -> xarray.Dataset:
        """Return a file as a dataset: `open` says more. Collective over the mesh.

        Parameters
        ----------
        filename_or_obj: the path of the file
        layout, mesh, group: as for `open`
        drop_variables: names of variables to leave out
        mask_and_scale: whether fill values, scale and offset are applied; or a dict by variable
        decoders: the other options of `xarray.decode_cf`
        """
        cuts = _cuts(layout, mesh)
        file = DatasetFile(filename_or_obj, cuts, _mesh_for(cuts, mesh), group, mask_and_scale=mask_and_scale)
        decoders["mask_and_scale"] = True if mask_and_scale is None else mask_and_scale
        return xarray.decode_cf(file, drop_variables=drop_variables, **decoders)


def _cuts(layout: Cuts | None, mesh: Mesh | None) -> Cuts:
    """Return a copy of *layout*. ``LayoutError`` or ``MeshError`` if *layout* is no dict, or *mesh* no mesh."""
    if not isinstance(layout, Mapping | None):
        raise LayoutError(f"the layout of a dataset is a dict such as {{'lat': 'x'}}, not {quote(layout)}")
    if not isinstance(mesh, Mesh | None):
        raise MeshError(f"mesh is a Mesh, not {quote(mesh)}")
    return {} if layout is None else dict(layout)


def _matching_files(pattern: str, mesh: Mesh) -> list[PathLike]:
    """Return the files that match a pattern on the first rank; only the file *pattern* if there is one of that name.

    Collective over the mesh. ``FileNotFoundError`` if there is none.
    """

    def find_files() -> list[str]:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob(os.path.expanduser(pattern)))
        if not matches:
            raise FileNotFoundError(errno.ENOENT, "No file matches the pattern", pattern)
        return matches

    return list(broadcast_from_device("open", mesh, f"open {pattern}", find_files) or find_files())


def _mesh_for(cuts: Cuts, mesh: Mesh | None) -> Mesh:
    result = mesh or get_default_mesh()
    if result is not None:
        return result
    names = {dim for dim in cuts.values() if isinstance(dim, str) and dim != UNSHARDED}
    if len(names) > 1 or not all(isinstance(dim, str) for dim in cuts.values()):
        raise MeshError(f"the layout {quote(dict(cuts))} needs mesh=, as it names several mesh dimensions")
    return create_mesh([(names.pop(), -1)]) if names else create_mesh()


class DatasetFile(AbstractDataStore):
    """The variables of a file, before decoding. Collective over *mesh*.

    Parameters
    ----------
    path: path of the file
    cuts: cut of each dimension, by its name
    mesh: mesh of the variables
    group: path of a group in the file
    mask_and_scale: whether fill values, scale and offset are applied to tensors; or a dict by variable
    """

    def __init__(
        self, path: PathLike, cuts: Cuts, mesh: Mesh, group: str | None, *, mask_and_scale: object = None
    ) -> None:
        self.path, self.cuts, self.mesh = as_path(path, "open(path)"), cuts, mesh
        self.mask_and_scale = mask_and_scale
        self._prefix = "" if not group or not group.strip("/") else f"{group.strip('/')}/"
        call = f"open {self.path}, group {group}"
        shared = in_session("open", mesh, lambda session: shared_contents(self.path, call, session))
        self.shared = shared or SharedContents(self.path, contents(self.path))
        self.base, self.contents, _ = self.shared
        shapes = {name: stored.array_shape for name, stored in self.contents.arrays.items()} | dict(
            self.contents.texts
        )
        prefix_length = len(self._prefix)  # arrays are in the group, and not in one below it
        names = [name for name in shapes if name.startswith(self._prefix) and "/" not in name[prefix_length:]]
        self._shapes = {name: shapes[name] for name in names}
        if self._prefix and not self._shapes:
            raise CheckpointError(f"{self.path} has no arrays in the group {quote(group)}")
        self._dims = _named_axes(self._shapes, self.contents.dims)
        all_dims = {dim for dims in self._dims.values() for dim in dims}
        unknown = next((dim for dim in cuts if dim not in all_dims), None)
        if unknown is not None:
            raise LayoutError(f"{self.path} has no dimension {quote(unknown)}; it has {', '.join(sorted(all_dims))}")

    def get_attrs(self) -> dict[str, object]:
        """Return the attributes of the file."""
        return {} if self._prefix else as_netcdf(self.contents.metadata)

    def get_encoding(self) -> dict[str, object]:
        """Return the names of the dimensions that may grow."""
        return {
            "unlimited_dims": {dim for dims in self._dims.values() for dim in dims if dim in self.contents.unlimited}
        }

    def get_dimensions(self) -> dict[str, int]:
        """Return the lengths of the dimensions."""
        return {dim: n for name, dims in self._dims.items() for dim, n in zip(dims, self._shapes[name], strict=True)}

    def get_variables(self) -> dict[str, xarray.Variable]:
        """Return the variables by name."""
        return {name[len(self._prefix) :]: self._variable(name) for name in self._dims}

    def _variable(self, name: str) -> xarray.Variable:
        dims, attributes = self._dims[name], as_netcdf(self.contents.attributes.get(name, {}))
        encoding: dict[str, object] = {"source": str(self.path)}
        if name in self.contents.texts:
            return xarray.Variable(dims, self._texts(name), attributes, {**encoding, "dtype": str})
        dtype = self.contents.arrays[name].dtype
        short_name = name[len(self._prefix) :]
        layout, coding = None, None
        if dims != (short_name,) and dtype.kind not in "SU" and not self.cuts.keys().isdisjoint(dims):
            layout = Layout([self.cuts.get(dim, UNSHARDED) for dim in dims], self.mesh)
            layout.check_fits(self._shapes[name])
            coding = coding_of(attributes, dtype) if self._decodes(short_name) and not _is_time(attributes) else None
        if coding is not None:
            encoding |= {"dtype": dtype} | {key: attributes.pop(key) for key in CODING if key in attributes}
        data = indexing.LazilyIndexedArray(_LazyArray(self, name, layout, coding))
        return xarray.Variable(dims, data, attributes, encoding)

    def _decodes(self, name: str) -> bool:
        """Return whether a tensor is decoded when it is read: xarray would decode a copy of the whole array."""
        option = self.mask_and_scale
        return bool(option.get(name, True) if isinstance(option, Mapping) else option in (None, True))

    def _texts(self, name: str) -> Array:
        """Return texts of any length; the first rank reads them. Collective over the mesh."""

        def read() -> list[str]:
            result: list[str] = texts(self.path, name, self.contents.texts[name]).ravel().tolist()
            check_unchanged(self.base, self.contents, [name])
            return result

        values = broadcast_from_device("open", self.mesh, f"texts {quote(name)} of {self.path}", read)
        values = read() if values is None else values
        result = np.empty(len(values), object)
        result[:] = values
        return result.reshape(self.contents.texts[name])


def _named_axes(shapes: Mapping[str, Shape], dims: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the names of the axes of each array. Unnamed axes of the same length get the same name.

    >>> _named_axes({"a": (3, 4), "b": (4, 4)}, {"b": ("", "x")})
    {'a': ('phony_dim_0', 'phony_dim_1'), 'b': ('phony_dim_1', 'x')}
    """
    result: dict[str, tuple[str, ...]] = {}
    lengths: list[int] = []  # lengths of the unnamed dimensions, by their numbers
    for name, shape in shapes.items():
        used: list[int] = []
        names = list(dims.get(name, ("",) * len(shape)))
        for axis, n in enumerate(shape):
            if not names[axis]:
                number = next((k for k, length in enumerate(lengths) if length == n and k not in used), len(lengths))
                lengths += [n] if number == len(lengths) else []
                used.append(number)
                names[axis] = f"phony_dim_{number}"
        result[name] = tuple(names)
    return result


class _LazyArray(BackendArray):
    """A variable that is read when it is indexed: a tensor in *layout*; without a layout, an array of NumPy."""

    read_by_all_ranks = True

    def __init__(self, file: DatasetFile, name: str, layout: Layout | None, coding: Coding | None) -> None:
        stored = file.contents.arrays[name]
        self.shape, self.dtype = stored.array_shape, (coding or stored).dtype.newbyteorder("=")
        self._file, self._name, self._layout, self._decodes = file, name, layout, coding is not None

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Array | DTensor:
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def _read(self, index: tuple[int | slice, ...]) -> Array | DTensor:
        """Return the elements of an index. Collective over the mesh."""
        file, name, mesh = self._file, self._name, self._file.mesh
        layout = self._layout or Layout.replicated(mesh, len(self.shape))
        result_layout = layout.take(axis for axis, item in enumerate(index) if isinstance(item, slice))
        dtype = None if self._decodes else self.dtype
        request = LoadRequest(
            file.path, {name: result_layout}, (name,), {name: index}, None, dtype, True, self._decodes
        )
        tensor = load_shared(request, file.shared, mesh)[name]
        if self._layout is not None:
            return tensor
        block = on_blocks(np.asarray, tensor)
        if block is not None:
            return block
        check_unchanged(file.base, file.contents, [name])
        with Store(file.path) as store:
            return np.asarray(store[name][index], self.dtype)


def _is_time(attributes: Mapping[str, object]) -> bool:
    """Return whether the variable has dates or durations, which xarray decodes as a whole."""
    units = str(attributes.get("units", ""))
    return " since " in units or units in _DURATIONS
