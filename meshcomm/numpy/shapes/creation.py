"""Tensors of one value, like other tensors; triangles of matrices, and coordinates of grids. Nothing moves."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshcomm.blocks.align import replicated, tensors_of
from meshcomm.blocks.make import indices_along, mapped
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import as_integer, as_shape, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Indices, Shape, ShapeLike
from meshcomm.core.arrays import create
from meshcomm.core.arrays._recipes import Call, OnBlocks
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.arrays.operators import LIKE_FUNCTIONS
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import new_block
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import Function, implements, implements_each, operation
from meshcomm.numpy.reductions.reductions import spread
from meshcomm.numpy.shapes.shaping import broadcast_to

Triangle: TypeAlias = Callable[[Indices, Indices], Array]
"""A function from row numbers and column numbers to whether elements are in a triangle."""


@operation(np.empty_like, partly=True)
def empty_like(
    prototype: DTensor, dtype: DTypeLike | None = None, *, shape: ShapeLike | None = None
) -> Call | DTensor:
    """Return an uninitialised tensor with the layout, and by default the shape and the dtype, of *prototype*.

    A tensor of another *shape* is cut along the same axes if it has equally many; else it is replicated.
    """
    spec = _spec_like("empty_like", prototype, dtype, shape)
    return _filling_call(prototype, *spec, None) or create.empty(*spec)


@operation(np.full_like, partly=True)
def full_like(
    a: DTensor, fill_value: ArrayLike, dtype: DTypeLike | None = None, *, shape: ShapeLike | None = None
) -> Call | DTensor:
    """Return a tensor of the scalar *fill_value*. Other arguments are those of `empty_like`."""
    lengths, result_dtype, layout = _spec_like("full_like", a, dtype, shape)
    call = _filling_call(a, lengths, result_dtype, layout, fill_value) if type(fill_value) in (int, float) else None
    return call or create.full(lengths, fill_value, result_dtype, layout)


@operation(np.zeros_like, partly=True)
def zeros_like(a: DTensor, dtype: DTypeLike | None = None, *, shape: ShapeLike | None = None) -> Call | DTensor:
    """Return a tensor of zeros. Arguments are those of `empty_like`."""
    spec = _spec_like("zeros_like", a, dtype, shape)
    return _filling_call(a, *spec, 0) or create.zeros(*spec)


@operation(np.ones_like, partly=True)
def ones_like(a: DTensor, dtype: DTypeLike | None = None, *, shape: ShapeLike | None = None) -> Call | DTensor:
    """Return a tensor of ones. Arguments are those of `empty_like`."""
    spec = _spec_like("ones_like", a, dtype, shape)
    return _filling_call(a, *spec, 1) or create.ones(*spec)


def _filling_call(like: object, shape: Shape, dtype: DTypeLike, layout: Layout, number: object) -> Call | None:
    """Return the call that makes a tensor filled with *number*; uninitialised if that is None.

    Return None if *shape* is not that of *like*, or if the dtype is not numeric or cannot hold the number.
    """
    tensor, result_dtype = as_tensor("a tensor like another one", like), np.dtype(dtype)
    if shape != tensor.shape or result_dtype.kind not in "biufc":
        return None
    try:
        value = None if number is None else np.full((), number, result_dtype)[()]
    except (TypeError, ValueError, OverflowError):  # the slow path raises it, with all details
        return None

    def block_of(block: Array) -> Array:
        result = new_block(block.shape, result_dtype)
        if value is not None:
            result.fill(value)
        return result

    return Call(OnBlocks(block_of, TensorSpec(layout, shape, result_dtype)), (tensor,))


def _spec_like(
    name: str, prototype: DTensor, dtype: DTypeLike | None, shape: ShapeLike | None
) -> tuple[Shape, DTypeLike, Layout]:
    """Return shape, dtype and layout of a tensor like *prototype*, with *dtype* and *shape* if they are not None."""
    tensor = as_tensor(name, prototype)
    result_dtype, layout = tensor.dtype if dtype is None else dtype, tensor.layout
    lengths = tensor.shape if shape is None else as_shape(shape)
    if lengths != tensor.shape:
        same_ndim = len(lengths) == tensor.ndim
        layout = layout.default_cut(range(tensor.ndim)) if same_ndim else Layout.replicated(tensor.mesh, len(lengths))
    return lengths, result_dtype, layout


@implements(np.tril, partly=True)
def tril(m: DTensor, k: int = 0) -> DTensor:
    """Return the lower triangle of each matrix, up to its diagonal number *k*, with zeros above.

    The matrices lie along the last two axes; the layout stays. A tensor with one axis is repeated as the rows of a
    matrix. ``ShapeError`` if there are no axes.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return np.tril(mc.ones((3, 3), int, rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[1, 0, 0], [1, 1, 0]], [[1, 1, 1]]]
    """
    diagonal = as_integer(k, "k", ShapeError)
    return _triangle("tril", m, lambda rows, columns: columns <= rows + diagonal)


@implements(np.triu, partly=True)
def triu(m: DTensor, k: int = 0) -> DTensor:
    """Return the upper triangle of each matrix, from its diagonal number *k* on, with zeros below; see `tril`."""
    diagonal = as_integer(k, "k", ShapeError)
    return _triangle("triu", m, lambda rows, columns: columns >= rows + diagonal)


def _triangle(name: str, matrices: DTensor, is_inside: Triangle) -> DTensor:
    tensor = as_tensor(name, matrices)
    if tensor.ndim == 0:
        raise ShapeError(f"{name} takes matrices, or a row for all rows of one, but this tensor has no axes")
    if tensor.ndim == 1:
        tensor = broadcast_to(tensor, tensor.shape * 2)
    zero = np.zeros((), tensor.dtype)
    dtype = np.where(True, zero, zero).dtype  # in native byte order, as numpy.tril has it

    def triangle(block: Array) -> Array:
        rows, columns = (indices_along(tensor.layout, tensor.shape, tensor.ndim - from_end) for from_end in (2, 1))
        return np.where(is_inside(rows, columns), block, zero)

    return mapped(triangle, tensor, dtype=dtype)


@implements(np.meshgrid)
def meshgrid(*xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[DTensor, ...]:
    """Return the coordinates of the points of a grid, from the coordinates along each of its axes.

    Each result is sharded along the axis of its own coordinates, as these are. Collective over the mesh if an operand
    is a plain array.

    Parameters
    ----------
    xi: coordinates along each axis: tensors, or arrays that are the same on all ranks
    copy: whether to return copies; views must not be written to
    sparse: whether each result has length 1 along the axes of the others
    indexing: order of the first two axes, "xy" or "ij"
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', not {quote(indexing)}")
    lines = [tensor_np.ravel(x) for x in tensors_of("numpy.meshgrid", xi)]
    axes = list(range(len(lines)))
    if indexing == "xy":
        axes[:2] = reversed(axes[:2])
    shape = tuple(lines[axis].size for axis in axes)  # to exchange two axes is its own inverse
    if copy and not sparse:
        return tuple(_repeated(tensor, axis, shape) for tensor, axis in zip(lines, axes, strict=True))
    all_axes = range(len(axes))
    grid = [tensor_np.expand_dims(t, [a for a in all_axes if a != axis]) for t, axis in zip(lines, axes, strict=True)]
    if not sparse:
        return tuple([tensor_np.broadcast_to(t, shape) for t in grid])
    return tuple(t.copy() if copy else t for t in grid)


def _repeated(tensor: DTensor, axis: int, shape: tuple[int, ...]) -> DTensor:
    """Return a vector repeated to *shape*: its elements are along *axis*."""
    other_axes = tuple(a for a in range(len(shape)) if a != axis)
    layout = Layout([tensor.layout.axes[0] if a == axis else () for a in range(len(shape))], tensor.mesh)
    return spread(tensor, other_axes, shape, layout)


@implements_each(*LIKE_FUNCTIONS)
def _with_like(function: Function) -> Function:
    """Return NumPy's *function* for ``like=`` a tensor: all of the array on each rank of its mesh."""

    def create_like(*args: Value, like: DTensor, **kwargs: Value) -> DTensor:
        if args and isinstance(args[0], DTensor):  # of asarray and similar functions
            dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
            return args[0] if dtype is None else args[0].astype(dtype, copy=False)
        return replicated(np.asarray(function(*args, **kwargs)), like.mesh)

    return create_like
