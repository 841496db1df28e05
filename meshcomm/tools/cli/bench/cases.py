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
"""Elements that are made, or compared, at a time: their indices need eight bytes each."""


class Setting(NamedTuple):
    """The common setting of all sizes. *rank* is this rank's device of *mesh*, which has all ranks of the world.

    *source* and *target* are layouts, *shape* that of the array, *dtype* that of its elements; None where the command
    says nothing.
    """

    mesh: Mesh
    rank: int
    source: Layout | None = None
    target: Layout | None = None
    shape: Shape | None = None
    dtype: DType | None = None

    def rows(self) -> Layout:
        """Return the layout to begin with: by default rows."""
        return self.source or Layout([self.mesh.dim_names[0], UNSHARDED], self.mesh)

    def shape_for(self, layout: Layout, nbytes: int, dtype: DType) -> Shape:
        """Return the shape: as the command says, or all axes alike and as large as blocks of *nbytes* allow."""
        if self.shape is not None:
            return self.shape
        ndim = max(1, layout.ndim)
        length = round((nbytes / dtype.itemsize * layout.mesh.size) ** (1 / ndim))
        return (max(layout.mesh.size, length),) * ndim


# -- values -----------------------------------------------------------------------------------------------------------


def expected(indices: Sequence[Indices], shape: Shape, dtype: DType, seed: int) -> Iterator[tuple[slice, Array]]:
    """Yield (rows, values) of the block that has these global *indices* along each axis, a chunk of rows at a time.

    A value depends on where its element is in the array of this *shape*, and on *seed*.
    """
    modulus = _values_of(dtype)
    rows = max(1, CHUNK // max(1, prod(map(len, indices[1:]))))
    for begin in range(0, len(indices[0]), rows):
        rows_of_chunk = slice(begin, begin + rows)
        linear = reduce(
            lambda before, axis: before[..., None] * axis[1] + axis[0],
            zip(indices[1:], shape[1:], strict=True),
            indices[0][rows_of_chunk].astype(np.int64),
        )
        yield rows_of_chunk, ((linear * 40_503 + seed * 7_919) % modulus).astype(dtype)


def _values_of(dtype: DType) -> int:
    """Return the number of different values: numbers from 0 that *dtype* holds exactly."""
    if dtype.kind not in "biufc":
        raise DTypeError(f"bench compares numbers and bool, not {dtype}")
    if dtype.kind == "b":
        return 2
    return {1: 127, 2: 2039}.get(dtype.itemsize, 999_983)


def fill(block: Array, indices: Sequence[Indices], shape: Shape, seed: int) -> None:
    """Give a *block* the values of its elements."""
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
    """Return the global indices of a block along each axis."""
    return [layout.global_indices(shape, device, axis) for axis in range(len(shape))]


def block_of(tensor: meshcomm.DTensor) -> Array:
    """Return the block of this rank, which is in the mesh."""
    assert tensor.local is not None
    return tensor.local


def memcpy(nbytes: int) -> Run:
    """Return a copy of so many bytes by NumPy, from memory of its own into other memory."""
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
    before, after = (indices_of(layout, shape, setting.rank) for layout in (source, target))
    fill(block_of(tensor), before, shape, 1)

    def count_wrong() -> int:
        fill(block_of(tensor), before, shape, 2)
        return count_differences(block_of(meshcomm.relayout(tensor, target)), after, shape, 2)

    block, moved = (layout.largest_block(shape) * dtype.itemsize for layout in (source, target))
    return Case(block, moved, lambda: meshcomm.relayout(tensor, target), memcpy(moved), count_wrong)


def exchange(setting: Setting, nbytes: int) -> Case:
    """Each rank sends every rank an equal block of a plain array."""
    ranks, dtype = setting.mesh.size, setting.dtype or np.dtype(float)
    length = max(1, nbytes // (ranks * dtype.itemsize))
    whole = (ranks, ranks, length)
    mine, every = np.array([setting.rank]), np.arange(ranks)
    before, after = [mine, every, np.arange(length)], [every, mine, np.arange(length)]
    array = np.zeros((1, ranks, length), dtype)
    fill(array, before, whole, 1)

    def run() -> Array:
        return meshcomm.all_to_all(array[0], None, 0, 0, ranks)

    def count_wrong() -> int:
        fill(array, before, whole, 2)
        return count_differences(run()[:, None], after, whole, 2)

    return Case(array.nbytes, array.nbytes, run, memcpy(array.nbytes), count_wrong)


def memory(setting: Setting, nbytes: int) -> Case:
    """All ranks copy at once, beside a copy by rank 0 alone."""
    shape = (max(1, nbytes // 8),)
    whole = [np.arange(shape[0])]
    source, target = np.zeros(shape), np.zeros(shape)
    fill(source, whole, shape, 1)

    def count_wrong() -> int:
        fill(source, whole, shape, 2)
        np.copyto(target, source)
        return count_differences(target, whole, shape, 2)

    alone = memcpy(source.nbytes) if setting.rank == 0 else lambda: None
    return Case(source.nbytes, source.nbytes, lambda: np.copyto(target, source), alone, count_wrong)


def fft(setting: Setting, nbytes: int) -> Case:
    """Transform all axes, real ones by `rfftn`, beside the transforms of the rank's own blocks alone."""
    source, dtype = setting.rows(), setting.dtype or np.dtype(complex)
    shape = setting.shape_for(source, nbytes, dtype)
    kind = "fftn" if dtype.kind == "c" else "rfftn"
    plan = meshcomm.fft.plan(shape, dtype, source, kind=kind, machine=meshcomm.machine_of(setting.mesh))
    local = [step for step in plan.steps if isinstance(step, LocalStep)]
    if not local or len(shape) < 2:
        raise ShapeError(f"the fft bench needs 2 axes or more to have transforms within blocks, not shape {shape}")
    blocks = [np.ones(step.layout.block_shape(step.shape, setting.rank), step.dtype) for step in local]
    backend = backend_of(None)
    tensor = meshcomm.zeros(shape, dtype, source)
    before = indices_of(source, shape, setting.rank)

    def reference() -> None:
        for step, block in zip(local, blocks, strict=True):
            backend.apply(step.transform, block, False, None)

    def set_values(seed: int) -> list[Array]:
        """Give each element the product of a number for each of its indices; return these numbers for each axis."""
        factors = _random_factors(shape, dtype, seed)
        block_of(tensor)[...] = _outer_product([factor[index] for factor, index in zip(factors, before, strict=True)])
        return factors

    def count_wrong() -> int:
        factors = set_values(2)  # the spectrum of such a product is the product of the spectra
        spectrum_tensor = plan.forward(tensor)
        spectra = [np.fft.fft(factor) for factor in factors]
        after = indices_of(spectrum_tensor.layout, spectrum_tensor.shape, setting.rank)
        right = _outer_product([spectrum[index] for spectrum, index in zip(spectra, after, strict=True)])
        return int(
            np.count_nonzero(
                ~(abs(block_of(spectrum_tensor) - right) <= _tolerance(shape, block_of(spectrum_tensor).dtype))
            )
        )

    set_values(1)
    block = source.largest_block(shape) * dtype.itemsize
    moved = plan.target.largest_block(plan.spectrum_shape) * plan.spectrum_dtype.itemsize
    return Case(block, moved, lambda: plan.forward(tensor), reference, count_wrong)


def _random_factors(shape: Shape, dtype: DType, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    normals = [random.standard_normal((2, n)) for n in shape]
    return [pair[0] + 1j * pair[1] if dtype.kind == "c" else pair[0] for pair in normals]


def _outer_product(vectors: Sequence[Array]) -> Array:
    return reduce(lambda product, vector: product[..., None] * vector, vectors)


def _tolerance(shape: Shape, dtype: DType) -> float:
    """Return how much an element may be off: the usual error of a transform grows with the logarithm of its length.

    Elements of a spectrum are about as large as the root of the number of elements.
    """
    size = prod(shape)
    return float(64 * np.finfo(dtype).eps * np.log2(size + 2) * np.sqrt(size))


def halo(setting: Setting, nbytes: int) -> Case:
    """Update ghosts one element wide around periodic blocks, beside copies of as many within the rank's own block."""
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
    around = [np.arange(i[0] - 1, i[-1] + 2) % n for i, n in zip(indices, shape, strict=True)]
    fill(inner, indices, shape, 1)

    def count_wrong() -> int:
        fill(inner, indices, shape, 2)
        ghosts.update()
        return count_differences(local, around, shape, 2)

    return Case(inner.nbytes, local.nbytes - inner.nbytes, ghosts.update, _own_ghosts(local.copy()), count_wrong)


def _own_ghosts(block: Array) -> Run:
    """Return copies that fill the ghosts of *block*, one wide, from the block itself."""
    slabs = [
        tuple(block[(slice(None),) * axis + (slice(at, at + 1 or None),)] for at in pair)
        for axis in range(block.ndim)
        for pair in ((0, -2), (-1, 1))
    ]

    def run() -> None:
        for target, source in slabs:
            np.copyto(target, source)

    return run
