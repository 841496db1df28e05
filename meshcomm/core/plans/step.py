"""Steps: the boxes that devices exchange to go from one layout to another; pure, the same on every rank.

The kind of a step follows from the intersections of the blocks of its two layouts: a `Slice` if every device already
holds all that it needs, an `AllGather` if every device of a group needs all blocks of the group, an `AllToAll`
otherwise. Steps between meshes over different ranks are in :mod:`meshcomm.core.plans.cross_mesh`.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.core._tuning import GATHERED_AT_ONCE, MAX_COUNT
from meshcomm.core._types import FieldsOnly, Indices, Names, Ranks
from meshcomm.core.layouts.boxes import Box, Boxes, boxes_of_overlaps
from meshcomm.core.layouts.coordinates import (
    block_numbers_at,
    coarser,
    coordinates_of,
    effective,
    numbers_of,
    unravel,
    used_dims,
)
from meshcomm.core.layouts.cyclic import CyclicCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.overlaps import axis_overlaps, holder_counts, max_overlaps, shared_counts
from meshcomm.core.layouts.partition import max_round_elements
from meshcomm.core.layouts.specs import CutSpec


class StepTraffic(NamedTuple):
    """The bytes and messages that devices receive from others in one step, and the bytes that they hold.

    Each field is an array with an entry per device; *scratch* are the bytes to pack and unpack over MPI.
    """

    bytes_moved: Indices
    messages: Indices
    scratch: Indices
    source: Indices  # bytes of the block before
    target: Indices  # bytes of the block after


@dataclass(frozen=True, repr=False)
class Step(FieldsOnly):
    """One hop of a plan, from layout *source* to layout *target*.

    Parameters
    ----------
    shape, itemsize: shape of the global array, and bytes of an element
    source, target: layouts before and after
    dims: mesh dimensions along which the devices of a group differ: devices exchange only within a group
    block_layout: layout of the block from which a device takes its boxes: *source*, or after a slice, which moves
        nothing, the layout before the slice
    rounds: number of rounds; in each, a device packs and unpacks a fraction of each box
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Layout
    target: Layout
    dims: Names
    block_layout: Layout
    rounds: int = 1

    @property
    def mesh(self) -> Mesh:
        """The mesh of both layouts."""
        return self.target.mesh

    @property
    def ranks(self) -> Ranks:
        """The rank of each device of the step."""
        return self.mesh.ranks

    @cached_property
    def group_assignment(self) -> tuple[tuple[int, ...], ...]:
        """The groups of devices that exchange with each other, one row each."""
        return self.mesh.groups_along(self.dims)

    @property
    def group_size(self) -> int:
        """The number of devices in a group."""
        return prod(self.mesh.dim_size(name) for name in self.dims)

    @cached_property
    def packs(self) -> bool:
        """Whether a device packs its boxes to send them over MPI: they do not lie consecutively in its block."""
        mesh = self.mesh
        axes = zip(self.shape, *map(effective, (self.block_layout, self.source, self.target)), strict=True)
        spans = [block == names and (self.permutes or coarser(mesh, n, cut, names)) for n, block, names, cut in axes]
        return not self._are_consecutive(self.block_layout, spans)

    @cached_property
    def unpacks(self) -> bool:
        """Whether a device unpacks boxes that arrive over MPI: they do not lie consecutively in its new block."""
        axes = zip(self.shape, effective(self.target), effective(self.source), strict=True)
        spans = [self.permutes or coarser(self.mesh, n, cut, names) for n, names, cut in axes]
        return not self._are_consecutive(self.target, spans)

    def _are_consecutive(self, block_layout: Layout, spans: list[bool]) -> bool:
        """Return whether boxes are certainly contiguous in the blocks of *block_layout* on every device.

        *spans* says for each axis whether the boxes span the block along it.
        """
        layouts = (self.block_layout, self.source, self.target)
        if any(isinstance(layout.cut(axis, n), CyclicCut) for layout in layouts for axis, n in enumerate(self.shape)):
            return False  # there may be gaps between runs, and several boxes for a peer
        for axis, n in enumerate(self.shape):
            if block_layout.cut(axis, n).longest > 1 or not spans[axis]:
                return all(spans[axis + 1 :])
        return True

    @cached_property
    def permutes(self) -> bool:
        """Whether every device sends its whole block to one device, and receives the whole block of one."""
        cuts = ([layout.cut(axis, n) for axis, n in enumerate(self.shape)] for layout in (self.source, self.target))
        return bool(self.dims) and next(cuts) == next(cuts) and set(self.dims) <= used_dims(self.target)

    @property
    def gathers_in_one_call(self) -> bool:
        """Whether the blocks of a group, the device's own too, are small enough to be gathered in one call of MPI."""
        return False

    @property
    def exchanges_intersections(self) -> bool:
        """Whether each device sends all intersections of its block with new blocks of its group: it has no replica."""
        return self.block_layout is self.source and set(self.dims) <= used_dims(self.source)

    def held_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds before the step; None if it holds none."""
        return self.block_layout.block_box(self.shape, device)

    def target_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds after the step; None if it holds none."""
        return self.target.block_box(self.shape, device)

    @cached_property
    def _groups(self) -> dict[int, tuple[int, ...]]:
        return {}

    def group_of(self, device: int) -> tuple[int, ...]:
        """Return the devices of the group of *device*, itself among them, in order."""
        if device not in self._groups:
            self._groups[device] = self._group_of(device)
        return self._groups[device]

    def _group_of(self, device: int) -> tuple[int, ...]:
        members = [device - sum(c * self.mesh.stride(n) for n, c in self._coordinates(device).items())]
        for name in self.dims:
            stride, size = self.mesh.stride(name), self.mesh.dim_size(name)
            members = [first + i * stride for first in members for i in range(size)]
        return tuple(members)

    def position_of(self, device: int) -> int:
        """Return the position of *device* in its group."""
        strides = self._group_strides
        return sum(c * strides[name] for name, c in self._coordinates(device).items())

    def members(self, device: int, positions: Indices) -> Indices:
        """Return the devices at *positions* in the group of *device*."""
        first = device - sum(c * self.mesh.stride(n) for n, c in self._coordinates(device).items())
        devices = np.full_like(positions, first)
        for name, coordinate in unravel(self.mesh, self.dims, positions):
            devices += coordinate * self.mesh.stride(name)
        return devices

    def sends(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* sends to peers, itself included.

        The sender of a box is the holder with the same coordinates as the peer along the mesh dimensions over which
        the source is replicated. So each box is sent once, replicas share the work, and a device that already holds a
        box sends it to itself.
        """
        coordinates = coordinates_of(self.mesh, device)
        fixed_coordinates = {name: coordinates[name] for name in used_dims(self.target) - used_dims(self.source)}
        boxes = self._boxes(self.source, device, self.target, fixed_coordinates)
        # Along a mesh dimension that only the source uses, devices at all coordinates need the same box.
        copy_offsets = np.zeros(1, dtype=np.intp)
        for name in self.dims:
            if name not in used_dims(self.target):
                offsets = np.arange(self.mesh.dim_size(name), dtype=np.intp) * self._group_strides[name]
                copy_offsets = (copy_offsets[:, None] + offsets).ravel()
        which = np.tile(boxes.which, len(copy_offsets))
        return boxes._replace(peers=(copy_offsets[:, None] + boxes.peers).ravel(), which=which)

    def receives(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* receives from peers, itself included."""
        return self._boxes(self.target, device, self.source, {})

    def kept_boxes(self, device: int) -> Boxes:
        """Return the boxes, in global indices, of the new block of *device* that it already holds."""
        return self._boxes(self.target, device, self.block_layout, coordinates_of(self.mesh, device))

    def _boxes(self, layout: Layout, device: int, other: Layout, fixed_coordinates: dict[str, int]) -> Boxes:
        """Return the intersections of the block of *device* in *layout* with blocks of the *other* layout.

        Only blocks at *fixed_coordinates*, by mesh dimension, count. Peers are the positions of devices that hold the
        blocks.
        """
        numbers, overlaps = layout.block_numbers(device), []
        for axis, n in enumerate(self.shape):
            allowed = block_numbers_at(self.mesh, other.axes[axis], fixed_coordinates)
            overlaps.append(axis_overlaps(layout.cut(axis, n), numbers[axis], other.cut(axis, n), allowed))
        rows, boxes = boxes_of_overlaps(overlaps)
        peers = np.zeros(len(rows), dtype=np.intp)
        for axis, overlap in enumerate(overlaps):
            offsets = np.zeros_like(overlap.other_blocks)
            for name, coordinate in unravel(self.mesh, other.axes[axis], overlap.other_blocks):
                offsets += coordinate * self._group_strides.get(name, 0)
            peers += offsets[rows[:, axis]]
        if boxes.repeats is not None:  # a peer may get several boxes, which have to be consecutive
            order = np.argsort(peers, kind="stable")
            peers, boxes = peers[order], boxes.subset(order)
        return boxes._replace(peers=peers, which=np.arange(len(peers), dtype=np.intp))

    def traffic(self, devices: Indices) -> StepTraffic:
        """Return the traffic of each of *devices*."""
        messages, numbers = np.ones_like(devices), numbers_of(self.target, devices)
        for axis, n in enumerate(self.shape):
            messages = messages * holder_counts(self.target.cut(axis, n), numbers[:, axis], self.source.cut(axis, n))
        old_sizes, new_sizes, overlap = self.elements(devices, devices)
        old_sizes, new_sizes, overlap = (a * self.itemsize for a in (old_sizes, new_sizes, overlap))
        received_bytes = new_sizes - overlap
        # A box for the device itself is packed only if other devices get the same box, and unpacked only in a gather.
        is_shared = self.gathers_in_one_call or not set(self.dims) <= used_dims(self.target)
        packed = old_sizes - (0 if is_shared else overlap) if self.packs else np.zeros_like(devices)
        unpacked = (
            (new_sizes if self.gathers_in_one_call else received_bytes) if self.unpacks else np.zeros_like(devices)
        )
        messages = np.where(received_bytes > 0, messages - (overlap > 0), 0)
        return StepTraffic(received_bytes, messages, self._scratch_bound(packed, unpacked), old_sizes, new_sizes)

    def elements(self, in_source: Indices, in_target: Indices) -> tuple[Indices, Indices, Indices]:
        """Return the numbers of elements in the old block of each device, in its new block, and in both.

        *in_source* and *in_target* are the numbers of the same devices in the meshes of the source and of the target.
        """
        source, target, overlap = np.ones_like(in_source), np.ones_like(in_source), np.ones_like(in_source)
        a_numbers, b_numbers = numbers_of(self.source, in_source), numbers_of(self.target, in_target)
        for axis, n in enumerate(self.shape):
            a, b = self.source.cut(axis, n), self.target.cut(axis, n)
            source, target = (source * a.lengths(a_numbers[:, axis]), target * b.lengths(b_numbers[:, axis]))
            overlap = overlap * shared_counts(a, a_numbers[:, axis], b, b_numbers[:, axis])
        return source, target, overlap

    def received(self, devices: Indices) -> tuple[Indices, Indices]:
        """Return the number of elements that each of *devices* receives from others, and that of its new block."""
        _, target_sizes, overlap = self.elements(devices, devices)
        return target_sizes - overlap, target_sizes

    @cached_property
    def busiest_device(self) -> int:
        """The device that receives the most; if several do, one of those with the largest new block."""
        received_counts, block_sizes = self.received(np.arange(len(self.ranks), dtype=np.intp))
        return int(np.lexsort((block_sizes, received_counts))[-1])

    def _scratch_bound(self, packed_bytes: Indices, unpacked_bytes: Indices) -> Indices:
        """Return an upper bound on the scratch, in bytes, to pack and unpack these byte counts in rounds."""
        if self.rounds == 1:
            return packed_bytes + unpacked_bytes
        bounds, scratch = self.box_bounds, np.zeros_like(packed_bytes)
        for byte_counts, boxes in ((packed_bytes, bounds.sent), (unpacked_bytes, bounds.received)):
            round_elements = max_round_elements(byte_counts // self.itemsize, boxes, self.rounds)
            scratch += np.minimum(round_elements * self.itemsize, byte_counts)
        return scratch

    @cached_property
    def box_bounds(self) -> "BoxBounds":
        """Upper bounds on the boxes and elements that any device packs and unpacks, from the layouts only."""
        boxes = [1, 1]
        for axis, n in enumerate(self.shape):
            source, target = self.source.cut(axis, n), self.target.cut(axis, n)
            boxes[0] *= max_overlaps(source, target)
            boxes[1] *= max_overlaps(target, source)
        sent_elements = self.source.largest_block(self.shape) if self.packs else 0
        received_elements = self.target.largest_block(self.shape) if self.unpacks else 0
        return BoxBounds(
            boxes[0] if sent_elements else 0, boxes[1] if received_elements else 0, sent_elements, received_elements
        )

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
        dims_text = f" along {'+'.join(self.dims)}" if self.dims else ""
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        source, target = (layout.specs_text for layout in (self.source, self.target))
        return f"{type(self).__name__}{dims_text}{self._detail}{rounds}: {source} -> {target}"


class BoxBounds(NamedTuple):
    """Upper bounds on the boxes and elements that any device packs to send, and unpacks on receipt."""

    sent: int
    received: int
    sent_elements: int
    received_elements: int


class Slice(Step):
    """Every device already holds its new block, and keeps only that. Nothing is sent."""

    def traffic(self, devices: Indices) -> StepTraffic:
        zeros = np.zeros_like(devices)
        return super().traffic(devices)._replace(bytes_moved=zeros, messages=zeros, scratch=zeros)


class AllGather(Step):
    """Every device of a group receives the blocks of all devices of the group."""

    @property
    def gathers_in_one_call(self) -> bool:
        source_bytes, target_bytes = (
            layout.largest_block(self.shape) * self.itemsize for layout in (self.source, self.target)
        )
        return self.rounds == 1 and source_bytes <= GATHERED_AT_ONCE and target_bytes <= MAX_COUNT


class AllToAll(Step):
    """Each device sends every other device in its group the box that it needs.

    If one mesh dimension moves from one tensor axis to another, this is the op that splits along `split_dimension` and
    concatenates along `concat_dimension`. Both are None for a direct exchange: its boxes are the intersections of old
    and new blocks.
    """

    @property
    def split_dimension(self) -> int | None:
        """The tensor axis that the step splits, or None."""
        return self._moved_axes[1]

    @property
    def concat_dimension(self) -> int | None:
        """The tensor axis that the step joins, or None."""
        return self._moved_axes[0]

    @property
    def direct(self) -> bool:
        """Whether this is a direct exchange, between any two layouts."""
        return self.split_dimension is None

    @cached_property
    def _moved_axes(self) -> tuple[int | None, int | None]:
        old_axes = [a for a, names in enumerate(effective(self.source)) if set(names) & set(self.dims)]
        new_axes = [a for a, names in enumerate(effective(self.target)) if set(names) & set(self.dims)]
        other_dims = [
            tuple(tuple(n for n in names if n not in self.dims) for names in effective(layout))
            for layout in (self.source, self.target)
        ]
        if (
            not len(self.dims) == len(old_axes) == len(new_axes) == 1
            or old_axes == new_axes
            or other_dims[0] != other_dims[1]
        ):
            return None, None
        if isinstance(self.source.axes[old_axes[0]], CutSpec) or isinstance(self.target.axes[new_axes[0]], CutSpec):
            return None, None
        return old_axes[0], new_axes[0]

    @property
    def _detail(self) -> str:
        return " (direct)" if self.direct else f" (split {self.split_dimension}, concat {self.concat_dimension})"


Steps: TypeAlias = tuple[Step, ...]
