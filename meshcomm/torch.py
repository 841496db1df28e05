"""Tensors of PyTorch in exchanges between ranks, with gradients, and the placements of torch.distributed.tensor.

Each operation is linear, so one autograd.Function runs all of them: `_ADJOINTS` has the operation that moves gradients
back. Gradients of gradients use it, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch

from meshcomm.adapters.torch_chunks import chunked_axes, layout_of_chunks
from meshcomm.blocks.make import on_blocks
from meshcomm.core._arguments import counted
from meshcomm.core._mistakes import only_public
from meshcomm.core._types import Array, Groups, Shape, ShapeLike
from meshcomm.core.arrays import collectives
from meshcomm.core.arrays.create import from_local
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.many import FindsLayouts
from meshcomm.core.arrays.relayout import relayout as relayout_tensor
from meshcomm.errors import LayoutError, MeshError

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "block_of",
    "from_placements",
    "reduce_scatter",
    "relayout",
    "sum_gradients",
    "to_placements",
]

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch.distributed.tensor.placement_types import Placement

    from meshcomm.core.layouts.layout import Layout
    from meshcomm.core.layouts.mesh import Mesh

Operation: TypeAlias = Callable[..., Array]
"""A function that takes the array of this rank, and then the arguments in a `Call`."""

Call: TypeAlias = tuple[object, ...]  # the arguments of an operation after the array
Context: TypeAlias = Any  # an object of PyTorch that keeps values for the gradient


class _Linear(torch.autograd.Function):
    """A linear operation on the arrays of all ranks, with three inputs: the array of this rank, operation and call."""

    @staticmethod
    def forward(x: torch.Tensor, operation: Operation, call: Call) -> torch.Tensor:
        return _tensor_of_memory(operation(x.detach() if isinstance(x, torch.Tensor) else x, *call))

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[object, ...], output: torch.Tensor) -> None:
        _, ctx.operation, ctx.call = inputs

    @staticmethod
    def backward(ctx: Context, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _apply_operation(grad, *_ADJOINTS[ctx.operation](*ctx.call)), None, None

    @staticmethod
    def jvp(ctx: Context, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return _apply_operation(tangent, ctx.operation, ctx.call)


def _apply_operation(x: torch.Tensor, operation: Operation, call: Call) -> torch.Tensor:
    """Return *operation* of *x*. torch.compile must not trace it: messages are no graph of tensors."""
    apply = _Linear.apply
    if torch.compiler.is_compiling():
        apply = torch.compiler.disable(apply)
    return apply(x, operation, call)


def _tensor_of_memory(array: Array) -> torch.Tensor:
    """Return a tensor in the memory of *array*; bfloat16 and similar dtypes go to PyTorch as integers."""
    torch_dtype = getattr(torch, array.dtype.name, None) if array.dtype.kind == "V" else None
    if torch_dtype is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(torch_dtype)


def _relaid_block(block: Array, source: "Layout", target: "Layout", shape: Shape) -> Array:
    """Return the new block of this rank; an empty array where the target has none."""
    new_tensor = relayout_tensor(from_local(block, source, shape), target)
    new_block = on_blocks(np.asarray, new_tensor)
    return np.empty(0, new_tensor.dtype) if new_block is None else new_block


def relayout(block: torch.Tensor, source: "Layout", target: "Layout", shape: ShapeLike) -> torch.Tensor:
    """Return the block of this rank in another layout. Collective over the meshes of both; so is its gradient.

    The gradient of the new block moves from *target* to *source*. An element counts once, on however many ranks it is:
    ranks that hold the same block must have the same gradient for it, and get the same one. The new block shares no
    memory with the old one. A rank outside of a mesh passes an empty tensor, or gets one.

    Parameters
    ----------
    block: block of this rank, on the CPU
    source: layout of the block
    target: layout of the result
    shape: shape of the global array

    ``ShapeError`` if the block does not fit, ``LayoutError`` if a layout has another number of axes than *shape*.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     block = torch.full((1, 2), 1.0 + mesh.rank, requires_grad=True)
    ...     (relayout(block, rows, columns, (2, 2)) ** 2).sum().backward()
    ...     return block.grad.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[2.0, 2.0]], [[4.0, 4.0]]]
    """
    for name, layout in (("source", source), ("target", target)):
        if not hasattr(layout, "match_axis"):
            raise LayoutError(f"{name} must be a Layout, not {layout!r}")
    matched_target = target if target.match_axis is None else target.matched(source)
    return _apply_operation(block, _relaid_block, (source, matched_target, shape))


def all_to_all(  # noqa: PLR0917 - the order of meshcomm.all_to_all
    x: torch.Tensor,
    group_assignment: Groups | None,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    comm: "MPI.Intracomm | None" = None,
) -> torch.Tensor:
    """Return one block from each rank of the group, concatenated. Collective over *comm*; so is its gradient.

    The gradient is an `all_to_all` with the two axes swapped. Arguments and errors are those of `meshcomm.all_to_all`.

    >>> import meshcomm as mc
    >>> def program():
    ...     x = torch.tensor([[1.0, 2.0]]) + 10 * world.rank
    ...     return all_to_all(x, None, 0, 1, 2).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1.0], [11.0]], [[2.0], [12.0]]]
    """
    return _apply_operation(
        x, collectives.all_to_all, (group_assignment, concat_dimension, split_dimension, split_count, comm)
    )


def all_gather(
    x: torch.Tensor,
    group_assignment: Groups | None = None,
    dimension: int = 0,
    comm: "MPI.Intracomm | None" = None,
) -> torch.Tensor:
    """Return the *x* of every rank of the group, concatenated. Collective over *comm*; so is its gradient.

    The gradient is a `reduce_scatter`. Arguments and errors are those of `meshcomm.all_gather`.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: all_gather(torch.tensor([world.rank])).tolist()))
    [[0, 1], [0, 1]]
    """
    return _apply_operation(x, collectives.all_gather, (group_assignment, dimension, comm))


def all_reduce(
    x: torch.Tensor,
    group_assignment: Groups | None = None,
    op: str = "sum",
    comm: "MPI.Intracomm | None" = None,
) -> torch.Tensor:
    """Return the *x* of all ranks of the group, reduced elementwise. Collective over *comm*; so is its gradient.

    The gradient is an `all_reduce`: PyTorch differentiates the sum of the results of all ranks. Arguments and errors
    are those of `meshcomm.all_reduce`. ``NotImplementedError`` if *x* needs a gradient and *op* is not ``sum``.

    >>> import meshcomm as mc
    >>> def program():
    ...     x = torch.tensor([1.0 + world.rank], requires_grad=True)
    ...     (all_reduce(x) * (1 + world.rank)).sum().backward()
    ...     return x.grad.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3.0], [3.0]]
    """
    _check_sum(x, op)
    return _apply_operation(x, collectives.all_reduce, (group_assignment, op, comm))


def reduce_scatter(
    x: torch.Tensor,
    group_assignment: Groups | None = None,
    dimension: int = 0,
    op: str = "sum",
    comm: "MPI.Intracomm | None" = None,
) -> torch.Tensor:
    """Return one block of the reduced *x* of the group. Collective over *comm*; so is its gradient.

    The gradient is an `all_gather`. Arguments and errors are those of `meshcomm.reduce_scatter`.
    ``NotImplementedError`` if *x* needs a gradient and *op* is not ``sum``.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     print(world.run(lambda: reduce_scatter(torch.tensor([world.rank, 5])).tolist()))
    [[1], [10]]
    """
    _check_sum(x, op)
    return _apply_operation(x, collectives.reduce_scatter, (group_assignment, dimension, op, comm))


def _check_sum(x: torch.Tensor, op: str) -> None:
    if op != "sum" and torch.is_grad_enabled() and getattr(x, "requires_grad", False):
        raise NotImplementedError(f"there is a gradient for op 'sum' only, not for {op!r}")


_ADJOINTS: dict[Operation, Callable[..., tuple[Operation, Call]]] = {
    _relaid_block: lambda source, target, shape: (_relaid_block, (target, source, shape)),
    collectives.all_to_all: lambda groups, concat, split, *others: (
        collectives.all_to_all,
        (groups, split, concat, *others),
    ),
    collectives.all_gather: lambda groups, axis, comm: (collectives.reduce_scatter, (groups, axis, "sum", comm)),
    collectives.reduce_scatter: lambda groups, axis, op, comm: (collectives.all_gather, (groups, axis, comm)),
    collectives.all_reduce: lambda *call: (collectives.all_reduce, call),
}
"""The adjoint of each operation: a function from its call to the adjoint operation and its call."""


def sum_gradients(weights: "Mapping[str, torch.Tensor] | Iterable[torch.Tensor]", layouts: object) -> None:
    """Replace the gradient of each weight by the sum over its replicas. Collective over the meshes of the layouts.

    Call it after ``backward``, if the gradients are to be those of the sum of the losses of all ranks. PyTorch gives
    each rank the gradient of its own block alone. A weight that is replicated, such as a bias, is used on several
    ranks: its gradient is the sum of theirs. The gradients of one mesh that have one dtype and the same replicas move
    in one message.

    Parameters
    ----------
    weights: weights of this rank, in the same order on all ranks: ``dict(model.named_parameters())``, or a list
    layouts: layout of all weights; a list, or a dict or `LayoutMap` by name

    A weight without a gradient keeps none if no rank has one. ``LayoutError`` if a weight has no layout, or one for
    another number of axes.

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     bias = torch.ones(1, requires_grad=True)
    ...     (bias * (1 + mesh.rank)).sum().backward()
    ...     sum_gradients({"bias": bias}, {"bias": mc.Layout.replicated(mesh, 1)})
    ...     return bias.grad.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3.0], [3.0]]
    """
    named_weights = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
    weights_by_group: dict[tuple[Mesh, tuple[str, ...], torch.dtype], list[torch.Tensor]] = {}
    for name, weight in named_weights:
        layout = _layout_of(layouts, name, weight.ndim)
        replicas = tuple(dim for dim in layout.mesh.dim_names if not any(dim in names for names in layout.axes))
        if layout.mesh.rank is not None and any(layout.mesh.dim_size(dim) > 1 for dim in replicas):
            weights_by_group.setdefault((layout.mesh, replicas, weight.dtype), []).append(weight)
    for (mesh, replicas, _), group in weights_by_group.items():
        _sum_over(mesh, replicas, group)


def _layout_of(layouts: Any, name: str | int, ndim: int) -> "Layout":
    layout = layouts
    if isinstance(layouts, FindsLayouts):
        layout = layouts.layout_for(name, ndim)
    elif isinstance(layouts, Mapping):
        layout = layouts.get(name)
    elif isinstance(layouts, Sequence):
        layout = layouts[int(name)] if int(name) < len(layouts) else None
    if not hasattr(layout, "match_axis") or layout.ndim != ndim:
        raise LayoutError(f"weight {name!r} has {counted(ndim, 'axis')}, and as layout {layout!r}")
    return cast("Layout", layout)


def _sum_over(mesh: "Mesh", replicas: tuple[str, ...], weights: list[torch.Tensor]) -> None:
    """Sum the gradients of *weights*, of one dtype, over the mesh dimensions *replicas*."""
    # One row for each replica: the gradients, and for each weight whether this rank has one.
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    has_grad = torch.tensor([weight.grad is not None for weight in weights]).to(grads[0].dtype)
    row = torch.cat([*(grad.detach().reshape(-1) for grad in grads), has_grad])
    other_dims = tuple(dim for dim in mesh.dim_names if dim not in replicas)
    table = from_local(row[None], "cuts", mesh=mesh, sharding_specs=[replicas, other_dims])
    total = block_of(np.sum(table, axis=0))
    *sums, counts = total.split([*map(torch.numel, weights), len(weights)])
    for weight, grad_sum, count in zip(weights, sums, counts, strict=True):
        if count != 0:
            weight.grad = grad_sum.reshape(weight.shape).clone()


# -- tensors and layouts of both libraries ----------------------------------------------------------------------------


def block_of(tensor: object) -> Any:
    """Return the block of this rank as a tensor of PyTorch that shares its memory, also one of bfloat16.

    ``meshcomm.from_local`` goes the other way, without a copy too. ``MeshError`` on a rank outside of the mesh.

    Parameters
    ----------
    tensor: a tensor; or dicts, lists and tuples with tensors, as `meshcomm.load` returns them, in which other values
        stay as they are

    >>> import meshcomm as mc
    >>> t = mc.zeros(3, "f4", mc.Layout(["x"], mc.create_mesh([("x", 1)])))
    >>> block_of(t)[1] = 7
    >>> t.local.tolist()
    [0.0, 7.0, 0.0]
    """
    if isinstance(tensor, Mapping):
        return {key: _block_in(value) for key, value in tensor.items()}
    if isinstance(tensor, list | tuple):
        return type(tensor)(map(_block_in, tensor))
    block = on_blocks(_tensor_of_memory, as_tensor("block_of", tensor))
    if block is None:
        raise MeshError("this rank is outside of the mesh of the tensor and holds no block")
    return block


def _block_in(value: object) -> object:
    """Return the block of a tensor within a tree; other values as they are."""
    return block_of(value) if isinstance(value, DTensor | Mapping | list | tuple) else value


def from_placements(mesh: "Mesh", placements: "Sequence[Placement]", shape: ShapeLike) -> "Layout":
    """Return the layout that cuts an array of *shape* as these placements of torch.distributed.tensor do.

    PyTorch cuts 7 elements on 3 devices into 3, 3 and 1; the layout has `Cuts` there.

    Parameters
    ----------
    mesh: mesh with the devices of PyTorch's mesh in the same order
    placements: ``Shard`` or ``Replicate`` for each mesh dimension
    shape: shape of the global array

    ``LayoutError`` for other placements, such as ``Partial``.

    >>> import meshcomm as mc
    >>> from torch.distributed.tensor import Replicate, Shard
    >>> mesh = mc.Mesh(range(6), [("x", 3), ("y", 2)])
    >>> from_placements(mesh, [Shard(0), Replicate()], (6, 4))
    Layout(['x', UNSHARDED], Mesh(x=3, y=2))
    """
    from torch.distributed.tensor import Replicate, Shard

    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    names, ndim = mesh.dim_names, len(lengths)
    if len(placements) != len(names):
        raise LayoutError(f"{len(placements)} placements for a mesh of {len(names)} dimensions: one for each, {names}")
    sharded_axes: list[int | None] = []
    for name, placement in zip(names, placements, strict=True):
        if type(placement) not in (Shard, Replicate):
            raise LayoutError(f"{placement!r} for mesh dimension {name!r}: a layout can be Shard(axis) or Replicate()")
        axis = getattr(placement, "dim", None)
        if axis is not None and not -ndim <= axis < ndim:
            raise LayoutError(
                f"{placement!r} for mesh dimension {name!r}: an array of shape {lengths} has no such axis"
            )
        sharded_axes.append(None if axis is None else axis % ndim)
    return layout_of_chunks(mesh, sharded_axes, lengths)


def to_placements(layout: "Layout", shape: ShapeLike) -> "tuple[Placement, ...]":
    """Return the placements of torch.distributed.tensor that cut an array of *shape* as *layout* does.

    ``LayoutError`` if PyTorch cuts an axis at other boundaries, or over mesh dimensions in another order. The message
    says which layout PyTorch's is.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(6), [("x", 3), ("y", 2)])
    >>> to_placements(mc.Layout(["x", mc.UNSHARDED], mesh), (6, 4))
    (Shard(dim=0), Replicate())
    """
    from torch.distributed.tensor import Replicate, Shard

    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(Replicate() if axis is None else Shard(axis) for axis in chunked_axes(layout, lengths))


if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
