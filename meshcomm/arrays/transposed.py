"""A relayout that also puts the axes in another order, in one copy of the data."""

from meshcomm.arrays.compile import Move, prepare
from meshcomm.arrays.dtensor import DTensor
from meshcomm.arrays.out import outside, relayout_text
from meshcomm.layouts.layout import Layout
from meshcomm.plans.plan import plan_relayout
from meshcomm.ranks.calls import collective, program
from meshcomm.ranks.teams import Location


def relayout_transposed(tensor: DTensor, order: tuple[int, ...], layout: Layout) -> DTensor:
    """Return *tensor* with its axes in this *order*, in *layout*. Collective over the meshes of both.

    The blocks are not transposed first: the relayout copies from where the elements lie.
    """
    source = Layout([tensor.layout.axes[axis] for axis in order], tensor.mesh)
    renamed = DTensor(tensor.local, source, tuple(tensor.shape[axis] for axis in order), tensor.dtype)
    with collective("transpose", source.mesh, layout.mesh) as here:
        if here is None:
            return outside(None, plan_relayout(renamed.shape, renamed.dtype, source, layout))
        key = "transpose", order, source, layout, renamed.shape, renamed.dtype
        move = program(here.team, key, _described, _built, renamed, order, layout, here)
        block = move(tensor.local, None)
    return DTensor(block, layout.matched(source), renamed.shape, renamed.dtype)


def _described(tensor: DTensor, order: tuple[int, ...], layout: Layout, here: Location) -> str:
    text = relayout_text("transpose", tensor.shape, tensor.dtype, tensor.layout, layout)
    return f"{text}, with axes in the order {order}"


def _built(tensor: DTensor, order: tuple[int, ...], layout: Layout, here: Location) -> Move:
    plan = plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout, None, here.team.machine)
    return prepare(plan, here, order)
