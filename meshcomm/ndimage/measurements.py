"""Measurements of elements with the same label: sums, extremes, medians and the like, as scipy.ndimage has them.

Each rank measures the elements of its block, label by label, and the results are reduced. They are plain numbers and
arrays of NumPy, the same on all ranks; None on a rank outside of the mesh. A median needs all elements of a label on
one rank: labels are distributed over the ranks, and the elements move there.

All are Collective over the mesh of *input*. Tensors may be in any layout.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.align import agree_on_plain, aligned_blocks
from meshcomm.blocks.make import indices_along, make, mapped, on_blocks
from meshcomm.blocks.reduce import Merge, reduce_shares
from meshcomm.blocks.rows import migrate_rows, ranks_along
from meshcomm.blocks.rules import broadcast_shape, common_layout
from meshcomm.blocks.small import agree_on_result, allgather_array
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Indices, Shape
from meshcomm.core.arrays.dtensor import DTensor, TensorLike, unwrapped
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.ndimage.arguments import Operand
from meshcomm.ndimage.calls import input_tensor
from meshcomm.numpy.elementwise.families import family
from meshcomm.numpy.statistics.quantiles import median as median_of
from meshcomm.numpy.statistics.statistics import structured_array

R = TypeVar("R")

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class _LabelGroups:
    """The elements of a tensor in groups, one for each label.

    Parameters
    ----------
    name: name of the function
    shape: shape of the input
    tensor: the elements; the labels have the same layout
    block, labels: the block of this rank, and the block of its labels or None
    index: the labels, ascending; None if there is one group
    only_label: label of the only group; None for all labels above 0
    label_positions: position in *index* of each requested label
    """

    name: str
    shape: Shape
    tensor: DTensor
    block: Array
    labels: Array | None
    index: Array | None
    only_label: Array | np.generic | None
    label_positions: Indices

    @property
    def count(self) -> int:
        """The number of groups."""
        return 1 if self.index is None else len(self.index)

    def mask(self) -> Array:
        """Return the mask of the elements of the block that are in a group."""
        if self.labels is None:
            return np.ones(self.block.shape, bool)
        if self.index is None:
            return np.asarray(self.labels > 0 if self.only_label is None else self.labels == self.only_label)
        if not len(self.index):
            return np.zeros(self.block.shape, bool)
        label_numbers = np.searchsorted(self.index, self.labels)
        label_numbers[label_numbers >= len(self.index)] = 0
        return np.asarray(self.index[label_numbers] == self.labels)

    def members(self, block: Array | None = None) -> tuple[Array, Indices]:
        """Return the elements in groups, of *block* or of the input, and the group number of each."""
        values, mask = self.block if block is None else block, self.mask()
        if self.index is None or self.labels is None:
            members = values[mask]
            return members, np.zeros(len(members), np.intp)
        return values[mask], np.searchsorted(self.index, self.labels[mask])

    def with_positions(self) -> "_LabelGroups":
        """Return the groups with elements replaced by their flat indices in the global array."""
        positions = replace(self, labels=None, index=None).positions().reshape(self.block.shape)
        return replace(self, block=positions, tensor=make(positions, self.tensor.layout, self.tensor.shape, _INT64))

    def positions(self) -> Indices:
        """Return the flat indices in the global array (C order) of the elements in groups."""
        flat = np.zeros((), _INT64)
        for axis, n in enumerate(self.tensor.shape):
            index = self.tensor.layout.global_indices(self.tensor.shape, None, axis)
            flat = flat[..., None] * n + index
        return np.asarray(flat)[self.mask()]

    def reduced(self, share: Array, op: str | Merge = "sum") -> Array:
        """Return the reduction of the shares of all ranks. Collective."""
        return reduce_shares(self.name, self.tensor, share, share.shape, share.dtype, op=op)._block

    def requested_results(self, values: Array) -> Array | np.generic:
        """Return the results of the requested labels, or of the only group."""
        return values.reshape(-1)[0] if self.index is None else values[self.label_positions]


def _of_groups(
    name: str, input: TensorLike, labels: Operand, index: Operand, measure: Callable[[_LabelGroups], R]
) -> R | None:
    """Return *measure* of the groups with labels *index*; None outside of the mesh. Collective."""
    tensor = input_tensor(name, input)
    scalar_index, groups = np.zeros((), np.intp), partial(_LabelGroups, name, tensor.shape)
    if labels is None:
        return on_blocks(lambda block: measure(groups(tensor, block, None, None, None, scalar_index)), tensor)
    elements, label_operand = agree_on_plain(name, [tensor, unwrapped(labels)], tensor.mesh)
    shape = broadcast_shape(name, [tensor.shape, np.shape(label_operand)])
    layout = common_layout(shape, [operand for operand in (elements, label_operand) if isinstance(operand, DTensor)])
    blocks = aligned_blocks(name, [elements, label_operand], shape, layout)
    index_values = None if index is None else allgather_array(name, index)

    def measure_block(block: Array) -> R:
        block, label_block = (np.broadcast_to(values, layout.block_shape(shape)) for values in blocks)
        aligned = make(block, layout, shape, tensor.dtype)
        if index_values is None or index_values.ndim == 0:
            only_label, unique_labels, label_positions = (
                None if index_values is None else index_values[()],
                None,
                scalar_index,
            )
        else:
            only_label, (unique_labels, label_positions) = None, np.unique(index_values, return_inverse=True)
            label_positions = label_positions.reshape(index_values.shape)
        return measure(groups(aligned, block, label_block, unique_labels, only_label, label_positions))

    return on_blocks(measure_block, make(blocks[0], layout, shape, tensor.dtype))


# -- sums -------------------------------------------------------------------------------------------------------------


def _sums(groups: _LabelGroups, block: Array | None = None) -> Array:
    """Return the sum of each group, over elements of *block* or of the input. Collective."""
    values, numbers = groups.members(block)
    if groups.index is None:
        return groups.reduced(values.sum(keepdims=True))
    np.bincount([0], np.zeros(1, values.dtype))  # raises its errors even if this rank has no elements
    # For no elements bincount returns integers.
    return groups.reduced(np.bincount(numbers, values, groups.count).astype(np.float64))


def _counts(groups: _LabelGroups) -> Array:
    """Return the number of elements of each group. Collective."""
    return groups.reduced(np.bincount(groups.members()[1], minlength=groups.count).astype(_INT64))


def _means(groups: _LabelGroups) -> Array:
    return _ratio(_sums(groups), _counts(groups))


def _ratio(sums: Array, counts: Array) -> Array:
    with np.errstate(all="ignore"):  # NaN without elements: a rank must not raise before it communicates
        return np.asarray(sums / counts.astype(np.float64))


def _variances(groups: _LabelGroups) -> Array:
    means, counts = _means(groups), _counts(groups)
    dtype = np.promote_types(groups.tensor.dtype, np.float64)
    values, numbers = groups.members()
    deviations = values - means[numbers]
    squares = (deviations * deviations.conjugate()).astype(dtype)
    share = squares.sum(keepdims=True) if groups.index is None else np.bincount(numbers, squares, groups.count)
    return _ratio(groups.reduced(share.astype(dtype)), counts)


def _centres(groups: _LabelGroups) -> object:
    total, moments, tensor = _sums(groups), [], groups.tensor
    for axis in range(tensor.ndim):
        coordinates = indices_along(tensor.layout, tensor.shape, axis).astype(np.float64)
        moments.append(_sums(groups, groups.block * coordinates))
    with np.errstate(all="ignore"):
        centres = [groups.requested_results(np.asarray(moment / total)) for moment in moments]
    return tuple(centres) if groups.index is None else [tuple(centre) for centre in np.array(centres).T]


# -- extremes ---------------------------------------------------------------------------------------------------------


def _extreme_row(rows: Array, *, is_maximum: bool, takes_first: bool) -> Array:
    """Return, for each column, the row of its extreme; missing rows lose."""
    index = rows["index"] if takes_first is not is_maximum else -rows["index"]
    order = np.lexsort((index, rows["value"], ~rows["missing"] if is_maximum else rows["missing"]), axis=0)
    extremes: Array = np.take_along_axis(rows, order[-1 if is_maximum else 0][None], axis=0)[0]
    return extremes.copy()


def _minimum_row(rows: Array) -> Array:
    return _extreme_row(rows, is_maximum=False, takes_first=True)


def _first_maximum_row(rows: Array) -> Array:
    return _extreme_row(rows, is_maximum=True, takes_first=True)


def _last_maximum_row(rows: Array) -> Array:
    return _extreme_row(rows, is_maximum=True, takes_first=False)


def _extremes(groups: _LabelGroups, *, is_maximum: bool) -> tuple[Array, Array]:
    """Return the extreme of each group and its flat index; zeros for groups without elements. Collective.

    The first of equal extremes counts; for maxima of several groups the last one, as in SciPy.
    """
    takes_first = not is_maximum or groups.index is None
    share = structured_array(
        value=np.zeros(groups.count, groups.tensor.dtype),
        index=np.zeros(groups.count, _INT64),
        missing=np.ones(groups.count, bool),
    )
    (values, numbers), positions = groups.members(), groups.positions()
    order = np.lexsort((positions if takes_first is not is_maximum else -positions, values, numbers))
    ends = np.searchsorted(numbers[order], np.arange(groups.count), "right" if is_maximum else "left") - is_maximum
    has_elements = np.bincount(numbers, minlength=groups.count) > 0
    winners = order[ends[has_elements]]
    share["value"][has_elements], share["index"][has_elements], share["missing"] = (
        values[winners],
        positions[winners],
        ~has_elements,
    )
    if groups.index is None and len(values) and (values != values).any():  # NaN, as from NumPy's minimum
        share["value"] = values.min()
    merge = _minimum_row if not is_maximum else _first_maximum_row if takes_first else _last_maximum_row
    extremes = groups.reduced(share, merge)
    if groups.index is None and extremes["missing"].any():
        raise ValueError(f"{groups.name}: zero-size array: there is no element with such a label")
    return extremes["value"], extremes["index"]


def _unravelled(groups: _LabelGroups, indices: Array) -> object:
    """Return indices along all axes from flat indices: a tuple, or a list of tuples."""
    shape = groups.shape
    positions = np.asarray(groups.requested_results(indices))
    strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    rows = positions.reshape(-1, 1) // strides % shape
    return tuple(rows[0]) if groups.index is None else [tuple(row) for row in rows]


def _extrema(groups: _LabelGroups) -> object:
    smallest, largest = _extremes(groups, is_maximum=False), _extremes(groups, is_maximum=True)
    values = groups.requested_results(smallest[0]), groups.requested_results(largest[0])
    return (*values, _unravelled(groups, smallest[1]), _unravelled(groups, largest[1]))


# -- functions of all elements of a label -----------------------------------------------------------------------------


def _of_one_group(groups: _LabelGroups) -> DTensor:
    """Return the elements of the only group, along one axis, in C order. Collective."""
    tensor = groups.tensor
    if groups.index is None and groups.only_label is None and groups.labels is None:
        return tensor.ravel()
    mask = make(groups.mask(), tensor.layout, tensor.shape, np.dtype(bool))
    return mapped(lambda block: block, tensor)[mask]  # in C order


def _by_owners(groups: _LabelGroups, function: Callable[..., object], out: Array, *, with_positions: bool) -> Array:
    """Return *function* of each group, computed on one rank per group; *out* for empty groups. Collective."""
    name, layout = groups.name, groups.tensor.layout
    share = structured_array(value=out, made=np.zeros(len(out), bool))
    values, numbers = groups.members()
    arrays = [np.ascontiguousarray(values), numbers, groups.positions()]
    names = layout.sharding_dims
    if names:
        text = f"{name} of {groups.tensor.shape} {groups.tensor.dtype}, {groups.count} labels"
        with ranks_along(name, layout.mesh, names, text) as ranks:
            arrays, _ = migrate_rows(ranks, arrays, numbers % ranks.size)
    agree_on_result(name, layout.mesh, name, lambda: _apply(function, arrays, share, with_positions=with_positions))
    return np.asarray(groups.reduced(share, _computed_row)["value"])


def _apply(function: Callable[..., object], arrays: list[Array], share: Array, *, with_positions: bool) -> None:
    values, numbers, positions = arrays
    order = np.lexsort((positions, numbers))
    values, numbers, positions = values[order], numbers[order], positions[order]
    for number in np.unique(numbers):
        group_slice = slice(*np.searchsorted(numbers, [number, number + 1]))
        arguments = (values[group_slice], positions[group_slice]) if with_positions else (values[group_slice],)
        share["value"][number] = function(*arguments)
        share["made"][number] = True


def _computed_row(rows: Array) -> Array:
    """Return, for each column, the row that a rank has computed, or the first row."""
    computing_rank = np.argmax(rows["made"], axis=0)
    row: Array = np.take_along_axis(rows, computing_rank[None], axis=0)[0]
    return row.copy()


def _medians(groups: _LabelGroups) -> object:
    if groups.index is None:
        return median_of(_of_one_group(groups)).to_numpy()[()]
    dtype = np.dtype(np.float64) if groups.tensor.dtype.kind in "biu" else groups.tensor.dtype
    return groups.requested_results(
        _by_owners(groups, _median_of_values, np.zeros(groups.count, dtype), with_positions=False)
    )


def _median_of_values(values: Array) -> object:
    """Return the median as SciPy does: of integers in double precision, of floats in their own dtype."""
    sorted_values = np.sort(values)
    step = (len(sorted_values) - 1) // 2
    low, high = sorted_values[step], sorted_values[len(sorted_values) - 1 - step]
    if values.dtype.kind in "biu":
        return (np.float64(low) + np.float64(high)) / 2.0
    return (low + high) / 2.0


# -- functions --------------------------------------------------------------------------------------------------------

_MEASURES: dict[str, Callable[[_LabelGroups], object]] = {
    "sum": lambda groups: groups.requested_results(_sums(groups)),
    "sum_labels": lambda groups: groups.requested_results(_sums(groups)),
    "mean": lambda groups: groups.requested_results(_means(groups)),
    "variance": lambda groups: groups.requested_results(_variances(groups)),
    "standard_deviation": lambda groups: groups.requested_results(np.sqrt(_variances(groups))),
    "center_of_mass": _centres,
    "median": _medians,
    "minimum": lambda groups: groups.requested_results(_extremes(groups, is_maximum=False)[0]),
    "maximum": lambda groups: groups.requested_results(_extremes(groups, is_maximum=True)[0]),
    "minimum_position": lambda groups: _unravelled(groups, _extremes(groups, is_maximum=False)[1]),
    "maximum_position": lambda groups: _unravelled(groups, _extremes(groups, is_maximum=True)[1]),
    "extrema": _extrema,
}


@family("scipy.ndimage")
def _measure(name: str, input: TensorLike, labels: Operand = None, index: Operand = None) -> Value:
    """Return the sum of the elements with each label. Collective over the mesh.

    Parameters
    ----------
    input: a tensor
    labels: a tensor of labels, or an array, the same on all ranks; by default all elements have one label
    index: a label, or an array of labels; by default all labels above 0 are one group

    The result is a number, or an array like *index*. It is the same on all ranks; None on a rank outside of the mesh.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.arange(6), rows)
    ...     return mc.ndimage.sum_labels(t, [1, 1, 2, 2, 0, 1], [1, 2]).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[6.0, 5.0], [6.0, 5.0]]
    """
    return _of_groups(name, input, labels, index, _MEASURES[name])


sum_labels = _measure("sum_labels")
sum = _measure("sum", "Return the sum of the elements with each label. Collective over the mesh.")
mean = _measure("mean", "Return the mean of the elements with each label. Collective over the mesh.")
variance = _measure("variance", "Return the variance of the elements with each label. Collective over the mesh.")
standard_deviation = _measure(
    "standard_deviation", "Return the standard deviation of the elements with each label. Collective over the mesh."
)
center_of_mass = _measure(
    "center_of_mass", "Return the centre of mass of each label: a number for each axis. Collective over the mesh."
)
median = _measure(
    "median",
    "Return the median of the elements with each label. Collective over the mesh.",
    """
    If *index* has several labels, the elements of each move to one rank.

    Arguments are those of `sum_labels`.
    """,
)
minimum = _measure("minimum", "Return the minimum of the elements with each label. Collective over the mesh.")
maximum = _measure("maximum", "Return the maximum of the elements with each label. Collective over the mesh.")
minimum_position = _measure("minimum_position", "Return where the minimum of each label is. Collective over the mesh.")
maximum_position = _measure("maximum_position", "Return where the maximum of each label is. Collective over the mesh.")
extrema = _measure("extrema", "Return minimum, maximum and where they are, for each label. Collective over the mesh.")


@refusable
def labeled_comprehension(
    input: TensorLike,
    labels: Operand,
    index: Operand,
    func: Callable[..., object],
    out_dtype: DTypeLike,
    default: object,
    pass_positions: bool = False,
) -> Value:
    """Return *func* of the elements with each label. Collective over the mesh.

    The elements of each label move to one rank, which calls *func*. Without *index*, each rank gets all elements.

    Source: scipy.ndimage.labeled_comprehension.

    Other arguments are those of `sum_labels`.

    Parameters
    ----------
    func: function of the elements of a label, in C order, as an array of one axis; it returns a number
    out_dtype: dtype of the result; ``TypeError`` for objects
    default: result for a label without elements
    pass_positions: whether *func* also gets the indices of the elements in C order of the whole array
    """
    if labels is None and index is not None:
        raise ValueError("index without defined labels")

    def results(groups: _LabelGroups) -> object:
        if index is None:
            tensors = [_of_one_group(groups)]
            if pass_positions:
                tensors.append(_of_one_group(groups.with_positions()))
            return func(*[tensor.to_numpy() for tensor in tensors])
        if np.dtype(out_dtype).hasobject:
            raise TypeError("labeled_comprehension: results travel between ranks, so out_dtype must not be of objects")
        index_values = np.array(groups.only_label if groups.index is None else groups.index, ndmin=1)
        label_dtype = groups.labels.dtype if groups.labels is not None else index_values.dtype
        if (index_values.astype(label_dtype).astype(index_values.dtype) != index_values).any():
            raise ValueError(
                f"Cannot convert index values from <{index_values.dtype}> to <{label_dtype}> (labels' type) without "
                "loss of precision"
            )
        out = np.full(groups.count, default, out_dtype)
        return groups.requested_results(_by_owners(groups, func, out, with_positions=bool(pass_positions)))

    return _of_groups("labeled_comprehension", input, labels, index, results)


@refusable
def histogram(
    input: TensorLike, min: float, max: float, bins: int, labels: Operand = None, index: Operand = None
) -> Value:
    """Return the histogram of the elements with each label. Collective over the mesh.

    Source: scipy.ndimage.histogram.

    Other arguments are those of `sum_labels`.

    Parameters
    ----------
    min, max: the ends of the range
    bins: number of bins
    """
    if labels is None and index is not None:
        raise ValueError("index without defined labels")
    edges = np.linspace(min, max, bins + 1)

    def count_block(groups: _LabelGroups) -> object:
        values, numbers = groups.members()
        bin_numbers = np.searchsorted(edges, values, "right") - 1
        bin_numbers[values == edges[-1]] = bins - 1
        is_in_range = (bin_numbers >= 0) & (bin_numbers < bins)
        share = np.bincount(numbers[is_in_range] * bins + bin_numbers[is_in_range], minlength=groups.count * bins)
        counts, sizes = groups.reduced(share.astype(_INT64).reshape(groups.count, bins)), _counts(groups)
        if groups.index is None:
            return counts[0] if groups.only_label is None or sizes[0] else None
        results = np.empty(groups.count, object)
        results[:] = [row if size else None for row, size in zip(counts, sizes, strict=True)]
        return results[groups.label_positions]

    return _of_groups("histogram", input, labels, index, count_block)
