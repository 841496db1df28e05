"""relayout: tensors from any layouts to any others."""

from typing import Any, overload

from numpy.typing import ArrayLike

from meshcomm import _hooks
from meshcomm._tracing import is_traced, traced, untraced
from meshcomm.arrays.compile import Move, prepare
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.many import are_many, relayout_many
from meshcomm.arrays.out import agree_on_outs, bound_text, call_text, distributed, outside, relayout_text
from meshcomm.errors import LayoutError, MeshError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.mesh import Mesh
from meshcomm.memory.scratch import forget_scratch
from meshcomm.plans.plan import Plan, plan_relayout
from meshcomm.plans.search import forget_plans
from meshcomm.ranks.agreement import agree
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.meshes import location_in
from meshcomm.ranks.teams import Location

Tensor = DTensor | ArrayLike


@overload
def relayout(
    tensor: DTensor,
    layout: Layout,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> DTensor: ...


@overload
def relayout(
    tensor: Any, layout: Any, out: Any = None, max_scratch_bytes: int | None = None, name: str | None = None
) -> Any: ...


def relayout(
    tensor: Any,
    layout: Any,
    out: Any = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> Any:
    """Return *tensor* divided as *layout* says. Collective over the meshes of both.

    The same global array, in new blocks that share no memory with the old ones, also if the layouts are equal. The
    layout may be on another mesh, over other ranks; a rank outside of that mesh gets a tensor without a block. MATCH
    in *layout* keeps what the tensor has on that axis. A plain array counts as replicated: every rank passes the same.

    *out* is a tensor of the same shape and dtype in *layout*, to be overwritten and returned. Beyond its old and its
    new block a rank uses at most *max_scratch_bytes*, by default 32 MiB (or the least possible, if that is more).
    *name* stands in messages about a call that waits. *tensor* may also be a list, tuple or dict of tensors, in the
    same order on all ranks; *layout* is then one for all, a list or dict of as many, or a `LayoutMap`, *out* is a list
    or dict of tensors, and the bound is one for the whole call. What is small shares an exchange.

    ``LayoutError`` if the layout has another rank than the tensor, or if *out* is in another layout, read-only, or in
    the memory of *tensor*; ``ShapeError`` if *out* has another shape, or the bound cannot be kept; ``DTypeError`` if
    *out* has another dtype; ``MeshError`` if the meshes are in different worlds. Source:
    tf.experimental.dtensor.relayout.

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
    if not isinstance(tensor, DTensor) and are_many(tensor, layout):
        return relayout_many(relayout, tensor, layout, out, max_scratch_bytes, name)
    if not isinstance(layout, Layout):
        raise LayoutError(f"a relayout goes to a Layout, not {type(layout).__name__} ({layout!r})")
    if not isinstance(tensor, DTensor):
        if is_traced(tensor):
            return traced(relayout, (tensor, layout, out, max_scratch_bytes, name))
        tensor = unwrapped(tensor)
    if not isinstance(tensor, DTensor):
        return distributed(tensor, layout, out)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype
    with collective(name or "relayout", source.mesh, layout.mesh) as here:
        if here is None:
            return outside(tensor, out, plan_relayout(shape, dtype, source, layout, max_scratch_bytes))
        if out is not None:
            agree_on_outs([(tensor, out, layout)], here)
        key = source, layout, shape, dtype, max_scratch_bytes
        move = program(here.team, key, _described, _built, tensor, layout, max_scratch_bytes, here, exchanges=True)
        block = move(tensor.local, None if out is None else out.local)
    if out is not None:
        return out
    return DTensor(block, layout if layout.match_axis is None else layout.matched(source), shape, dtype)


def _described(tensor: DTensor, layout: Layout, limit: int | None, here: Location) -> str:
    return call_text("relayout", tensor, layout) + bound_text(limit)


def _built(tensor: DTensor, layout: Layout, limit: int | None, here: Location) -> Move:
    plan = plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout, limit, here.team.machine)
    return prepare(plan, here)


def relayout_like(
    tensor: Tensor,
    layout_tensor: DTensor,
    out: DTensor | None = None,
    max_scratch_bytes: int | None = None,
    name: str | None = None,
) -> DTensor:
    """Return *tensor* in the layout of *layout_tensor*. Collective over the meshes of both.

    Shape and dtype of *layout_tensor* do not matter, only its rank. The rest is as for `relayout`. ``LayoutError`` if
    the ranks differ or *layout_tensor* is no DTensor. Source: tf.experimental.dtensor.relayout_like.

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
    layout_tensor = unwrapped(untraced(layout_tensor))
    if not isinstance(layout_tensor, DTensor):
        raise LayoutError(f"layout_tensor must be a DTensor, not {type(layout_tensor).__name__}")
    result: DTensor = relayout(tensor, layout_tensor.layout, out, max_scratch_bytes, name or "relayout_like")
    return result


def machine_of(mesh: Mesh) -> Machine:
    """Return what `relayout` plans by on *mesh*: costs, and which ranks share a node. Collective over the mesh.

    Its ranks agree on it when they first communicate: the nodes are those that MPI reports, the constants those that
    the first rank finds in the file named by ``MESHCOMM_MACHINE``, else defaults. Between two meshes the ranks of both
    agree alike. A rank outside of the mesh gets defaults. ``MeshError`` on all ranks if the file cannot be read.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.machine_of(mesh).one_node)
    [True, True]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"a machine is that of a Mesh, not of {mesh!r}")
    here = location_in(mesh)
    return Machine() if here is None else here.team.machine


def drop_plans(mesh: Mesh) -> None:
    """Drop the plans that are kept for the ranks of *mesh*, and all that was prepared for them. Collective.

    Plans are kept for calls that come again, up to 1,024 for each set of ranks, which is that of both meshes if a
    relayout is between two. A call that comes again after this is planned and agreed on anew. Scratch memory stays.

    >>> import meshcomm as mc
    >>> with mc.simulate(2) as world:
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     world.run(lambda: mc.drop_plans(mesh))
    [None, None]
    """
    if not isinstance(mesh, Mesh):
        raise MeshError(f"plans are kept for a Mesh, not for {mesh!r}")
    with collective("drop_plans", mesh) as here:
        if here is not None:
            agree(here.team, "drop_plans")
            here.team.forget_programs()
    forget_plans()
    forget_scratch()


@_hooks.provides("execute_plan")
def _execute(plan: Plan, tensor: Any, out: Any) -> DTensor:
    planned = plan.shape, plan.dtype, plan.source
    if not isinstance(tensor, DTensor) or (tensor.shape, tensor.dtype, tensor.layout) != planned:
        raise LayoutError(
            f"this plan is for a DTensor of {plan.shape} {plan.dtype} in {plan.source.sharding_specs}, "
            f"not for {tensor!r}"
        )
    with collective("plan.execute", tensor.layout.mesh, plan.target.mesh) as here:
        if here is None:
            return outside(tensor, out, plan)
        if out is not None:
            agree_on_outs([(tensor, out, plan.target)], here)
        move = program(here.team, plan, _described_plan, prepare, plan, here, exchanges=True)
        block = move(tensor.local, None if out is None else out.local)
    return DTensor(block, plan.target, plan.shape, plan.dtype) if out is None else out


def _described_plan(plan: Plan, here: Location) -> str:
    return f"{relayout_text('plan.execute', plan.shape, plan.dtype, plan.source, plan.target)} by {plan.steps}"
