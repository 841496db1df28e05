"""Products in which each rank multiplies straight from the blocks of the others on its node, without a copy.

It is the contraction of a plan in which the result stays: an operand that would move is read where it is. There are no
panels, as nothing takes memory. The products of the pieces are added up in the order of the pieces along the summed
index, the same on all ranks. It is for blocks in which BLAS finds enough to do in each piece.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.exchanges import SharedBlocks
from meshcomm.core._types import Array, Bytes, Shape, Slices
from meshcomm.core.layouts.coordinates import coordinates_of, unravel
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import as_bytes, new_block
from meshcomm.numpy.contractions.contraction import Contraction, Factor, local_limit, only_cuts
from meshcomm.numpy.contractions.local_products import IndexedBlock, multiply

SHARED_FROM = 2**20
"""Bytes that would move to a rank. From this size on, ranks of a node multiply from each other's blocks where they
are. A compromise: pieces of less are multiplied faster after one exchange."""

MIN_SHARED = 256
"""Elements of an axis of a block. Blocks that are shorter along an axis are not multiplied where they are: BLAS needs
more to do in one call. Measured with 4096 x 4096 in pieces of the summed axis: 128 elements have 0.75 of the speed of
one product, 256 have 0.88, 512 have 0.96."""

Order: TypeAlias = Shape | None
"""Which axis of a contiguous block in memory each axis is; None for a block that may have gaps."""

Spans: TypeAlias = dict[str, tuple[int, int]]
"""For each index, the interval of a piece."""

DeviceBlocks: TypeAlias = list[list[Bytes]]
"""For each device, its blocks in shared memory."""


class _SharedPiece(NamedTuple):
    """What this device multiplies of the block of a device.

    Parameters
    ----------
    device: device that has the block
    slices: slice of that block
    starts, stops: interval along each axis of the slice of the operand that this device multiplies
    """

    device: int
    slices: tuple[slice, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]


def can_share(contraction: Contraction, orders: tuple[Order, ...]) -> bool:
    """Return whether all operands that move can be read where they are, in pieces that are worth it.

    It is the same on all ranks. *orders* are those of the axes of blocks in memory; None is that of no whole block.
    """
    if not contraction.keeps_result or len(contraction.operands) < 2:
        return False
    moving = 0
    for number in moving_operands(contraction):
        operand = contraction.operands[number]
        target = _operand_layout(contraction, operand)
        if orders[number] is None:
            return False
        for axis, n in enumerate(operand.shape):
            cut, there = operand.layout.cut(axis, n), target.cut(axis, n)
            if operand.layout.axes[axis] == target.axes[axis]:
                continue
            if not (cut.is_consecutive and there.is_consecutive):
                return False
            if cut.shortest < MIN_SHARED:
                return False
        moving += target.largest_block(operand.shape) * operand.dtype.itemsize
    return moving >= SHARED_FROM and 0 not in contraction.lengths.values()


def _operand_layout(contraction: Contraction, operand: Factor) -> Layout:
    """Return the layout of what devices multiply of an operand."""
    cut = dict(contraction.cut)
    return Layout([cut[index] for index in operand.indices], contraction.mesh)


def moving_operands(contraction: Contraction) -> list[int]:
    """Return the operands of which devices need more than they have."""
    plans = (
        (n, contraction.relayout_plan(operand, contraction.first)) for n, operand in enumerate(contraction.operands)
    )
    return [number for number, plan in plans if plan is not None and not only_cuts(plan)]


class SharedProduct:
    """A contraction for which `can_share`, ready to run on a *device* of a mesh on one node."""

    def __init__(self, contraction: Contraction, orders: tuple[Order, ...], device: int, shared: SharedBlocks) -> None:
        self._contraction, self._orders, self._device, self._shared = contraction, orders, device, shared
        self._moving = moving_operands(contraction)
        self._pieces = [self._pieces_of(operand) for operand in contraction.operands]
        devices = range(contraction.mesh.size)
        self._shapes = [[f.layout.block_shape(f.shape, device) for f in contraction.operands] for device in devices]
        itemsizes = [operand.dtype.itemsize for operand in contraction.operands]
        self._sizes = [[prod(shapes[n]) * itemsizes[n] for n in self._moving] for shapes in self._shapes]

    def __call__(self, *blocks: Array) -> Array | None:
        """Return the block of the result; None if a block of some rank is not in shared memory. Collective."""
        contraction, limit = self._contraction, local_limit(self._contraction.scratch_limit)
        of_devices = self._shared.begin([as_bytes(self._in_memory(n, blocks[n])) for n in self._moving], self._sizes)
        if of_devices is None:
            return None
        result = contraction.result
        into = new_block(result.layout.block_shape(result.shape, self._device), result.dtype)
        written = set[tuple[tuple[int, int], ...]]()
        a, b = contraction.operands
        for one, other in product(*self._pieces):
            spans = _common_spans(a.indices, one, b.indices, other)
            if spans is None:
                continue
            operands = [
                IndexedBlock(
                    self._piece_view(number, piece, spans, of_devices, blocks), contraction.operands[number].indices
                )
                for number, piece in enumerate((one, other))
            ]
            target = tuple(slice(*spans[index]) for index in result.indices)
            key = tuple(spans[index] for index in result.indices)
            multiply(operands, IndexedBlock(into[target], result.indices), accumulate=key in written, limit=limit)
            written.add(key)
        self._shared.end()
        return into

    def _in_memory(self, number: int, block: Array) -> Array:
        order = self._orders[number]
        assert order is not None
        return block.transpose(np.argsort(order))

    def _piece_view(
        self, number: int, piece: _SharedPiece, spans: Spans, of_devices: DeviceBlocks, blocks: Sequence[Array]
    ) -> Array:
        """Return the view of what this device multiplies of a piece: *spans* of the indices."""
        is_local = piece.device == self._device
        block = blocks[number] if is_local else self._shared_block(number, piece.device, of_devices)
        index: Slices = (*piece.slices, ...)
        piece_block = block[index]
        within = zip(self._contraction.operands[number].indices, piece.starts, strict=True)
        return piece_block[tuple(slice(spans[i][0] - start, spans[i][1] - start) for i, start in within)]

    def _shared_block(self, number: int, device: int, of_devices: DeviceBlocks) -> Array:
        """Return the block of an operand of another device, in shared memory."""
        order, shape = self._orders[number], self._shapes[device][number]
        assert order is not None
        in_memory = [shape[order.index(axis)] for axis in range(len(shape))]
        data = of_devices[device][self._moving.index(number)]
        return data.view(self._contraction.operands[number].dtype).reshape(in_memory).transpose(order)

    def _pieces_of(self, operand: Factor) -> list[_SharedPiece]:
        device, mesh, layout = self._device, self._contraction.mesh, operand.layout
        target = _operand_layout(self._contraction, operand)
        numbers, box = layout.block_numbers(device), target.block_box(operand.shape, device)
        axes: list[list[tuple[int, slice, int, int]]] = []  # of each axis: block, what is taken of it, where that goes
        for axis, n in enumerate(operand.shape):
            cut, span = layout.cut(axis, n), box[axis]
            if layout.axes[axis] == target.axes[axis] or not cut.is_consecutive:
                length = target.block_shape(operand.shape, device)[axis]
                axes.append([(numbers[axis], slice(0, length), 0, length)])
                continue
            begin, end = span[0], span[1]
            parts = []
            for number in cut.overlapping((begin, end)):
                start, stop = max(begin, cut.start(number)), min(end, cut.start(number + 1))
                if start < stop:
                    first = cut.start(number)
                    parts.append((number, slice(start - first, stop - first), start - begin, stop - begin))
            axes.append(parts)
        pieces = []
        for row in product(*axes):
            coordinates = coordinates_of(mesh, device)
            for (number, *_), names in zip(row, layout.axes, strict=True):
                for name, where in unravel(mesh, names, np.array([number], dtype=np.intp)):
                    coordinates[name] = int(where[0])
            owner = sum(mesh.stride(name) * where for name, where in coordinates.items())
            slices, starts = tuple(part[1] for part in row), tuple(part[2] for part in row)
            pieces.append(_SharedPiece(owner, slices, starts, tuple(part[3] for part in row)))
        return pieces


def _common_spans(a: str, one: _SharedPiece, b: str, other: _SharedPiece) -> Spans | None:
    """Return the elements of each index that two pieces have in common; None if there are none of some index."""
    spans = dict(zip(a, zip(one.starts, one.stops, strict=True), strict=True))
    for index, start, stop in zip(b, other.starts, other.stops, strict=True):
        if index in spans:
            start, stop = max(start, spans[index][0]), min(stop, spans[index][1])
        spans[index] = start, stop
    return None if any(start >= stop for start, stop in spans.values()) else spans
