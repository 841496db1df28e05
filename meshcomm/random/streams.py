"""Streams of random numbers, one for each call and tile: each rank draws its own block of one global array.

A global array is cut into tiles of at most 16,384 elements. Their shape depends on the shape of the array, never on
its layout. Each tile has its own stream: NumPy's Philox with a key from the seed, and a counter that begins at

    word 0: 0, then the step        word 1: number of the tile      word 2: number of the call      word 3: 0

Within a tile, NumPy's own methods draw the elements in C order. So a rank can make any tile by itself, and all ranks
that need a tile make the same one. A rank draws the tiles that overlap its block, and keeps the elements of its block.

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
from meshcomm.core.layouts.partition import Span, extent_of, indices_within

MAX_TILE_ELEMENTS = 1 << 14
"""Most elements of a tile. It is no setting: all numbers depend on it. A tile of float64 fits into the L2 cache."""

Draw: TypeAlias = Callable[[NumpyGenerator, tuple[slice, ...], Array | None], Array | None]
"""A function that draws the elements of slices of the global array, into the last argument if there is one."""


class Streams:
    """The streams of one seed."""

    def __init__(self, seeds: SeedSequence) -> None:
        self._bit_generator = Philox(key=seeds.generate_state(2, np.uint64))
        self._start_state = self._bit_generator.state  # before any draw: NumPy keeps no bits of one
        self._generator = NumpyGenerator(self._bit_generator)

    def at(self, call: int, tile: int = 0) -> NumpyGenerator:
        """Return NumPy's generator at the start of a stream: always the same object, which is much faster."""
        self._start_state["state"]["counter"][1:3] = tile, call
        self._bit_generator.state = self._start_state
        return self._generator


def tile_sides(shape: Sequence[int], max_elements: int = MAX_TILE_ELEMENTS) -> Shape:
    """Return the lengths of the tiles of an array of *shape*, each with at most *max_elements* elements.

    Tiles are about equally long along each axis, so that cuts along any axis split few of them. Each step doubles the
    shortest side that can still grow; if several are equally short, the last one.

    >>> tile_sides((10**9,)), tile_sides((1000, 1000)), tile_sides((500, 500, 500)), tile_sides((10**6, 3))
    ((16384,), (128, 128), (16, 32, 32), (4096, 3))
    """
    sides = [1] * len(shape)
    while growable_axes := [axis for axis, (side, n) in enumerate(zip(sides, shape, strict=True)) if side < n]:
        axis = min(reversed(growable_axes), key=lambda a: sides[a])
        longer_side = min(2 * sides[axis], shape[axis])
        if prod(sides) // sides[axis] * longer_side > max_elements:
            break
        sides[axis] = longer_side
    return tuple(sides)


class _TilePart(NamedTuple):
    """The intersection of a tile and a block along an axis."""

    number: int  # of the tile along the axis
    global_slice: slice  # the tile, in the global axis
    tile_selection: slice | Indices  # the elements of the block, in the tile
    block_slice: slice  # the same elements, in the block


def _tile_parts(span: Span, side: int, n: int) -> Iterator[_TilePart]:
    """Yield the parts of tiles in a block: *span* of an axis of length *n*, with tiles of *side* elements.

    >>> [(part.number, part.tile_selection, part.block_slice) for part in _tile_parts((3, 5), 4, 9)]
    [(0, slice(3, 4, None), slice(0, 1, None)), (1, slice(0, 1, None), slice(1, 2, None))]
    """
    extent_start, extent_stop = extent_of(span)
    for number in range(extent_start // side, -(-extent_stop // side)):
        tile_start, tile_stop = number * side, min(number * side + side, n)
        tile_selection, block_slice = indices_within(span, tile_start, tile_stop)
        if block_slice.start < block_slice.stop:
            yield _TilePart(number, slice(tile_start, tile_stop), tile_selection, block_slice)


class Tiles(NamedTuple):
    """The tiles of one call."""

    shape: Shape  # of the global array
    sides: Shape  # of the tiles, from `tile_sides`
    stream: Callable[[int], NumpyGenerator]  # returns the stream of the tile with this number

    def fill(self, block: Array, box: Box, draw: Draw) -> None:
        """Fill the *block* of a rank, which is *box* of the global array: *draw* draws the elements of each tile."""
        if not block.size:
            return
        axis_arguments = list(zip(box, self.sides, self.shape, strict=True))
        tile_counts = [-(-n // side) for _, side, n in axis_arguments]
        for parts in product(*[list(_tile_parts(*arguments)) for arguments in axis_arguments]):
            tile_number = 0
            for part, tile_count in zip(parts, tile_counts, strict=True):
                tile_number = tile_number * tile_count + part.number
            block_index: Slices = (..., *[part.block_slice for part in parts])
            target, global_slices = block[block_index], tuple([part.global_slice for part in parts])
            is_whole_tile = target.shape == tuple([slice_.stop - slice_.start for slice_ in global_slices])
            values = draw(
                self.stream(tile_number),
                global_slices,
                target if is_whole_tile and target.flags.c_contiguous else None,
            )
            if values is not None:
                for axis, part in enumerate(() if is_whole_tile else parts):
                    values = values[(slice(None),) * axis + (part.tile_selection,)]
                target[...] = values
