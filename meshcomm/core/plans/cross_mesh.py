"""Steps between meshes over different ranks, or over the same ranks in another order; pure.

All of it is arithmetic on the boxes of one rank, and costs the same on meshes of any size. The comment below proves
that senders and receivers agree.
"""

# Who serves whom: a proof
# ------------------------
#
# A device that needs a box takes it from one holder of the block around it. `receives` computes this for a receiver,
# `sends` for a sender, without a message between them. Both must find the same pairs. Each box must move once.
#
# Notation. B is a block of the source, with R replicas: the ranks that hold B. T is a block of the target that shares
# an element with B. There are W such T; the target has C replicas of each, which are called copies here. So B has
# A = W * C askers: (copy c, block T).
#
#                      source                                     target
#       replica 0 of B  ----.                      .---->  copy 0 of T0, T1, ... (W blocks)
#       ...                  >---- A askers ------<        ...
#       replica R-1 of B ---'                      '---->  copy C-1 of T0, T1, ...
#
# 1. Both sides see the same askers. T shares an element with B if and only if, along each axis, the number of T is in
#    a range: from the target's block of the first element of B to the target's block of its last element. The sender
#    gets the range for its own B, the receiver for each B, both from `_target_range`, that is `Cut.first_and_last`:
#    both call `Cut.block_of` for the same two elements. So both find the same W, and the same row-major index i of T
#    in the product of the ranges, i = 0 ... W-1. (Blocks in a range that share nothing with B count on both sides, and
#    ask for nothing: empty ones, and along an axis with a cyclic cut, where the range is all blocks of the target.)
#
# 2. Turns. The turn of an asker is t = c * W + i. Since 0 <= i < W, `divmod(t, W)` gives (c, i) back: turns number the
#    askers from 0 to A-1, each once.
#
# 3. The rule: replica r = floor(t * R / A) serves turn t. As 0 <= t < A, r is one of 0 ... R-1. The receiver computes
#    just this (`_servers_of`). The sender has r and needs all t (`_clients_of`):
#
#        r = floor(t * R / A)   <=>   r <= t * R / A < r + 1   <=>   r * A / R <= t < (r + 1) * A / R
#                               <=>   ceil(r * A / R) <= t < ceil((r + 1) * A / R),   as t is an integer.
#
#    These ranges follow each other without a gap from 0 to A. So the two functions are the two sides of one relation,
#    in which each turn has one replica; and a replica has floor(A / R) or ceil(A / R) turns, which spreads the load.
#
# 4. Which rank is replica r of B, or copy c of T, is the bijection between a device and its coordinates: `numbers_of`
#    and `replica_numbers` one way, `devices_with` the other way.
#
# 5. Exceptions, which save messages. They are decided by B and by the asking rank q alone, in this order:
#
#      a. q holds B: q serves itself.
#      b. some ranks on the node of q hold B: H_0, H_1, ... by ascending rank. The ranks of the node that want a T and
#         do not hold B are Q_0, Q_1, ... by ascending rank. H_(j mod h) serves Q_j, where h is the number of holders.
#      c. otherwise the turn of q decides, as in 3. Turns are not numbered again: those of (a) and (b) stay unused.
#
#    Each q falls under just one of these. The conditions are the same predicates on both sides: "q holds B" is
#    `_holds`, "q wants a T" is `_wants` (by the range of 1), "the node of q has a holder" follows from `ranks_on` and
#    `_holds`. The receiver goes through (c), (b), (a), and each overrides the one before. The sender collects the
#    ranks that it serves by each: the askers of its turns, without those that hold B or have a holder on their node;
#    the Q_j of its node with H_(j mod h) = itself; and itself, if it wants a T. On one node both leave out (b):
#    no replica is closer than another, and turns spread the load.
#
# 6. So there is a function f: (B, q) -> the holder that serves q with B. A receiver q evaluates it for all B that
#    overlap its block T. The intersections of these B with T are disjoint and cover T: q receives each element once. A
#    sender p holds one B, and finds all q with f(B, q) = p. The box is the intersection of B and T for both. As p
#    holds only one B and q only one T, a pair exchanges at most one intersection: one box, or several, which
#    `overlaps.axis_overlaps` returns to both in one order.
#
# The tests compare both sides in thousands of random cases: tests/plans/test_cross_mesh.py.

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Indices, Ranks
from meshcomm.core.layouts.boxes import Box, Boxes, are_contiguous, box_size, boxes_of_overlaps, no_boxes
from meshcomm.core.layouts.coordinates import devices_with, numbers_of, replica_count, replica_numbers, single_index
from meshcomm.core.layouts.cyclic import AnyCut, CyclicCut
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.overlaps import axis_overlaps
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.core.layouts.refinement import devices_of, listed_ranks, ranks_of, union
from meshcomm.core.plans.step import AllToAll, StepTraffic


@dataclass(frozen=True, repr=False)
class AllToAllBetween(AllToAll):
    """The direct exchange between meshes over different ranks, or over the same ranks in another order.

    Its devices are the ranks of both meshes, ascending, in one group; a rank may have a block before, after, both or
    neither. A rank keeps the boxes that it holds itself. Other boxes come from a replica on its node if there is one,
    else from the replica whose turn it is.
    """

    machine: Machine = Machine()  # noqa: RUF009 - frozen

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks of both meshes, ascending."""
        return union(self.source.mesh.ranks, self.target.mesh.ranks)

    @cached_property
    def group_assignment(self) -> tuple[tuple[int, ...], ...]:
        """The one group of all ranks of both meshes."""
        return (tuple(range(len(self.ranks))),)

    @property
    def group_size(self) -> int:
        """The number of ranks of both meshes together."""
        return len(self.ranks)

    @property
    def packs(self) -> bool:
        """Whether a device may have to pack boxes to send them over MPI."""
        return _may_be_strided(self.shape, self.source, self.target)

    @property
    def unpacks(self) -> bool:
        """Whether a device may have to unpack boxes that arrive over MPI."""
        return _may_be_strided(self.shape, self.target, self.source)

    @property
    def permutes(self) -> bool:
        """Whether every device sends its whole block to one device: not known here, so False."""
        return False

    @property
    def exchanges_intersections(self) -> bool:
        return False

    def held_box(self, device: int) -> Box | None:
        return self._box(self.source, device)

    def target_box(self, device: int) -> Box | None:
        return self._box(self.target, device)

    def _box(self, layout: Layout, device: int) -> Box | None:
        mesh_device = int(devices_of(layout.mesh, single_index(self.ranks[device]))[0])
        return layout.block_box(self.shape, mesh_device) if mesh_device >= 0 else None

    def group_of(self, device: int) -> tuple[int, ...]:
        return self.group_assignment[0]

    def position_of(self, device: int) -> int:
        return device

    def members(self, device: int, positions: Indices) -> Indices:
        return positions

    def receives(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.target_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape), self._is_cyclic)
        target_numbers = numbers_of(self.target, devices_of(self.target.mesh, single_index(rank)))[0]
        cuts = zip(self._cuts(self.target), target_numbers.tolist(), self._cuts(self.source), strict=True)
        overlaps = [axis_overlaps(cut, number, other) for cut, number, other in cuts]
        rows, boxes = boxes_of_overlaps(overlaps)
        columns = [overlap.other_blocks[rows[:, axis]] for axis, overlap in enumerate(overlaps)]
        numbers = np.stack(columns, axis=1) if columns else rows
        senders = self._servers_of(rank, numbers)
        if not self.machine.one_node:
            senders = self._servers_on_node(rank, numbers, senders)
        senders = np.where(self._holds(single_index(rank), numbers)[:, 0], rank, senders)
        peers = self._positions(senders)
        order = np.argsort(peers, kind="stable")
        return boxes.subset(order)._replace(peers=peers[order], which=np.arange(len(peers), dtype=np.intp))

    def sends(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.held_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape), self._is_cyclic)
        numbers = numbers_of(self.source, devices_of(self.source.mesh, single_index(rank)))
        ranges = [self._overlapping_range(axis, number) for axis, number in enumerate(numbers[0].tolist())]
        clients = self._clients_of(rank, ranges)
        clients = clients[~self._holds(clients, numbers)[0]]
        if not self.machine.one_node:
            clients = self._clients_by_node(rank, numbers, ranges, clients)
        if self._wants(single_index(rank), ranges)[0]:
            clients = np.append(clients, rank)
        return self._boxes_for(clients, numbers[0].tolist())

    def _boxes_for(self, clients: Indices, numbers: list[int]) -> Boxes:
        """Return the boxes for the ranks *clients* of the source's block with *numbers*, one along each axis."""
        cuts = zip(self._cuts(self.source), numbers, self._cuts(self.target), strict=True)
        overlaps = [axis_overlaps(cut, number, other) for cut, number, other in cuts]
        rows, boxes = boxes_of_overlaps(overlaps)
        block_numbers = numbers_of(self.target, devices_of(self.target.mesh, clients))
        block_of_box, block_of_client = np.zeros(len(rows), dtype=np.intp), np.zeros(len(clients), dtype=np.intp)
        for axis, n in enumerate(self.target.shape):
            block_of_box = block_of_box * n + overlaps[axis].other_blocks[rows[:, axis]]
            block_of_client = block_of_client * n + block_numbers[:, axis]
        order = np.argsort(block_of_box, kind="stable")  # boxes of one block of the target become consecutive
        first, last = (np.searchsorted(block_of_box[order], block_of_client, side=side) for side in ("left", "right"))
        client_order = np.argsort(clients)
        clients, first, counts = clients[client_order], first[client_order], (last - first)[client_order]
        offsets = np.arange(counts.sum(), dtype=np.intp) - np.repeat(np.cumsum(counts) - counts, counts)
        which = np.repeat(first, counts) + offsets
        box_numbers, which = np.unique(which, return_inverse=True)
        peers = np.repeat(self._positions(clients), counts)
        return boxes.subset(order[box_numbers])._replace(peers=peers, which=which.reshape(-1))

    def traffic(self, devices: Indices) -> StepTraffic:
        rows = np.array([self._traffic_of(int(device)) for device in devices], dtype=np.intp)
        return StepTraffic(*rows.reshape(-1, 5).T)

    def _traffic_of(self, device: int) -> tuple[int, ...]:
        source, target = self.held_box(device), self.target_box(device)
        receives, sends = self.receives(device), self.sends(device)
        sizes, is_other = receives.sizes * self.itemsize, receives.peers != device
        sent_boxes = np.unique(sends.which[sends.peers != device])
        packed_bytes = unpacked_bytes = 0
        if source is not None and not are_contiguous(source, sends.subset(sent_boxes)):
            packed_bytes = int(sends.sizes[sent_boxes].sum()) * self.itemsize
        if target is not None and not are_contiguous(target, receives.subset(np.flatnonzero(is_other))):
            unpacked_bytes = int(sizes[is_other].sum())
        block_bytes = [box_size(box) * self.itemsize if box is not None else 0 for box in (source, target)]
        scratch = self._scratch_bound(single_index(packed_bytes), single_index(unpacked_bytes))[0]
        return int(sizes[is_other].sum()), len(np.unique(receives.peers[is_other])), int(scratch), *block_bytes

    def received(self, devices: Indices) -> tuple[Indices, Indices]:
        ranks = listed_ranks(self.ranks)[devices]
        source_devices, target_devices = (devices_of(mesh, ranks) for mesh in (self.source.mesh, self.target.mesh))
        _, target_sizes, overlap = self.elements(source_devices, target_devices)
        target_sizes = np.where(target_devices >= 0, target_sizes, 0)
        return target_sizes - np.where((source_devices >= 0) & (target_devices >= 0), overlap, 0), target_sizes

    @cached_property
    def _is_cyclic(self) -> bool:
        return any(_has_cyclic_axis(self.shape, layout) for layout in (self.source, self.target))

    def _cuts(self, layout: Layout) -> list[AnyCut]:
        return [layout.cut(axis, n) for axis, n in enumerate(self.shape)]

    def _positions(self, ranks: Indices) -> Indices:
        """Return the positions of *ranks* among the ranks of both meshes."""
        if isinstance(self.ranks, range):
            return ranks - self.ranks.start
        return np.searchsorted(listed_ranks(self.ranks), ranks).astype(np.intp)

    def _holds(self, ranks: Indices, numbers: Indices) -> NDArray[np.bool_]:
        """Return whether each of *ranks* holds each block of the source with *numbers*: a row per block."""
        devices = devices_of(self.source.mesh, ranks)
        device_numbers = numbers_of(self.source, devices)
        is_same: NDArray[np.bool_] = (numbers[:, None, :] == device_numbers[None, :, :]).all(axis=2)
        return is_same & (devices >= 0)

    def _wants(self, ranks: Indices, ranges: list[range]) -> NDArray[np.bool_]:
        """Return whether each of *ranks* has a new block with numbers in *ranges*, one along each axis."""
        devices = devices_of(self.target.mesh, ranks)
        numbers = numbers_of(self.target, devices)
        in_ranges = devices >= 0
        for axis, r in enumerate(ranges):
            in_ranges &= (numbers[:, axis] >= r.start) & (numbers[:, axis] < r.stop)
        return in_ranges

    def _target_range(self, axis: int, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the first and the last block of the target, along *axis*, that overlaps each block of the source."""
        source, target = self.source.cut(axis, self.shape[axis]), self.target.cut(axis, self.shape[axis])
        if isinstance(source, Consecutive) and isinstance(target, Consecutive):
            return target.first_and_last(*source.ends(numbers[:, axis]))
        return np.zeros(len(numbers), dtype=np.intp), np.full(len(numbers), target.blocks - 1)

    def _overlapping_range(self, axis: int, number: int) -> range:
        """Return the range of target blocks along *axis* that overlap the source's block *number*: `_target_range`."""
        first, last = self._target_range(axis, np.full((1, len(self.shape)), number, dtype=np.intp))
        return range(int(first[0]), int(last[0]) + 1)

    def _servers_of(self, rank: int, numbers: Indices) -> Indices:
        """Return the ranks that serve *rank* with the blocks *numbers* by turns: step 3 of the proof."""
        device = devices_of(self.target.mesh, single_index(rank))
        block_numbers = numbers_of(self.target, device)[0]
        blocks, index = np.ones(len(numbers), dtype=np.intp), np.zeros(len(numbers), dtype=np.intp)
        for axis in range(len(self.shape)):
            first, last = self._target_range(axis, numbers)
            blocks, index = blocks * (last - first + 1), index * (last - first + 1) + block_numbers[axis] - first
        turn = replica_numbers(self.target, device)[0] * blocks + index
        replicas = turn * replica_count(self.source) // (blocks * replica_count(self.target))
        return ranks_of(self.source.mesh, devices_with(self.source, numbers, replicas))

    def _clients_of(self, rank: int, ranges: list[range]) -> Indices:
        """Return the ranks that *rank* serves by turns: the inverse of `_servers_of`, step 3 of the proof."""
        replica = int(replica_numbers(self.source, devices_of(self.source.mesh, single_index(rank)))[0])
        blocks, replicas = prod(map(len, ranges)), replica_count(self.source)
        askers = blocks * replica_count(self.target)
        turns = np.arange(-(-replica * askers // replicas), -(-(replica + 1) * askers // replicas), dtype=np.intp)
        copies, index = np.divmod(turns, blocks)
        offsets = np.unravel_index(index, [len(r) for r in ranges]) if ranges else ()
        numbers = [number + r.start for number, r in zip(offsets, ranges, strict=True)]
        block_numbers = np.stack(numbers, axis=1) if numbers else np.zeros((len(turns), 0), dtype=np.intp)
        return ranks_of(self.target.mesh, devices_with(self.target, block_numbers, copies))

    def _servers_on_node(self, rank: int, numbers: Indices, default: Indices) -> Indices:
        """Return the rank that serves *rank* with each block: one on its node, else *default*: 5b of the proof."""
        local_ranks = self.machine.ranks_on(int(self.machine.node_of(single_index(rank))[0]))
        holds = self._holds(local_ranks, numbers)
        holder_counts = holds.sum(axis=1)
        devices = devices_of(self.target.mesh, local_ranks)
        local_numbers, is_client = numbers_of(self.target, devices), ~holds & (devices >= 0)
        for axis in range(len(self.shape)):
            first, last = self._target_range(axis, numbers)
            is_client &= (first[:, None] <= local_numbers[:, axis]) & (local_numbers[:, axis] <= last[:, None])
        earlier_clients = is_client[:, : int(np.searchsorted(local_ranks, rank))].sum(axis=1)
        turn = earlier_clients % np.maximum(holder_counts, 1)
        server_indices = (holds & (holds.cumsum(axis=1) == turn[:, None] + 1)).argmax(axis=1)
        return np.where(holder_counts > 0, local_ranks[server_indices], default)

    def _clients_by_node(self, rank: int, numbers: Indices, ranges: list[range], clients: Indices) -> Indices:
        """Return the ranks that *rank* serves, except itself: 5b and 5c of the proof.

        Parameters
        ----------
        rank: rank of the sender
        numbers: block numbers of the sender, shape (1, ndim)
        ranges: per axis, the numbers of the target's blocks that overlap the sender's block
        clients: ranks that the sender serves by turns: step 3 of the proof
        """
        nodes, node_of = np.unique(self.machine.node_of(clients), return_inverse=True)
        remote_clients = clients[~self._have_holders(nodes, numbers)[node_of.reshape(-1)]]
        local_ranks = self.machine.ranks_on(int(self.machine.node_of(single_index(rank))[0]))
        holds = self._holds(local_ranks, numbers)[0]
        local_clients = np.flatnonzero(self._wants(local_ranks, ranges) & ~holds)
        holders = local_ranks[holds]
        return np.concatenate(
            [remote_clients, local_ranks[local_clients[holders[np.arange(len(local_clients)) % len(holders)] == rank]]]
        )

    def _have_holders(self, nodes: Indices, numbers: Indices) -> NDArray[np.bool_]:
        """Return whether some rank on each of *nodes* holds the source's block with *numbers*, one row."""
        ranks = [self.machine.ranks_on(int(node)) for node in nodes]
        if not ranks:
            return np.zeros(0, dtype=bool)
        starts = np.cumsum([0, *map(len, ranks[:-1])])
        return np.logical_or.reduceat(self._holds(np.concatenate(ranks), numbers)[0], starts)

    def __repr__(self) -> str:
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        source, target = (f"{layout.specs_text} on {layout.mesh}" for layout in (self.source, self.target))
        return f"AllToAll between meshes (direct){rounds}: {source} -> {target}"


def _has_cyclic_axis(shape: tuple[int, ...], layout: Layout) -> bool:
    """Return whether some axis of an array of *shape* has a cyclic cut."""
    return any(isinstance(layout.cut(axis, n), CyclicCut) for axis, n in enumerate(shape))


def _may_be_strided(shape: tuple[int, ...], layout: Layout, other: Layout) -> bool:
    """Return whether boxes that *other* cuts from a block of *layout* may be noncontiguous in it."""
    if _has_cyclic_axis(shape, layout) or _has_cyclic_axis(shape, other):
        return True
    cut_axes = [axis for axis in range(len(shape)) if other.num_shards(axis) > 1]
    return bool(cut_axes) and any(layout.cut(axis, shape[axis]).longest > 1 for axis in range(cut_axes[-1]))
