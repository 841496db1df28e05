"""Distances to the nearest element that is zero, exact and the same as SciPy's.

`distance_transform_edt` runs axis by axis, as SciPy's does: SciPy itself does all axes except the last, in unsharded
hyperplanes. Then `_write_lines` goes along unsharded lines of the last axis, and resolves ties as SciPy does.
`distance_transform_cdt` also works along unsharded lines; `distance_transform_bf` (brute force) compares each nonzero
element with every zero that is adjacent to a nonzero element.

All are Collective over the mesh of *input* if it is sharded. ``LayoutError`` for plain arrays and for `Cyclic` axes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import indices_along, map_into, map_to_new, mapped
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.whole import whole_along
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, TensorLike
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.ndimage.arguments import Reals
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.binary import binary_dilation, generate_binary_structure
from meshcomm.ndimage.calls import input_tensor, refuse_cyclic, scipy_ndimage, write_output
from meshcomm.numpy.shapes.shaping import reshape

_INDEX = np.dtype(np.int32)
_FLOAT = np.dtype(np.float64)


class _Outputs(NamedTuple):
    """The tensors to write into, and whether to return distances and indices."""

    distances: DTensor | None
    indices: DTensor | None
    return_distances: bool
    return_indices: bool

    def check(self, error: type[Exception], tensor: DTensor, distance_dtype: DType) -> None:
        """Raise SciPy's errors for outputs that do not fit, and NumPy's for a dtype without a zero, such as records.

        Parameters
        ----------
        error: class of SciPy's error for an output that does not fit
        tensor: the input
        distance_dtype: dtype of distances
        """
        refuse_cyclic(tensor)
        _ = np.ones(1, tensor.dtype) != 0
        problems = [] if any(self[2:]) else ["at least one of return_distances/return_indices must be True"]
        for output_name, output, is_requested in zip(self._fields, self[:2], self[2:], strict=False):
            if output is not None and not is_requested:
                problems.append(f"return_{output_name} must be True if {output_name} is supplied")
        if problems:
            raise RuntimeError(", ".join(problems))
        expected = (tensor.shape, distance_dtype), ((tensor.ndim, *tensor.shape), _INDEX)
        for output_name, output, (shape, dtype) in zip(self._fields, self[:2], expected, strict=False):
            if output is not None and output.shape != shape:
                raise error(f"{output_name} array has wrong shape")
            if output is not None and output.dtype != dtype:
                raise error(f"{output_name} array must be {dtype}")

    def results(self, distances: DTensor | None, indices: DTensor | None) -> Value:
        """Return the requested results, except for those written into tensors. Collective."""
        results = []
        for result, output, is_requested in zip((distances, indices), self[:2], self[2:], strict=True):
            if not is_requested or result is None:
                continue
            if isinstance(output, DTensor):
                write_output(result, output)
            else:
                results.append(result)
        return tuple(results) if len(results) > 1 else results[0] if results else None


def _spacing(sampling: Reals | None, ndim: int) -> list[float] | None:
    """Return the distance of neighbours along each axis; None if it is 1."""
    return None if sampling is None else [float(distance) for distance in per_axis(sampling, ndim, "sampling")]


# -- Euclidean --------------------------------------------------------------------------------------------------------


@refusable
def distance_transform_edt(
    input: TensorLike,
    sampling: Reals | None = None,
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return the distance of each element to the nearest zero, or its index, or both. Collective over the mesh.

    Source: scipy.ndimage.distance_transform_edt.

    Parameters
    ----------
    input: a tensor
    sampling: distance of neighbours, or one for each axis
    return_distances: whether to return distances
    return_indices: whether to return the index of the nearest zero along each axis, stacked along a new first axis
    distances: a tensor of float64 to write the distances into; they are not returned then
    indices: a tensor of int32 to write the indices into; they are not returned then

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.distance_transform_edt(mc.distribute([1, 1, 0, 1, 1, 1], rows)).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[2.0, 1.0, 0.0], [1.0, 2.0, 3.0]]
    """
    tensor = input_tensor("distance_transform_edt", input)
    outputs = _Outputs(distances, indices, bool(return_distances), bool(return_indices))
    if not tensor.ndim:
        tensor = reshape(tensor, (1,))
    outputs.check(RuntimeError, tensor, _FLOAT)
    spacing = _spacing(sampling, tensor.ndim)
    nearest = relaid(_nearest_zeros(tensor, spacing), tensor.layout.insert(0).axes, "distance_transform_edt")
    computed_distances = _distances(nearest, tensor, spacing) if outputs.return_distances else None
    return outputs.results(computed_distances, nearest)


def _nearest_zeros(tensor: DTensor, spacing: list[float] | None) -> DTensor:
    """Return the index of the nearest zero along each axis, stacked along a new first axis. Collective."""
    last_axis = tensor.ndim - 1
    planes = whole_along(tensor, range(last_axis), "distance_transform_edt")

    def within_planes(block: Array) -> Array:
        features = np.zeros((tensor.ndim, *block.shape), _INDEX)
        features[0] = -1  # SciPy's mark for no zero
        last_indices = planes.layout.global_indices(tensor.shape, None, last_axis)
        for i in range(len(last_indices) if features.size else 0):
            plane = block[..., i] != 0
            if plane.all():
                continue
            if last_axis:
                plane_spacing = None if spacing is None else spacing[:last_axis]
                features[:last_axis, ..., i] = scipy_ndimage().distance_transform_edt(
                    plane, plane_spacing, return_distances=False, return_indices=True
                )
            features[last_axis, ..., i] = last_indices[i]
        return features

    layout = planes.layout.insert(0)
    features = mapped(within_planes, planes, layout=layout, shape=(tensor.ndim, *tensor.shape), dtype=_INDEX)
    lines = whole_along(features, (0, last_axis + 1), "distance_transform_edt")

    def along_lines(out: Array, block: Array) -> None:
        out[...] = block
        grid = [lines.layout.global_indices(lines.shape, None, axis + 1) for axis in range(last_axis)]
        line_indices = [indices.reshape(-1) for indices in np.meshgrid(*grid, indexing="ij")] if grid else []
        flat = out.reshape(tensor.ndim, -1, tensor.shape[last_axis])
        limit = max(1, DEFAULT_SCRATCH // (64 * tensor.ndim * tensor.shape[last_axis]))
        for start in range(0, flat.shape[1], limit):
            chunk = slice(start, start + limit)
            _write_lines(flat[:, chunk], [indices[chunk] for indices in line_indices], spacing)

    return map_to_new(along_lines, lines)


def _write_lines(features: Array, line_indices: Sequence[Array], spacing: list[float] | None) -> None:
    """Write the nearest zero of each element of some lines, from the nearest one within its hyperplane.

    It is SciPy's algorithm: zeros with regions on the line go onto a stack, and a second pass along the line assigns
    them to elements. All lines are processed together, element by element.

    Parameters
    ----------
    features: array of shape (coordinates, lines, elements); the first coordinate is -1 where there is no zero
    line_indices: the indices of the lines along all axes except the last
    spacing: distance of neighbours along each axis
    """
    ndim, count, n = features.shape
    step_lengths = [1.0] * ndim if spacing is None else spacing
    zero_positions = features[-1].astype(np.float64)
    squared_offsets = np.zeros((count, n))  # squared distances of the zeros from the line
    for axis, index in enumerate(line_indices):
        squared_offsets += ((features[axis] - index[:, None]) * step_lengths[axis]) ** 2
    has_zero, step_length = features[0] >= 0, step_lengths[-1]
    stack, top, lines = np.zeros((count, n), np.intp), np.full(count, -1), np.arange(count)
    for i in range(n):
        poppable = lines[has_zero[:, i]]
        while True:
            poppable = poppable[top[poppable] >= 1]
            if not len(poppable):
                break
            top0, top1 = (stack[poppable, top[poppable] - depth] for depth in (0, 1))
            a = (zero_positions[poppable, top0] - zero_positions[poppable, top1]) * step_length
            b = (zero_positions[poppable, i] - zero_positions[poppable, top0]) * step_length
            u, v, w = squared_offsets[poppable, top1], squared_offsets[poppable, top0], squared_offsets[poppable, i]
            c = a + b
            poppable = poppable[c * v - b * u - a * w - a * b * c > 0]
            top[poppable] -= 1
        lines_with_zero = lines[has_zero[:, i]]
        top[lines_with_zero] += 1
        stack[lines_with_zero, top[lines_with_zero]] = i
    nonempty, stack_position = lines[top >= 0], np.zeros(count, np.intp)
    original = features.copy()

    def squared_distance(line: Array, element: Array, i: int) -> Array:
        return np.asarray(((zero_positions[line, element] - i) * step_length) ** 2 + squared_offsets[line, element])

    for i in range(n):
        advancing = nonempty[stack_position[nonempty] < top[nonempty]]
        while len(advancing):
            this_zero, next_zero = (stack[advancing, stack_position[advancing] + ahead] for ahead in (0, 1))
            is_nearer = squared_distance(advancing, this_zero, i) > squared_distance(advancing, next_zero, i)
            advancing = advancing[is_nearer]
            stack_position[advancing] += 1
            advancing = advancing[stack_position[advancing] < top[advancing]]
        nearest = stack[nonempty, stack_position[nonempty]]
        features[:, nonempty, i] = original[:, nonempty, nearest]


def _distances(nearest: DTensor, tensor: DTensor, spacing: list[float] | None) -> DTensor:
    """Return the distances to the nearest zeros, summed up as SciPy does."""

    def block_distances(block: Array) -> Array:
        squares = np.zeros(block.shape[1:])
        for axis, nearest_along in enumerate(block):
            index = indices_along(tensor.layout, tensor.shape, axis).astype(_INDEX)
            offsets = (nearest_along - index).astype(_FLOAT)
            squares += (offsets if spacing is None else offsets * spacing[axis]) ** 2
        return np.sqrt(squares, squares)

    return mapped(block_distances, nearest, layout=tensor.layout, shape=tensor.shape, dtype=_FLOAT)


# -- chessboard and taxicab -------------------------------------------------------------------------------------------


@refusable
def distance_transform_cdt(
    input: TensorLike,
    metric: ArrayLike = "chessboard",
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return the number of steps from each element to the nearest zero. Collective over the mesh.

    ``NotImplementedError`` for indices, and for other arrays as metric: their results depend on the order in which
    SciPy scans the array. Source: scipy.ndimage.distance_transform_cdt.

    Other arguments are those of `distance_transform_edt`.

    Parameters
    ----------
    metric: "chessboard", for steps along several axes at once, or "taxicab", "cityblock" or "manhattan"; or the
        structure of one of them
    distances: a tensor of int32 to write the distances into; they are not returned then
    """
    tensor = input_tensor("distance_transform_cdt", input)
    outputs = _Outputs(distances, indices, bool(return_distances), bool(return_indices))
    outputs.check(ValueError, tensor, _INDEX)
    # SciPy crashes on a metric without axes.
    if not isinstance(metric, str) and np.shape(metric) != (3,) * tensor.ndim:
        raise ValueError(f"the metric has the shape {np.shape(metric)}; it must be {(3,) * tensor.ndim}, or a name")
    scipy_ndimage().distance_transform_cdt(np.zeros((1,) * tensor.ndim), metric)  # raises SciPy's errors
    for name, connectivity in (("taxicab", 1), ("chessboard", tensor.ndim)):
        if np.array_equal(metric, generate_binary_structure(tensor.ndim, connectivity)):
            metric = name
    if not isinstance(metric, str) or outputs.return_indices:
        raise NotImplementedError(
            "distance_transform_cdt: SciPy's way along the whole array decides about indices, and about the distances "
            "of other metrics. distance_transform_edt and distance_transform_bf give indices"
        )
    infinity = sum(tensor.shape) + 1
    step_counts = mapped(lambda block: np.where(block != 0, infinity, 0).astype(_INDEX), tensor, dtype=_INDEX)
    for axis in range(tensor.ndim):
        count_steps = partial(_least_steps, axis=axis, chessboard=metric == "chessboard" and axis > 0)
        step_counts = mapped(count_steps, whole_along(step_counts, (axis,), "distance_transform_cdt"))
    step_counts = relaid(step_counts, tensor.layout.axes, "distance_transform_cdt")
    map_into(lambda block: np.putmask(block, block >= infinity, -1), step_counts)
    return outputs.results(step_counts, None)


def _least_steps(block: Array, *, axis: int, chessboard: bool) -> Array:
    """Return the least number of steps to a zero, from those within hyperplanes across *axis*."""
    if not block.size:
        return block
    lines = np.moveaxis(block, axis, -1)
    n = lines.shape[-1]
    indices = np.arange(n)
    if not chessboard:
        from_left = np.minimum.accumulate(lines - indices, axis=-1) + indices
        from_right = np.minimum.accumulate((lines + indices)[..., ::-1], axis=-1)[..., ::-1] - indices
        return np.ascontiguousarray(np.moveaxis(np.minimum(from_left, from_right), -1, axis), _INDEX)
    # The distance is the smallest r for which some element within distance r has a value <= r. Minima of intervals of
    # 1, 2, 4, ... elements give the minimum around an element for any r; a binary search finds r.
    minima_of_levels = [lines]
    while 2 ** len(minima_of_levels) <= n:
        half = 2 ** (len(minima_of_levels) - 1)
        half_minima = minima_of_levels[-1]
        minima_of_levels.append(np.minimum(half_minima[..., :-half], half_minima[..., half:]))
    low, high = np.zeros(lines.shape, np.intp), lines.astype(np.intp)
    while (low < high).any():
        middle = (low + high) // 2
        window_start, stop = np.maximum(indices - middle, 0), np.minimum(indices + middle + 1, n)
        level_of_window = np.log2(stop - window_start).astype(np.intp)
        lowest = np.zeros(lines.shape, lines.dtype)
        for level, minima in enumerate(minima_of_levels):
            starts = [np.clip(start, 0, minima.shape[-1] - 1) for start in (window_start, stop - 2**level)]
            window_minimum = np.minimum(*[np.take_along_axis(minima, start, -1) for start in starts])
            lowest = np.where(level_of_window == level, window_minimum, lowest)
        is_reached = lowest <= middle
        high, low = np.where(is_reached, middle, high), np.where(is_reached, low, middle + 1)
    return np.ascontiguousarray(np.moveaxis(high, -1, axis), _INDEX)


# -- brute force ------------------------------------------------------------------------------------------------------

_METRICS: dict[str, Callable[[Array], Array]] = {
    "euclidean": lambda offsets: np.asarray((offsets * offsets).sum(0)),
    "taxicab": lambda offsets: np.asarray(np.abs(offsets).sum(0)),
    "chessboard": lambda offsets: np.asarray(np.abs(offsets).max(0)),
}
_METRIC_ALIASES = {"cityblock": "taxicab", "manhattan": "taxicab"}


@refusable
def distance_transform_bf(
    input: TensorLike,
    metric: str = "euclidean",
    sampling: Reals | None = None,
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return the distance of each element to the nearest zero, by comparing all with all. Collective over the mesh.

    The indices of all zeros that are adjacent to a nonzero element are gathered on every rank.
    `distance_transform_edt` takes much less time.

    Source: scipy.ndimage.distance_transform_bf.

    Other arguments are those of `distance_transform_edt`.

    Parameters
    ----------
    metric: "euclidean", "taxicab", "cityblock", "manhattan" or "chessboard"
    sampling: distance of neighbours, or one for each axis; for the metric "euclidean" only
    distances: a tensor of float64, or for other metrics of uint32, to write the distances into
    """
    tensor = input_tensor("distance_transform_bf", input)
    outputs = _Outputs(distances, indices, bool(return_distances), bool(return_indices))
    name = _METRIC_ALIASES.get(str(metric).lower(), str(metric).lower())
    if name not in _METRICS:
        raise RuntimeError("distance metric not supported")
    dtype = _FLOAT if name == "euclidean" else np.dtype(np.uint32)
    outputs.check(RuntimeError, tensor, dtype)
    spacing = np.array(_spacing(sampling, tensor.ndim) or [1.0] * tensor.ndim)
    if name != "euclidean":
        spacing = np.ones(tensor.ndim)
    dilated = binary_dilation(tensor, generate_binary_structure(tensor.ndim, tensor.ndim))

    def write_distances(block: Array, distances_block: Array) -> Array:
        """Write the distances, and return the indices of the nearest zeros."""
        border_zeros = np.nonzero(dilated & (tensor == 0))
        zeros = np.array(
            [allgather_array("distance_transform_bf", indices_of_axis) for indices_of_axis in border_zeros]
        ).reshape(tensor.ndim, -1)
        zeros = zeros[:, ::-1]  # SciPy takes the last one of equally distant zeros
        indices_of_block = [tensor.layout.global_indices(tensor.shape, None, axis) for axis in range(tensor.ndim)]
        coordinates = np.array(np.meshgrid(*indices_of_block, indexing="ij")).reshape(tensor.ndim, *block.shape)
        nearest_indices, is_nonzero = coordinates.astype(_INDEX), block != 0
        distances_block[is_nonzero], nearest_zero = _distances_to(coordinates[:, is_nonzero], zeros, spacing, name)
        nearest_indices[:, is_nonzero] = zeros[:, nearest_zero] if zeros.shape[1] else 0
        return nearest_indices

    computed_distances = mapped(lambda block: np.zeros(block.shape, dtype), tensor, dtype=dtype)
    layout = tensor.layout.insert(0)
    shape = (tensor.ndim, *tensor.shape)
    nearest = mapped(write_distances, tensor, computed_distances, layout=layout, shape=shape, dtype=_INDEX)
    return outputs.results(computed_distances, nearest)


def _distances_to(coordinates: Array, zeros: Array, spacing: Array, name: str) -> tuple[Array, Array]:
    """Return the distance of each element to the nearest of *zeros*, and its index, the first if tied."""
    count = coordinates.shape[1]
    nearest_zero = np.zeros(count, np.intp)
    if not zeros.shape[1]:
        infinity = np.sqrt(np.finfo(np.float64).max) if name == "euclidean" else np.iinfo(np.uint32).max
        return np.full(count, infinity), nearest_zero
    result = np.empty(count)
    limit = max(1, DEFAULT_SCRATCH // (32 * zeros.shape[1] * len(coordinates)))
    for start in range(0, count, limit):
        chunk = slice(start, start + limit)
        offsets = (coordinates[:, chunk, None] - zeros[:, None]) * spacing[:, None, None]
        metric_values = _METRICS[name](offsets)
        nearest_zero[chunk] = metric_values.argmin(1)
        result[chunk] = np.take_along_axis(metric_values, nearest_zero[chunk, None], 1)[:, 0]
    return np.sqrt(result) if name == "euclidean" else result, nearest_zero
