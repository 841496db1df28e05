"""What xarray has to know of tensors: what their index arrays mean, that they may be indices, and who writes them.

`meshcomm.adapters.on_import` imports this module when the program has imported xarray. Of arrays that have a namespace
of the array API standard, xarray expects no more than the standard: it refuses index arrays that go together, and
assigns by several ones as if they went together. An index without axes it takes for a number if it is NumPy's only.
Decision 0036 says why this is done here.

`to_netcdf` and `to_zarr` would write the whole file on each rank; here all ranks write it, as `meshcomm.xarray.save`
does. Rolling windows of durations and dates are of their numbers, as with arrays of NumPy and Bottleneck.
"""

import importlib
from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
from xarray.core import indexing
from xarray.core.variable import Variable

from meshcomm.core.arrays.dtensor import DTensor

_METHODS = ("_vindex_get", "_vindex_set", "_oindex_set")


def _as_numpy(name: str) -> Callable[..., object]:
    """Return a method of xarray's adapter for namespaces, which treats tensors as it treats arrays of NumPy."""
    original = getattr(indexing.ArrayApiIndexingAdapter, name)

    def method(self: indexing.ArrayApiIndexingAdapter, *args: object) -> object:
        if isinstance(self.array, DTensor):
            numpys = indexing.NdArrayLikeIndexingAdapter(self.array)  # type: ignore[no-untyped-call]
            return getattr(numpys, name)(*args)
        return original(self, *args)

    return method


for _name in _METHODS:
    setattr(indexing.ArrayApiIndexingAdapter, _name, _as_numpy(_name))


def _with_plain_indices(original: Callable[..., object]) -> Callable[..., object]:
    """Return a method of xarray's variables that gets an index: its tensors become what the variable can use."""

    def method(self: Variable, key: object) -> object:
        its = self._item_key_to_tuple(key)  # type: ignore[no-untyped-call]
        if isinstance(its, tuple):
            on_tensor = isinstance(self._data, DTensor)
            key = tuple(_plain(each, on_tensor) for each in its)
        return original(self, key)

    return method


def _plain(index: object, on_tensor: bool) -> object:
    """Return an index as a number if it is one; on others than tensors, as an array of NumPy."""
    data = index._data if isinstance(index, Variable) else index  # noqa: SLF001
    if not isinstance(data, DTensor):
        return index
    if data.ndim == 0 and data.dtype.kind in "iu":
        return int(data)
    if on_tensor:
        return index
    return index.copy(data=np.asarray(data)) if isinstance(index, Variable) else np.asarray(data)


_INDEXED = "_broadcast_indexes"
setattr(Variable, _INDEXED, _with_plain_indices(getattr(Variable, _INDEXED)))


def _module(new: str, old: str) -> ModuleType:
    """Return a module of xarray by its name, or by the one that it had before 2025.9."""
    try:
        return importlib.import_module(new)
    except ImportError:
        return importlib.import_module(old)


def _is_of_ranks(variable: Variable) -> bool:
    """Return whether a variable holds a tensor, or has not been read from a file that all ranks read."""
    data = variable._data  # noqa: SLF001
    while isinstance(data, indexing.ExplicitlyIndexed) and hasattr(data, "array"):
        data = data.array
    return isinstance(data, DTensor) or getattr(data, "read_by_all_ranks", False)


def _written_by_all_ranks(name: str, original: Callable[..., object]) -> Callable[..., object]:
    """Return xarray's function *name*, which writes a dataset; one with tensors is written by all ranks."""
    arguments = signature(original)
    first, second, *_ = arguments.parameters

    @wraps(original)
    def write(*args: object, **kwargs: object) -> object:
        given = arguments.bind(*args, **kwargs).arguments
        dataset = given[first]
        if not any(map(_is_of_ranks, dataset.variables.values())):
            return original(*args, **kwargs)
        others = {key: value for key, value in given.items() if key not in (first, second)}
        writers = importlib.import_module("meshcomm.xarray.writers")  # a feature, which this adapter does not need
        return writers.write(name, dataset, {"path": given.get(second), **others})

    return write


_writers = _module("xarray.backends.writers", "xarray.backends.api")
for _name in ("to_netcdf", "to_zarr"):
    setattr(_writers, _name, _written_by_all_ranks(_name, getattr(_writers, _name)))


_Rolling = _module("xarray.computation.rolling", "xarray.core.rolling").DataArrayRolling


def _of_numbers(original: Callable[..., object]) -> Callable[..., object]:
    """Return a method of rolling windows that reduces them; of durations and dates in a tensor, their numbers."""

    @wraps(original)
    def method(self: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401 - no type of its own
        data = self.obj.variable._data  # noqa: SLF001
        if isinstance(data, DTensor) and data.dtype.kind in "mM":
            numbers = self.obj.copy(data=np.where(np.isnat(data), np.nan, data.astype("i8")))
            windows = dict(zip(self.dim, self.window, strict=True))
            centers = dict(zip(self.dim, self.center, strict=True))
            self = _Rolling(numbers, windows, self.min_periods, centers)
        return original(self, *args, **kwargs)

    return method


_REDUCED = "_array_reduce"
setattr(_Rolling, _REDUCED, _of_numbers(getattr(_Rolling, _REDUCED)))
