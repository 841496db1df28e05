"""Structured tensors, whose elements have fields: ``t["name"]``, and ``==``, which compares them."""

import operator
from collections.abc import Callable, Sequence

import numpy as np

from meshcomm.blocks.make import mapped
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.moved import moved_from
from meshcomm.blocks.rules import text_as_scalar
from meshcomm.blocks.views import abstract_array, viewed
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import DTypeError
from meshcomm.numpy.elementwise.signatures import implements_each


def field(tensor: DTensor, name: str) -> DTensor:
    """Return a field of all elements, a view. A field that is an array adds axes. ``ValueError`` if there is none."""
    assert tensor.dtype.names is not None
    if name not in tensor.dtype.names:
        raise ValueError(f"no field of name {name}; the tensor has {', '.join(tensor.dtype.names)}")
    layout = Layout([*tensor.layout.axes, *((),) * len(tensor.dtype[name].shape)], tensor.mesh)
    return viewed(operator.itemgetter(name), tensor, layout)


def fields(tensor: DTensor, names: Sequence[str]) -> DTensor:
    """Return some fields of all elements: a view, of which each rank has a copy."""
    kind = _dtype_of_fields(tensor, names)

    def copied(block: Array) -> Array:
        copy = np.zeros(block.shape, kind)
        for name in names:
            copy[name] = block[name]
        return copy

    def fetch(base: DTensor) -> DTensor:
        return mapped(copied, base, dtype=kind)

    def send(base: DTensor, view: DTensor) -> None:
        for name in names:
            field(base, name)[...] = field(view, name)

    return moved_from(tensor, fetch(tensor), abstract_array(tensor)[list(names)], fetch, send)


def set_fields(tensor: DTensor, names: Sequence[str], value: object, assign: Callable[..., None]) -> None:
    """Write *value* to some fields of all elements, as NumPy does: its fields in their order, or the same to each.

    *assign* writes a value to a tensor.
    """
    kind = _dtype_of_fields(tensor, names)
    record = unwrapped(value)
    if isinstance(record, tuple):
        record = np.array(record, kind)
    of = record.dtype.names if isinstance(record, DTensor | np.ndarray | np.void) else None
    if of is not None and len(of) != len(names):
        raise DTypeError(f"a value with the fields {', '.join(of)} is assigned to {', '.join(names)}")
    for number, name in enumerate(names):
        assign(field(tensor, name), record if of is None else record[of[number]])  # type: ignore[index]


def _dtype_of_fields(tensor: DTensor, names: Sequence[str]) -> np.dtype[np.void]:
    """Return the dtype of some fields. ``KeyError`` if there is no such one, as NumPy raises it."""
    return np.empty(0, tensor.dtype)[list(names)].dtype


def names_in(tensor: DTensor, index: object) -> str | list[str] | None:
    """Return the names of fields that an index is: one, or a list of them; None if it is another index.

    Of one record, as of NumPy's, an integer is the number of a field.
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
    def compared(left: object, right: object) -> object:
        return elementwise(compare.__name__, compare, [text_as_scalar(unwrapped(x)) for x in (left, right)])

    return compared
