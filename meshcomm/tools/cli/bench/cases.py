"""The operations that ``bench`` knows: each makes a case of one size, with its values, its reference and its check."""

from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np

import meshcomm
from meshcomm.core._types import Array, DType, Indices, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import DTypeError, LayoutError, ShapeError
from meshcomm.fft.backends import backend_of
from meshcomm.fft.steps import LocalStep
from meshcomm.tools.cli.bench.measure import Case
from meshcomm.tools.cli.turns import Run

CHUNK = 2**18
"""Number of elements that are computed or compared at a time: the index of each needs eight bytes."""


class Setting(NamedTuple):
    """What the cases of all sizes have in common.

    Parameters
    ----------
    mesh: a mesh with all ranks of the world
    rank: this rank's device in *mesh*
    source, target, shape, dtype: layouts, shape and dtype of the array; None if the command does not give one
    """

    mesh: Mesh
    rank: int
    source: Layout | None = None
    target: Layout | None = None
    shape: Shape | None = None
    dtype: DType | None = None

    def rows(self) -> Layout:
        """Return the source layout; by default the first axis of two is sharded."""
        return self.source or Layout([self.mesh.dim_names[0], UNSHARDED], self.mesh)

    def shape_for(self, layout: Layout, nbytes: int, dtype: DType) -> Shape:
        """Return the shape from the command, or one of equal lengths whose blocks have about *nbytes* bytes."""
        if self.shape is not None:
            return self.shape
        ndim = max(1, layout.ndim)
        length = round((nbytes / dtype.itemsize * layout.mesh.size) ** (1 / ndim))
        return (max(layout.mesh.size, length),) * ndim


# -- values -----------------------------------------------------------------------------------------------------------


def expected(indices: Sequence[Indices], shape: Shape, dtype: DType, seed: int) -> Iterator[tuple[slice, Array]]:
    """Yield (rows, values) for a block, a chunk of rows at a time.

    A value depends on the position of its element in the array of this *shape*, and on *seed*. *indices* are the
    global indices of the block along each axis.
    """
    modulus = _value_count(dtype)
    rows = max(1, CHUNK // max(1, prod(map(len, indices[1:]))))
    for begin in range(0, len(indices[0]), rows):
        rows_of_chunk = slice(begin, begin + rows)
        linear_indices = reduce(
            lambda leading_indices, indices_and_length: (
                leading_indices[..., None] * indices_and_length[1] + indices_and_length[0]
            ),
            zip(indices[1:], shape[1:], strict=True),
            indices[0][rows_of_chunk].astype(np.int64),
        )
        yield rows_of_chunk, ((linear_indices * 40_503 + seed * 7_919) % modulus).astype(dtype)


def _value_count(dtype: DType) -> int:
    """Return the number of different values. They are integers from 0 that *dtype* holds exactly."""
    if dtype.kind not in "biufc":
        raise DTypeError(f"bench compares numbers and bool, not {dtype}")
    if dtype.kind == "b":
        return 2
    return {1: 127, 2: 2039}.get(dtype.itemsize, 999_983)


def fill(block: Array, indices: Sequence[Indices], shape: Shape, seed: int) -> None:
    """Write the values of `expected` to a *block*."""
    for rows, values in expected(indices, shape, block.dtype, seed):
        block[rows] = values


def count_differences(block: Array, indices: Sequence[Indices], shape: Shape, seed: int) -> int:
    """Return the number of elements of a *block* that differ from the values of `fill`."""
    if block.shape != tuple(map(len, indices)):
        return max(1, prod(map(len, indices)))
    return sum(
        int(np.count_nonzero(block[rows] != values)) for rows, values in expected(indices, shape, block.dtype, seed)
    )


def indices_of(layout: Layout, shape: Shape, device: int) -> list[Indices]:
    """Return the global indices of the block of *device* along each axis."""
    return [layout.global_indices(shape, device, axis) for axis in range(len(shape))]


def block_of(tensor: meshcomm.DTensor) -> Array:
    """Return the block of this rank, which is in the mesh."""
    assert tensor.local is not None
    return tensor.local


def memcpy(nbytes: int) -> Run:
    """Return a function that copies *nbytes* bytes with NumPy, between two buffers of its own."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    return lambda: np.copyto(target, source)


# -- operations -------------------------------------------------------------------------------------------------------


def relayout(setting: Setting, nbytes: int) -> Case:
    """Relayout from rows to columns, or between the layouts of the command."""
    source = setting.rows()
    target = setting.target or Layout([UNSHARDED] * (source.ndim - 1) + [setting.mesh.dim_names[0]], setting.mesh)
    dtype = setting.dtype or np.dtype(float)
    shape = setting.shape_for(source, nbytes, dtype)
    tensor = meshcomm.zeros(shape, dtype, source)
    source_indices, target_indices = (indices_of(layout, shape, setting.rank) for layout in (source, target))
    fill(block_of(tensor), source_indices, shape, 1)

    def count_wrong() -> int:
        fill(block_of(tensor), source_indices, shape, 2)
        return count_differences(block_of(meshcomm.relayout(tensor, target)), target_indices, shape, 2)

    block_bytes, moved_bytes = (layout.largest_block(shape) * dtype.itemsize for layout in (source, target))
    return Case(block_bytes, moved_bytes, lambda: meshcomm.relayout(tensor, target), memcpy(moved_bytes), count_wrong)


def exchange(setting: Setting, nbytes: int) -> Case:
    """Each rank sends every rank an equal block of a plain array."""
    rank_count, dtype = setting.mesh.size, setting.dtype or np.dtype(float)
    length = max(1, nbytes // (rank_count * dtype.itemsize))
    shape = (rank_count, rank_count, length)
    own_rank, all_ranks = np.array([setting.rank]), np.arange(rank_count)
    sent_indices, received_indices = [own_rank, all_ranks, np.arange(length)], [all_ranks, own_rank, np.arange(length)]
    array = np.zeros((1, rank_count, length), dtype)
    fill(array, sent_indices, shape, 1)

    def run() -> Array:
        return meshcomm.all_to_all(array[0], None, 0, 0, rank_count)

    def count_wrong() -> int:
        fill(array, sent_indices, shape, 2)
        return count_differences(run()[:, None], received_indices, shape, 2)

    return Case(array.nbytes, array.nbytes, run, memcpy(array.nbytes), count_wrong)


def memory(setting: Setting, nbytes: int) -> Case:
    """All ranks copy at once; the reference is a copy by rank 0 alone."""
    shape = (max(1, nbytes // 8),)
    indices = [np.arange(shape[0])]
    source, target = np.zeros(shape), np.zeros(shape)
    fill(source, indices, shape, 1)

    def count_wrong() -> int:
        fill(source, indices, shape, 2)
        np.copyto(target, source)
        return count_differences(target, indices, shape, 2)

    reference = memcpy(source.nbytes) if setting.rank == 0 else lambda: None
    return Case(source.nbytes, source.nbytes, lambda: np.copyto(target, source), reference, count_wrong)


def fft(setting: Setting, nbytes: int) -> Case:
    """Transform all axes, real arrays by `rfftn`; the reference transforms the blocks of this rank alone."""
    source, dtype = setting.rows(), setting.dtype or np.dtype(complex)
    shape = setting.shape_for(source, nbytes, dtype)
    kind = "fftn" if dtype.kind == "c" else "rfftn"
    plan = meshcomm.fft.plan(shape, dtype, source, kind=kind, machine=meshcomm.machine_of(setting.mesh))
    local_steps = [step for step in plan.steps if isinstance(step, LocalStep)]
    if not local_steps or len(shape) < 2:
        raise ShapeError(f"the fft bench needs 2 axes or more to have transforms within blocks, not shape {shape}")
    blocks = [np.ones(step.layout.block_shape(step.shape, setting.rank), step.dtype) for step in local_steps]
    backend = backend_of(None)
    tensor = meshcomm.zeros(shape, dtype, source)
    indices = indices_of(source, shape, setting.rank)

    def reference() -> None:
        for step, block in zip(local_steps, blocks, strict=True):
            backend.apply(step.transform, block, False, None)

    def set_values(seed: int) -> list[Array]:
        """Write an outer product of random vectors to the tensor, and return the vectors, one for each axis."""
        factors = _random_factors(shape, dtype, seed)
        block_of(tensor)[...] = _outer_product([factor[index] for factor, index in zip(factors, indices, strict=True)])
        return factors

    def count_wrong() -> int:
        factors = set_values(2)  # the spectrum of such a product is the product of the spectra
        spectrum_tensor = plan.forward(tensor)
        spectra = [np.fft.fft(factor) for factor in factors]
        spectrum_indices = indices_of(spectrum_tensor.layout, spectrum_tensor.shape, setting.rank)
        product = _outer_product([spectrum[index] for spectrum, index in zip(spectra, spectrum_indices, strict=True)])
        return int(
            np.count_nonzero(
                ~(abs(block_of(spectrum_tensor) - product) <= _tolerance(shape, block_of(spectrum_tensor).dtype))
            )
        )

    set_values(1)
    block_bytes = source.largest_block(shape) * dtype.itemsize
    moved_bytes = plan.target.largest_block(plan.spectrum_shape) * plan.spectrum_dtype.itemsize
    return Case(block_bytes, moved_bytes, lambda: plan.forward(tensor), reference, count_wrong)


def _random_factors(shape: Shape, dtype: DType, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    normals = [random.standard_normal((2, n)) for n in shape]
    return [pair[0] + 1j * pair[1] if dtype.kind == "c" else pair[0] for pair in normals]


def _outer_product(vectors: Sequence[Array]) -> Array:
    return reduce(lambda product, vector: product[..., None] * vector, vectors)


def _tolerance(shape: Shape, dtype: DType) -> float:
    """Return the largest error of an element. The usual error of a transform grows with the logarithm of its length.

    Elements of a spectrum are about as large as the square root of the number of elements.
    """
    size = prod(shape)
    return float(64 * np.finfo(dtype).eps * np.log2(size + 2) * np.sqrt(size))


def halo(setting: Setting, nbytes: int) -> Case:
    """Update ghosts one element wide around periodic blocks; the reference copies as many within the rank's block."""
    layout, dtype = setting.rows(), setting.dtype or np.dtype(float)
    shape = setting.shape_for(layout, nbytes, dtype)
    ghosts = meshcomm.halo(meshcomm.zeros(shape, dtype, layout), 1, "periodic")
    local, inner = ghosts.local, ghosts.inner
    if local is None or inner is None or not inner.size:
        raise LayoutError(
            f"the halo bench needs a block on every rank, but {layout.specs_text} "
            f"cuts shape {shape} into some that are empty"
        )
    indices = indices_of(layout, shape, setting.rank)
    halo_indices = [np.arange(i[0] - 1, i[-1] + 2) % n for i, n in zip(indices, shape, strict=True)]
    fill(inner, indices, shape, 1)

    def count_wrong() -> int:
        fill(inner, indices, shape, 2)
        ghosts.update()
        return count_differences(local, halo_indices, shape, 2)

    return Case(inner.nbytes, local.nbytes - inner.nbytes, ghosts.update, _own_ghosts(local.copy()), count_wrong)


def _own_ghosts(block: Array) -> Run:
    """Return a function that fills the ghosts of *block*, one element wide, from the block itself."""
    slab_pairs = [
        tuple(block[(slice(None),) * axis + (slice(index, index + 1 or None),)] for index in target_and_source)
        for axis in range(block.ndim)
        for target_and_source in ((0, -2), (-1, 1))
    ]

    def run() -> None:
        for target, source in slab_pairs:
            np.copyto(target, source)

    return run
