"""Transforms of an axis that stays sharded: the four-step algorithm, and Bluestein's convolution for the rest.

With n = rows * columns, j = columns * j1 + j2 and k = k1 + rows * k2, an array as a matrix x[j1, j2] has the transform

    X[k1 + rows * k2] = sum over j2 of w_columns^(j2 k2) * w_n^(j2 k1) * (sum over j1 of w_rows^(j1 k1) * x[j1, j2])

So there are two transforms of short axes, factors between them, and an exchange before each: first each device holds
whole columns, then whole rows. The result is sharded along k1: a `Cyclic` axis. One more exchange makes its blocks
consecutive. Source: D. H. Bailey, FFTs in external or hierarchical memory, 1990.

A transform of a length without suitable factors becomes a convolution of a length that has them. Source: L. I.
Bluestein, 1970.
Cosine and sine transforms are Fourier transforms of longer arrays: :mod:`meshcomm.fft.cosines`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import map_into, map_to_new, mapped
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.create import from_callback
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import cut_at
from meshcomm.fft.cosines import transformed_by_fourier
from meshcomm.fft.factors import convolved_length, roots, scale_of
from meshcomm.fft.kinds import KINDS, Transform
from meshcomm.fft.padding import leading, pad_or_crop
from meshcomm.fft.steps import ShardedStep
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.joining.rolling import flip
from meshcomm.numpy.shapes.linalg import transpose

RunTransform: TypeAlias = Callable[[Transform, DTensor], DTensor]
"""A function that transforms a tensor; the result is in any layout."""


def transformed_sharded(
    step: ShardedStep, tensor: DTensor, run_on_blocks: RunTransform, run_anywhere: RunTransform
) -> DTensor:
    """Return the transform of *tensor* by *step*. Collective over the mesh.

    Parameters
    ----------
    step: the transform and its layouts
    tensor: tensor in the source layout of the step
    run_on_blocks: function that transforms unsharded axes
    run_anywhere: function that transforms any axes
    """
    transform = step.transform
    if transform.change == "same_dtype":
        return transformed_by_fourier(
            step, tensor, lambda inner, t: transformed_sharded(inner, t, run_on_blocks, run_anywhere)
        )
    (axis,), (n,) = transform.axes, transform.lengths
    source = pad_or_crop(tensor, axis, n // 2 + 1 if transform.change == "doubles" else n)
    if transform.change == "doubles":
        source = _full_spectrum(source, axis, n)
    inner = Transform(KINDS[transform.kind].complex_kind, (axis,), (n,), transform.norm)
    if step.rows:
        result = _four_steps(replace(step, transform=inner), source, run_on_blocks)
    else:
        result = _by_convolution(inner, source, run_anywhere)
    dtype, shape = step.dtype_after, step.shape_after
    if transform.change == "doubles":
        result = mapped(lambda block: np.array(block.real, dtype, order="C"), result, dtype=dtype)
    elif result.dtype != dtype:
        result = mapped(lambda block: block.astype(dtype), result, dtype=dtype)
    if result.shape != shape:
        result = getitem(result, leading(len(shape), axis, shape[axis])).copy()
    return relaid(result, step.layout.axes, transform.kind)


def _full_spectrum(half_spectrum: DTensor, axis: int, n: int) -> DTensor:
    """Return all *n* elements of a Hermitian spectrum from its first half."""
    mirrored = tuple(slice(1, (n + 1) // 2) if a == axis else slice(None) for a in range(half_spectrum.ndim))
    return concatenate([half_spectrum, mapped(np.conj, flip(getitem(half_spectrum, mirrored).copy(), axis))], axis)


# -- four steps -------------------------------------------------------------------------------------------------------


def _four_steps(step: ShardedStep, tensor: DTensor, run_on_blocks: RunTransform) -> DTensor:
    """Return the complex transform of one axis, in the layout of *step* if it is cyclic."""
    transform, rows = step.transform, step.rows
    (axis,), (n,) = transform.axes, transform.lengths
    columns = n // rows
    matrix = _as_matrix(tensor, axis, rows, columns)
    column_transform = replace(transform, lengths=(rows,))
    intermediate = run_on_blocks(column_transform, matrix)
    _multiply_by_factors(intermediate, axis, n, forward=transform.kind == "fftn")
    intermediate = relaid(intermediate, _swapped(intermediate.layout.axes, axis), transform.kind)
    spectrum = run_on_blocks(replace(transform, axes=(axis + 1,), lengths=(columns,)), intermediate)
    if step.layout.cyclic(axis) is not None:
        return _as_cyclic(spectrum, axis, step.layout)
    order = list(range(spectrum.ndim))
    order[axis : axis + 2] = axis + 1, axis
    # The mesh dimensions cut the rows before the transpose, and the columns after it: both come first.
    transposed = transpose(spectrum, order, spectrum.layout)
    return _as_line(transposed, axis)


def _as_matrix(tensor: DTensor, axis: int, rows: int, columns: int) -> DTensor:
    """Return *tensor* with *axis* split into two axes, rows and columns; the columns are sharded."""
    names, cyclic = tensor.layout.axes[axis], tensor.layout.cyclic(axis)
    blocks = tensor.layout.num_shards(axis)
    shape = (*tensor.shape[:axis], rows, columns, *tensor.shape[axis + 1 :])
    usual_layout = tensor.layout.default_cut(axis)
    if cyclic and cyclic.offset == 0 and cyclic.block * blocks == columns:
        return _viewed(tensor, shape, usual_layout.insert(axis))
    boundaries = [start * columns for start in Cut(rows, blocks).all_starts()]
    cut = cut_at(tuple(names), boundaries, rows * columns)
    consecutive = relaid(tensor, usual_layout.replace(axis, cut).axes, "fft")
    return relaid(_viewed(consecutive, shape, usual_layout.insert(axis + 1)), usual_layout.insert(axis).axes, "fft")


def _viewed(tensor: DTensor, shape: Shape, layout: Layout) -> DTensor:
    """Return the same blocks as a tensor of another *shape* in *layout*."""
    return mapped(lambda block: block.reshape(layout.block_shape(shape)), tensor, layout=layout, shape=shape)


def _as_line(matrix: DTensor, axis: int) -> DTensor:
    """Return a matrix with sharded rows, flattened to one axis."""
    rows, columns = matrix.shape[axis : axis + 2]
    shape = (*matrix.shape[:axis], rows * columns, *matrix.shape[axis + 2 :])
    boundaries = [start * columns for start in Cut(rows, matrix.layout.num_shards(axis)).all_starts()]
    cut = cut_at(matrix.layout.axes[axis], boundaries, shape[axis])
    return _viewed(matrix, shape, matrix.layout.delete(axis + 1).replace(axis, cut))


def _as_cyclic(spectrum: DTensor, axis: int, layout: Layout) -> DTensor:
    """Return a spectrum, given as a matrix with evenly sharded rows, as a cyclic axis."""
    shape = (*spectrum.shape[:axis], spectrum.shape[axis] * spectrum.shape[axis + 1], *spectrum.shape[axis + 2 :])
    cyclic_layout = Layout(layout.axes, spectrum.mesh)

    def swap(out: Array, block: Array) -> None:
        swapped = np.swapaxes(block, axis, axis + 1)
        np.copyto(out.reshape(swapped.shape), swapped)

    return map_to_new(swap, spectrum, layout=cyclic_layout, shape=shape)


def _swapped(axes: Axes, axis: int) -> Axes:
    return (*axes[:axis], axes[axis + 1], axes[axis], *axes[axis + 2 :])


def _multiply_by_factors(matrix: DTensor, axis: int, n: int, forward: bool) -> None:
    """Multiply element [k1, j2] of each block by w_n^(k1 j2)."""

    def multiply(block: Array) -> None:
        powers = _Powers(n, forward, matrix.dtype)
        j2 = matrix.layout.global_indices(matrix.shape, None, axis + 1)
        trailing_ones = (1,) * (matrix.ndim - axis - 2)
        for k1 in range(block.shape[axis]):
            row = block[(slice(None),) * axis + (k1,)]
            row *= powers.of(k1 * j2 % n).reshape(-1, *trailing_ones)

    map_into(multiply, matrix)


class _Powers:
    """The powers of a root of unity: exp(-2 pi i m / n), or its conjugate.

    There are two tables of about sqrt(n) entries: to compute each power separately takes longer than the transform.
    """

    def __init__(self, n: int, forward: bool, dtype: DType) -> None:
        self._step = max(1, int(n**0.5))
        self._dtype = dtype
        self._fine = roots(np.arange(self._step), n, forward, dtype)
        self._coarse = roots(np.arange(0, n, self._step), n, forward, dtype)

    def of(self, exponents: Array) -> Array:
        """Return the powers for *exponents* from 0 to n - 1."""
        coarse_index, fine_index = np.divmod(exponents, self._step)
        return (self._coarse[coarse_index] * self._fine[fine_index]).astype(self._dtype, copy=False)


# -- convolution ------------------------------------------------------------------------------------------------------


def _by_convolution(transform: Transform, tensor: DTensor, run_anywhere: RunTransform) -> DTensor:
    """Return the complex transform of one axis of any length."""
    (axis,), (n,) = transform.axes, transform.lengths
    forward = transform.kind == "fftn"
    padded_length = convolved_length(n)
    complex_dtype = np.result_type(tensor.dtype, np.complex128)
    layout = tensor.layout.only(axis).default_cut(axis)

    def chirp(length: int) -> DTensor:
        def values(slices: tuple[slice, ...]) -> Array:
            index = np.arange(length, dtype=np.int64)[slices[axis]]
            index = np.minimum(index, length - index) if length != n else index
            values_at_index = roots(index * index % (2 * n), 2 * n, forward == (length == n), complex_dtype)
            return values_at_index.reshape([-1 if a == axis else 1 for a in range(tensor.ndim)])

        return from_callback([length if a == axis else 1 for a in range(tensor.ndim)], complex_dtype, layout, values)

    padded_transform = replace(transform, kind="fftn", lengths=(padded_length,), norm=None)
    factors = chirp(n)
    product = run_anywhere(padded_transform, factors * tensor)
    convolution = run_anywhere(
        replace(padded_transform, kind="ifftn"), product * run_anywhere(padded_transform, chirp(padded_length))
    )
    scale = scale_of(transform, n, np.empty(0, complex_dtype).real.dtype)
    return getitem(convolution, leading(tensor.ndim, axis, n)) * factors * scale
