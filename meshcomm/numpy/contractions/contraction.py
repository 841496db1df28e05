"""Contractions: how sharded arrays are multiplied and summed over indices; pure, the same on every rank.

A contraction of one or two operands has *indices*, a character each, as in `numpy.einsum`. Its plan is how each index
is cut over the mesh while blocks are multiplied. Everything else follows from that:

1. Each operand moves to the layout that cuts its axes so: by a relayout, or not at all.
2. Each device multiplies its blocks, and sums over the elements that it has of the indices that the result lacks.
3. If such an index is cut, the devices along its mesh dimensions have partial sums. These move to the layout of the
   result, stacked along a new axis, and each device adds up the sums that it gets, in the order of the coordinates.

So ``ij,jk->ik`` with j cut is a product, and then a reduce-scatter. With i and k cut it is SUMMA, with all three cut
its "2.5D" form: one plan, with other cuts.

What does not fit in the scratch limit moves in panels: *loops* say along which indices, and how long a panel is. The
operands of a panel are slices, so each panel is a contraction of its own. A result that stays on its devices collects
the products of all panels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._arguments import counted
from meshcomm.core._tuning import REDUCED_AT_ONCE
from meshcomm.core._types import DType, FieldsOnly, Names, Shape
from meshcomm.core._units import outline
from meshcomm.core.layouts.coordinates import devices_along, used_dims
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.slicing import AxisSlice, Items
from meshcomm.core.layouts.specs import CutSpec, is_interval
from meshcomm.core.plans.bounds import minimum_scratch
from meshcomm.core.plans.plan import Plan, plan_relayout
from meshcomm.errors import ShapeError
from meshcomm.numpy.indexing.slicing import LocalSlice, local_slice_of

FLOP = 2.5e-11
"""Seconds. The time of a multiplication, or of an addition, of two matrices by the BLAS of NumPy on a core. Measured
with matrices of 4096 x 4096 float64 on a shared machine: 40 GFLOP/s."""

MULTIPLIED_AT_ONCE = 2**22
"""Bytes that a device copies, or computes before it adds them to its block, at once. Measured with 2048 x 1024 times
1024 x 2048: products of 2 to 8 MiB that are added to the result take no longer than one product that is not."""

COUNTED_PANELS = 256
"""Panels. For up to this many, a plan counts the bytes that they move; for more it estimates them."""


@dataclass(frozen=True)
class Factor(FieldsOnly):
    """An operand of a contraction, or its result: the index of each axis, the shape, the layout and the dtype."""

    indices: str
    shape: Shape
    layout: Layout
    dtype: DType


class ContractionPanel(NamedTuple):
    """A panel of a contraction: one iteration of its loops.

    Parameters
    ----------
    slices: interval of elements of each looped index
    fetched: numbers of the operands that move for this panel; the others are kept from an earlier panel
    is_first: whether this panel is the first one of its block of the result
    is_last: whether this panel is the last one of its block of the result
    accumulates: whether this block of the result already holds products of earlier panels
    """

    slices: dict[str, AxisSlice]
    fetched: tuple[int, ...]
    is_first: bool
    is_last: bool
    accumulates: bool


@dataclass(frozen=True, repr=False, eq=False)
class Contraction(FieldsOnly):
    """The plan by which one or two operands become a result.

    Parameters
    ----------
    operands, result: factors on one mesh
    cut: sharding spec of each index while blocks are multiplied
    loops: pairs of an index along which operands move in panels and the elements of a panel, outermost first
    scratch_limit: scratch limit in bytes
    machine: constants of the cost model
    """

    operands: tuple[Factor, ...]
    result: Factor
    cut: tuple[tuple[str, Names], ...]
    loops: tuple[tuple[str, int], ...]
    scratch_limit: int
    machine: Machine

    @property
    def mesh(self) -> Mesh:
        """The mesh over which blocks are multiplied: its dimensions may be factors of those of the program's mesh."""
        return self.result.layout.mesh

    @cached_property
    def lengths(self) -> dict[str, int]:
        """The number of elements of each index."""
        return index_lengths(self.operands)

    @cached_property
    def summed(self) -> Names:
        """The mesh dimensions over which partial sums are added up."""
        return tuple(name for index, names in self.cut if index not in self.result.indices for name in names)

    # -- panels -------------------------------------------------------------------------------------------------------

    def panels(self) -> Iterator[ContractionPanel]:
        """Return the panels in their order, one at least."""
        loops, lengths = [index for index, _ in self.loops], self.lengths
        loop_slices = [
            [AxisSlice(start, min(width, lengths[index] - start)) for start in range(0, max(1, lengths[index]), width)]
            for index, width in self.loops
        ]
        result_loops = [number for number, index in enumerate(loops) if index in self.result.indices]
        previous_slices: tuple[AxisSlice, ...] | None = None
        pending, accumulates = None, False
        for slices in product(*loop_slices):
            fetched = tuple(
                number
                for number, operand in enumerate(self.operands)
                if previous_slices is None
                or any(a != b and i in operand.indices for i, a, b in zip(loops, slices, previous_slices, strict=True))
            )
            is_first = previous_slices is None or any(slices[loop] != previous_slices[loop] for loop in result_loops)
            if is_first:
                accumulates = any(slices[loop].start > 0 for loop in range(len(loops)) if loop not in result_loops)
            if pending is not None:
                yield pending._replace(is_last=is_first)
            pending = ContractionPanel(dict(zip(loops, slices, strict=True)), fetched, is_first, True, accumulates)
            previous_slices = slices
        assert pending is not None
        yield pending

    @cached_property
    def first(self) -> ContractionPanel:
        """The first panel, the largest one."""
        return next(self.panels())

    def count(self) -> int:
        """Return the number of panels."""
        return prod(max(1, -(-self.lengths[index] // width)) for index, width in self.loops)

    def items(self, factor: Factor, panel: ContractionPanel) -> Items:
        """Return the index that takes the slice of *factor* for a panel."""
        return tuple(panel.slices.get(i) or AxisSlice(0, n) for i, n in zip(factor.indices, factor.shape, strict=True))

    def slice_of(self, factor: Factor, panel: ContractionPanel, device: int | None) -> LocalSlice:
        """Return the slice of *factor* for a panel: its layout keeps all elements on their devices."""
        slice_ = local_slice_of(factor.layout, factor.shape, self.items(factor, panel), device)
        assert slice_ is not None  # panels begin where cyclic blocks do: see `meshcomm.numpy.contractions.grids`
        return slice_

    def multiplied_axes(self, factor: Factor, panel: ContractionPanel) -> Axes:
        """Return how the slice of *factor* is cut while blocks are multiplied."""
        cut = dict(self.cut)
        return tuple(
            tuple(cut[i]) if i in panel.slices and isinstance(cut[i], CutSpec) else cut[i] for i in factor.indices
        )

    def relayout_plan(self, factor: Factor, panel: ContractionPanel) -> Plan | None:
        """Return the relayout of the slice of an operand for a panel; None if it stays."""
        source, axes = self.slice_of(factor, panel, None), self.multiplied_axes(factor, panel)
        if source.layout.axes == axes:
            return None
        return self._plan(source.shape, factor.dtype, source.layout, Layout(axes, self.mesh))

    @cached_property
    def keeps_result(self) -> bool:
        """Whether devices multiply straight into their blocks of the result."""
        kept_axes = self.slice_of(self.result, self.first, None).layout.axes
        return not self.summed and kept_axes == self.multiplied_axes(self.result, self.first)

    def reduced(self, panel: ContractionPanel) -> tuple[Plan, ...]:
        """Return the relayouts that bring partial sums to the block of the result: none, one, or two.

        If mesh dimensions are summed over, the partial sums have one more axis for them. If devices along these
        dimensions hold replicas of the result, each first adds up one fraction of it, and then they gather it.
        """
        if self.keeps_result:
            return ()
        target, axes = self.slice_of(self.result, panel, None), self.multiplied_axes(self.result, panel)
        shape, dtype = target.shape, self.result.dtype
        if not self.summed:
            return (self._plan(shape, dtype, Layout(axes, self.mesh), target.layout),)
        share_count = devices_along(self.mesh, self.summed)
        source, layout = Layout((self.summed, *axes), self.mesh), self._summing_layout(target)
        sum_plan = self._plan((share_count, *shape), dtype, source, Layout(((), *layout.axes), self.mesh))
        return (sum_plan,) if layout == target.layout else (sum_plan, self._plan(shape, dtype, layout, target.layout))

    def _summing_layout(self, target: LocalSlice) -> Layout:
        """Return the layout in which partial sums are added up: the layout of *target*, if it has no replicas."""
        free_names = tuple(
            name for name in self.summed if name not in used_dims(target.layout) and self.mesh.dim_size(name) > 1
        )
        size = prod(target.shape) * self.result.dtype.itemsize
        if not free_names or size <= REDUCED_AT_ONCE:
            return target.layout
        return Layout(spread_over(target.layout.axes, target.shape, free_names, self.mesh), self.mesh)

    def _plan(self, shape: Shape, dtype: DType, source: Layout, target: Layout) -> Plan:
        try:
            return plan_relayout(shape, dtype, source, target, pack_limit(self.scratch_limit, self.mesh), self.machine)
        except ShapeError:  # for few elements the boxes alone may take more
            minimum = minimum_scratch(plan_relayout(shape, dtype, source, target, None, self.machine).steps)
            return plan_relayout(shape, dtype, source, target, minimum, self.machine)

    # -- costs --------------------------------------------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        """Whether anything moves between devices, or an operand without elements gets blocks of other shapes."""
        return any(plan.steps or 0 in plan.shape for plans in self._first_plans for plan in plans)

    @cached_property
    def _first_plans(self) -> tuple[tuple[Plan, ...], tuple[Plan, ...]]:
        """The relayouts of the operands for the first panel, and those of the result."""
        operand_plans = (self.relayout_plan(operand, self.first) for operand in self.operands)
        return tuple(plan for plan in operand_plans if plan is not None), self.reduced(self.first)

    def plans(self) -> Iterator[Plan]:
        """Return the relayouts of all panels, in their order."""
        for panel in self.panels():
            operand_plans = [self.relayout_plan(self.operands[number], panel) for number in panel.fetched]
            yield from (plan for plan in operand_plans if plan is not None)
            if panel.is_last:
                yield from self.reduced(panel)

    @cached_property
    def totals(self) -> tuple[int, int]:
        """The most bytes and messages that a device receives; of more than `COUNTED_PANELS`, an estimate."""
        devices = np.arange(self.mesh.size, dtype=np.intp)
        received, messages = np.zeros_like(devices), np.zeros_like(devices)
        if self.count() > COUNTED_PANELS:
            return self._estimated_totals()
        for plan in self.plans():
            for step in plan.steps:
                traffic = step.traffic(devices)
                received, messages = received + traffic.bytes_moved, messages + traffic.messages
        return int(received.max()), int(messages.max())

    def _estimated_totals(self) -> tuple[int, int]:
        """Return `totals` from the relayouts of whole factors, and from the messages of the first panel."""
        first_panel, counts = self.first, [max(1, -(-self.lengths[i] // width)) for i, width in self.loops]
        received = messages = 0
        for factor in (*self.operands, self.result):
            own_loops = [number for number, (index, _) in enumerate(self.loops) if index in factor.indices]
            loop_counts = counts[: max(own_loops, default=-1) + 1]
            repeats = prod(count for number, count in enumerate(loop_counts) if number not in own_loops)
            for panel, times in ((first_panel._replace(slices={}), repeats), (first_panel, prod(loop_counts))):
                plans = self.reduced(panel) if factor is self.result else (self.relayout_plan(factor, panel),)
                moving_plans = [plan for plan in plans if plan is not None]
                received += 0 if panel is first_panel else times * sum(plan.bytes_moved for plan in moving_plans)
                messages += times * sum(plan.messages for plan in moving_plans) if panel is first_panel else 0
        return received, messages

    @property
    def bytes_moved(self) -> int:
        """The most bytes that a device receives from others."""
        return self.totals[0]

    @property
    def messages(self) -> int:
        """The most messages that a device receives: peers with data for it, added over all relayouts."""
        return self.totals[1]

    @cached_property
    def flops(self) -> int:
        """The most multiplications and additions of a device."""
        counts = [-(-n // devices_along(self.mesh, dict(self.cut)[index])) for index, n in self.lengths.items()]
        return len(self.operands) * prod(counts)

    @cached_property
    def scratch_bytes(self) -> int:
        """The most bytes that a device uses beyond the blocks of operands and result."""
        operand_plans, result_plans = self._first_plans
        received_bytes = sum(_largest_bytes(plan.target, plan) for plan in operand_plans if not only_cuts(plan))
        packed_bytes = max((_packed_bytes(plan) for plan in (*operand_plans, *result_plans)), default=0)
        partial_bytes = 0
        if not self.keeps_result:
            piece = self.slice_of(self.result, self.first, None)
            partial_bytes = Layout(self.multiplied_axes(self.result, self.first), self.mesh).largest_block(piece.shape)
            partial_bytes *= self.result.dtype.itemsize
            received_bytes += partial_bytes + sum(_largest_bytes(plan.target, plan) for plan in result_plans)
        multiplied_bytes = sum(_largest_bytes(plan.target, plan) for plan in operand_plans) + partial_bytes
        return received_bytes + packed_bytes + min(local_limit(self.scratch_limit), multiplied_bytes)

    @property
    def seconds(self) -> float:
        """The time by the cost model: of the arithmetic, and of all that moves."""
        return (
            arithmetic_seconds(self.flops)
            + sum(plan.seconds for plans in self._first_plans for plan in plans) * self.count()
        )

    # -- text ---------------------------------------------------------------------------------------------------------

    @property
    def subscripts(self) -> str:
        """The contraction as `numpy.einsum` writes it."""
        return f"{','.join(operand.indices for operand in self.operands)}->{self.result.indices}"

    def __repr__(self) -> str:
        cut_text = ", ".join(f"{i} over {'+'.join(names)}" for i, names in self.cut if names) or "no index"
        move_texts = (_move_text(operand, self.relayout_plan(operand, self.first)) for operand in self.operands)
        rows = [f"operand {number}: {text}" for number, text in enumerate(move_texts)]
        _, result_plans = self._first_plans
        if result_plans and self.summed:
            suffix = "; then gathered" if len(result_plans) > 1 else ""
            rows.append(f"result: partial sums over {'+'.join(self.summed)} are added up where they belong{suffix}")
        else:
            rows.append(f"result: {'moves' if result_plans else 'stays'}: {self.result.layout.specs_text}")
        if self.loops:
            loops_text = ", then ".join(f"{width} of {self.lengths[i]} along {i}" for i, width in self.loops)
            rows.append(f"in {counted(self.count(), 'panel')}: {loops_text}")
        title = f"{self.subscripts}: multiplied with {cut_text} cut, {self.flops:.3g} flops per device"
        return outline(title, rows=rows)


def _move_text(factor: Factor, plan: Plan | None) -> str:
    source = factor.layout.specs_text
    if plan is None:
        return f"stays: {source}"
    target = plan.target.specs_text
    return f"{source} -> {target}" + (": each device has it already" if only_cuts(plan) else "")


def index_lengths(operands: tuple[Factor, ...]) -> dict[str, int]:
    """Return the number of elements of each index, in the order in which the operands have them."""
    return {index: n for operand in operands for index, n in zip(operand.indices, operand.shape, strict=True)}


def only_cuts(plan: Plan) -> bool:
    """Return whether each device already holds all that it needs, so that it takes a view of its block."""
    if 0 in plan.shape:  # then blocks without elements need not lie within each other
        return False
    return not any(step.dims for step in plan.steps) and all(map(is_interval, plan.source.axes, plan.target.axes))


def spread_over(axes: Axes, shape: Shape, names: Names, mesh: Mesh) -> Axes:
    """Return *axes* with one of them also cut by mesh dimensions *names*: the longest axis that is not cut, or else
    the one with the longest blocks.

    Nothing is cut if no axis has two elements, or all are cut by explicit or cyclic rules.

    >>> mesh = Mesh(range(4), {"x": 2, "y": 2})
    >>> spread_over(((), ()), (3, 5), ("x",), mesh), spread_over((("x",), ()), (4, 1), ("y",), mesh)
    (((), ('x',)), (('x', 'y'), ()))
    """
    result = list(axes)
    cuttable_axes = [a for a, axis_names in enumerate(axes) if not isinstance(axis_names, CutSpec) and shape[a] > 1]
    if cuttable_axes:
        uncut_axes = [a for a in cuttable_axes if devices_along(mesh, axes[a]) == 1]
        axis = max(uncut_axes or cuttable_axes, key=lambda a: shape[a] / devices_along(mesh, axes[a]))
        result[axis] = (*axes[axis], *names)
    return tuple(result)


def _largest_bytes(layout: Layout, plan: Plan) -> int:
    return layout.largest_block(plan.shape) * plan.dtype.itemsize


def _packed_bytes(plan: Plan) -> int:
    """Return an upper bound on the bytes that a device packs in."""
    devices = np.array(sorted({0, len(plan.ranks) // 2, len(plan.ranks) - 1}), dtype=np.intp)
    intermediate_bytes = sum(_largest_bytes(step.target, plan) for step in plan.steps[:-1] if step.dims)
    return intermediate_bytes + max((int(step.traffic(devices).scratch.max()) for step in plan.steps), default=0)


def pack_limit(limit: int, mesh: Mesh) -> int:
    """Return how many of the bytes of the scratch *limit* relayouts may pack in."""
    return max(limit // 4, 128 * mesh.size)


def local_limit(limit: int) -> int:
    """Return how many of the bytes of the scratch *limit* a device may use to multiply its blocks."""
    return max(min(limit // 8, MULTIPLIED_AT_ONCE), 512)


def arithmetic_seconds(flops: int) -> float:
    """Return the time in seconds that a core takes for *flops* multiplications and additions."""
    return FLOP * flops
