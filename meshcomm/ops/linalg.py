"""Transposes and matrix products of tensors."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import counted, integer, normalised_axes
from meshcomm._tracing import is_traced, traceable
from meshcomm._types import Shape
from meshcomm.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.arrays.transposed import relayout_transposed
from meshcomm.arrays.views import strides_of, view_of
from meshcomm.errors import ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mistakes import no_layout
from meshcomm.ops.elementwise import agree_on_plain, relaid
from meshcomm.ops.reductions import Partial, run_partial
from meshcomm.ops.rules import mesh_of, product_axes, result_dtype, shape_of, sharding
from meshcomm.ranks.local_errors import refusable


def transpose(t: DTensor, axes: Sequence[int] | None = None, layout: Layout | None = None) -> DTensor:
    """Return a view with the axes in another order; with *layout* a copy, Collective over the meshes of both layouts.

    ``ShapeError`` unless *axes* has every axis once.

    Parameters
    ----------
    t: a tensor
    axes: for each axis of the result, which one of *t* it is; by default they are reversed
    layout: of the result, which is copied there at once; by default each axis keeps its sharding, nothing is copied

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
        return relayout(_transposed(t, axes), layout)
    if not isinstance(layout, Layout):
        raise no_layout("transpose takes a Layout", layout)
    tensor = as_tensor("transpose", t)
    return relayout_transposed(tensor, _order(tensor, axes), layout)


def _order(tensor: DTensor, axes: Sequence[int] | None) -> tuple[int, ...]:
    given = range(tensor.ndim)[::-1] if axes is None else axes
    order = tuple([integer(a, "an axis", TypeError) for a in given])
    if normalised_axes(order, tensor.ndim) != tuple(range(tensor.ndim)):
        raise ShapeError(f"axes {order} must have every axis of a tensor of shape {tensor.shape} once")
    return tuple(axis % tensor.ndim for axis in order)


@traceable(twin=np.transpose)
def _transposed(t: DTensor, axes: Sequence[int] | None) -> DTensor:
    tensor = as_tensor("transpose", t)
    order = _order(tensor, axes)
    layout = Layout([tensor.layout.axes[a] for a in order], tensor.mesh)
    local, strides = None if tensor.local is None else tensor.local.transpose(order), strides_of(tensor)
    return view_of(tensor, local, layout, *(tuple(each[a] for a in order) for each in (tensor.shape, strides)))


def matrix_transpose(x: DTensor) -> DTensor:
    """Return a view of the tensor with its last two axes exchanged; ``ShapeError`` if it has no two."""
    return as_tensor("matrix_transpose", x).mT


@refusable
@traceable(2, twin=np.matmul)
def matmul(a: DTensor | ArrayLike, b: DTensor | ArrayLike) -> DTensor:
    """Return the matrix product of tensors of one or two axes; one of them may be a plain array. Collective.

    The tensors may be in any layouts on one mesh. Rows of the result are sharded as those of *a*, columns as those of
    *b*, with the mesh dimensions that rows do not use. The axis that is summed over stays sharded along the other mesh
    dimensions: each device multiplies its blocks, and the products are added up. Operands that are sharded otherwise
    are relaid. Nothing is sent if the summed axis is not sharded and no operand moves. ``ShapeError`` if the shapes do
    not fit, ``MeshError`` for tensors on several meshes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     a = mc.distribute(np.arange(4).reshape(2, 2), mc.Layout([mc.UNSHARDED, "x"], mesh))
    ...     return (a @ np.eye(2, dtype=int)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[0, 1], [2, 3]]
    """
    given = [unwrapped(x) for x in (a, b)]
    mesh = mesh_of(given)
    operands = agree_on_plain("numpy.matmul", given, mesh)
    _check_product(*map(shape_of, operands))
    left, right = (x if isinstance(x, DTensor) else relayout(x, Layout.replicated(mesh, np.ndim(x))) for x in operands)
    dtype = result_dtype(np.matmul, [left.dtype, right.dtype], 2)
    rows, summed, columns = product_axes(left.layout.axes, right.layout.axes)
    left = relaid(left, (*rows, summed), "matmul")
    right = relaid(right, (summed, *columns), "matmul")
    layout, shape = Layout((*rows, *columns), mesh), (*left.shape[:-1], *right.shape[1:])
    local, names = None, sharding(mesh, summed)
    if left.local is not None and right.local is not None:
        # An overflow, which concerns one rank, must not stop it while the others go on to the exchange.
        with np.errstate(all="ignore") if names else nullcontext():
            local = np.asarray(np.matmul(left.local, right.local), dtype, order="C")
    key = ("matmul", left.layout, right.layout, left.shape, right.shape, dtype)
    partial = Partial(key, "matmul", lambda block: block, names, "sum", dtype)
    return run_partial(partial, DTensor(local, layout, shape, dtype), layout, shape)


def _check_product(a: Shape, b: Shape) -> None:
    for name, shape in (("first", a), ("second", b)):
        if len(shape) not in (1, 2):
            raise ShapeError(f"matmul takes tensors of 1 or 2 axes, but the {name} has shape {shape}")
    if a[-1] != b[0]:
        raise ShapeError(
            f"matmul of shapes {a} and {b}: the last axis of the first has {counted(a[-1], 'element')} "
            "and the first axis of the "
            f"second {b[0]}; they must be equal"
        )
