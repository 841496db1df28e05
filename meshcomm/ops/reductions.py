"""Reductions of tensors: each device reduces its block, and then the devices reduce their results."""

from collections.abc import Callable, Hashable
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm._arguments import as_dtype, normalised_axes
from meshcomm._tracing import traceable
from meshcomm._types import Array, Axis, DType, Names, Shape
from meshcomm.arrays.dtensor import DTensor
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh
from meshcomm.memory.copies import exact_copy
from meshcomm.ops.rules import as_tensor, result_dtype, sharding, without
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.meshes import location_text
from meshcomm.ranks.teams import Group, Location
from meshcomm.transport.reduce import AllReduce, reduction


class Partial(NamedTuple):
    """How each device computes its share of a result, and how the devices reduce these shares.

    Parameters
    ----------
    key, text: what tells the call from others, for this rank and for all of them
    compute: makes the share of a device from its block
    names: the mesh dimensions to reduce over; without them the share is the result
    op, dtype: how to reduce, and the dtype of the result
    counts: whether the share of a device counts
    """

    key: Hashable
    text: str
    compute: Callable[[Array], Array]
    names: Names
    op: str
    dtype: DType
    counts: Callable[[int], bool] = lambda device: True


def run_partial(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> DTensor:
    """Return the result of *shape* in *layout* that devices make of their blocks of *tensor*.

    Collective over the mesh if there is something to reduce over.
    """
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


def _prepared(partial: Partial, here: Location, mesh: Mesh, n: int) -> Callable[[Array], Array]:
    """Return a function that makes the reduced result of *n* elements from the block of a device."""
    group, position = group_along(here, mesh, partial.names)
    members = [mesh.ranks.index(rank) for rank in group.members]
    counted = [i for i, device in enumerate(members) if partial.counts(device)]
    compute, reduce = partial.compute, reduction(partial.op, partial.dtype)
    run = AllReduce(group, position, reduce, n, partial.dtype.itemsize, counted=counted or None).run
    return lambda block: run(compute(block))


def group_along(here: Location, mesh: Mesh, names: Names) -> tuple[Group, int]:
    """Return the group of this device along mesh dimensions, in mesh order, and its position in it."""
    devices = next(row for row in mesh.groups_along(names) if here.device in row)
    group = here.team.group((mesh, names), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, devices.index(here.device)


_FUNCTIONS: dict[str, Callable[..., Array]] = {"sum": np.sum, "max": np.max, "min": np.min}
"""NumPy's reductions; devices reduce with an op of the same name."""


def _reduced(
    name: str, operand: object, axis: Axis, keepdims: bool, dtype: DTypeLike | None = None, *, called: str = ""
) -> DTensor:
    """Return a reduction over *axis*. Collective over the mesh if a reduced axis is sharded.

    Parameters
    ----------
    name: ``sum``, ``max`` or ``min``
    operand: a tensor, or an object that holds one
    axis: one axis, several, or None for all
    keepdims: whether reduced axes stay, with length 1
    dtype: that of a sum, by default as numpy.sum has it
    called: what the user called, if that is another name: it tells the call from others
    """
    tensor, function = as_tensor(name, operand), _FUNCTIONS[name]
    axes = normalised_axes(axis, tensor.ndim)
    shape = without(tensor.shape, axes)
    if name != "sum" and 0 not in shape and 0 in tensor.shape:
        raise ShapeError(f"the {name} over axis {axis} of shape {tensor.shape} has no elements, so there is none")
    kind = result_dtype(function, [tensor.dtype], tensor.ndim, dtype)
    source, whole = tensor.layout, tensor.shape
    options = {} if dtype is None else {"dtype": dtype}

    def counts(device: int) -> bool:
        block = source.block_shape(whole, device)
        return all(block[a] > 0 for a in axes)

    def compute(block: Array) -> Array:
        if name != "sum" and any(block.shape[a] == 0 for a in axes):  # a share that does not count
            return np.zeros(without(block.shape, axes), kind)
        return np.asarray(function(block, axis=axes, **options), order="C")

    key = ("reduce", called or name, source, tensor.shape, tensor.dtype, axes, kind)
    names = sharding(tensor.mesh, [n for a in axes for n in source.axes[a]])
    partial = Partial(key, f"{called or name} over axes {axes}", compute, names, name, kind, counts)
    result = run_partial(partial, tensor, source.delete(axes), shape)
    return _with_axes(result, axes, tensor.ndim) if keepdims else result


def _with_axes(tensor: DTensor, axes: tuple[int, ...], ndim: int) -> DTensor:
    """Return *tensor* with *ndim* axes, of which *axes* are new and have length 1. It shares the block."""
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
    """Return the sum over *axis*. Collective over the mesh if a reduced axis is sharded.

    The axes that remain keep their sharding. All devices that hold an element of the result hold the same bits.

    Parameters
    ----------
    t: a tensor
    axis: one axis, several, or None for all; ``ShapeError`` for one that is not there
    dtype: of the result, by default as numpy.sum has it
    keepdims: whether reduced axes stay, with length 1

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
    """Return the mean over *axis*. Collective over the mesh if a reduced axis is sharded.

    The dtype is by default as numpy.mean has it. As in NumPy there is a warning where there are no elements. The
    parameters are those of `sum`.
    """
    tensor = as_tensor("mean", t)
    kind = result_dtype(np.mean, [tensor.dtype], 1) if dtype is None else as_dtype(dtype)
    # As in NumPy, float16 is added up in float32.
    wide = np.float32 if dtype is None and kind == np.float16 else kind
    total = _reduced("sum", tensor, axis, keepdims, wide, called="mean")
    count = prod(tensor.shape[a] for a in normalised_axes(axis, tensor.ndim))
    if total.local is None:
        return DTensor(None, total.layout, total.shape, kind)
    return DTensor(np.asarray(total.local / count).astype(kind), total.layout, total.shape, kind)


@traceable(twin=np.max)
def max(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the maximum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the maximum where there is one. ``ShapeError`` where there are no elements, or no such axis.
    """
    return _reduced("max", t, axis, keepdims)


@traceable(twin=np.min)
def min(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the minimum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the minimum where there is one. ``ShapeError`` where there are no elements, or no such axis.
    """
    return _reduced("min", t, axis, keepdims)


@traceable()
def spread(t: DTensor | ArrayLike, axes: tuple[int, ...], shape: Shape, layout: Layout) -> DTensor:
    """Return *t* repeated along new axes: the adjoint of `sum`. Collective over the mesh if *t* has to move.

    Parameters
    ----------
    t: has the axes of *shape* that are not in *axes*
    axes: the new axes
    shape, layout: of the result
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
