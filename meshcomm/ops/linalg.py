"""Transposes and matrix products of tensors."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm._arguments import normalised_axes
from meshcomm._tracing import traceable
from meshcomm._types import Names
from meshcomm.arrays.dtensor import DTensor, unwrapped
from meshcomm.arrays.relayout import relayout
from meshcomm.errors import ShapeError
from meshcomm.layouts.layout import Axes, Layout
from meshcomm.memory.copies import exact_copy
from meshcomm.ops.elementwise import agree_on_plain, mesh_of, relaid, shape_of
from meshcomm.ops.reductions import Partial, as_tensor, run_partial, sharding


@traceable(twin=np.transpose)
def transpose(t: DTensor, axes: Sequence[int] | None = None) -> DTensor:
    """Return the tensor with its axes in another order, by default reversed; their sharding goes along. Local.

    ``ShapeError`` unless *axes* has every axis once.

    >>> import meshcomm as mc
    >>> def program():
    ...     t = mc.zeros((2, 3), "i4", mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     return t.T.layout.sharding_specs, t.T.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (['unsharded', 'x'], [[0], [0], [0]])
    """
    tensor = as_tensor("transpose", t)
    order = tuple(reversed(range(tensor.ndim))) if axes is None else tuple(int(a) for a in axes)
    if normalised_axes(order, tensor.ndim) != tuple(range(tensor.ndim)):
        raise ShapeError(f"axes {order} must have every axis of a tensor of shape {tensor.shape} once")
    layout = Layout([tensor.layout.axes[a] for a in order], tensor.mesh)
    local = None if tensor.local is None else exact_copy(tensor.local.transpose(order))
    return DTensor(local, layout, tuple(tensor.shape[a] for a in order), tensor.dtype)


@traceable(2, twin=np.matmul)
def matmul(a: DTensor | ArrayLike, b: DTensor | ArrayLike) -> DTensor:
    """Return the matrix product of tensors of one or two axes, one of which may be a plain array. Collective.

    In any layouts, over one mesh. Rows are sharded as those of *a*, columns as those of *b*. The axis that is summed
    over stays sharded, and partial products are added up, with the mesh dimensions that rows and columns do not use;
    other operands are relaid. Local if no axis that is summed over is sharded and nothing moves. ``ShapeError`` if the
    shapes do not fit, ``MeshError`` for tensors on several meshes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     mesh = mc.create_mesh([("x", 2)])
    ...     a = mc.distribute(np.arange(4).reshape(2, 2), mc.Layout([mc.UNSHARDED, "x"], mesh))
    ...     return (a @ np.eye(2, dtype=int)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[0, 1], [2, 3]]
    """
    operands = [unwrapped(x) for x in (a, b)]
    mesh = mesh_of(operands)
    operands = agree_on_plain("numpy.matmul", operands, mesh)
    shapes = [shape_of(x) for x in operands]
    _check_product(*shapes)
    left, right = (x if isinstance(x, DTensor) else relayout(x, Layout.replicated(mesh, x.ndim)) for x in operands)
    dtype = np.asarray(np.matmul(np.ones((1, 1), left.dtype), np.ones((1, 1), right.dtype))).dtype
    rows, summed, columns = _product_axes(left.layout.axes, right.layout.axes)
    left = relaid(left, (*rows, summed))
    right = relaid(right, (summed, *columns))
    layout, shape = Layout((*rows, *columns), mesh), (*left.shape[:-1], *right.shape[1:])
    local = None
    if left.local is not None and right.local is not None:
        local = np.asarray(np.matmul(left.local, right.local), dtype, order="C")
    names = sharding(mesh, set(summed))
    key = ("matmul", left.layout, right.layout, left.shape, right.shape, dtype)
    partial = Partial(key, "matmul", lambda block: block, names, "sum", dtype)
    return run_partial(partial, DTensor(local, layout, shape, dtype), layout, shape)


def _check_product(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for name, shape in (("first", a), ("second", b)):
        if len(shape) not in (1, 2):
            raise ShapeError(f"matmul takes tensors of 1 or 2 axes, but the {name} has shape {shape}")
    if a[-1] != b[0]:
        raise ShapeError(
            f"matmul of shapes {a} and {b}: the last axis of the first has {a[-1]} elements and the first axis of the "
            f"second {b[0]}; they must be equal"
        )


def _product_axes(a: Axes, b: Axes) -> tuple[Axes, Names, Axes]:
    """Return how the rows of a product are sharded, the axis that is summed over, and the columns.

    >>> _product_axes((("x",), ()), ((), ("y",)))
    ((('x',),), (), (('y',),))
    >>> _product_axes(((), ("x",)), (("x",), ()))
    (((),), ('x',), ((),))
    >>> _product_axes((("x",), ("y",)), (("y",), ("x",)))
    ((('x',),), ('y',), ((),))
    """
    rows = a[:-1]
    used = {name for names in rows for name in names}
    columns = tuple(tuple(name for name in names if name not in used) for names in b[1:])
    used.update(name for names in columns for name in names)
    free = (tuple(name for name in names if name not in used) for names in (a[-1], b[0]))
    return rows, next(filter(None, free), ()), columns
