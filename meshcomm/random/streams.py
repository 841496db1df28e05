"""Streams of random numbers, one for each call and tile: each rank draws its own block of one global array.

A global array is cut into tiles of at most 16,384 elements. Their shape depends on the shape of the array, never on
its layout. Each tile has its own stream: NumPy's Philox with a key from the seed, and a counter that begins at

    word 0: 0, which counts on      word 1: number of the tile      word 2: number of the call      word 3: 0

Within a tile, NumPy's own methods draw the elements in C order. So a rank can make any tile by itself, and all ranks
that need a tile make the same one. A rank draws the tiles that overlap its block, and keeps what is its own.

No two streams share a counter, unless a tile takes 2**64 steps of it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator as NumpyGenerator
from numpy.random import Philox, SeedSequence

from meshcomm.core._types import Array, Indices, Shape, Slices
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.partition import Span, extent_of, held_within

TILE = 1 << 14
"""Elements of a tile at most. It is no setting: all numbers depend on it. A tile of doubles fits into the L2 cache."""

Draw: TypeAlias = Callable[[NumpyGenerator, tuple[slice, ...], Array | None], Array | None]
"""A function that draws the elements of slices of the global array, into the last argument if there is one."""


class Streams:
    """The streams of one seed."""

    def __init__(self, seeds: SeedSequence) -> None:
        self._bits = Philox(key=seeds.generate_state(2, np.uint64))
        self._start = self._bits.state  # nothing is buffered
        self._generator = NumpyGenerator(self._bits)

    def at(self, call: int, tile: int = 0) -> NumpyGenerator:
        """Return NumPy's generator at the start of a stream: the same object each time, as that is much faster."""
        self._start["state"]["counter"][1:3] = tile, call
        self._bits.state = self._start
        return self._generator


def tile_sides(shape: Sequence[int], elements: int = TILE) -> Shape:
    """Return the lengths of the tiles of an array of *shape*, each with at most so many *elements*.

    Tiles are as long on each axis, so that cuts along any axis split few of them. The shortest side is doubled, the
    last one of several, until it is the whole axis.

    >>> tile_sides((10**9,)), tile_sides((1000, 1000)), tile_sides((500, 500, 500)), tile_sides((10**6, 3))
    ((16384,), (128, 128), (16, 32, 32), (4096, 3))
    """
    sides = [1] * len(shape)
    while short := [axis for axis, (side, n) in enumerate(zip(sides, shape, strict=True)) if side < n]:
        axis = min(reversed(short), key=lambda a: sides[a])
        longer = min(2 * sides[axis], shape[axis])
        if prod(sides) // sides[axis] * longer > elements:
            break
        sides[axis] = longer
    return tuple(sides)


class _TilePart(NamedTuple):
    """The intersection of a tile and a block along an axis."""

    number: int  # of the tile along the axis
    drawn: slice  # of the global axis
    selected: slice | Indices  # of the drawn elements
    local: slice  # of the block


def _tile_parts(span: Span, side: int, n: int) -> Iterator[_TilePart]:
    """Yield the parts of tiles in a block: *span* of an axis of length *n*, with tiles of *side* elements.

    >>> [(piece.number, piece.selected, piece.local) for piece in _tile_parts((3, 5), 4, 9)]
    [(0, slice(3, 4, None), slice(0, 1, None)), (1, slice(0, 1, None), slice(1, 2, None))]
    """
    first, last = extent_of(span)
    for number in range(first // side, -(-last // side)):
        begin, end = number * side, min(number * side + side, n)
        of_drawn, local = held_within(span, begin, end)
        if local.start < local.stop:
            yield _TilePart(number, slice(begin, end), of_drawn, local)


class Tiles(NamedTuple):
    """The tiles of one call."""

    shape: Shape  # of the global array
    sides: Shape  # of the tiles, from `tile_sides`
    stream: Callable[[int], NumpyGenerator]  # returns the stream of the tile with this number

    def fill(self, block: Array, box: Box, draw: Draw) -> None:
        """Fill the *block* of a rank, which is *box*, with the draws of *draw* for each tile."""
        if not block.size:
            return
        axes = list(zip(box, self.sides, self.shape, strict=True))
        counts = [-(-n // side) for _, side, n in axes]
        for pieces in product(*[list(_tile_parts(*axis)) for axis in axes]):
            number = 0
            for piece, count in zip(pieces, counts, strict=True):
                number = number * count + piece.number
            local: Slices = (..., *[piece.local for piece in pieces])
            target, drawn = block[local], tuple([piece.drawn for piece in pieces])
            whole = target.shape == tuple([interval.stop - interval.start for interval in drawn])
            values = draw(self.stream(number), drawn, target if whole and target.flags.c_contiguous else None)
            if values is not None:
                for axis, piece in enumerate(() if whole else pieces):
                    values = values[(slice(None),) * axis + (piece.selected,)]
                target[...] = values
