"""Distances to the nearest element that is zero, exact and the same as SciPy's.

`distance_transform_edt` runs as SciPy's does, axis by axis: SciPy itself does all axes but the last, in hyperplanes
that lie whole on a rank. Then lines along the last axis lie whole, and `_lines` goes along them with SciPy's rule, so
that of equally distant elements the same one is found. Others run along whole lines, too, or compare all elements with
all at a border, which is what "bf" means: brute force.

All are Collective over the mesh of *input* if it is sharded. ``LayoutError`` for plain arrays and for `Cyclic` axes.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import changed, filled, indices_along, mapped
from meshcomm.blocks.small import gathered
from meshcomm.blocks.whole import whole_along
from meshcomm.core._tracing import Value
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.dtensor import DTensor, Held
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.binary import binary_dilation, generate_binary_structure
from meshcomm.ndimage.calls import held, refuse_cyclic, scipy_ndimage, stored
from meshcomm.numpy.shapes.shaping import reshape

_INDEX = np.dtype(np.int32)
_FLOAT = np.dtype(np.float64)


def _results(
    distances: DTensor | None, indices: DTensor | None, into: tuple[Value, Value], wanted: tuple[bool, bool]
) -> Value:
    """Return the results that are asked for, but for those that are written into tensors. Collective."""
    found = []
    for result, output, is_wanted in zip((distances, indices), into, wanted, strict=True):
        if not is_wanted or result is None:
            continue
        if isinstance(output, DTensor):
            stored(result, output)
        else:
            found.append(result)
    return tuple(found) if len(found) > 1 else found[0] if found else None


def _checked(name: str, tensor: DTensor, into: tuple[Value, Value], wanted: tuple[bool, bool], kind: DType) -> None:
    """Raise what SciPy raises for outputs that do not fit, and NumPy for a dtype that has no zero, such as records."""
    refuse_cyclic(tensor)
    _ = np.ones(1, tensor.dtype) != 0
    wrong = [] if any(wanted) else ["at least one of return_distances/return_indices must be True"]
    shapes, kinds = (tensor.shape, (tensor.ndim, *tensor.shape)), (kind, _INDEX)
    for what, output, is_wanted in zip(("distances", "indices"), into, wanted, strict=True):
        if output is not None and not is_wanted:
            wrong.append(f"return_{what} must be True if {what} is supplied")
    error = ValueError if name.endswith("cdt") else RuntimeError
    if wrong:
        raise RuntimeError(", ".join(wrong))
    for what, output, shape, dtype in zip(("distances", "indices"), into, shapes, kinds, strict=True):
        if output is not None and output.shape != shape:
            raise error(f"{what} array has wrong shape")
        if output is not None and output.dtype != dtype:
            raise error(f"{what} array must be {dtype}")


def _scales(sampling: Value, ndim: int) -> list[float] | None:
    return None if sampling is None else [float(each) for each in per_axis(sampling, ndim, "sampling")]


# -- Euclidean --------------------------------------------------------------------------------------------------------


@refusable
def distance_transform_edt(
    input: Held,
    sampling: Value = None,
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return the distance of each element to the nearest zero, or where it is, or both. Collective over the mesh.

    Source: scipy.ndimage.distance_transform_edt.

    Parameters
    ----------
    input: a tensor
    sampling: the distance of neighbours, or one for each axis
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
    tensor = held("distance_transform_edt", input)
    into, wanted = (distances, indices), (bool(return_distances), bool(return_indices))
    if not tensor.ndim:
        tensor = reshape(tensor, (1,))
    _checked("edt", tensor, into, wanted, _FLOAT)
    scales = _scales(sampling, tensor.ndim)
    nearest = relaid(_nearest(tensor, scales), tensor.layout.insert(0).axes, "distance_transform_edt")
    found = _distances(nearest, tensor, scales) if wanted[0] else None
    return _results(found, nearest, into, wanted)


def _nearest(tensor: DTensor, scales: list[float] | None) -> DTensor:
    """Return the index of the nearest zero along each axis, stacked along a new first axis. Collective."""
    last = tensor.ndim - 1
    planes = whole_along(tensor, range(last), "distance_transform_edt")

    def within_planes(block: Array) -> Array:
        made = np.zeros((tensor.ndim, *block.shape), _INDEX)
        made[0] = -1  # there is none, as SciPy says it
        at = planes.layout.global_indices(tensor.shape, None, last)
        for number in range(len(at) if made.size else 0):
            plane = block[..., number] != 0
            if plane.all():
                continue
            if last:
                rates = None if scales is None else scales[:last]
                made[:last, ..., number] = scipy_ndimage().distance_transform_edt(
                    plane, rates, return_distances=False, return_indices=True
                )
            made[last, ..., number] = at[number]
        return made

    layout = planes.layout.insert(0)
    features = mapped(within_planes, planes, layout=layout, shape=(tensor.ndim, *tensor.shape), dtype=_INDEX)
    whole = whole_along(features, (0, last + 1), "distance_transform_edt")

    def along_lines(new: Array, block: Array) -> None:
        new[...] = block
        grid = [whole.layout.global_indices(whole.shape, None, axis + 1) for axis in range(last)]
        lines = [each.reshape(-1) for each in np.meshgrid(*grid, indexing="ij")] if grid else []
        flat = new.reshape(tensor.ndim, -1, tensor.shape[last])
        most = max(1, DEFAULT_SCRATCH // (64 * tensor.ndim * tensor.shape[last]))
        for start in range(0, flat.shape[1], most):
            some = slice(start, start + most)
            _lines(flat[:, some], [each[some] for each in lines], scales)

    return filled(along_lines, whole)


def _lines(features: Array, others: Sequence[Array], scales: list[float] | None) -> None:
    """Write the nearest zero of each element of some lines, from the nearest one within its hyperplane.

    It is SciPy's algorithm: the zeros whose regions the line crosses go onto a stack, and then the line is walked
    along. All lines are at the same element at once.

    Parameters
    ----------
    features: axes for the coordinates, the lines and the elements; the first one is -1 where there is no zero
    others: where the lines are, along all axes but the last
    scales: the distance of neighbours along each axis
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
    found, at = lines[top >= 0], np.zeros(count, np.intp)
    original = features.copy()

    def squared(some: Array, element: Array, i: int) -> Array:
        return np.asarray(((along[some, element] - i) * rate) ** 2 + across[some, element])

    for i in range(n):
        some = found[at[found] < top[found]]
        while len(some):
            nearer = squared(some, stack[some, at[some]], i) > squared(some, stack[some, at[some] + 1], i)
            some = some[nearer]
            at[some] += 1
            some = some[at[some] < top[some]]
        features[:, found, i] = original[:, found, stack[found, at[found]]]


def _distances(nearest: DTensor, tensor: DTensor, scales: list[float] | None) -> DTensor:
    """Return the distances to the nearest zeros, summed up as SciPy does."""

    def lengths(block: Array) -> Array:
        squares = np.zeros(block.shape[1:])
        for axis, nearest_along in enumerate(block):
            own = indices_along(tensor.layout, tensor.shape, axis).astype(_INDEX)
            off = (nearest_along - own).astype(_FLOAT)
            squares += (off if scales is None else off * scales[axis]) ** 2
        return np.sqrt(squares, squares)

    return mapped(lengths, nearest, layout=tensor.layout, shape=tensor.shape, dtype=_FLOAT)


# -- chessboard and taxicab -------------------------------------------------------------------------------------------


@refusable
def distance_transform_cdt(
    input: Held,
    metric: Value = "chessboard",
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return how many steps the nearest zero is from each element. Collective over the mesh.

    ``NotImplementedError`` for indices, and for a metric that is an array: there SciPy's way along the whole array
    decides. Source: scipy.ndimage.distance_transform_cdt.

    Other arguments are those of `distance_transform_edt`.

    Parameters
    ----------
    metric: "chessboard", for steps along several axes at once, or "taxicab", "cityblock" or "manhattan"; or the
        structure that is one of them
    distances: a tensor of int32 to write the distances into; they are not returned then
    """
    tensor = held("distance_transform_cdt", input)
    into, wanted = (distances, indices), (bool(return_distances), bool(return_indices))
    _checked("cdt", tensor, into, wanted, _INDEX)
    if not isinstance(metric, str) and np.shape(metric) != (3,) * tensor.ndim:  # SciPy crashes on one without axes
        raise ValueError(f"the metric has the shape {np.shape(metric)}; it must be {(3,) * tensor.ndim}, or a name")
    scipy_ndimage().distance_transform_cdt(np.zeros((1,) * tensor.ndim), metric)  # its errors
    for name, connectivity in (("taxicab", 1), ("chessboard", tensor.ndim)):
        if np.array_equal(metric, generate_binary_structure(tensor.ndim, connectivity)):
            metric = name
    if not isinstance(metric, str) or wanted[1]:
        raise NotImplementedError(
            "distance_transform_cdt: SciPy's way along the whole array decides about indices, and about the distances "
            "of other metrics. distance_transform_edt and distance_transform_bf give indices"
        )
    beyond = sum(tensor.shape) + 1
    found = mapped(lambda block: np.where(block != 0, beyond, 0).astype(_INDEX), tensor, dtype=_INDEX)
    for axis in range(tensor.ndim):
        step = partial(_steps, axis=axis, chessboard=metric == "chessboard" and axis > 0)
        found = mapped(step, whole_along(found, (axis,), "distance_transform_cdt"))
    found = relaid(found, tensor.layout.axes, "distance_transform_cdt")
    changed(lambda block: np.putmask(block, block >= beyond, -1), found)
    return _results(found, None, into, wanted)


def _steps(block: Array, *, axis: int, chessboard: bool) -> Array:
    """Return the least steps to a zero, from those within hyperplanes across *axis*."""
    if not block.size:
        return block
    lines = np.moveaxis(block, axis, -1)
    n = lines.shape[-1]
    at = np.arange(n)
    if not chessboard:
        before = np.minimum.accumulate(lines - at, axis=-1) + at
        after = np.minimum.accumulate((lines + at)[..., ::-1], axis=-1)[..., ::-1] - at
        return np.ascontiguousarray(np.moveaxis(np.minimum(before, after), -1, axis), _INDEX)
    # The least r so that some element at most r away has at most r. Minima of stretches of 1, 2, 4, ... elements say
    # for any r what the minimum around an element is; the search halves what is left.
    levels = [lines]
    while 2 ** len(levels) <= n:
        half = 2 ** (len(levels) - 1)
        levels.append(np.minimum(levels[-1][..., :-half], levels[-1][..., half:]))
    least, most = np.zeros(lines.shape, np.intp), lines.astype(np.intp)
    while (least < most).any():
        middle = (least + most) // 2
        first, stop = np.maximum(at - middle, 0), np.minimum(at + middle + 1, n)
        level = np.log2(stop - first).astype(np.intp)
        lowest = np.zeros(lines.shape, lines.dtype)
        for number, minima in enumerate(levels):
            some = level == number
            pairs = [np.clip(each, 0, minima.shape[-1] - 1) for each in (first, stop - 2**number)]
            both = np.minimum(*[np.take_along_axis(minima, pair, -1) for pair in pairs])
            lowest = np.where(some, both, lowest)
        reached = lowest <= middle
        most, least = np.where(reached, middle, most), np.where(reached, least, middle + 1)
    return np.ascontiguousarray(np.moveaxis(most, -1, axis), _INDEX)


# -- brute force ------------------------------------------------------------------------------------------------------

_METRICS: dict[str, Callable[[Array], Array]] = {
    "euclidean": lambda off: np.asarray((off * off).sum(0)),
    "taxicab": lambda off: np.asarray(np.abs(off).sum(0)),
    "chessboard": lambda off: np.asarray(np.abs(off).max(0)),
}
_SAME = {"cityblock": "taxicab", "manhattan": "taxicab"}


@refusable
def distance_transform_bf(
    input: Held,
    metric: str = "euclidean",
    sampling: Value = None,
    return_distances: bool = True,
    return_indices: bool = False,
    distances: DTensor | None = None,
    indices: DTensor | None = None,
) -> Value:
    """Return the distance of each element to the nearest zero, by comparing all with all. Collective over the mesh.

    All ranks get the indices of zeros that are beside other elements. `distance_transform_edt` takes much less time.

    Source: scipy.ndimage.distance_transform_bf.

    Other arguments are those of `distance_transform_edt`.

    Parameters
    ----------
    metric: "euclidean", "taxicab", "cityblock", "manhattan" or "chessboard"
    sampling: the distance of neighbours, or one for each axis; for the metric "euclidean" only
    distances: a tensor of float64, or for other metrics of uint32, to write the distances into
    """
    tensor: Value = held("distance_transform_bf", input)
    into, wanted = (distances, indices), (bool(return_distances), bool(return_indices))
    name = _SAME.get(str(metric).lower(), str(metric).lower())
    if name not in _METRICS:
        raise RuntimeError("distance metric not supported")
    kind = _FLOAT if name == "euclidean" else np.dtype(np.uint32)
    _checked("bf", tensor, into, wanted, kind)
    rates = np.array(_scales(sampling, tensor.ndim) or [1.0] * tensor.ndim)
    if name != "euclidean":
        rates = np.ones(tensor.ndim)
    around: Value = binary_dilation(tensor, generate_binary_structure(tensor.ndim, tensor.ndim))

    def nearest(block: Array, made: Array) -> Array:
        """Write the distances, and return where the nearest zeros are."""
        border = np.nonzero(around & (tensor == 0))
        zeros = np.array([gathered("distance_transform_bf", each) for each in border]).reshape(tensor.ndim, -1)
        zeros = zeros[:, ::-1]  # SciPy takes the last one of equally distant zeros
        own = [tensor.layout.global_indices(tensor.shape, None, axis) for axis in range(tensor.ndim)]
        at = np.array(np.meshgrid(*own, indexing="ij")).reshape(tensor.ndim, *block.shape)
        steps, inside = at.astype(_INDEX), block != 0
        made[inside], which = _compared(at[:, inside], zeros, rates, name)
        steps[:, inside] = zeros[:, which] if zeros.shape[1] else 0
        return steps

    made = mapped(lambda block: np.zeros(block.shape, kind), tensor, dtype=kind)
    layout = tensor.layout.insert(0)
    stacked = mapped(nearest, tensor, made, layout=layout, shape=(tensor.ndim, *tensor.shape), dtype=_INDEX)
    return _results(made, stacked, into, wanted)


def _compared(at: Array, zeros: Array, rates: Array, name: str) -> tuple[Array, Array]:
    """Return the distance of elements to the nearest of *zeros*, and which one that is: the first of equal ones."""
    count, nearest = at.shape[1], np.zeros(at.shape[1], np.intp)
    if not zeros.shape[1]:
        beyond = np.sqrt(np.finfo(np.float64).max) if name == "euclidean" else np.iinfo(np.uint32).max
        return np.full(count, beyond), nearest
    found = np.empty(count)
    most = max(1, DEFAULT_SCRATCH // (32 * zeros.shape[1] * len(at)))
    for start in range(0, count, most):
        some = slice(start, start + most)
        off = (at[:, some, None] - zeros[:, None]) * rates[:, None, None]
        squares = _METRICS[name](off)
        nearest[some] = squares.argmin(1)
        found[some] = np.take_along_axis(squares, nearest[some, None], 1)[:, 0]
    return np.sqrt(found) if name == "euclidean" else found, nearest
