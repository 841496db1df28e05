"""Weighted averages of tensors."""

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import normalised_axes
from meshcomm._tracing import Value
from meshcomm._types import Axis
from meshcomm.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.ops.elementwise import agree_on_plain
from meshcomm.ops.reductions import mean
from meshcomm.ops.reductions import sum as sum_over
from meshcomm.ops.rules import aligned_axes, mesh_of
from meshcomm.ops.signatures import table
from meshcomm.ops.statistics import any


def average(
    a: DTensor, axis: Axis = None, weights: DTensor | ArrayLike | None = None, *, keepdims: bool = False
) -> DTensor:
    """Return the average over *axis*, as numpy.average. Collective over the mesh.

    Parameters
    ----------
    a: a tensor
    axis: one axis, several, or None for all
    weights: a tensor, or an array that is the same on all ranks, of the shape of *a*, or of one axis that is as long
        as *axis*; by default it is the mean
    keepdims: whether reduced axes stay, with length 1

    ``ZeroDivisionError`` on all ranks of the mesh if weights add up to zero somewhere. ``TypeError`` if *weights* have
    another shape and there is no one axis, ``ShapeError`` if they have another length.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 2, 4]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return float(np.average(t, weights=[1, 1, 2]))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [2.75, 2.75]
    """
    tensor = as_tensor("numpy.average", a)
    axes = normalised_axes(axis, tensor.ndim)
    if weights is None:
        return mean(tensor, axis, keepdims=keepdims)
    given: Value
    _, given = agree_on_plain("numpy.average", [tensor, unwrapped(weights)], mesh_of([tensor, unwrapped(weights)]))
    if given.shape != tensor.shape:
        if axis is None or len(axes) != 1 or given.ndim != 1:
            raise TypeError(
                f"numpy.average: weights of shape {given.shape} for a tensor of shape {tensor.shape} are for one "
                "axis: they have one axis themselves, and axis= says which one of the tensor they are for"
            )
        if given.shape[0] != tensor.shape[axes[0]]:
            raise ShapeError(
                f"numpy.average: {given.shape[0]} weights for axis {axes[0]} of shape {tensor.shape}; "
                "there must be one for each element"
            )
        given = given[tuple(slice(None) if a == axes[0] else None for a in range(tensor.ndim))]
    if not isinstance(given, DTensor):
        given = relayout(given, Layout(aligned_axes(given.shape, tensor.shape, tensor.layout), tensor.mesh))
    integers = tensor.dtype.kind in "biu"
    kind = np.result_type(tensor.dtype, given.dtype, *([np.float64] if integers else []))
    total: Value = sum_over(given, axis, kind, keepdims)
    if any(total == 0).local:
        raise ZeroDivisionError("numpy.average: weights add up to zero, so there is no average")
    with np.errstate(all="ignore"):  # a warning that is an error must not stop one rank before the exchange
        products: Value = np.multiply(tensor, given, dtype=kind)
    result: DTensor = sum_over(products, axis, None, keepdims) / total
    return result


FUNCTIONS = table((np.average, average))
"""What is called for functions of NumPy."""
