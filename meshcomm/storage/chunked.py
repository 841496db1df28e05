"""Arrays in chunks, which may be compressed: each rank encodes whole chunks, and writes them to where they go.

Where a chunk goes is known when its bytes are. So it is done in rounds: a round relays out some chunks for each rank,
the ranks encode theirs side by side, the first rank says where each goes, and all write.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.make import on_device
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, Bytes, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.partition import Cut
from meshcomm.storage.codecs import encoded
from meshcomm.storage.meshes import cut_along
from meshcomm.storage.stored import Chunking, Stored
from meshcomm.storage.transfer import OpenFiles

CHUNK = 2**20
"""Bytes of a chunk that is compressed, by default. A compromise: readers take whole chunks, and many small ones are
slow."""

EncodedChunk: TypeAlias = tuple[Shape, int]
"""The numbers of a chunk along each axis, and its bytes."""

ChunkLocation: TypeAlias = tuple[str, int]
"""The file of a chunk, and where it begins there."""


def default_chunk(shape: Shape, itemsize: int, nbytes: int | None = None) -> Shape:
    """Return the shape of chunks of about *nbytes*, by default `CHUNK`: whole rows, unless one has more.

    >>> default_chunk((1000, 1000), 8), default_chunk((3, 2**20), 8), default_chunk((0, 5), 4)
    ((131, 1000), (1, 131072), (1, 5))
    """
    chunk, left = [], max(1, (nbytes or CHUNK) // max(1, itemsize))
    for n in reversed(shape):
        chunk.append(max(1, min(n, left)))
        left //= chunk[-1]
    return tuple(reversed(chunk))


def write_chunks(
    tensor: DTensor,
    stored: Stored,
    opened: OpenFiles,
    limit: int | None,
    placed: Callable[[list[EncodedChunk]], list[ChunkLocation]],
    *,
    first: Shape | None = None,
) -> None:
    """Write the chunks of *tensor*. Collective over its mesh, and over the ranks that *placed* needs.

    Parameters
    ----------
    tensor: tensor to write
    stored: array in the file, with its chunks
    opened: open files
    limit: scratch limit of a rank, in bytes; one chunk and its encoded bytes always fit
    placed: function that returns the locations of the chunks of this rank
    first: index of the first chunk of *tensor* along each axis, if the tensor is a box of the array
    """
    chunks = stored.chunks
    assert chunks is not None
    grid = tuple(-(-n // length) for n, length in zip(tensor.shape, chunks.shape, strict=True))
    axis = max(range(len(grid)), key=lambda axis: grid[axis])  # the first of those with the most chunks
    max_chunks = (limit or DEFAULT_SCRATCH) // max(1, 2 * prod(chunks.shape) * tensor.dtype.itemsize)
    for box in rounds(grid, axis, tensor.mesh.size, max(1, max_chunks)):
        encoded_chunks: list[tuple[Shape, Bytes]] = []
        with opened.trying():
            encoded_chunks = list(on_device(tensor.mesh, partial(_encoded_of, tensor, chunks, box, axis)) or ())
        if first is not None:
            encoded_chunks = [
                (tuple(f + i for f, i in zip(first, index, strict=True)), data) for index, data in encoded_chunks
            ]
        where = placed([(index, data.nbytes) for index, data in encoded_chunks])
        for (_, data), (name, offset) in zip(encoded_chunks, where, strict=True):
            if opened.error is None:
                with opened.trying():
                    opened.put(name, offset, data)


def rounds(grid: Shape, axis: int, size: int, max_chunks: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield where each round begins in a *grid* of chunks, and how many it has along each axis.

    The chunks of a round are shared along *axis* by *size* ranks, each with at most *max_chunks*, or one.

    >>> list(rounds((5, 3), 0, 2, 3))
    [((0, 0), (2, 3)), ((2, 0), (2, 3)), ((4, 0), (1, 3))]
    >>> list(rounds((2, 3), 1, 4, 1))
    [((0, 0), (1, 3)), ((1, 0), (1, 3))]
    """
    steps, left = list(grid), max_chunks
    for other in reversed(range(len(grid))):
        if other != axis:
            steps[other] = max(1, min(grid[other], left))
            left //= steps[other]
    steps[axis] = max(1, left) * size
    for start in product(*(range(0, n, step) for n, step in zip(grid, steps, strict=True))):
        yield start, tuple(min(step, n - s) for s, n, step in zip(start, grid, steps, strict=True))


def _encoded_of(
    tensor: DTensor, chunks: Chunking, box: tuple[Shape, Shape], axis: int, device: int
) -> Iterator[tuple[Shape, Bytes]]:
    """Yield the chunks of this device in a round: their numbers, and their bytes. Collective over the mesh."""
    start, steps = box
    begins = [s * length for s, length in zip(start, chunks.shape, strict=True)]
    ends = [
        min((s + step) * length, n)
        for s, step, length, n in zip(start, steps, chunks.shape, tensor.shape, strict=True)
    ]
    piece = tensor[tuple(map(slice, begins, ends))]
    shares = Cut(steps[axis], tensor.mesh.size).all_starts()  # where those of the ranks begin, and the last one ends
    borders = [min(number * chunks.shape[axis], piece.shape[axis]) for number in shares]
    block = relayout(piece, cut_along(axis, borders, piece.shape, tensor.mesh))._block
    first = list(start)
    first[axis] += shares[device]
    for inside in np.ndindex(*(-(-n // length) for n, length in zip(block.shape, chunks.shape, strict=True))):
        whole = _whole(block, inside, chunks.shape)
        yield tuple(f + i for f, i in zip(first, inside, strict=True)), encoded(whole, chunks.codecs)


def _whole(block: Array, inside: Shape, lengths: Shape) -> Array:
    """Return a chunk of *block*, contiguous; where the array ends before the chunk, zeros follow."""
    chunk = block[tuple(slice(i * n, (i + 1) * n) for i, n in zip(inside, lengths, strict=True))]
    if chunk.shape == lengths:
        return np.ascontiguousarray(chunk)
    whole = np.zeros(lengths, block.dtype)
    whole[tuple(map(slice, chunk.shape))] = chunk
    return whole
