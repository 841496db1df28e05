"""Steps between meshes over different ranks, or over the same ranks in another order; pure.

All of it is arithmetic on the boxes of one rank, and costs the same on meshes of any size. The comment below proves
that senders and receivers agree.
"""

# Who serves whom: a proof
# ------------------------
#
# A device that needs a box takes it from one holder of the block around it. `receives` computes this for a receiver,
# `sends` for a sender, without a message between them. Both must come to the same pairs. Each box must move once.
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
#    gets the range from `Cut.overlapping` of its own box, the receiver from `Cut.first_and_last` of the box of B: both
#    ask `Cut.block_of` for the same two elements. So W is the same number, and so is the row-major index of T in the
#    product of the ranges, i = 0 ... W-1. (Empty blocks inside a range would count on both sides, and ask for
#    nothing.)
#
# 2. Turns. The turn of an asker is t = c * W + i. Since 0 <= i < W, `divmod(t, W)` gives (c, i) back: turns number the
#    askers from 0 to A-1, each once.
#
# 3. The rule: replica r = floor(t * R / A) serves turn t. As 0 <= t < A, r is one of 0 ... R-1. The receiver computes
#    just this (`_serving`). The sender has r and wants all t (`_served`):
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
#    `_holds`. The receiver goes through (c), (b), (a), and each overrides the one before. The sender collects what is
#    its own of each: its turns without askers that hold B or have a holder on their node; the Q_j of its node with
#    H_(j mod h) = itself; and itself, if it wants a T. On a machine of one node (b) is left out by both: no
#    replica is closer than another, and turns spread the load.
#
# 6. So there is a function f: (B, q) -> the holder that serves q with B. A receiver q evaluates it for all B that
#    overlap its block T, and the intersections of these B with T are disjoint and make up T: it receives each element
#    once. A sender p holds one B, and finds all q with f(B, q) = p. The box is the intersection of B and T for both.
#    As p holds only one B and q only one T, a pair exchanges at most one box.
#
# The tests compare both sides in thousands of random cases: tests/plans/test_cross_mesh.py.

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
from meshcomm.layouts.partition import Cut
from meshcomm.layouts.refinement import devices_of, listed_ranks, ranks_of, union
from meshcomm.plans.step import AllToAll, Traffic


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

    def held_box(self, device: int) -> Box | None:
        return self._box(self.source, device)

    def target_box(self, device: int) -> Box | None:
        return self._box(self.target, device)

    def _box(self, layout: Layout, device: int) -> Box | None:
        there = int(devices_of(layout.mesh, one(self.ranks[device]))[0])
        return layout.block_box(self.shape, there) if there >= 0 else None

    def group_of(self, device: int) -> tuple[int, ...]:
        return self.group_assignment[0]

    def position_of(self, device: int) -> int:
        return device

    def members(self, device: int, positions: Indices) -> Indices:
        return positions

    def receives(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.target_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape))
        cuts = self._cuts(self.source)
        ranges = [cut.overlapping(interval) for cut, interval in zip(cuts, box, strict=True)]
        numbers = product([np.arange(r.start, r.stop, dtype=np.intp) for r in ranges])
        senders = self._serving(rank, numbers)
        if not self.machine.one_node:
            senders = self._nearest(rank, numbers, senders)
        senders = np.where(self._holds(one(rank), numbers)[:, 0], rank, senders)
        columns = []
        for axis, cut in enumerate(cuts):
            starts, stops = cut.intervals(numbers[:, axis])
            columns.append((np.maximum(starts, box[axis][0]), np.minimum(stops, box[axis][1])))
        peers = self._positions(senders)
        order = np.argsort(peers)
        starts, stops = (ends[order] for ends in stacked(columns, len(peers)))
        return Boxes(peers[order], np.arange(len(peers), dtype=np.intp), starts, stops)

    def sends(self, device: int) -> Boxes:
        rank, box = self.ranks[device], self.held_box(device)
        if box is None or not box_size(box):
            return no_boxes(len(self.shape))
        cuts = self._cuts(self.target)
        ranges = [cut.overlapping(interval) for cut, interval in zip(cuts, box, strict=True)]
        held = numbers_of(self.source, devices_of(self.source.mesh, one(rank)))
        asking = self._served(rank, ranges)
        asking = asking[~self._holds(asking, held)[0]]
        if not self.machine.one_node:
            asking = self._nodes_first(rank, held, ranges, asking)
        if self._wants(one(rank), ranges)[0]:
            asking = np.append(asking, rank)
        wanted = numbers_of(self.target, devices_of(self.target.mesh, asking))
        flat = np.zeros(len(asking), dtype=np.intp)
        for axis, r in enumerate(ranges):
            flat = flat * len(r) + wanted[:, axis] - r.start
        distinct, which = np.unique(flat, return_inverse=True)
        columns = []
        for axis, number in enumerate(np.unravel_index(distinct, [len(r) for r in ranges]) if ranges else ()):
            starts, stops = cuts[axis].intervals(number + ranges[axis].start)
            columns.append((np.maximum(starts, box[axis][0]), np.minimum(stops, box[axis][1])))
        peers = self._positions(asking)
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

    def _cuts(self, layout: Layout) -> list[Cut]:
        return [layout.cut(axis, n) for axis, n in enumerate(self.shape)]

    def _positions(self, ranks: Indices) -> Indices:
        """Return the positions of *ranks* among those of both meshes."""
        if isinstance(self.ranks, range):
            return ranks - self.ranks.start
        return np.searchsorted(listed_ranks(self.ranks), ranks).astype(np.intp)

    def _holds(self, ranks: Indices, numbers: Indices) -> NDArray[np.bool_]:
        """Return for each block of the source, given by its *numbers*, which of *ranks* hold it: a row per block."""
        devices = devices_of(self.source.mesh, ranks)
        held = numbers_of(self.source, devices)
        same: NDArray[np.bool_] = (numbers[:, None, :] == held[None, :, :]).all(axis=2)
        return same & (devices >= 0)

    def _wants(self, ranks: Indices, ranges: list[range]) -> NDArray[np.bool_]:
        """Return which of *ranks* have a new block with a number in the *ranges*, one along each axis."""
        devices = devices_of(self.target.mesh, ranks)
        numbers = numbers_of(self.target, devices)
        inside = devices >= 0
        for axis, r in enumerate(ranges):
            inside &= (numbers[:, axis] >= r.start) & (numbers[:, axis] < r.stop)
        return inside

    def _wanted(self, axis: int, numbers: Indices) -> tuple[Indices, Indices]:
        """Return the first and the last block of the target, along *axis*, that overlaps each block of the source."""
        n = self.shape[axis]
        return self.target.cut(axis, n).first_and_last(*self.source.cut(axis, n).intervals(numbers[:, axis]))

    def _serving(self, rank: int, numbers: Indices) -> Indices:
        """Return the ranks whose turn it is to serve *rank* with the blocks of these *numbers*: 3 of the proof."""
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
        """Return the ranks that it is the turn of *rank* to serve: the inverse of `_serving`, 3 of the proof."""
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
        """Return the rank on its node that serves *rank* with each block, or the one *otherwise*: 5b of the proof."""
        local = self.machine.ranks_on(int(self.machine.node_of(one(rank))[0]))
        holds = self._holds(local, numbers)
        holders = holds.sum(axis=1)
        devices = devices_of(self.target.mesh, local)
        its_numbers, asks = numbers_of(self.target, devices), ~holds & (devices >= 0)
        for axis in range(len(self.shape)):
            first, last = self._wanted(axis, numbers)
            asks &= (first[:, None] <= its_numbers[:, axis]) & (its_numbers[:, axis] <= last[:, None])
        before = asks[:, : int(np.searchsorted(local, rank))].sum(axis=1)
        turn = before % np.maximum(holders, 1)
        chosen = (holds & (holds.cumsum(axis=1) == turn[:, None] + 1)).argmax(axis=1)
        return np.where(holders > 0, local[chosen], otherwise)

    def _nodes_first(self, rank: int, held: Indices, ranges: list[range], asking: Indices) -> Indices:
        """Return the ranks that *rank* serves, but for itself: 5b and 5c of the proof.

        Parameters
        ----------
        rank: the sender
        held: the numbers of its block, in one row
        ranges: the numbers of the target's blocks that overlap it, along each axis
        asking: the ranks that it is its turn to serve
        """
        nodes, node_of = np.unique(self.machine.node_of(asking), return_inverse=True)
        elsewhere = asking[~self._have_holders(nodes, held)[node_of.reshape(-1)]]
        local = self.machine.ranks_on(int(self.machine.node_of(one(rank))[0]))
        holds = self._holds(local, held)[0]
        wants = np.flatnonzero(self._wants(local, ranges) & ~holds)
        holders = local[holds]
        return np.concatenate([elsewhere, local[wants[holders[np.arange(len(wants)) % len(holders)] == rank]]])

    def _have_holders(self, nodes: Indices, held: Indices) -> NDArray[np.bool_]:
        """Return on which of *nodes* some rank holds the block of the source with the numbers *held*."""
        ranks = [self.machine.ranks_on(int(node)) for node in nodes]
        if not ranks:
            return np.zeros(0, dtype=bool)
        first = np.cumsum([0, *map(len, ranks[:-1])])
        return np.logical_or.reduceat(self._holds(np.concatenate(ranks), held)[0], first)

    def __repr__(self) -> str:
        rounds = f" in {self.rounds} rounds" if self.rounds > 1 else ""
        source, target = (
            f"{specs_text(layout.sharding_specs)} on {layout.mesh}" for layout in (self.source, self.target)
        )
        return f"AllToAll between meshes (direct){rounds}: {source} -> {target}"


def _may_be_strided(shape: tuple[int, ...], here: Layout, there: Layout) -> bool:
    """Return whether boxes that the layout *there* cuts out of a block of *here* may not be consecutive in it."""
    cut = [axis for axis in range(len(shape)) if there.num_shards(axis) > 1]
    return bool(cut) and any(here.cut(axis, shape[axis]).longest > 1 for axis in range(cut[-1]))
