"""relayout: a tensor from any layout to any other."""

from typing import Any

from numpy.typing import ArrayLike

from meshcomm import _late, guard
from meshcomm.collectives import as_array, is_traced, untraced
from meshcomm.context import place_in
from meshcomm.dtensor import DTensor, distribute, place_text, unwrapped
from meshcomm.errors import LayoutError, MeshError
from meshcomm.execute import prepare, run_agreed
from meshcomm.layout import Layout
from meshcomm.plan import Plan, plan_relayout, same_place


def relayout(tensor: DTensor | ArrayLike, layout: Layout, name: str | None = None) -> DTensor:
    """Return *tensor* divided as *layout* says. Collective over the mesh.

    The same global array, in new blocks that share no memory with the old ones, also if the layouts are equal. MATCH
    in *layout* keeps what the tensor has on that axis. A plain array counts as replicated: every rank passes the same.
    *name* stands in messages about a call that waits. ``LayoutError`` if the layout has another rank than the tensor,
    ``MeshError`` if it is on another mesh. Source: tf.experimental.dtensor.relayout.

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
    if not isinstance(layout, Layout):
        raise LayoutError(f"a relayout goes to a Layout, not {type(layout).__name__} ({layout!r})")
    if not isinstance(tensor, DTensor):
        if is_traced(tensor):
            return _traced(tensor, layout, name)
        tensor = unwrapped(tensor)
    if not isinstance(tensor, DTensor):
        array = as_array(tensor)
        return distribute(array, layout.matched(Layout.replicated(layout.mesh, array.ndim)))
    check_place(tensor.layout, layout)
    place = place_in(layout.mesh)
    source, shape, dtype = tensor.layout, tensor.shape, tensor.dtype
    if place is None:
        return DTensor(None, plan_relayout(shape, dtype, source, layout).target, shape, dtype)  # checked alike
    guard.begin(name or "relayout", place.team)
    try:
        block = run_agreed(
            place,
            (source, layout, shape, dtype),
            lambda: _call(tensor, layout),
            lambda: prepare(plan_relayout(shape, dtype, source, layout), place),
            tensor.local,
        )
    finally:
        guard.end()
    return DTensor(block, layout if layout.match_axis is None else layout.matched(source), shape, dtype)


def relayout_like(tensor: DTensor | ArrayLike, layout_tensor: DTensor, name: str | None = None) -> DTensor:
    """Return *tensor* in the layout of *layout_tensor*. Collective over the mesh.

    Shape and dtype of *layout_tensor* do not matter, only its rank. ``LayoutError`` if the ranks differ or
    *layout_tensor* is no DTensor. Source: tf.experimental.dtensor.relayout_like.

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
    return relayout(tensor, layout_tensor.layout, name or "relayout_like")


@_late.provides("execute_plan")
def _execute(plan: Plan, tensor: Any) -> DTensor:
    planned = (plan.shape, plan.dtype, plan.source)
    if not isinstance(tensor, DTensor) or (tensor.shape, tensor.dtype, tensor.layout) != planned:
        raise LayoutError(
            f"this plan is for a DTensor of {plan.shape} {plan.dtype} in {plan.source.sharding_specs}, "
            f"not for {tensor!r}"
        )
    return relayout(tensor, plan.target)


def _traced(tensor: Any, layout: Layout, name: str | None) -> DTensor:
    result: DTensor = _late.call("traced", relayout, (tensor, layout, name))
    return result


def check_place(source: Layout, target: Layout) -> None:
    """Raise ``MeshError`` unless both layouts are on one mesh in one world. Local."""
    if source.mesh is target.mesh:
        return
    if not same_place(source.mesh, target.mesh) or source.mesh.world is not target.mesh.world:
        raise MeshError(
            f"both layouts of a relayout must be on one mesh, but the tensor is on the {source.mesh} "
            f"and the layout on the {target.mesh}"
        )


def _call(tensor: DTensor, layout: Layout) -> str:
    return (
        f"relayout of {tensor.shape} {tensor.dtype} from {tensor.layout.sharding_specs} to {layout.sharding_specs} "
        f"on {place_text(tensor.mesh)}"
    )
