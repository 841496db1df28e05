"""Transforms of the block of one device, in pieces that fit into the caches.

FFT libraries allocate their results: this costs page faults, and the memory is not shared with other ranks of the
node. So each piece of the block is first copied to the new block, in reused shared memory, and transformed there while
it is in the caches. This is faster than one call for the whole block: see benchmarks/fft.py.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from meshcomm.core._types import Array, Shape
from meshcomm.core.memory.blocks import new_block
from meshcomm.fft.backends import FFTBackend
from meshcomm.fft.kinds import Transform, working_dtype

FFT_PIECE = 2**19
"""Bytes. A block is transformed in pieces of about this size, which stay in the caches of a processor. Measured with
SciPy for planes of 256 x 256 and rows of 4096: about 0.8 of the time of one call for a block of 64 MiB. With pieces of
1 MiB, malloc gives the memory of irfftn's results back after each piece: for a block of 32 MiB of float32, 14,000 page
faults, and 76 instead of 43 ms of a core for a backward transform."""

MIN_CONTIGUOUS_BYTES = 2**9
"""Bytes. The minimum extent of a piece along the last axis: a processor reads whole cache lines. Measured with SciPy
for planes of 256 x 256 along the first two axes: pieces of 16 bytes take about twice as long."""


def transform_block(
    backend: FFTBackend, transform: Transform, block: Array, *, into: Array | None, owned: bool, workers: int | None
) -> Array:
    """Return the transform of a *block*.

    Parameters
    ----------
    backend: library that transforms arrays
    transform: transform over axes that are whole in the block
    block: block of this device
    into: array for the result; by default a new block, or *block* if it is *owned* and fits
    owned: whether the block may be overwritten
    workers: threads of the backend
    """
    shape, dtype = transform.shape_after(block.shape), transform.dtype_after(block.dtype)
    is_same_spec = (block.shape, block.dtype) == (shape, dtype)
    if into is None:
        can_overwrite = owned and block.flags.c_contiguous and block.flags.writeable
        into = block if can_overwrite and is_same_spec else new_block(shape, dtype)
    elif not _is_same(block, into) and np.may_share_memory(block, into):
        block = block.copy()  # each piece is written before the next one is read
    if 0 in shape:
        return into
    max_shape = tuple(map(max, shape, block.shape))
    for piece in pieces(max_shape, transform.axes, max(dtype.itemsize, block.dtype.itemsize)):
        _transform_piece(backend, transform, block[piece], into[piece], workers)
    return into


def _transform_piece(
    backend: FFTBackend, transform: Transform, source: Array, target: Array, workers: int | None
) -> None:
    if 0 in source.shape:
        target[...] = 0
        return
    if (source.shape, source.dtype) == (target.shape, target.dtype):
        if not _is_same(source, target):
            np.copyto(target, source)
        result = backend.apply(transform, target, True, workers)
        if np.may_share_memory(result, target):
            return
    else:
        dtype = working_dtype(source.dtype)
        result = backend.apply(transform, source.astype(dtype) if source.dtype != dtype else source, False, workers)
    np.copyto(target, result)


def _is_same(a: Array, b: Array) -> bool:
    """Return whether two blocks are the same view of the same memory."""
    memory_of_a, memory_of_b = ((x.__array_interface__["data"][0], x.strides, x.shape, x.dtype) for x in (a, b))
    return memory_of_a == memory_of_b


def pieces(shape: Shape, axes: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield pieces of a block, of about `FFT_PIECE` bytes each, that are uncut along *axes*.

    Along the last axis, a piece has `MIN_CONTIGUOUS_BYTES` bytes or more.

    >>> [piece[0] for piece in pieces((3, 2**14), (1,), 16)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    steps = list(shape)
    size = itemsize
    for n in shape:
        size *= n
    for axis, n in enumerate(shape):
        if axis in axes or size <= FFT_PIECE:
            continue
        min_step = -(-MIN_CONTIGUOUS_BYTES // itemsize) if axis == len(shape) - 1 else 1
        steps[axis] = min(n, max(min_step, n * FFT_PIECE // size))
        size = size // n * steps[axis]
    slices_of_axes = [
        [slice(i, min(i + step, n)) for i in range(0, n, step)] for n, step in zip(shape, steps, strict=True)
    ]
    yield from product(*slices_of_axes)
