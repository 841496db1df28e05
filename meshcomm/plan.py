"""Plans: how a tensor goes from one layout to another; pure, the same on every rank.

A plan is a path of layouts from the source to the target. Each hop is an exchange of boxes between devices, and what
kind of step it is follows from how the blocks of its two layouts intersect: a `Slice` if every device already holds
what it needs, an `AllGather` if every device of a group needs all blocks of the group, an `AllToAll` otherwise.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshcomm import _late
from meshcomm.blocks import Box, Interval, overlapping, refines
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.layout import Layout
from meshcomm.mesh import Mesh, integer

Names = tuple[str, ...]
Indices = NDArray[np.intp]


class Boxes(NamedTuple):
    """Boxes that one device sends or receives, and the places in the group of the peers that each one goes to."""

    peers: Indices  # (copies, k): row by row, the peers that get, or give, the k boxes
    starts: Indices  # (k, ndim)
    stops: Indices  # (k, ndim)


class Traffic(NamedTuple):
    """What devices receive and hold: bytes and messages received from others, and the peak of bytes held."""

    bytes_moved: int
    messages: int
    peak_bytes: int


@dataclass(frozen=True, repr=False)
class Step:
    """One hop of a plan, from layout *source* to layout *target*. Local.

    *dims* are the mesh dimensions along which its groups lie: devices exchange only within a group. *held* is the
    layout of the block that a device still holds: a slice moves nothing, so the step after it takes what it needs out
    of the block from before.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Layout
    target: Layout
    dims: Names
    held: Layout

    @property
    def mesh(self) -> Mesh:
        """The mesh of both layouts. Local."""
        return self.target.mesh

    @cached_property
    def group_assignment(self) -> tuple[tuple[int, ...], ...]:
        """The groups of devices that exchange with each other, one row each. Local."""
        return self.mesh.groups_along(self.dims)

    @property
    def group_size(self) -> int:
        """How many devices a group has. Local."""
        return prod(self.mesh.dim_size(name) for name in self.dims)

    @cached_property
    def packs(self) -> bool:
        """Whether a device packs what it sends: its boxes do not lie consecutively in its block. Local."""
        mesh = self.mesh
        axes = zip(self.shape, *map(_effective, (self.held, self.source, self.target)), strict=True)
        whole = [held == names and (self.permutes or _coarser(mesh, n, cut, names)) for n, held, names, cut in axes]
        return not _lies_in_place(self.shape, self.held, whole)

    @cached_property
    def unpacks(self) -> bool:
        """Whether a device unpacks what it receives: it does not arrive where it belongs. Local."""
        axes = zip(self.shape, _effective(self.target), _effective(self.source), strict=True)
        whole = [self.permutes or _coarser(self.mesh, n, cut, names) for n, names, cut in axes]
        return not _lies_in_place(self.shape, self.target, whole)

    @cached_property
    def permutes(self) -> bool:
        """Whether every device receives one whole block of one other device, and every block goes to one. Local."""
        same_cuts = self.source.shape == self.target.shape
        return bool(self.dims) and same_cuts and set(self.dims) <= _used(self.target)

    def group_of(self, device: int) -> tuple[int, ...]:
        """Return the devices that *device* exchanges with, itself among them, in the order of the group. Local."""
        members = [device - sum(c * self.mesh.stride(n) for n, c in self._coordinates(device).items())]
        for name in self.dims:
            stride, size = self.mesh.stride(name), self.mesh.dim_size(name)
            members = [first + i * stride for first in members for i in range(size)]
        return tuple(members)

    def place_of(self, device: int) -> int:
        """Return the place of *device* in its group. Local."""
        strides = self._group_strides
        return sum(c * strides[name] for name, c in self._coordinates(device).items())

    def sends(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* sends to peers, itself included. Local.

        A peer is served by the holder that shares its coordinates along the mesh dimensions over which the source is
        replicated: by itself if it can, so each box is sent once and replicas share the work.
        """
        coordinates = _coordinates(self.mesh, device)
        used, needed = _used(self.source), _used(self.target)
        fixed = {name: coordinates[name] for name in needed - used}
        candidates = [
            _candidates(self.mesh, n, names, interval, fixed)
            for n, names, interval in zip(
                self.shape, self.target.axes, self.source.block_box(self.shape, device), strict=True
            )
        ]
        # A mesh dimension that only the source uses: all its coordinates need the same box.
        copies = np.zeros(1, dtype=np.intp)
        for name in self.dims:
            if name not in needed:
                offsets = np.arange(self.mesh.dim_size(name), dtype=np.intp) * self._group_strides[name]
                copies = (copies[:, None] + offsets).ravel()
        return self._boxes(self.target, candidates, self.source.block_box(self.shape, device), copies)

    def receives(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* receives from peers, itself included. Local."""
        box = self.target.block_box(self.shape, device)
        candidates = [
            _candidates(self.mesh, n, names, interval, {})
            for n, names, interval in zip(self.shape, self.source.axes, box, strict=True)
        ]
        return self._boxes(self.source, candidates, box, np.zeros(1, dtype=np.intp))

    def _boxes(self, layout: Layout, candidates: list[Indices], box: Box, copies: Indices) -> Boxes:
        """Return the product over the axes of *candidates*, block numbers of *layout*, each cut to *box*. Local."""
        peers = np.zeros(1, dtype=np.intp)
        columns: list[tuple[Indices, Indices]] = []
        for axis, numbers in enumerate(candidates):
            parts = layout.num_shards(axis)
            starts = np.maximum(_block_starts(self.shape[axis], parts, numbers), box[axis][0])
            stops = np.minimum(_block_starts(self.shape[axis], parts, numbers + 1), box[axis][1])
            offsets = np.zeros_like(numbers)
            for name, coordinate in _decode(self.mesh, layout.axes[axis], numbers):
                offsets += coordinate * self._group_strides.get(name, 0)
            peers = (peers[:, None] + offsets).ravel()
            columns = [(a.repeat(len(numbers)), b.repeat(len(numbers))) for a, b in columns]
            repeats = len(peers) // len(numbers) if len(numbers) else 0
            columns.append((np.tile(starts, repeats), np.tile(stops, repeats)))
        none = np.zeros((len(peers), 0), dtype=np.intp)
        return Boxes(
            copies[:, None] + peers,
            np.stack([a for a, _ in columns], axis=1) if columns else none,
            np.stack([b for _, b in columns], axis=1) if columns else none,
        )

    @cached_property
    def _group_strides(self) -> dict[str, int]:
        strides, stride = {}, 1
        for name in reversed(self.dims):
            strides[name] = stride
            stride *= self.mesh.dim_size(name)
        return strides

    def _coordinates(self, device: int) -> dict[str, int]:
        coordinates = _coordinates(self.mesh, device)
        return {name: coordinates[name] for name in self.dims}

    @property
    def _detail(self) -> str:
        return ""

    def __repr__(self) -> str:
        along = f" along {'+'.join(self.dims)}" if self.dims else ""
        return f"{type(self).__name__}{along}{self._detail}: {_specs(self.source)} -> {_specs(self.target)}"


class Slice(Step):
    """Every device already holds what it needs, and keeps only that. Nothing is sent."""


class AllGather(Step):
    """Every device of a group receives the blocks of all devices of the group."""


class AllToAll(Step):
    """Every device of a group sends each other device what that one needs of its block.

    With one mesh dimension that moves from one tensor axis to another it is the op that splits along
    `split_dimension` and concatenates along `concat_dimension`; both are None for the direct exchange, whose boxes
    are the intersections of the blocks.
    """

    @property
    def split_dimension(self) -> int | None:
        """The tensor axis that the step divides, or None. Local."""
        return self._moved[1]

    @property
    def concat_dimension(self) -> int | None:
        """The tensor axis that the step joins, or None. Local."""
        return self._moved[0]

    @property
    def direct(self) -> bool:
        """Whether this is the direct exchange: any blocks to any blocks. Local."""
        return self.split_dimension is None

    @cached_property
    def _moved(self) -> tuple[int | None, int | None]:
        here = [a for a, names in enumerate(_effective(self.source)) if set(names) & set(self.dims)]
        there = [a for a, names in enumerate(_effective(self.target)) if set(names) & set(self.dims)]
        others = [
            tuple(tuple(n for n in names if n not in self.dims) for names in _effective(layout))
            for layout in (self.source, self.target)
        ]
        if len(self.dims) == 1 and len(here) == len(there) == 1 and here != there and others[0] == others[1]:
            return here[0], there[0]
        return None, None

    @property
    def _detail(self) -> str:
        return " (direct)" if self.direct else f" (split {self.split_dimension}, concat {self.concat_dimension})"


@dataclass(frozen=True, repr=False)
class Plan:
    """How a tensor of one shape and dtype goes from layout *source* to layout *target*. Local.

    Print it to see its steps. `bytes_moved` (received from others), `messages` (received from others, with data in
    them) and `peak_bytes` (blocks and scratch held at once, at most) are the largest over the devices.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Layout
    target: Layout
    steps: tuple[Step, ...]

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

        ``MeshError`` if the mesh has no such device.
        """
        device = integer(device, "device")
        if not 0 <= device < self.target.mesh.size:
            raise MeshError(f"device {device} is not in the mesh, which has devices 0 to {self.target.mesh.size - 1}")
        return DevicePlan(self, device, *_traffic(self, np.array([device], dtype=np.intp)))

    def execute(self, tensor: Any) -> Any:
        """Return *tensor* in the target layout, as `relayout` does. Collective over the mesh.

        ``LayoutError``, ``ShapeError`` or ``DTypeError`` unless the tensor is what was planned for.
        """
        return _late.call("execute_plan", self, tensor)

    @cached_property
    def _largest(self) -> Traffic:
        return _traffic(self, np.arange(self.target.mesh.size, dtype=np.intp))

    def __repr__(self) -> str:
        mesh = ", ".join(f"{name}={size}" for name, size in self.target.mesh.dims)
        lines = [
            f"relayout of {self.shape} {self.dtype} on mesh {mesh}: {_specs(self.source)} -> {_specs(self.target)}",
        ]
        for number, step in enumerate(self.steps, 1):
            count = step.mesh.size // step.group_size
            groups = f"  [{count} group{'s' * (count > 1)} of {step.group_size}]" if step.dims else ""
            moved = step_traffic(step, np.arange(step.mesh.size, dtype=np.intp))
            traffic = f" {_bytes(int(moved[0].max()))}, {_count(int(moved[1].max()), 'message')}"
            work = ", ".join(w for w, does in (("pack", step.packs), ("unpack", step.unpacks)) if does and step.dims)
            lines.append(f"  {number}. {step}{groups}{traffic}{'; ' + work if work else ''}")
        if not self.steps:
            lines.append("  nothing moves: a copy of the block")
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
    def steps(self) -> tuple[Step, ...]:
        """The steps of the plan, the same for every device. Local."""
        return self.plan.steps

    def __repr__(self) -> str:
        return (
            f"device {self.device} receives {_bytes(self.bytes_moved)} in {_count(self.messages, 'message')} "
            f"and holds at most {_bytes(self.peak_bytes)} in this {self.plan!r}"
        )


def plan_relayout(shape: Any, dtype: DTypeLike, source: Layout, target: Layout) -> Plan:
    """Return how a tensor of global *shape* and *dtype* goes from *source* to *target*. Local.

    MATCH in *target* is resolved from *source*. ``LayoutError`` if a layout has another rank than the shape,
    ``MeshError`` if the layouts are on different meshes, ``ShapeError`` for an impossible shape, ``DTypeError`` for
    object.

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
        raise LayoutError(f"{_specs(source)}: MATCH says nothing about where a tensor is, only where it should go")
    if not same_place(source.mesh, target.mesh):
        raise MeshError(
            f"both layouts of a relayout must be on one mesh, but the source is on the {source.mesh} "
            f"and the target on the {target.mesh}"
        )
    kind, resolved = as_dtype(dtype), target.matched(source)
    check_size(lengths, kind)
    # The layouts of a plan are the caller's own: equal ones may belong to another world.
    return Plan(lengths, kind, source, resolved, _steps(lengths, kind.itemsize, source, resolved))


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
def _steps(shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout) -> tuple[Step, ...]:
    steps: list[Step] = []
    for here, there in pairwise(_path(shape, source, target)):
        sliced = bool(steps) and isinstance(steps[-1], Slice)
        steps.append(_step(shape, itemsize, here, there, steps[-1].held if sliced else here))
    return tuple(steps)


def _path(shape: tuple[int, ...], source: Layout, target: Layout) -> list[Layout]:
    """Return the layouts to go through: slices first, one move per mesh dimension, gathers last, or straight on."""
    here, goal = list(_effective(source)), _effective(target)
    if tuple(here) == goal:
        return [target]
    mesh, visited = target.mesh, [tuple(here)]
    _slice_where_possible(mesh, shape, here, goal)
    if tuple(here) != visited[-1]:
        visited.append(tuple(here))
    while _move_one(mesh, shape, here, goal):
        visited.append(tuple(here))
    if not all(_coarser(mesh, n, b, a) for n, a, b in zip(shape, here, goal, strict=True)):
        return [source, target]
    if tuple(here) == goal:
        visited.pop()
    return [source, *(Layout(list(axes), mesh) for axes in visited[1:]), target]


def _slice_where_possible(mesh: Mesh, shape: tuple[int, ...], here: list[Names], goal: tuple[Names, ...]) -> None:
    used = {name for names in here for name in names}
    for axis, names in enumerate(goal):
        while len(here[axis]) < len(names) and names[: len(here[axis])] == here[axis]:
            longer = names[: len(here[axis]) + 1]
            if longer[-1] in used or not _coarser(mesh, shape[axis], here[axis], longer):
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
        if _coarser(mesh, shape[a], here[a][:-1], here[a]) and _coarser(mesh, shape[b], here[b], longer):
            here[a], here[b] = here[a][:-1], longer
            return True
    return False


def _step(shape: tuple[int, ...], itemsize: int, source: Layout, target: Layout, held: Layout) -> Step:
    mesh = target.mesh
    axes = list(zip(shape, _effective(source), _effective(target), strict=True))
    spanned = {name for n, a, b in axes for name in a[_common(mesh, n, a, b) :]}
    dims = tuple(name for name, _ in mesh.dims if name in spanned)
    if not dims or 0 in shape or all(_holds(mesh, n, a, b) for n, a, b in axes):
        return Slice(shape, itemsize, source, target, (), held)
    if all(_coarser(mesh, n, b, a) for n, a, b in axes):
        return AllGather(shape, itemsize, source, target, dims, held)
    return AllToAll(shape, itemsize, source, target, dims, held)


def _effective(layout: Layout) -> tuple[Names, ...]:
    """Return the names per axis without mesh dimensions of size 1, which divide nothing."""
    return tuple(tuple(n for n in names if layout.mesh.dim_size(n) > 1) for names in layout.axes)


def _used(layout: Layout) -> set[str]:
    return {name for names in layout.axes for name in names}


def _parts(mesh: Mesh, names: Names) -> int:
    return prod(mesh.dim_size(name) for name in names)


def _coarser(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether an axis of *n* elements cut by *b* is cut by *a* and then further."""
    return b[: len(a)] == a and refines(n, _parts(mesh, a), _parts(mesh, b[len(a) :]))


def _common(mesh: Mesh, n: int, a: Names, b: Names) -> int:
    """Return how many leading names of *a* and *b* leave a device's elements within the same block in both."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    while not (_coarser(mesh, n, a[:length], a) and _coarser(mesh, n, b[:length], b)):
        length -= 1
    return length


def _holds(mesh: Mesh, n: int, a: Names, b: Names) -> bool:
    """Return whether on an axis of *n* elements cut by *a* every device holds what *b* would give it."""
    if _coarser(mesh, n, a, b):
        return True
    if not b or n >= max(_parts(mesh, a), _parts(mesh, b)):
        return False  # no block is empty, so some block lies outside of the one that it would have to lie in
    names = tuple(dict.fromkeys(a + b))
    combinations = np.arange(_parts(mesh, names), dtype=np.intp)
    coordinates = dict(_decode(mesh, names, combinations))
    (held_start, held_stop), (start, stop) = (
        _starts_and_stops(n, _parts(mesh, used), _encode(mesh, used, coordinates)) for used in (a, b)
    )
    return bool(np.all((start >= stop) | ((held_start <= start) & (stop <= held_stop))))


def _lies_in_place(shape: tuple[int, ...], block: Layout, whole: list[bool]) -> bool:
    """Return whether boxes, *whole* along some axes, are consecutive bytes in the blocks of every device."""
    for axis, n in enumerate(shape):
        longest = -(-n // block.num_shards(axis))
        if longest > 1 or not whole[axis]:
            return all(whole[axis + 1 :])
    return True


def _candidates(mesh: Mesh, n: int, names: Names, interval: Interval, fixed: dict[str, int]) -> Indices:
    """Return the numbers of the blocks of *names* that meet *interval*, at the *fixed* coordinates only."""
    numbers = overlapping(n, _parts(mesh, names), interval)
    if not fixed.keys() & set(names):
        return np.arange(numbers.start, numbers.stop, dtype=np.intp)
    allowed = np.zeros(1, dtype=np.intp)
    for name in names:
        size = mesh.dim_size(name)
        here = np.array([fixed[name]], dtype=np.intp) if name in fixed else np.arange(size, dtype=np.intp)
        allowed = (allowed[:, None] * size + here).ravel()
    return allowed[(numbers.start <= allowed) & (allowed < numbers.stop)]


def _coordinates(mesh: Mesh, device: int) -> dict[str, int]:
    return {name: device // mesh.stride(name) % size for name, size in mesh.dims}


def _decode(mesh: Mesh, names: Names, numbers: Indices) -> list[tuple[str, Indices]]:
    """Return the coordinate along each name of the blocks *numbers*, the first name slowest."""
    decoded = []
    for name in reversed(names):
        numbers, coordinate = np.divmod(numbers, mesh.dim_size(name))
        decoded.append((name, coordinate))
    return decoded


def _encode(mesh: Mesh, names: Names, coordinates: dict[str, Indices]) -> Indices:
    """Return the block numbers along *names* at *coordinates*, the inverse of `_decode`."""
    numbers = np.zeros_like(next(iter(coordinates.values()), np.zeros(1, dtype=np.intp)))
    for name in names:
        numbers = numbers * mesh.dim_size(name) + coordinates[name]
    return numbers


def _block_starts(n: int, parts: int, numbers: Indices) -> Indices:
    """Return `block_start` of many blocks at once."""
    length, longer = divmod(n, parts)
    return numbers * length + np.minimum(numbers, longer)


def _starts_and_stops(n: int, parts: int, numbers: Indices) -> tuple[Indices, Indices]:
    return _block_starts(n, parts, numbers), _block_starts(n, parts, numbers + 1)


def _block_numbers(n: int, parts: int, indices: Indices) -> Indices:
    """Return `block_number` of many elements at once."""
    length, longer = divmod(n, parts)
    beyond = longer * (length + 1)
    return np.where(indices < beyond, indices // (length + 1), longer + (indices - beyond) // max(1, length))


def step_traffic(step: Step, devices: Indices) -> tuple[Indices, Indices, Indices, Indices, Indices]:
    """Return per device of *devices*: bytes and messages received, scratch at most, source and target bytes. Local."""
    mesh = step.mesh
    coordinates = {name: devices // mesh.stride(name) % size for name, size in mesh.dims}
    ones = np.ones_like(devices)
    source, target, overlap, messages, serves_itself = ones, ones, ones, ones, ones.astype(bool)
    for n, a, b in zip(step.shape, step.source.axes, step.target.axes, strict=True):
        parts = _parts(mesh, a)
        numbers = _encode(mesh, a, coordinates) if a else np.zeros_like(devices)
        s0, s1 = _starts_and_stops(n, parts, numbers)
        t0, t1 = _starts_and_stops(n, _parts(mesh, b), _encode(mesh, b, coordinates) if b else np.zeros_like(devices))
        shared = np.maximum(0, np.minimum(s1, t1) - np.maximum(s0, t0))
        last = np.maximum(t1 - 1, t0)
        holders = np.where(t1 > t0, _block_numbers(n, parts, last) - _block_numbers(n, parts, t0) + 1, 0)
        source, target, overlap = source * (s1 - s0), target * (t1 - t0), overlap * shared
        messages, serves_itself = messages * holders, serves_itself & (shared > 0)
    source, target, overlap = (a * step.itemsize for a in (source, target, overlap))
    received = target - overlap
    scratch = np.zeros_like(devices)
    if not isinstance(step, Slice):
        # What a rank sends to itself is packed only if others get the same box, and received only in a gather.
        shares = isinstance(step, AllGather) or not set(step.dims) <= _used(step.target)
        scratch = scratch + (source - (0 if shares else overlap) if step.packs else 0)
        scratch = scratch + ((target if isinstance(step, AllGather) else received) if step.unpacks else 0)
    return received, np.where(received > 0, messages - serves_itself, 0), scratch, source, target


def _traffic(plan: Plan, devices: Indices) -> Traffic:
    """Return the largest over *devices* of bytes and messages received, and of bytes held."""
    steps = plan.steps or (Slice(plan.shape, plan.dtype.itemsize, plan.source, plan.target, (), plan.source),)
    received = messages = peak = held = np.zeros_like(devices)
    begin = step_traffic(steps[0], devices)[3]
    for step in steps:
        got, count, scratch, _, target = step_traffic(step, devices)
        received, messages = received + got, messages + count
        if isinstance(step, Slice) and step is not steps[-1]:
            continue  # the next step takes what it needs out of the block that is held
        peak = np.maximum(peak, begin + held + scratch + target)
        held = target
    return Traffic(int(received.max()), int(messages.max()), int(peak.max()))


def _specs(layout: Layout) -> str:
    return "[" + ", ".join("+".join(s) if isinstance(s, tuple) else s for s in layout.sharding_specs) + "]"


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
