"""Reductions of tensors."""

from collections.abc import Callable, Hashable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm._arguments import as_dtype, normalised_axes
from meshcomm._tracing import traceable
from meshcomm._types import Array, Axis, Names, Shape
from meshcomm.arrays.dtensor import DTensor, location_text, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import LayoutError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.memory.copies import exact_copy
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.teams import Group, Location
from meshcomm.transport.reduce import AllReduce, reduction


def _group_along(here: Location, mesh: Mesh, names: Names) -> tuple[Group, int]:
    """Return the group of this device along mesh dimensions, in mesh order, and its position in it."""
    devices = next(row for row in mesh.groups_along(names) if here.device in row)
    group = here.team.group((mesh, names), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, devices.index(here.device)


def sharding(mesh: Mesh, names: set[str]) -> Names:
    """Return those of *names* that cut something, in the order of the mesh."""
    return tuple(name for name, size in mesh.dims if name in names and size > 1)


class Partial(NamedTuple):
    """A result of which each device computes its share, and that is then reduced over the mesh dimensions *names*.

    Parameters
    ----------
    key, text: what tells the call from others, for this rank and for all of them
    compute: makes the share of a device from its block
    names: the mesh dimensions to reduce over
    op, dtype: how to reduce, and what
    counted: whether the share of a device counts
    """

    key: Hashable
    text: str
    compute: Callable[[Array], Array]
    names: Names
    op: str
    dtype: np.dtype[Any]
    counted: Callable[[int], bool] = lambda device: True


def _prepared(partial: Partial, here: Location, mesh: Mesh, n: int) -> Callable[[Array], Array]:
    """Return what makes the reduced result of *n* elements from the block of a device."""
    group, position = _group_along(here, mesh, partial.names)
    members = [mesh.ranks.index(rank) for rank in group.members]
    counted = [i for i, device in enumerate(members) if partial.counted(device)]
    compute, reduce = partial.compute, reduction(partial.op, partial.dtype)
    run = AllReduce(group, position, reduce, n, partial.dtype.itemsize, counted=counted or None).run
    return lambda block: run(compute(block))


class _Reduction(NamedTuple):
    """One of NumPy's reductions: as it reduces a block, and as results of blocks are reduced."""

    function: Callable[..., Any]
    op: str


_REDUCTIONS = {
    "sum": _Reduction(np.sum, "sum"),
    "max": _Reduction(np.max, "max"),
    "min": _Reduction(np.min, "min"),
}


def as_tensor(name: str, operand: Any) -> DTensor:
    """Return the tensor that *operand* is or holds; ``LayoutError`` for an array."""
    tensor = unwrapped(operand)
    if not isinstance(tensor, DTensor):
        raise LayoutError(f"{name} is for DTensors, not for {type(operand).__name__}; NumPy has its own for arrays")
    return tensor


def _reduced(name: str, operand: Any, axis: Axis, keepdims: bool, dtype: DTypeLike | None = None) -> DTensor:
    """Return a reduction over *axis*. Collective over the mesh if a reduced axis is sharded, else Local."""
    tensor, (function, op) = as_tensor(name, operand), _REDUCTIONS[name]
    axes = normalised_axes(axis, tensor.ndim)
    shape = tuple(n for a, n in enumerate(tensor.shape) if a not in axes)
    if name != "sum" and 0 not in shape and 0 in tensor.shape:
        raise ShapeError(f"the {name} over axis {axis} of shape {tensor.shape} has no elements, so there is none")
    options = {} if dtype is None else {"dtype": dtype}
    kind = np.asarray(function(np.ones((1,) * tensor.ndim, tensor.dtype), axis=axes, **options)).dtype
    layout, source, whole = tensor.layout.delete(axes), tensor.layout, tensor.shape
    names = sharding(tensor.mesh, {n for a in axes for n in source.axes[a]})

    def counted(device: int) -> bool:
        block = source.block_shape(whole, device)
        return all(block[a] > 0 for a in axes)

    def compute(block: Array) -> Array:
        if name != "sum" and any(block.shape[a] == 0 for a in axes):  # nothing here that counts
            return np.zeros([n for a, n in enumerate(block.shape) if a not in axes], kind)
        return np.asarray(function(block, axis=axes, **options), order="C")

    key = ("reduce", name, source, tensor.shape, tensor.dtype, axes, kind)
    partial = Partial(key, f"{name} over axes {axes}", compute, names, op, kind, counted)
    result = run_partial(partial, tensor, layout, shape)
    return _with_axes(result, axes, tensor.ndim) if keepdims else result


def run_partial(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> DTensor:
    """Return the result of *shape* in *layout*, reduced over what devices make of their blocks. Collective."""
    mesh, dtype = layout.mesh, partial.dtype

    def describe() -> str:
        specs = tensor.layout.sharding_specs
        return f"{partial.text} of {tensor.shape} {tensor.dtype} in {specs} on {location_text(mesh)}"

    if tensor.local is None:
        return DTensor(None, layout, shape, dtype)
    if not partial.names:
        return DTensor(partial.compute(tensor.local), layout, shape, dtype)
    with collective(partial.text, mesh) as here:
        assert here is not None
        n = prod(layout.block_shape(shape, here.device))
        run = program(here.team, partial.key, describe, lambda: _prepared(partial, here, mesh, n))
        local = run(tensor.local)
    return DTensor(local, layout, shape, dtype)


def _with_axes(tensor: DTensor, axes: tuple[int, ...], ndim: int) -> DTensor:
    """Return *tensor* with axes of length 1 at *axes* of its new *ndim*, sharing its block. Local."""
    lengths, names = iter(tensor.shape), iter(tensor.layout.axes)
    shape = tuple(1 if a in axes else next(lengths) for a in range(ndim))
    layout = Layout([() if a in axes else next(names) for a in range(ndim)], tensor.mesh)
    local = tensor.local
    if local is not None:
        kept = iter(local.shape)
        local = local.reshape([1 if a in axes else next(kept) for a in range(ndim)])
    return DTensor(local, layout, shape, tensor.dtype)


@traceable(twin=np.sum)
def sum(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the sum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    Of the dtype that numpy.sum has. The axes that remain keep their sharding, and all devices that hold an element of
    the result hold it to the same last bit. ``ShapeError`` for an axis that is not there.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.ones((3, 2)), mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.sum(axis=0).local.tolist(), float(t.sum())
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([3.0, 3.0], 6.0), ([3.0, 3.0], 6.0)]
    """
    return _reduced("sum", t, axis, keepdims, dtype)


@traceable(twin=np.mean)
def mean(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the mean over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    Of the dtype that numpy.mean has, and as it with a warning where there are no elements. Otherwise as `sum`.
    """
    tensor = as_tensor("mean", t)
    kind = np.mean(np.ones(1, tensor.dtype)).dtype if dtype is None else as_dtype(dtype)
    # As in NumPy, float16 is added up in float32.
    total = _reduced("sum", tensor, axis, keepdims, np.float32 if dtype is None and kind == np.float16 else kind)
    count = prod(tensor.shape[a] for a in normalised_axes(axis, tensor.ndim))
    if total.local is None:
        return DTensor(None, total.layout, total.shape, kind)
    return DTensor(np.asarray(total.local / count).astype(kind), total.layout, total.shape, kind)


@traceable(twin=np.max)
def max(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the maximum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    NaN where there is one, as numpy.max. ``ShapeError`` where there are no elements, or no such axis.
    """
    return _reduced("max", t, axis, keepdims)


@traceable(twin=np.min)
def min(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the minimum over *axis*, one, several or all. Collective over the mesh if one is sharded, else Local.

    NaN where there is one, as numpy.min. ``ShapeError`` where there are no elements, or no such axis.
    """
    return _reduced("min", t, axis, keepdims)


@traceable()
def spread(t: DTensor | ArrayLike, axes: tuple[int, ...], shape: tuple[int, ...], layout: Layout) -> DTensor:
    """Return *t*, repeated along new *axes* of a tensor of *shape* in *layout*: the adjoint of `sum`. Collective.

    *t* has the other axes of *shape*. Local if they are sharded as in *layout* already.
    """
    narrow = layout.delete(axes)
    if not isinstance(t, DTensor):
        t = relayout(t, narrow)
    if t.layout.axes != narrow.axes or t.mesh is not layout.mesh:
        t = relayout(t, narrow)
    local = t.local
    if local is not None:
        device = layout.mesh.rank
        assert device is not None
        wide = np.expand_dims(local, axes)
        local = exact_copy(np.broadcast_to(wide, layout.block_shape(shape, device)))
    return DTensor(local, layout, shape, t.dtype)
