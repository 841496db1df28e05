"""Copies between the blocks of ranks that share memory: what is copied from where to where. Nothing runs here.

What is to be copied is the same as over MPI; shared memory is only another way for it to go. For each pair of ranks
the receiver reads from the sender's block, or the sender writes to the receiver's, whichever is shared. If both are,
the rank whose own side has the shorter runs does it: the other side is then touched in whole cache lines.

Several tensors move in one exchange. Their new blocks lie in one allocation, so that the other ranks find all
of them when they know where it begins.
"""

from collections.abc import Sequence

import numpy as np

from meshcomm._kernels import BoxCopies
from meshcomm.core._tuning import LINE
from meshcomm.core._types import Indices
from meshcomm.core.layouts.boxes import Boxes
from meshcomm.core.memory.copies import Strided, as_byte_boxes, concatenated
from meshcomm.core.transport.exchange import (
    BoxExchange,
    PlacedBox,
    are_few,
    has_intervals,
    map_distinct,
    run_length,
    strided_rows,
    with_region_numbers,
)


def block_offsets(sizes: Sequence[int]) -> list[int]:
    """Return where blocks of these *sizes* begin in one allocation, and its length.

    Each begins on a cache line of its own.

    >>> block_offsets([10, 64, 1])
    [0, 64, 128, 192]
    """
    lines = [-(-size // LINE) * LINE for size in sizes]
    return [0, *np.cumsum(lines, dtype=np.intp).tolist()]


class LocalCopies:
    """The copies between the blocks of this rank and those of its local peers.

    Parameters
    ----------
    tensors: boxes that the group exchanges
    members: positions in the group of the ranks that share memory, this rank among them; a local peer is named by its
        index there
    """

    def __init__(self, tensors: Sequence[BoxExchange], members: tuple[int, ...]) -> None:
        self.tensors = tensors
        self.members = members
        self.several = len(tensors) > 1
        self.position = members.index(tensors[0].position)

    def pairs(self, receives: bool) -> list[tuple[int, bool]]:
        """Return the local peers with bytes for this rank, or from it, and whether the sender should rather write."""
        sender_writes: dict[int, bool] = {}
        for tensor in {id(tensor): tensor for tensor in self.tensors}.values():  # many have one description
            boxes = tensor.receives if receives else tensor.sends
            for peer, box in zip(boxes.peers.tolist(), boxes.which.tolist(), strict=True):
                if peer == tensor.position or peer not in self.members:
                    continue
                if not (boxes.stops[box] - boxes.starts[box]).all():
                    continue
                sender, receiver = (peer, tensor.position) if receives else (tensor.position, peer)
                writes = self.several or _rather_writes(tensor, sender, receiver, boxes, box)
                sender_writes[self.members.index(peer)] = writes
        return list(sender_writes.items())

    def reads_and_writes(
        self, reads_from: tuple[int, ...], writes_to: tuple[int, ...]
    ) -> tuple[BoxCopies | None, BoxCopies | None]:
        """Return the copies from blocks of local peers to the new block, and from the blocks to those of peers.

        What stays on this rank goes with the one or the other, so that memory is read once, or written once.
        """
        this_rank = (self.position,)
        if reads_from:
            return self.reads(reads_from + this_rank), self.writes(writes_to)
        return None, self.writes(writes_to + this_rank)

    def reads(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks of local *peers*, this rank perhaps among them, to the new block."""
        (tensor,) = self.tensors
        sizes, boxes = [0] * len(self.members), tensor.receives
        chosen = [(number, boxes.of(self.members[number])) for number in sorted(peers)]
        chosen = [(number, which) for number, which in chosen if len(which)]
        if not chosen:
            return None
        for number, _ in chosen:
            sizes[number] = tensor.source_bytes(self.members[number])
        source, into = self._laid_out(tensor, boxes, chosen, receives=True)
        target = [tensor.target_bytes(tensor.position)]
        return BoxCopies(sizes, target, tensor.itemsize, *source[:3], *into, len(self.members))

    def _laid_out(
        self, tensor: BoxExchange, boxes: Boxes, chosen: Sequence[tuple[int, Indices]], receives: bool
    ) -> tuple[Strided, Strided]:
        """Return where boxes that are *chosen* of local peers lie before and after; peers are the regions there."""
        position, froms, tos = tensor.position, list[Strided](), list[Strided]()
        plain = self._laid_out_by_integers(tensor, boxes, chosen, receives)
        if plain is not None:
            return plain
        for number, which in chosen:
            peer, rows = self.members[number], boxes.subset(which)
            froms.append(tensor.in_source(peer, number, rows) if receives else tensor.in_source(position, 0, rows))
            tos.append(tensor.in_target(position, 0, rows) if receives else tensor.in_target(peer, number, rows))
        loops = froms[0].extents.shape[1] if froms else boxes.starts.shape[1]
        return concatenated(froms, loops), concatenated(tos, loops)

    def _laid_out_by_integers(
        self, tensor: BoxExchange, boxes: Boxes, chosen: Sequence[tuple[int, Indices]], receives: bool
    ) -> tuple[Strided, Strided] | None:
        """Return what `_laid_out` does, by integers of Python; None if there are many boxes, or some have gaps."""
        if not tensor.is_in_order or not are_few(boxes):
            return None
        starts, stops, position = boxes.starts.tolist(), boxes.stops.tolist(), tensor.position
        froms, tos = list[PlacedBox](), list[PlacedBox]()
        for number, which in chosen:
            sender, receiver = (self.members[number], position) if receives else (position, self.members[number])
            source, target = tensor.source(sender), tensor.target(receiver)
            if source is None or target is None or not has_intervals(source) or not has_intervals(target):
                return None
            for box in which.tolist():
                froms.append((number if receives else 0, source, starts[box], stops[box]))
                tos.append((0 if receives else number, target, *tensor.corners_in_target(starts[box], stops[box])))
        ndim = boxes.starts.shape[1]
        return strided_rows(froms, ndim, tensor.itemsize), strided_rows(tos, ndim, tensor.itemsize)

    def writes(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks to the new blocks of local *peers*, this rank perhaps among them."""
        offsets = {number: self._offsets_of(self.members[number]) for number in peers}
        sizes = [offsets[number][-1] if number in offsets else 0 for number in range(len(self.members))]
        sides = map_distinct(self.tensors, lambda tensor: self._written_boxes(tensor, sorted(peers)))
        sources = with_region_numbers([source for source, _ in sides])
        begins = np.zeros((len(self.members), len(self.tensors)), dtype=np.intp)
        for number, starts in offsets.items():
            begins[number] = starts[: len(self.tensors)]
        targets = [
            target._replace(offsets=target.offsets + begins[target.regions, region])
            for region, (_, target) in enumerate(sides)
        ]
        itemsizes = [tensor.itemsize for tensor in self.tensors]
        (source, itemsize), (target, _) = as_byte_boxes(sources, itemsizes), as_byte_boxes(targets, itemsizes)
        if not len(source.offsets):
            return None
        source_sizes = [tensor.source_bytes(tensor.position) for tensor in self.tensors]
        return BoxCopies(source_sizes, sizes, itemsize, *source[:3], *target, len(self.members))

    def _written_boxes(self, tensor: BoxExchange, peers: Sequence[int]) -> tuple[Strided, Strided]:
        """Return the boxes of *tensor* in the block, and in the new blocks of *peers*, which are the regions there."""
        chosen = [(number, tensor.sends.of(self.members[number])) for number in peers]
        return self._laid_out(tensor, tensor.sends, [row for row in chosen if len(row[1])], receives=False)

    def _offsets_of(self, position: int) -> list[int]:
        """Return where the new blocks of a position begin in its allocation, and the length of this."""
        sizes = [tensor.target_bytes(position) for tensor in self.tensors]
        return block_offsets(sizes) if self.several else [0, sizes[0]]


def _rather_writes(tensor: BoxExchange, sender: int, receiver: int, boxes: Boxes, box: int) -> bool:
    """Return whether the sender's side of a box has shorter runs than the receiver's."""
    if tensor.is_in_order and boxes.repeats is None:
        before, after = tensor.source(sender), tensor.target(receiver)
        if before is not None and after is not None and has_intervals(before) and has_intervals(after):
            corners = boxes.starts[box].tolist(), boxes.stops[box].tolist()
            return run_length(before, *corners, tensor.itemsize) < run_length(after, *corners, tensor.itemsize)
    one = boxes.subset(slice(box, box + 1))
    source, target = tensor.in_source(sender, 0, one), tensor.in_target(receiver, 0, one)
    return _run_bytes(source, tensor.itemsize) < _run_bytes(target, tensor.itemsize)


def _run_bytes(box: Strided, itemsize: int) -> int:
    """Return how many bytes of a box lie one after the other in its block."""
    run = itemsize
    for stride, extent in zip(reversed(box.strides[0].tolist()), reversed(box.extents[0].tolist()), strict=True):
        if extent > 1 and stride != run:
            break
        run *= extent
    return run
