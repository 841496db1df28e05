"""Elements written by NumPy's functions: put, put_along_axis, numpy.place, putmask, copyto, fill_diagonal.

They are assignments: :mod:`meshcomm.numpy.indexing.indexing` checks the values, and
:mod:`meshcomm.numpy.indexing.index_arrays` finds the elements. If an index occurs several times, the last value stays,
as in NumPy.
"""

from math import prod

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.rules import Operand
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.blocks.views import check_writable
from meshcomm.core._arguments import as_array
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Casting, Indices, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.copies import exact_copy
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.index_arrays import IndexArray
from meshcomm.numpy.indexing.index_tuples import (
    along_axis_index,
    along_axis_indices,
    assign,
    by_elements,
    check_mode,
    check_square,
    flat,
    flat_operand,
    integer_indices,
    numbers,
    on_mesh,
    unravelled,
)
from meshcomm.numpy.indexing.indexing import getitem, indexed
from meshcomm.numpy.indexing.nonzero import flat_true_indices, true_indices, truth
from meshcomm.numpy.shapes.shaping import regrouped


@implements(np.put, partly=True)
def put(a: DTensor, ind: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: str = "raise") -> None:
    """Write *v*, repeated as needed, to *a* at the flat indices *ind*, as numpy.put. Collective over the mesh.

    Parameters
    ----------
    a: tensor to write to
    ind: indices of the flattened tensor: tensor in any layout, or plain array
    v: values, which repeat if there are fewer than indices
    mode: treatment of indices out of bounds: ``raise`` an ``IndexError``, ``wrap`` them around, or ``clip`` them

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.zeros((2, 2), int, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     np.put(t, [0, -1], [7, 8])
    ...     return t.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[7, 0]], [[0, 8]]]
    """
    name = "numpy.put"
    tensor = as_tensor(name, a)
    check_mode(name, mode)
    tensor = tensor_np.atleast_1d(tensor)  # it shares the block
    indices = flat_operand(name, integer_indices(name, ind))
    values = _cycled_to_fit(name, v, indices)
    if values is not None and indices.shape[0]:
        assign(name, tensor, flat(name, tensor, indices, mode), values)


def _cycled_to_fit(name: str, values: object, flat_indices: IndexArray) -> Operand | None:
    """Return *values* repeated or cut to the length of *flat_indices*, or a single value; None if there are no values.

    Collective if they have to move. *name* is the operation.
    """
    flat_values, n = _flat_values(name, values), flat_indices.shape[0]
    if flat_values.size == 0:
        return None
    if flat_values.size == 1 or flat_values.size == n:
        return flat_values
    if flat_values.size > n:
        return getitem(flat_values, slice(n)) if isinstance(flat_values, DTensor) else flat_values[:n]
    element_numbers: IndexArray = np.arange(n, dtype=np.intp)
    if isinstance(flat_indices, DTensor):
        element_numbers = numbers(flat_indices.mesh, 0, 1, flat_indices.layout.axes[0], n)
    return _cycled_values(name, flat_values, element_numbers)


def _flat_values(name: str, values: object) -> DTensor | Array:
    """Return *values* along one axis, in C order; a single plain value without an axis."""
    flat_values = flat_operand(name, values)
    return flat_values.reshape(()) if flat_values.size == 1 and not isinstance(flat_values, DTensor) else flat_values


def _cycled_values(name: str, flat_values: DTensor | Array, element_numbers: IndexArray) -> Operand:
    """Return *flat_values*, repeated cyclically, at *element_numbers*. Collective if elements have to move."""
    positions = by_elements(name, lambda block: np.asarray(block) % flat_values.size, element_numbers)
    if not isinstance(positions, DTensor):
        return indexed(name, flat_values, positions) if isinstance(flat_values, DTensor) else flat_values[positions]
    if not isinstance(flat_values, DTensor):
        agree_on_plain(name, [flat_values], positions.mesh)
        flat_values = distribute(flat_values, Layout.replicated(positions.mesh, flat_values.ndim))
    return indexed(name, flat_values, positions)


@implements(np.put_along_axis, partly=True)
def put_along_axis(arr: DTensor, indices: DTensor | ArrayLike, values: DTensor | ArrayLike, axis: int | None) -> None:
    """Write *values* to the elements at *indices* along *axis*, as numpy.put_along_axis. Collective over the mesh.

    It is the inverse of `take_along_axis`; *values* broadcast to the shape of its result.
    """
    name = "numpy.put_along_axis"
    tensor = as_tensor(name, arr)
    index_array, axis_number = along_axis_indices(name, tensor, indices, axis)
    if axis_number is None:
        assign(name, tensor, flat(name, tensor, index_array), values)
    else:
        assign(name, tensor, along_axis_index(tensor, index_array, axis_number), values)


# -- masks ------------------------------------------------------------------------------------------------------------


@implements(np.place, partly=True)
def place(arr: DTensor, mask: DTensor | ArrayLike, vals: DTensor | ArrayLike) -> None:
    """Write *vals*, repeated as needed, where *mask* is true, as numpy.place. Collective over the mesh.

    ``ShapeError`` unless *arr* and *mask* have equally many elements; ``ValueError`` for no values.
    """
    name = "numpy.place"
    castable_values = _castable_values(as_tensor(name, arr), vals)
    tensor, index_tuple = _tensor_and_index(name, arr, mask)
    if not index_tuple[0].shape[0]:
        return
    values = _cycled_to_fit(name, castable_values, index_tuple[0])
    if values is None:
        raise ValueError(f"{name}: cannot insert from an empty array")
    assign(name, tensor, index_tuple, values)


@implements(np.putmask, partly=True)
def putmask(a: DTensor, mask: DTensor | ArrayLike, values: DTensor | ArrayLike) -> None:
    """Write *values* where *mask* is true, as numpy.putmask. Collective over the mesh.

    Element n in C order gets value n, or n modulo the number of values. ``ShapeError`` unless *a* and *mask* have
    equally many elements.
    """
    name = "numpy.putmask"
    tensor = as_tensor(name, a)
    condition = unwrapped(mask)
    castable_values = _castable_values(tensor, values)
    if np.shape(castable_values) == tensor.shape == np.shape(condition):
        copyto(tensor, castable_values, "unsafe", truth(on_mesh(name, [tensor, condition])[1]))
        return
    tensor, index_tuple = _tensor_and_index(name, tensor, condition)
    flat_values = _flat_values(name, castable_values)
    if not index_tuple[0].shape[0] or not flat_values.size:
        return
    if flat_values.size > 1:
        flat_indices = elementwise(name, lambda *blocks: _flat_index(blocks, tensor.shape), index_tuple)
        flat_values = _cycled_values(name, flat_values, flat_indices)  # type: ignore[assignment]  # a tensor
    assign(name, tensor, index_tuple, flat_values)


def _castable_values(tensor: DTensor, values: object) -> Value:
    """Return *values* unwrapped; NumPy's ``TypeError`` for arrays and tensors that do not convert safely."""
    value = unwrapped(values)
    if isinstance(value, DTensor | np.ndarray):
        np.empty(0, value.dtype).astype(tensor.dtype, casting="safe")
    return value


def _flat_index(index: tuple[Indices, ...], shape: Shape) -> Indices:
    """Return the flat indices, in C order, of an *index* with an array for each axis."""
    return np.ravel_multi_index(index, shape) if prod(shape) else np.asarray(index[0])


def _tensor_and_index(name: str, operand: object, condition: object) -> tuple[DTensor, tuple[DTensor, ...]]:
    """Return *operand* with one axis or more, and the index where its mask is true. Collective over the mesh."""
    tensor = tensor_np.atleast_1d(as_tensor(name, operand))
    mask = unwrapped(condition)
    if not isinstance(mask, DTensor):
        (mask_array,) = agree_on_plain(name, [np.atleast_1d(as_array(mask))], tensor.mesh)
        mask = np.asarray(mask_array)
        whole_layout = Layout.replicated(tensor.mesh, mask.ndim)
        mask = distribute(mask, tensor.layout if mask.shape == tensor.shape else whole_layout)
    if mask.size != tensor.size:
        raise ShapeError(f"{name}: a mask of shape {mask.shape} for a tensor of shape {tensor.shape}: sizes differ")
    bool_mask = truth(tensor_np.atleast_1d(mask))
    if bool_mask.shape == tensor.shape:
        return tensor, true_indices(name, bool_mask)
    return tensor, unravelled(name, flat_true_indices(name, bool_mask), tensor.shape)  # type: ignore[return-value]


@implements(np.copyto, partly=True)
def copyto(
    dst: DTensor, src: DTensor | ArrayLike, casting: Casting = "same_kind", where: DTensor | ArrayLike = True
) -> None:
    """Copy *src* to *dst*, where *where* is true, as numpy.copyto. Collective if operands have to move.

    *src* and *where* broadcast to *dst*. ``TypeError`` if NumPy's rule *casting* does not allow the conversion.
    """
    name = "numpy.copyto"
    target = as_tensor(name, dst)
    check_writable(name, target)
    operands = [_without_leading_axes(name, unwrapped(x), target.ndim) for x in (src, where)]

    def copy_block(block: Array, mask: Array, out: tuple[Array, ...]) -> Array:
        if isinstance(block, np.ndarray) and np.may_share_memory(block, out[0]):
            block = exact_copy(block)
        np.copyto(out[0], block, casting=casting, where=mask)
        return out[0]

    elementwise(name, copy_block, operands, (target,))


def _without_leading_axes(name: str, operand: Value, ndim: int) -> Value:
    """Return an operand without its axes before the last *ndim*, if all of them have length 1."""
    shape = np.shape(operand)
    extra = len(shape) - ndim
    if extra <= 0 or any(n != 1 for n in shape[:extra]):
        return operand
    if isinstance(operand, DTensor):
        return regrouped(operand, shape[extra:], name=name)
    return as_array(operand).reshape(shape[extra:])


@implements(np.fill_diagonal, partly=True)
def fill_diagonal(a: DTensor, val: DTensor | ArrayLike, wrap: bool = False) -> None:
    """Write *val*, repeated as needed, to the diagonal of *a*, as numpy.fill_diagonal. Collective over the mesh.

    Parameters
    ----------
    a: tensor to write to, of two axes, or of more axes of equal length
    val: number, or values
    wrap: whether, in a tall matrix of n columns, the diagonal starts again after each n rows, with one row between

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.zeros((2, 2), int, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)])))
    ...     np.fill_diagonal(t, [5, 6])
    ...     return t.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[5, 0]], [[0, 6]]]
    """
    tensor = as_tensor("numpy.fill_diagonal", a)
    check_square("numpy.fill_diagonal", tensor.shape, 2)
    n = tensor.shape[-1]
    step = n + 1 if tensor.ndim == 2 else sum(n**power for power in range(tensor.ndim))
    put(tensor, np.arange(0, min(tensor.size, n * n) if tensor.ndim == 2 and not wrap else tensor.size, step), val)
