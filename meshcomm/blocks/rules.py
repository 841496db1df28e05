"""The rules of operations on tensors: which operands they take, and the shape, dtype and layout of a result.

How the operands of an elementwise function come together:

1. Shapes broadcast as NumPy's do. An axis of length 1 that is stretched counts as unsharded.
2. The tensors are considered in the order of their sizes, the largest first, equal sizes from left to right. Each
   adds its sharding on the axes of the result that are still unsharded, with mesh dimensions that are still unused.
   If a tensor with more bytes has the same mesh dimensions on an axis, but cuts it in another way (`Cuts`, `Cyclic`),
   the other one moves. If both have equally many bytes and their cuts are close, as in ``t[:-2] + t[1:-1]``, the one
   with the more even blocks wins: the slice in the middle, to which programs mostly write the result.
3. Every operand is relaid to that layout. Nothing moves where an operand has it already, and a replicated operand is
   only sliced.

So ``[x, unsharded] + [unsharded, y]`` is ``[x, y]``, ``[x, unsharded] + [unsharded, x]`` is ``[x, unsharded]``, and
``x + relayout_like(ones, x)`` moves nothing. With ``out=``, as in ``x += y``, the layout is that of *out*.

The dtype of a result is that of NumPy's result for small arrays with the dtypes of the operands.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.core._arguments import ndim_of, quote
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Names, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.coordinates import devices_along
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.refinement import same_grid
from meshcomm.core.layouts.specs import cut_of, free_names
from meshcomm.errors import LayoutError, MeshError, ShapeError

R = TypeVar("R")

Number: TypeAlias = bool | int | float | complex | np.generic
Operand: TypeAlias = DTensor | Array | Number

NUMBERS = (bool, int, float, complex, np.generic)
ADVICE = "use t.local for the block of this rank, or t.to_numpy() for the global array (Collective)"


# -- operands ---------------------------------------------------------------------------------------------------------


def is_operand(x: object) -> bool:
    """Return whether *x* can be combined with a DTensor: a tensor, a number, an array, or nested lists of numbers."""
    return isinstance(x, (DTensor, np.ndarray, list, tuple, *NUMBERS))


def text_as_scalar(x: object) -> object:
    """Return a Python string as a NumPy scalar, which is an operand; anything else unchanged."""
    return np.asarray(x)[()] if isinstance(x, str | bytes) else x


def not_operand(name: str, x: object) -> str:
    """Return why *x* cannot be an operand of the function *name*."""
    return f"{name} of DTensors takes tensors, arrays and numbers, not {type(x).__name__} {quote(x)}"


def is_plain(x: object) -> bool:
    """Return whether *x* is a plain array, or a list, with axes that can be sharded."""
    if isinstance(x, (DTensor, *NUMBERS)):
        return False
    return isinstance(x, list | tuple) or ndim_of(x) > 0


def mesh_of(operands: Iterable[object]) -> Mesh:
    """Return the mesh of all tensors among *operands*; ``MeshError`` if there are several."""
    meshes = [x.mesh for x in operands if isinstance(x, DTensor)]
    if not meshes:
        raise LayoutError("one of the operands must be a DTensor; NumPy has its own functions for arrays")
    first_mesh = meshes[0]
    for mesh in meshes[1:]:
        if mesh is not first_mesh and (not same_grid(first_mesh, mesh) or first_mesh.world is not mesh.world):
            raise MeshError(f"operands must be on one mesh, but are on the {first_mesh} and the {mesh}")
    return first_mesh


# -- shapes -----------------------------------------------------------------------------------------------------------


def shape_of(operand: Operand) -> Shape:
    """Return the shape of *operand*, () for a number; ``TypeError`` if it is not an operand."""
    if isinstance(operand, bool | int | float | complex):
        return ()
    try:
        return operand.shape
    except AttributeError:
        raise TypeError(not_operand("a function", operand)) from None


def broadcast_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape that *shapes* broadcast to; ``ShapeError`` if they do not."""
    distinct_shapes = set(filter(None, shapes))
    if len(distinct_shapes) < 2:  # the most common case, for which NumPy is slow
        return next(iter(distinct_shapes), ())
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        text = ", ".join(map(str, shapes))
        raise ShapeError(
            f"{name}: operands of shapes {text} could not be broadcast together: from the last axis on, lengths must "
            "be equal or 1"
        ) from None


def without(values: Sequence[R], axes: Sequence[int]) -> tuple[R, ...]:
    """Return *values*, one for each axis, without the values of *axes*.

    >>> without((2, 3, 4), (0, 2))
    (3,)
    """
    return tuple(value for axis, value in enumerate(values) if axis not in axes)


# -- dtypes -----------------------------------------------------------------------------------------------------------


def sample(operand: Operand) -> Array | Number:
    """Return a small array with the dtype and ndim of *operand*; a number, or an array without axes, unchanged.

    A call of NumPy's function on samples gives the dtype of the result, and raises NumPy's errors.
    """
    if not isinstance(operand, DTensor | np.ndarray):
        return operand
    if operand.ndim == 0:
        return np.ones((), operand.dtype) if isinstance(operand, DTensor) else operand
    return np.empty((0,) * operand.ndim, operand.dtype)


def as_number(x: object) -> Value:
    """Return the number in a tensor of one element, 0 on a rank outside of its mesh; anything else unchanged."""
    if not isinstance(x, DTensor):
        return x
    return x.dtype.type(0) if not x._has_block else x.item()


def result_dtype(
    function: Callable[..., object], dtypes: Iterable[DType], ndim: int, dtype: DTypeLike | None = None
) -> DType:
    """Return the dtype of the result of *function* for arrays of *ndim* axes; *dtype* is its ``dtype=`` argument."""
    options = {} if dtype is None else {"dtype": dtype}
    return np.asarray(function(*(np.ones((1,) * ndim, operand_dtype) for operand_dtype in dtypes), **options)).dtype


# -- layouts ----------------------------------------------------------------------------------------------------------


def common_layout(shape: Shape, tensors: Sequence[DTensor]) -> Layout:
    """Return the layout to which *tensors* are relaid for a result of *shape*: see the top of this module."""
    mesh, used_names = tensors[0].mesh, set[str]()
    if all(t.shape == shape and t.layout is tensors[0].layout for t in tensors):
        return tensors[0].layout
    names_of_axes: list[Names] = [()] * len(shape)
    source_nbytes = [0] * len(shape)  # of the tensor that gave each axis its sharding
    for tensor in sorted(tensors, key=lambda t: t.size, reverse=True):  # equal sizes stay in order
        num_missing_axes = len(shape) - tensor.ndim
        for axis, names in enumerate(tensor.layout.axes, num_missing_axes):
            if tensor.shape[axis - num_missing_axes] != shape[axis]:
                continue
            if not names_of_axes[axis]:
                names_of_axes[axis], source_nbytes[axis] = free_names(names, used_names), tensor.nbytes
                used_names.update(names_of_axes[axis])
            elif names != names_of_axes[axis] and tuple(names) == tuple(names_of_axes[axis]):
                excess_nbytes = tensor.nbytes - source_nbytes[axis]
                if excess_nbytes > 0 or (
                    excess_nbytes == 0 and _is_more_even(names, names_of_axes[axis], shape[axis], mesh)
                ):
                    names_of_axes[axis], source_nbytes[axis] = names, tensor.nbytes
    common_axes = tuple(names_of_axes)
    for tensor in tensors:
        if tensor.layout.axes == common_axes and tensor.mesh is mesh:
            return tensor.layout
    return Layout(common_axes, mesh)


def _is_more_even(names: Names, other_names: Names, length: int, mesh: Mesh) -> bool:
    """Return whether *names* cut an axis close to the cuts of *other_names*, into blocks of more equal lengths."""
    count = devices_along(mesh, names)
    cut, other_cut = cut_of(names, length, count), cut_of(other_names, length, count)
    if not cut.is_consecutive or not other_cut.is_consecutive:
        return False
    longest = cut.longest
    if longest - cut.shortest >= other_cut.longest - other_cut.shortest:
        return False
    max_shift = max(abs(a - b) for a, b in zip(cut.all_starts(), other_cut.all_starts(), strict=True))
    return max_shift <= _CLOSE * longest


_CLOSE = 1 / 16
"""Cuts are close if their starts differ by at most this fraction of the longest block."""


def aligned_axes(operand: Shape, shape: Shape, layout: Layout) -> Axes:
    """Return how an operand of shape *operand* is sharded for a result of *shape* in *layout*.

    >>> mesh = Mesh(range(4), {"x": 2, "y": 2})
    >>> aligned_axes((1, 6), (5, 4, 6), Layout([(), "x", "y"], mesh))
    ((), ('y',))
    """
    num_missing_axes = len(shape) - len(operand)
    return tuple(
        names if n == shape[axis + num_missing_axes] else ()
        for axis, (n, names) in enumerate(zip(operand, layout.axes[num_missing_axes:], strict=True))
    )


def dims_that_cut(mesh: Mesh, names: Iterable[str]) -> Names:
    """Return the mesh dimensions among *names* with more than one device, in mesh order."""
    name_set = set(names)
    return tuple(name for name, size in mesh.dims if name in name_set and size > 1)
