"""relayout: tensors from any layouts to any others."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from numpy.typing import ArrayLike

from meshcomm.core import _hooks
from meshcomm.core._arguments import quote
from meshcomm.core._tracing import Value, call_traced, is_traced, unpacked_traced, untraced
from meshcomm.core.arrays._storage import refresh
from meshcomm.core.arrays.dtensor import DTensor, Tensor, TensorLike, unwrapped
from meshcomm.core.arrays.many import FindsLayouts, are_many, relayout_many
from meshcomm.core.arrays.moving import PLANNED_RELAYOUT, RELAYOUT
from meshcomm.core.arrays.out import distribute_into, find_out_error
from meshcomm.core.arrays.targets import Target, target_of
from meshcomm.core.arrays.trees import HoldsVariables
from meshcomm.core.arrays.views import copy_block_into, in_memory_order, writable_block
from meshcomm.core.failures.watch import named_operation
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.scratch import forget_scratch
from meshcomm.core.plans.plan import Plan
from meshcomm.core.plans.search import forget_plans
from meshcomm.core.ranks.agreement import agree
from meshcomm.core.ranks.calls import collective
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.core.ranks.meshes import location_in
from meshcomm.errors import LayoutError, MeshError

K = TypeVar("K")
H = TypeVar("H", bound=TensorLike)
Branch: TypeAlias = Mapping[Any, Any]
Items: TypeAlias = Sequence[Any]
"""The inner nodes of a tree of tensors: dicts, and lists or tuples."""

Outs: TypeAlias = Sequence[DTensor | None]


@overload
def relayout(
    tensor: TensorLike,
    layout: Target | Plan,
    name: str | None = None,
    *,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
) -> DTensor: ...


@overload
def relayout(
    tensor: list[H],
    layout: Layout,
    name: str | None = None,
    *,
    out: Outs | None = None,
    max_scratch_bytes: int | None = None,
) -> list[DTensor]: ...


@overload
def relayout(
    tensor: tuple[TensorLike, ...],
    layout: Layout,
    name: str | None = None,
    *,
    out: Outs | None = None,
    max_scratch_bytes: int | None = None,
) -> tuple[DTensor, ...]: ...


@overload
def relayout(
    tensor: Mapping[K, Tensor],
    layout: Layout | Mapping[K, Layout],
    name: str | None = None,
    *,
    out: Mapping[K, DTensor] | None = None,
    max_scratch_bytes: int | None = None,
) -> dict[K, DTensor]: ...


@overload
def relayout(
    tensor: HoldsVariables | Mapping[K, TensorLike | Branch | Items],
    layout: Layout | Branch,
    name: str | None = None,
    *,
    out: Branch | None = None,
    max_scratch_bytes: int | None = None,
) -> dict[Any, Any]: ...


@overload
def relayout(
    tensor: ArrayLike,
    layout: Layout,
    name: str | None = None,
    *,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
) -> DTensor: ...


@overload
def relayout(
    tensor: list[Any],
    layout: Sequence[Layout],
    name: str | None = None,
    *,
    out: Outs | None = None,
    max_scratch_bytes: int | None = None,
) -> list[DTensor]: ...


@overload
def relayout(
    tensor: tuple[Tensor, ...],
    layout: Sequence[Layout],
    name: str | None = None,
    *,
    out: Outs | None = None,
    max_scratch_bytes: int | None = None,
) -> tuple[DTensor, ...]: ...


@overload
def relayout(
    tensor: Items,
    layout: Layout | Items | FindsLayouts,
    name: str | None = None,
    *,
    out: Items | None = None,
    max_scratch_bytes: int | None = None,
) -> Items: ...


def relayout(
    tensor: object, layout: object, name: str | None = None, *, out: Value = None, max_scratch_bytes: int | None = None
) -> object:
    """Return *tensor* in another *layout*. Collective over the meshes of both.

    The result is the same global array in new blocks, which share no memory with the old ones, even if the layouts are
    equal. The layout may be on another mesh, over other ranks; a rank outside of that mesh gets a tensor without a
    block. Other systems say redistribute, reshard or rechunk. Source: tf.experimental.dtensor.relayout.

    Parameters
    ----------
    tensor: a DTensor; a plain array, which counts as replicated: every rank passes the same one; or a list, tuple or
        dict of such, also nested, in the same order on all ranks. Small tensors of a list share an exchange. A list of
        numbers is an array; a module is a dict of its variables.
    layout: the layout of the result. MATCH keeps the tensor's spec of that axis. For one tensor, a list of sharding
        specs is a layout on the tensor's own mesh: ``relayout(t, ["y", "x"])``; a `Plan` is the way to take. For
        several tensors: one layout for all, a list or dict in the form of *tensor*, where one may stand for a whole
        branch, or a `LayoutMap`: a name is keys and indices joined by dots.
    name: name of this call in messages while it waits
    out: a tensor of the same shape and dtype in *layout*, to overwrite and return; for several tensors a list or dict
        in the form of *tensor*
    max_scratch_bytes: bytes that a rank may use beyond its old and its new block, for the whole call; by default
        32 MiB, or the minimum that is needed if that is more

    ``LayoutError`` if the layout has another number of axes than the tensor, or if *out* is in another layout,
    read-only, or in the memory of *tensor*; ``ShapeError`` if *out* has another shape, or the scratch limit cannot be
    kept; ``DTypeError`` if *out* has another dtype; ``MeshError`` if the meshes are in different worlds.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    ...     t = mc.distribute(np.arange(6).reshape(3, 2), rows)
    ...     return mc.relayout(t, columns).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[0], [2], [4]], [[1], [3], [5]]]
    """
    if not isinstance(tensor, DTensor) or not isinstance(layout, Layout):
        return _relayout(tensor, layout, name, out, max_scratch_bytes)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype
    if tensor._storage.source is not None:
        refresh(tensor)
    local, order = (tensor._block, None) if tensor._view is None else in_memory_order(tensor)
    out_error = None if out is None else find_out_error(tensor, out, layout)
    out_block = None if out is None or out_error is not None else writable_block(out)
    operation = named_operation("relayout", name) if name else "relayout"
    key = "relayout", shape, dtype, source, layout, max_scratch_bytes, order
    block = RELAYOUT(operation, (source.mesh, layout.mesh), key, (key,), (local, out_block), error=out_error)
    if out is not None:
        return copy_block_into(out, block)
    return DTensor(block, layout if layout.match_axis is None else layout.matched(source), shape, dtype)


@refusable
def _relayout(tensor: object, layout: object, name: str | None, out: Value, limit: int | None) -> object:
    """Return the result of `relayout` for arguments other than one DTensor and one Layout."""
    if isinstance(layout, Plan):
        return _relayout_by_plan(layout, tensor, out)
    if not isinstance(tensor, DTensor):
        tensor = unpacked_traced(tensor)
        if are_many(tensor, layout):
            return relayout_many(relayout, tensor, layout, out, limit=limit, name=name)
    if not isinstance(layout, Layout):
        layout = target_of(tensor, layout)
    if is_traced(tensor):
        return call_traced(relayout, (tensor, layout, name), out=out, max_scratch_bytes=limit)
    value = unwrapped(tensor)
    if not isinstance(value, DTensor):
        return distribute_into(value, layout, out, name)
    return relayout(value, layout, name, out=out, max_scratch_bytes=limit)


@refusable
def relayout_like(
    tensor: Tensor,
    layout_tensor: TensorLike,
    name: str | None = None,
    *,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
) -> DTensor:
    """Return *tensor* in the layout of *layout_tensor*. Collective over the meshes of both.

    *layout_tensor* only gives its layout; its shape, dtype and values do not matter. Other arguments are those of
    `relayout`. ``LayoutError`` if the numbers of axes differ or *layout_tensor* is no DTensor. Source:
    tf.experimental.dtensor.relayout_like.

    Parameters
    ----------
    tensor: DTensor, or plain array, which counts as replicated
    layout_tensor: a DTensor in the layout of the result

    >>> import meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     x = mc.zeros((4, 4), "f4", mc.Layout(["x", mc.UNSHARDED], mesh))
    ...     z = mc.ones((4, 4), "f8", mc.Layout.replicated(mesh, 2))
    ...     return mc.relayout_like(z, x).local.shape
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [(2, 4), (2, 4)]
    """
    like = unwrapped(untraced(layout_tensor))
    if not isinstance(like, DTensor):
        hint = ": relayout takes a Layout" if isinstance(like, Layout) else ""
        raise LayoutError(f"layout_tensor must be a DTensor, not {type(like).__name__}{hint}")
    return relayout(tensor, like.layout, name or "relayout_like", out=out, max_scratch_bytes=max_scratch_bytes)


def machine_of(mesh: Mesh) -> Machine:
    """Return the costs that `relayout` plans by on *mesh*, and which ranks share a node. Collective over the mesh.

    The ranks of a mesh agree on it when they first communicate. Ranks share a node if their host name
    and boot id are equal. The constants come from the file that ``MESHCOMM_MACHINE`` names on the first rank, else
    they are defaults. The ranks of two meshes agree in the same way. A rank outside of the mesh gets defaults.
    ``MeshError`` on all ranks if the file cannot be read.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.machine_of(mesh).one_node)
    [True, True]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"machine_of takes a Mesh, not {quote(mesh)}")
    location = location_in(mesh)
    return Machine() if location is None else location.rank_set.machine


def drop_plans(mesh: Mesh) -> None:
    """Drop the plans that are kept for the ranks of *mesh*, and what was prepared for them. Collective over the mesh.

    Plans are kept for repeated calls, up to 1,024 for each set of ranks. A relayout between two meshes belongs to the
    set of the ranks of both. The next call is planned and agreed on anew. Scratch buffers of this thread are freed.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.drop_plans(mesh))
    [None, None]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"drop_plans takes a Mesh, not {quote(mesh)}")
    with collective("drop_plans", mesh) as location:
        if location is not None:
            agree(location.rank_set, "drop_plans")
            location.rank_set.forget_prepared()
    forget_plans()
    forget_scratch()


@_hooks.provides("relayout")
def _relayout_method(tensor: Value, layout: Value, out: DTensor | None, **options: Value) -> DTensor:
    """Return the relayout of *tensor* for ``plan.execute`` and ``t.relayout``: by a plan, or to a layout."""
    return relayout(tensor, layout, out=out, **options)


def _relayout_by_plan(plan: Plan, tensor: object, out: DTensor | None) -> DTensor:
    expected_spec = plan.shape, plan.dtype, plan.source
    if not isinstance(tensor, DTensor) or (tensor.shape, tensor.dtype, tensor.layout) != expected_spec:
        raise LayoutError(
            f"this plan is for a DTensor of {plan.shape} {plan.dtype} in {plan.source.specs_text}, "
            f"not for {quote(tensor)}"
        )
    refresh(tensor)
    local = tensor._block
    out_error = None if out is None else find_out_error(tensor, out, plan.target)
    out_block = None if out is None or out_error is not None else writable_block(out)
    meshes = tensor.layout.mesh, plan.target.mesh
    block = PLANNED_RELAYOUT("plan.execute", meshes, plan, (plan,), (local, out_block), error=out_error)
    return DTensor(block, plan.target, plan.shape, plan.dtype) if out is None else copy_block_into(out, block)
