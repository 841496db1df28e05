"""Gradients of transforms, in the convention of autograd: for autograd.grad, and for programs that write their own."""

import numpy as np

from meshcomm._tracing import Value, untraced
from meshcomm._types import Shape
from meshcomm.arrays.dtensor import DTensor
from meshcomm.fft.apply import transformed
from meshcomm.fft.execute import Options
from meshcomm.fft.fitting import fitted
from meshcomm.fft.kinds import KINDS, Transform
from meshcomm.fft.planning import Wanted
from meshcomm.layouts.layout import Layout
from meshcomm.ops.gradients import differentiable, like


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
        if transform.norm != "ortho" or transform.orthogonalize is False:
            raise NotImplementedError(f'there is a gradient of {transform.kind} with norm="ortho" only')
        back = Transform(KINDS[transform.kind].inverse, *_same(transform))
        return like(_fit(transformed(grad, back, None, options), transform, shape), x)
    whole = Transform(KINDS[transform.kind].others, transform.axes, transform.lengths, transform.norm)
    found = _fit(transformed(grad, whole, None, options), transform, shape)
    if transform.change == "doubles":
        found = found * _weights(untraced(found), transform)
    return like(found, x)


def _same(transform: Transform) -> tuple[tuple[int, ...], tuple[int, ...], str | None, int, bool | None]:
    return transform.axes, transform.lengths, transform.norm, transform.variant, transform.orthogonalize


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
    shape = tuple(found.shape[a] if a == axis else 1 for a in range(found.ndim))
    layout = Layout([names if a == axis else () for a, names in enumerate(found.layout.axes)], found.mesh)
    local = None
    if found.mesh.rank is not None:
        index = layout.global_indices(shape, found.mesh.rank, axis)
        once = (index == 0) | (2 * index == n)
        real = np.empty(0, found.dtype).real.dtype
        local = np.where(once, 1, 2).astype(real).reshape([-1 if a == axis else 1 for a in range(found.ndim)])
    return DTensor(local, layout, shape, np.empty(0, found.dtype).real.dtype)


def _vjp(grad: Value, x: Value, transform: Transform, layout: Wanted, options: Options) -> Value:
    return transform_vjp(grad, x, transform, options._replace(overwrite=False))


differentiable(transformed, _vjp)
