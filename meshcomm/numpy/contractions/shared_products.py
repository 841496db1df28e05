"""Products in which each rank multiplies straight from the blocks of the others on its node, without a copy.

They serve a planned contraction in which the result stays: an operand that would move is read in shared memory. There
are no panels, as nothing takes memory. The products of the pieces are added up in the order of the pieces along the
summed index, the same on all ranks. They pay for blocks with pieces that are large enough for BLAS.
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
"""Bytes that would move to a rank. From this size on, ranks of a node multiply straight from each other's blocks. A
compromise: smaller pieces are multiplied faster after one exchange."""

MIN_SHARED = 256
"""Elements of an axis of a block. Blocks that are shorter along an axis are not multiplied in shared memory: BLAS
needs more work in one call. Measured with 4096 x 4096 in pieces of the summed axis: 128 elements have 0.75 of the
speed of one product, 256 have 0.88, 512 have 0.96."""

Order: TypeAlias = Shape | None
"""For each axis of a block, its number among the axes in memory order; None for a block that may have gaps."""

Spans: TypeAlias = dict[str, tuple[int, int]]
"""For each index, the interval of a piece."""

DeviceBlocks: TypeAlias = list[list[Bytes]]
"""For each device, its blocks in shared memory."""


class _SharedPiece(NamedTuple):
    """The part of a device's block that this device multiplies.

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
    """Return whether all operands that move can be read in shared memory, in pieces that are large enough.

    The answer is the same on all ranks. *orders*: for each operand, the order of the axes of its blocks in memory.
    """
    if not contraction.keeps_result or len(contraction.operands) < 2:
        return False
    moving_bytes = 0
    for number in moving_operands(contraction):
        operand = contraction.operands[number]
        target = _operand_layout(contraction, operand)
        if orders[number] is None:
            return False
        for axis, n in enumerate(operand.shape):
            cut, target_cut = operand.layout.cut(axis, n), target.cut(axis, n)
            if operand.layout.axes[axis] == target.axes[axis]:
                continue
            if not (cut.is_consecutive and target_cut.is_consecutive):
                return False
            if cut.shortest < MIN_SHARED:
                return False
        moving_bytes += target.largest_block(operand.shape) * operand.dtype.itemsize
    return moving_bytes >= SHARED_FROM and 0 not in contraction.lengths.values()


def _operand_layout(contraction: Contraction, operand: Factor) -> Layout:
    """Return the layout of the blocks of an operand that devices multiply."""
    cut = dict(contraction.cut)
    return Layout([cut[index] for index in operand.indices], contraction.mesh)


def moving_operands(contraction: Contraction) -> list[int]:
    """Return the numbers of the operands that move: devices multiply elements that they do not hold."""
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
        shared = self._shared.begin([as_bytes(self._in_memory_order(n, blocks[n])) for n in self._moving], self._sizes)
        if shared is None:
            return None
        result = contraction.result
        result_block = new_block(result.layout.block_shape(result.shape, self._device), result.dtype)
        written_spans = set[tuple[tuple[int, int], ...]]()
        a, b = contraction.operands
        for a_piece, b_piece in product(*self._pieces):
            spans = _common_spans(a.indices, a_piece, b.indices, b_piece)
            if spans is None:
                continue
            operands = [
                IndexedBlock(
                    self._piece_view(number, piece, spans, shared, blocks), contraction.operands[number].indices
                )
                for number, piece in enumerate((a_piece, b_piece))
            ]
            target = tuple(slice(*spans[index]) for index in result.indices)
            key = tuple(spans[index] for index in result.indices)
            multiply(
                operands,
                IndexedBlock(result_block[target], result.indices),
                accumulate=key in written_spans,
                limit=limit,
            )
            written_spans.add(key)
        self._shared.end()
        return result_block

    def _in_memory_order(self, number: int, block: Array) -> Array:
        order = self._orders[number]
        assert order is not None
        return block.transpose(np.argsort(order))

    def _piece_view(
        self, number: int, piece: _SharedPiece, spans: Spans, device_blocks: DeviceBlocks, blocks: Sequence[Array]
    ) -> Array:
        """Return the view of a piece that this device multiplies: the elements in *spans* of the indices."""
        is_local = piece.device == self._device
        block = blocks[number] if is_local else self._shared_block(number, piece.device, device_blocks)
        index: Slices = (*piece.slices, ...)
        piece_block = block[index]
        index_starts = zip(self._contraction.operands[number].indices, piece.starts, strict=True)
        return piece_block[tuple(slice(spans[i][0] - start, spans[i][1] - start) for i, start in index_starts)]

    def _shared_block(self, number: int, device: int, device_blocks: DeviceBlocks) -> Array:
        """Return the block of an operand of another device, in shared memory."""
        order, shape = self._orders[number], self._shapes[device][number]
        assert order is not None
        in_memory = [shape[order.index(axis)] for axis in range(len(shape))]
        data = device_blocks[device][self._moving.index(number)]
        return data.view(self._contraction.operands[number].dtype).reshape(in_memory).transpose(order)

    def _pieces_of(self, operand: Factor) -> list[_SharedPiece]:
        device, mesh, layout = self._device, self._contraction.mesh, operand.layout
        target = _operand_layout(self._contraction, operand)
        numbers, box = layout.block_numbers(device), target.block_box(operand.shape, device)
        pieces_by_axis: list[list[tuple[int, slice, int, int]]] = []  # of each axis: block, slice of it, start, stop
        for axis, n in enumerate(operand.shape):
            cut, span = layout.cut(axis, n), box[axis]
            if layout.axes[axis] == target.axes[axis] or not cut.is_consecutive:
                length = target.block_shape(operand.shape, device)[axis]
                pieces_by_axis.append([(numbers[axis], slice(0, length), 0, length)])
                continue
            begin, end = span[0], span[1]
            axis_pieces = []
            for number in cut.overlapping((begin, end)):
                start, stop = max(begin, cut.start(number)), min(end, cut.start(number + 1))
                if start < stop:
                    origin = cut.start(number)
                    axis_pieces.append((number, slice(start - origin, stop - origin), start - begin, stop - begin))
            pieces_by_axis.append(axis_pieces)
        pieces = []
        for combination in product(*pieces_by_axis):
            coordinates = coordinates_of(mesh, device)
            for (number, *_), names in zip(combination, layout.axes, strict=True):
                for name, coordinate in unravel(mesh, names, np.array([number], dtype=np.intp)):
                    coordinates[name] = int(coordinate[0])
            owner = sum(mesh.stride(name) * coordinate for name, coordinate in coordinates.items())
            slices, starts = (
                tuple(axis_piece[1] for axis_piece in combination),
                tuple(axis_piece[2] for axis_piece in combination),
            )
            pieces.append(_SharedPiece(owner, slices, starts, tuple(axis_piece[3] for axis_piece in combination)))
        return pieces


def _common_spans(a: str, a_piece: _SharedPiece, b: str, b_piece: _SharedPiece) -> Spans | None:
    """Return the interval of each index that two pieces have in common; None if one interval is empty."""
    spans = dict(zip(a, zip(a_piece.starts, a_piece.stops, strict=True), strict=True))
    for index, start, stop in zip(b, b_piece.starts, b_piece.stops, strict=True):
        if index in spans:
            start, stop = max(start, spans[index][0]), min(stop, spans[index][1])
        spans[index] = start, stop
    return None if any(start >= stop for start, stop in spans.values()) else spans
