"""Gradients of transforms, in the convention of autograd: for autograd.grad, and for programs that write their own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from meshcomm.blocks.make import indices_along, mapped
from meshcomm.core._tracing import untraced
from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.fft.apply import transformed
from meshcomm.fft.execute import FFTOptions
from meshcomm.fft.kinds import KINDS, Transform
from meshcomm.fft.padding import pad_or_crop
from meshcomm.fft.planning import FFTPlan, ResultLayout, execute_plan, transform_of_plan
from meshcomm.numpy.gradients import differentiable, in_layout_of


@refusable
def transform_vjp(grad: DTensor, x: DTensor, transform: Transform, options: FFTOptions | None = None) -> DTensor:
    """Return the gradient with respect to *x* from that with respect to its *transform*. Collective over the mesh.

    The matrix of a complex transform is symmetric, so the gradient is the same transform of *grad*. rfft is an fft
    cropped to n//2 + 1, so its gradient is padded to n. For irfft each coefficient but DC and Nyquist stands for two
    conjugate ones and gets weight 2.

    Parameters
    ----------
    grad: the gradient with respect to the result
    x: the input of the transform
    transform: the transform
    options: options of the transform; by default the default backend
    """
    options = options or FFTOptions()
    if transform.change == "same_dtype":
        resized = _transposed_product(grad, transform, options)
    else:
        complex_kind = KINDS[transform.kind].complex_kind
        complex_transform = Transform(complex_kind, transform.axes, transform.lengths, transform.norm)
        resized = transformed(grad, complex_transform, None, options)
    gradient = _undo_resizing(resized, transform, untraced(x).shape)
    if transform.change == "doubles":
        gradient = gradient * _weights(untraced(gradient), transform)
    return in_layout_of(gradient, x)


def _transposed_product(grad: DTensor, transform: Transform, options: FFTOptions) -> DTensor:
    """Return the transposed matrix of a cosine or sine transform times *grad*.

    The transposed matrix of an orthogonal transform is its inverse, with the scale of the transform itself. Other
    transforms differ from orthogonal ones by a factor of 2 at the ends of an axis.
    """
    norm = {"forward": "backward", "ortho": "ortho"}.get(transform.norm or "", "forward")
    if untraced(grad).dtype.kind == "c":
        transform = replace(transform, orthogonalize=None)  # SciPy drops it for complex numbers
    is_orthogonal, matrix_type = transform.is_orthogonal, transform.matrix_type
    inverse = replace(transform.inverse, norm=norm, orthogonalize=is_orthogonal)
    needs_end_factors = not is_orthogonal and matrix_type != 4
    result = grad
    # Scale the input for types 1 and 2, the output for types 1 and 3.
    if needs_end_factors and matrix_type != 3:
        result = _ends_times(result, transform, 2.0)
    result = transformed(result, inverse, None, options)
    return _ends_times(result, transform, 0.5) if needs_end_factors and matrix_type != 2 else result


def _ends_times(tensor: DTensor, transform: Transform, factor: float) -> DTensor:
    """Return *tensor* with the elements at `Transform.end_indices` of the axes multiplied by *factor*."""
    for axis, n in zip(transform.axes, transform.lengths, strict=True):
        if ends := transform.end_indices(n):
            tensor = tensor * _tensor_along(untraced(tensor), axis, partial(_at_ends, ends, factor))
    return tensor


def _at_ends(ends: list[int], factor: float, index: Indices) -> Array:
    return np.where(np.isin(index, ends), factor, 1.0)


def _undo_resizing(grad: DTensor, transform: Transform, shape: Shape) -> DTensor:
    """Pad or crop the gradient back to the *shape* of the transform's input."""
    doubled_axis = transform.resized_axis if transform.change == "doubles" else None
    for axis, n in zip(transform.axes, transform.lengths, strict=True):
        if axis == doubled_axis:
            grad = pad_or_crop(grad, axis, n // 2 + 1)
        grad = pad_or_crop(grad, axis, shape[axis])
    return grad


def _weights(spectrum: DTensor, transform: Transform) -> DTensor:
    """Return the weight, 1 or 2, of each element of half a spectrum, as a tensor that broadcasts with *spectrum*."""
    axis, n = transform.axes[-1], transform.lengths[-1]
    return _tensor_along(spectrum, axis, lambda index: np.where((index == 0) | (2 * index == n), 1, 2))


def _tensor_along(spectrum: DTensor, axis: int, values: Callable[[Indices], Array]) -> DTensor:
    """Return *values* of the indices along *axis*, as a tensor that broadcasts with *spectrum*, sharded alike."""
    shape = tuple(spectrum.shape[a] if a == axis else 1 for a in range(spectrum.ndim))
    layout = spectrum.layout.only(axis)
    dtype = np.empty(0, spectrum.dtype).real.dtype
    index = partial(indices_along, layout, shape, axis)
    return mapped(lambda block: values(index()).astype(dtype), spectrum, layout=layout, shape=shape, dtype=dtype)


def _vjp(grad: DTensor, x: DTensor, transform: Transform, layout: ResultLayout, options: FFTOptions) -> DTensor:
    return transform_vjp(grad, x, transform, options._replace(overwrite=False))


def _vjp_of_plan(grad: DTensor, x: DTensor, plan: FFTPlan, direction: str) -> DTensor:
    return transform_vjp(grad, x, transform_of_plan(plan, direction), plan.options)


differentiable(transformed, _vjp)
differentiable(execute_plan, _vjp_of_plan)
