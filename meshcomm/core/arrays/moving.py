"""Relayouts of blocks, for all calls: each one is agreed on, planned, prepared and run here."""

from typing import TypeAlias

from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.compile import Move, prepare
from meshcomm.core.arrays.replicas import comparing_replicas
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.core.ranks.calls import Collective
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.core.ranks.rank_sets import Location
from meshcomm.core.transport.exchange import Order

RelayoutKey: TypeAlias = tuple[str, Shape, DType, Layout, Layout, int | None, Order]
"""The name of a call, shape, dtype, the layouts before and after, the scratch limit, the order of axes in memory."""


def relayout_text(relayout_key: RelayoutKey) -> str:
    """Return the text by which the ranks compare a relayout."""
    operation, shape, dtype, source, target, limit, order = relayout_key
    text = (
        f"{operation} of {shape} {dtype} from {source.specs_text} on {mesh_description(source.mesh)} "
        f"to {target.specs_text}"
    )
    if target.mesh is not source.mesh:
        text += f" on {mesh_description(target.mesh)}"
    if limit is not None:
        text += f" within {quote(limit)} bytes of scratch"
    return text if order is None else f"{text}, with axes in the order {order}"


def _plan_text(plan: Plan) -> str:
    text = relayout_text(("plan.execute", plan.shape, plan.dtype, plan.source, plan.target, None, None))
    return f"{text} by {plan.steps}"


def _build_move(relayout_key: RelayoutKey, location: Location) -> Move:
    operation, shape, dtype, source, target, limit, order = relayout_key
    move = prepare(plan_relayout(shape, dtype, source, target, limit, location.rank_set.machine), location, order)
    return comparing_replicas(move, operation, shape, source, location)


def _build_plan_move(plan: Plan, location: Location) -> Move:
    return comparing_replicas(prepare(plan, location), "plan.execute", plan.shape, plan.source, location)


def _check_plan(relayout_key: RelayoutKey) -> None:
    _, shape, dtype, source, target, limit, _ = relayout_key
    plan_relayout(shape, dtype, source, target, limit)


RELAYOUT = Collective[Array | None](relayout_text, _build_move, _check_plan)
"""A relayout from layout to layout: a function from a block to the new block, which is written into the second
argument if given. Its subject is one `RelayoutKey`.
"""

PLANNED_RELAYOUT = Collective[Array | None](_plan_text, _build_plan_move)
"""A relayout by a plan, which is its subject: a function from a block to the new block."""
