"""Reductions of tensors: each device reduces its block, and then the devices reduce their results."""

from collections.abc import Callable, Hashable
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.core._arguments import reduced_axes
from meshcomm.core._callers import warn
from meshcomm.core._tracing import traceable
from meshcomm.core._types import Array, Axis, DType, Names, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.copies import exact_copy
from meshcomm.core.ranks.calls import Collective, agree_on, collective
from meshcomm.core.ranks.meshes import location_text
from meshcomm.core.ranks.teams import Group, Location
from meshcomm.core.transport.reduce import AllReduce, reduction
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.rules import result_dtype, sharding, without
from meshcomm.numpy.elementwise.stretches import in_stretches

Merge: TypeAlias = Callable[[Array], Array]
"""A function that merges the shares of devices, the rows of an array, to one row: in the order of the rows."""


def unchanged(array: Array) -> Array:
    """Return *array*: a share that is a result already."""
    return array


class Partial(NamedTuple):
    """How each device computes its share of a result, and how the devices reduce these shares.

    Parameters
    ----------
    key, text: what tells the call from others, for this rank and for all of them
    compute: makes the share of a device from its block
    names: the mesh dimensions to reduce over; without them the share is the result
    op: how to reduce: ``sum``, ``prod``, ``min`` or ``max``, or a function for shares of several fields
    dtype: of the result
    counts: whether the share of a device counts
    shares: the dtype of the shares, by default that of the result
    finish: makes the result from what the shares were reduced to
    """

    key: Hashable
    text: str
    compute: Callable[[Array], Array]
    names: Names
    op: str | Merge
    dtype: DType
    counts: Callable[[int], bool] = lambda device: True
    shares: DType | None = None
    finish: Callable[[Array], Array] = unchanged


def run_partial(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> DTensor:
    """Return the result of *shape* in *layout* that devices make of their blocks of *tensor*.

    Collective over the mesh if there is something to reduce over.
    """
    mesh, dtype = layout.mesh, partial.dtype
    if tensor.local is None:
        return DTensor(None, layout, shape, dtype)
    if tensor.dtype.kind in "SU":
        partial, tensor = _computed_by_all(partial, tensor, layout, shape)
    if not partial.names:
        return DTensor(partial.finish(partial.compute(tensor.local)), layout, shape, dtype)
    reduced = _REDUCE(partial.text, (mesh, mesh), partial.key, (partial, tensor, layout, shape), (tensor.local,))
    assert reduced is not None
    return DTensor(partial.finish(reduced), layout, shape, dtype)


def _computed_by_all(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> tuple[Partial, DTensor]:
    """Return what is left to do once all ranks have their shares: no dtype tells whether texts are numbers."""
    with collective(partial.text, tensor.mesh) as here:
        assert here is not None
        block, text = tensor.local, _text(partial, tensor, layout, shape)
        share = agree_on(here.team, f"shares of {text}", lambda: partial.compute(block))
    return partial._replace(key=(partial.key, "of texts"), compute=unchanged), DTensor(
        share, tensor.layout, tensor.shape, tensor.dtype
    )


def _text(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> str:
    specs = specs_text(tensor.layout.sharding_specs)
    return f"{partial.text} of {tensor.shape} {tensor.dtype} in {specs} on {location_text(layout.mesh)}"


def _prepared(
    partial: Partial, tensor: DTensor, layout: Layout, shape: Shape, here: Location
) -> Callable[[Array], Array]:
    """Return a function that makes the reduced share of the result from the block of a device."""
    mesh, n = layout.mesh, prod(layout.block_shape(shape, here.device))
    group, position = group_along(here, mesh, partial.names)
    members = [mesh.ranks.index(rank) for rank in group.members]
    counted = [i for i, device in enumerate(members) if partial.counts(device)]
    dtype = partial.dtype if partial.shares is None else partial.shares
    _refuse_dtype(partial, tensor)
    reduce = reduction(partial.op, dtype) if isinstance(partial.op, str) else partial.op
    return AllReduce(group, position, reduce, n, dtype.itemsize, counted=counted or None, compute=partial.compute).run


def _refuse_dtype(partial: Partial, tensor: DTensor) -> None:
    """Raise NumPy's error for a dtype on all ranks: a block without elements has none."""
    if partial.compute is not unchanged:
        with np.errstate(all="ignore"):
            partial.compute(np.ones((1,) * tensor.ndim, tensor.dtype))


_REDUCE = Collective[Array](_text, _prepared)


def added_up(
    name: str, tensor: DTensor, share: Array | None, shape: Shape, dtype: DType, *, op: str | Merge = "sum"
) -> DTensor:
    """Return the sum of what devices made of their blocks of *tensor*, on all of them. Collective over the mesh.

    Parameters
    ----------
    name: of the operation, and its options
    tensor: over whose mesh dimensions to add up
    share: of this device; None on a rank outside of the mesh
    shape, dtype: of the shares
    op: how to reduce, as `Partial` has it
    """
    names = sharding(tensor.mesh, [each for spec in tensor.layout.axes for each in spec])
    layout = Layout.replicated(tensor.mesh, len(shape))
    key = (name, tensor.layout, tensor.shape, tensor.dtype, shape, dtype, op)
    text = f"{name} of {tensor.shape} {tensor.dtype} in {specs_text(tensor.layout.sharding_specs)}: "
    text += op if isinstance(op, str) else op.__name__
    partial = Partial(key, text, unchanged, names, op, dtype)
    return run_partial(partial, DTensor(share, layout, shape, dtype), layout, shape)


def inner_of_alike(a: object, b: object) -> DTensor | None:
    """Return the sum of products of two vectors in one layout, the same floating-point dtype; None for others.

    It is what the contraction of them does, in less time. Collective over the mesh if they are sharded.
    """
    if type(a) is not DTensor or type(b) is not DTensor or a.layout.mesh is not b.layout.mesh:
        return None
    # By value: two layouts may be one object on some ranks only, and all ranks must go the same way.
    if len(a.shape) != 1 or a.shape != b.shape or a.layout.axes != b.layout.axes:
        return None
    if a.dtype != b.dtype or a.dtype.char not in "fdFD":
        return None
    partial, layout = _prepared_inner(_source_of(a))
    share = None if a.local is None else np.asarray(np.dot(a.local, b.local))
    return run_partial(partial, DTensor(share, layout, (), a.dtype), layout, ())


@lru_cache(maxsize=1024)
def _prepared_inner(source: "_Source") -> tuple[Partial, Layout]:
    names = sharding(source.layout.mesh, source.layout.axes[0])
    specs = specs_text(source.layout.sharding_specs)
    text = f"inner product of two vectors of {source.shape} {source.dtype} in {specs}"
    partial = Partial(("inner", source), text, unchanged, names, "sum", source.dtype)
    return partial, Layout.replicated(source.layout.mesh, 0)


def group_along(here: Location, mesh: Mesh, names: Names) -> tuple[Group, int]:
    """Return the group of this device along mesh dimensions, in mesh order, and its position in it."""
    devices = next(row for row in mesh.groups_along(names) if here.device in row)
    group = here.team.group((mesh, names), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, devices.index(here.device)


class Reduction(NamedTuple):
    """A reduction of NumPy over some axes: how one device makes it, and how several do together.

    Parameters
    ----------
    name: of NumPy's function
    axes: which are reduced, ascending
    whole: makes the result from a block that has these axes as a whole: NumPy's function
    share: makes the share of a device from its block
    merge: how the shares are reduced
    dtype: of the result
    shares: the dtype of the shares, by default that of the result
    finish: makes the result from what the shares were reduced to
    options: other arguments of the call
    takes_empty: whether *share* knows the share of a block without elements
    """

    name: str
    axes: tuple[int, ...]
    whole: Callable[[Array], object]
    share: Callable[[Array], object]
    merge: str | Merge
    dtype: DType
    shares: DType | None = None
    finish: Callable[[Array], Array] = unchanged
    options: tuple[Hashable, ...] = ()
    takes_empty: bool = False


class _Source(NamedTuple):
    """What a reduction has to know of a tensor.

    Layouts on equal meshes are equal, but a result has to be on the mesh of the tensor: *mesh* is its id. A cache that
    holds this holds the layout, so no other mesh gets the id meanwhile.
    """

    layout: Layout
    mesh: int
    shape: Shape
    dtype: DType


def _source_of(tensor: DTensor) -> _Source:
    return _Source(tensor.layout, id(tensor.layout.mesh), tensor.shape, tensor.dtype)


def reduced(how: Reduction, tensor: DTensor, keepdims: bool = False) -> DTensor:
    """Return a reduction of *tensor*. Collective over the mesh if a reduced axis is sharded.

    With *keepdims* the reduced axes stay, with length 1.
    """
    return _run(_prepared_reduction(how, _source_of(tensor)), how, tensor, keepdims)


class _PreparedReduction(NamedTuple):
    partial: Partial
    layout: Layout
    shape: Shape


def _run(prepared: _PreparedReduction, how: Reduction, tensor: DTensor, keepdims: bool) -> DTensor:
    result = run_partial(prepared.partial, tensor, prepared.layout, prepared.shape)
    return _with_axes(result, how.axes, tensor.ndim) if keepdims else result


def _prepared_reduction(how: Reduction, of: _Source) -> _PreparedReduction:
    axes, source, whole = how.axes, of.layout, of.shape
    shape, dtype = without(whole, axes), how.dtype if how.shares is None else how.shares
    share, takes_empty = how.share, how.takes_empty
    names = sharding(source.mesh, [n for a in axes for n in source.axes[a]])

    def counts(device: int) -> bool:
        block = source.block_shape(whole, device)
        return all(block[a] > 0 for a in axes)

    def compute(block: Array) -> Array:
        if not takes_empty and 0 in block.shape and 0 in [block.shape[a] for a in axes]:  # a share that does not count
            return np.zeros(without(block.shape, axes), dtype)
        return np.asarray(in_stretches(share, block, axes), dtype, order="C")

    key = ("reduce", how.name, source, whole, of.dtype, axes, how.dtype, how.options)
    options = "".join(f", {option}" for option in how.options)
    text = f"{how.name} over axes {axes}{options} in {how.dtype}"
    run, finish = (compute, how.finish) if names else (_whole(how), unchanged)
    partial = Partial(key, text, run, names, how.merge, how.dtype, counts, how.shares, finish)
    return _PreparedReduction(partial, source.delete(axes), shape)


def _whole(how: Reduction) -> Callable[[Array], Array]:
    def compute(block: Array) -> Array:
        return np.asarray(in_stretches(how.whole, block, how.axes), how.dtype, order="C")

    return compute


def axis_of(axes: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """Return *axes* as NumPy's functions take them fastest: None if they are all."""
    return None if len(axes) == ndim else axes


def refuse_empty(name: str, tensor: DTensor, axis: Axis) -> None:
    """Raise ``ShapeError`` if a tensor has no elements along *axis*, as NumPy does even if the result has none either.

    *name* is the reduction.
    """
    shape = tensor.shape
    if 0 in [shape[a] for a in reduced_axes(axis, tensor.ndim)]:
        raise ShapeError(f"the {name} over axis {axis} of shape {shape} has no elements, so there is none")


def reduced_by(
    function: Callable[..., object],
    merge: str,
    operand: object,
    axis: Axis,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
    needs_elements: bool = False,
) -> DTensor:
    """Return a reduction that devices make of the results of *function* on their blocks. Collective as `reduced`.

    Parameters
    ----------
    function: of NumPy
    merge: how the results of several devices are reduced
    operand: a tensor, or an object that holds one
    axis: one axis, several, or None for all
    keepdims: whether reduced axes stay, with length 1
    dtype: the argument of *function*, if it has one
    needs_elements: whether there is no result for no elements
    """
    tensor = as_tensor(f"numpy.{function.__name__}", operand)
    axes = reduced_axes(axis, tensor.ndim)
    if needs_elements and 0 in tensor.shape:
        refuse_empty(function.__name__, tensor, axis)
    how = _Repeated(function, merge, axes, None if dtype is None else np.dtype(dtype), not needs_elements)
    return _run(*_prepared_repeated(how, _source_of(tensor)), tensor, keepdims)


_UFUNCS: dict[Callable[..., object], np.ufunc] = {
    np.sum: np.add,
    np.prod: np.multiply,
    np.max: np.maximum,
    np.min: np.minimum,
}
"""What functions of NumPy call, after some microseconds."""


class _Repeated(NamedTuple):
    """A reduction by one function, on blocks and on what it made of them: see `reduced_by`."""

    function: Callable[..., object]
    merge: str
    axes: tuple[int, ...]
    dtype: DType | None
    takes_empty: bool


@lru_cache(maxsize=1024)
def _prepared_repeated(of: _Repeated, source: _Source) -> tuple[_PreparedReduction, Reduction]:
    """Return what a reduction needs that depends on no values: small ones take longer to prepare than to run."""
    function, ndim = of.function, len(source.shape)
    kind = result_dtype(function, [source.dtype], ndim, of.dtype)
    over, options = axis_of(of.axes, ndim), {} if of.dtype is None else {"dtype": of.dtype}
    ufunc = _UFUNCS.get(function)
    by: Callable[..., object] = function if ufunc is None else ufunc.reduce

    def made(block: Array) -> object:
        return by(block, axis=over, **options)

    how = Reduction(function.__name__, of.axes, made, made, of.merge, kind, takes_empty=of.takes_empty)
    return _prepared_reduction(how, source), how


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
    return reduced_by(np.sum, "sum", t, axis, keepdims, dtype=dtype)


@traceable(twin=np.mean)
def mean(t: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> DTensor:
    """Return the mean over *axis*. Collective over the mesh if a reduced axis is sharded.

    The dtype is by default as numpy.mean has it. As in NumPy there is a warning where there are no elements. The
    parameters are those of `sum`.
    """
    tensor = as_tensor("numpy.mean", t)
    axes, kind = reduced_axes(axis, tensor.ndim), None if dtype is None else np.dtype(dtype)
    return _run(*_prepared_mean(axes, kind, _source_of(tensor)), tensor, keepdims)


@lru_cache(maxsize=1024)
def _prepared_mean(
    axes: tuple[int, ...], dtype: DType | None, source: _Source
) -> tuple[_PreparedReduction, Reduction]:
    ndim = len(source.shape)
    kind = result_dtype(np.mean, [source.dtype], ndim, dtype)
    # As in NumPy, float16 is added up in float32.
    wide = np.dtype(np.float32) if dtype is None and kind == np.float16 else kind
    over, count, total = axis_of(axes, ndim), prod(source.shape[a] for a in axes), _UFUNCS[np.sum].reduce

    def finish(found: Array) -> Array:
        if not count:
            warn("Mean of empty slice", RuntimeWarning)
        return np.asarray(found / count).astype(kind)

    how = Reduction(
        "mean",
        axes,
        lambda block: np.mean(block, axis=over, dtype=dtype),
        lambda block: total(block, axis=over, dtype=wide.type),
        "sum",
        kind,
        wide,
        finish,
        (f"added up in {wide}",),
        takes_empty=True,
    )
    return _prepared_reduction(how, source), how


@traceable(twin=np.max)
def max(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the maximum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the maximum where there is one. ``ShapeError`` where there are no elements, or no such axis.
    """
    return reduced_by(np.max, "max", t, axis, keepdims, needs_elements=True)


@traceable(twin=np.min)
def min(t: DTensor, axis: Axis = None, keepdims: bool = False) -> DTensor:
    """Return the minimum over *axis*: one, several or all. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, NaN is the minimum where there is one. ``ShapeError`` where there are no elements, or no such axis.
    """
    return reduced_by(np.min, "min", t, axis, keepdims, needs_elements=True)


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
