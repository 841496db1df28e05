"""From ghosts to boxes: how the ranks of a group exchange them.

An exchange of ghosts reads and writes the same arrays, but no byte is both read and written: elements of the inner
block become ghosts of other blocks. In all other exchanges an element has one index before and after. Here a ghost has
its own index, and `Ghosts` maps it to its source in the owner's block. Beyond the edges of the array, the source has
another index, and the direction may be reversed.

The exchange back, for `reduce`, goes from the ghosts to a buffer at the owner: `GhostReturns`.
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
from meshcomm.core.transport.exchange import BoxExchange
from meshcomm.halos.axes import AxisRule, HaloRun, runs_from, runs_of, sources_of


@dataclass(frozen=True)
class HaloPattern:
    """The ghosts of the blocks of an array; the same on all ranks.

    Parameters
    ----------
    layout, shape, dtype: layout, shape and dtype of the tensor
    rules: the cut and the ghosts of each axis
    corners: whether to fill ghosts that are outside of the block along several axes
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
        return self._hash  # every update looks up its exchange by the pattern

    @cached_property
    def _hash(self) -> int:
        return hash((self.layout, self.shape, self.dtype, self.rules, self.corners))

    def padded(self, device: int) -> Box:
        """Return the block of *device* with its ghosts."""
        numbers = self.layout.block_numbers(device)
        return tuple(rule.padded(number) for rule, number in zip(self.rules, numbers, strict=True))

    def inner_slices(self, device: int) -> tuple[slice, ...]:
        """Return the slices of the block of *device* in the block with its ghosts."""
        block = self.layout.block_box(self.shape, device)
        intervals = zip(self.padded(device), block, strict=True)
        return tuple(slice(start - origin, stop - origin) for (origin, *_), (start, stop, *_) in intervals)

    def max_block_bytes(self) -> int:
        """Return an upper bound on the bytes of the ghosts of a device."""
        padded = inner = self.dtype.itemsize
        for rule in self.rules:
            padded, inner = padded * rule.longest, inner * rule.cut.longest
        return padded - inner

    def boxes(self, axes: Sequence[Sequence[HaloRun]]) -> list[tuple[HaloRun, ...]]:
        """Return the products of runs along the axes that are ghosts to fill."""
        limit = len(axes) if self.corners else 1
        return [runs for runs in itertools.product(*axes) if 0 < sum(run.is_ghost for run in runs) <= limit]

    def received(self, device: int) -> list[tuple[HaloRun, ...]]:
        """Return the ghosts that *device* gets from others and from itself."""
        numbers = self.layout.block_numbers(device)
        return self.boxes([runs_of(rule, n) for rule, n in zip(self.rules, numbers, strict=True)])

    def sent(self, device: int) -> list[tuple[HaloRun, ...]]:
        """Return the ghosts that others, and *device* itself, get from it."""
        numbers = self.layout.block_numbers(device)
        return self.boxes([runs_from(rule, n) for rule, n in zip(self.rules, numbers, strict=True)])


class HaloPeers:
    """The positions of devices in their groups along the mesh dimensions *dims*."""

    def __init__(self, layout: Layout, dims: Names, device: int) -> None:
        self._layout, self._dims, mesh = layout, dims, layout.mesh
        strides, stride = {}, 1
        for name in reversed(dims):
            strides[name], stride = stride, stride * mesh.dim_size(name)
        self._strides, coordinates = strides, coordinates_of(mesh, device)
        self._first_device = device - sum(coordinates[name] * mesh.stride(name) for name in dims)
        sharded = {name for names in layout.axes for name in names}
        # Replicas of a block differ in these coordinates. Each device gets ghosts from its own replica.
        self._replica = sum(coordinates[name] * strides[name] for name in dims if name not in sharded)

    def device(self, position: int) -> int:
        """Return the device at a *position*."""
        mesh, device = self._layout.mesh, self._first_device
        for name in self._dims:
            device += position // self._strides[name] % mesh.dim_size(name) * mesh.stride(name)
        return device

    def positions(self, numbers: Indices) -> Indices:
        """Return the positions of the devices that hold the blocks with these *numbers*, a row each."""
        positions = np.full(len(numbers), self._replica, dtype=np.intp)
        for axis, names in enumerate(self._layout.axes):
            for name, coordinate in unravel(self._layout.mesh, tuple(names), numbers[:, axis]):
                positions += coordinate * self._strides.get(name, 0)  # 0 for a mesh dimension of size 1
        return positions


def _field_rows(boxes: list[tuple[HaloRun, ...]], field: Callable[[HaloRun], int], ndim: int) -> Indices:
    return np.array([[field(run) for run in runs] for runs in boxes], dtype=np.intp).reshape(len(boxes), ndim)


def _as_boxes(peers: Indices, starts: Indices, stops: Indices) -> Boxes:
    """Return the boxes in the order of peers and indices, the same for the sender and the receiver."""
    keys = [starts[:, axis] for axis in reversed(range(starts.shape[1]))]
    order = np.lexsort([*keys, peers])
    return Boxes(peers[order], np.arange(len(order), dtype=np.intp), starts[order], stops[order])


@dataclass(frozen=True)
class Ghosts(BoxExchange):
    """The ghosts that a group exchanges, in the indices of the receiving block.

    Parameters
    ----------
    rules: the cut and the ghosts of each axis
    """

    rules: tuple[AxisRule, ...] = ()

    def in_source(self, position: int, region: int, boxes: Boxes) -> Strided:
        box = self.source(position)
        assert box is not None
        return _from_inner(self.rules, box, boxes, region, self.itemsize)


def _from_inner(rules: tuple[AxisRule, ...], box: Box, boxes: Boxes, region: int, itemsize: int) -> Strided:
    """Return the sources of ghosts in the memory of their owner's block; *box* is that block with its ghosts."""
    starts, steps = np.empty_like(boxes.starts), np.empty_like(boxes.starts)
    for axis, rule in enumerate(rules):
        first_sources, steps[:, axis] = sources_of(rule, boxes.starts[:, axis], boxes.stops[:, axis])
        starts[:, axis] = first_sources - box[axis][0]
    extents = (boxes.stops - boxes.starts)[:, :, None]
    return strided(region, _lengths(box), itemsize, BoxLoops(starts, extents, steps[:, :, None]))


def _lengths(box: Box) -> Shape:
    return tuple(stop - start for start, stop, *_ in box)


def ghosts(pattern: HaloPattern, dims: Names, device: int) -> Ghosts:
    """Return the ghosts that the group of *device* along *dims* exchanges in an update."""
    peers, ndim = HaloPeers(pattern.layout, dims, device), len(pattern.shape)

    def block(position: int) -> Box:
        return pattern.padded(peers.device(position))

    def boxes(ghost_boxes: list[tuple[HaloRun, ...]], peer_number: Callable[[HaloRun], int]) -> Boxes:
        positions = peers.positions(_field_rows(ghost_boxes, peer_number, ndim))
        return _as_boxes(
            positions,
            _field_rows(ghost_boxes, lambda run: run.start, ndim),
            _field_rows(ghost_boxes, lambda run: run.stop, ndim),
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
class GhostReturns(BoxExchange):
    """The ghosts that a group sends back to their owners, each into its own interval of the owner's buffer.

    Boxes have one more axis in front: the position of the device with the ghosts.

    Parameters
    ----------
    there: the exchange in the other direction, of an update
    """

    there: Ghosts | None = None

    @cached_property
    def _buffers(self) -> dict[int, dict[tuple[int, ...], int]]:
        return {}

    def offsets(self, position: int) -> dict[tuple[int, ...], int]:
        """Return the byte offset of each box in the buffer of *position*, by the first index of the box, ascending."""
        offsets = self._buffers.get(position)
        if offsets is None:
            boxes = self._all_for(position)
            ends = np.cumsum(boxes.sizes) * self.itemsize
            begins = [0, *ends.tolist()[:-1]]
            offsets = dict(zip(map(tuple, boxes.starts.tolist()), begins, strict=False))
            self._buffers[position] = offsets
        return offsets

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
        trailing_sizes = np.cumprod(extents[:, :0:-1], axis=1)[:, ::-1]
        strides = np.ones_like(extents)
        strides[:, :-1] = trailing_sizes
        offset_of_start = self.offsets(position)
        offsets = np.array([offset_of_start[tuple(start)] for start in boxes.starts.tolist()], dtype=np.intp)
        return Strided(np.full(len(offsets), region, dtype=np.intp), offsets, strides * self.itemsize, extents)

    def target_bytes(self, position: int) -> int:
        return int(self._all_for(position).sizes.sum()) * self.itemsize

    def _all_for(self, position: int) -> Boxes:
        """Return the boxes that *position* receives from all peers, even if this exchange has only some of them."""
        assert self.there is not None
        boxes = self.there.sends_of(position)
        return _with_holders(boxes, boxes.peers)


def returns(update: Ghosts) -> GhostReturns:
    """Return the exchange in which the ghosts of *update* go back to their owners."""

    def sends(position: int) -> Boxes:
        boxes = update.receives_of(position)
        return _with_holders(boxes, np.full_like(boxes.peers, position))

    def receives(position: int) -> Boxes:
        boxes = update.sends_of(position)
        return _with_holders(boxes, boxes.peers)

    return GhostReturns(update.itemsize, update.position, update.source, update.source, sends, receives, there=update)


def _with_holders(boxes: Boxes, holders: Indices) -> Boxes:
    starts = np.column_stack([holders, boxes.starts])
    return boxes._replace(starts=starts, stops=np.column_stack([holders + 1, boxes.stops]))
