"""Transposes of tensors."""

from collections.abc import Iterable, Sequence
from operator import methodcaller

import numpy as np

from meshcomm.blocks.views import viewing
from meshcomm.core._arguments import as_integer, normalised_axes
from meshcomm.core._tracing import is_traced, traceable
from meshcomm.core.arrays._recipes import Call, completed
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.arrays.transposed import relayout_transposed
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mistakes import no_layout
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements, operation


@operation(np.transpose)
def transpose(t: DTensor, axes: Sequence[int] | None = None, layout: Layout | None = None) -> Call | DTensor:
    """Return a view with the axes in another order; with *layout* a copy, Collective over the meshes of both layouts.

    ``ShapeError`` unless *axes* has every axis once.

    Parameters
    ----------
    t: a tensor
    axes: axis of *t* for each axis of the result; by default in reverse order
    layout: layout of the result, to which it is copied in one step; by default a view

    >>> import meshcomm as mc
    >>> def program():
    ...     t = mc.zeros((2, 3), "i4", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.T.layout.sharding_specs, t.T.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (['unsharded', 'x'], [[0], [0], [0]])
    """
    return _transposed(t, axes) if layout is None else _transpose(t, axes, layout)


@refusable
def _transpose(t: DTensor, axes: Sequence[int] | None, layout: Layout) -> DTensor:
    if is_traced(t):
        return relayout(completed(_transposed(t, axes)), layout)
    if not isinstance(layout, Layout):
        raise no_layout("transpose takes a Layout", layout)
    tensor = as_tensor("transpose", t)
    return relayout_transposed(tensor, _axis_order(tensor, axes), layout)


def _axis_order(tensor: DTensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    axes_list = range(tensor.ndim)[::-1] if axes is None else axes if isinstance(axes, Iterable) else (axes,)
    order = tuple([as_integer(a, "an axis", TypeError) for a in axes_list])
    if normalised_axes(order, tensor.ndim) != tuple(range(tensor.ndim)):
        raise ShapeError(f"axes {order} must have every axis of a tensor of shape {tensor.shape} once")
    return tuple(axis % tensor.ndim for axis in order)


@traceable(twin=np.transpose)
def _transposed(t: DTensor, axes: Sequence[int] | None) -> Call | DTensor:
    tensor = as_tensor("transpose", t)
    order = _axis_order(tensor, axes)
    return viewing(methodcaller("transpose", order), tensor, tensor.layout.take(order))


@implements(getattr(np, "matrix_transpose", None), getattr(np.linalg, "matrix_transpose", None))
def matrix_transpose(x: DTensor) -> DTensor:
    """Return a view of the tensor with its last two axes exchanged; ``ShapeError`` if it has no two."""
    return as_tensor("matrix_transpose", x).mT
