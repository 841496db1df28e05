"""Searches: where values belong in a sorted tensor, and whether they are in another tensor.

If each device has all elements of one of the two operands, every device searches its block, and only results move.
Else each rank sends each value to the rank whose interval of the sorted tensor contains it, and gets the answer: `ask`
of :mod:`meshcomm.blocks.rows`. A tensor that is not sorted is sorted first.
"""

from collections.abc import Callable
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.reduce import reduce_shares
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


class AnswerRule(NamedTuple):
    """How a rank answers questions about its block of a sorted tensor.

    Parameters
    ----------
    side: ``left`` if a question belongs before elements equal to it, ``right`` if after them
    make: function of the block, the global index at which it begins, and the questions; it returns the answers
    dtype: dtype of the answers
    """

    side: Side
    make: Callable[[Array, int, Array], Array]
    dtype: DType


_INDEX = np.dtype(np.intp)


def is_sharded(operand: object) -> bool:
    """Return whether *operand* is a sharded tensor that is not empty."""
    if not isinstance(operand, DTensor) or not operand.size:
        return False
    return bool(operand.layout.sharding_dims)


def as_whole(operand: Operand) -> Array:
    """Return all elements of an unsharded *operand*; on a rank outside of the mesh, an empty array of its dtype."""
    if not isinstance(operand, DTensor):
        return np.asarray(operand)
    array = on_blocks(np.asarray, operand) if operand.size else np.empty(operand.shape, operand.dtype)
    return np.empty((0,) * operand.ndim, operand.dtype) if array is None else array


def as_replicated(operand: Operand, mesh: Mesh) -> DTensor:
    """Return a tensor unchanged, and any other *operand* as a replicated tensor."""
    if isinstance(operand, DTensor):
        return operand
    array = np.asarray(operand)
    return distribute(array, Layout.replicated(mesh, array.ndim))


def answer_questions(name: str, line: DTensor, questions: DTensor, rule: AnswerRule) -> DTensor:
    """Return an answer to each question, from the rank whose block the question belongs to. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation
    line: sorted sharded tensor of one axis, not empty, as returned by `in_flat_order`
    questions: values to look for
    rule: how ranks answer
    """
    mesh = line.mesh
    operands = ", ".join(f"{t.shape} {t.dtype} in {t.layout.specs_text}" for t in (line, questions))
    call_text = f"{name} in and of {operands}, {rule.side}"

    def find(values: Array, block: Array) -> Array:
        with ranks_along(name, mesh, tuple(line.layout.axes[0]), call_text) as ranks:
            answers = ranks.agree_on_result(lambda: new_block(values.shape, rule.dtype))
            values = np.ascontiguousarray(values).reshape(-1)
            messages = ranks.allgather(block[:1].tobytes())
            nonempty_ranks = np.array([rank for rank, message in enumerate(messages) if message], dtype=np.int32)
            block_positions = np.searchsorted(np.frombuffer(b"".join(messages), block.dtype), values, rule.side)
            owners = nonempty_ranks[np.maximum(block_positions - 1, 0)]
            start = line.layout.block_box(line.shape)[0][0]
            ask(ranks, owners, values, lambda queries: rule.make(block, start, queries), answers.reshape(-1))
        return answers

    return mapped(find, questions, line, dtype=rule.dtype)


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
    sorted_array, values, order = agree_on_plain(name, operands, mesh)
    np.searchsorted(sample(sorted_array), sample(values), side)  # NumPy's errors
    if order is not None:
        sorted_array = _sorted_by(as_replicated(sorted_array, mesh), order)
    if not isinstance(sorted_array, DTensor) or not is_sharded(sorted_array):
        array = as_whole(sorted_array)
        return _map_blocks(name, lambda block: np.searchsorted(array, block, side), as_replicated(values, mesh))
    if isinstance(values, DTensor) and is_sharded(values):
        rule = AnswerRule(side, lambda block, start, values: np.searchsorted(block, values, side) + start, _INDEX)
        return answer_questions(name, in_flat_order(sorted_array, name), values, rule)
    # Blocks may be in any order: the count of elements before a value is the sum of the counts in all blocks.
    counts = on_blocks(lambda block: np.asarray(np.searchsorted(block, as_whole(values), side), _INDEX), sorted_array)
    return reduce_shares(f"searchsorted {side}", sorted_array, counts, shape_of(values), _INDEX)


def _map_blocks(name: str, function: Callable[[Array], object], tensor: DTensor) -> DTensor:
    return elementwise(name, function, [tensor])


def _sorted_by(tensor: DTensor, sorter: Operand) -> DTensor:
    kind, sorter_size = np.asarray(sample(sorter)).dtype.kind, prod(shape_of(sorter))
    if kind not in "iu":
        raise TypeError("numpy.searchsorted: sorter must only contain integers")
    if sorter_size != tensor.size:
        raise ShapeError(f"numpy.searchsorted: sorter has {sorter_size} elements, but a has {tensor.size}")
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
    """Return a mask of the elements that are in *test_elements*, as numpy.isin. Collective over the mesh.

    One of the operands must be a tensor. The result is in the layout of *element*; without one, it is replicated.

    Parameters
    ----------
    element: elements to look for
    test_elements: elements to search, of any shape
    assume_unique: no effect
    invert: whether to invert the mask
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
    elements, values = (x if isinstance(x, DTensor) else np.asarray(x) for x in agree_on_plain(name, operands, mesh))
    np.isin(np.zeros(1, elements.dtype), np.zeros(1, values.dtype), kind=kind)  # NumPy's errors
    if not isinstance(values, DTensor) or not is_sharded(values):
        array = as_whole(values)
        return _map_blocks(name, lambda block: np.isin(block, array, invert=invert), as_replicated(elements, mesh))
    if isinstance(elements, DTensor) and is_sharded(elements):
        sorted_values = in_order(name, values, stable=False, indexed=False).values
        result = answer_questions(name, sorted_values, elements, AnswerRule("right", _are_equal, np.dtype(bool)))
    else:
        block_mask = on_blocks(lambda block: np.asarray(np.isin(as_whole(elements), block)), values)
        result = reduce_shares("isin", values, block_mask, elements.shape, np.dtype(bool), op="max")
    return _map_blocks(name, np.logical_not, result) if invert else result


def _are_equal(block: Array, start: int, values: Array) -> Array:
    positions = np.minimum(np.searchsorted(block, values), len(block) - 1)
    return np.asarray(block[positions] == values)


# -- digitize ---------------------------------------------------------------------------------------------------------


@implements(np.digitize, partly=True)
def digitize(x: DTensor | ArrayLike, bins: DTensor | ArrayLike, right: bool = False) -> DTensor:
    """Return the number of the bin of each value, as numpy.digitize. Collective over the mesh.

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
        edges_array = as_whole(edges)
        return _map_blocks(
            name,
            lambda block: np.asarray(np.digitize(block, edges_array, right)),
            as_replicated(values, mesh_of(operands)),
        )
    np.digitize(np.zeros(1), np.asarray(sample(edges)))  # NumPy's errors
    side: Side = "left" if right else "right"
    left_edges, right_edges = edges[:-1], edges[1:]
    if _all_compare(np.less_equal, left_edges, right_edges):
        return searchsorted(edges, values, side)
    if not _all_compare(np.greater_equal, left_edges, right_edges):
        raise ShapeError("bins must be monotonically increasing or decreasing")
    positions = searchsorted(edges[::-1], values, side)
    return _map_blocks(name, lambda block: edges.size - block, positions)


def _all_compare(compare: np.ufunc, left: DTensor, right: DTensor) -> bool:
    """Return whether *compare* is true of all elements, and True outside of the mesh. Collective over the mesh."""
    result: DTensor = compare(left, right).all()
    return on_blocks(bool, result) is not False
