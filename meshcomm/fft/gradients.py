"""Gradients of transforms, in the convention of autograd: for autograd.grad, and for programs that write their own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from meshcomm.blocks.make import indices_along, mapped
from meshcomm.core._tracing import Value, untraced
from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.fft.apply import transformed
from meshcomm.fft.execute import Options
from meshcomm.fft.fitting import fitted
from meshcomm.fft.kinds import KINDS, Transform
from meshcomm.fft.planning import FFTPlan, Wanted, planned, transform_of_plan
from meshcomm.numpy.gradients import differentiable, like


@refusable
def transform_vjp(grad: Value, x: Value, transform: Transform, options: Options | None = None) -> Value:
    """Return the gradient in *x* of its *transform*, from that in the result. Collective over the mesh.

    The matrix of a complex transform is symmetric, so the gradient is the same transform of *grad*. A halved axis had
    only some of its elements taken; on an axis that doubles, elements count twice, but for the first one, and for the
    one in the middle of an even length.

    Parameters
    ----------
    grad: the gradient in the result
    x: what was transformed
    transform: the transform
    options: how it was done; by default with the usual backend
    """
    shape: Shape = untraced(x).shape
    options = options or Options()
    if transform.change == "real":
        return like(_fit(_transposed(grad, transform, options), transform, shape), x)
    whole = Transform(KINDS[transform.kind].others, transform.axes, transform.lengths, transform.norm)
    found = _fit(transformed(grad, whole, None, options), transform, shape)
    if transform.change == "doubles":
        found = found * _weights(untraced(found), transform)
    return like(found, x)


def _transposed(grad: Value, transform: Transform, options: Options) -> Value:
    """Return the transposed matrix of a cosine or sine transform times *grad*.

    That of an orthogonal one is its inverse, with the scale of the transform itself. The others differ from orthogonal
    ones at the ends of an axis, by a factor of 2.
    """
    norm = {"forward": "backward", "ortho": "ortho"}.get(transform.norm or "", "forward")
    if untraced(grad).dtype.kind == "c":
        transform = replace(transform, orthogonalize=None)  # which SciPy drops for complex numbers
    orthogonal, of_matrix = transform.is_orthogonal, transform.of_matrix
    inverse = replace(transform.inverse, norm=norm, orthogonalize=orthogonal)
    differ = not orthogonal and of_matrix != 4
    found = grad
    if differ and of_matrix != 3:
        found = _ends_times(found, transform, 2.0)
    found = transformed(found, inverse, None, options)
    return _ends_times(found, transform, 0.5) if differ and of_matrix != 2 else found


def _ends_times(tensor: Value, transform: Transform, factor: float) -> Value:
    """Return *tensor* with the elements that cosines and sines count once, at ends of the axes, times *factor*."""
    for axis, n in zip(transform.axes, transform.lengths, strict=True):
        if ends := transform.ends(n):
            tensor = tensor * _along(untraced(tensor), axis, partial(_at_ends, ends, factor))
    return tensor


def _at_ends(ends: list[int], factor: float, index: Indices) -> Array:
    return np.where(np.isin(index, ends), factor, 1.0)


def _fit(grad: Value, transform: Transform, shape: Shape) -> Value:
    """Return the gradient in what was cropped, or got zeros, before the transform."""
    last = transform.last if transform.change == "doubles" else None
    found = grad
    for axis, n in zip(transform.axes, transform.lengths, strict=True):
        if axis == last and found.shape[axis] != n // 2 + 1:
            found = fitted(found, axis, n // 2 + 1)
        if found.shape[axis] != shape[axis]:
            found = fitted(found, axis, shape[axis])
    return found


def _weights(found: DTensor, transform: Transform) -> DTensor:
    """Return how often each element of the half of a spectrum counts, as a tensor that broadcasts with *found*."""
    axis, n = transform.axes[-1], transform.lengths[-1]
    return _along(found, axis, lambda index: np.where((index == 0) | (2 * index == n), 1, 2))


def _along(found: DTensor, axis: int, values: Callable[[Indices], Array]) -> DTensor:
    """Return a tensor of *values* of the indices along *axis*; it broadcasts with *found*, and is sharded alike."""
    shape = tuple(found.shape[a] if a == axis else 1 for a in range(found.ndim))
    layout = found.layout.only(axis)
    real = np.empty(0, found.dtype).real.dtype
    index = partial(indices_along, layout, shape, axis)
    return mapped(lambda block: values(index()).astype(real), found, layout=layout, shape=shape, dtype=real)


def _vjp(grad: Value, x: Value, transform: Transform, layout: Wanted, options: Options) -> Value:
    return transform_vjp(grad, x, transform, options._replace(overwrite=False))


def _vjp_of_plan(grad: Value, x: Value, plan: FFTPlan, way: str) -> Value:
    return transform_vjp(grad, x, transform_of_plan(plan, way), plan.options)


differentiable(transformed, _vjp)
differentiable(planned, _vjp_of_plan)
