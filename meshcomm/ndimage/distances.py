"""Distances to the nearest element that is zero, exact and the same as SciPy's.

`distance_transform_edt` runs as SciPy's does, axis by axis: SciPy itself does all axes except the last, in hyperplanes
that are whole on a rank. Then `_write_lines` goes along whole lines of the last axis by SciPy's rule, so that it finds
the same one of equally distant elements. The others run along whole lines as well, or compare all elements with all
elements at a border ("bf": brute force).

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
    """The tensors to write into, and what to return."""

    distances: DTensor | None
    indices: DTensor | None
    return_distances: bool
    return_indices: bool

    def check(self, error: type[Exception], tensor: DTensor, kind: DType) -> None:
        """Raise SciPy's errors for outputs that do not fit, and NumPy's for a dtype without a zero, such as records.

        Parameters
        ----------
        error: class of SciPy's error for an output that does not fit
        tensor: the input
        kind: dtype of distances
        """
        refuse_cyclic(tensor)
        _ = np.ones(1, tensor.dtype) != 0
        wrong = [] if any(self[2:]) else ["at least one of return_distances/return_indices must be True"]
        for what, output, is_wanted in zip(self._fields, self[:2], self[2:], strict=False):
            if output is not None and not is_wanted:
                wrong.append(f"return_{what} must be True if {what} is supplied")
        if wrong:
            raise RuntimeError(", ".join(wrong))
        specs = (tensor.shape, kind), ((tensor.ndim, *tensor.shape), _INDEX)
        for what, output, (shape, dtype) in zip(self._fields, self[:2], specs, strict=False):
            if output is not None and output.shape != shape:
                raise error(f"{what} array has wrong shape")
            if output is not None and output.dtype != dtype:
                raise error(f"{what} array must be {dtype}")

    def results(self, distances: DTensor | None, indices: DTensor | None) -> Value:
        """Return what is asked for, except for what is written into tensors. Collective."""
        results = []
        for result, output, is_wanted in zip((distances, indices), self[:2], self[2:], strict=True):
            if not is_wanted or result is None:
                continue
            if isinstance(output, DTensor):
                write_output(result, output)
            else:
                results.append(result)
        return tuple(results) if len(results) > 1 else results[0] if results else None


def _scales(sampling: Reals | None, ndim: int) -> list[float] | None:
    return None if sampling is None else [float(scale) for scale in per_axis(sampling, ndim, "sampling")]


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
    scales = _scales(sampling, tensor.ndim)
    nearest = relaid(_nearest_zeros(tensor, scales), tensor.layout.insert(0).axes, "distance_transform_edt")
    lengths = _distances(nearest, tensor, scales) if outputs.return_distances else None
    return outputs.results(lengths, nearest)


def _nearest_zeros(tensor: DTensor, scales: list[float] | None) -> DTensor:
    """Return the index of the nearest zero along each axis, stacked along a new first axis. Collective."""
    last = tensor.ndim - 1
    planes = whole_along(tensor, range(last), "distance_transform_edt")

    def within_planes(block: Array) -> Array:
        features = np.zeros((tensor.ndim, *block.shape), _INDEX)
        features[0] = -1  # there is none, as SciPy says it
        at = planes.layout.global_indices(tensor.shape, None, last)
        for number in range(len(at) if features.size else 0):
            plane = block[..., number] != 0
            if plane.all():
                continue
            if last:
                rates = None if scales is None else scales[:last]
                features[:last, ..., number] = scipy_ndimage().distance_transform_edt(
                    plane, rates, return_distances=False, return_indices=True
                )
            features[last, ..., number] = at[number]
        return features

    layout = planes.layout.insert(0)
    features = mapped(within_planes, planes, layout=layout, shape=(tensor.ndim, *tensor.shape), dtype=_INDEX)
    whole = whole_along(features, (0, last + 1), "distance_transform_edt")

    def along_lines(new: Array, block: Array) -> None:
        new[...] = block
        grid = [whole.layout.global_indices(whole.shape, None, axis + 1) for axis in range(last)]
        lines = [indices.reshape(-1) for indices in np.meshgrid(*grid, indexing="ij")] if grid else []
        flat = new.reshape(tensor.ndim, -1, tensor.shape[last])
        limit = max(1, DEFAULT_SCRATCH // (64 * tensor.ndim * tensor.shape[last]))
        for start in range(0, flat.shape[1], limit):
            part = slice(start, start + limit)
            _write_lines(flat[:, part], [indices[part] for indices in lines], scales)

    return map_to_new(along_lines, whole)


def _write_lines(features: Array, others: Sequence[Array], scales: list[float] | None) -> None:
    """Write the nearest zero of each element of some lines, from the nearest one within its hyperplane.

    It is SciPy's algorithm: zeros with regions on the line go onto a stack, and a second pass along the line assigns
    them to elements. All lines are processed together, element by element.

    Parameters
    ----------
    features: array of shape (coordinates, lines, elements); the first coordinate is -1 where there is no zero
    others: the indices of the lines along all axes except the last
    scales: distance of neighbours along each axis
    """
    ndim, count, n = features.shape
    rates = [1.0] * ndim if scales is None else scales
    along = features[-1].astype(np.float64)
    across = np.zeros((count, n))  # squared distances from the line
    for axis, at in enumerate(others):
        across += ((features[axis] - at[:, None]) * rates[axis]) ** 2
    present, rate = features[0] >= 0, rates[-1]
    stack, top, lines = np.zeros((count, n), np.intp), np.full(count, -1), np.arange(count)
    for i in range(n):
        open_lines = lines[present[:, i]]
        while True:
            open_lines = open_lines[top[open_lines] >= 1]
            if not len(open_lines):
                break
            one, two = (stack[open_lines, top[open_lines] - back] for back in (0, 1))
            a = (along[open_lines, one] - along[open_lines, two]) * rate
            b = (along[open_lines, i] - along[open_lines, one]) * rate
            u, v, w = across[open_lines, two], across[open_lines, one], across[open_lines, i]
            c = a + b
            open_lines = open_lines[c * v - b * u - a * w - a * b * c > 0]
            top[open_lines] -= 1
        there = lines[present[:, i]]
        top[there] += 1
        stack[there, top[there]] = i
    lines_with_zeros, at = lines[top >= 0], np.zeros(count, np.intp)
    original = features.copy()

    def squared(chosen: Array, element: Array, i: int) -> Array:
        return np.asarray(((along[chosen, element] - i) * rate) ** 2 + across[chosen, element])

    for i in range(n):
        rest = lines_with_zeros[at[lines_with_zeros] < top[lines_with_zeros]]
        while len(rest):
            nearer = squared(rest, stack[rest, at[rest]], i) > squared(rest, stack[rest, at[rest] + 1], i)
            rest = rest[nearer]
            at[rest] += 1
            rest = rest[at[rest] < top[rest]]
        features[:, lines_with_zeros, i] = original[:, lines_with_zeros, stack[lines_with_zeros, at[lines_with_zeros]]]


def _distances(nearest: DTensor, tensor: DTensor, scales: list[float] | None) -> DTensor:
    """Return the distances to the nearest zeros, summed up as SciPy does."""

    def lengths(block: Array) -> Array:
        squares = np.zeros(block.shape[1:])
        for axis, nearest_along in enumerate(block):
            index = indices_along(tensor.layout, tensor.shape, axis).astype(_INDEX)
            off = (nearest_along - index).astype(_FLOAT)
            squares += (off if scales is None else off * scales[axis]) ** 2
        return np.sqrt(squares, squares)

    return mapped(lengths, nearest, layout=tensor.layout, shape=tensor.shape, dtype=_FLOAT)


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

    ``NotImplementedError`` for indices, and for other arrays as metric: they depend on SciPy's path along the whole
    array. Source: scipy.ndimage.distance_transform_cdt.

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
    if not isinstance(metric, str) and np.shape(metric) != (3,) * tensor.ndim:  # SciPy crashes on one without axes
        raise ValueError(f"the metric has the shape {np.shape(metric)}; it must be {(3,) * tensor.ndim}, or a name")
    scipy_ndimage().distance_transform_cdt(np.zeros((1,) * tensor.ndim), metric)  # its errors
    for name, connectivity in (("taxicab", 1), ("chessboard", tensor.ndim)):
        if np.array_equal(metric, generate_binary_structure(tensor.ndim, connectivity)):
            metric = name
    if not isinstance(metric, str) or outputs.return_indices:
        raise NotImplementedError(
            "distance_transform_cdt: SciPy's way along the whole array decides about indices, and about the distances "
            "of other metrics. distance_transform_edt and distance_transform_bf give indices"
        )
    beyond = sum(tensor.shape) + 1
    steps = mapped(lambda block: np.where(block != 0, beyond, 0).astype(_INDEX), tensor, dtype=_INDEX)
    for axis in range(tensor.ndim):
        step = partial(_least_steps, axis=axis, chessboard=metric == "chessboard" and axis > 0)
        steps = mapped(step, whole_along(steps, (axis,), "distance_transform_cdt"))
    steps = relaid(steps, tensor.layout.axes, "distance_transform_cdt")
    map_into(lambda block: np.putmask(block, block >= beyond, -1), steps)
    return outputs.results(steps, None)


def _least_steps(block: Array, *, axis: int, chessboard: bool) -> Array:
    """Return the least number of steps to a zero, from those within hyperplanes across *axis*."""
    if not block.size:
        return block
    lines = np.moveaxis(block, axis, -1)
    n = lines.shape[-1]
    at = np.arange(n)
    if not chessboard:
        before = np.minimum.accumulate(lines - at, axis=-1) + at
        after = np.minimum.accumulate((lines + at)[..., ::-1], axis=-1)[..., ::-1] - at
        return np.ascontiguousarray(np.moveaxis(np.minimum(before, after), -1, axis), _INDEX)
    # The least r such that an element at most r away has at most r. Minima of intervals of 1, 2, 4, ... elements give
    # the minimum around an element for any r; a binary search finds r.
    levels = [lines]
    while 2 ** len(levels) <= n:
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][..., :-half], levels[-1][..., half:]))
    least, largest = np.zeros(lines.shape, np.intp), lines.astype(np.intp)
    while (least < largest).any():
        middle = (least + largest) // 2
        first, stop = np.maximum(at - middle, 0), np.minimum(at + middle + 1, n)
        level = np.log2(stop - first).astype(np.intp)
        lowest = np.zeros(lines.shape, lines.dtype)
        for number, minima in enumerate(levels):
            in_level = level == number
            pairs = [np.clip(ends, 0, minima.shape[-1] - 1) for ends in (first, stop - 2**number)]
            both = np.minimum(*[np.take_along_axis(minima, pair, -1) for pair in pairs])
            lowest = np.where(in_level, both, lowest)
        reached = lowest <= middle
        largest, least = np.where(reached, middle, largest), np.where(reached, least, middle + 1)
    return np.ascontiguousarray(np.moveaxis(largest, -1, axis), _INDEX)


# -- brute force ------------------------------------------------------------------------------------------------------

_METRICS: dict[str, Callable[[Array], Array]] = {
    "euclidean": lambda off: np.asarray((off * off).sum(0)),
    "taxicab": lambda off: np.asarray(np.abs(off).sum(0)),
    "chessboard": lambda off: np.asarray(np.abs(off).max(0)),
}
_SAME = {"cityblock": "taxicab", "manhattan": "taxicab"}


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

    All ranks get the indices of zeros next to other elements. `distance_transform_edt` takes much less time.

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
    name = _SAME.get(str(metric).lower(), str(metric).lower())
    if name not in _METRICS:
        raise RuntimeError("distance metric not supported")
    kind = _FLOAT if name == "euclidean" else np.dtype(np.uint32)
    outputs.check(RuntimeError, tensor, kind)
    rates = np.array(_scales(sampling, tensor.ndim) or [1.0] * tensor.ndim)
    if name != "euclidean":
        rates = np.ones(tensor.ndim)
    around = binary_dilation(tensor, generate_binary_structure(tensor.ndim, tensor.ndim))

    def nearest(block: Array, distances_block: Array) -> Array:
        """Write the distances, and return the indices of the nearest zeros."""
        border = np.nonzero(around & (tensor == 0))
        zeros = np.array(
            [allgather_array("distance_transform_bf", indices_of_axis) for indices_of_axis in border]
        ).reshape(tensor.ndim, -1)
        zeros = zeros[:, ::-1]  # SciPy takes the last one of equally distant zeros
        indices_of_block = [tensor.layout.global_indices(tensor.shape, None, axis) for axis in range(tensor.ndim)]
        at = np.array(np.meshgrid(*indices_of_block, indexing="ij")).reshape(tensor.ndim, *block.shape)
        steps, inside = at.astype(_INDEX), block != 0
        distances_block[inside], which = _distances_to(at[:, inside], zeros, rates, name)
        steps[:, inside] = zeros[:, which] if zeros.shape[1] else 0
        return steps

    lengths = mapped(lambda block: np.zeros(block.shape, kind), tensor, dtype=kind)
    layout = tensor.layout.insert(0)
    stacked = mapped(nearest, tensor, lengths, layout=layout, shape=(tensor.ndim, *tensor.shape), dtype=_INDEX)
    return outputs.results(lengths, stacked)


def _distances_to(at: Array, zeros: Array, rates: Array, name: str) -> tuple[Array, Array]:
    """Return the distances of elements to the nearest of *zeros*, and the number of that, the first of equal ones."""
    count, nearest = at.shape[1], np.zeros(at.shape[1], np.intp)
    if not zeros.shape[1]:
        beyond = np.sqrt(np.finfo(np.float64).max) if name == "euclidean" else np.iinfo(np.uint32).max
        return np.full(count, beyond), nearest
    result = np.empty(count)
    limit = max(1, DEFAULT_SCRATCH // (32 * zeros.shape[1] * len(at)))
    for start in range(0, count, limit):
        part = slice(start, start + limit)
        off = (at[:, part, None] - zeros[:, None]) * rates[:, None, None]
        squares = _METRICS[name](off)
        nearest[part] = squares.argmin(1)
        result[part] = np.take_along_axis(squares, nearest[part, None], 1)[:, 0]
    return np.sqrt(result) if name == "euclidean" else result, nearest
