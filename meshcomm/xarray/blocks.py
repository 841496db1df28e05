"""map_blocks: a function of xarray on the block of each rank."""

from collections.abc import Callable, Container, Hashable, Iterable, Mapping

import numpy as np
import xarray

from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.whole import whole_along
from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.create import from_local
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import contiguous
from meshcomm.errors import LayoutError, ShapeError


def map_blocks(
    func: Callable[..., xarray.DataArray],
    array: xarray.DataArray,
    whole: str | Iterable[str] = (),
    args: Iterable[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> xarray.DataArray:
    """Return the results of a function of the block of each rank, as one array. Collective over the mesh.

    For functions of xarray that do not support tensors, and would gather the whole array: ``interp``, ``rank``,
    ``interpolate_na``, ``ffill``, ``curvefit``, `apply_ufunc` with ``vectorize=True``.

    Parameters
    ----------
    func: function of the block of a rank, an array of NumPy with its coordinates, and of *args* and *kwargs*. Its
        result has the dimensions along which the ranks have different blocks, in the same lengths; it may drop or add
        others
    array: array with a tensor as data
    whole: dimensions of which *func* needs all elements: they become whole on each rank, and other dimensions are cut
    args, kwargs: arguments that are passed to *func*

    A rank that has no elements calls *func* with one element along each cut dimension, a NaN or 0. ``LayoutError`` if
    the array holds no tensor, ``ShapeError`` if a result does not fit. If *func* raises an error on one rank, all
    ranks raise it. Source: `xarray.map_blocks`.

    >>> import numpy as np, xarray, meshcomm as mc, meshcomm.xarray
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.arange(8.0).reshape(2, 4), rows)
    ...     array = xarray.DataArray(t, {"lat": [0.0, 10.0]}, ["lat", "lon"])
    ...     return mc.xarray.map_blocks(lambda a: a.interp(lat=[2.5, 5.0]), array, "lat").values.tolist()
    >>> with mc.simulate(2) as world:
    ...     world.run(program)[0]
    [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]]
    """
    if not isinstance(array, xarray.DataArray) or not isinstance(array.data, DTensor):
        data = getattr(array, "data", array) if isinstance(array, xarray.DataArray) else array
        raise LayoutError(f"map_blocks takes a DataArray with a tensor, not a {type(data).__name__}")
    names = [whole] if isinstance(whole, str) else list(whole)
    missing = next((name for name in names if name not in array.dims), None)
    if missing is not None:
        raise LayoutError(f"{quote(missing)} is no dimension of the array; it has {', '.join(map(str, array.dims))}")
    tensor = whole_along(array.data, [array.dims.index(name) for name in names], "map_blocks")
    mapped = _MappedArray(array, tensor, names)

    def run() -> xarray.DataArray:
        return mapped.checked(func(mapped.block(), *args, **(kwargs or {})))

    result = agree_on_result(
        "map_blocks", tensor.mesh, f"map_blocks of {tensor.shape} {tensor.dtype} along {names}", run
    )
    agree_on_result("map_blocks", tensor.mesh, f"a result of map_blocks: {mapped.common_text(result)}", lambda: None)
    return mapped.joined(result)


class _MappedArray:
    """An array that is cut over ranks: it makes the block of this rank, and joins the blocks of a result."""

    def __init__(self, array: xarray.DataArray, tensor: DTensor, core_dims: Container[Hashable]) -> None:
        self._array, self._tensor, layout = array, tensor, tensor.layout
        self._lengths = dict(zip(array.dims, tensor.shape, strict=True))
        self._mesh_dims = {
            dim: names for dim, names in zip(array.dims, layout.axes, strict=True) if names and dim not in core_dims
        }  # an axis that is cut into one block may be whole
        self._indices: dict[Hashable, Array] = {
            dim: np.zeros(0, int) for dim in self._mesh_dims
        }  # indices of this rank
        device = tensor.mesh.rank
        if device is not None:
            for axis, dim in enumerate(array.dims):
                if dim in self._mesh_dims:
                    self._indices[dim] = layout.global_indices(tensor.shape, device, axis)
        self._is_nonempty = device is not None and all(map(len, self._indices.values()))
        self._coordinates = {name: self._block_variable(coord.variable) for name, coord in array.coords.items()}

    def _block_variable(self, variable: xarray.Variable) -> xarray.Variable:
        """Return the part of a variable for the block of this rank. Collective over the mesh for a tensor."""
        if not isinstance(variable.data, DTensor):
            indices = self._indices if self._is_nonempty else {dim: slice(0, 1) for dim in self._mesh_dims}
            return variable.isel({dim: index for dim, index in indices.items() if dim in variable.dims})
        layout = Layout([self._mesh_dims.get(dim, ()) for dim in variable.dims], self._tensor.mesh)
        local = relayout(variable.data, layout)._block
        data = local if self._is_nonempty else self._placeholder(variable.dims, variable.dtype)
        return xarray.Variable(variable.dims, data, variable.attrs, variable.encoding)

    def _placeholder(self, dims: Iterable[Hashable], dtype: DType) -> Array:
        """Return an array with one element along each cut dimension."""
        shape = [1 if dim in self._mesh_dims and self._lengths[dim] else self._lengths[dim] for dim in dims]
        fill = {"f": np.nan, "c": np.nan, "M": "NaT", "m": "NaT"}.get(dtype.kind)
        return np.zeros(shape, dtype) if fill is None else np.full(shape, fill, dtype)

    def block(self) -> xarray.DataArray:
        """Return the block of this rank; on a rank without elements, one element along each cut dimension."""
        array, tensor = self._array, self._tensor
        local = tensor._block if self._is_nonempty else self._placeholder(array.dims, tensor.dtype)
        return xarray.DataArray(local, self._coordinates, array.dims, array.name, array.attrs)

    def checked(self, result: object) -> xarray.DataArray:
        """Return *result*; raise errors unless it fits the block."""
        if not isinstance(result, xarray.DataArray):
            raise TypeError(f"the function of map_blocks returns a DataArray, not {quote(result)}")
        for dim, indices in self._indices.items():
            if dim not in result.dims:
                raise ShapeError(f"the result has no dimension {quote(dim)}, which is cut: whole={quote(dim)} helps")
            n = len(indices) if self._is_nonempty else min(1, self._lengths[dim])
            if result.sizes[dim] != n:
                raise ShapeError(
                    f"the result has {result.sizes[dim]} along {quote(dim)}, which is cut; the block has {n}"
                )
        for name, coordinate in result.coords.items():
            original, is_cut = self._coordinates.get(name), not self._mesh_dims.keys().isdisjoint(coordinate.dims)
            kinds = "OT" if original is None else "OSTU"
            if (
                is_cut
                and coordinate.dtype.kind in kinds
                and (original is None or not coordinate.variable.equals(original))
            ):
                raise TypeError(
                    f"the result has other texts or objects {quote(name)} along a cut dimension: drop them"
                )
        return result

    def common_text(self, result: xarray.DataArray) -> str:
        """Return the properties that must be equal on all ranks, as text."""
        lengths = {str(dim): n for dim, n in result.sizes.items() if dim not in self._mesh_dims}
        return f"{result.dims} {lengths} {result.dtype} {sorted(map(str, result.coords))}"

    def joined(self, result: xarray.DataArray) -> xarray.DataArray:
        """Return the results of all ranks as one array. Collective over the mesh."""
        coordinates: dict[Hashable, xarray.Variable] = {}
        for name, coordinate in sorted(result.coords.items(), key=lambda item: str(item[0])):
            variable, original = coordinate.variable, self._array.coords.get(name)
            if self._mesh_dims.keys().isdisjoint(variable.dims):
                coordinates[name] = variable
            elif original is not None and variable.dtype.kind in "OSTU":  # `checked` has compared them
                coordinates[name] = original.variable
            else:
                data = self._tensor_of(variable)
                values = data.to_numpy() if name in result.xindexes else data
                if values is not None:  # None on a rank outside of the mesh
                    coordinates[name] = xarray.Variable(variable.dims, values, variable.attrs, variable.encoding)
        return xarray.DataArray(self._tensor_of(result.variable), coordinates, result.dims, result.name, result.attrs)

    def _tensor_of(self, variable: xarray.Variable) -> DTensor:
        """Return the blocks of all ranks as a tensor."""
        mesh = self._tensor.mesh
        layout = Layout([self._mesh_dims.get(dim, ()) for dim in variable.dims], mesh)
        shape = tuple(self._lengths[dim] if dim in self._mesh_dims else n for dim, n in variable.sizes.items())
        local = contiguous(variable.values)
        if not self._is_nonempty:
            block_shape = tuple(
                len(self._indices[dim]) if dim in self._mesh_dims else n for dim, n in variable.sizes.items()
            )
            local = np.empty(block_shape, variable.dtype)
        return from_local(local, layout, shape)
