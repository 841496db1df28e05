"""Counts of integers, and of points in bins. Every device counts in its block, and the ranks add up the counts.

Results are replicated.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, replicated
from meshcomm.blocks.make import make, mapped, on_blocks, refuse_outside
from meshcomm.blocks.reduce import reduce_shares
from meshcomm.blocks.rules import Operand, mesh_of
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.whole import whole_along
from meshcomm.core._arguments import as_array, as_integer
from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.reductions import reductions
from meshcomm.numpy.reductions.histogram import ends, weights_like
from meshcomm.numpy.shapes.shaping import expand_dims

# -- bincount ---------------------------------------------------------------------------------------------------------


@implements(np.bincount)
def bincount(x: DTensor | ArrayLike, /, weights: DTensor | ArrayLike | None = None, minlength: int = 0) -> DTensor:
    """Return how often each integer from 0 on occurs in a tensor, as numpy.bincount. Collective over the mesh.

    The result is replicated. ``ShapeError`` on ranks outside of the mesh: they cannot know its length.

    Parameters
    ----------
    x: integers of one axis; NumPy's ``ValueError`` on all ranks if one is negative
    weights: weight of each element of *x*; weights of equal elements are added up
    minlength: minimum length of the result

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1, 3, 1]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.bincount(t).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [0, 2, 0, 1]
    """
    name, operands = "numpy.bincount", [unwrapped(x) for x in (x, weights)]
    mesh = mesh_of(operands)
    values, agreed_weights = agree_on_plain(name, operands, mesh)
    tensor, min_length = _sharded_like(values, agreed_weights), as_integer(minlength, "minlength", TypeError)
    dtype = np.bincount(
        _small_array(tensor), None if agreed_weights is None else _small_array(agreed_weights), min(min_length, 0)
    ).dtype  # NumPy's errors
    weights_tensor = None if agreed_weights is None else weights_like(name, tensor, agreed_weights)
    refuse_outside(name, tensor.mesh, "the largest element")
    with not_raising_float_errors():
        counts, failure = _block_counts(
            tensor._block, None if weights_tensor is None else weights_tensor._block, min_length
        )
    status = np.array([failure, 0 if counts is None else len(counts)], np.int64)
    any_failure, length = reduce_shares(name, tensor, status, (2,), status.dtype, op="max")._block.tolist()
    if any_failure == 1:
        raise ShapeError("'list' argument must have no negative elements")
    if any_failure:
        raise MemoryError(f"{name}: an element is too large, as the result has one number for each up to it")
    padded_counts = np.zeros(length, dtype)
    if counts is not None:  # NumPy counts no elements in integers
        padded_counts[: len(counts)] = counts
    return reduce_shares(name, tensor, padded_counts, (length,), dtype)


def _block_counts(block: Array, weights: Array | None, min_length: int) -> tuple[Array | None, int]:
    """Return the counts in a block; or None, and 1 for negative elements, 2 for too large ones.

    An error on one rank must not stop that rank alone.
    """
    try:
        return np.bincount(block, weights, min_length), 0
    except MemoryError:
        return None, 2
    except ValueError as error:
        return None, 1 if "negative" in str(error) else 2


def _sharded_like(array: Operand, prototype: Operand | None) -> DTensor:
    """Return *array* as a tensor; a plain array is cut along its first axis as *prototype* is along its own."""
    if isinstance(array, DTensor):
        return array
    assert isinstance(prototype, DTensor)
    plain_array = np.asarray(array)
    axes = [prototype.layout.axes[0] if axis == 0 and prototype.ndim else () for axis in range(plain_array.ndim)]
    return distribute(plain_array, Layout(axes, prototype.mesh))


def _small_array(operand: Operand) -> Array:
    """Return an array with the dtype and the number of axes of *operand*, and one element, or none."""
    array = operand if isinstance(operand, DTensor) else np.asarray(operand)
    return np.zeros((min(array.size, 1),) * array.ndim, array.dtype)


# -- histograms of points ---------------------------------------------------------------------------------------------


@implements(np.histogramdd, partly=True)
def histogramdd(
    sample: DTensor | Sequence[DTensor | ArrayLike],
    bins: int | Sequence[ArrayLike] = 10,
    range: Sequence[tuple[float, float] | None] | None = None,
    density: bool | None = None,
    weights: DTensor | ArrayLike | None = None,
) -> tuple[DTensor, list[DTensor]]:
    """Return the counts of points in bins, and the edges along each axis, as numpy.histogramdd. Collective.

    All of them are replicated. Without *range* the ranks first reduce the minimum and the maximum of each coordinate.

    Parameters
    ----------
    sample: tensor with a row for each point; or list of their coordinates along each axis
    bins: number of bins along each axis, or one for all, or edges along each axis: the same on every rank
    range: lowest and highest edge along each axis; by default those of the points
    density: whether to return probability densities instead of counts
    weights: weight of each point; weights in a bin are added up

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([[0, 0], [1, 5], [9, 9.0]]), mc.Layout(["x", ()], mc.create_mesh([("x", 2)])))
    ...     return np.histogramdd(t, 2)[0].local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return _point_histogram("numpy.histogramdd", sample, (bins, _ends(range)), density, weights)


@implements(np.histogram2d, partly=True)
def histogram2d(
    x: DTensor | ArrayLike,
    y: DTensor | ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: Sequence[tuple[float, float] | None] | None = None,
    density: bool | None = None,
    *,
    weights: DTensor | ArrayLike | None = None,
) -> tuple[DTensor, DTensor, DTensor]:
    """Return the counts of points in bins, and the edges along x and y, as numpy.histogram2d. Collective.

    As `histogramdd` for points with the coordinates *x* and *y*. *bins* is a number, the edges for both axes, or a
    pair of numbers or edges.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([0.0, 1, 9]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.histogram2d(t, [0.0, 5, 9], 2)[0].local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [[1.0, 1.0], [0.0, 1.0]]
    """
    bins_by_axis: Value = _edges("numpy.histogram2d", bins) if isinstance(unwrapped(bins), DTensor) else bins
    if _is_per_axis(bins_by_axis) and len(bins_by_axis) not in (1, 2):
        bins_by_axis = [np.asarray(bins_by_axis)] * 2
    counts, edges = _point_histogram("numpy.histogram2d", [x, y], (bins_by_axis, _ends(range)), density, weights)
    return counts, edges[0], edges[1]


def _ends(limits: Sequence[tuple[float, float] | None] | None) -> object:
    return None if limits is None else [ends(pair) for pair in limits]


def _point_histogram(
    name: str,
    sample: object,
    bins_and_range: tuple[Value, Value],
    density: bool | None,
    weights: DTensor | ArrayLike | None,
) -> tuple[DTensor, list[DTensor]]:
    """Return the counts and the edges of the bins. Collective."""
    coordinates = [unwrapped(x) for x in sample] if isinstance(sample, list | tuple) else [unwrapped(sample)]
    bins, limits = bins_and_range
    edges = [_edges(name, axis_edges) for axis_edges in bins] if _is_per_axis(bins) else [bins]
    mesh, unwrapped_weights = mesh_of([*coordinates, unwrapped(weights)]), unwrapped(weights)
    agreed_operands = agree_on_plain(name, [*coordinates, *edges, unwrapped_weights], mesh)
    points = _points(
        name,
        agreed_operands[: len(coordinates)],
        agreed_operands[-1],
        is_one_tensor=not isinstance(sample, list | tuple),
    )
    coordinate_count = points.shape[1]
    edges = edges if _is_per_axis(bins) else edges * coordinate_count
    sample_weights = None if unwrapped_weights is None else np.ones(1, _small_array(agreed_operands[-1]).dtype)
    # NumPy's errors, on all ranks alike.
    np.histogramdd(np.zeros((1, coordinate_count), points.dtype), edges, limits, weights=sample_weights)
    limits = _limits(points, edges, limits)
    bin_edges = np.histogramdd(np.zeros((0, coordinate_count), points.dtype), edges, limits)[1]
    shape, dtype = tuple(len(axis_bin_edges) - 1 for axis_bin_edges in bin_edges), np.dtype(float)
    prototype = make(points._block, points.layout.take([0]), points.shape[:1], points.dtype)
    weights_tensor = None if unwrapped_weights is None else weights_like(name, prototype, agreed_operands[-1])

    def count_block(block: Array, block_weights: Array | None = None) -> Array:
        with not_raising_float_errors():
            return np.ascontiguousarray(np.histogramdd(block, edges, limits, weights=block_weights)[0])

    block_counts = on_blocks(count_block, points, *(() if weights_tensor is None else (weights_tensor,)))
    counts = reduce_shares(name, points, block_counts, shape, dtype)
    if density:
        counts = mapped(lambda block: _density(block, bin_edges), counts)
    return counts, [replicated(axis_bin_edges, mesh) for axis_bin_edges in bin_edges]


def _edges(name: str, bins: Value) -> Array:
    """Return *bins*, a number of bins or the edges, as an array. Collective over the mesh if it is a tensor."""
    return allgather_array(name, bins) if isinstance(unwrapped(bins), DTensor) else as_array(bins)


def _is_per_axis(bins: object) -> bool:
    """Return whether *bins* has an entry for each axis."""
    return isinstance(bins, list | tuple) or (isinstance(bins, np.ndarray) and bins.ndim > 0)


def _points(name: str, operands: Sequence[Operand], weights: Operand, is_one_tensor: bool) -> DTensor:
    """Return a tensor with a row for each point: rows are not cut. Collective if an operand has to move.

    Parameters
    ----------
    name: name of the operation
    operands: one tensor of all coordinates, or the coordinates along each axis
    weights: weights of the points, or None
    is_one_tensor: whether one operand has all coordinates
    """
    tensors = [x for x in operands if isinstance(x, DTensor)]
    if is_one_tensor:
        tensor = _sharded_like(operands[0], weights)
        if tensor.ndim == 1:
            tensor = expand_dims(tensor, 1)
        if tensor.ndim != 2:
            raise ShapeError(f"{name}: a sample has points and their coordinates, but this one has {tensor.ndim} axes")
        return whole_along(tensor, (1,), name)
    prototype = _sharded_like(tensors[0] if tensors else operands[0], weights)
    for x in operands:
        if np.shape(x) != prototype.shape or prototype.ndim != 1:
            shapes = " ".join(str(np.shape(coordinates)) for coordinates in operands)
            raise ShapeError(f"{name}: the coordinates along each axis have one axis and one length, not {shapes}")
    columns = [weights_like(name, prototype, x) for x in operands]
    dtype = np.result_type(*(column.dtype for column in columns))
    layout, shape = prototype.layout.insert(prototype.ndim), (prototype.size, len(columns))
    return mapped(
        lambda *blocks: np.stack(blocks, axis=1, dtype=dtype), *columns, layout=layout, shape=shape, dtype=dtype
    )


def _limits(points: DTensor, edges: Sequence[Value], limits: Value) -> list[Value]:
    """Return the lowest and the highest edge along each axis; None where edges are given. Collective over the mesh."""
    result = [None] * len(edges) if limits is None else list(limits)
    open_axes = [axis for axis, limit in enumerate(result) if limit is None and np.ndim(edges[axis]) == 0]
    if not open_axes or not points.size:
        return result
    low, high = reductions.min(points, 0)._block, reductions.max(points, 0)._block
    for axis in open_axes if low is not None else ():  # a rank outside of the mesh does not know the points
        result[axis] = (low[axis], high[axis])
    return result


def _density(counts: Array, edges: Sequence[Array]) -> Array:
    density = counts
    for axis, axis_edges in enumerate(edges):
        density = density / np.diff(axis_edges).reshape([-1 if number == axis else 1 for number in range(len(edges))])
    with np.errstate(all="ignore"):
        return np.asarray(density / counts.sum())
