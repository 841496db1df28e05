"""Weighted averages of tensors."""

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, tensors_of
from meshcomm.blocks.rules import aligned_axes, mesh_of
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import as_array, normalised_axes
from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._tracing import Value
from meshcomm.core._types import Axis
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.reductions.reductions import mean
from meshcomm.numpy.reductions.reductions import sum as sum_over
from meshcomm.numpy.statistics.statistics import any


@implements(np.average, partly=True)
def average(
    a: DTensor | ArrayLike,
    axis: Axis = None,
    weights: DTensor | ArrayLike | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Value:
    """Return the average over *axis*, as numpy.average. Collective over the mesh.

    Parameters
    ----------
    a: tensor, or array if *weights* are a tensor
    axis: one axis, several, or None for all
    weights: tensor, or array that is the same on all ranks, of the shape of *a* or of its lengths along *axis*;
        by default all weights are equal
    returned: whether to return the sums of the weights, too
    keepdims: whether reduced axes stay, with length 1

    ``ZeroDivisionError`` on all ranks of the mesh if weights add up to zero somewhere, or, without *weights*, the
    result has no elements. ``TypeError`` if *weights* have another shape and *axis* is None, ``ShapeError`` if they
    have another shape than *a* along *axis*.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 2, 4]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return float(np.average(t, weights=[1, 1, 2]))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [2.75, 2.75]
    """
    if isinstance(unwrapped(weights), DTensor):
        a, weights = tensors_of("numpy.average", [a, weights])
    tensor, axis = as_tensor("numpy.average", a), tuple(axis) if isinstance(axis, list) else axis
    if weights is None:
        unweighted = mean(tensor, axis, keepdims=keepdims)
        count = tensor.size / unweighted.size  # ZeroDivisionError for no elements, as in NumPy
        return (unweighted, np.full_like(unweighted, count)) if returned else unweighted
    weights_tensor = weights_along("numpy.average", tensor, weights, axis)
    is_integer = tensor.dtype.kind in "biu"
    product_dtype = np.result_type(tensor.dtype, weights_tensor.dtype, *([np.float64] if is_integer else []))
    weight_sum = sum_over(weights_tensor, axis, product_dtype, keepdims)
    is_zero = weight_sum == 0  # in a script a number, if there is only one element
    if any(is_zero)._block if isinstance(is_zero, DTensor) else is_zero:
        raise ZeroDivisionError("numpy.average: weights add up to zero, so there is no average")
    with not_raising_float_errors():
        products = tensor_np.multiply(tensor, weights_tensor, dtype=product_dtype)
    result = sum_over(products, axis, None, keepdims) / weight_sum
    return (result, tensor_np.broadcast_to(weight_sum, result.shape).copy()) if returned else result


def weights_along(name: str, tensor: DTensor, weights: DTensor | ArrayLike, axis: Axis) -> DTensor:
    """Return weights as a tensor that broadcasts to *tensor*: of its shape, or of its lengths along *axis*.

    Collective over the mesh if they are a plain array. *name* is the operation; the errors are those of `average`.
    """
    _, agreed_weights = agree_on_plain(name, [tensor, unwrapped(weights)], mesh_of([tensor, unwrapped(weights)]))
    factors = agreed_weights if isinstance(agreed_weights, DTensor) else as_array(agreed_weights)
    if factors.shape != tensor.shape:
        if axis is None:
            raise TypeError(
                f"{name}: Axis must be specified when shapes of a and weights differ. They are {tensor.shape} and "
                f"{factors.shape}"
            )
        normalised_axes(axis, tensor.ndim)  # raises for a bad axis
        axes = [a % tensor.ndim for a in (axis if isinstance(axis, tuple | list) else (axis,))]
        if factors.shape != tuple(tensor.shape[a] for a in axes):
            raise ShapeError(
                f"{name}: Shape of weights must be consistent with shape of a along specified axis; they are "
                f"{factors.shape} and {tensor.shape}, and the axis is {axis}"
            )
        factors = tensor_np.transpose(factors, np.argsort(axes))
        factors = factors[tuple(slice(None) if a in axes else None for a in range(tensor.ndim))]
    if isinstance(factors, DTensor):
        return factors
    return relayout(factors, Layout(aligned_axes(factors.shape, tensor.shape, tensor.layout), tensor.mesh))
