"""Sets, as NumPy has them: the distinct elements of tensors, and unions, intersections and differences of these.

    elements of the blocks ──> sorted by a sample sort ──> runs of equal elements, whose counts the ranks exchange
        ──> for each run: its value, its first index, its length
        ──> for each element: the number of its run, sent back to the location of the element

Results are cut over the mesh dimensions that shard the operand; each rank keeps the values that the sort gave it
(`Cuts`). No rank gets all of them. A rank outside of the mesh cannot know their number: ``ShapeError``.
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
    """What `unique` returns besides the distinct elements, and whether NaN equals NaN."""

    return_index: bool = False
    return_inverse: bool = False
    return_counts: bool = False
    equal_nan: bool = True

    def apply(self, array: Array, axis: int | None = None) -> list[Array]:
        """Return the results of numpy.unique for an array."""
        unique_function: Function = np.unique  # its overloads do not accept flags that are variables
        result: Value = unique_function(array, *self[:3], axis, equal_nan=self.equal_nan)
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

    The result is cut over all mesh dimensions that shard *ar*, into blocks that depend on the values; the inverse is
    in the layout of *ar*. With *axis*, subarrays are compared, and the other axes are unsharded.

    Parameters
    ----------
    ar: a tensor
    return_index, return_inverse, return_counts: whether to also return the first index of each value, for each element
        the index of its value, and the count of each value
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


def _sharding_dims(tensor: DTensor) -> tuple[str, ...]:
    return tensor.layout.sharding_dims


def _unique(tensor: DTensor, request: _UniqueRequest) -> list[DTensor]:
    name, names = "numpy.unique", _sharding_dims(tensor)
    if not names or not tensor.size:
        return _unique_of_blocks(tensor, request)
    needs_indices = request.return_index or request.return_inverse
    ordered = in_order(
        name, in_flat_order(tensor, name) if needs_indices else tensor, stable=needs_indices, indexed=needs_indices
    )
    options = ", ".join(f"{option}={value}" for option, value in request._asdict().items())
    text = f"{name}({options}) of {tensor.shape} {tensor.dtype} in {tensor.layout.specs_text}"
    with ranks_along(name, tensor.mesh, names, text) as ranks:
        block_shape = tensor.layout.block_shape(tensor.shape) if request.return_inverse else (0,)
        inverse = ranks.agree_on_result(lambda: new_block(block_shape, _INDEX))
        runs = _equal_runs(ranks, ordered.values, request.equal_nan)
        if request.return_inverse:
            _write_numbers(ranks, tensor, ordered, runs, inverse)
    layout, shape = Layout([Cuts(names, sizes=runs.block_counts)], tensor.mesh), (sum(runs.block_counts),)
    blocks = [ordered.values._block[runs.is_first]]
    if request.return_index and ordered.indices is not None:
        blocks.append(ordered.indices._block[runs.is_first])
    if request.return_counts:
        blocks.append(np.diff(np.append(np.flatnonzero(runs.is_first), runs.last_end)))
    results = [make(block, layout, shape, block.dtype) for block in blocks]
    if request.return_inverse:
        results.insert(1 + request.return_index, make(inverse, tensor.layout, tensor.shape, _INDEX))
    return results


def _unique_of_blocks(tensor: DTensor, request: _UniqueRequest) -> list[DTensor]:
    """Return the results of NumPy for each block of a tensor that is replicated or empty."""
    blocks = request.apply(tensor._block)
    line_layout = Layout([_sharding_dims(tensor)], tensor.mesh)
    results = [make(block, line_layout, block.shape, block.dtype) for block in blocks]
    inverse_position = 1 + request.return_index
    if request.return_inverse and blocks[inverse_position].ndim == tensor.ndim:
        results[inverse_position] = make(blocks[inverse_position], tensor.layout, tensor.shape, _INDEX)
    return results


class _EqualRuns(NamedTuple):
    """The runs of equal elements in a sorted tensor that begin in the block of this rank.

    Parameters
    ----------
    is_first: mask of the elements that begin a run
    runs_before: number of runs that begin in earlier blocks
    last_end: end of the last of these runs, as an index of the block; it may be in a later block
    block_counts: number of runs that begin in each block
    """

    is_first: Array
    runs_before: int
    last_end: int
    block_counts: list[int]


def _equal_runs(ranks: RowRanks, ordered: DTensor, equal_nan: bool) -> _EqualRuns:
    """Return the runs of equal elements of a tensor that is sorted over all ranks. Collective over the ranks."""
    block = ordered._block
    start = ordered.layout.block_box(ordered.shape)[0][0]
    last_elements = ranks.allgather(block[-1:].tobytes())
    elements_before = [np.frombuffer(data, block.dtype) for data in last_elements[: ranks.position] if data]
    is_first = np.ones(len(block), dtype=bool)
    is_first[1:] = _are_different(block[:-1], block[1:], equal_nan)
    if elements_before and len(block):
        is_first[:1] = _are_different(elements_before[-1], block[:1], equal_nan)
    count = np.count_nonzero(is_first)
    message = np.array([count, start + is_first.argmax() if count else ordered.size], np.int64)
    messages = ranks.allgather(message.tobytes())
    block_counts, run_starts = (
        column.tolist() for column in np.array([np.frombuffer(data, np.int64) for data in messages]).T
    )
    later_starts = run_starts[ranks.position + 1 :]
    last_end = min([ordered.size, *later_starts]) - start
    return _EqualRuns(is_first, sum(block_counts[: ranks.position]), last_end, block_counts)


def _are_different(elements: Array, next_elements: Array, equal_nan: bool) -> Array:
    """Return a mask of the elements that differ from *next_elements*."""
    is_different = np.asarray(elements != next_elements)
    if equal_nan and elements.dtype.kind in "fcmM":
        is_different &= ~(np.isnan(elements) & np.isnan(next_elements))
    return is_different


def _write_numbers(ranks: RowRanks, tensor: DTensor, ordered: InOrder, runs: _EqualRuns, inverse: Array) -> None:
    """Write the run number of each element to *inverse*, on the rank that has the element. Collective over the ranks.

    Parameters
    ----------
    ranks: ranks that share the elements
    tensor: tensor of the elements
    ordered: sorted elements, with their indices
    runs: runs of this rank
    inverse: block of the inverse on this rank
    """
    assert ordered.indices is not None

    def write(index: tuple[Indices, ...], rows: Array | None) -> None:
        inverse[index] = rows

    run_numbers = np.cumsum(runs.is_first, dtype=_INDEX) + (runs.runs_before - 1)
    deliver(ranks, inverse.shape, owned_elements(tensor, ordered.indices._block), run_numbers, write)


def _unique_rows(tensor: DTensor, axis: int, request: _UniqueRequest) -> list[DTensor]:
    """Return the distinct subarrays along *axis*: they are compared as records with a field for each element."""
    if tensor.dtype.kind == "V":
        raise TypeError(f"The axis argument to unique is not supported for dtype {tensor.dtype}")
    names, mesh = _sharding_dims(tensor), tensor.mesh
    if not tensor.size:
        return [as_replicated(array, mesh) for array in request.apply(np.empty(tensor.shape, tensor.dtype), axis)]
    rows_first = tensor_np.moveaxis(tensor, axis, 0)
    rows = relaid(rows_first, (names, *((),) * (rows_first.ndim - 1)), "numpy.unique")
    row_shape = rows.shape[1:]
    record_dtype = np.dtype([(f"f{number}", tensor.dtype) for number in range(prod(row_shape))])
    elements = np.ascontiguousarray(opaque(rows._block)).view(tensor.dtype).reshape(len(rows._block), prod(row_shape))
    results = _unique(
        make(elements.view(record_dtype)[:, 0], Layout([names], mesh), rows.shape[:1], record_dtype), request
    )
    records = results[0]
    block = records._block.view(tensor.dtype).reshape(len(records._block), *row_shape)
    layout = Layout([*records.layout.axes, *((),) * len(row_shape)], mesh)
    results[0] = tensor_np.moveaxis(make(block, layout, (records.size, *row_shape), tensor.dtype), 0, axis)
    return results


# -- the array API's names --------------------------------------------------------------------------------------------


def _array_api_function(function: Function, kept_results: list[int]) -> Function:
    """Return NumPy's *function* for tensors; *kept_results* are the numbers of the results of `unique` to return."""
    result_class: Callable[..., object] = type(function(np.zeros(1)))

    def unique_results(x: DTensor) -> object:
        unique_values = unique(x, 1 in kept_results, 2 in kept_results, 3 in kept_results, equal_nan=False)
        return result_class(*unique_values) if isinstance(unique_values, tuple) else unique_values

    return unique_results


# -- operations of two sets -------------------------------------------------------------------------------------------


def _flattened(x: object) -> TensorOrArray:
    """Return an operand flattened to one axis. Collective if elements of a tensor have to move."""
    return regrouped(x, (x.size,), name="set") if isinstance(x, DTensor) else np.asarray(x).reshape(-1)


def _flat_operands(name: str, *operands: SetOperand) -> list[TensorOrArray]:
    """Return the operands, each flattened to one axis. Collective over the mesh."""
    unwrapped_operands = [unwrapped(x) for x in operands]
    return [_flattened(x) for x in agree_on_plain(name, unwrapped_operands, mesh_of(unwrapped_operands))]


def _unique_values(x: Value, return_index: bool = False) -> Value:
    if isinstance(x, DTensor):
        return unique(x, return_index)
    unique_results = _UniqueRequest(return_index=return_index).apply(x)
    return unique_results if return_index else unique_results[0]


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
    return _unique_values(concatenate([ar1, ar2], axis=None))


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
    operands = _flat_operands(name, ar1, ar2)
    mesh, first_indices = mesh_of(operands), list[DTensor]()
    if not assume_unique:
        unique_sides = [_unique_values(operand, return_indices) for operand in operands]
        if return_indices:
            first_indices = [as_replicated(index, mesh) for _, index in unique_sides]
            unique_sides = [values for values, _ in unique_sides]
        operands = unique_sides
    merged = concatenate(operands)
    order = argsort(merged, kind="stable") if return_indices else None
    merged = sort(merged) if order is None else merged[order]
    is_common = merged[1:] == merged[:-1]
    result = merged[:-1][is_common]
    if order is None:
        return result
    indices = [order[:-1][is_common], order[1:][is_common] - operands[0].size]
    if first_indices:
        indices = [firsts[positions] for firsts, positions in zip(first_indices, indices, strict=True)]
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
    first, second = _flat_operands("numpy.setdiff1d", ar1, ar2)
    mesh = mesh_of([first, second])
    first = first if assume_unique else _unique_values(first)
    return as_replicated(first, mesh)[isin(first, second, invert=True)]


@implements(np.setxor1d, partly=True)
def setxor1d(ar1: SetOperand, ar2: SetOperand, assume_unique: bool = False) -> DTensor:
    """Return the elements that are in exactly one of two sets, as numpy.setxor1d. Collective over the mesh.

    Parameters are those of `intersect1d`.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.setxor1d(t, [4, 3]).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [1, 4]
    """
    operands = _flat_operands("numpy.setxor1d", ar1, ar2)
    merged = concatenate(operands if assume_unique else [_unique_values(operand) for operand in operands])
    if not merged.size:
        return merged
    merged = sort(merged)
    is_different = merged[1:] != merged[:-1]
    is_single = ones_like(astype(merged, bool))
    is_single[1:] = is_different
    is_single[:-1] &= is_different
    return merged[is_single]


@implements(np.ediff1d, partly=True)
def ediff1d(ary: SetOperand, to_end: SetOperand | None = None, to_begin: SetOperand | None = None) -> DTensor:
    """Return the differences of neighbours among all elements, as numpy.ediff1d. Collective over the mesh.

    Parameters
    ----------
    ary: tensor of any shape
    to_end, to_begin: values after and before the differences; ``TypeError`` if NumPy's rule ``same_kind`` does not
        convert them to the dtype of *ary*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([3, 1, 3]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.ediff1d(t, to_begin=7).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [7, -2, 2]
    """
    (line, *ends) = _flat_operands("numpy.ediff1d", ary, *(x for x in (to_end, to_begin) if x is not None))
    for end in ends:
        if not np.can_cast(end.dtype, line.dtype, casting="same_kind"):
            raise TypeError("dtype of to_begin and to_end must be compatible with input ary under the same_kind rule.")
    differences = np.subtract(line[1:], line[:-1])
    if not ends:
        return as_tensor("numpy.ediff1d", differences)
    begin_values = [ends.pop()] if to_begin is not None else []
    dtype = differences.dtype
    pieces = [*begin_values, differences, *ends]
    return concatenate([x.astype(dtype) for x in pieces])


if hasattr(np, "unique_all"):  # since NumPy 2
    implements(np.unique_all)(_array_api_function(np.unique_all, [1, 2, 3]))
    implements(np.unique_counts)(_array_api_function(np.unique_counts, [3]))
    implements(np.unique_inverse)(_array_api_function(np.unique_inverse, [2]))
    implements(np.unique_values)(_array_api_function(np.unique_values, []))
