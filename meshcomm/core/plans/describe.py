"""Plans as text.

Bytes moved and messages are those of every transport. Packing, the bytes held and the costs are those of exchanges
over MPI, and the text says so.
"""

from typing import TYPE_CHECKING

from meshcomm.core._arguments import counted
from meshcomm.core._units import bytes_text, outline, seconds_text
from meshcomm.core.layouts.refinement import same_grid
from meshcomm.core.plans.costs import relay_pays
from meshcomm.core.plans.step import Slice, Step

if TYPE_CHECKING:
    from meshcomm.core.plans.plan import DevicePlan, Plan


def describe(plan: "Plan") -> str:
    """Return the text of a plan: its ends, a line for each step, the ways it was chosen from, and its totals."""
    rows = [] if plan.steps else ["nothing moves: a copy of the block"]
    if len(plan.candidates) > 1:
        costs = (f"{name} {seconds_text(seconds)}" for name, _, seconds in plan.candidates)
        rows.append(f"the cheapest over MPI, by the cost model, of: {', '.join(costs)}")
    if plan.permutation is not None:
        rows.append(_relabelling(plan))
    rows.append(
        f"each device receives at most {bytes_text(plan.bytes_moved)} in {counted(plan.messages, 'message')}"
        f" and holds at most {bytes_text(plan.peak_bytes)} over MPI"
    )
    return outline(_headline(plan), (_step_text(plan, step) for step in plan.steps), rows)


def describe_device(plan: "DevicePlan") -> str:
    """Return the text of the plan of one device."""
    return (
        f"device {plan.device} receives {bytes_text(plan.bytes_moved)} in {counted(plan.messages, 'message')} "
        f"and holds at most {bytes_text(plan.peak_bytes)} over MPI in this {plan.plan!r}"
    )


def _relabelling(plan: "Plan") -> str:
    now, best = plan.relabelled_bytes
    if best == now:
        return "no other order of the target's ranks would save bytes"
    percent = 100 * (now - best) / now
    return (
        f"with the target's ranks in the order {plan.permutation}, all devices would receive {bytes_text(best)} "
        f"together, instead of {bytes_text(now)} (-{percent:.1f} %)"
    )


def _headline(plan: "Plan") -> str:
    source, target = plan.source, plan.target
    to, mesh = target.specs_text, target.mesh
    if not same_grid(source.mesh, target.mesh):
        to, mesh = f"{to} on {target.mesh}", source.mesh
    ends = f"{source.specs_text} -> {to}"
    return f"relayout of {plan.shape} {plan.dtype} on mesh {mesh.dims_text}: {ends}"


def _step_text(plan: "Plan", step: Step) -> str:
    count = len(step.ranks) // step.group_size
    groups = f"  [{counted(count, 'group')} of {step.group_size}]" if step.group_size > 1 else ""
    moved = step.traffic(plan.compared_devices)
    traffic = f"{bytes_text(int(moved.bytes_moved.max()))}, {counted(int(moved.messages.max()), 'message')}"
    works = (
        []
        if isinstance(step, Slice)
        else [w for w, does in (("packs", step.packs), ("unpacks", step.unpacks)) if does]
    )
    work = f"; {' and '.join(works)} over MPI" if works else ""
    through = "; between nodes through aggregators" if relay_pays(step, plan.machine) else ""
    return f"{step}{groups} {traffic}{work}{through}"
