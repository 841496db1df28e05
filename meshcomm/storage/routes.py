"""Routes between the blocks of a tensor and a file in row-major order: who reads or writes which bytes.

A file in row-major order is also a layout: a device that holds whole rows has one run of bytes in it. A device that
holds columns has one short run for each row. A route says which devices touch the file: those that hold the elements,
if their runs are long; otherwise the tensor is relaid first, so that each device gets long runs. Each byte is read or
written once; replicas share the work. This is pure arithmetic: nothing here opens a file or sends a message.

How a tensor is relaid. An axis `cut` gets more mesh dimensions, `extra`: those of the axes after it, which become
whole, and those along which the tensor is replicated. The axes before it stay as they are. So the new block of a
device is a slice of the elements that its group holds together, and no group waits for another one:

    [x, y] on 2 x 2, cut = 0      block of device 0    after the relayout
      0 0 0 1 1 1                   0 0 0                 0 0 0 0 0 0
      0 0 0 1 1 1                   0 0 0                 1 1 1 1 1 1
      2 2 2 3 3 3                                         2 2 2 2 2 2
      2 2 2 3 3 3                                         3 3 3 3 3 3

This is done in rounds that keep to the scratch limit: each takes `chunk` elements of each block along each axis.

New borders of the cut axis are at multiples of `grain` indices, which are whole pages of the file, or larger units of
its file system: no two devices write to the same unit. If too many devices of a node would open the file, some of them
take the blocks of `merged` consecutive devices, and the others take none.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import gcd, lcm, prod
from typing import NamedTuple

import numpy as np

from meshcomm.core._tuning import PAGE
from meshcomm.core._types import Indices, Names, Shape
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.coordinates import numbers_of, single_index, used_dims
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.machine import Machine
from meshcomm.core.layouts.partition import Cut, Interval
from meshcomm.core.layouts.specs import cut_at
from meshcomm.storage.selection import READ_OVER

MAX_UNEVEN = 8
"""Borders between the shares of a file move to whole units only if each share is at least this many times as long as
a border may move. A compromise, not measured."""

MAX_OPENERS = 16
"""Ranks of a node that read or write one array. On file systems of clusters each opened file is work for a server. A
compromise, not measured."""


class Route(NamedTuple):
    """How a tensor gets from its blocks to a file, or from a file to its blocks.

    *cut* is the axis that gets the mesh dimensions *extra* before the file is touched, or None. *moved* says whether
    the axes after it become whole, *even* whether block-cyclic axes are cut into contiguous blocks. *chunk* is the
    length of a round along each axis: of a block, or of the whole axis if that is made contiguous. The tensor may be a
    box of the array in the file, of shape *full*. Borders of the blocks along *cut* are at multiples of *grain*, and
    *merged* blocks go to one device.
    """

    layout: Layout
    shape: Shape
    itemsize: int
    cut: int | None
    extra: Names
    moved: bool
    even: bool
    chunk: Shape
    full: Shape
    grain: int = 1
    merged: int = 1

    @property
    def exchanges(self) -> bool:
        """Whether the tensor is relaid."""
        return bool(self.extra) or self.even or self.merged > 1

    @property
    def extra_blocks(self) -> int:
        """The number of blocks that the mesh dimensions *extra* make of one."""
        return prod(self.layout.mesh.dim_size(name) for name in self.extra)

    def rounds(self) -> "Iterator[Round]":
        """Yield the rounds, the same on all devices."""
        lengths = [n if self.is_made_contiguous(axis) else longest(self, axis) for axis, n in enumerate(self.shape)]
        counts = [range(-(-n // m)) for n, m in zip(lengths, self.chunk, strict=True)]
        for numbers in product(*counts):
            yield Round(self, numbers)

    def is_cyclic(self, axis: int) -> bool:
        """Return whether *axis* is block-cyclic, and some device has several runs of it."""
        return not self.layout.cut(axis, self.shape[axis]).is_consecutive

    def is_made_contiguous(self, axis: int) -> bool:
        """Return whether *axis* is block-cyclic before, and cut into contiguous blocks after."""
        return self.even and self.is_cyclic(axis)

    def gathers(self, axis: int) -> bool:
        """Return whether *axis* becomes whole."""
        return self.moved and self.cut is not None and axis > self.cut

    def owns(self, device: int) -> bool:
        """Return whether *device* touches the file for its block: the first one of those with equal blocks does.

        If mesh dimensions are `extra`, blocks differ along these.
        """
        mesh = self.layout.mesh
        coords = zip(mesh.dim_names, mesh.coords(device), strict=True)
        return all(coordinate == 0 for name, coordinate in coords if name not in self.distinct_dims)

    @property
    def distinct_dims(self) -> set[str]:
        """The mesh dimensions along which blocks differ."""
        return used_dims(self.layout) | set(self.extra)


class Round(NamedTuple):
    """One round of a route: the elements from ``numbers * chunk`` on along each axis."""

    route: Route
    numbers: tuple[int, ...]

    def shape(self) -> Shape:
        """Return the shape of the tensor that this round takes, from all blocks together."""
        return tuple(
            stop - start if self.route.is_made_contiguous(axis) else sum(self.sizes(axis))
            for axis, (start, stop) in enumerate(map(self._bounds, range(len(self.numbers)), self.route.shape))
        )

    def source(self) -> Layout:
        """Return the layout of that tensor: blocks are where they were."""
        return _source(self, id(self.route.layout.mesh))

    def target(self) -> Layout:
        """Return the layout in which devices touch the file."""
        return _target(self, id(self.route.layout.mesh))

    def local_box(self, device: int) -> Box:
        """Return the interval of the block of *device* that this round takes, along each axis."""
        return tuple(self._local_interval(axis, n) for axis, n in enumerate(self.route.layout.block_numbers(device)))

    def file_intervals(self, device: int) -> list[list[Interval]]:
        """Return the indices that *device* has in the target layout: intervals along each axis of the whole array."""
        numbers = self.route.layout.block_numbers(device)
        return [self._target_intervals(axis, number, device) for axis, number in enumerate(numbers)]

    def sizes(self, axis: int) -> list[int]:
        """Return how many elements each block has along *axis* in this round."""
        cut = self.route.layout.cut(axis, self.route.shape[axis])
        lengths = cut.lengths(np.arange(cut.blocks, dtype=np.intp)).tolist()
        return [stop - start for start, stop in (self._bounds(axis, length) for length in lengths)]

    def _bounds(self, axis: int, length: int) -> Interval:
        k, m = self.numbers[axis], self.route.chunk[axis]
        return min(k * m, length), min((k + 1) * m, length)

    def _local_interval(self, axis: int, number: int) -> Interval:
        """Return the indices within block *number* along *axis*."""
        route, n = self.route, self.route.shape[axis]
        cut = route.layout.cut(axis, n)
        if route.is_made_contiguous(axis):
            start, stop = (int(cut.before(single_index(number), end)[0]) for end in self._bounds(axis, n))
            return start, stop
        return self._bounds(axis, int(cut.lengths(single_index(number))[0]))

    def _target_intervals(self, axis: int, number: int, device: int) -> list[Interval]:
        route, n = self.route, self.route.shape[axis]
        start, stop = self._bounds(axis, n)
        if route.gathers(axis):
            return [(start, stop)] if route.is_made_contiguous(axis) else self._all_intervals(axis)
        cut = route.layout.cut(axis, n)
        if axis == route.cut and route.exchanges:
            borders, index = _borders(self), number * route.extra_blocks + self._extra_block_number(device)
            first, last = borders[index], borders[index + 1]
            if first == last:
                return []
            return (
                [(start + first, start + last)]
                if route.is_made_contiguous(axis)
                else self._intervals_between(first, last)
            )
        if route.is_made_contiguous(axis):
            first, last = Cut(stop - start, cut.blocks).interval(number)
            return [(start + first, start + last)] if first < last else []
        return cut.intervals(number, *self._local_interval(axis, number))

    def _intervals_between(self, first: int, last: int) -> list[Interval]:
        """Return the indices of the elements *first* to *last* along the cut axis of the tensor of this round."""
        axis = self.route.cut
        assert axis is not None
        cut = self.route.layout.cut(axis, self.route.shape[axis])
        offsets, intervals = list(accumulate(self.sizes(axis), initial=0)), []
        for k in range(bisect_right(offsets, first) - 1, cut.blocks):
            if offsets[k] >= last:
                break
            start, stop = max(first, offsets[k]) - offsets[k], min(last, offsets[k + 1]) - offsets[k]
            local_start = self._local_interval(axis, k)[0]
            intervals += cut.intervals(k, local_start + start, local_start + stop)
        return intervals

    def _all_intervals(self, axis: int) -> list[Interval]:
        """Return the intervals of all blocks together along *axis*, in the order of the relaid tensor."""
        cut = self.route.layout.cut(axis, self.route.shape[axis])
        if self.takes_all(axis):
            return [(0, cut.length)]
        numbers = range(cut.blocks)
        return [interval for k in numbers for interval in cut.intervals(k, *self._local_interval(axis, k))]

    def takes_all(self, axis: int) -> bool:
        """Return whether the round takes all elements of each block along *axis*."""
        return self.route.chunk[axis] >= longest(self.route, axis)

    def _extra_block_number(self, device: int) -> int:
        """Return which of the blocks along *extra* is that of *device*."""
        mesh, number = self.route.layout.mesh, 0
        coords = dict(zip(mesh.dim_names, mesh.coords(device), strict=True))
        for name in self.route.extra:
            number = number * mesh.dim_size(name) + coords[name]
        return number


@lru_cache(maxsize=64)
def _source(round_: Round, mesh_id: int) -> Layout:
    """Return `Round.source`. Equal layouts may be on different meshes; the result is on the one with id *mesh_id*."""
    axes: list[Names] = []
    for axis, names in enumerate(round_.route.layout.axes):
        if not names or round_.route.is_made_contiguous(axis) or (round_.takes_all(axis) and axis != round_.route.cut):
            axes.append(names)
        else:
            boundaries = list(accumulate(round_.sizes(axis), initial=0))
            axes.append(cut_at(tuple(names), boundaries, boundaries[-1]))
    return Layout(axes, round_.route.layout.mesh)


@lru_cache(maxsize=64)
def _target(round_: Round, mesh_id: int) -> Layout:
    route, axes = round_.route, list(round_.source().axes)
    for axis, names in enumerate(axes):
        if route.gathers(axis):
            axes[axis] = ()
        elif axis == route.cut and route.exchanges:
            borders = _borders(round_)
            axes[axis] = cut_at((*names, *route.extra), list(borders), borders[-1])
        elif route.is_made_contiguous(axis):
            axes[axis] = tuple(names)
    return Layout(axes, route.layout.mesh)


@lru_cache(maxsize=64)
def _borders(round_: Round) -> tuple[int, ...]:
    """Return where blocks begin and end along the cut axis of the tensor that this round takes."""
    route, axis = round_.route, round_.route.cut
    assert axis is not None
    n = route.shape[axis]
    cut = route.layout.cut(axis, n)
    if route.is_made_contiguous(axis):
        start, stop = round_._bounds(axis, n)
        borders = _share_borders(start, stop - start, cut.blocks * route.extra_blocks, route.grain)
    else:
        borders = [0]
        for k, size in enumerate(round_.sizes(axis)):
            first = 0 if route.is_cyclic(axis) else cut.consecutive.start(k) + round_._local_interval(axis, k)[0]
            borders += [borders[-1] + end for end in _share_borders(first, size, route.extra_blocks, route.grain)[1:]]
    blocks, merged = len(borders) - 1, route.merged
    return tuple(borders[min(-(-number // merged) * merged, blocks)] for number in range(blocks + 1))


def _share_borders(first: int, size: int, blocks: int, grain: int) -> list[int]:
    """Return the borders of *blocks* shares of *size* indices from *first* on, at multiples of *grain*.

    >>> _share_borders(10, 100, 4, 1), _share_borders(10, 100, 4, 16)
    ([0, 25, 50, 75, 100], [0, 38, 54, 86, 100])
    """
    starts = Cut(size, blocks).all_starts()
    inner_borders = [min(-(-(first + start) // grain) * grain - first, size) for start in starts[1:-1]]
    return [0, *inner_borders, size]


# -- runs -------------------------------------------------------------------------------------------------------------


def runs(intervals: Sequence[Sequence[Interval]], shape: Shape) -> tuple[Indices, Indices]:
    """Return where the runs of a block begin in an array of *shape*, and how long they are, in elements.

    The block has these *intervals* of indices along each axis. The runs are in the order of its memory.

    >>> [array.tolist() for array in runs([[(1, 3)], [(0, 2)]], (4, 5))]
    [[5, 10], [2, 2]]
    >>> [array.tolist() for array in runs([[(1, 3)], [(0, 5)]], (4, 5))]
    [[5], [10]]
    """
    inner_size, axis = 1, len(shape) - 1
    while axis >= 0 and list(intervals[axis]) == [(0, shape[axis])]:
        inner_size *= shape[axis]
        axis -= 1
    if axis < 0:
        return np.zeros(min(inner_size, 1), dtype=np.intp), np.full(min(inner_size, 1), inner_size, dtype=np.intp)
    pairs = np.array(list(intervals[axis]), dtype=np.intp).reshape(-1, 2) * inner_size
    starts, lengths = pairs[:, 0], pairs[:, 1] - pairs[:, 0]
    stride = inner_size * shape[axis]
    for outer_axis in range(axis - 1, -1, -1):
        indices = [np.arange(*interval, dtype=np.intp) for interval in intervals[outer_axis]]
        offsets = np.concatenate([np.zeros(0, dtype=np.intp), *indices]) * stride
        starts, lengths = np.add.outer(offsets, starts).ravel(), np.tile(lengths, len(offsets))
        stride *= shape[outer_axis]
    return _joined(starts[lengths > 0], lengths[lengths > 0])


def _joined(starts: Indices, lengths: Indices) -> tuple[Indices, Indices]:
    """Return the runs, with those joined that follow each other in the array."""
    ends = starts + lengths
    firsts = np.flatnonzero(np.append(True, starts[1:] != ends[:-1]))[: len(starts)]
    return starts[firsts], np.add.reduceat(lengths, firsts) if len(firsts) else lengths


# -- the choice -------------------------------------------------------------------------------------------------------


def choose_route(
    layout: Layout,
    shape: Shape,
    itemsize: int,
    limit: int,
    machine: Machine,
    *,
    full: Shape | None = None,
    staged: bool = False,
    unit: int = PAGE,
) -> Route:
    """Return the route with the lowest cost. All ranks choose alike: it depends on these arguments only.

    Parameters
    ----------
    layout, shape, itemsize: layout, shape and bytes per element of the tensor
    limit: scratch limit of a device, in bytes
    machine: cost model
    full: shape of the array in the file, of which the tensor is a box; by default the shape of the tensor
    staged: whether elements change on the way, and go through scratch even if nothing is exchanged
    unit: storage unit of the file, in bytes; new borders are at its multiples, or at those of a smaller unit

    >>> from meshcomm.core.layouts.mesh import Mesh
    >>> mesh = Mesh(range(4), {"x": 2, "y": 2})
    >>> route = choose_route(Layout([(), ("x", "y")], mesh), (1000, 1000), 8, 2**20, Machine())
    >>> route.cut, route.extra, route.chunk
    (0, ('x', 'y'), (524, 250))
    """
    return _choose_cached_route(
        layout, (shape, full or shape), itemsize, (limit, staged, unit, id(layout.mesh)), machine
    )


@lru_cache(maxsize=1024)  # checkpoints have many small arrays of few shapes
def _choose_cached_route(
    layout: Layout, shapes: tuple[Shape, Shape], itemsize: int, options: tuple[int, bool, int, int], machine: Machine
) -> Route:
    """Return `choose_route`. *shapes* are those of the tensor and of the array in the file.

    *options* are the limit, whether the route is staged, the unit, and the id of the mesh: equal layouts may be on
    different meshes.
    """
    (shape, full), (limit, staged, unit, _) = shapes, options
    free_dims = tuple(name for name, size in layout.mesh.dims if size > 1 and name not in used_dims(layout))
    plain_route = Route(layout, shape, itemsize, None, (), False, False, shape, full)
    routes = []
    for even in (False, True) if any(map(plain_route.is_cyclic, range(len(shape)))) else (False,):
        routes.append(plain_route._replace(even=even))
        for axis in range(len(shape)):
            later_dims = tuple(name for names in layout.axes[axis + 1 :] for name in names)
            if free_dims:
                routes.append(Route(layout, shape, itemsize, axis, free_dims, False, even, shape, full))
            if later_dims:
                routes.append(Route(layout, shape, itemsize, axis, later_dims + free_dims, True, even, shape, full))
    best_route = _with_few_openers(min(routes, key=lambda route: _seconds(route, machine)), machine)
    best_route = best_route._replace(grain=_grain(best_route, unit, limit))
    return (
        best_route._replace(chunk=_chunk(best_route, limit))
        if best_route.exchanges or staged
        else best_route._replace(chunk=_whole_chunk(best_route))
    )


def _grain(route: Route, unit: int, limit: int) -> int:
    """Return how many indices along the cut axis are whole units of the file; 1 if shares would differ too much.

    The unit is halved, down to a page, until neither the shares nor their parts in a round differ too much.
    """
    if route.cut is None or route.is_cyclic(route.cut):
        return 1
    later_axes = range(route.cut + 1, len(route.shape))
    if not all(route.gathers(axis) or not route.layout.axes[axis] for axis in later_axes):
        return 1
    row_bytes = prod(route.full[axis] for axis in later_axes) * route.itemsize
    share_length = longest(route, route.cut) // route.extra_blocks
    while unit > PAGE and lcm(unit, row_bytes) * MAX_UNEVEN > min(share_length * row_bytes, limit // route.merged):
        unit //= 2
    grain = unit // gcd(unit, row_bytes)
    return grain if grain * MAX_UNEVEN <= share_length else 1


def _with_few_openers(route: Route, machine: Machine) -> Route:
    """Return *route* with blocks merged, so that at most `MAX_OPENERS` devices of a node touch the file.

    Blocks are merged along the cut axis, or else the first sharded axis; not along an axis that stays block-cyclic.
    """
    mesh = route.layout.mesh
    if mesh.size <= MAX_OPENERS:
        return route
    sharded = [axis for axis, blocks in enumerate(route.layout.shape) if blocks > 1]
    axis = route.cut if route.cut is not None else sharded[0] if sharded else None
    if axis is None or (route.is_cyclic(axis) and not route.even):
        return route
    devices = np.arange(mesh.size, dtype=np.intp)
    nodes = machine.node_of(np.array(mesh.ranks, dtype=np.intp))
    coordinates = {name: devices // mesh.stride(name) % size for name, size in mesh.dims}
    owners = np.ones(mesh.size, dtype=bool)
    for name in set(mesh.dim_names) - route.distinct_dims:
        owners &= coordinates[name] == 0
    block_numbers = numbers_of(route.layout, devices)[:, axis]
    for name in route.extra:
        block_numbers = block_numbers * mesh.dim_size(name) + coordinates[name]
    merged = 1
    while (
        merged <= block_numbers.max()
        and np.bincount(nodes[owners & (block_numbers % merged == 0)]).max() > MAX_OPENERS
    ):
        merged *= 2
    return route if merged == 1 else route._replace(cut=axis, merged=merged)


def longest(route: Route, axis: int) -> int:
    """Return the length of the longest block along *axis*, before the relayout."""
    return int(route.layout.cut(axis, route.shape[axis]).longest)


def _target_lengths(route: Route) -> list[int]:
    """Return the lengths of the longest block that touches the file."""
    lengths = []
    for axis, n in enumerate(route.shape):
        blocks = route.extra_blocks if axis == route.cut else 1
        if route.gathers(axis):
            lengths.append(n)
        elif route.is_made_contiguous(axis):
            lengths.append(-(-n // (blocks * route.layout.shape[axis])))
        else:
            lengths.append(-(-longest(route, axis) // blocks))
        if axis == route.cut:
            lengths[-1] = min((lengths[-1] + route.grain - 1) * route.merged, n)
    return lengths


def _seconds(route: Route, machine: Machine) -> float:
    """Return the seconds that the slowest device takes."""
    size, calls, is_whole, read_size = 1, 1, True, 1
    for axis, length in reversed(list(enumerate(_target_lengths(route)))):
        size, n = size * length, route.full[axis]
        if not is_whole:
            calls, read_size = calls * length, read_size * length
        elif length == route.shape[axis] and (n - length) * read_size * route.itemsize <= READ_OVER:
            read_size *= n  # the elements between are read, too
        else:
            is_whole, read_size = length == n, read_size * length
            if not is_whole and not route.even:
                calls = route.layout.cut(axis, route.shape[axis]).runs_of(length)
    seconds = calls * machine.alpha_disk + read_size * route.itemsize * machine.beta_disk
    return seconds + 2 * size * route.itemsize * machine.gamma if route.exchanges else seconds


def _max_spanned_blocks(route: Route) -> int:
    """Return the largest number of blocks that one merged block overlaps."""
    blocks, merged = route.extra_blocks, route.merged
    return 1 if blocks % merged == 0 else merged // blocks if merged % blocks == 0 else merged // blocks + 2


def _whole_chunk(route: Route) -> Shape:
    """Return the length that a round takes along each axis, if there is only one."""
    return tuple(
        max(1, n if route.is_made_contiguous(axis) else longest(route, axis)) for axis, n in enumerate(route.shape)
    )


def _chunk(route: Route, limit: int) -> Shape:
    """Return the length that a round takes along each axis, so that its block has at most *limit* bytes."""
    chunk, lengths = list(_whole_chunk(route)), [max(1, n) for n in _target_lengths(route)]
    for axis in range(len(chunk)):
        size = prod(lengths[axis:]) * route.itemsize
        if size <= limit:
            break
        length = max(1, limit * lengths[axis] // size)
        if axis == route.cut:
            share_length, spanned_blocks = length // route.merged - route.grain + 1, _max_spanned_blocks(route)
            length = share_length * route.extra_blocks if share_length > 0 else max(1, length // spanned_blocks)
            length = length // route.grain * route.grain or length
            limit = max(1, limit // spanned_blocks)
        if route.is_made_contiguous(axis):
            cut = route.layout.cut(axis, route.shape[axis])
            length = max(1, length * cut.blocks // cut.period) * cut.period  # so that each round begins with device 0
        chunk[axis] = min(chunk[axis], length)
        lengths[axis] = 1
        if chunk[axis] > 1:
            break
    return tuple(chunk)
