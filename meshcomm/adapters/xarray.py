"""What xarray has to know of tensors: that their index arrays mean what NumPy's do.

`meshcomm.adapters.on_import` imports this module when the program has imported xarray. Of arrays that have a namespace
of the array API standard, xarray expects no more than the standard: it refuses index arrays that go together, and
assigns by several ones as if they went together. Decision 0036 says why this is done here.
"""

from collections.abc import Callable

from xarray.core import indexing

from meshcomm.arrays.dtensor import DTensor

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
