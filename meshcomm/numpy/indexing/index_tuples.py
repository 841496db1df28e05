"""Indices of NumPy's functions, converted to indices of ``t[index]``: along an axis, flat indices, with modes.

A function such as `take` or `put` has an axis for its indices, and a mode for indices out of bounds. The functions
here convert them to index tuples for :mod:`meshcomm.numpy.indexing.index_arrays`, which gets and sets the elements.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.make import indices_along, make, on_device
from meshcomm.blocks.map import elementwise, elementwise_results
from meshcomm.blocks.rules import mesh_of
from meshcomm.blocks.session import session
from meshcomm.blocks.small import agree_on_result
from meshcomm.core._arguments import as_array, quote
from meshcomm.core._types import Array, Indices, Names, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Axes, Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import free_names
from meshcomm.errors import ShapeError
from meshcomm.numpy.indexing.index_arrays import IndexArray
from meshcomm.numpy.indexing.indexing import setitem
from meshcomm.numpy.shapes.shaping import normalised_axis, regrouped

Index: TypeAlias = tuple[slice | IndexArray, ...]

MODES = ("raise", "wrap", "clip")
"""Treatment of indices out of bounds in NumPy's functions."""


# -- operands ---------------------------------------------------------------------------------------------------------


def on_mesh(name: str, operands: Sequence[object]) -> list[DTensor]:
    """Return *operands* as tensors, on the mesh of the tensors among them. Collective if there are plain arrays.

    A plain array becomes a replicated tensor. *name* is the operation.
    """
    unwrapped_operands = [unwrapped(x) for x in operands]
    mesh = mesh_of(unwrapped_operands)
    agreed_values = agree_on_plain(name, unwrapped_operands, mesh)
    return [x if isinstance(x, DTensor) else distribute(x, Layout.replicated(mesh, np.ndim(x))) for x in agreed_values]


def numbers(mesh: Mesh, axis: int, ndim: int, names: Names, n: int) -> DTensor:
    """Return 0, 1, ..., *n* - 1 along *axis*, which *names* cut; the other axes of *ndim* have length 1."""
    shape: Shape = tuple(n if other == axis else 1 for other in range(ndim))
    layout = Layout([names if other == axis else () for other in range(ndim)], mesh)
    return make(on_device(mesh, lambda _: indices_along(layout, shape, axis)), layout, shape, np.dtype(np.intp))


def flat_operand(name: str, operand: object) -> IndexArray:
    """Return a tensor, array or number with one axis. Collective if elements of a tensor have to move."""
    tensor = unwrapped(operand)
    if isinstance(tensor, DTensor):
        return tensor if tensor.ndim == 1 else regrouped(tensor, (tensor.size,), name=name)
    return np.ravel(as_array(tensor))


def by_elements(name: str, function: Callable[[Array], Array], indices: IndexArray) -> IndexArray:
    """Return the result of an elementwise *function* of *indices*."""
    if not isinstance(indices, DTensor):
        return function(indices)
    return elementwise(name, function, [indices])


def assign(name: str, tensor: DTensor, index: object, value: object) -> None:
    """Run ``tensor[index] = value`` as one step of the operation *name*. Collective over the mesh."""
    with session(name, tensor.mesh):
        setitem(tensor, index, value)


# -- bounds and modes -------------------------------------------------------------------------------------------------


def check_mode(name: str, mode: object) -> None:
    """Raise ``ShapeError`` for an unknown *mode*."""
    if mode not in MODES:
        raise ShapeError(f"{name}: mode {quote(mode)}; it is 'raise', 'wrap' or 'clip'")


def check_square(name: str, shape: Shape, free_ndim: int) -> None:
    """Raise ``ShapeError`` unless *shape* has two axes or more; more than *free_ndim* axes must be equally long."""
    if len(shape) < 2:
        raise ShapeError(f"{name} of shape {shape}: the tensor must be at least 2-d")
    if len(shape) > free_ndim and len(set(shape)) > 1:
        raise ShapeError(f"{name} of shape {shape}: all axes must be of equal length")


def integer_indices(name: str, indices: object) -> IndexArray:
    """Return *indices* as integers; NumPy's ``TypeError`` for anything but integers and bools."""
    value = unwrapped(indices)
    array = value if isinstance(value, DTensor) else as_array(value)
    if (
        not isinstance(array, DTensor)
        and not array.size
        and array.dtype.kind == "f"
        and not isinstance(value, np.ndarray)
    ):
        return array.astype(np.intp)  # an empty list
    np.empty(0, array.dtype).astype(np.intp, casting="same_kind")
    if array.dtype == np.intp:
        return array
    return by_elements(name, lambda block: np.asarray(block).astype(np.intp), array)


def with_mode(name: str, indices: IndexArray, n: int, mode: str) -> IndexArray:
    """Return *indices* into *n* elements; mode ``wrap`` or ``clip`` wraps or clips indices out of bounds."""
    if prod(indices.shape) and not n:
        raise IndexError(f"{name}: indices along an axis, or of a tensor, that has no elements")
    if mode == "raise":
        return indices
    last_index = max(n - 1, 0)
    return by_elements(
        name,
        (lambda block: np.clip(block, 0, last_index)) if mode == "clip" else lambda block: block % (last_index + 1),
        indices,
    )


def check_within(
    name: str, arrays: Sequence[IndexArray], bounds: Sequence[tuple[int, int]], error: Callable[[int, int], Exception]
) -> None:
    """Raise an error on all ranks unless all elements are within bounds. Collective if there are tensors.

    Parameters
    ----------
    name: name of the operation
    arrays: tensors and arrays of integers
    bounds: lower bound of each array, and upper bound, which is excluded
    error: function of an element out of bounds and the upper bound, which returns the exception
    """

    def check() -> None:
        for array, (low, end) in zip(arrays, bounds, strict=True):
            block = array._block if isinstance(array, DTensor) else array
            if block is None or not block.size:
                continue
            is_wrong = (block < low) | (block >= end)
            if is_wrong.any():
                raise error(int(block[is_wrong][0]), end)

    tensors = [array for array in arrays if isinstance(array, DTensor)]
    if not tensors:
        check()
        return
    text = f"{name} of indices of {', '.join(str(array.shape) for array in arrays)} in {bounds}"
    agree_on_result(name, mesh_of(tensors), text, check)


# -- tuples -----------------------------------------------------------------------------------------------------------


def index_along_axis(name: str, tensor: DTensor, indices: object, axis: int | None, mode: str) -> Index:
    """Return the index tuple for *indices* along *axis*, or of the flattened tensor. Collective if they are a tensor.

    With mode ``raise``, an index out of bounds is an ``IndexError``: here if *axis* is None, else when it is used.
    """
    check_mode(name, mode)
    integers = integer_indices(name, indices)
    if axis is None:
        return flat(name, tensor, integers, mode)
    axis_number = normalised_axis(axis, tensor.ndim)
    return (*[slice(None)] * axis_number, with_mode(name, integers, tensor.shape[axis_number], mode))


def flat(name: str, tensor: DTensor, indices: IndexArray, mode: str = "raise") -> Index:
    """Return the index tuple for flat *indices* of *tensor*, in C order. Collective if they are a tensor."""
    size, shape = tensor.size, tensor.shape
    checked_indices = with_mode(name, indices, size, mode)
    if tensor.ndim == 1:
        return (checked_indices,)
    if mode == "raise":
        check_within(
            name,
            [checked_indices],
            [(-size, size)],
            lambda index, n: IndexError(f"{name}: index {index} is out of bounds for axis 0 with size {n}"),
        )
    return unravelled(name, checked_indices, shape)


def unravelled(name: str, indices: IndexArray, shape: Shape) -> Index:
    """Return an index for each axis of *shape* from flat *indices* in bounds, which may be negative."""
    size = prod(shape)

    def unravel_block(block: Array) -> tuple[Indices, ...]:
        if not size:
            return tuple(np.zeros(np.shape(block), np.intp) for _ in shape)
        return np.unravel_index(np.asarray(block) % size, shape)

    if not isinstance(indices, DTensor):
        return unravel_block(indices)
    return elementwise_results(name, unravel_block, [indices])


def along_axis_indices(name: str, tensor: DTensor, indices: object, axis: int | None) -> tuple[IndexArray, int | None]:
    """Return the checked *indices* and *axis* of NumPy's functions ``..._along_axis``."""
    value = unwrapped(indices)
    array = value if isinstance(value, DTensor) else as_array(value)
    if array.dtype.kind not in "iu":
        raise IndexError(f"{name}: `indices` must be an integer array, not one of {array.dtype}")
    if axis is None:
        if array.ndim != 1:
            raise ShapeError(f"{name}: with axis=None, indices have one axis, not shape {array.shape}")
        return array, None
    axis_number = normalised_axis(axis, tensor.ndim)
    if array.ndim != tensor.ndim:
        raise ShapeError(
            f"{name}: indices of shape {array.shape} must have as many axes as the tensor of {tensor.shape}"
        )
    for other_axis, (n, m) in enumerate(zip(tensor.shape, array.shape, strict=True)):
        if other_axis != axis_number and n != m and 1 not in (n, m):
            raise IndexError(
                f"{name}: shape mismatch: indices of shape {array.shape} do not broadcast with {tensor.shape} along "
                f"axis {other_axis}"
            )
    return array, axis_number


def along_axis_shape(tensor: DTensor, indices: IndexArray, axis: int) -> Shape:
    """Return the shape of the result of ``take_along_axis``."""
    pairs = enumerate(zip(tensor.shape, indices.shape, strict=True))
    return tuple(m if number == axis else (m if n == 1 else n) for number, (n, m) in pairs)


def along_axis_specs(tensor: DTensor, indices: IndexArray, axis: int) -> Axes:
    """Return the sharding specs of the result of ``take_along_axis``.

    *axis* is cut as the indices are, or as the tensor is if they are a plain array; other axes as the tensor is. Axes
    that the tensor does not cut are cut as the indices are, by mesh dimensions that are free.
    """
    shape = along_axis_shape(tensor, indices, axis)
    axes: list[Names] = [
        names if number != axis and tensor.shape[number] == shape[number] else ()
        for number, names in enumerate(tensor.layout.axes)
    ]
    used_names = {name for names in axes for name in names}
    if not isinstance(indices, DTensor):
        axes[axis] = free_names(tuple(tensor.layout.axes[axis]), used_names)
        return tuple(axes)
    for number, names in enumerate(indices.layout.axes):
        if not axes[number] and indices.shape[number] == shape[number]:
            axes[number] = free_names(names, used_names)
            used_names.update(axes[number])
    return Layout(axes, tensor.mesh).axes


def along_axis_index(tensor: DTensor, indices: IndexArray, axis: int) -> Index:
    """Return the index tuple of ``take_along_axis``: *indices* for *axis*, and 0, 1, ... for the other axes."""
    ndim, index = tensor.ndim, list[IndexArray]()
    for number, n in enumerate(tensor.shape):
        if number == axis:
            index.append(indices)
        elif isinstance(indices, DTensor):
            names = indices.layout.axes[number] if indices.shape[number] == n else ()
            index.append(numbers(tensor.mesh, number, ndim, names, n))
        else:
            index.append(np.arange(n, dtype=np.intp).reshape([-1 if other == number else 1 for other in range(ndim)]))
    return tuple(index)
