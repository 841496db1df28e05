"""Arrays in chunks, which may be compressed: each rank encodes whole chunks, and writes them to the file.

The location of a chunk is known only after it is encoded. So writing goes in rounds: a round relays out some chunks
for each rank, the ranks encode their chunks at the same time, the first rank decides the location of each, and all
write.
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
"""Default bytes of a chunk before compression. A compromise: readers read whole chunks, and small ones are slow."""

EncodedChunk: TypeAlias = tuple[Shape, int]
"""The index of a chunk along each axis, and its length in bytes after encoding."""

ChunkLocation: TypeAlias = tuple[str, int]
"""The file of a chunk, and its offset there."""


def default_chunk(shape: Shape, itemsize: int, nbytes: int | None = None) -> Shape:
    """Return the shape of chunks of about *nbytes*, by default `CHUNK`: whole rows, unless one has more.

    >>> default_chunk((1000, 1000), 8), default_chunk((3, 2**20), 8), default_chunk((0, 5), 4)
    ((131, 1000), (1, 131072), (1, 5))
    """
    chunk, max_length = [], max(1, (nbytes or CHUNK) // max(1, itemsize))
    for n in reversed(shape):
        chunk.append(max(1, min(n, max_length)))
        max_length //= chunk[-1]
    return tuple(reversed(chunk))


def write_chunks(
    tensor: DTensor,
    stored: Stored,
    open_files: OpenFiles,
    limit: int | None,
    locate: Callable[[list[EncodedChunk]], list[ChunkLocation]],
    *,
    first: Shape | None = None,
) -> None:
    """Write the chunks of *tensor*. Collective over its mesh, and over the ranks that *locate* needs.

    Parameters
    ----------
    tensor: tensor to write
    stored: array in the file, with its chunks
    open_files: files that are written
    limit: scratch limit of a rank, in bytes; one chunk and its encoded bytes always fit
    locate: function that returns the locations of the chunks of this rank
    first: index of the first chunk of *tensor* along each axis, if the tensor is a box of the array
    """
    chunks = stored.chunks
    assert chunks is not None
    grid = tuple(-(-n // length) for n, length in zip(tensor.shape, chunks.shape, strict=True))
    axis = max(range(len(grid)), key=lambda axis: grid[axis])  # the first axis with the most chunks
    max_chunks = (limit or DEFAULT_SCRATCH) // max(1, 2 * prod(chunks.shape) * tensor.dtype.itemsize)
    for box in rounds(grid, axis, tensor.mesh.size, max(1, max_chunks)):
        encoded_chunks: list[tuple[Shape, Bytes]] = []
        with open_files.trying():
            encoded_chunks = list(on_device(tensor.mesh, partial(_encoded_chunks, tensor, chunks, box, axis)) or ())
        if first is not None:
            encoded_chunks = [
                (tuple(f + i for f, i in zip(first, index, strict=True)), data) for index, data in encoded_chunks
            ]
        locations = locate([(index, data.nbytes) for index, data in encoded_chunks])
        for (_, data), (name, offset) in zip(encoded_chunks, locations, strict=True):
            if open_files.error is None:
                with open_files.trying():
                    open_files.put(name, offset, data)


def rounds(grid: Shape, axis: int, size: int, max_chunks: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield the first chunk of each round in a *grid* of chunks, and its number of chunks along each axis.

    The chunks of a round are shared along *axis* by *size* ranks, each with at most *max_chunks*, or one.

    >>> list(rounds((5, 3), 0, 2, 3))
    [((0, 0), (2, 3)), ((2, 0), (2, 3)), ((4, 0), (1, 3))]
    >>> list(rounds((2, 3), 1, 4, 1))
    [((0, 0), (1, 3)), ((1, 0), (1, 3))]
    """
    steps, max_length = list(grid), max_chunks
    for other_axis in reversed(range(len(grid))):
        if other_axis != axis:
            steps[other_axis] = max(1, min(grid[other_axis], max_length))
            max_length //= steps[other_axis]
    steps[axis] = max(1, max_length) * size
    for start in product(*(range(0, n, step) for n, step in zip(grid, steps, strict=True))):
        yield start, tuple(min(step, n - s) for s, n, step in zip(start, grid, steps, strict=True))


def _encoded_chunks(
    tensor: DTensor, chunks: Chunking, box: tuple[Shape, Shape], axis: int, device: int
) -> Iterator[tuple[Shape, Bytes]]:
    """Yield the index and the encoded bytes of each chunk of this device in a round. Collective over the mesh."""
    start, counts = box
    begins = [s * length for s, length in zip(start, chunks.shape, strict=True)]
    ends = [
        min((s + count) * length, n)
        for s, count, length, n in zip(start, counts, chunks.shape, tensor.shape, strict=True)
    ]
    round_tensor = tensor[tuple(map(slice, begins, ends))]
    first_chunks = Cut(counts[axis], tensor.mesh.size).all_starts()  # of each rank, and the end of the last one
    borders = [min(number * chunks.shape[axis], round_tensor.shape[axis]) for number in first_chunks]
    block = relayout(round_tensor, cut_along(axis, borders, round_tensor.shape, tensor.mesh))._block
    first_index = list(start)
    first_index[axis] += first_chunks[device]
    for index in np.ndindex(*(-(-n // length) for n, length in zip(block.shape, chunks.shape, strict=True))):
        chunk = _padded_chunk(block, index, chunks.shape)
        yield tuple(f + i for f, i in zip(first_index, index, strict=True)), encoded(chunk, chunks.codecs)


def _padded_chunk(block: Array, index: Shape, lengths: Shape) -> Array:
    """Return the chunk of *block* with this index, contiguous, with zeros behind the end of the array."""
    chunk = block[tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, lengths, strict=True))]
    if chunk.shape == lengths:
        return np.ascontiguousarray(chunk)
    padded_chunk = np.zeros(lengths, block.dtype)
    padded_chunk[tuple(map(slice, chunk.shape))] = chunk
    return padded_chunk
