"""What xarray has to know of tensors: that their index arrays mean what NumPy's do, and that they may be indices.

`meshcomm.adapters.on_import` imports this module when the program has imported xarray. Of arrays that have a namespace
of the array API standard, xarray expects no more than the standard: it refuses index arrays that go together, and
assigns by several ones as if they went together. An index without axes it takes for a number if it is NumPy's only.
Decision 0036 says why this is done here.
"""

from collections.abc import Callable

from xarray.core import indexing
from xarray.core.variable import Variable

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


def _with_numbers(original: Callable[..., object]) -> Callable[..., object]:
    """Return a method of xarray's variables that gets an index: tensors without axes are numbers there."""

    def method(self: Variable, key: object) -> object:
        its = self._item_key_to_tuple(key)  # type: ignore[no-untyped-call]
        if isinstance(its, tuple) and any(map(_is_number, its)):
            key = tuple(int(each) if _is_number(each) else each for each in its)
        return original(self, key)

    return method


def _is_number(index: object) -> bool:
    data = index.data if isinstance(index, Variable) and not index.ndim else index
    return isinstance(data, DTensor) and data.ndim == 0 and data.dtype.kind in "iu"


_INDEXED = "_broadcast_indexes"
setattr(Variable, _INDEXED, _with_numbers(getattr(Variable, _INDEXED)))
