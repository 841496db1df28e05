"""Structured tensors, whose elements have fields: ``t["name"]``, and ``==``, which compares them."""

import operator
from collections.abc import Callable, Sequence

import numpy as np

from meshcomm.blocks.make import mapped
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.moved import moved_view
from meshcomm.blocks.rules import text_as_scalar
from meshcomm.blocks.views import abstract_array, viewed
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import DTypeError
from meshcomm.numpy.elementwise.signatures import implements_each


def field(tensor: DTensor, name: str) -> DTensor:
    """Return a field of all elements, as a view; an array field adds axes. ``ValueError`` if it does not exist."""
    assert tensor.dtype.names is not None
    if name not in tensor.dtype.names:
        raise ValueError(f"no field of name {name}; the tensor has {', '.join(tensor.dtype.names)}")
    layout = Layout([*tensor.layout.axes, *((),) * len(tensor.dtype[name].shape)], tensor.mesh)
    return viewed(operator.itemgetter(name), tensor, layout)


def fields(tensor: DTensor, names: Sequence[str]) -> DTensor:
    """Return several fields of all elements: a view whose elements are copied on each rank."""
    dtype = _dtype_of_fields(tensor, names)

    def copy_fields(block: Array) -> Array:
        copy = np.zeros(block.shape, dtype)
        for name in names:
            copy[name] = block[name]
        return copy

    def fetch(base: DTensor) -> DTensor:
        return mapped(copy_fields, base, dtype=dtype)

    def write_to_base(base: DTensor, view: DTensor) -> None:
        for name in names:
            field(base, name)[...] = field(view, name)

    return moved_view(tensor, fetch(tensor), abstract_array(tensor)[list(names)], fetch, write_to_base)


def set_fields(tensor: DTensor, names: Sequence[str], value: object, assign: Callable[..., None]) -> None:
    """Write *value* to several fields of all elements, as NumPy does.

    A value with fields is written field by field, in order; any other value to each field. *assign* writes a value to
    a tensor.
    """
    dtype = _dtype_of_fields(tensor, names)
    record = unwrapped(value)
    if isinstance(record, tuple):
        record = np.array(record, dtype)
    value_names = record.dtype.names if isinstance(record, DTensor | np.ndarray | np.void) else None
    if value_names is not None and len(value_names) != len(names):
        raise DTypeError(f"a value with the fields {', '.join(value_names)} is assigned to {', '.join(names)}")
    for number, name in enumerate(names):
        assign(field(tensor, name), record if value_names is None else record[value_names[number]])  # type: ignore[index]


def _dtype_of_fields(tensor: DTensor, names: Sequence[str]) -> np.dtype[np.void]:
    """Return the dtype of several fields; NumPy's ``KeyError`` if one does not exist."""
    return np.empty(0, tensor.dtype)[list(names)].dtype


def names_in(tensor: DTensor, index: object) -> str | list[str] | None:
    """Return the field name, or the list of field names, in an index; None if it is another index.

    An integer index of a single record is the number of a field, as in NumPy.
    """
    if tensor.dtype.names is None:
        return None
    if not tensor.ndim and isinstance(index, int) and not isinstance(index, bool):
        return tensor.dtype.names[index]
    if isinstance(index, str):
        return index
    if isinstance(index, list) and index and all(isinstance(name, str) for name in index):
        return list(index)
    return None


@implements_each(operator.eq, operator.ne)
def _comparison(compare: Callable[[object, object], object]) -> Callable[[object, object], object]:
    def compare_elements(left: object, right: object) -> object:
        return elementwise(compare.__name__, compare, [text_as_scalar(unwrapped(x)) for x in (left, right)])

    return compare_elements
