"""The text of tensors, as NumPy prints arrays. Collective: of a large tensor, only the corners are gathered."""

from collections.abc import Callable

import numpy as np

from meshcomm.blocks.small import allgather_array
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.taking import take


def _summary(
    name: str, tensor: DTensor, threshold: int | None, edgeitems: int | None
) -> tuple[Array, dict[str, Value]]:
    """Return an array that NumPy prints like *tensor*, and the print options for it. Collective.

    If the tensor has more elements than *threshold*, the array has only its corners: of each long axis *edgeitems*
    elements at both ends, and one between them, for which NumPy prints dots.
    """
    options = np.get_printoptions()
    max_size = options["threshold"] if threshold is None else threshold
    edge_items = options["edgeitems"] if edgeitems is None else edgeitems
    if tensor.size <= max_size:
        return allgather_array(name, tensor), {"threshold": max_size, "edgeitems": edge_items}
    summary = tensor
    for axis, n in enumerate(tensor.shape):
        if n > 2 * edge_items + 1:
            summary = take(summary, np.r_[0 : edge_items + 1, n - edge_items : n], axis)
    return allgather_array(name, summary), {"threshold": 0, "edgeitems": edge_items}


@implements(np.array2string)
def array2string(
    a: DTensor,
    *args: object,
    threshold: int | None = None,
    edgeitems: int | None = None,
    **options: object,
) -> str:
    """Return the text of a tensor. Arguments are those of `numpy.array2string`."""
    summary, print_options = _summary("array2string", as_tensor("array2string", a), threshold, edgeitems)
    text: Callable[..., str] = np.array2string
    return text(summary, *args, **print_options, **options)


@implements(np.array_str)
def array_str(
    a: DTensor, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the text of a tensor, as ``str`` does of an array."""
    summary, print_options = _summary("array_str", as_tensor("array_str", a), None, None)
    with np.printoptions(**print_options):
        return np.array_str(summary, max_line_width, precision, suppress_small)


@implements(np.array_repr)
def array_repr(
    arr: DTensor, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the text of a tensor, as ``repr`` does of an array."""
    tensor = as_tensor("array_repr", arr)
    summary, print_options = _summary("array_repr", tensor, None, None)
    with np.printoptions(**print_options):
        if summary.shape == tensor.shape:
            return np.array_repr(summary, max_line_width, precision, suppress_small)
        width = np.get_printoptions()["linewidth"] if max_line_width is None else max_line_width
        text = np.array2string(summary, width, precision, suppress_small, ", ", "array(", suffix=")")
    extras = [f"shape={tensor.shape}"]
    if "dtype=" in np.array_repr(np.zeros(1, tensor.dtype)):
        extras.append("dtype=" + np.array_repr(np.zeros(0, tensor.dtype)).partition("dtype=")[2][:-1])
    head, tail = f"array({text},", f"{', '.join(extras)})"
    fits_line = len(head) - head.rfind("\n") + len(tail) <= width
    return head + (" " if fits_line else "\n" + " " * len("array(")) + tail
