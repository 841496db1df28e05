"""Steps: the boxes that devices exchange to go from one layout to another; pure, the same on every rank.

The kind of a step follows from the intersections of the blocks of its two layouts: a `Slice` if every device already
holds all that it needs, an `AllGather` if every device of a group needs all blocks of the group, an `AllToAll`
otherwise. Steps between meshes over different ranks are in :mod:`meshcomm.plans.cross_mesh`.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from meshcomm._pickles import FieldsOnly
from meshcomm._tuning import GATHERED_AT_ONCE, LARGEST_COUNT
from meshcomm._types import Indices, Names, Ranks
from meshcomm.layouts.boxes import Box, Boxes, stacked
from meshcomm.layouts.coordinates import (
    block_candidates,
    coarser,
    coordinates_of,
    decode,
    effective,
    numbers_of,
    used,
)
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.mesh import Mesh
from meshcomm.layouts.partition import most_in_a_round


class Traffic(NamedTuple):
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
    shape, itemsize: the lengths of the global array, and the bytes of an element
    source, target: the layouts before and after
    dims: the mesh dimensions along which the groups lie: devices exchange only within a group
    held: the layout of the block that a device still holds. A slice moves nothing, so the step after it takes its
        boxes out of the block from before the slice
    rounds: a device packs and unpacks a share of each box in each round
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
        axes = zip(self.shape, *map(effective, (self.held, self.source, self.target)), strict=True)
        whole = [held == names and (self.permutes or coarser(mesh, n, cut, names)) for n, held, names, cut in axes]
        return not _consecutive(self.shape, self.held, whole)

    @cached_property
    def unpacks(self) -> bool:
        """Whether a device unpacks boxes that arrive over MPI: they do not lie consecutively in its new block."""
        axes = zip(self.shape, effective(self.target), effective(self.source), strict=True)
        whole = [self.permutes or coarser(self.mesh, n, cut, names) for n, names, cut in axes]
        return not _consecutive(self.shape, self.target, whole)

    @cached_property
    def permutes(self) -> bool:
        """Whether every device sends its whole block to one device, and receives the whole block of one."""
        same_cuts = self.source.shape == self.target.shape
        return bool(self.dims) and same_cuts and set(self.dims) <= used(self.target)

    @property
    def at_once(self) -> bool:
        """Whether the blocks of a group, the device's own too, are small enough to be gathered in one call of MPI."""
        return False

    def held_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds before the step; None if it holds none."""
        return self.held.block_box(self.shape, device)

    def target_box(self, device: int) -> Box | None:
        """Return the box of the block that *device* holds after the step; None if it holds none."""
        return self.target.block_box(self.shape, device)

    def group_of(self, device: int) -> tuple[int, ...]:
        """Return the devices of the group of *device*, itself among them, in order."""
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
        found = np.full_like(positions, first)
        for name, coordinate in decode(self.mesh, self.dims, positions):
            found += coordinate * self.mesh.stride(name)
        return found

    def sends(self, device: int) -> Boxes:
        """Return the boxes, in global indices, that *device* sends to peers, itself included.

        The sender of a box is the holder with the same coordinates as the peer along the mesh dimensions over which
        the source is replicated. So each box is sent once, replicas share the work, and who has a box sends it itself.
        """
        coordinates = coordinates_of(self.mesh, device)
        fixed = {name: coordinates[name] for name in used(self.target) - used(self.source)}
        box = self.source.block_box(self.shape, device)
        candidates = [
            block_candidates(self.target, axis, n, interval, fixed)
            for axis, (n, interval) in enumerate(zip(self.shape, box, strict=True))
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
        """Return the boxes, in global indices, that *device* receives from peers, itself included."""
        box = self.target.block_box(self.shape, device)
        candidates = [
            block_candidates(self.source, axis, n, interval, {})
            for axis, (n, interval) in enumerate(zip(self.shape, box, strict=True))
        ]
        peers, starts, stops = self._boxes(self.source, candidates, box)
        return Boxes(peers, np.arange(len(peers), dtype=np.intp), starts, stops)

    def _boxes(self, layout: Layout, candidates: list[Indices], box: Box) -> tuple[Indices, Indices, Indices]:
        """Return the peers, starts and stops of blocks of *layout*, each cut to *box*.

        The blocks are all combinations of the *candidates*, the block numbers along each axis.
        """
        peers = np.zeros(1, dtype=np.intp)
        columns: list[tuple[Indices, Indices]] = []
        for axis, numbers in enumerate(candidates):
            starts, stops = layout.cut(axis, self.shape[axis]).intervals(numbers)
            starts, stops = np.maximum(starts, box[axis][0]), np.minimum(stops, box[axis][1])
            offsets = np.zeros_like(numbers)
            for name, coordinate in decode(self.mesh, layout.axes[axis], numbers):
                offsets += coordinate * self._group_strides.get(name, 0)
            peers = (peers[:, None] + offsets).ravel()
            columns = [(a.repeat(len(numbers)), b.repeat(len(numbers))) for a, b in columns]
            repeats = len(peers) // len(numbers) if len(numbers) else 0
            columns.append((np.tile(starts, repeats), np.tile(stops, repeats)))
        return peers, *stacked(columns, len(peers))

    def traffic(self, devices: Indices) -> Traffic:
        """Return the traffic of each of *devices*."""
        ones = np.ones_like(devices)
        source, target, overlap, messages, serves_itself = ones, ones, ones, ones, ones.astype(bool)
        had, has = numbers_of(self.source, devices), numbers_of(self.target, devices)
        for axis, n in enumerate(self.shape):
            cut = self.source.cut(axis, n)
            s0, s1 = cut.intervals(had[:, axis])
            t0, t1 = self.target.cut(axis, n).intervals(has[:, axis])
            shared = np.maximum(0, np.minimum(s1, t1) - np.maximum(s0, t0))
            first, last = cut.first_and_last(t0, t1)
            holders = np.where(t1 > t0, last - first + 1, 0)
            source, target, overlap = source * (s1 - s0), target * (t1 - t0), overlap * shared
            messages, serves_itself = messages * holders, serves_itself & (shared > 0)
        source, target, overlap = (a * self.itemsize for a in (source, target, overlap))
        received = target - overlap
        # A box for the device itself is packed only if others get the same box, and unpacked only in a gather.
        shares = self.at_once or not set(self.dims) <= used(self.target)
        sent = source - (0 if shares else overlap) if self.packs else np.zeros_like(devices)
        unpacked = (target if self.at_once else received) if self.unpacks else np.zeros_like(devices)
        messages = np.where(received > 0, messages - serves_itself, 0)
        return Traffic(received, messages, self._in_rounds(sent, unpacked), source, target)

    def _in_rounds(self, sent: Indices, unpacked: Indices) -> Indices:
        """Return an upper bound on the scratch to pack *sent* bytes and unpack *unpacked* bytes, in rounds."""
        if self.rounds == 1:
            return sent + unpacked
        most, scratch = self.most_boxes, np.zeros_like(sent)
        for packed, boxes in ((sent, most.sent), (unpacked, most.received)):
            share = most_in_a_round(packed // self.itemsize, boxes, self.rounds)
            scratch += np.minimum(share * self.itemsize, packed)
        return scratch

    @cached_property
    def most_boxes(self) -> "Most":
        """Upper bounds on the boxes and elements that any device packs and unpacks, by the layouts alone."""
        boxes = [1, 1]
        for axis, n in enumerate(self.shape):
            source, target = self.source.cut(axis, n), self.target.cut(axis, n)
            boxes[0] *= source.most_overlapping(target)
            boxes[1] *= target.most_overlapping(source)
        sent = self.source.largest_block(self.shape) if self.packs else 0
        received = self.target.largest_block(self.shape) if self.unpacks else 0
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
        source, target = (specs_text(layout.sharding_specs) for layout in (self.source, self.target))
        return f"{type(self).__name__}{along}{self._detail}{rounds}: {source} -> {target}"


class Most(NamedTuple):
    """Upper bounds on the boxes and elements that any device packs to send, and unpacks when received."""

    sent: int
    received: int
    sent_elements: int
    received_elements: int


class Slice(Step):
    """Every device already holds all that it needs, and keeps only that. Nothing is sent."""

    def traffic(self, devices: Indices) -> Traffic:
        none = np.zeros_like(devices)
        return super().traffic(devices)._replace(bytes_moved=none, messages=none, scratch=none)


class AllGather(Step):
    """Every device of a group receives the blocks of all devices of the group."""

    @property
    def at_once(self) -> bool:
        before, after = (layout.largest_block(self.shape) * self.itemsize for layout in (self.source, self.target))
        return self.rounds == 1 and before <= GATHERED_AT_ONCE and after <= LARGEST_COUNT


class AllToAll(Step):
    """Each device sends every other device in its group the box that it needs.

    If one mesh dimension moves from one tensor axis to another, this is the op that splits along `split_dimension` and
    concatenates along `concat_dimension`. Both are None for a direct exchange: its boxes are the intersections of any
    blocks with any others.
    """

    @property
    def split_dimension(self) -> int | None:
        """The tensor axis that the step splits, or None."""
        return self._moved[1]

    @property
    def concat_dimension(self) -> int | None:
        """The tensor axis that the step joins, or None."""
        return self._moved[0]

    @property
    def direct(self) -> bool:
        """Whether this is a direct exchange: from any blocks to any others."""
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


def _consecutive(shape: tuple[int, ...], block: Layout, whole: list[bool]) -> bool:
    """Return whether boxes are consecutive bytes in the blocks of every device.

    *whole* says for each axis whether the boxes span the block along it.
    """
    for axis, n in enumerate(shape):
        if block.cut(axis, n).longest > 1 or not whole[axis]:
            return all(whole[axis + 1 :])
    return True
