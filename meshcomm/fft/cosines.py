"""Cosine and sine transforms of an axis that stays sharded, by a Fourier transform of a longer axis.

All types, 1 to 4, are one formula. With a and b, 0 or 1/2 or 1, and a length L,

    y[k] = 2 Re (or -2 Im) of the sum over n of c[n] x[n] exp(-2 pi i (k + a) (n + b) / L)

where c is 1, except for 1/2 at some ends. As (k + a) (n + b) = k n + a n + b (k + a), this is a Fourier transform of x
padded with zeros to the length L, with factors before and after it. L is about twice the length, so this takes about
four times the operations of a local transform. Source: K. R. Rao, P. Yip, Discrete Cosine Transform, 1990.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import complex_of, indices_along, mapped
from meshcomm.core._types import Array, Indices
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.fft.factors import roots, scale_of
from meshcomm.fft.kinds import Transform, working_dtype
from meshcomm.fft.padding import leading, pad_or_crop
from meshcomm.fft.steps import ShardedStep
from meshcomm.numpy.indexing.indexing import getitem

RunSharded: TypeAlias = Callable[[ShardedStep, DTensor], DTensor]
"""A function that transforms a tensor by a step that leaves its axis sharded."""


class Formula(NamedTuple):
    """A cosine or sine transform of one axis in terms of a Fourier transform.

    Parameters
    ----------
    cosine: whether the result is the real part, not the imaginary one
    twice_a, twice_b: twice the numbers a and b above
    half_weighted: input indices with c = 1/2
    ortho_inputs: input indices that an orthogonal transform scales by sqrt(2)
    ortho_outputs: output indices that it scales by sqrt(1/2)
    """

    cosine: bool
    twice_a: int
    twice_b: int
    half_weighted: list[int]
    ortho_inputs: list[int]
    ortho_outputs: list[int]


def formula_of(transform: Transform) -> Formula:
    """Return the formula for the matrix of a transform of one axis, without its scale.

    >>> formula_of(Transform("idctn", (0,), (8,), variant=2))
    Formula(cosine=True, twice_a=1, twice_b=0, half_weighted=[0], ortho_inputs=[], ortho_outputs=[])
    >>> formula_of(Transform("dstn", (0,), (8,), variant=3))
    Formula(cosine=False, twice_a=1, twice_b=2, half_weighted=[7], ortho_inputs=[], ortho_outputs=[])
    """
    (n,), cosine = transform.lengths, "c" in transform.kind
    matrix_type, ends, is_orthogonal = transform.matrix_type, transform.end_indices(n), transform.is_orthogonal
    twice_a, twice_b = {1: (0, 0), 2: (0, 1), 3: (1, 0), 4: (1, 1)}[matrix_type]
    if not cosine and matrix_type != 4:
        twice_a, twice_b = {1: (2, 2), 2: (2, 1), 3: (1, 2)}[matrix_type]
    return Formula(
        cosine,
        twice_a,
        twice_b,
        half_weighted=ends if matrix_type in (1, 3) else [],
        ortho_inputs=ends if is_orthogonal and matrix_type in (1, 3) else [],
        ortho_outputs=ends if is_orthogonal and matrix_type in (1, 2) else [],
    )


def transformed_by_fourier(step: ShardedStep, tensor: DTensor, run: RunSharded) -> DTensor:
    """Return the cosine or sine transform of *tensor* by *step*. Collective over the mesh.

    Parameters
    ----------
    step: the transform and its layouts
    tensor: tensor in the source layout of the step
    run: function that does Fourier transforms of a sharded axis
    """
    (axis,), (n,) = step.transform.axes, step.transform.lengths
    source = pad_or_crop(tensor, axis, n)
    if source.dtype.kind != "c":
        return relaid(_of_real(step, source, run), step.layout.axes, step.transform.kind)
    # SciPy drops orthogonalize for complex numbers.
    step = replace(step, transform=replace(step.transform, orthogonalize=None))
    components = [_of_real(step, component, run) for component in (source.real, source.imag)]
    return relaid(complex_of(components, step.dtype_after), step.layout.axes, step.transform.kind)


def _of_real(step: ShardedStep, tensor: DTensor, run: RunSharded) -> DTensor:
    """Return the transform of real numbers, in the layout of the Fourier transform."""
    transform, formula, length = step.transform, formula_of(step.transform), step.length
    (axis,), (n,) = transform.axes, transform.lengths
    real_dtype = working_dtype(tensor.dtype)
    complex_dtype = np.result_type(real_dtype, np.complex64)

    def input_factors(index: Indices) -> Array:
        factors = roots(formula.twice_a * index % (2 * length), 2 * length, True, complex_dtype)
        factors[np.isin(index, formula.half_weighted)] *= 0.5
        factors[np.isin(index, formula.ortho_inputs)] *= np.sqrt(real_dtype.type(2))
        return factors

    def output_factors(index: Indices) -> Array:
        factors = roots(
            formula.twice_b * (2 * index + formula.twice_a) % (4 * length), 4 * length, True, complex_dtype
        )
        factors[np.isin(index, formula.ortho_outputs)] *= np.sqrt(real_dtype.type(0.5))
        return factors

    def local_factors(tensor: DTensor, factors_at: Callable[[Indices], Array]) -> Array:
        return factors_at(indices_along(tensor.layout, tensor.shape, axis)).astype(complex_dtype)

    weighted = mapped(
        lambda block: block.astype(complex_dtype) * local_factors(tensor, input_factors), tensor, dtype=complex_dtype
    )
    names, blocks = tuple(tensor.layout.axes[axis]), tensor.layout.num_shards(axis)
    is_cyclic = step.rows and step.rows % blocks == 0
    spec = Cyclic.made(names, (step.rows // blocks, 0)).canonical(blocks) if is_cyclic else names
    layout = tensor.layout.replace(axis, spec)
    fft_step = ShardedStep(
        Transform("fftn", (axis,), (length,)), weighted.shape, complex_dtype, weighted.layout, layout, step.rows
    )
    spectrum = getitem(run(fft_step, weighted), leading(tensor.ndim, axis, n))

    def finish(block: Array) -> Array:
        product = block * local_factors(spectrum, output_factors)
        return (product.real if formula.cosine else -product.imag) * scale_of(transform, length, real_dtype, 2)

    return mapped(finish, spectrum, dtype=real_dtype)
