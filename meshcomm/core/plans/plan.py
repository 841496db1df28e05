"""Plans: how a tensor goes from one layout to another; pure, the same on every rank.

A plan is a path of layouts from the source to the target, each hop a step. There are two ways: composed of slices,
moves of one mesh dimension each, and gathers; or direct, one exchange of the intersections of the blocks. The cost
model of a `Machine` chooses the cheaper one, among those that keep to the scratch limit.
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core import _hooks
from meshcomm.core._arguments import as_dtype, as_integer, as_shape, check_size, counted, quote, scratch_limit
from meshcomm.core._tuning import SAMPLED_DEVICES
from meshcomm.core._types import DType, FieldsOnly, Indices, Ranks, ShapeLike
from meshcomm.core._units import bytes_text, outline, seconds_text
from meshcomm.core.layouts.coordinates import single_index
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Load, Machine
from meshcomm.core.layouts.mistakes import no_layout, such_as
from meshcomm.core.layouts.refinement import on_one_mesh, same_grid
from meshcomm.core.plans.costs import costed_devices, relay_pays, step_load
from meshcomm.core.plans.cross_mesh import AllToAllBetween
from meshcomm.core.plans.relabel import best_order, kept_elements
from meshcomm.core.plans.search import Candidate, all_candidates, cheapest_steps, composed_path, steps_along
from meshcomm.core.plans.step import Slice, Step, Steps
from meshcomm.errors import LayoutError, MeshError

T = TypeVar("T")  # a tensor: plans know none


class _PlanTotals(NamedTuple):
    bytes_moved: int
    messages: int
    peak_bytes: int


@dataclass(frozen=True, repr=False, eq=False)
class Plan(FieldsOnly):
    """How a tensor of one shape and dtype goes from layout *source* to layout *target*.

    Print it to see its steps, and the ways it was chosen from. `bytes_moved`, `messages` and `peak_bytes` are the
    largest over the devices; between meshes of more than 4,096 ranks, over 4,096 of them, spread evenly.

    `bytes_moved` and `messages` are the same on every transport. Scratch, `peak_bytes` and costs are those of packed
    exchanges over MPI. Ranks that share memory copy from block to block, and pack nothing.
    """

    __module__ = "meshcomm"

    shape: tuple[int, ...]
    dtype: DType
    source: Layout
    target: Layout
    steps: Steps
    machine: Machine
    max_scratch_bytes: int | None
    relabel: bool = False

    @property
    def ranks(self) -> Ranks:
        """The rank of each device: the ranks of the mesh in its order; between meshes, of both, ascending.

        >>> import meshcomm as mc
        >>> first, second = mc.Layout(["x"], mc.Mesh([5, 0], {"x": 2})), mc.Layout(["x"], mc.Mesh([3], {"x": 1}))
        >>> mc.plan_relayout((4,), "f8", first, second).ranks
        (0, 3, 5)
        """
        return self.steps[0].ranks if self.steps else self.target.mesh.ranks

    @property
    def bytes_moved(self) -> int:
        """The most bytes that a device receives from others, on any transport.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(range(2), {"x": 2})
        >>> mc.plan_relayout((4,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh)).bytes_moved
        16
        """
        return self._maxima.bytes_moved

    @property
    def messages(self) -> int:
        """The most peers from which a device receives data in a step, added over the steps; on any transport.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(range(4), {"x": 4})
        >>> mc.plan_relayout((4,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh)).messages
        3
        """
        return self._maxima.messages

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a device holds at once over MPI: source block, target block and scratch to pack.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(range(2), {"x": 2})
        >>> mc.plan_relayout((4,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh)).peak_bytes
        48
        """
        return self._maxima.peak_bytes

    def for_device(self, device: int) -> "DevicePlan":
        """Return the plan of one device, with its own `bytes_moved`, `messages` and `peak_bytes`.

        Between meshes over different ranks, *device* is an index into the ranks of both, ascending: see `ranks`.
        ``MeshError`` if there is no such device.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(range(2), {"x": 2})
        >>> plan = mc.plan_relayout((3,), "f8", mc.Layout(["x"], mesh), mc.Layout([mc.UNSHARDED], mesh))
        >>> plan.for_device(0).bytes_moved, plan.for_device(1).bytes_moved, plan.bytes_moved
        (8, 16, 16)
        """
        device, size = as_integer(device, "device"), len(self.ranks)
        if not 0 <= device < size:
            raise MeshError(f"device {quote(device)} is not in the mesh, which has devices 0 to {size - 1}")
        return DevicePlan(self, device, *_totals_over(self, single_index(device)))

    def execute(self, tensor: T, out: T | None = None) -> T:
        """Return *tensor* in the target layout, as `relayout` does, but by this very plan. Collective over the mesh.

        The result is written to *out*, a tensor in the target layout, if it is given. ``LayoutError``, ``ShapeError``
        or ``DTypeError`` if the tensor does not fit the plan.

        >>> import numpy as np, meshcomm as mc
        >>> def program():
        ...     mesh = mc.create_mesh([("x", 2)])
        ...     t = mc.distribute(np.arange(3), mc.Layout(["x"], mesh))
        ...     plan = mc.plan_relayout(t.shape, t.dtype, t.layout, mc.Layout([mc.UNSHARDED], mesh))
        ...     return plan.execute(t).local.tolist()
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [[0, 1, 2], [0, 1, 2]]
        """
        return _hooks.call("relayout", tensor, self, out)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All ways that keep to the scratch limit, with their costs; the first of the cheapest was chosen.

        >>> import meshcomm as mc
        >>> mesh = mc.Mesh(range(8), [("x", 2), ("y", 4)])
        >>> rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "y"], mesh)
        >>> plan = mc.plan_relayout((80, 80), "f8", rows, columns, machine=mc.Machine(nodes=4))
        >>> [(way.name, len(way.steps)) for way in plan.candidates]
        [('composed', 2), ('direct', 1)]
        """
        limit, machine = self.max_scratch_bytes, self.machine
        return all_candidates(self.shape, self.dtype.itemsize, self.source, self.target, limit=limit, machine=machine)

    @property
    def seconds(self) -> float:
        """The cost of the plan over MPI by the model of its machine, on the slowest of `costs.costed_devices`."""
        devices = {device for step in self.steps or (self.copy_step,) for device in costed_devices(step)}
        return max(self.for_device(device).seconds for device in devices)

    @cached_property
    def permutation(self) -> tuple[int, ...] | None:
        """The order of the ranks of the target mesh that would save the most bytes; None without ``relabel=True``.

        It is advice: no relayout follows it by itself. Entry d is a device of the target mesh. If its rank were device
        d of the target mesh, for each d, the fewest bytes would move: see `relabelled_bytes`.
        """
        return self._relabelling[0] if self.relabel else None

    @property
    def relabelled_bytes(self) -> tuple[int, int]:
        """The bytes that all devices together receive: in the order of the target mesh, and in the best order.

        >>> import meshcomm as mc
        >>> rows, reverse = (mc.Layout(["x"], mc.Mesh(ranks, {"x": 2})) for ranks in ([0, 1], [1, 0]))
        >>> plan = mc.plan_relayout((4,), "f8", rows, reverse, relabel=True)
        >>> plan.permutation, plan.relabelled_bytes
        ((1, 0), (32, 0))
        """
        return self._relabelling[1:]

    @cached_property
    def _relabelling(self) -> tuple[tuple[int, ...], int, int]:
        counts = kept_elements(self.shape, self.source, self.target)
        order = best_order(counts)
        devices = np.arange(len(order), dtype=np.intp)
        total = sum(prod(self.target.block_shape(self.shape, device)) for device in devices.tolist())
        current_kept, best_kept = int(np.trace(counts)), int(counts[np.array(order, dtype=np.intp), devices].sum())
        return order, (total - current_kept) * self.dtype.itemsize, (total - best_kept) * self.dtype.itemsize

    @property
    def copy_step(self) -> Step:
        """The last step of a plan that ends with a copy, or the copy of a plan without steps."""
        if self.steps:
            return self.steps[-1]
        source, target = on_one_mesh(self.source, self.target) or (self.source, self.target)
        return Slice(self.shape, self.dtype.itemsize, source, target, (), source)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self is other or self._value == other._value

    def __hash__(self) -> int:
        return self._hash

    @property
    def compared_devices(self) -> Indices:
        """The devices over which maxima are taken: all, or a sample of the ranks of two large meshes."""
        size = len(self.ranks)
        if size <= SAMPLED_DEVICES or not any(isinstance(step, AllToAllBetween) for step in self.steps):
            return np.arange(size, dtype=np.intp)
        return np.linspace(0, size - 1, SAMPLED_DEVICES).astype(np.intp)

    @cached_property
    def _value(self) -> tuple[object, ...]:
        return self.shape, self.dtype, self.source, self.target, self.steps, self.machine, self.max_scratch_bytes

    @cached_property
    def _hash(self) -> int:
        return hash(self._value)

    @cached_property
    def _maxima(self) -> _PlanTotals:
        return _totals_over(self, self.compared_devices)

    if TYPE_CHECKING:  # meshcomm.tools.pictures.of_plans gives plans these methods

        def html(self) -> str:
            """Return the text and the picture of the plan for notebooks."""

        def save(self, path: str | Path) -> None:
            """Write the picture of the plan to the SVG file *path*. ``LayoutError`` for another suffix than .svg."""

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return _plan_text(self)


@dataclass(frozen=True, repr=False)
class DevicePlan(FieldsOnly):
    """The plan of one device: its own bytes and messages, and the bytes that it holds over MPI."""

    plan: Plan
    device: int
    bytes_moved: int
    messages: int
    peak_bytes: int

    @property
    def steps(self) -> Steps:
        """The steps of the plan, the same for every device."""
        return self.plan.steps

    @cached_property
    def load(self) -> Load:
        """The work of this device in all steps: received from its node, from other nodes, and copied."""
        plan = self.plan
        exchanges = [step for step in plan.steps if not isinstance(step, Slice)]
        if not exchanges:
            return Load(0, 0, 0, 0, 0, 0, float(plan.copy_step.traffic(single_index(self.device)).target[0]))
        return reduce(Load.plus, (step_load(step, plan.machine, self.device) for step in exchanges))

    @property
    def seconds(self) -> float:
        """The cost of this device's work by the model."""
        return self.plan.machine.seconds(self.load)

    def __repr__(self) -> str:
        return (
            f"device {self.device} receives {bytes_text(self.bytes_moved)} in {counted(self.messages, 'message')} "
            f"and holds at most {bytes_text(self.peak_bytes)} over MPI in this {self.plan!r}"
        )


def plan_relayout(  # noqa: PLR0917 - callers pass them by position
    shape: ShapeLike,
    dtype: DTypeLike,
    source: Layout,
    target: Layout,
    max_scratch_bytes: int | None = None,
    machine: Machine | None = None,
    *,
    relabel: bool = False,
) -> Plan:
    """Return how a tensor of global *shape* and *dtype* goes from *source* to *target*.

    ``LayoutError`` if the layouts and the shape differ in their number of axes, ``ShapeError`` for an impossible shape
    or scratch limit, ``DTypeError`` for object.

    Parameters
    ----------
    shape, dtype: shape and dtype of the global array
    source: layout before
    target: layout after, on a mesh over the same ranks or over others. MATCH takes its spec from *source*
    max_scratch_bytes: the scratch limit: bytes that a device may use beyond its source and target block; by default
        32 MiB, or the minimum if that is more
    machine: the cost model; `relayout` uses ``meshcomm.machine_of(mesh)``
    relabel: whether the plan says which order of the target's ranks would save the most bytes: `Plan.permutation`.
        Needs SciPy

    >>> from meshcomm import Mesh
    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> source, target = Layout(["x", "unsharded"], mesh), Layout(["y", "x"], mesh)
    >>> print(plan_relayout((8, 6), "f8", source, target))
    relayout of (8, 6) float64 on mesh x=2, y=2: [x, unsharded] -> [y, x]
      1. AllToAll along x (direct): [x, unsharded] -> [y, x]  [2 groups of 2] 96 B, 1 message; packs over MPI
      each device receives at most 96 B in 1 message and holds at most 480 B over MPI
    """
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise no_layout("a relayout goes from a Layout to a Layout", layout)
    lengths = as_shape(shape)
    if not (source.ndim == target.ndim == len(lengths)):
        raise LayoutError(
            f"shape {lengths} has {counted(len(lengths), 'axis')}, the source layout is for {source.ndim} and the "
            f"target layout for {target.ndim}"
            + such_as(target if source.ndim == len(lengths) else source, len(lengths))
        )
    if source.match_axis is not None:
        raise LayoutError(f"{source.specs_text}: MATCH does not say where a tensor is, only where it goes")
    np_dtype, new_layout = as_dtype(dtype), target.matched(source)
    for layout in (source, new_layout):
        layout.check_fits(lengths)
    check_size(lengths, np_dtype)
    max_scratch_bytes = scratch_limit(max_scratch_bytes)
    machine = machine or Machine()
    # The plan has the caller's own layouts: equal ones, as in the cache, may belong to another world.
    steps = cheapest_steps(lengths, np_dtype.itemsize, source, new_layout, limit=max_scratch_bytes, machine=machine)
    return Plan(lengths, np_dtype, source, new_layout, steps, machine, max_scratch_bytes, relabel)


def plan_direct(
    shape: ShapeLike, dtype: DTypeLike, source: Layout, target: Layout, machine: Machine | None = None
) -> Plan:
    """Return the plan that goes straight from *source* to *target*, in at most one exchange of one round.

    Arguments and errors are those of `plan_relayout`.
    """
    plan = plan_relayout(shape, dtype, source, target, None, machine)
    layouts = on_one_mesh(plan.source, plan.target)
    if layouts is None:
        return replace(plan, steps=tuple(replace(step, rounds=1) for step in plan.steps))
    path = composed_path(plan.shape, *layouts)
    direct_path = [layouts[0], layouts[1]] if len(path) > 1 else path
    return replace(plan, steps=steps_along(plan.shape, plan.dtype.itemsize, direct_path))


def _totals_over(plan: Plan, devices: Indices) -> _PlanTotals:
    """Return the maxima over *devices* of bytes and messages received, and of bytes held over MPI."""
    steps = plan.steps or (plan.copy_step,)
    received_bytes = messages = peak_bytes = block_bytes = np.zeros_like(devices)
    source_bytes = steps[0].traffic(devices).source
    for step in steps:
        step_bytes, count, scratch, _, target = step.traffic(devices)
        received_bytes, messages = received_bytes + step_bytes, messages + count
        if isinstance(step, Slice) and step is not steps[-1]:
            continue  # the next step takes its boxes from the block before the slice
        peak_bytes = np.maximum(peak_bytes, source_bytes + block_bytes + scratch + target)
        block_bytes = target
    return _PlanTotals(int(received_bytes.max()), int(messages.max()), int(peak_bytes.max()))


# -- text: packing, held bytes and costs are those of exchanges over MPI ----------------------------------------------


def _plan_text(plan: Plan) -> str:
    """Return the text of a plan: its layouts, a line for each step, its candidates, and its totals."""
    rows = [] if plan.steps else ["nothing moves: a copy of the block"]
    if len(plan.candidates) > 1:
        costs = (f"{name} {seconds_text(seconds)}" for name, _, seconds in plan.candidates)
        rows.append(f"the cheapest over MPI, by the cost model, of: {', '.join(costs)}")
    if plan.permutation is not None:
        rows.append(_relabelling_text(plan))
    rows.append(
        f"each device receives at most {bytes_text(plan.bytes_moved)} in {counted(plan.messages, 'message')}"
        f" and holds at most {bytes_text(plan.peak_bytes)} over MPI"
    )
    return outline(_headline(plan), (_step_text(plan, step) for step in plan.steps), rows)


def _relabelling_text(plan: Plan) -> str:
    current_bytes, best_bytes = plan.relabelled_bytes
    if best_bytes == current_bytes:
        return "no other order of the target's ranks would save bytes"
    percent = 100 * (current_bytes - best_bytes) / current_bytes
    return (
        f"with the target's ranks in the order {plan.permutation}, all devices would receive {bytes_text(best_bytes)} "
        f"together, instead of {bytes_text(current_bytes)} (-{percent:.1f} %)"
    )


def _headline(plan: Plan) -> str:
    source, target = plan.source, plan.target
    target_text, mesh = target.specs_text, target.mesh
    if not same_grid(source.mesh, target.mesh):
        target_text, mesh = f"{target_text} on {target.mesh}", source.mesh
    path_text = f"{source.specs_text} -> {target_text}"
    return f"relayout of {plan.shape} {plan.dtype} on mesh {mesh.dims_text}: {path_text}"


def _step_text(plan: Plan, step: Step) -> str:
    count = len(step.ranks) // step.group_size
    groups = f"  [{counted(count, 'group')} of {step.group_size}]" if step.group_size > 1 else ""
    traffic = step.traffic(plan.compared_devices)
    traffic_text = f"{bytes_text(int(traffic.bytes_moved.max()))}, {counted(int(traffic.messages.max()), 'message')}"
    copies = [] if isinstance(step, Slice) else ["packs"] * step.packs + ["unpacks"] * step.unpacks
    copies_text = f"; {' and '.join(copies)} over MPI" if copies else ""
    relay_text = "; between nodes through aggregators" if relay_pays(step, plan.machine) else ""
    return f"{step}{groups} {traffic_text}{copies_text}{relay_text}"
