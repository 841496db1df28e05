"""Boxes: intervals along each axis, and the boxes that a device sends to its peers or receives from them."""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshcomm._types import Indices
from meshcomm.layouts.partition import Interval

Box: TypeAlias = tuple[Interval, ...]


def box_size(box: Box) -> int:
    """Return how many elements *box* holds. Local.

    >>> box_size(((0, 2), (3, 6))), box_size(())
    (6, 1)
    """
    size = 1
    for start, stop in box:
        size *= stop - start
    return size


class Boxes(NamedTuple):
    """Boxes that one device sends or receives, and which of them each peer gets, or gives."""

    peers: Indices  # (n,): places in the group
    which: Indices  # (n,): the box of each peer; several peers may get the same one
    starts: Indices  # (k, ndim)
    stops: Indices  # (k, ndim)

    @property
    def sizes(self) -> Indices:
        """How many elements each box has. Local."""
        sizes: Indices = np.prod(self.stops - self.starts, axis=1, dtype=np.intp)
        return sizes


def stacked(columns: list[tuple[Indices, Indices]], boxes: int) -> tuple[Indices, Indices]:
    """Return starts and stops of so many *boxes*, a row each, from a column of both per axis. Local."""
    if not columns:
        return np.zeros((boxes, 0), dtype=np.intp), np.zeros((boxes, 0), dtype=np.intp)
    return np.stack([a for a, _ in columns], axis=1), np.stack([b for _, b in columns], axis=1)


def product(axes: list[Indices]) -> Indices:
    """Return all combinations of one number per axis, a row each; the last axis is the fastest."""
    if not axes:
        return np.zeros((1, 0), dtype=np.intp)
    return np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")], axis=1)


def no_boxes(ndim: int) -> Boxes:
    none = np.zeros(0, dtype=np.intp)
    return Boxes(none, none, np.zeros((0, ndim), dtype=np.intp), np.zeros((0, ndim), dtype=np.intp))


def contiguous(block: Box, starts: Indices, stops: Indices) -> bool:
    """Return whether each box lies consecutively in *block*: whole on every axis after the first longer than 1."""
    lengths = np.array([stop - start for start, stop in block], dtype=np.intp)
    extents = stops - starts
    started = np.cumsum(extents > 1, axis=1) - (extents > 1) > 0  # an earlier axis is longer than 1
    return bool(np.all(~started | (extents == lengths) | (extents == 0).any(axis=1, keepdims=True)))


def to_others(boxes: Boxes, place: int) -> Boxes:
    """Return *boxes* without those that only this rank gets, or gives."""
    return boxes if (boxes.peers != place).all() else _some(boxes, boxes.peers != place)


def with_peers(boxes: Boxes, places: Indices) -> Boxes:
    """Return *boxes* without those that none of the ranks at *places* gets, or gives. Local."""
    return _some(boxes, np.isin(boxes.peers, places))


def _some(boxes: Boxes, chosen: NDArray[np.bool_]) -> Boxes:
    needed, which = np.unique(boxes.which[chosen], return_inverse=True)
    return Boxes(boxes.peers[chosen], which.reshape(-1), boxes.starts[needed], boxes.stops[needed])


def single_box(box: Box) -> Boxes:
    """Return *box* as the only one, for place 0."""
    none = np.zeros(1, dtype=np.intp)
    starts, stops = (np.array([[ends[i] for ends in box]], dtype=np.intp).reshape(1, len(box)) for i in (0, 1))
    return Boxes(none, none, starts, stops)


def in_block(box: Box | None, boxes: Boxes) -> Boxes:
    """Return global *boxes* in indices of the block that *box* is."""
    if box is None:
        return boxes
    first = np.array([start for start, _ in box], dtype=np.intp)
    return boxes._replace(starts=boxes.starts - first, stops=boxes.stops - first)


def box_shape(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)
