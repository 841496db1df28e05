"""Searches: where values belong in a sorted tensor, and whether they are in another tensor.

Where one of the two operands is whole on each device, every device looks into its block, and only results move. Else
each rank sends its values to the ranks in whose interval of the sorted tensor they belong, and gets the answers:
`ask` of :mod:`meshcomm.blocks.rows`. A tensor that is not sorted is sorted first.
"""

from collections.abc import Callable
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.reduce import added_up
from meshcomm.blocks.rows import ask, ranks_along
from meshcomm.blocks.rules import Operand, mesh_of, sample, shape_of
from meshcomm.blocks.whole import in_flat_order
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import new_block
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.order.samplesort import in_order

Side: TypeAlias = Literal["left", "right"]


class Answers(NamedTuple):
    """How a rank answers.

    Parameters
    ----------
    side: ``left`` if a question belongs before the elements equal to it, ``right`` if after them
    make: function of the block of the rank, the index at which it begins, and the questions, which returns the answers
    dtype: dtype of the answers
    """

    side: Side
    make: Callable[[Array, int, Array], Array]
    dtype: DType


_INDEX = np.dtype(np.intp)


def is_sharded(operand: object) -> bool:
    """Return whether *operand* is a tensor of which a device has a part only."""
    if not isinstance(operand, DTensor) or not operand.size:
        return False
    return bool(operand.layout.sharding_dims)


def as_whole(operand: Operand) -> Array:
    """Return all elements of an *operand* that is not sharded; of the dtype only, on a rank outside of the mesh."""
    if not isinstance(operand, DTensor):
        return np.asarray(operand)
    array = on_blocks(np.asarray, operand) if operand.size else np.empty(operand.shape, operand.dtype)
    return np.empty((0,) * operand.ndim, operand.dtype) if array is None else array


def as_replicated(operand: Operand, mesh: Mesh) -> DTensor:
    """Return *operand* as a tensor: itself if it is one, else on each device."""
    if isinstance(operand, DTensor):
        return operand
    array = np.asarray(operand)
    return distribute(array, Layout.replicated(mesh, array.ndim))


def answer_questions(name: str, line: DTensor, questions: DTensor, how: Answers) -> DTensor:
    """Return an answer to each question, from the rank where it belongs. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    line: sorted sharded tensor of one axis, as `in_flat_order` makes it; not empty
    questions: values to look for
    how: function by which ranks answer
    """
    mesh = line.mesh
    operands = ", ".join(f"{t.shape} {t.dtype} in {t.layout.specs_text}" for t in (line, questions))
    text = f"{name} in and of {operands}, {how.side}"

    def find(values: Array, block: Array) -> Array:
        with ranks_along(name, mesh, tuple(line.layout.axes[0]), text) as ranks:
            answers = ranks.agree_on_result(lambda: new_block(values.shape, how.dtype))
            values = np.ascontiguousarray(values).reshape(-1)
            texts = ranks.allgather(block[:1].tobytes())
            filled = np.array([position for position, text in enumerate(texts) if text], dtype=np.int32)
            begins = np.searchsorted(np.frombuffer(b"".join(texts), block.dtype), values, how.side)
            owners = filled[np.maximum(begins - 1, 0)]
            start = line.layout.block_box(line.shape)[0][0]
            ask(ranks, owners, values, lambda queries: how.make(block, start, queries), answers.reshape(-1))
        return answers

    return mapped(find, questions, line, dtype=how.dtype)


# -- searchsorted -----------------------------------------------------------------------------------------------------


@implements(np.searchsorted, partly=True)
def searchsorted(
    a: DTensor | ArrayLike, v: DTensor | ArrayLike, side: Side = "left", sorter: DTensor | ArrayLike | None = None
) -> DTensor:
    """Return where values belong in a sorted array, as numpy.searchsorted. Collective over the mesh.

    One of the operands must be a tensor. The result is in the layout of *v*; without one, it is replicated.

    Parameters
    ----------
    a: ascending tensor or array of one axis
    v: values to insert, of any shape
    side: ``left`` if a value belongs before the elements equal to it, ``right`` if after them
    sorter: indices that sort *a*, of its length; by default *a* is sorted

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1, 3, 3, 8]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.searchsorted(t, t + 1).local.tolist(), np.searchsorted(t, [3, 9], "right").local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([1, 3], [3, 4]), ([3, 4], [3, 4])]
    """
    name, operands = "numpy.searchsorted", [unwrapped(x) for x in (a, v, sorter)]
    mesh = mesh_of(operands)
    ordered, values, order = agree_on_plain(name, operands, mesh)
    np.searchsorted(sample(ordered), sample(values), side)  # NumPy's errors
    if order is not None:
        ordered = _in_order_of(as_replicated(ordered, mesh), order)
    if not isinstance(ordered, DTensor) or not is_sharded(ordered):
        whole = as_whole(ordered)
        return _of_blocks(name, lambda block: np.searchsorted(whole, block, side), as_replicated(values, mesh))
    if isinstance(values, DTensor) and is_sharded(values):
        how = Answers(side, lambda block, start, values: np.searchsorted(block, values, side) + start, _INDEX)
        return answer_questions(name, in_flat_order(ordered, name), values, how)
    # In whatever order the blocks are: as many elements are before a value as are before it in each block.
    local = on_blocks(lambda block: np.asarray(np.searchsorted(block, as_whole(values), side), _INDEX), ordered)
    return added_up(f"searchsorted {side}", ordered, local, shape_of(values), _INDEX)


def _of_blocks(name: str, function: Callable[[Array], object], tensor: DTensor) -> DTensor:
    return elementwise(name, function, [tensor])


def _in_order_of(tensor: DTensor, sorter: Operand) -> DTensor:
    kind, size = np.asarray(sample(sorter)).dtype.kind, prod(shape_of(sorter))
    if kind not in "iu":
        raise TypeError("numpy.searchsorted: sorter must only contain integers")
    if size != tensor.size:
        raise ShapeError(f"numpy.searchsorted: sorter has {size} elements, but a has {tensor.size}")
    return getitem(tensor, sorter)


# -- isin -------------------------------------------------------------------------------------------------------------


@implements(np.isin, partly=True)
def isin(
    element: DTensor | ArrayLike,
    test_elements: DTensor | ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Literal["sort", "table"] | None = None,
) -> DTensor:
    """Return which elements are among others, as numpy.isin. Collective over the mesh.

    One of the operands must be a tensor. The result is in the layout of *element*; without one, it is replicated.

    Parameters
    ----------
    element: elements to look for
    test_elements: elements among which to look, of any shape
    assume_unique: changes nothing
    invert: whether to return the opposite
    kind: NumPy's argument, which is only checked

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1, 3, 3, 8]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.isin(t, [3, 9]).local.tolist(), np.isin([3, 9], t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [([False, True], [True, False]), ([True, False], [True, False])]
    """
    name, operands = "numpy.isin", [unwrapped(x) for x in (element, test_elements)]
    mesh = mesh_of(operands)
    elements, others = (x if isinstance(x, DTensor) else np.asarray(x) for x in agree_on_plain(name, operands, mesh))
    np.isin(np.zeros(1, elements.dtype), np.zeros(1, others.dtype), kind=kind)  # NumPy's errors
    if not isinstance(others, DTensor) or not is_sharded(others):
        whole = as_whole(others)
        return _of_blocks(name, lambda block: np.isin(block, whole, invert=invert), as_replicated(elements, mesh))
    if isinstance(elements, DTensor) and is_sharded(elements):
        line = in_order(name, others, stable=False, indexed=False).values
        result = answer_questions(name, line, elements, Answers("right", _is_there, np.dtype(bool)))
    else:
        local = on_blocks(lambda block: np.asarray(np.isin(as_whole(elements), block)), others)
        result = added_up("isin", others, local, elements.shape, np.dtype(bool), op="max")
    return _of_blocks(name, np.logical_not, result) if invert else result


def _is_there(block: Array, start: int, values: Array) -> Array:
    positions = np.minimum(np.searchsorted(block, values), len(block) - 1)
    return np.asarray(block[positions] == values)


# -- digitize ---------------------------------------------------------------------------------------------------------


@implements(np.digitize, partly=True)
def digitize(x: DTensor | ArrayLike, bins: DTensor | ArrayLike, right: bool = False) -> DTensor:
    """Return the numbers of the bins in which values are, as numpy.digitize. Collective over the mesh.

    Parameters
    ----------
    x: values of any shape; the result is in their layout
    bins: ascending or descending edges, else ``ValueError``; they may be a sharded tensor
    right: whether a bin includes its right edge instead of its left one

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 3, 3, 8]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.digitize(t, [0, 3, 5]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 2], [2, 3]]
    """
    name, operands = "numpy.digitize", [unwrapped(operand) for operand in (x, bins)]
    values, edges = agree_on_plain(name, operands, mesh_of(operands))
    if np.asarray(sample(values)).dtype.kind == "c":
        raise TypeError("x may not be complex")
    if not isinstance(edges, DTensor) or not is_sharded(edges):
        whole = as_whole(edges)
        return _of_blocks(
            name, lambda block: np.asarray(np.digitize(block, whole, right)), as_replicated(values, mesh_of(operands))
        )
    np.digitize(np.zeros(1), np.asarray(sample(edges)))  # NumPy's errors
    side: Side = "left" if right else "right"
    first, last = edges[:-1], edges[1:]
    if _all_compare(np.less_equal, first, last):
        return searchsorted(edges, values, side)
    if not _all_compare(np.greater_equal, first, last):
        raise ShapeError("bins must be monotonically increasing or decreasing")
    positions = searchsorted(edges[::-1], values, side)
    return _of_blocks(name, lambda block: edges.size - block, positions)


def _all_compare(compare: np.ufunc, first: DTensor, last: DTensor) -> bool:
    """Return whether all elements compare so; true on a rank outside of the mesh. Collective over the mesh."""
    result: DTensor = compare(first, last).all()
    return on_blocks(bool, result) is not False
