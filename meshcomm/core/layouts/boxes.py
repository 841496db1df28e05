"""Boxes: intervals along each axis (MPI calls them subarrays, HDF5 hyperslabs), and boxes that devices exchange."""

from collections.abc import Sequence
from operator import lt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Indices
from meshcomm.core.layouts.overlaps import AxisOverlaps, Repeats
from meshcomm.core.layouts.partition import Span, length_of, local_indices, local_steps

Box: TypeAlias = tuple[Span, ...]


def box_size(box: Box) -> int:
    """Return how many elements *box* holds.

    >>> box_size(((0, 2), (3, 6))), box_size(())
    (6, 1)
    """
    size = 1
    for span in box:
        size *= length_of(span)
    return size


class Boxes(NamedTuple):
    """The boxes that one device sends, and the boxes among them for each peer; or the same for receiving.

    Starts and stops are global indices. Peers are positions in a group. Rows of a peer with several boxes are
    consecutive, in the same order on both sides.
    """

    peers: Indices  # (n,)
    which: Indices  # (n,): the number of the box of each peer; several peers may have the same one
    starts: Indices  # (k, ndim)
    stops: Indices  # (k, ndim)
    repeats: Repeats | None = None  # (k, ndim, 2); None if no box repeats along an axis

    @property
    def sizes(self) -> Indices:
        """How many elements each box has."""
        sizes: Indices = np.prod(self.stops - self.starts, axis=1, dtype=np.intp)
        return sizes if self.repeats is None else sizes * self.repeats.counts.prod(axis=(1, 2), dtype=np.intp)

    def subset(self, rows: Indices | slice) -> "Boxes":
        """Return the boxes of these rows, each for the peer 0."""
        starts, zeros = self.starts[rows], np.zeros(len(self.starts[rows]), dtype=np.intp)
        repeats = self.repeats and Repeats(self.repeats.counts[rows], self.repeats.steps[rows])
        return Boxes(zeros, zeros, starts, self.stops[rows], repeats)

    def of(self, peer: int) -> Indices:
        """Return the numbers of the boxes that go to *peer*, or come from it."""
        return self.which[self.peers == peer]


def no_boxes(ndim: int, repeat: bool = False) -> Boxes:
    """Return `Boxes` without boxes, for *ndim* axes; *repeat* says whether they have `repeats`."""
    no_peers, loops = np.zeros(0, dtype=np.intp), np.zeros((0, ndim, 2), dtype=np.intp)
    corners = np.zeros((0, ndim), dtype=np.intp)
    return Boxes(no_peers, no_peers, corners, corners, Repeats(loops, loops) if repeat else None)


def are_contiguous(block: Box, boxes: Boxes) -> bool:
    """Return whether each box is certainly contiguous in *block*; False for boxes that repeat.

    A box is contiguous if it spans the block on every axis after the first one on which it is longer than 1.
    """
    if boxes.repeats is not None:
        return False
    lengths = np.array(box_shape(block), dtype=np.intp)
    extents = boxes.stops - boxes.starts
    after_longer = np.cumsum(extents > 1, axis=1) - (extents > 1) > 0  # an earlier axis is longer than 1
    return bool(np.all(~after_longer | (extents == lengths) | (extents == 0).any(axis=1, keepdims=True)))


def without_peer(boxes: Boxes, position: int) -> Boxes:
    """Return *boxes* without those that go only to the peer at *position*, or come from it."""
    return boxes if (boxes.peers != position).all() else _boxes_of_peers(boxes, boxes.peers != position)


def with_peers(boxes: Boxes, positions: Indices) -> Boxes:
    """Return those of *boxes* that go to peers at *positions*, or come from them."""
    return _boxes_of_peers(boxes, np.isin(boxes.peers, positions))


def _boxes_of_peers(boxes: Boxes, mask: NDArray[np.bool_]) -> Boxes:
    box_numbers, which = np.unique(boxes.which[mask], return_inverse=True)
    return boxes.subset(box_numbers)._replace(peers=boxes.peers[mask], which=which.reshape(-1))


def intersections(box: Box, others: Sequence[Box]) -> Boxes:
    """Return the intersections of *box* with each box of *others*, without empty ones.

    The peer of an intersection is the index in *others*. Peers with equal intersections share one box.

    >>> boxes = intersections(((0, 4),), [((0, 2),), ((2, 6),), ((0, 2),), ((6, 8),)])
    >>> boxes.peers.tolist(), boxes.which.tolist(), boxes.starts.tolist(), boxes.stops.tolist()
    ([0, 1, 2], [0, 1, 0], [[0], [2]], [[2], [4]])
    """
    if len(others) <= _FEW_PEERS:
        return _few_intersections(box, others)
    ends = np.array([box, *others], dtype=np.intp).reshape(1 + len(others), len(box), 2)
    starts, stops = np.maximum(ends[1:, :, 0], ends[0, :, 0]), np.minimum(ends[1:, :, 1], ends[0, :, 1])
    peers = np.flatnonzero((starts < stops).all(axis=1))
    rows, which = np.unique(np.hstack([starts, stops])[peers], axis=0, return_inverse=True)
    return Boxes(peers, which.reshape(-1), rows[:, : len(box)], rows[:, len(box) :])


_FEW_PEERS = 64  # up to this many, integers of Python take less time than arrays


def _few_intersections(box: Box, others: Sequence[Box]) -> Boxes:
    peers, which, box_numbers = list[int](), list[int](), dict[tuple[int, ...], int]()
    for peer, other in enumerate(others):
        starts = [max(a[0], b[0]) for a, b in zip(box, other, strict=True)]
        stops = [min(a[1], b[1]) for a, b in zip(box, other, strict=True)]
        if all(map(lt, starts, stops)):
            peers.append(peer)
            which.append(box_numbers.setdefault((*starts, *stops), len(box_numbers)))
    corners = np.array(list(box_numbers), dtype=np.intp).reshape(len(box_numbers), 2 * len(box))
    numbers = np.array([peers, which], dtype=np.intp)
    return Boxes(numbers[0], numbers[1], corners[:, : len(box)], corners[:, len(box) :])


def boxes_of_overlaps(axes: Sequence[AxisOverlaps]) -> tuple[Indices, Boxes]:
    """Return the row numbers of each combination of one row per axis, and the combinations as boxes.

    All boxes are for the peer 0; the last axis is the fastest.
    """
    rows = np.ascontiguousarray(np.argwhere(np.ones([len(axis.starts) for axis in axes], bool)))
    starts, stops = np.empty_like(rows), np.empty_like(rows)
    for i, axis in enumerate(axes):
        starts[:, i], stops[:, i] = axis.starts[rows[:, i]], axis.stops[rows[:, i]]
    boxes = Boxes(np.zeros(len(rows), dtype=np.intp), np.arange(len(rows), dtype=np.intp), starts, stops)
    if all(axis.repeats is None for axis in axes):
        return rows, boxes
    counts = np.ones((len(rows), len(axes), 2), dtype=np.intp)
    steps = np.zeros_like(counts)
    for i, axis in enumerate(axes):
        if axis.repeats is not None:
            counts[:, i], steps[:, i] = axis.repeats.counts[rows[:, i]], axis.repeats.steps[rows[:, i]]
    return rows, boxes._replace(repeats=Repeats(counts, steps))


def in_block(block: Box | None, boxes: Boxes) -> tuple[Indices, Indices, Indices]:
    """Return the starts of *boxes* in the indices of a *block* that holds them, and the loops over their elements.

    That is a start for each box and axis; and for each box, axis and loop a count and a step in indices of the block.
    An axis has one loop, or three if boxes repeat.

    >>> starts, extents, steps = in_block(((2, 5),), Boxes(*np.zeros((2, 1), int), np.array([[3]]), np.array([[5]])))
    >>> starts.tolist(), extents.tolist(), steps.tolist()
    ([[1]], [[[2]]], [[[1]]])
    """
    extents = (boxes.stops - boxes.starts)[:, :, None]
    spans = block or ((0, 0),) * boxes.starts.shape[1]
    starts = np.empty_like(boxes.starts)
    for axis, span in enumerate(spans):
        starts[:, axis] = local_indices(span, boxes.starts[:, axis])
    if boxes.repeats is None:
        return starts, extents, np.ones_like(extents)
    counts, steps = boxes.repeats
    block_steps = np.ones((*steps.shape[:2], 3), dtype=np.intp)
    for axis, span in enumerate(spans):
        block_steps[:, axis, :2] = local_steps(span, steps[:, axis])
    return starts, np.concatenate([counts, extents], axis=2), block_steps


def as_rows(boxes: Boxes, which: Indices) -> Indices:
    """Return the boxes with numbers *which* as rows of integers; `from_rows` is the inverse."""
    columns = [boxes.starts[which], boxes.stops[which]]
    if boxes.repeats is not None:
        columns += [array[which].reshape(len(which), 2 * boxes.starts.shape[1]) for array in boxes.repeats]
    return np.hstack(columns)


def from_rows(rows: Indices, prototype: Boxes) -> Boxes:
    """Return the boxes of *rows*, each for the peer 0, with the axes of *prototype*, and repeats if it has some."""
    count, ndim = len(rows), prototype.starts.shape[1]
    zeros, starts, stops = np.zeros(count, dtype=np.intp), rows[:, :ndim], rows[:, ndim : 2 * ndim]
    if prototype.repeats is None:
        return Boxes(zeros, zeros, starts, stops)
    counts, steps = rows[:, 2 * ndim :].reshape(count, 2, ndim, 2).swapaxes(0, 1)
    return Boxes(zeros, zeros, starts, stops, Repeats(counts, steps))


def box_shape(box: Box) -> tuple[int, ...]:
    """Return the lengths of *box*.

    >>> box_shape(((0, 2), (3, 6)))
    (2, 3)
    """
    return tuple([span[1] - span[0] if type(span) is tuple else length_of(span) for span in box])
