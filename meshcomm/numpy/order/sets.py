"""Sets, as NumPy has them: the distinct elements of tensors, and unions, intersections and differences of these.

    elements of the blocks ──> in order, by a sample sort ──> runs of equal ones; the ranks tell each other theirs
        ──> of each run: its value, where it was first, how long it is
        ──> the number of its run, back to where each element was

Results are cut over the mesh dimensions that shard the operand, as the values fall (`Cuts`). No rank gets all of them.
A rank outside of the mesh cannot know how many there are: ``ShapeError``.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid
from meshcomm.blocks.make import make, refuse_outside
from meshcomm.blocks.rows import RowRanks, deliver, ranks_along
from meshcomm.blocks.rules import mesh_of
from meshcomm.blocks.tensor_numpy import TensorOrArray, tensor_np
from meshcomm.blocks.whole import in_flat_order
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Indices
from meshcomm.core.arrays.create import ones_like
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import opaque
from meshcomm.numpy.elementwise.signatures import Function, implements
from meshcomm.numpy.elementwise.values import astype
from meshcomm.numpy.indexing.index_arrays import owned_elements
from meshcomm.numpy.joining.joining import concatenate
from meshcomm.numpy.order.order import argsort, sort
from meshcomm.numpy.order.samplesort import InOrder, in_order
from meshcomm.numpy.order.searching import as_replicated, isin
from meshcomm.numpy.shapes.shaping import regrouped

SetOperand: TypeAlias = DTensor | ArrayLike

_INDEX = np.dtype(np.intp)


class _UniqueRequest(NamedTuple):
    """What to return besides the distinct elements, and whether NaN is equal to NaN."""

    return_index: bool = False
    return_inverse: bool = False
    return_counts: bool = False
    equal_nan: bool = True

    def of(self, array: Array, axis: int | None = None) -> list[Array]:
        """Return what NumPy makes of an array."""
        ask: Function = np.unique  # whose overloads know no options of any value
        result: Value = ask(array, *self[:3], axis, equal_nan=self.equal_nan)
        return list(result) if isinstance(result, tuple) else [result]


@implements(np.unique, partly=True)
def unique(
    ar: DTensor,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> DTensor | tuple[DTensor, ...]:
    """Return the distinct elements in order, as numpy.unique. Collective over the mesh.

    The result is cut over all mesh dimensions that shard *ar*, as the values fall; the inverse is in the layout of
    *ar*. With *axis*, rows are compared, and all but that axis are whole.

    Parameters
    ----------
    ar: a tensor
    return_index, return_inverse, return_counts: whether to return also the first index of each value, the number of
        the value of each element, and how often each value occurs
    axis: axis of the compared subarrays; None to compare elements
    equal_nan: whether NaN is equal to NaN
    sorted: no effect; the values are always sorted

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3, 2, 1]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     values, inverse, counts = np.unique(t, return_inverse=True, return_counts=True)
    ...     return values.local.tolist(), inverse.local.tolist(), counts.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(*world.run(program))
    ([1], [2, 0, 2], [2]) ([2, 3], [1, 0], [1, 2])
    """
    tensor = as_tensor("numpy.unique", ar)
    refuse_outside("numpy.unique", tensor.mesh, "how many distinct elements there are")
    request = _UniqueRequest(bool(return_index), bool(return_inverse), bool(return_counts), bool(equal_nan))
    if axis is not None:
        (axis,) = normalised_axes(axis, tensor.ndim)
    results = _unique(tensor, request) if axis is None or tensor.ndim == 1 else _unique_rows(tensor, axis, request)
    return results[0] if len(results) == 1 else tuple(results)


def _sharded_dims(tensor: DTensor) -> tuple[str, ...]:
    return tensor.layout.sharding_dims


def _unique(tensor: DTensor, request: _UniqueRequest) -> list[DTensor]:
    name, names = "numpy.unique", _sharded_dims(tensor)
    if not names or not tensor.size:
        return _of_blocks(tensor, request)
    indexed = request.return_index or request.return_inverse
    ordered = in_order(name, in_flat_order(tensor, name) if indexed else tensor, stable=indexed, indexed=indexed)
    options = ", ".join(f"{option}={value}" for option, value in request._asdict().items())
    text = f"{name}({options}) of {tensor.shape} {tensor.dtype} in {tensor.layout.specs_text}"
    with ranks_along(name, tensor.mesh, names, text) as ranks:
        block_shape = tensor.layout.block_shape(tensor.shape) if request.return_inverse else (0,)
        inverse = ranks.agree_on_result(lambda: new_block(block_shape, _INDEX))
        runs = _runs(ranks, ordered.values, request.equal_nan)
        if request.return_inverse:
            _write_numbers(ranks, tensor, ordered, runs, inverse)
    layout, shape = Layout([Cuts(names, sizes=runs.counts)], tensor.mesh), (sum(runs.counts),)
    blocks = [ordered.values._block[runs.first]]
    if request.return_index and ordered.indices is not None:
        blocks.append(ordered.indices._block[runs.first])
    if request.return_counts:
        blocks.append(np.diff(np.append(np.flatnonzero(runs.first), runs.end)))
    results = [make(block, layout, shape, block.dtype) for block in blocks]
    if request.return_inverse:
        results.insert(1 + request.return_index, make(inverse, tensor.layout, tensor.shape, _INDEX))
    return results


def _of_blocks(tensor: DTensor, request: _UniqueRequest) -> list[DTensor]:
    """Return what NumPy makes of each block, for a tensor that each device has, or that has no elements."""
    blocks = request.of(tensor._block)
    line = Layout([_sharded_dims(tensor)], tensor.mesh)
    results = [make(block, line, block.shape, block.dtype) for block in blocks]
    number = 1 + request.return_index
    if request.return_inverse and blocks[number].ndim == tensor.ndim:
        results[number] = make(blocks[number], tensor.layout, tensor.shape, _INDEX)
    return results


class _EqualRuns(NamedTuple):
    """The runs of equal elements, in order, that begin in the block of this rank.

    Parameters
    ----------
    first: mask of the elements that begin a run
    before: number of runs that begin in earlier blocks
    end: end of the last of these runs, counted from the beginning of the block
    counts: number of runs that begin in each block
    """

    first: Array
    before: int
    end: int
    counts: list[int]


def _runs(ranks: RowRanks, ordered: DTensor, equal_nan: bool) -> _EqualRuns:
    """Return the runs of elements that are in order over all ranks. Collective over the ranks."""
    block = ordered._block
    start = ordered.layout.block_box(ordered.shape)[0][0]
    ends = ranks.allgather(block[-1:].tobytes())
    before = [np.frombuffer(text, block.dtype) for text in ends[: ranks.position] if text]
    first = np.ones(len(block), dtype=bool)
    first[1:] = _differ(block[:-1], block[1:], equal_nan)
    if before and len(block):
        first[:1] = _differ(before[-1], block[:1], equal_nan)
    count = np.count_nonzero(first)
    message = np.array([count, start + first.argmax() if count else ordered.size], np.int64)
    texts = ranks.allgather(message.tobytes())
    counts, begins = (column.tolist() for column in np.array([np.frombuffer(text, np.int64) for text in texts]).T)
    after = begins[ranks.position + 1 :]
    end = min([ordered.size, *after]) - start
    return _EqualRuns(first, sum(counts[: ranks.position]), end, counts)


def _differ(elements: Array, next_ones: Array, equal_nan: bool) -> Array:
    """Return where elements are not equal."""
    differ = np.asarray(elements != next_ones)
    if equal_nan and elements.dtype.kind in "fcmM":
        differ &= ~(np.isnan(elements) & np.isnan(next_ones))
    return differ


def _write_numbers(ranks: RowRanks, tensor: DTensor, ordered: InOrder, runs: _EqualRuns, inverse: Array) -> None:
    """Write the number of its run to where each element was. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that share the elements
    tensor: tensor of the elements
    ordered: elements in order, with their indices
    runs: runs of this rank
    inverse: block of the result
    """
    assert ordered.indices is not None

    def write(index: tuple[Indices, ...], rows: Array | None) -> None:
        inverse[index] = rows

    numbers = np.cumsum(runs.first, dtype=_INDEX) + (runs.before - 1)
    deliver(ranks, inverse.shape, owned_elements(tensor, ordered.indices._block), numbers, write)


def _unique_rows(tensor: DTensor, axis: int, request: _UniqueRequest) -> list[DTensor]:
    """Return the distinct subarrays along *axis*: rows, which are compared as elements of many fields."""
    if tensor.dtype.kind == "V":
        raise TypeError(f"The axis argument to unique is not supported for dtype {tensor.dtype}")
    names, mesh = _sharded_dims(tensor), tensor.mesh
    if not tensor.size:
        return [as_replicated(array, mesh) for array in request.of(np.empty(tensor.shape, tensor.dtype), axis)]
    moved = tensor_np.moveaxis(tensor, axis, 0)
    rows = relaid(moved, (names, *((),) * (moved.ndim - 1)), "numpy.unique")
    rest = rows.shape[1:]
    fields = np.dtype([(f"f{number}", tensor.dtype) for number in range(prod(rest))])
    lines = np.ascontiguousarray(opaque(rows._block)).view(tensor.dtype).reshape(len(rows._block), prod(rest))
    results = _unique(make(lines.view(fields)[:, 0], Layout([names], mesh), rows.shape[:1], fields), request)
    first = results[0]
    block = first._block.view(tensor.dtype).reshape(len(first._block), *rest)
    layout = Layout([*first.layout.axes, *((),) * len(rest)], mesh)
    results[0] = tensor_np.moveaxis(make(block, layout, (first.size, *rest), tensor.dtype), 0, axis)
    return results


# -- the array API's names --------------------------------------------------------------------------------------------


def _array_api_function(function: Function, keep: list[int]) -> Function:
    """Return *function* of NumPy for tensors; *keep* are those of the results of `unique` that it returns."""
    results: Callable[..., object] = type(function(np.zeros(1)))

    def unique_results(x: DTensor) -> object:
        distinct = unique(x, 1 in keep, 2 in keep, 3 in keep, equal_nan=False)
        return results(*distinct) if isinstance(distinct, tuple) else distinct

    return unique_results


# -- operations of two sets -------------------------------------------------------------------------------------------


def _as_line(x: object) -> TensorOrArray:
    """Return an operand with one axis. Collective if elements of a tensor have to move."""
    return regrouped(x, (x.size,), name="set") if isinstance(x, DTensor) else np.asarray(x).reshape(-1)


def _line_operands(name: str, *operands: SetOperand) -> list[TensorOrArray]:
    """Return the operands, with one axis each. Collective over the mesh."""
    unwrapped_operands = [unwrapped(x) for x in operands]
    return [_as_line(x) for x in agree_on_plain(name, unwrapped_operands, mesh_of(unwrapped_operands))]


def _distinct(x: Value, index: bool = False) -> Value:
    if isinstance(x, DTensor):
        return unique(x, index)
    results = _UniqueRequest(return_index=index).of(x)
    return results if index else results[0]


@implements(np.union1d, partly=True)
def union1d(ar1: SetOperand, ar2: SetOperand) -> DTensor:
    """Return the elements that are in one of two tensors or arrays, as numpy.union1d. Collective over the mesh.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.union1d(t, [4, 1]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1, 3, 4]
    """
    return _distinct(concatenate([ar1, ar2], axis=None))


@implements(np.intersect1d, partly=True)
def intersect1d(
    ar1: SetOperand, ar2: SetOperand, assume_unique: bool = False, return_indices: bool = False
) -> DTensor | tuple[DTensor, ...]:
    """Return the elements that are in both of two tensors or arrays, as numpy.intersect1d. Collective over the mesh.

    Parameters
    ----------
    ar1, ar2: tensors or arrays, one of them a tensor
    assume_unique: whether neither has equal elements
    return_indices: whether to return also the first index of each element in both

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.intersect1d(t, [4, 3]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [3]
    """
    name = "numpy.intersect1d"
    sides = _line_operands(name, ar1, ar2)
    mesh, firsts = mesh_of(sides), list[DTensor]()
    if not assume_unique:
        distinct = [_distinct(side, return_indices) for side in sides]
        if return_indices:
            firsts = [as_replicated(index, mesh) for _, index in distinct]
            distinct = [values for values, _ in distinct]
        sides = distinct
    both = concatenate(sides)
    order = argsort(both, kind="stable") if return_indices else None
    both = sort(both) if order is None else both[order]
    twice = both[1:] == both[:-1]
    result = both[:-1][twice]
    if order is None:
        return result
    indices = [order[:-1][twice], order[1:][twice] - sides[0].size]
    if firsts:
        indices = [first[positions] for first, positions in zip(firsts, indices, strict=True)]
    return result, *indices


@implements(np.setdiff1d, partly=True)
def setdiff1d(ar1: SetOperand, ar2: SetOperand, assume_unique: bool = False) -> DTensor:
    """Return the elements of *ar1* that are not in *ar2*, as numpy.setdiff1d. Collective over the mesh.

    With *assume_unique* they stay in their order.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.setdiff1d(t, [4, 3]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1]
    """
    first, second = _line_operands("numpy.setdiff1d", ar1, ar2)
    mesh = mesh_of([first, second])
    first = first if assume_unique else _distinct(first)
    return as_replicated(first, mesh)[isin(first, second, invert=True)]


@implements(np.setxor1d, partly=True)
def setxor1d(ar1: SetOperand, ar2: SetOperand, assume_unique: bool = False) -> DTensor:
    """Return the elements that are in just one of two, as numpy.setxor1d. Collective over the mesh.

    Parameters are those of `intersect1d`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.setxor1d(t, [4, 3]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1, 4]
    """
    sides = _line_operands("numpy.setxor1d", ar1, ar2)
    both = concatenate(sides if assume_unique else [_distinct(side) for side in sides])
    if not both.size:
        return both
    both = sort(both)
    differ = both[1:] != both[:-1]
    once = ones_like(astype(both, bool))
    once[1:] = differ
    once[:-1] &= differ
    return both[once]


@implements(np.ediff1d, partly=True)
def ediff1d(ary: SetOperand, to_end: SetOperand | None = None, to_begin: SetOperand | None = None) -> DTensor:
    """Return the differences of neighbours among all elements, as numpy.ediff1d. Collective over the mesh.

    Parameters
    ----------
    ary: tensor of any shape
    to_end, to_begin: values after and before the differences; ``TypeError`` unless NumPy's rule ``same_kind`` converts
        them to the dtype of *ary*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.ediff1d(t, to_begin=7).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [7, -2, 2]
    """
    (line, *ends) = _line_operands("numpy.ediff1d", ary, *(x for x in (to_end, to_begin) if x is not None))
    for end in ends:
        if not np.can_cast(end.dtype, line.dtype, casting="same_kind"):
            raise TypeError("dtype of to_begin and to_end must be compatible with input ary under the same_kind rule.")
    differences = np.subtract(line[1:], line[:-1])
    if not ends:
        return as_tensor("numpy.ediff1d", differences)
    before = [ends.pop()] if to_begin is not None else []
    kind = differences.dtype
    pieces = [*before, differences, *ends]
    return concatenate([x.astype(kind) for x in pieces])


if hasattr(np, "unique_all"):  # since NumPy 2
    implements(np.unique_all)(_array_api_function(np.unique_all, [1, 2, 3]))
    implements(np.unique_counts)(_array_api_function(np.unique_counts, [3]))
    implements(np.unique_inverse)(_array_api_function(np.unique_inverse, [2]))
    implements(np.unique_values)(_array_api_function(np.unique_values, []))
