"""Plans: how a tensor goes from one layout to another; pure, the same on every rank.

A plan is a path of layouts from the source to the target, each hop a step. There are two ways to go: composed of
slices, moves of one mesh dimension each, and gathers; or one direct exchange of the intersections of the blocks. The
cheaper one is chosen by the cost model of a `Machine`, among those that keep to the bound on scratch memory.
"""

from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm import _hooks
from meshcomm._arguments import as_dtype, as_shape, check_size, integer
from meshcomm._pickles import FieldsOnly
from meshcomm._tuning import SAMPLED_DEVICES
from meshcomm._types import Indices, Ranks
from meshcomm.errors import LayoutError, MeshError, ShapeError
from meshcomm.layouts.coordinates import one
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.machine import Load, Machine
from meshcomm.layouts.refinement import on_one_mesh, same_place
from meshcomm.plans.costs import relay_pays, step_load
from meshcomm.plans.cross_mesh import AllToAllBetween
from meshcomm.plans.describe import bytes_text, count_text
from meshcomm.plans.search import Candidate, Steps, cheapest_steps, composed_path, priced_ways, steps_along
from meshcomm.plans.step import Slice, Step


class _Total(NamedTuple):
    bytes_moved: int
    messages: int
    peak_bytes: int


@dataclass(frozen=True, repr=False, eq=False)
class Plan(FieldsOnly):
    """How a tensor of one shape and dtype goes from layout *source* to layout *target*. Local.

    Print it to see its steps, what else was possible, and why this won. `bytes_moved` (received from others),
    `messages` (received from others, with data in them) and `peak_bytes` (blocks and scratch held at once, at most)
    are the largest over the devices; between meshes of more than 4,096 ranks, over so many of them, spread evenly.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Layout
    target: Layout
    steps: Steps
    machine: Machine
    max_scratch_bytes: int | None

    @property
    def ranks(self) -> Ranks:
        """The rank of each device: of the mesh, in its order, or between meshes of both, ascending. Local."""
        return self.steps[0].ranks if self.steps else self.target.mesh.ranks

    @property
    def bytes_moved(self) -> int:
        """The most bytes that a device receives from others. Local."""
        return self._largest.bytes_moved

    @property
    def messages(self) -> int:
        """The most messages with data that a device receives from others. Local."""
        return self._largest.messages

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a device holds at once: source block, target block and scratch. Local."""
        return self._largest.peak_bytes

    def for_device(self, device: int) -> "DevicePlan":
        """Return the part of one device, with its own `bytes_moved`, `messages` and `peak_bytes`. Local.

        Between meshes over different ranks, *device* is a place among the ranks of both, ascending: see `ranks`.
        ``MeshError`` if there is no such device.
        """
        device, size = integer(device, "device"), len(self.ranks)
        if not 0 <= device < size:
            raise MeshError(f"device {device} is not in the mesh, which has devices 0 to {size - 1}")
        return DevicePlan(self, device, *_total(self, one(device)))

    def execute(self, tensor: Any, out: Any = None) -> Any:
        """Return *tensor* in the target layout, as `relayout` does, but by this very plan. Collective over the mesh.

        *out* is a tensor in the target layout to write to instead of a new one. ``LayoutError``, ``ShapeError`` or
        ``DTypeError`` unless the tensor is what was planned for.
        """
        return _hooks.call("execute_plan", self, tensor, out)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All ways that keep to the bound, with what they cost; the first of the cheapest was chosen. Local."""
        pair = on_one_mesh(self.source, self.target) or (self.source, self.target)
        return priced_ways(self.shape, self.dtype.itemsize, *pair, self.max_scratch_bytes, self.machine)

    @property
    def seconds(self) -> float:
        """What the plan costs by the model of its machine, on the slowest of three devices. Local."""
        size = len(self.ranks)
        return max(self.for_device(device).seconds for device in sorted({0, size // 2, size - 1}))

    @property
    def copy_step(self) -> Step:
        """The step that only copies, of a plan that exchanges nothing: its last. Local."""
        return self.steps[-1] if self.steps else _slice_of(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self is other or self._value == other._value

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _value(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self.source, self.target, self.steps, self.machine, self.max_scratch_bytes

    @cached_property
    def _hash(self) -> int:
        return hash(self._value)

    @cached_property
    def _largest(self) -> _Total:
        return _total(self, _spread(self))

    def __repr__(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in self.target.mesh.dims)
        to = specs_text(self.target.sharding_specs)
        if not same_place(self.source.mesh, self.target.mesh):
            mesh = f"{', '.join(f'{name}={size}' for name, size in self.source.mesh.dims)}"
            to += f" on {self.target.mesh}"
        lines = [
            f"relayout of {self.shape} {self.dtype} on mesh {mesh}: {specs_text(self.source.sharding_specs)} -> {to}"
        ]
        for number, step in enumerate(self.steps, 1):
            count = len(step.ranks) // step.group_size
            groups = f"  [{count} group{'s' * (count > 1)} of {step.group_size}]" if step.group_size > 1 else ""
            moved = step.traffic(_spread(self))
            traffic = (
                f" {bytes_text(int(moved.bytes_moved.max()))}, {count_text(int(moved.messages.max()), 'message')}"
            )
            works = (("pack", step.packs), ("unpack", step.unpacks))
            work = ", ".join(w for w, does in works if does and not isinstance(step, Slice))
            through = "; between nodes through partners" if relay_pays(step, self.machine) else ""
            lines.append(f"  {number}. {step}{groups}{traffic}{'; ' + work if work else ''}{through}")
        if not self.steps:
            lines.append("  nothing moves: a copy of the block")
        if len(self.candidates) > 1:
            costs = (f"{name} {1e6 * seconds:.1f} µs" for name, _, seconds in self.candidates)
            lines.append(f"  the cheapest by the cost model of: {', '.join(costs)}")
        lines.append(
            f"  each device receives at most {bytes_text(self.bytes_moved)} in {count_text(self.messages, 'message')}"
            f" and holds at most {bytes_text(self.peak_bytes)}"
        )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class DevicePlan(FieldsOnly):
    """One device's part of a plan. Local."""

    plan: Plan
    device: int
    bytes_moved: int
    messages: int
    peak_bytes: int

    @property
    def steps(self) -> Steps:
        """The steps of the plan, the same for every device. Local."""
        return self.plan.steps

    @cached_property
    def load(self) -> Load:
        """What this device receives from its node and from others, and what it passes over, in all steps. Local."""
        plan = self.plan
        exchanges = [step for step in plan.steps if not isinstance(step, Slice)]
        if not exchanges:
            return Load(0, 0, 0, 0, 0, 0, float(plan.copy_step.traffic(one(self.device)).target[0]))
        return reduce(Load.plus, (step_load(step, plan.machine, self.device) for step in exchanges))

    @property
    def seconds(self) -> float:
        """What this device's part costs by the model. Local."""
        return self.plan.machine.seconds(self.load)

    def __repr__(self) -> str:
        return (
            f"device {self.device} receives {bytes_text(self.bytes_moved)} in {count_text(self.messages, 'message')} "
            f"and holds at most {bytes_text(self.peak_bytes)} in this {self.plan!r}"
        )


def plan_relayout(
    shape: Any,
    dtype: DTypeLike,
    source: Layout,
    target: Layout,
    max_scratch_bytes: int | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Return how a tensor of global *shape* and *dtype* goes from *source* to *target*. Local.

    MATCH in *target* is resolved from *source*. The meshes may be over the same ranks or over others. Beyond source
    and target block a device uses at most *max_scratch_bytes*, by default 32 MiB (or the least possible, if that is
    more). *machine* says what moving bytes costs; ``meshcomm.machine_of(mesh)`` is what `relayout` goes by.
    ``LayoutError`` if a layout has another rank than the shape, ``ShapeError`` for an impossible shape or bound,
    ``DTypeError`` for object.

    >>> from meshcomm.mesh import Mesh
    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> rows, columns = Layout(["x", "unsharded"], mesh), Layout(["unsharded", "x"], mesh)
    >>> print(plan_relayout((8, 6), "f8", rows, columns))
    relayout of (8, 6) float64 on mesh x=2, y=2: [x, unsharded] -> [unsharded, x]
      1. AllToAll along x (split 1, concat 0): [x, unsharded] -> [unsharded, x]  [2 groups of 2] 96 B, 1 message; pack
      each device receives at most 96 B in 1 message and holds at most 480 B
    """
    for layout in (source, target):
        if not isinstance(layout, Layout):
            raise LayoutError(f"a relayout goes from a Layout to a Layout, not {type(layout).__name__} ({layout!r})")
    lengths = as_shape(shape)
    if not (source.rank == target.rank == len(lengths)):
        raise LayoutError(
            f"shape {lengths} has rank {len(lengths)}, but the layouts have ranks {source.rank} and {target.rank}"
        )
    if source.match_axis is not None:
        raise LayoutError(
            f"{specs_text(source.sharding_specs)}: MATCH says nothing about where a tensor is, only where it should go"
        )
    kind, resolved = as_dtype(dtype), target.matched(source)
    check_size(lengths, kind)
    if max_scratch_bytes is not None:
        max_scratch_bytes = integer(max_scratch_bytes, "max_scratch_bytes", ShapeError)
        if max_scratch_bytes < 0:
            raise ShapeError(f"max_scratch_bytes must be zero or more, not {max_scratch_bytes}")
    machine = machine or Machine()
    # The layouts of a plan are the caller's own: equal ones may belong to another world.
    steps = cheapest_steps(lengths, kind.itemsize, source, resolved, max_scratch_bytes, machine)
    return Plan(lengths, kind, source, resolved, steps, machine, max_scratch_bytes)


def plan_direct(shape: Any, dtype: DTypeLike, source: Layout, target: Layout, machine: Machine | None = None) -> Plan:
    """Return the plan that goes straight from *source* to *target*, in one exchange and one round at most. Local.

    Errors are those of `plan_relayout`.
    """
    plan = plan_relayout(shape, dtype, source, target, None, machine)
    pair = on_one_mesh(plan.source, plan.target)
    if pair is None:
        return replace(plan, steps=tuple(replace(step, rounds=1) for step in plan.steps))
    path = composed_path(plan.shape, *pair)
    straight = [pair[0], pair[1]] if len(path) > 1 else path
    return replace(plan, steps=steps_along(plan.shape, plan.dtype.itemsize, straight))


def _spread(plan: Plan) -> Indices:
    """Return the devices that the largest is taken over: all, or some of the ranks of two large meshes."""
    size = len(plan.ranks)
    if size <= SAMPLED_DEVICES or not any(isinstance(step, AllToAllBetween) for step in plan.steps):
        return np.arange(size, dtype=np.intp)
    return np.linspace(0, size - 1, SAMPLED_DEVICES).astype(np.intp)


def _total(plan: Plan, devices: Indices) -> _Total:
    """Return the largest over *devices* of bytes and messages received, and of bytes held."""
    steps = plan.steps or (plan.copy_step,)
    received = messages = peak = held = np.zeros_like(devices)
    begin = steps[0].traffic(devices).source
    for step in steps:
        got, count, scratch, _, target = step.traffic(devices)
        received, messages = received + got, messages + count
        if isinstance(step, Slice) and step is not steps[-1]:
            continue  # the next step takes what it needs out of the block that is held
        peak = np.maximum(peak, begin + held + scratch + target)
        held = target
    return _Total(int(received.max()), int(messages.max()), int(peak.max()))


def _slice_of(plan: Plan) -> Step:
    target = on_one_mesh(plan.source, plan.target)
    assert target is not None
    return Slice(plan.shape, plan.dtype.itemsize, target[0], target[1], (), target[0])
