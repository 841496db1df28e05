"""Elements written by NumPy's functions: put, put_along_axis, numpy.place, putmask, copyto, fill_diagonal.

They are assignments: :mod:`meshcomm.numpy.indexing.indexing` has what a tensor refuses, and
:mod:`meshcomm.numpy.indexing.index_arrays` where the elements are. Where several values are for one element, the last
one stays, as in NumPy.
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
    along_axis_indices,
    assign,
    beside_index,
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
from meshcomm.numpy.indexing.nonzero import flat_true, truth, where_true
from meshcomm.numpy.shapes.shaping import regrouped


@implements(np.put, partly=True)
def put(a: DTensor, ind: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: str = "raise") -> None:
    """Write *v*, again and again, to the elements of *a* at *ind* in C order, as numpy.put. Collective over the mesh.

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
    values = _in_turn(name, v, indices)
    if values is not None and indices.shape[0]:
        assign(name, tensor, flat(name, tensor, indices, mode), values)


def _in_turn(name: str, values: object, index: IndexArray) -> Operand | None:
    """Return *values*, again and again, for the elements of an *index*; None if there are no values.

    Collective if they have to move. *name* is the operation.
    """
    line, n = _in_line(name, values), index.shape[0]
    if line.size == 0:
        return None
    if line.size == 1 or line.size == n:
        return line
    if line.size > n:
        return getitem(line, slice(n)) if isinstance(line, DTensor) else line[:n]
    numbered: IndexArray = np.arange(n, dtype=np.intp)
    if isinstance(index, DTensor):
        numbered = numbers(index.mesh, 0, 1, index.layout.axes[0], n)
    return _cycled(name, line, numbered)


def _in_line(name: str, values: object) -> DTensor | Array:
    """Return *values* in C order, on one axis; a plain array or number without an axis if it is just one."""
    line = flat_operand(name, values)
    return line.reshape(()) if line.size == 1 and not isinstance(line, DTensor) else line


def _cycled(name: str, line: DTensor | Array, wanted: IndexArray) -> Operand:
    """Return what *line*, again and again, has at *wanted*. Collective if elements have to move."""
    within = by_elements(name, lambda block: np.asarray(block) % line.size, wanted)
    if not isinstance(within, DTensor):
        return indexed(name, line, within) if isinstance(line, DTensor) else line[within]
    if not isinstance(line, DTensor):
        agree_on_plain(name, [line], within.mesh)
        line = distribute(line, Layout.replicated(within.mesh, line.ndim))
    return indexed(name, line, within)


@implements(np.put_along_axis, partly=True)
def put_along_axis(arr: DTensor, indices: DTensor | ArrayLike, values: DTensor | ArrayLike, axis: int | None) -> None:
    """Write *values* to the elements at *indices* along *axis*, as numpy.put_along_axis. Collective over the mesh.

    It is the inverse of `take_along_axis`; *values* broadcast to what that returns.
    """
    name = "numpy.put_along_axis"
    tensor = as_tensor(name, arr)
    index_arrays, number = along_axis_indices(name, tensor, indices, axis)
    if number is None:
        assign(name, tensor, flat(name, tensor, index_arrays), values)
    else:
        assign(name, tensor, beside_index(tensor, index_arrays, number), values)


# -- masks ------------------------------------------------------------------------------------------------------------


@implements(np.place, partly=True)
def place(arr: DTensor, mask: DTensor | ArrayLike, vals: DTensor | ArrayLike) -> None:
    """Write *vals*, again and again, where *mask* is true, as numpy.place. Collective over the mesh.

    ``ShapeError`` unless *arr* and *mask* have as many elements; ``ValueError`` for no values.
    """
    name = "numpy.place"
    converted = _converted(as_tensor(name, arr), vals)
    tensor, index = _tensor_and_index(name, arr, mask)
    if not index[0].shape[0]:
        return
    values = _in_turn(name, converted, index[0])
    if values is None:
        raise ValueError(f"{name}: cannot insert from an empty array")
    assign(name, tensor, index, values)


@implements(np.putmask, partly=True)
def putmask(a: DTensor, mask: DTensor | ArrayLike, values: DTensor | ArrayLike) -> None:
    """Write *values* where *mask* is true, as numpy.putmask. Collective over the mesh.

    Element n in C order gets value n, or n modulo the number of values. ``ShapeError`` unless *a* and *mask* have as
    many elements.
    """
    name = "numpy.putmask"
    tensor = as_tensor(name, a)
    condition = unwrapped(mask)
    converted = _converted(tensor, values)
    if np.shape(converted) == tensor.shape == np.shape(condition):
        copyto(tensor, converted, "unsafe", truth(on_mesh(name, [tensor, condition])[1]))
        return
    tensor, index = _tensor_and_index(name, tensor, condition)
    line = _in_line(name, converted)
    if not index[0].shape[0] or not line.size:
        return
    if line.size > 1:
        flat_indices = elementwise(name, lambda *blocks: _flat_indices(blocks, tensor.shape), index)
        line = _cycled(name, line, flat_indices)  # type: ignore[assignment]  # a tensor
    assign(name, tensor, index, line)


def _converted(tensor: DTensor, values: object) -> Value:
    """Return *values*; NumPy's ``TypeError`` for an array or tensor that does not convert to *tensor* by its rule."""
    array = unwrapped(values)
    if isinstance(array, DTensor | np.ndarray):
        np.empty(0, array.dtype).astype(tensor.dtype, casting="safe")
    return array


def _flat_indices(index: tuple[Indices, ...], shape: Shape) -> Indices:
    """Return where the elements of an *index* are in C order."""
    return np.ravel_multi_index(index, shape) if prod(shape) else np.asarray(index[0])


def _tensor_and_index(name: str, operand: object, mask: object) -> tuple[DTensor, tuple[DTensor, ...]]:
    """Return a tensor that has axes, and the index where its mask is true. Collective over the mesh."""
    tensor = tensor_np.atleast_1d(as_tensor(name, operand))
    where = unwrapped(mask)
    if not isinstance(where, DTensor):
        (plain,) = agree_on_plain(name, [np.atleast_1d(as_array(where))], tensor.mesh)
        where = np.asarray(plain)
        whole = Layout.replicated(tensor.mesh, where.ndim)
        where = distribute(where, tensor.layout if where.shape == tensor.shape else whole)
    if where.size != tensor.size:
        raise ShapeError(f"{name}: a mask of shape {where.shape} for a tensor of shape {tensor.shape}: sizes differ")
    chosen = truth(tensor_np.atleast_1d(where))
    if chosen.shape == tensor.shape:
        return tensor, where_true(name, chosen)
    return tensor, unravelled(name, flat_true(name, chosen), tensor.shape)  # type: ignore[return-value]


@implements(np.copyto, partly=True)
def copyto(
    dst: DTensor, src: DTensor | ArrayLike, casting: Casting = "same_kind", where: DTensor | ArrayLike = True
) -> None:
    """Copy *src* to *dst*, where *where* is true, as numpy.copyto. Collective if they have to move.

    Both broadcast to *dst*. ``TypeError`` if the rule *casting* of NumPy does not allow the conversion.
    """
    name = "numpy.copyto"
    target = as_tensor(name, dst)
    check_writable(name, target)
    operands = [_narrowed(name, unwrapped(x), target.ndim) for x in (src, where)]

    def copied(block: Array, mask: Array, out: tuple[Array, ...]) -> Array:
        if isinstance(block, np.ndarray) and np.may_share_memory(block, out[0]):
            block = exact_copy(block)
        np.copyto(out[0], block, casting=casting, where=mask)
        return out[0]

    elementwise(name, copied, operands, (target,))


def _narrowed(name: str, operand: Value, ndim: int) -> Value:
    """Return an operand with at most *ndim* axes, if its first ones have length 1."""
    shape = np.shape(operand)
    extra = len(shape) - ndim
    if extra <= 0 or any(n != 1 for n in shape[:extra]):
        return operand
    if isinstance(operand, DTensor):
        return regrouped(operand, shape[extra:], name=name)
    return as_array(operand).reshape(shape[extra:])


@implements(np.fill_diagonal, partly=True)
def fill_diagonal(a: DTensor, val: DTensor | ArrayLike, wrap: bool = False) -> None:
    """Write *val*, again and again, to the diagonal of *a*, as numpy.fill_diagonal. Collective over the mesh.

    Parameters
    ----------
    a: tensor to write to, of two axes, or of more that are equally long
    val: number, or values
    wrap: whether the diagonal of a tall matrix starts again below its end, after a row without it

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
