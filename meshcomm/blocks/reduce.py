"""Reductions: each device computes its share of a result from its block, then the devices reduce their shares."""

from collections.abc import Callable, Hashable
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.intervals import by_intervals
from meshcomm.blocks.rules import dims_that_cut, without
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Names, Shape
from meshcomm.core.arrays._evaluation import reduce_pieces
from meshcomm.core.arrays._expressions import Expression
from meshcomm.core.arrays._recipes import Call, OnBlocks, Recipe
from meshcomm.core.arrays._storage import lazy_block_of
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.folds import Folding
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.cyclic import AnyCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.core.ranks.calls import Collective, agree_on, collective
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.ranks.rank_sets import Group, Location
from meshcomm.core.transport.reduce import AllReduce, reduction

Merge: TypeAlias = Callable[[Array], Array]
"""A function that merges the shares of devices, the rows of an array, into one row, in the order of the rows."""


def unchanged(array: Array) -> Array:
    """Return *array*; for a share that is the result already."""
    return array


class Partial(NamedTuple):
    """How each device computes its share of a result, and how the devices reduce these shares.

    Parameters
    ----------
    key, text: identity of the call on this rank, and its text, which all ranks compare
    compute: function from the block of a device, or its expression, to the share
    names: the mesh dimensions to reduce over; without them the share is the result
    op: reduction: ``sum``, ``prod``, ``min`` or ``max``, or a function for shares of several fields
    dtype: dtype of the result
    is_counted: predicate of a device: whether its share counts
    share_dtype: dtype of the shares, by default that of the result
    finish: function from the reduced shares to the result
    form: common value of all calls that reduce by the same exchange; None if that is not known
    """

    key: Hashable
    text: str
    compute: Callable[[Value], Array]
    names: Names
    op: str | Merge
    dtype: DType
    is_counted: Callable[[int], bool] = lambda device: True
    share_dtype: DType | None = None
    finish: Callable[[Array], Array] = unchanged
    form: Hashable = None


def run_partial(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> DTensor:
    """Return the result, of *shape* in *layout*, that the devices compute from their blocks of *tensor*.

    Collective over the mesh if there is something to reduce over.
    """
    mesh, dtype = layout.mesh, partial.dtype
    if mesh.rank is None:
        return DTensor(None, layout, shape, dtype)
    if tensor.dtype.kind in "SU":
        partial, tensor = _compute_shares_now(partial, tensor, layout, shape)
    if not partial.names:
        return DTensor(partial.finish(partial.compute(lazy_block_of(tensor))), layout, shape, dtype)
    subject, arguments = (partial, tensor, layout, shape), (lazy_block_of(tensor), partial.compute)
    reduced = _REDUCE(partial.text, (mesh, mesh), partial.key, subject, arguments)
    assert reduced is not None
    return DTensor(partial.finish(reduced), layout, shape, dtype)


def _compute_shares_now(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> tuple[Partial, DTensor]:
    """Compute the shares of a tensor of strings now: if a string on one rank is not a number, all ranks raise.

    Return a `Partial` that only reduces the shares, and the tensor of shares.
    """
    with collective(partial.text, tensor.mesh) as location:
        assert location is not None
        block, text = tensor._block, _call_text(partial, tensor, layout, shape)
        share = agree_on(location.rank_set, f"shares of {text}", lambda: partial.compute(block))
    return partial._replace(key=(partial.key, "of texts"), compute=unchanged), DTensor(
        share, tensor.layout, tensor.shape, tensor.dtype
    )


def _call_text(partial: Partial, tensor: DTensor, layout: Layout, shape: Shape) -> str:
    specs = tensor.layout.specs_text
    return f"{partial.text} of {tensor.shape} {tensor.dtype} in {specs} on {mesh_description(layout.mesh)}"


def _share_reduction(
    partial: Partial, tensor: DTensor, layout: Layout, shape: Shape, location: Location
) -> Callable[[Array, Callable[[Array], Array]], Array]:
    """Return a function from the block of a device and `compute` to the reduced share."""
    mesh, element_count = layout.mesh, prod(layout.block_shape(shape, location.device))
    group, position = group_along(location, mesh, partial.names)
    devices = [mesh.ranks.index(rank) for rank in group.members]
    counted_positions = [i for i, device in enumerate(devices) if partial.is_counted(device)]
    dtype = partial.dtype if partial.share_dtype is None else partial.share_dtype
    _refuse_dtype(partial, tensor)
    reduce = reduction(partial.op, dtype) if isinstance(partial.op, str) else partial.op
    return AllReduce(group, position, reduce, element_count, dtype.itemsize, counted=counted_positions or None).run


def _refuse_dtype(partial: Partial, tensor: DTensor) -> None:
    """Try `compute` on one element, so that ranks with an empty block also raise NumPy's error for a dtype."""
    if partial.compute is not unchanged:
        with np.errstate(all="ignore"):
            partial.compute(np.ones((1,) * tensor.ndim, tensor.dtype))


_REDUCE = Collective[Array](_call_text, _share_reduction, form=lambda partial, *_: partial.form)


def reduce_shares(
    name: str, tensor: DTensor, share: Array | None, shape: Shape, dtype: DType, *, op: str | Merge = "sum"
) -> DTensor:
    """Return on all devices the sum of the shares that they computed from blocks. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation, and its options
    tensor: tensor whose mesh dimensions to reduce over
    share: share of this device; None on a rank outside of the mesh
    shape, dtype: shape and dtype of the shares
    op: reduction, as in `Partial`
    """
    names = dims_that_cut(tensor.mesh, [x for names in tensor.layout.axes for x in names])
    layout = Layout.replicated(tensor.mesh, len(shape))
    key = (name, tensor.layout, tensor.shape, tensor.dtype, shape, dtype, op)
    text = f"{name} of {tensor.shape} {tensor.dtype} in {tensor.layout.specs_text}: "
    text += op if isinstance(op, str) else op.__name__
    partial = Partial(key, text, unchanged, names, op, dtype)
    return run_partial(partial, DTensor(share, layout, shape, dtype), layout, shape)


def group_along(location: Location, mesh: Mesh, names: Names) -> tuple[Group, int]:
    """Return the group of this device along mesh dimensions *names*, in mesh order, and its position in the group."""
    devices = [location.device]
    for name in mesh.dim_names:
        if name in names:
            stride, size = mesh.stride(name), mesh.dim_size(name)
            line_starts = [device - device // stride % size * stride for device in devices]
            devices = [device + i * stride for device in line_starts for i in range(size)]
    group = location.rank_set.group((mesh, names), devices[0], tuple(mesh.ranks[device] for device in devices))
    return group, devices.index(location.device)


class Reduction(NamedTuple):
    """A reduction of NumPy over some axes: its function on one device, and its share and merge for several devices.

    It is reused for later calls with the same name, options, axes and dtype on tensors of one spec. So its functions
    may depend on these and on this rank only. *share* is also called with an interval of a block, or with one element.

    Parameters
    ----------
    name: name of NumPy's function
    axes: reduced axes, ascending
    whole_function: NumPy's function, from a block with these axes unsharded to the result
    share: function from the block of a device to its share
    merge: reduction of the shares: ``sum``, ``prod``, ``min`` or ``max``, or a function of their rows
    dtype: dtype of the result
    share_dtype: dtype of the shares, by default that of the result
    finish: function from the reduced shares to the result
    options: other arguments of the call
    takes_empty: True if *share* takes a block without elements
    ufunc: ufunc that merges the shares of pieces of one block, or None; for floating-point dtypes *share* is its
        ``reduce``
    """

    name: str
    axes: tuple[int, ...]
    whole_function: Callable[[Array], object]
    share: Callable[[Array], object]
    merge: str | Merge
    dtype: DType
    share_dtype: DType | None = None
    finish: Callable[[Array], Array] = unchanged
    options: tuple[Hashable, ...] = ()
    takes_empty: bool = False
    ufunc: np.ufunc | None = None


def reduced(op: Reduction, tensor: DTensor, keepdims: bool = False) -> DTensor:
    """Return a reduction of *tensor*. Collective over the mesh if a reduced axis is sharded.

    With *keepdims* the reduced axes stay, with length 1.
    """
    return reducing(op, tensor, keepdims).run()


def reducing(op: Reduction, tensor: DTensor, keepdims: bool = False) -> Call:
    """Return the call that computes the result of `reduced`."""
    partial, layout, shape = _partial_of(op, tensor._spec)

    def run(tensor: DTensor) -> DTensor:
        result = run_partial(partial, tensor, layout, shape)
        return with_axes(result, op.axes, tensor.ndim) if keepdims else result

    if partial.names or keepdims or tensor.dtype.kind in "SU":
        return Call(Recipe(run), (tensor,))
    spec = TensorSpec(layout, shape, partial.dtype)
    return Call(OnBlocks(partial.compute, spec, is_lazy=True), (tensor,))


def _partial_of(op: Reduction, spec: TensorSpec) -> tuple[Partial, Layout, Shape]:
    """Return the `Partial` of a reduction for tensors of *spec*, and the layout and the shape of the results."""
    axes, layout, global_shape = op.axes, spec.layout, spec.shape
    new_shape, dtype = without(global_shape, axes), op.dtype if op.share_dtype is None else op.share_dtype
    share, takes_empty = op.share, op.takes_empty
    names = dims_that_cut(layout.mesh, [n for a in axes for n in layout.axes[a]])

    def has_elements(device: int) -> bool:
        block = layout.block_shape(global_shape, device)
        return all(block[a] > 0 for a in axes)

    def compute(block: Array) -> Array:
        if not takes_empty and 0 in block.shape and 0 in [block.shape[a] for a in axes]:  # this share is not counted
            return np.zeros(without(block.shape, axes), dtype)
        return np.asarray(by_intervals(share, block, axes), dtype, order="C")

    key = ("reduce", op.name, layout, global_shape, spec.dtype, axes, op.dtype, op.options)
    options = "".join(f", {option}" for option in op.options)
    text = f"{op.name} over axes {axes}{options} in {op.dtype}"
    run, finish = (compute, op.finish) if names else (_whole_reduction(op), unchanged)
    run = _accepting_expressions(run, op, bool(names))
    new_layout, form = layout.delete(axes), None
    if isinstance(op.merge, str) and all(_all_filled(layout.cut(a, global_shape[a])) for a in axes):
        form = ("shares", op.name, op.merge, names, new_layout, new_shape, spec.dtype, dtype, op.options)
    return (
        Partial(key, text, run, names, op.merge, op.dtype, has_elements, op.share_dtype, finish, form),
        new_layout,
        new_shape,
    )


def _all_filled(cut: AnyCut) -> bool:
    return isinstance(cut, Consecutive) and cut.shortest > 0


def _whole_reduction(op: Reduction) -> Callable[[Array], Array]:
    def compute(block: Array) -> Array:
        return np.asarray(by_intervals(op.whole_function, block, op.axes), op.dtype, order="C")

    return compute


def _accepting_expressions(
    reduce: Callable[[Array], Array], op: Reduction, is_share: bool
) -> Callable[[object], Array]:
    """Return *reduce* as a function that also takes expressions, and reduces them in pieces where it can."""
    axes, share_dtype, folding = op.axes, op.dtype if op.share_dtype is None else op.share_dtype, None
    if op.ufunc is not None:
        finish = unchanged if is_share else op.finish
        folding = Folding(lambda piece: np.asarray(op.share(piece), share_dtype), op.ufunc, axes, share_dtype, finish)

    def compute(block: Value) -> Array:
        if not isinstance(block, Expression):
            return reduce(block)
        return reduce_pieces(block, reduce, axes, share_dtype if is_share else op.dtype, folding)

    return compute


def axis_argument(axes: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """Return *axes*, or None if they are all axes: NumPy's functions are faster with None."""
    return None if len(axes) == ndim else axes


def with_axes(tensor: DTensor, axes: tuple[int, ...], ndim: int) -> DTensor:
    """Return *tensor* expanded to *ndim* axes: *axes* are new, with length 1. It shares the block."""
    lengths, names = iter(tensor.shape), iter(tensor.layout.axes)
    shape = tuple(1 if a in axes else next(lengths) for a in range(ndim))
    layout = Layout([() if a in axes else next(names) for a in range(ndim)], tensor.mesh)
    local = tensor._block
    if local is not None:
        block_lengths = iter(local.shape)
        local = local.reshape([1 if a in axes else next(block_lengths) for a in range(ndim)])
    return DTensor(local, layout, shape, tensor.dtype)
