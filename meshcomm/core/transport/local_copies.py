"""Copies between the blocks of ranks that share memory. Only descriptions: nothing runs here.

The boxes are the same as over MPI. For each pair of ranks the receiver reads from the sender's block, or the sender
writes to the receiver's block: one of the two has to be shared. If both are, the rank whose side has the shorter runs
copies: then the other side is read or written in whole cache lines.

Several tensors may move in one exchange. Their new blocks lie in one allocation, so that the other ranks find all of
them by its address.
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
    """Return the offsets of blocks of these *sizes* in one allocation, and its length.

    Each block begins on a cache line of its own.

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
        """Return the local peers with bytes for this rank, or from it, and whether the sender should write."""
        sender_writes: dict[int, bool] = {}
        for tensor in {id(tensor): tensor for tensor in self.tensors}.values():  # many tensors may be one object
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
        """Return the copies from blocks of local peers to the new block, and from the blocks to new blocks of peers.

        Boxes that stay on this rank are copied with the reads or the writes, so that memory is read or written once.
        """
        this_rank = (self.position,)
        if reads_from:
            return self.reads(reads_from + this_rank), self.writes(writes_to)
        return None, self.writes(writes_to + this_rank)

    def reads(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks of local *peers*, this rank perhaps among them, to the new block."""
        (tensor,) = self.tensors
        sizes, boxes = [0] * len(self.members), tensor.receives
        boxes_of_peers = [(index, boxes.of(self.members[index])) for index in sorted(peers)]
        boxes_of_peers = [(index, box_indices) for index, box_indices in boxes_of_peers if len(box_indices)]
        if not boxes_of_peers:
            return None
        for index, _ in boxes_of_peers:
            sizes[index] = tensor.source_bytes(self.members[index])
        source_boxes, target_boxes = self._laid_out(tensor, boxes, boxes_of_peers, receives=True)
        target_sizes = [tensor.target_bytes(tensor.position)]
        return BoxCopies(sizes, target_sizes, tensor.itemsize, *source_boxes[:3], *target_boxes, len(self.members))

    def _laid_out(
        self, tensor: BoxExchange, boxes: Boxes, boxes_of_peers: Sequence[tuple[int, Indices]], receives: bool
    ) -> tuple[Strided, Strided]:
        """Return where the boxes in *boxes_of_peers* lie before and after; local peers are the regions there."""
        position, sources, targets = tensor.position, list[Strided](), list[Strided]()
        integer_layout = self._laid_out_by_integers(tensor, boxes, boxes_of_peers, receives)
        if integer_layout is not None:
            return integer_layout
        for index, box_indices in boxes_of_peers:
            peer, part = self.members[index], boxes.subset(box_indices)
            sources.append(tensor.in_source(peer, index, part) if receives else tensor.in_source(position, 0, part))
            targets.append(tensor.in_target(position, 0, part) if receives else tensor.in_target(peer, index, part))
        loops = sources[0].extents.shape[1] if sources else boxes.starts.shape[1]
        return concatenated(sources, loops), concatenated(targets, loops)

    def _laid_out_by_integers(
        self, tensor: BoxExchange, boxes: Boxes, boxes_of_peers: Sequence[tuple[int, Indices]], receives: bool
    ) -> tuple[Strided, Strided] | None:
        """Return the result of `_laid_out`, by integers of Python; None if there are many boxes, or some have gaps."""
        if not tensor.is_in_order or not are_few(boxes):
            return None
        starts, stops, position = boxes.starts.tolist(), boxes.stops.tolist(), tensor.position
        sources, targets = list[PlacedBox](), list[PlacedBox]()
        for index, box_indices in boxes_of_peers:
            sender, receiver = (self.members[index], position) if receives else (position, self.members[index])
            source, target = tensor.source(sender), tensor.target(receiver)
            if source is None or target is None or not has_intervals(source) or not has_intervals(target):
                return None
            for box in box_indices.tolist():
                sources.append((index if receives else 0, source, starts[box], stops[box]))
                targets.append((0 if receives else index, target, *tensor.corners_in_target(starts[box], stops[box])))
        ndim = boxes.starts.shape[1]
        return strided_rows(sources, ndim, tensor.itemsize), strided_rows(targets, ndim, tensor.itemsize)

    def writes(self, peers: tuple[int, ...]) -> BoxCopies | None:
        """Return the copies from the blocks to the new blocks of local *peers*, this rank perhaps among them."""
        offsets = {index: self._offsets_of(self.members[index]) for index in peers}
        sizes = [offsets[index][-1] if index in offsets else 0 for index in range(len(self.members))]
        sources_and_targets = map_distinct(self.tensors, lambda tensor: self._written_boxes(tensor, sorted(peers)))
        sources = with_region_numbers([source for source, _ in sources_and_targets])
        begins = np.zeros((len(self.members), len(self.tensors)), dtype=np.intp)
        for index, begin_offsets in offsets.items():
            begins[index] = begin_offsets[: len(self.tensors)]
        targets = [
            target._replace(offsets=target.offsets + begins[target.regions, region])
            for region, (_, target) in enumerate(sources_and_targets)
        ]
        itemsizes = [tensor.itemsize for tensor in self.tensors]
        (source, itemsize), (target, _) = as_byte_boxes(sources, itemsizes), as_byte_boxes(targets, itemsizes)
        if not len(source.offsets):
            return None
        source_sizes = [tensor.source_bytes(tensor.position) for tensor in self.tensors]
        return BoxCopies(source_sizes, sizes, itemsize, *source[:3], *target, len(self.members))

    def _written_boxes(self, tensor: BoxExchange, peers: Sequence[int]) -> tuple[Strided, Strided]:
        """Return the boxes of *tensor* in the block, and in the new blocks of *peers*, which are the regions there."""
        boxes_of_peers = [(index, tensor.sends.of(self.members[index])) for index in peers]
        return self._laid_out(tensor, tensor.sends, [pair for pair in boxes_of_peers if len(pair[1])], receives=False)

    def _offsets_of(self, position: int) -> list[int]:
        """Return the offsets of the new blocks of *position* in its allocation, and the length of the allocation."""
        sizes = [tensor.target_bytes(position) for tensor in self.tensors]
        return block_offsets(sizes) if self.several else [0, sizes[0]]


def _rather_writes(tensor: BoxExchange, sender: int, receiver: int, boxes: Boxes, box: int) -> bool:
    """Return whether the sender's side of a box has shorter runs than the receiver's."""
    if tensor.is_in_order and boxes.repeats is None:
        old_box, new_box = tensor.source(sender), tensor.target(receiver)
        if old_box is not None and new_box is not None and has_intervals(old_box) and has_intervals(new_box):
            corners = boxes.starts[box].tolist(), boxes.stops[box].tolist()
            return run_length(old_box, *corners, tensor.itemsize) < run_length(new_box, *corners, tensor.itemsize)
    single_box = boxes.subset(slice(box, box + 1))
    source, target = tensor.in_source(sender, 0, single_box), tensor.in_target(receiver, 0, single_box)
    return _run_bytes(source, tensor.itemsize) < _run_bytes(target, tensor.itemsize)


def _run_bytes(box: Strided, itemsize: int) -> int:
    """Return the bytes of a box that are contiguous in its block."""
    run = itemsize
    for stride, extent in zip(reversed(box.strides[0].tolist()), reversed(box.extents[0].tolist()), strict=True):
        if extent > 1 and stride != run:
            break
        run *= extent
    return run
