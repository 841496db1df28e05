"""Support of xarray for tensors: index arrays of tensors, tensors as indices, and writing by all ranks.

`meshcomm.adapters.on_import` imports this module when the program has imported xarray. For arrays with a namespace of
the array API standard, xarray uses no more than the standard: it refuses index arrays that broadcast together, and
assigns by several index arrays as if they broadcast. It takes an index without axes for a number only if it is
NumPy's. Decision 0036 says why this is done here.

`to_netcdf` and `to_zarr` would write the whole file on each rank; here all ranks write it together, as
`meshcomm.xarray.save` does.
"""

import importlib
from collections.abc import Callable
from functools import wraps
from inspect import signature

import numpy as np
from xarray.core import indexing
from xarray.core.variable import Variable

from meshcomm.adapters.xarray_variables import is_of_ranks, module_of
from meshcomm.core.arrays.dtensor import DTensor

_METHODS = ("_vindex_get", "_vindex_set", "_oindex_set")


def _as_numpy(name: str) -> Callable[..., object]:
    """Return a method of xarray's adapter for namespaces that treats tensors as arrays of NumPy."""
    original = getattr(indexing.ArrayApiIndexingAdapter, name)

    def method(self: indexing.ArrayApiIndexingAdapter, *args: object) -> object:
        if isinstance(self.array, DTensor):
            numpy_adapter = indexing.NdArrayLikeIndexingAdapter(self.array)
            return getattr(numpy_adapter, name)(*args)
        return original(self, *args)

    return method


for _name in _METHODS:
    setattr(indexing.ArrayApiIndexingAdapter, _name, _as_numpy(_name))


def _with_plain_indices(original: Callable[..., object]) -> Callable[..., object]:
    """Return a method of xarray's variables, with tensors in its index converted for the variable."""

    def method(self: Variable, key: object) -> object:
        items = self._item_key_to_tuple(key)
        if isinstance(items, tuple):
            on_tensor = isinstance(self._data, DTensor)
            key = tuple(_plain_index(item, on_tensor) for item in items)
        return original(self, key)

    return method


def _plain_index(index: object, on_tensor: bool) -> object:
    """Return a tensor that is an index as a number, if it is one; or as an array of NumPy, unless *on_tensor*."""
    data = index._data if isinstance(index, Variable) else index  # noqa: SLF001
    if not isinstance(data, DTensor):
        return index
    if data.ndim == 0 and data.dtype.kind in "iu":
        return int(data)
    if on_tensor:
        return index
    return index.copy(data=np.asarray(data)) if isinstance(index, Variable) else np.asarray(data)


_INDEX_METHOD = "_broadcast_indexes"
setattr(Variable, _INDEX_METHOD, _with_plain_indices(getattr(Variable, _INDEX_METHOD)))


def _written_by_all_ranks(name: str, original: Callable[..., object]) -> Callable[..., object]:
    """Return xarray's function *name*, which writes a dataset, so that all ranks write a dataset with tensors."""
    call_signature = signature(original)
    dataset_parameter, path_parameter, *_ = call_signature.parameters

    @wraps(original)
    def write(*args: object, **kwargs: object) -> object:
        arguments = call_signature.bind(*args, **kwargs).arguments
        dataset = arguments[dataset_parameter]
        if not any(map(is_of_ranks, dataset.variables.values())):
            return original(*args, **kwargs)
        options = {key: value for key, value in arguments.items() if key not in (dataset_parameter, path_parameter)}
        writers = importlib.import_module("meshcomm.xarray.writers")  # a feature, which this adapter does not need
        return writers.write(name, dataset, {"path": arguments.get(path_parameter), **options})

    return write


_writers = module_of("xarray.backends.writers", "xarray.backends.api")
for _name in ("to_netcdf", "to_zarr"):
    setattr(_writers, _name, _written_by_all_ranks(_name, getattr(_writers, _name)))

importlib.import_module("meshcomm.adapters.xarray_reductions")
