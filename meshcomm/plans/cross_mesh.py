"""Steps between meshes over different ranks, or over the same ranks in another order; pure.

Who serves whom follows from a count: see `AllToAllBetween`. All of it is arithmetic on what one rank exchanges, and
costs the same on meshes of any size.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshcomm._types import Indices, Ranks
from meshcomm.layouts.boxes import Box, Boxes, box_size, contiguous, no_boxes, product, stacked
from meshcomm.layouts.coordinates import devices_with, numbers_of, one, replica_count, replica_numbers
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.layout_text import specs_text
from meshcomm.layouts.machine import Machine
from meshcomm.layouts.partition import block_numbers, overlapping, starts_and_stops
from meshcomm.layouts.refinement import devices_of, listed_ranks, ranks_of, union
from meshcomm.plans.step import AllToAll, Traffic


@dataclass(frozen=True, repr=False)
class AllToAllBetween(AllToAll):
    """The direct exchange between meshes over different ranks, or over the same ranks in another order.

    Its devices are the ranks of both meshes, ascending, in one group; a rank may have a block before, after, both or
    neither. A rank takes what it holds itself; else a replica on its node serves it; else the replicas share those
    that need a block evenly, in the order of their devices.
    """

    machine: Machine = Machine()  # noqa: RUF009 - frozen

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks of both meshes, ascending. Local."""
        return union(self.source.mesh.ranks, self.target.mesh.ranks)

    @cached_property
    def group_assignment(self) -> tuple[tuple[int, ...], ...]:
        """The one group of all ranks of both meshes. Local."""
        return (tuple(range(len(self.ranks))),)

    @property
    def group_size(self) -> int:
        """How many ranks both meshes have. Local."""
        return len(self.ranks)

    @property
    def packs(self) -> bool:
        """Whether a device may have to pack what it sends. Local."""
        return _may_be_strided(self.shape, self.source, self.target)

    @property
    def unpacks(self) -> bool:
        """Whether a device may have to unpack what it receives. Local."""
        return _may_be_strided(self.shape, self.target, self.source)

    @property
    def permutes(self) -> bool:
        """Whether every device receives one whole block of one other device: not known here. Local."""
        return False

    def held_box(self, device: int) -> Box | None:
        return self._box(self.source, device)

    def target_box(self, device: int) -> Box | None:
        return self._box(self.target, device)

    def _box(self, layout: Layout, device: int) -> Box | None:
        place = int(devices_of(layout.mesh, np.array([self.ranks[device]], dtype=np.intp))[0])
        return layout.block_box(self.shape, place) if place >= 0 else None

    def group_of(self, device: int) -> tuple[int, ...]:
        return self.group_assignment[0]

    def position_of(self, device: int) -> int:
        return device

    def members(self, device: int, places: Indices) -> Indices:
        return places

    def receives(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.target_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape))
        counts = [self.source.num_shards(axis) for axis in range(len(self.shape))]
        ranges = [overlapping(n, parts, i) for n, parts, i in zip(self.shape, counts, box, strict=True)]
        numbers = product([np.arange(r.start, r.stop, dtype=np.intp) for r in ranges])
        senders = self._serving(rank, numbers)
        if not self.machine.one_node:
            senders = self._nearest(rank, numbers, senders)
        senders = np.where(self._holds(one(rank), numbers)[:, 0], rank, senders)
        columns = []
        for axis, (n, parts) in enumerate(zip(self.shape, counts, strict=True)):
            starts, stops = starts_and_stops(n, parts, numbers[:, axis])
            columns.append((np.maximum(starts, box[axis][0]), np.minimum(stops, box[axis][1])))
        peers = self._places(senders)
        order = np.argsort(peers)
        starts, stops = (ends[order] for ends in stacked(columns, len(peers)))
        return Boxes(peers[order], np.arange(len(peers), dtype=np.intp), starts, stops)

    def sends(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.held_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape))
        counts = [self.target.num_shards(axis) for axis in range(len(self.shape))]
        ranges = [overlapping(n, parts, i) for n, parts, i in zip(self.shape, counts, box, strict=True)]
        held = numbers_of(self.source, devices_of(self.source.mesh, one(rank)))
        asking = self._served(rank, ranges)
        asking = asking[~self._holds(asking, held)[0]]
        if not self.machine.one_node:
            asking = self._near_and_far(rank, held, ranges, asking)
        if self._wants(one(rank), ranges)[0]:
            asking = np.append(asking, rank)
        wanted = numbers_of(self.target, devices_of(self.target.mesh, asking))
        flat = np.zeros(len(asking), dtype=np.intp)
        for axis, r in enumerate(ranges):
            flat = flat * len(r) + wanted[:, axis] - r.start
        distinct, which = np.unique(flat, return_inverse=True)
        columns = []
        for axis, number in enumerate(np.unravel_index(distinct, [len(r) for r in ranges]) if ranges else ()):
            starts, stops = starts_and_stops(self.shape[axis], counts[axis], number + ranges[axis].start)
            columns.append((np.maximum(starts, box[axis][0]), np.minimum(stops, box[axis][1])))
        peers = self._places(asking)
        order = np.argsort(peers)
        return Boxes(peers[order], which.reshape(-1)[order], *stacked(columns, len(distinct)))

    def traffic(self, devices: Indices) -> Traffic:
        found = np.array([self._traffic_of(int(device)) for device in devices], dtype=np.intp)
        return Traffic(*found.reshape(-1, 5).T)

    def _traffic_of(self, device: int) -> tuple[int, ...]:
        held, target = self.held_box(device), self.target_box(device)
        receives, sends = self.receives(device), self.sends(device)
        sizes, others = receives.sizes * self.itemsize, receives.peers != device
        sent = np.unique(sends.which[sends.peers != device])
        packed = unpacked = 0
        if held is not None and not contiguous(held, sends.starts[sent], sends.stops[sent]):
            packed = int(sends.sizes[sent].sum()) * self.itemsize
        if target is not None and not contiguous(target, receives.starts[others], receives.stops[others]):
            unpacked = int(sizes[others].sum())
        blocks = [box_size(box) * self.itemsize if box is not None else 0 for box in (held, target)]
        scratch = self._in_rounds(one(packed), one(unpacked))[0]
        return int(sizes[others].sum()), int(others.sum()), int(scratch), *blocks

    def _places(self, ranks: Indices) -> Indices:
        """Return where *ranks* stand among those of both meshes."""
        if isinstance(self.ranks, range):
            return ranks - self.ranks.start
        return np.searchsorted(listed_ranks(self.ranks), ranks).astype(np.intp)

    def _holds(self, ranks: Indices, numbers: Indices) -> NDArray[np.bool_]:
        """Return for each block of the source, given by its *numbers*, which of *ranks* hold it."""
        devices = devices_of(self.source.mesh, ranks)
        held = numbers_of(self.source, devices)
        same: NDArray[np.bool_] = (numbers[:, None, :] == held[None, :, :]).all(axis=2)
        return same & (devices >= 0)

    def _wants(self, ranks: Indices, ranges: list[range]) -> NDArray[np.bool_]:
        """Return which of *ranks* have a new block whose number is in *ranges* along each axis."""
        devices = devices_of(self.target.mesh, ranks)
        numbers = numbers_of(self.target, devices)
        inside = devices >= 0
        for axis, r in enumerate(ranges):
            inside &= (numbers[:, axis] >= r.start) & (numbers[:, axis] < r.stop)
        return inside

    def _wanted(self, axis: int, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the first and the last number of the target's blocks that meet those of the source on *axis*."""
        n, parts = self.shape[axis], self.target.num_shards(axis)
        starts, stops = starts_and_stops(n, self.source.num_shards(axis), numbers[:, axis])
        return block_numbers(n, parts, starts), block_numbers(n, parts, np.maximum(stops - 1, starts))

    def _serving(self, rank: int, numbers: Indices) -> Indices:
        """Return the ranks whose turn it is to serve *rank* with the blocks of these *numbers*.

        Those that need a block are counted, and so are its replicas: the first of these serves the first of those.
        """
        device = devices_of(self.target.mesh, one(rank))
        mine = numbers_of(self.target, device)[0]
        needed, index = np.ones(len(numbers), dtype=np.intp), np.zeros(len(numbers), dtype=np.intp)
        for axis in range(len(self.shape)):
            first, last = self._wanted(axis, numbers)
            needed, index = needed * (last - first + 1), index * (last - first + 1) + mine[axis] - first
        turn = replica_numbers(self.target, device)[0] * needed + index
        replicas = turn * replica_count(self.source) // (needed * replica_count(self.target))
        return ranks_of(self.source.mesh, devices_with(self.source, numbers, replicas))

    def _served(self, rank: int, ranges: list[range]) -> Indices:
        """Return the ranks that it is the turn of *rank* to serve, even those who need no one: see `_serving`."""
        replica = int(replica_numbers(self.source, devices_of(self.source.mesh, one(rank)))[0])
        needed, replicas = prod(map(len, ranges)), replica_count(self.source)
        asking = needed * replica_count(self.target)
        turns = np.arange(-(-replica * asking // replicas), -(-(replica + 1) * asking // replicas), dtype=np.intp)
        copies, index = np.divmod(turns, needed)
        found = np.unravel_index(index, [len(r) for r in ranges]) if ranges else ()
        numbers = [number + r.start for number, r in zip(found, ranges, strict=True)]
        wanted = np.stack(numbers, axis=1) if numbers else np.zeros((len(turns), 0), dtype=np.intp)
        return ranks_of(self.target.mesh, devices_with(self.target, wanted, copies))

    def _nearest(self, rank: int, numbers: Indices, otherwise: Indices) -> Indices:
        """Return which rank on the node of *rank* serves it with each block, or the one *otherwise*.

        Those on the node that need a block take turns.
        """
        near = self.machine.ranks_on(int(self.machine.node_of(one(rank))[0]))
        holds = self._holds(near, numbers)
        holders = holds.sum(axis=1)
        devices = devices_of(self.target.mesh, near)
        its_numbers, asks = numbers_of(self.target, devices), ~holds & (devices >= 0)
        for axis in range(len(self.shape)):
            first, last = self._wanted(axis, numbers)
            asks &= (first[:, None] <= its_numbers[:, axis]) & (its_numbers[:, axis] <= last[:, None])
        before = asks[:, : int(np.searchsorted(near, rank))].sum(axis=1)
        turn = before % np.maximum(holders, 1)
        chosen = (holds & (holds.cumsum(axis=1) == turn[:, None] + 1)).argmax(axis=1)
        return np.where(holders > 0, near[chosen], otherwise)

    def _near_and_far(self, rank: int, held: Indices, ranges: list[range], asking: Indices) -> Indices:
        """Return those of *asking* on nodes without a holder, and whom *rank* serves on its own: see `_nearest`."""
        nodes, node_of = np.unique(self.machine.node_of(asking), return_inverse=True)
        far = asking[~self._have_holders(nodes, held)[node_of.reshape(-1)]]
        near = self.machine.ranks_on(int(self.machine.node_of(one(rank))[0]))
        holds = self._holds(near, held)[0]
        wants = np.flatnonzero(self._wants(near, ranges) & ~holds)
        holders = near[holds]
        return np.concatenate([far, near[wants[holders[np.arange(len(wants)) % len(holders)] == rank]]])

    def _have_holders(self, nodes: Indices, held: Indices) -> NDArray[np.bool_]:
        """Return on which of *nodes* some rank holds the block of the source with this number."""
        ranks = [self.machine.ranks_on(int(node)) for node in nodes]
        if not ranks:
            return np.zeros(0, dtype=bool)
        first = np.cumsum([0, *map(len, ranks[:-1])])
        return np.logical_or.reduceat(self._holds(np.concatenate(ranks), held)[0], first)

    def __repr__(self) -> str:
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        return (
            f"AllToAll between meshes (direct){rounds}: {specs_text(self.source.sharding_specs)} on {self.source.mesh} -> "
            f"{specs_text(self.target.sharding_specs)} on {self.target.mesh}"
        )


def _may_be_strided(shape: tuple[int, ...], here: Layout, there: Layout) -> bool:
    """Return whether what *there* cuts out of a block of *here* may not lie consecutively in it."""
    cut = [axis for axis in range(len(shape)) if there.num_shards(axis) > 1]
    return bool(cut) and any(-(-shape[axis] // here.num_shards(axis)) > 1 for axis in range(cut[-1]))
