"""From ghosts to boxes: how the ranks of a group exchange them.

An exchange of ghosts goes from blocks with their ghosts to the same memory: elements of the inner block become ghosts
of other blocks, so no byte is both read and written. All other exchanges have one index for an element before and
after. Here a ghost has an index of its own, and `Ghosts` says where in the owner's block it comes from: at another
index beyond the edges of the array, and perhaps in the other direction.

The way back, for `reduce`, goes from the ghosts to a buffer at the owner: `Returns`.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshcomm.core._types import DType, Indices, Names, Shape
from meshcomm.core.layouts.boxes import Box, Boxes
from meshcomm.core.layouts.coordinates import coordinates_of, unravel
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import BoxLoops, Strided, strided
from meshcomm.core.transport.exchange import Exchanged
from meshcomm.halos.axes import AxisRule, Run, runs_from, runs_of, sources_of


@dataclass(frozen=True)
class Pattern:
    """Which ghosts the blocks of an array have; the same on all ranks.

    Parameters
    ----------
    layout, shape, dtype: those of the tensor
    rules: how each axis is cut, and its ghosts
    corners: whether ghosts are filled that lie outside of the block along several axes
    """

    layout: Layout
    shape: Shape
    dtype: DType
    rules: tuple[AxisRule, ...]
    corners: bool

    def __str__(self) -> str:
        widths, boundaries = [rule.width for rule in self.rules], [str(rule.boundary) for rule in self.rules]
        corners = "" if self.corners else ", no corners"
        specs = self.layout.sharding_specs
        return f"{self.shape} {self.dtype} in {specs}, width {widths}, boundary {boundaries}{corners}"

    def __hash__(self) -> int:
        return self._hash  # a program looks for what it knows in every update

    @cached_property
    def _hash(self) -> int:
        return hash((self.layout, self.shape, self.dtype, self.rules, self.corners))

    def padded(self, device: int) -> Box:
        """Return the block of *device* with its ghosts."""
        numbers = self.layout.block_numbers(device)
        return tuple(rule.padded(number) for rule, number in zip(self.rules, numbers, strict=True))

    def inner_slices(self, device: int) -> tuple[slice, ...]:
        """Return where the block of *device* is in the block with its ghosts."""
        block = self.layout.block_box(self.shape, device)
        both = zip(self.padded(device), block, strict=True)
        return tuple(slice(start - first, stop - first) for (first, *_), (start, stop, *_) in both)

    def most_bytes(self) -> int:
        """Return an upper bound on the bytes of the ghosts of a device."""
        padded = inner = self.dtype.itemsize
        for rule in self.rules:
            padded, inner = padded * rule.longest, inner * rule.cut.longest
        return padded - inner

    def boxes(self, axes: Sequence[Sequence[Run]]) -> list[tuple[Run, ...]]:
        """Return the products of runs along the axes that are ghosts to be filled."""
        most = len(axes) if self.corners else 1
        return [runs for runs in itertools.product(*axes) if 0 < sum(run.is_ghost for run in runs) <= most]

    def received(self, device: int) -> list[tuple[Run, ...]]:
        """Return the ghosts that *device* gets from others and from itself."""
        numbers = self.layout.block_numbers(device)
        return self.boxes([runs_of(rule, n) for rule, n in zip(self.rules, numbers, strict=True)])

    def sent(self, device: int) -> list[tuple[Run, ...]]:
        """Return the ghosts that others, and *device* itself, get from it."""
        numbers = self.layout.block_numbers(device)
        return self.boxes([runs_from(rule, n) for rule, n in zip(self.rules, numbers, strict=True)])


class Peers:
    """The positions of devices in their groups along the mesh dimensions *dims*."""

    def __init__(self, layout: Layout, dims: Names, device: int) -> None:
        self._layout, self._dims, mesh = layout, dims, layout.mesh
        strides, stride = {}, 1
        for name in reversed(dims):
            strides[name], stride = stride, stride * mesh.dim_size(name)
        self._strides, own = strides, coordinates_of(mesh, device)
        self._first = device - sum(own[name] * mesh.stride(name) for name in dims)
        sharded = {name for names in layout.axes for name in names}
        # Another device with the same block is at other coordinates along these. Each has ghosts of its own replica.
        self._replica = sum(own[name] * strides[name] for name in dims if name not in sharded)

    def device(self, position: int) -> int:
        """Return the device at a *position*."""
        mesh, found = self._layout.mesh, self._first
        for name in self._dims:
            found += position // self._strides[name] % mesh.dim_size(name) * mesh.stride(name)
        return found

    def positions(self, numbers: Indices) -> Indices:
        """Return the positions of the devices that hold the blocks with these *numbers*, a row each."""
        found = np.full(len(numbers), self._replica, dtype=np.intp)
        for axis, names in enumerate(self._layout.axes):
            for name, coordinate in unravel(self._layout.mesh, tuple(names), numbers[:, axis]):
                found += coordinate * self._strides.get(name, 0)  # not of a mesh dimension of size 1
        return found


def _rows(boxes: list[tuple[Run, ...]], field: Callable[[Run], int], ndim: int) -> Indices:
    return np.array([[field(run) for run in runs] for runs in boxes], dtype=np.intp).reshape(len(boxes), ndim)


def _as_boxes(peers: Indices, starts: Indices, stops: Indices) -> Boxes:
    """Return the boxes in the order of peers and of their indices, which is the same for who sends and receives."""
    keys = [starts[:, axis] for axis in reversed(range(starts.shape[1]))]
    order = np.lexsort([*keys, peers])
    return Boxes(peers[order], np.arange(len(order), dtype=np.intp), starts[order], stops[order])


@dataclass(frozen=True)
class Ghosts(Exchanged):
    """The ghosts that a group exchanges, in the indices of the block that gets them.

    Parameters
    ----------
    rules: how each axis is cut, and its ghosts
    """

    rules: tuple[AxisRule, ...] = ()

    def in_source(self, position: int, region: int, boxes: Boxes) -> Strided:
        box = self.source(position)
        assert box is not None
        return _from_inner(self.rules, box, boxes, region, self.itemsize)


def _from_inner(rules: tuple[AxisRule, ...], box: Box, boxes: Boxes, region: int, itemsize: int) -> Strided:
    """Return where ghosts come from, in the block of their owner: *box*, with its own ghosts."""
    starts, steps = np.empty_like(boxes.starts), np.empty_like(boxes.starts)
    for axis, rule in enumerate(rules):
        first, steps[:, axis] = sources_of(rule, boxes.starts[:, axis], boxes.stops[:, axis])
        starts[:, axis] = first - box[axis][0]
    extents = (boxes.stops - boxes.starts)[:, :, None]
    return strided(region, _lengths(box), itemsize, BoxLoops(starts, extents, steps[:, :, None]))


def _lengths(box: Box) -> Shape:
    return tuple(stop - start for start, stop, *_ in box)


def ghosts(pattern: Pattern, dims: Names, device: int) -> Ghosts:
    """Return the ghosts that the group of *device* along *dims* exchanges in an update."""
    peers, ndim = Peers(pattern.layout, dims, device), len(pattern.shape)

    def block(position: int) -> Box:
        return pattern.padded(peers.device(position))

    def boxes(found: list[tuple[Run, ...]], other: Callable[[Run], int]) -> Boxes:
        positions = peers.positions(_rows(found, other, ndim))
        return _as_boxes(
            positions, _rows(found, lambda run: run.start, ndim), _rows(found, lambda run: run.stop, ndim)
        )

    return Ghosts(
        pattern.dtype.itemsize,
        int(peers.positions(np.array([pattern.layout.block_numbers(device)], dtype=np.intp).reshape(1, ndim))[0]),
        block,
        block,
        lambda position: boxes(pattern.sent(peers.device(position)), lambda run: run.number),
        lambda position: boxes(pattern.received(peers.device(position)), lambda run: run.owner),
        rules=pattern.rules,
    )


@dataclass(frozen=True)
class Returns(Exchanged):
    """The ghosts that a group sends back to their owners, each into a stretch of its own of the owner's buffer.

    Boxes have one more axis in front: the position of the device that has the ghosts.

    Parameters
    ----------
    there: the exchange in the other direction
    """

    there: Ghosts | None = None

    @cached_property
    def _buffers(self) -> dict[int, dict[tuple[int, ...], int]]:
        return {}

    def offsets(self, position: int) -> dict[tuple[int, ...], int]:
        """Return where in the buffer of *position* each box begins, by the first index of the box; in order."""
        found = self._buffers.get(position)
        if found is None:
            boxes = self._all_for(position)
            ends = np.cumsum(boxes.sizes) * self.itemsize
            begins = [0, *ends.tolist()[:-1]]
            found = dict(zip(map(tuple, boxes.starts.tolist()), begins, strict=False))
            self._buffers[position] = found
        return found

    def in_source(self, position: int, region: int, boxes: Boxes) -> Strided:
        box = self.source(position)
        assert box is not None
        starts = boxes.starts.copy()
        starts[:, 0] = 0
        starts[:, 1:] -= np.array([start for start, *_ in box], dtype=np.intp)
        extents = (boxes.stops - boxes.starts)[:, :, None]
        return strided(region, (1, *_lengths(box)), self.itemsize, BoxLoops(starts, extents, np.ones_like(extents)))

    def in_target(self, position: int, region: int, boxes: Boxes) -> Strided:
        extents = boxes.stops - boxes.starts
        after = np.cumprod(extents[:, :0:-1], axis=1)[:, ::-1]
        strides = np.ones_like(extents)
        strides[:, :-1] = after
        known = self.offsets(position)
        offsets = np.array([known[tuple(start)] for start in boxes.starts.tolist()], dtype=np.intp)
        return Strided(np.full(len(offsets), region, dtype=np.intp), offsets, strides * self.itemsize, extents)

    def target_bytes(self, position: int) -> int:
        return int(self._all_for(position).sizes.sum()) * self.itemsize

    def _all_for(self, position: int) -> Boxes:
        """Return what *position* receives from all, also if this exchange is only with some."""
        assert self.there is not None
        boxes = self.there.sends_of(position)
        return _with_holders(boxes, boxes.peers)


def returns(there: Ghosts) -> Returns:
    """Return the exchange in which the ghosts of *there* go back to their owners."""

    def sends(position: int) -> Boxes:
        boxes = there.receives_of(position)
        return _with_holders(boxes, np.full_like(boxes.peers, position))

    def receives(position: int) -> Boxes:
        boxes = there.sends_of(position)
        return _with_holders(boxes, boxes.peers)

    return Returns(there.itemsize, there.position, there.source, there.source, sends, receives, there=there)


def _with_holders(boxes: Boxes, holders: Indices) -> Boxes:
    starts = np.column_stack([holders, boxes.starts])
    return boxes._replace(starts=starts, stops=np.column_stack([holders + 1, boxes.stops]))
