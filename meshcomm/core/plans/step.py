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
    coarser,
    coordinates_of,
    effective,
    numbers_at,
    numbers_of,
    unravel,
    used_dims,
)
from meshcomm.core.layouts.cyclic import CyclicCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.overlaps import axis_overlaps, holders, max_overlaps, shared
from meshcomm.core.layouts.partition import most_in_a_round
from meshcomm.core.layouts.specs import CutSpec


class StepTraffic(NamedTuple):
    """The bytes and messages that devices receive from others in one step, and the bytes that they hold.

    Each field is an array with an entry per device. Exchanges over MPI pack and unpack in *scratch*.
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
    dims: mesh dimensions along which the groups lie: devices exchange only within a group
    block_layout: layout of the block from which a device takes its boxes. It is *source*, but after a slice, which
        moves nothing, the layout before the slice
    rounds: number of rounds; in each, a device packs and unpacks a share of each box
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
        """The groups of devices that exchange with each other, a row each."""
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
        whole = [block == names and (self.permutes or coarser(mesh, n, cut, names)) for n, block, names, cut in axes]
        return not self._consecutive(self.block_layout, whole)

    @cached_property
    def unpacks(self) -> bool:
        """Whether a device unpacks boxes that arrive over MPI: they do not lie consecutively in its new block."""
        axes = zip(self.shape, effective(self.target), effective(self.source), strict=True)
        whole = [self.permutes or coarser(self.mesh, n, cut, names) for n, names, cut in axes]
        return not self._consecutive(self.target, whole)

    def _consecutive(self, block: Layout, whole: list[bool]) -> bool:
        """Return whether boxes are known to be consecutive bytes in the blocks of every device.

        *whole* says for each axis whether the boxes span the block along it.
        """
        layouts = (self.block_layout, self.source, self.target)
        if any(isinstance(layout.cut(axis, n), CyclicCut) for layout in layouts for axis, n in enumerate(self.shape)):
            return False  # runs may lie apart, and there may be several boxes for a peer
        for axis, n in enumerate(self.shape):
            if block.cut(axis, n).longest > 1 or not whole[axis]:
                return all(whole[axis + 1 :])
        return True

    @cached_property
    def permutes(self) -> bool:
        """Whether every device sends its whole block to one device, and receives the whole block of one."""
        cuts = ([layout.cut(axis, n) for axis, n in enumerate(self.shape)] for layout in (self.source, self.target))
        return bool(self.dims) and next(cuts) == next(cuts) and set(self.dims) <= used_dims(self.target)

    @property
    def at_once(self) -> bool:
        """Whether the blocks of a group, the device's own too, are small enough to be gathered in one call of MPI."""
        return False

    @property
    def exchanges_intersections(self) -> bool:
        """Whether each device sends what its block shares with the new blocks of its group: no other one has it."""
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
        the source is replicated. So each box is sent once, replicas share the work, and who has a box sends it itself.
        """
        coordinates = coordinates_of(self.mesh, device)
        fixed = {name: coordinates[name] for name in used_dims(self.target) - used_dims(self.source)}
        boxes = self._boxes(self.source, device, self.target, fixed)
        # A mesh dimension that only the source uses: all its coordinates need the same box.
        copies = np.zeros(1, dtype=np.intp)
        for name in self.dims:
            if name not in used_dims(self.target):
                offsets = np.arange(self.mesh.dim_size(name), dtype=np.intp) * self._group_strides[name]
                copies = (copies[:, None] + offsets).ravel()
        which = np.tile(boxes.which, len(copies))
        return boxes._replace(peers=(copies[:, None] + boxes.peers).ravel(), which=which)

    def receives(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* receives from peers, itself included."""
        return self._boxes(self.target, device, self.source, {})

    def kept_boxes(self, device: int) -> Boxes:
        """Return the boxes, in global indices, of its new block that *device* already holds, for itself."""
        return self._boxes(self.target, device, self.block_layout, coordinates_of(self.mesh, device))

    def _boxes(self, layout: Layout, device: int, other: Layout, fixed: dict[str, int]) -> Boxes:
        """Return what the block of *device* in *layout* shares with the blocks of the *other* layout.

        Of these, only blocks whose coordinates are those that are *fixed* count. Peers are the positions of devices
        that hold the blocks.
        """
        numbers, overlaps = layout.block_numbers(device), []
        for axis, n in enumerate(self.shape):
            allowed = numbers_at(self.mesh, other.axes[axis], fixed)
            overlaps.append(axis_overlaps(layout.cut(axis, n), numbers[axis], other.cut(axis, n), allowed))
        rows, boxes = boxes_of_overlaps(overlaps)
        peers = np.zeros(len(rows), dtype=np.intp)
        for axis, overlap in enumerate(overlaps):
            offsets = np.zeros_like(overlap.numbers)
            for name, coordinate in unravel(self.mesh, other.axes[axis], overlap.numbers):
                offsets += coordinate * self._group_strides.get(name, 0)
            peers += offsets[rows[:, axis]]
        if boxes.repeats is not None:  # a peer may get several boxes, which have to follow one another
            order = np.argsort(peers, kind="stable")
            peers, boxes = peers[order], boxes.subset(order)
        return boxes._replace(peers=peers, which=np.arange(len(peers), dtype=np.intp))

    def traffic(self, devices: Indices) -> StepTraffic:
        """Return the traffic of each of *devices*."""
        messages, has = np.ones_like(devices), numbers_of(self.target, devices)
        for axis, n in enumerate(self.shape):
            messages = messages * holders(self.target.cut(axis, n), has[:, axis], self.source.cut(axis, n))
        source, target, overlap = self.elements(devices, devices)
        source, target, overlap = (a * self.itemsize for a in (source, target, overlap))
        received = target - overlap
        # A box for the device itself is packed only if others get the same box, and unpacked only in a gather.
        shares = self.at_once or not set(self.dims) <= used_dims(self.target)
        sent = source - (0 if shares else overlap) if self.packs else np.zeros_like(devices)
        unpacked = (target if self.at_once else received) if self.unpacks else np.zeros_like(devices)
        messages = np.where(received > 0, messages - (overlap > 0), 0)
        return StepTraffic(received, messages, self._in_rounds(sent, unpacked), source, target)

    def elements(self, before: Indices, after: Indices) -> tuple[Indices, Indices, Indices]:
        """Return the lengths of the blocks that devices have before and after the step, and of what both share.

        *before* and *after* are the numbers of the same devices in the meshes of the source and of the target.
        """
        source, target, common = np.ones_like(before), np.ones_like(before), np.ones_like(before)
        had, has = numbers_of(self.source, before), numbers_of(self.target, after)
        for axis, n in enumerate(self.shape):
            old, new = self.source.cut(axis, n), self.target.cut(axis, n)
            source, target = source * old.lengths(had[:, axis]), target * new.lengths(has[:, axis])
            common = common * shared(old, had[:, axis], new, has[:, axis])
        return source, target, common

    def received(self, devices: Indices) -> tuple[Indices, Indices]:
        """Return how many elements each of *devices* receives from others, and how many its new block has."""
        _, target, common = self.elements(devices, devices)
        return target - common, target

    @cached_property
    def busiest_device(self) -> int:
        """The device that receives the most; if several do, one of those with the largest new block."""
        received, target = self.received(np.arange(len(self.ranks), dtype=np.intp))
        return int(np.lexsort((target, received))[-1])

    def _in_rounds(self, sent: Indices, unpacked: Indices) -> Indices:
        """Return an upper bound on the scratch to pack *sent* bytes and unpack *unpacked* bytes, in rounds."""
        if self.rounds == 1:
            return sent + unpacked
        bounds, scratch = self.box_bounds, np.zeros_like(sent)
        for packed, boxes in ((sent, bounds.sent), (unpacked, bounds.received)):
            share = most_in_a_round(packed // self.itemsize, boxes, self.rounds)
            scratch += np.minimum(share * self.itemsize, packed)
        return scratch

    @cached_property
    def box_bounds(self) -> "BoxBounds":
        """Upper bounds on the boxes and elements that any device packs and unpacks, by the layouts alone."""
        boxes = [1, 1]
        for axis, n in enumerate(self.shape):
            source, target = self.source.cut(axis, n), self.target.cut(axis, n)
            boxes[0] *= max_overlaps(source, target)
            boxes[1] *= max_overlaps(target, source)
        sent = self.source.largest_block(self.shape) if self.packs else 0
        received = self.target.largest_block(self.shape) if self.unpacks else 0
        return BoxBounds(boxes[0] if sent else 0, boxes[1] if received else 0, sent, received)

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
        source, target = (layout.specs_text for layout in (self.source, self.target))
        return f"{type(self).__name__}{along}{self._detail}{rounds}: {source} -> {target}"


class BoxBounds(NamedTuple):
    """Upper bounds on the boxes and elements that any device packs to send, and unpacks when received."""

    sent: int
    received: int
    sent_elements: int
    received_elements: int


class Slice(Step):
    """Every device already holds all that it needs, and keeps only that. Nothing is sent."""

    def traffic(self, devices: Indices) -> StepTraffic:
        none = np.zeros_like(devices)
        return super().traffic(devices)._replace(bytes_moved=none, messages=none, scratch=none)


class AllGather(Step):
    """Every device of a group receives the blocks of all devices of the group."""

    @property
    def at_once(self) -> bool:
        before, after = (layout.largest_block(self.shape) * self.itemsize for layout in (self.source, self.target))
        return self.rounds == 1 and before <= GATHERED_AT_ONCE and after <= MAX_COUNT


class AllToAll(Step):
    """Each device sends every other device in its group the box that it needs.

    If one mesh dimension moves from one tensor axis to another, this is the op that splits along `split_dimension` and
    concatenates along `concat_dimension`. Both are None for a direct exchange: its boxes are the intersections of any
    blocks with any others.
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
        """Whether this is a direct exchange: from any blocks to any others."""
        return self.split_dimension is None

    @cached_property
    def _moved_axes(self) -> tuple[int | None, int | None]:
        old_axes = [a for a, names in enumerate(effective(self.source)) if set(names) & set(self.dims)]
        new_axes = [a for a, names in enumerate(effective(self.target)) if set(names) & set(self.dims)]
        others = [
            tuple(tuple(n for n in names if n not in self.dims) for names in effective(layout))
            for layout in (self.source, self.target)
        ]
        if not len(self.dims) == len(old_axes) == len(new_axes) == 1 or old_axes == new_axes or others[0] != others[1]:
            return None, None
        if isinstance(self.source.axes[old_axes[0]], CutSpec) or isinstance(self.target.axes[new_axes[0]], CutSpec):
            return None, None
        return old_axes[0], new_axes[0]

    @property
    def _detail(self) -> str:
        return " (direct)" if self.direct else f" (split {self.split_dimension}, concat {self.concat_dimension})"


Steps: TypeAlias = tuple[Step, ...]
