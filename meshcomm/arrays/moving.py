"""Relayouts of blocks, by whatever call: each one is agreed on, planned, prepared and run here."""

from meshcomm._arguments import quote
from meshcomm._types import Array, DType, Shape
from meshcomm.arrays.compile import Move, prepare
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.plans.plan import plan_relayout
from meshcomm.ranks.calls import Collective
from meshcomm.ranks.meshes import location_text
from meshcomm.ranks.teams import Location
from meshcomm.transport.exchange import Order


def relayout_text(
    operation: str, shape: Shape, dtype: DType, source: Layout, target: Layout, limit: int | None = None
) -> str:
    """Return what the ranks compare about a relayout.

    Parameters
    ----------
    operation: the name of the call
    shape, dtype: of the global array
    source, target: the layouts before and after
    limit: the scratch limit, if one is given
    """
    to = "" if target.mesh is source.mesh else f" on {location_text(target.mesh)}"
    within = "" if limit is None else f" within {quote(limit)} bytes of scratch"
    return (
        f"{operation} of {shape} {dtype} from {specs_text(source.sharding_specs)} on {location_text(source.mesh)} "
        f"to {specs_text(target.sharding_specs)}{to}{within}"
    )


def _text(
    operation: str, shape: Shape, dtype: DType, source: Layout, target: Layout, limit: int | None, order: Order
) -> str:
    axes = "" if order is None else f", with axes in the order {order}"
    return relayout_text(operation, shape, dtype, source, target, limit) + axes


def _built(
    operation: str,
    shape: Shape,
    dtype: DType,
    source: Layout,
    target: Layout,
    limit: int | None,
    order: Order,
    here: Location,
) -> Move:
    return prepare(plan_relayout(shape, dtype, source, target, limit, here.team.machine), here, order)


def _planned(
    operation: str, shape: Shape, dtype: DType, source: Layout, target: Layout, limit: int | None, order: Order
) -> None:
    plan_relayout(shape, dtype, source, target, limit)


RELAYOUT = Collective[Array | None](_text, _built, _planned)
"""A relayout from layout to layout: from a block to the new block, which is written into the second argument if given.

Its subject is an operation, shape, dtype, source, target, scratch limit, and the order of the axes in memory.
"""

BY_PLAN = Collective[Array | None](
    lambda plan: f"{relayout_text('plan.execute', plan.shape, plan.dtype, plan.source, plan.target)} by {plan.steps}",
    prepare,
)
"""A relayout by a plan, which is its subject: from a block to the new block."""
