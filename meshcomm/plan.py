"""Plans: how a tensor goes from one layout to another; pure, the same on every rank.

A plan is a path of layouts from the source to the target, each hop a step. There are two ways to go: composed of
slices, moves of one mesh dimension each, and gathers; or one direct exchange of the intersections of the blocks. The
cheaper one is chosen by the cost model of a `Machine`, among those that keep to the bound on scratch memory.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from meshcomm import _late
from meshcomm.between import AllToAllBetween
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.layout import Layout
from meshcomm.machine import Indices, Load, Machine
from meshcomm.mesh import Mesh, integer
from meshcomm.partners import chosen
from meshcomm.steps import (
    AllGather,
    AllToAll,
    Names,
    Ranks,
    Slice,
    Step,
    coarser,
    decode,
    effective,
    encode,
    largest_block,
    parts_of,
    specs,
    starts_and_stops,
    union,
)

Steps = tuple[Step, ...]

DEFAULT_SCRATCH = 2**25
"""Bytes that a relayout may use beyond its source and target blocks, unless it is told otherwise."""

SAMPLED = 4096
"""Of so many devices at most, spread evenly, the traffic between two meshes is looked at."""


class Candidate(NamedTuple):
    """A way to go from the source to the target, and what it costs by the model, in seconds."""

    name: str
    steps: Steps
    seconds: float


class _Total(NamedTuple):
    bytes_moved: int
    messages: int
    peak_bytes: int


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
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
        return DevicePlan(self, device, *_total(self, _one(device)))

    def execute(self, tensor: Any, out: Any = None) -> Any:
        """Return *tensor* in the target layout, as `relayout` does, but by this very plan. Collective over the mesh.

        *out* is a tensor in the target layout to write to instead of a new one. ``LayoutError``, ``ShapeError`` or
        ``DTypeError`` unless the tensor is what was planned for.
        """
        return _late.call("execute_plan", self, tensor, out)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All ways that keep to the bound, with what they cost; the first of the cheapest was chosen. Local."""
        pair = _on_one_mesh(self.source, self.target) or (self.source, self.target)
        return _candidates(self.shape, self.dtype.itemsize, *pair, self.max_scratch_bytes, self.machine)

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
        to = specs(self.target)
        if not same_place(self.source.mesh, self.target.mesh):
            mesh = f"{', '.join(f'{name}={size}' for name, size in self.source.mesh.dims)}"
            to += f" on {self.target.mesh}"
        lines = [f"relayout of {self.shape} {self.dtype} on mesh {mesh}: {specs(self.source)} -> {to}"]
        for number, step in enumerate(self.steps, 1):
            count = len(step.ranks) // step.group_size
            groups = f"  [{count} group{'s' * (count > 1)} of {step.group_size}]" if step.group_size > 1 else ""
            moved = step.traffic(_spread(self))
            traffic = f" {_bytes(int(moved.bytes_moved.max()))}, {_count(int(moved.messages.max()), 'message')}"
            works = (("pack", step.packs), ("unpack", step.unpacks))
            work = ", ".join(w for w, does in works if does and not isinstance(step, Slice))
            through = "; between nodes through partners" if chosen(step, self.machine) else ""
            lines.append(f"  {number}. {step}{groups}{traffic}{'; ' + work if work else ''}{through}")
        if not self.steps:
            lines.append("  nothing moves: a copy of the block")
        if len(self.candidates) > 1:
            costs = (f"{name} {1e6 * seconds:.1f} µs" for name, _, seconds in self.candidates)
            lines.append(f"  the cheapest by the cost model of: {', '.join(costs)}")
        lines.append(
            f"  each device receives at most {_bytes(self.bytes_moved)} in {_count(self.messages, 'message')}"
            f" and holds at most {_bytes(self.peak_bytes)}"
        )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class DevicePlan:
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
            return Load(0, 0, 0, 0, 0, 0, float(plan.copy_step.traffic(_one(self.device)).target[0]))
        return reduce(Load.plus, (_load(step, plan.machine, self.device) for step in exchanges))

    @property
    def seconds(self) -> float:
        """What this device's part costs by the model. Local."""
        return self.plan.machine.seconds(self.load)

    def __repr__(self) -> str:
        return (
            f"device {self.device} receives {_bytes(self.bytes_moved)} in {_count(self.messages, 'message')} "
            f"and holds at most {_bytes(self.peak_bytes)} in this {self.plan!r}"
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
        raise LayoutError(f"{specs(source)}: MATCH says nothing about where a tensor is, only where it should go")
    kind, resolved = as_dtype(dtype), target.matched(source)
    check_size(lengths, kind)
    if max_scratch_bytes is not None:
        max_scratch_bytes = integer(max_scratch_bytes, "max_scratch_bytes", ShapeError)
        if max_scratch_bytes < 0:
            raise ShapeError(f"max_scratch_bytes must be zero or more, not {max_scratch_bytes}")
    machine = machine or Machine()
    # The layouts of a plan are the caller's own: equal ones may belong to another world.
    steps = _steps(lengths, kind.itemsize, source, resolved, max_scratch_bytes, machine)
    return Plan(lengths, kind, source, resolved, steps, machine, max_scratch_bytes)


def plan_direct(shape: Any, dtype: DTypeLike, source: Layout, target: Layout, machine: Machine | None = None) -> Plan:
    """Return the plan that goes straight from *source* to *target*, in one exchange and one round at most. Local.

    Errors are those of `plan_relayout`.
    """
    plan = plan_relayout(shape, dtype, source, target, None, machine)
    pair = _on_one_mesh(plan.source, plan.target)
    if pair is None:
        return replace(plan, steps=tuple(replace(step, parts=1) for step in plan.steps))
    path = _path(plan.shape, *pair)
    straight = [pair[0], pair[1]] if len(path) > 1 else path
    return replace(plan, steps=_chain(plan.shape, plan.dtype.itemsize, straight))


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return *shape* as a tuple of lengths; ``ShapeError`` if it is none. Local."""
    try:
        lengths = tuple(int(n.__index__()) for n in (shape if hasattr(shape, "__iter__") else (shape,)))
    except (AttributeError, TypeError):
        raise ShapeError(f"a shape is a sequence of lengths, not {shape!r}") from None
    if any(n < 0 for n in lengths):
        raise ShapeError(f"shape {lengths} has a negative length")
    return lengths


def check_size(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ``ShapeError`` if an array of *shape* and *dtype* has more bytes than can be counted. Local."""
    if prod(n or 1 for n in shape) * max(1, dtype.itemsize) >= 2**63:
        raise ShapeError(f"an array of shape {shape} and dtype {dtype} has 2**63 bytes or more")


def as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return *dtype* as a NumPy dtype; ``DTypeError`` if it holds Python objects. Local."""
    try:
        result = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"{dtype!r} is not a dtype: {error}") from None
    if result.hasobject:
        raise DTypeError(f"arrays of dtype {result} hold references to Python objects and cannot be divided")
    return result


def same_place(a: Mesh, b: Mesh) -> bool:
    """Return whether two meshes have the same dimensions over the same ranks, whatever their names. Local."""
    return a is b or (a.dims == b.dims and a.ranks == b.ranks)


@lru_cache(maxsize=1024)
def same_devices(a: Mesh, b: Mesh) -> bool:
    """Return whether a plan between two meshes is one on a single mesh, whose devices are those of both. Local."""
    return same_place(a, b) or (a.ranks == b.ranks and common_refinement(a, b) is not None)


@lru_cache(maxsize=1024)
def ranks_between(source: Mesh, target: Mesh) -> Ranks:
    """Return the rank of each device of a plan from mesh to mesh, in their order: see `Plan.ranks`. Local."""
    return target.ranks if same_devices(source, target) else union(source.ranks, target.ranks)


# -- candidates, bounds and costs -------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _steps(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> Steps:
    pair = _on_one_mesh(source, target) or (source, target)
    ways = _ways(shape, itemsize, *pair, bound, machine)
    if len(ways) == 1:
        return ways[0][1]
    return min(_candidates(shape, itemsize, *pair, bound, machine), key=lambda candidate: candidate.seconds).steps


def forget_plans() -> None:
    """Drop the plans that were kept for use again. Local."""
    _steps.cache_clear()


def _candidates(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> tuple[Candidate, ...]:
    ways = _ways(shape, itemsize, source, target, bound, machine)
    return tuple(Candidate(name, steps, sum(seconds(step, machine) for step in steps)) for name, steps in ways)


def _ways(
    shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, bound: int | None, machine: Machine
) -> list[tuple[str, Steps]]:
    """Return the ways from *source* to *target* that keep to the bound: at least one, or ``ShapeError``."""
    if not same_place(source.mesh, target.mesh):
        direct: Steps = (AllToAllBetween(shape, itemsize, source, target, (), source, machine=machine),)
        ways = [("direct", direct)]
    else:
        ways = [("composed", _chain(shape, itemsize, _path(shape, source, target)))]
        direct = _chain(shape, itemsize, [source, target]) if ways[0][1] else ()
        if direct != ways[0][1] and any(step.dims for step in direct):
            ways.append(("direct", direct))
    least = min(_least(steps) for _, steps in ways)
    if bound is not None and bound < least:
        raise ShapeError(
            f"max_scratch_bytes={bound} is too little for a relayout of {shape} from {specs(source)} to "
            f"{specs(target)}: the least possible is {least}"
        )
    limit = max(DEFAULT_SCRATCH, least) if bound is None else bound
    return [(name, fitted) for name, steps in ways if (fitted := _within(steps, limit)) is not None]


def _chain(shape: tuple[int, ...], itemsize: int, path: list[Layout]) -> Steps:
    steps: list[Step] = []
    for here, there in pairwise(path):
        sliced = bool(steps) and isinstance(steps[-1], Slice)
        steps.append(_step(shape, itemsize, here, there, steps[-1].held if sliced else here))
    return tuple(steps)


def _least(steps: Steps) -> int:
    """Return the least scratch with which *steps* can run, one element of each box at a time."""
    mosts = ((step.most_boxes, step.itemsize, between) for step, between in _exchanges(steps).values())
    return max((between + (most.sent + most.received) * itemsize for most, itemsize, between in mosts), default=0)


def _exchanges(steps: Steps) -> dict[int, tuple[Step, int]]:
    """Return by number the steps that exchange, and the bytes of blocks between steps, which are scratch too."""
    found, held = {}, 0
    for number, step in enumerate(steps):
        if not isinstance(step, Slice):
            new = 0 if step is steps[-1] else largest_block(step.shape, step.target) * step.itemsize
            found[number], held = (step, held + new), new
    return found


def _within(steps: Steps, bound: int) -> Steps | None:
    """Return *steps* in as many rounds as it takes to keep to *bound*, or None if no number of rounds does."""
    fitted = list(steps)
    for number, (step, between) in _exchanges(steps).items():
        parts = _parts(step, bound - between)
        if parts is None:
            return None
        if parts > 1:
            fitted[number] = replace(step, parts=parts)
    return tuple(fitted)


def _parts(step: Step, room: int) -> int | None:
    """Return in how many rounds *step* keeps its scratch within *room* bytes, or None if it cannot."""
    most = step.most_boxes
    if (most.sent_elements + most.received_elements) * step.itemsize <= room:
        return 1
    # A round takes an even share of what is beyond one element of each box, and this one element: see `Step.traffic`.
    share = room // step.itemsize - most.sent - most.received
    beyond = most.sent_elements - most.sent, most.received_elements - most.received
    if share <= 0:
        return max(beyond) + 1 if share == 0 else None
    return sum(beyond) // (share + 1) + 1


def seconds(step: Step, machine: Machine) -> float:
    """Return what *step* costs by the model: the most of three devices, the first, the last and one between. Local."""
    if isinstance(step, Slice):
        return 0.0
    size = len(step.ranks)
    return max(machine.seconds(_load(step, machine, device)) for device in sorted({0, size // 2, size - 1}))


def _load(step: Step, machine: Machine, device: int) -> Load:
    boxes = step.receives(device)
    sizes, devices = boxes.sizes * step.itemsize, step.members(device, boxes.peers)
    own = devices == device
    ranks = np.array([step.ranks[int(d)] for d in devices] + [step.ranks[device]], dtype=np.intp)
    nodes = machine.node_of(ranks)
    near = (nodes[:-1] == nodes[-1]) & ~own
    far = ~near & ~own
    # What is packed and unpacked lies in scratch, all of it if there is one round; what stays is copied.
    through_scratch = (replace(step, parts=1) if step.parts > 1 else step).traffic(_one(device)).scratch[0]
    messages, far_messages = float(near.sum()) * step.parts, float(far.sum()) * step.parts
    return Load(
        float(step.parts if messages and not far_messages else 0),
        messages,
        float(sizes[near].sum()),
        float(step.parts if far_messages else 0),
        far_messages,
        float(sizes[far].sum()),
        float(sizes[own].sum() + through_scratch),
    )


def _spread(plan: Plan) -> Indices:
    """Return the devices that the largest is taken over: all, or some of the ranks of two large meshes."""
    size = len(plan.ranks)
    if size <= SAMPLED or not any(isinstance(step, AllToAllBetween) for step in plan.steps):
        return np.arange(size, dtype=np.intp)
    return np.linspace(0, size - 1, SAMPLED).astype(np.intp)


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
    target = _on_one_mesh(plan.source, plan.target)
    assert target is not None
    return Slice(plan.shape, plan.dtype.itemsize, target[0], target[1], (), target[0])


# -- meshes of other dimensions over the same ranks -------------------------------------------------------------------


def _on_one_mesh(source: Layout, target: Layout) -> tuple[Layout, Layout] | None:
    """Return both layouts on one mesh, whose dimensions are parts of those of both meshes; None if there is none."""
    a, b = source.mesh, target.mesh
    if same_place(a, b):
        return source, target
    sizes = common_refinement(a, b)
    if sizes is None or not same_devices(a, b):
        return None
    mesh = Mesh(a.ranks, [(_part_name(a, stride, size), size) for stride, size in sizes])
    return _refined(source, mesh), _refined(target, mesh)


def common_refinement(a: Mesh, b: Mesh) -> list[tuple[int, int]] | None:
    """Return strides and sizes of dimensions that, joined, give those of both meshes, or None. Local.

    >>> common_refinement(Mesh(range(8), {"x": 2, "y": 4}), Mesh(range(8), {"x": 4, "y": 2}))
    [(4, 2), (2, 2), (1, 2)]
    """
    if a.size != b.size:
        return None
    strides = sorted({*a.strides, *b.strides, a.size, 1}, reverse=True)
    if any(outer % inner for outer, inner in pairwise(strides)):
        return None
    return [(inner, outer // inner) for outer, inner in pairwise(strides)] or [(1, 1)]


def _part_name(mesh: Mesh, stride: int, size: int) -> str:
    """Return the name of the dimension of *mesh* that a part belongs to, and where in it the part is."""
    for name, length in mesh.dims:
        outer = mesh.stride(name) * length
        if mesh.stride(name) <= stride < outer:
            return name if size == length else f"{name}/{outer // stride}"
    return "x"


def _refined(layout: Layout, mesh: Mesh) -> Layout:
    """Return *layout* on *mesh*, whose dimensions are parts of those of its own mesh."""

    def parts(name: str) -> list[str]:
        stride = layout.mesh.stride(name)
        within = range(stride, stride * layout.mesh.dim_size(name))
        return [dim for dim, inner in zip(mesh.dim_names, mesh.strides, strict=True) if inner in within]

    return Layout([tuple(part for name in names for part in parts(name)) for names in layout.axes], mesh)


# -- the composed way -------------------------------------------------------------------------------------------------


def _path(shape: tuple[int, ...], source: Layout, target: Layout) -> list[Layout]:
    """Return the layouts to go through: slices first, one move per mesh dimension, gathers last, or straight on."""
    here, goal = list(effective(source)), effective(target)
    if tuple(here) == goal:
        return [target]
    mesh, visited = target.mesh, [tuple(here)]
    _slice_where_possible(mesh, shape, here, goal)
    if tuple(here) != visited[-1]:
        visited.append(tuple(here))
    while _move_one(mesh, shape, here, goal):
        visited.append(tuple(here))
    if not all(coarser(mesh, n, b, a) for n, a, b in zip(shape, here, goal, strict=True)):
        return [source, target]
    if tuple(here) == goal:
        visited.pop()
    return [source, *(Layout(list(axes), mesh) for axes in visited[1:]), target]


def _slice_where_possible(mesh: Mesh, shape: tuple[int, ...], here: list[Names], goal: tuple[Names, ...]) -> None:
    used = {name for names in here for name in names}
    for axis, names in enumerate(goal):
        while len(here[axis]) < len(names) and names[: len(here[axis])] == here[axis]:
            longer = names[: len(here[axis]) + 1]
            if longer[-1] in used or not coarser(mesh, shape[axis], here[axis], longer):
                break
            here[axis] = longer


def _move_one(mesh: Mesh, shape: tuple[int, ...], here: list[Names], goal: tuple[Names, ...]) -> bool:
    """Move one mesh dimension from the axis that it divides to the axis where it belongs, if one can move now."""
    for b, names in enumerate(goal):
        length = len(here[b])
        if length == len(names) or names[:length] != here[b]:
            continue
        longer = names[: length + 1]
        a = next((a for a, held in enumerate(here) if a != b and held[-1:] == longer[-1:]), None)
        if a is None:
            continue
        if coarser(mesh, shape[a], here[a][:-1], here[a]) and coarser(mesh, shape[b], here[b], longer):
            here[a], here[b] = here[a][:-1], longer
            return True
    return False


def _step(shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, held: Layout) -> Step:
    mesh = target.mesh
    axes = list(zip(shape, effective(source), effective(target), strict=True))
    spanned = {name for n, a, b in axes for name in a[_common(mesh, n, a, b) :]}
    dims = tuple(name for name, _ in mesh.dims if name in spanned)
    if not dims or 0 in shape or all(_holds(mesh, n, a, b) for n, a, b in axes):
        return Slice(shape, itemsize, source, target, (), held)
    if all(coarser(mesh, n, b, a) for n, a, b in axes):
        return AllGather(shape, itemsize, source, target, dims, held)
    return AllToAll(shape, itemsize, source, target, dims, held)


def _common(mesh: Mesh, n: int, a: Names, b: Names) -> int:
    """Return how many leading names of *a* and *b* leave a device's elements within the same block in both."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    while not (coarser(mesh, n, a[:length], a) and coarser(mesh, n, b[:length], b)):
        length -= 1
    return length


def _holds(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether on an axis of *n* elements cut by *a* every device holds what *b* would give it."""
    if coarser(mesh, n, a, b):
        return True
    if not b or n >= max(parts_of(mesh, a), parts_of(mesh, b)):
        return False  # no block is empty, so some block lies outside of the one that it would have to lie in
    names = tuple(dict.fromkeys(a + b))
    combinations = np.arange(parts_of(mesh, names), dtype=np.intp)
    coordinates = dict(decode(mesh, names, combinations))
    (held_start, held_stop), (start, stop) = (
        starts_and_stops(n, parts_of(mesh, used), encode(mesh, used, coordinates)) for used in (a, b)
    )
    return bool(np.all((start >= stop) | ((held_start <= start) & (stop <= held_stop))))


def _one(number: int) -> Indices:
    return np.array([number], dtype=np.intp)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _bytes(number: float) -> str:
    """Return *number* bytes for people.

    >>> _bytes(96), _bytes(33554432)
    ('96 B', '32.0 MiB')
    """
    if number < 1024:
        return f"{int(number)} B"
    power = min(5, (int(number).bit_length() - 1) // 10)
    return f"{number / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power - 1]}"
