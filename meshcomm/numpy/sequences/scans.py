"""Cumulative sums and products of tensors, and differences.

Each device computes those of its block. Then the totals of the blocks along the axis are scanned: one small exchange,
in which each device gets the total of all blocks before its own, and adds it. So the order of summation is that within
a block, and then that of the blocks. An axis that is dealt round (`Cyclic`) is relaid to consecutive blocks over the
same mesh dimensions, and the result back.
"""

import operator
from collections.abc import Callable
from math import prod
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.cyclic import CyclicCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.meshes import location_text
from meshcomm.core.ranks.teams import Location
from meshcomm.core.transport.reduce import ExclusiveScan
from meshcomm.numpy.elementwise.elementwise import relaid
from meshcomm.numpy.elementwise.rules import result_dtype, sharding
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.reductions.reductions import group_along


@implements(np.cumsum, partly=True)
def cumsum(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the sums of the elements up to each one along *axis*. Collective over the mesh if that axis is sharded.

    As numpy.cumsum, in the layout of *a*. float16 is added up in float32 if several devices do.

    Parameters
    ----------
    a: a tensor
    axis: along which; without it, along all elements in C order, with one axis
    dtype: of the result, by default as numpy.cumsum has it

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
    """Return the products of the elements up to each one along *axis*, as `cumsum`. Collective as that one."""
    return _cumulative(_PRODUCT, np.cumprod, a, axis, dtype)


@implements(np.nancumsum, partly=True)
def nancumsum(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the sums up to each element along *axis*, NaN as zero, as `cumsum`. Collective as that one."""
    return _cumulative(_SUM, np.nancumsum, a, axis, dtype)


@implements(np.nancumprod, partly=True)
def nancumprod(a: DTensor, axis: SupportsIndex | None = None, dtype: DTypeLike | None = None) -> DTensor:
    """Return the products up to each element along *axis*, NaN as one, as `cumsum`. Collective as that one."""
    return _cumulative(_PRODUCT, np.nancumprod, a, axis, dtype)


@implements(np.diff, partly=True)
def diff(
    a: DTensor,
    n: SupportsIndex = 1,
    axis: SupportsIndex = -1,
    prepend: DTensor | ArrayLike | None = None,
    append: DTensor | ArrayLike | None = None,
) -> DTensor:
    """Return the differences of neighbours along *axis*, *n* times. Collective over the mesh if that axis is sharded.

    As numpy.diff. The result is cut as *a* is, where the second one of two neighbours is; so only elements next to
    the cuts move, or one of each block that is dealt round. With *prepend* or *append*, elements to put before *a* and
    behind it first, others move, too. ``ValueError`` if *n* is negative, ``ShapeError`` if there is no such axis.

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
    (along,) = normalised_axes(operator.index(axis), tensor.ndim)
    if prepend is not None or append is not None:
        joined = [_as_edge(x, tensor, along) for x in (prepend, tensor, append) if x is not None]
        tensor = concatenate(joined, along)
    axes = tensor.layout.axes
    before = (slice(None),) * along
    for _ in range(times):
        function = np.not_equal if tensor.dtype == bool else np.subtract
        found: Value = function(tensor[(*before, slice(1, None))], tensor[(*before, slice(None, -1))])
        tensor = found
    return relaid(tensor, axes, "numpy.diff") if isinstance(axes[along], Cyclic) else tensor


def _as_edge(x: Value, tensor: DTensor, along: int) -> Value:
    """Return a number as one element along an axis, for all others; what is no number is an edge itself."""
    if np.ndim(x):
        return x
    shape = [1 if axis == along else n for axis, n in enumerate(tensor.shape)]
    return np.broadcast_to(x if isinstance(x, DTensor) else np.asarray(x), shape)


_SUM, _PRODUCT = np.add, np.multiply


class Scan(NamedTuple):
    """A function along one axis of a tensor, whose results are those of all elements up to each one.

    Parameters
    ----------
    name: of the operation
    function: of NumPy, which takes a block, ``axis=`` and ``dtype=``
    ufunc: combines two results; it is associative
    axis: counted from 0
    dtype: of the result
    """

    name: str
    function: Callable[..., Array]
    ufunc: np.ufunc
    axis: int
    dtype: DType

    @property
    def wide(self) -> DType:
        """The dtype of the computation: float32 for float16."""
        return np.dtype(np.float32) if self.dtype == np.float16 else self.dtype


def _cumulative(
    ufunc: np.ufunc,
    function: Callable[..., Array],
    operand: object,
    axis: SupportsIndex | None,
    dtype: DTypeLike | None,
) -> DTensor:
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    kind = result_dtype(function, [tensor.dtype], 1, dtype)
    if axis is None:
        tensor, axis = tensor.ravel(), 0
    if isinstance(axis, tuple | list):
        raise TypeError(f"numpy.{name} takes one axis, not {axis!r}")
    (along,) = normalised_axes(axis, tensor.ndim)
    return accumulated(Scan(name, function, ufunc, along, kind), tensor)


def accumulated(scan: Scan, tensor: DTensor) -> DTensor:
    """Return a scan in the layout of *tensor*. Collective over the mesh if its axis is sharded."""
    if not isinstance(tensor.layout.cut(scan.axis, tensor.shape[scan.axis]), CyclicCut):
        return _scanned(scan, tensor)
    axes = tensor.layout.axes
    consecutive = relaid(tensor, (*axes[: scan.axis], tuple(axes[scan.axis]), *axes[scan.axis + 1 :]), scan.name)
    return relaid(_scanned(scan, consecutive), axes, scan.name)


def _scanned(scan: Scan, tensor: DTensor) -> DTensor:
    """Return the scan of a tensor whose blocks are consecutive. Collective over the mesh if the axis is sharded."""
    mesh, layout, shape = tensor.mesh, tensor.layout, tensor.shape
    if tensor.local is None:
        return DTensor(None, layout, shape, scan.dtype)
    if not sharding(mesh, layout.axes[scan.axis]):
        local = scan.function(tensor.local, axis=scan.axis, dtype=scan.dtype)
        return DTensor(np.asarray(local, order="C"), layout, shape, scan.dtype)
    name, kind = scan.name, tensor.dtype
    key = (name, layout, shape, kind, scan.axis, scan.dtype)
    made = _SCAN(name, (mesh, mesh), key, (scan, layout, shape, kind), (tensor.local,))
    return DTensor(made, layout, shape, scan.dtype)


def _text(scan: Scan, layout: Layout, shape: Shape, kind: DType) -> str:
    where = f"{specs_text(layout.sharding_specs)} on {location_text(layout.mesh)}"
    return f"{scan.name} along axis {scan.axis} in {scan.dtype} of {shape} {kind} in {where}"


def _prepared(scan: Scan, layout: Layout, shape: Shape, kind: DType, here: Location) -> Callable[[Array], Array]:
    """Return a function that makes the block of the result from that of the tensor."""
    mesh, axis = layout.mesh, scan.axis
    group, position = group_along(here, mesh, sharding(mesh, layout.axes[axis]))
    devices = [mesh.ranks.index(rank) for rank in group.members]
    filled = [i for i, device in enumerate(devices) if layout.block_shape(shape, device)[axis]]
    order = sorted(filled, key=lambda i: layout.block_numbers(devices[i])[axis])
    mine = layout.block_shape(shape, here.device)
    n = prod(length for a, length in enumerate(mine) if a != axis)
    before = ExclusiveScan(group, position, scan.ufunc, n, scan.wide.itemsize, order=order).run
    is_first = position not in order[1:]  # or has no elements

    def run(block: Array) -> Array:
        # What happens to the numbers of one rank must not stop it while the others go on to the exchange.
        with np.errstate(all="ignore"):
            result = np.asarray(scan.function(block, axis=axis, dtype=scan.wide), order="C")
            if block.shape[axis]:
                totals = np.asarray(result.take(-1, axis=axis), order="C")
            else:
                totals = np.zeros(block.shape[:axis] + block.shape[axis + 1 :], scan.wide)
            carried = before(totals)
            if not is_first:
                scan.ufunc(result, np.expand_dims(carried, axis), out=result)
            return result.astype(scan.dtype, copy=False)

    return run


_SCAN = Collective[Array](_text, _prepared)
