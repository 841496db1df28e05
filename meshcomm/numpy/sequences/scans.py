"""Cumulative sums and products of tensors, and differences.

Each device computes the cumulative sums of its block. Then the totals of the blocks along the axis are scanned: in one
small exchange each device gets the total of all blocks before its own, and adds it. So elements are added up within
blocks first, and then the blocks in their order. A `Cyclic` axis is relaid to consecutive blocks over the same mesh
dimensions, and the result back.
"""

import operator
from collections.abc import Callable
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.rules import result_dtype
from meshcomm.blocks.scan import Scan, accumulated
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays._recipes import Call, Recipe
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.numpy.elementwise.signatures import implements, operation
from meshcomm.numpy.joining.joining import concatenate


@implements(np.cumsum, partly=True)
def cumsum(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the sums of the elements up to each one along *axis*. Collective over the mesh if that axis is sharded.

    As numpy.cumsum, in the layout of *a*. float16 is added up in float32 if several devices do.

    Parameters
    ----------
    a: a tensor
    axis: axis along which to add; None for the flattened tensor
    dtype: dtype of the result; by default that of numpy.cumsum

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(5), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.cumsum(t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0, 1, 3], [6, 10]]
    """
    return _cumulative(_SUM, np.cumsum, a, axis, dtype)


@implements(np.cumprod, partly=True)
def cumprod(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the products of the elements up to each one along *axis*, as `cumsum`. Collective as `cumsum`."""
    return _cumulative(_PRODUCT, np.cumprod, a, axis, dtype)


@implements(np.nancumsum, partly=True)
def nancumsum(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the sums up to each element along *axis*, NaN as zero, as `cumsum`. Collective as `cumsum`."""
    return _cumulative(_SUM, np.nancumsum, a, axis, dtype)


@implements(np.nancumprod, partly=True)
def nancumprod(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the products up to each element along *axis*, NaN as one, as `cumsum`. Collective as `cumsum`."""
    return _cumulative(_PRODUCT, np.nancumprod, a, axis, dtype)


@operation(np.diff, partly=True)
def diff(
    a: DTensor,
    n: SupportsIndex = 1,
    axis: SupportsIndex = -1,
    prepend: DTensor | ArrayLike | None = None,
    append: DTensor | ArrayLike | None = None,
) -> Call | DTensor:
    """Return the differences of neighbours along *axis*, *n* times. Collective over the mesh if that axis is sharded.

    As numpy.diff. The result is cut as *a* is: each difference is on the device of its second element. So only
    elements next to the cuts move, or one of each cyclic block. *prepend* and *append* are elements to put before and
    after *a* first; with them, others move, too. ``ValueError`` if *n* is negative, ``ShapeError`` if there is no such
    axis.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1, 4, 9, 16]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.diff(t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3], [5, 7]]
    """
    tensor, times = as_tensor("numpy.diff", a), operator.index(n)
    if times < 0:
        raise ValueError(f"numpy.diff: n must not be negative, but is {times}")
    if times == 0:
        return tensor
    if isinstance(axis, tuple | list):
        raise TypeError(f"numpy.diff takes one axis, not {axis!r}")
    (diff_axis,) = normalised_axes(operator.index(axis), tensor.ndim)
    if prepend is not None or append is not None:
        pieces = [_as_edge(x, tensor, diff_axis) for x in (prepend, tensor, append) if x is not None]
        tensor = concatenate(pieces, diff_axis)
    return Call(Recipe(lambda tensor: _differences(tensor, times, diff_axis)), (tensor,))


def _differences(tensor: DTensor, times: int, diff_axis: int) -> DTensor:
    layout, leading = tensor.layout, (slice(None),) * diff_axis
    for _ in range(times):
        function = np.not_equal if tensor.dtype == bool else np.subtract
        differences: Value = function(tensor[(*leading, slice(1, None))], tensor[(*leading, slice(None, -1))])
        tensor = differences
    return relaid(tensor, layout.axes, "numpy.diff") if layout.cyclic(diff_axis) else tensor


def _as_edge(x: Value, tensor: DTensor, diff_axis: int) -> Value:
    """Return a number as an array of length 1 along *diff_axis*, repeated along the others; an array as it is."""
    if np.ndim(x):
        return x
    shape = [1 if axis == diff_axis else n for axis, n in enumerate(tensor.shape)]
    return np.broadcast_to(x if isinstance(x, DTensor) else np.asarray(x), shape)


_SUM, _PRODUCT = np.add, np.multiply


def _cumulative(
    ufunc: np.ufunc,
    function: Callable[..., Array],
    operand: object,
    axis: SupportsIndex | None,
    dtype: DTypeLike | None,
) -> DTensor:
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    out_dtype = result_dtype(function, [tensor.dtype], 1, dtype)
    if axis is None:
        tensor, axis = tensor.ravel(), 0
    if isinstance(axis, tuple | list):
        raise TypeError(f"numpy.{name} takes one axis, not {axis!r}")
    (scan_axis,) = normalised_axes(axis, tensor.ndim)
    return accumulated(Scan(name, function, ufunc, scan_axis, out_dtype), tensor)
