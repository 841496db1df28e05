"""The text of tensors, as NumPy prints arrays. Collective: of a large tensor, only the corners come to all ranks."""

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
    """Return an array that NumPy prints like *tensor*, and the options for it. Collective.

    Of a tensor with more elements than *threshold* it has the corners: of each long axis *edgeitems* elements at both
    ends, and one between, for which NumPy prints dots.
    """
    options = np.get_printoptions()
    limit = options["threshold"] if threshold is None else threshold
    edge = options["edgeitems"] if edgeitems is None else edgeitems
    if tensor.size <= limit:
        return allgather_array(name, tensor), {"threshold": limit, "edgeitems": edge}
    shown = tensor
    for axis, n in enumerate(tensor.shape):
        if n > 2 * edge + 1:
            shown = take(shown, np.r_[0 : edge + 1, n - edge : n], axis)
    return allgather_array(name, shown), {"threshold": 0, "edgeitems": edge}


@implements(np.array2string)
def array2string(
    a: DTensor,
    *args: object,
    threshold: int | None = None,
    edgeitems: int | None = None,
    **options: object,
) -> str:
    """Return the text of a tensor. Arguments are those of `numpy.array2string`."""
    shown, limits = _summary("array2string", as_tensor("array2string", a), threshold, edgeitems)
    text: Callable[..., str] = np.array2string
    return text(shown, *args, **limits, **options)


@implements(np.array_str)
def array_str(
    a: DTensor, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the text of a tensor, as ``str`` does of an array."""
    shown, limits = _summary("array_str", as_tensor("array_str", a), None, None)
    with np.printoptions(**limits):
        return np.array_str(shown, max_line_width, precision, suppress_small)


@implements(np.array_repr)
def array_repr(
    arr: DTensor, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """Return the text of a tensor, as ``repr`` does of an array."""
    tensor = as_tensor("array_repr", arr)
    shown, limits = _summary("array_repr", tensor, None, None)
    with np.printoptions(**limits):
        if shown.shape == tensor.shape:
            return np.array_repr(shown, max_line_width, precision, suppress_small)
        width = np.get_printoptions()["linewidth"] if max_line_width is None else max_line_width
        text = np.array2string(shown, width, precision, suppress_small, ", ", "array(", suffix=")")
    extras = [f"shape={tensor.shape}"]
    if "dtype=" in np.array_repr(np.zeros(1, tensor.dtype)):
        extras.append("dtype=" + np.array_repr(np.zeros(0, tensor.dtype)).partition("dtype=")[2][:-1])
    begin, end = f"array({text},", f"{', '.join(extras)})"
    fits = len(begin) - begin.rfind("\n") + len(end) <= width
    return begin + (" " if fits else "\n" + " " * len("array(")) + end
