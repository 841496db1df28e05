"""Steps: what a device sends and receives to go from one layout to another; pure, the same on every rank.

What kind of step a change is follows from how the blocks of its two layouts intersect: a `Slice` if every device
already holds what it needs, an `AllGather` if every device of a group needs all blocks of the group, an `AllToAll`
otherwise. Steps between meshes over different ranks are in :mod:`meshcomm.plans.cross_mesh`.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from meshcomm._pickles import FieldsOnly
from meshcomm._tuning import GATHERED_AT_ONCE
from meshcomm._types import Indices, Names, Ranks
from meshcomm.layouts.boxes import Box, Boxes, stacked
from meshcomm.layouts.coordinates import (
    block_candidates,
    coarser,
    coordinates_of,
    decode,
    effective,
    encode,
    parts_of,
    used,
)
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import block_numbers, block_starts, most_overlapping, starts_and_stops


class Traffic(NamedTuple):
    """What devices receive from others and hold, in one step; an array each, with an entry per device."""

    bytes_moved: Indices
    messages: Indices
    scratch: Indices
    source: Indices  # bytes of the block before
    target: Indices  # bytes of the block after


@dataclass(frozen=True, repr=False)
class Step(FieldsOnly):
    """One hop of a plan, from layout *source* to layout *target*. Local.

    *dims* are the mesh dimensions along which its groups lie: devices exchange only within a group. *held* is the
    layout of the block that a device still holds: a slice moves nothing, so the step after it takes what it needs out
    of the block from before. In *rounds* rounds, a device packs and unpacks only a part of each box at a time.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Layout
    target: Layout
    dims: Names
    held: Layout
    rounds: int = 1

    renamed: ClassVar[dict[str, str]] = {"rounds": "parts"}

    @property
    def mesh(self) -> Mesh:
        """The mesh of both layouts. Local."""
        return self.target.mesh

    @property
    def ranks(self) -> Ranks:
        """The rank of each device that takes part. Local."""
        return self.mesh.ranks

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
        axes = zip(self.shape, *map(effective, (self.held, self.source, self.target)), strict=True)
        whole = [held == names and (self.permutes or coarser(mesh, n, cut, names)) for n, held, names, cut in axes]
        return not _lies_in_place(self.shape, self.held, whole)

    @cached_property
    def unpacks(self) -> bool:
        """Whether a device unpacks what it receives: it does not arrive where it belongs. Local."""
        axes = zip(self.shape, effective(self.target), effective(self.source), strict=True)
        whole = [self.permutes or coarser(self.mesh, n, cut, names) for n, names, cut in axes]
        return not _lies_in_place(self.shape, self.target, whole)

    @cached_property
    def permutes(self) -> bool:
        """Whether every device receives one whole block of one other device, and every block goes to one. Local."""
        same_cuts = self.source.shape == self.target.shape
        return bool(self.dims) and same_cuts and set(self.dims) <= used(self.target)

    @property
    def at_once(self) -> bool:
        """Whether the blocks of a group are small enough to be gathered in one call, this device's own too. Local."""
        return False

    def held_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds before the step, None if it holds none. Local."""
        return self.held.block_box(self.shape, device)

    def target_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds after the step, None if it holds none. Local."""
        return self.target.block_box(self.shape, device)

    def group_of(self, device: int) -> tuple[int, ...]:
        """Return the devices that *device* exchanges with, itself among them, in the order of the group. Local."""
        members = [device - sum(c * self.mesh.stride(n) for n, c in self._coordinates(device).items())]
        for name in self.dims:
            stride, size = self.mesh.stride(name), self.mesh.dim_size(name)
            members = [first + i * stride for first in members for i in range(size)]
        return tuple(members)

    def position_of(self, device: int) -> int:
        """Return the place of *device* in its group. Local."""
        strides = self._group_strides
        return sum(c * strides[name] for name, c in self._coordinates(device).items())

    def members(self, device: int, places: Indices) -> Indices:
        """Return the devices at *places* in the group of *device*. Local."""
        found = np.full_like(
            places, device - sum(c * self.mesh.stride(n) for n, c in self._coordinates(device).items())
        )
        for name in reversed(self.dims):
            places, coordinate = np.divmod(places, self.mesh.dim_size(name))
            found += coordinate * self.mesh.stride(name)
        return found

    def sends(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* sends to peers, itself included. Local.

        A peer is served by the holder that shares its coordinates along the mesh dimensions over which the source is
        replicated: by itself if it can, so each box is sent once and replicas share the work.
        """
        coordinates = coordinates_of(self.mesh, device)
        fixed = {name: coordinates[name] for name in used(self.target) - used(self.source)}
        box = self.source.block_box(self.shape, device)
        candidates = [
            block_candidates(self.mesh, n, names, interval, fixed)
            for n, names, interval in zip(self.shape, self.target.axes, box, strict=True)
        ]
        # A mesh dimension that only the source uses: all its coordinates need the same box.
        copies = np.zeros(1, dtype=np.intp)
        for name in self.dims:
            if name not in used(self.target):
                offsets = np.arange(self.mesh.dim_size(name), dtype=np.intp) * self._group_strides[name]
                copies = (copies[:, None] + offsets).ravel()
        peers, starts, stops = self._boxes(self.target, candidates, box)
        which = np.tile(np.arange(len(peers), dtype=np.intp), len(copies))
        return Boxes((copies[:, None] + peers).ravel(), which, starts, stops)

    def receives(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* receives from peers, itself included. Local."""
        box = self.target.block_box(self.shape, device)
        candidates = [
            block_candidates(self.mesh, n, names, interval, {})
            for n, names, interval in zip(self.shape, self.source.axes, box, strict=True)
        ]
        peers, starts, stops = self._boxes(self.source, candidates, box)
        return Boxes(peers, np.arange(len(peers), dtype=np.intp), starts, stops)

    def _boxes(self, layout: Layout, candidates: list[Indices], box: Box) -> tuple[Indices, Indices, Indices]:
        """Return the product over the axes of *candidates*, block numbers of *layout*, each cut to *box*. Local."""
        peers = np.zeros(1, dtype=np.intp)
        columns: list[tuple[Indices, Indices]] = []
        for axis, numbers in enumerate(candidates):
            parts = layout.num_shards(axis)
            starts = np.maximum(block_starts(self.shape[axis], parts, numbers), box[axis][0])
            stops = np.minimum(block_starts(self.shape[axis], parts, numbers + 1), box[axis][1])
            offsets = np.zeros_like(numbers)
            for name, coordinate in decode(self.mesh, layout.axes[axis], numbers):
                offsets += coordinate * self._group_strides.get(name, 0)
            peers = (peers[:, None] + offsets).ravel()
            columns = [(a.repeat(len(numbers)), b.repeat(len(numbers))) for a, b in columns]
            repeats = len(peers) // len(numbers) if len(numbers) else 0
            columns.append((np.tile(starts, repeats), np.tile(stops, repeats)))
        return peers, *stacked(columns, len(peers))

    def traffic(self, devices: Indices) -> Traffic:
        """Return what each of *devices* receives and holds. Local."""
        mesh = self.mesh
        coordinates = {name: devices // mesh.stride(name) % size for name, size in mesh.dims}
        ones = np.ones_like(devices)
        source, target, overlap, messages, serves_itself = ones, ones, ones, ones, ones.astype(bool)
        for n, a, b in zip(self.shape, self.source.axes, self.target.axes, strict=True):
            parts = parts_of(mesh, a)
            s0, s1 = starts_and_stops(n, parts, encode(mesh, a, coordinates) if a else np.zeros_like(devices))
            t0, t1 = starts_and_stops(
                n, parts_of(mesh, b), encode(mesh, b, coordinates) if b else np.zeros_like(devices)
            )
            shared = np.maximum(0, np.minimum(s1, t1) - np.maximum(s0, t0))
            last = np.maximum(t1 - 1, t0)
            holders = np.where(t1 > t0, block_numbers(n, parts, last) - block_numbers(n, parts, t0) + 1, 0)
            source, target, overlap = source * (s1 - s0), target * (t1 - t0), overlap * shared
            messages, serves_itself = messages * holders, serves_itself & (shared > 0)
        source, target, overlap = (a * self.itemsize for a in (source, target, overlap))
        received = target - overlap
        # What a rank sends to itself is packed only if others get the same box, and received only in a gather.
        shares = self.at_once or not set(self.dims) <= used(self.target)
        sent = source - (0 if shares else overlap) if self.packs else np.zeros_like(devices)
        unpacked = (target if self.at_once else received) if self.unpacks else np.zeros_like(devices)
        messages = np.where(received > 0, messages - serves_itself, 0)
        return Traffic(received, messages, self._in_rounds(sent, unpacked), source, target)

    def _in_rounds(self, sent: Indices, unpacked: Indices) -> Indices:
        """Return the scratch that packing and unpacking so many bytes in rounds takes at most."""
        if self.rounds == 1:
            return sent + unpacked
        # Of each box a part is at most one element longer than an even share of the others.
        most, scratch = self.most_boxes, np.zeros_like(sent)
        for packed, boxes in ((sent, most.sent), (unpacked, most.received)):
            part = np.maximum(packed // self.itemsize - boxes, 0) // self.rounds + boxes
            scratch += np.minimum(part * self.itemsize, packed)
        return scratch

    @cached_property
    def most_boxes(self) -> "Most":
        """How many boxes, and elements, any device packs and unpacks at most, by the layouts alone. Local."""
        boxes = [1, 1]
        for axis, n in enumerate(self.shape):
            for way, (here, there) in enumerate([(self.source, self.target), (self.target, self.source)]):
                boxes[way] *= most_overlapping(n, here.num_shards(axis), there.num_shards(axis))
        sent = largest_block(self.shape, self.source) if self.packs else 0
        received = largest_block(self.shape, self.target) if self.unpacks else 0
        return Most(boxes[0] if sent else 0, boxes[1] if received else 0, sent, received)

    @cached_property
    def _group_strides(self) -> dict[str, int]:
        strides, stride = {}, 1
        for name in reversed(self.dims):
            strides[name] = stride
            stride *= self.mesh.dim_size(name)
        return strides

    def _coordinates(self, device: int) -> dict[str, int]:
        coordinates = coordinates_of(self.mesh, device)
        return {name: coordinates[name] for name in self.dims}

    @property
    def _detail(self) -> str:
        return ""

    def __repr__(self) -> str:
        along = f" along {'+'.join(self.dims)}" if self.dims else ""
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        return f"{type(self).__name__}{along}{self._detail}{rounds}: {specs_text(self.source.sharding_specs)} -> {specs_text(self.target.sharding_specs)}"


class Most(NamedTuple):
    """Bounds on what any device packs and unpacks: boxes and elements."""

    sent: int
    received: int
    sent_elements: int
    received_elements: int


class Slice(Step):
    """Every device already holds what it needs, and keeps only that. Nothing is sent."""

    def traffic(self, devices: Indices) -> Traffic:
        none = np.zeros_like(devices)
        return super().traffic(devices)._replace(bytes_moved=none, messages=none, scratch=none)


class AllGather(Step):
    """Every device of a group receives the blocks of all devices of the group."""

    @property
    def at_once(self) -> bool:
        before, after = (largest_block(self.shape, layout) * self.itemsize for layout in (self.source, self.target))
        return self.rounds == 1 and before <= GATHERED_AT_ONCE and after < 2**31


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
        here = [a for a, names in enumerate(effective(self.source)) if set(names) & set(self.dims)]
        there = [a for a, names in enumerate(effective(self.target)) if set(names) & set(self.dims)]
        others = [
            tuple(tuple(n for n in names if n not in self.dims) for names in effective(layout))
            for layout in (self.source, self.target)
        ]
        if len(self.dims) == 1 and len(here) == len(there) == 1 and here != there and others[0] == others[1]:
            return here[0], there[0]
        return None, None

    @property
    def _detail(self) -> str:
        return " (direct)" if self.direct else f" (split {self.split_dimension}, concat {self.concat_dimension})"


Steps: TypeAlias = tuple[Step, ...]


def largest_block(shape: tuple[int, ...], layout: Layout) -> int:
    """Return how many elements the largest block of an array of *shape* has. Local."""
    return prod(-(-n // layout.num_shards(axis)) for axis, n in enumerate(shape))


def _lies_in_place(shape: tuple[int, ...], block: Layout, whole: list[bool]) -> bool:
    """Return whether boxes, *whole* along some axes, are consecutive bytes in the blocks of every device."""
    for axis, n in enumerate(shape):
        longest = -(-n // block.num_shards(axis))
        if longest > 1 or not whole[axis]:
            return all(whole[axis + 1 :])
    return True
