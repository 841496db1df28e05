"""Reductions of groups of elements along an axis, with a result for each group, such as the mean of each month.

Each device goes once over its block, group by group. If no reduced axis is cut, nothing moves, and no rank waits. If
one is cut, there are two ways, and the one that moves less is taken:

- Each device computes its shares of all groups, and the devices merge them in one reduction. A merge moves about two
  shares of each device. So this way is for few groups of many elements.
- The tensor is relaid so that the reduced axes are whole. Functions without shares, such as a median, always take this
  way. The results are then cut along another axis.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.reduce import Merge, Partial, run_partial, unchanged
from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.whole import of_whole_blocks
from meshcomm.core._types import Array, DType, Indices, Shape
from meshcomm.core.arrays.create import array_text
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.statistics.statistics import (
    MERGE_TOTALS,
    merged_moments,
    moments,
    sum_dtype_of,
    totals,
    variance_from_moments,
)

Reduce: TypeAlias = Callable[[Array], object]
"""A function that reduces the axes of a block, or of some rows of it."""


class ElementGroups(NamedTuple):
    """Which elements along an axis belong to which group.

    Parameters
    ----------
    axis_of_groups: axis along which elements are grouped
    group_numbers: number of the group of each element, the same on all ranks; -1 for an element without a group
    size: number of groups; no group is empty
    """

    axis_of_groups: int
    group_numbers: Indices
    size: int

    def rows(self, indices: Indices) -> list[slice | Indices]:
        """Return, for each group, the positions in *indices* of its elements."""
        numbers = self.group_numbers[indices]
        group_order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers, np.arange(self.size + 1), sorter=group_order).tolist()
        return [_as_slice(group_order[start:stop]) for start, stop in pairwise(ends)]


def _as_slice(rows: Indices) -> slice | Indices:
    """Return ascending *rows* as a slice if they are consecutive: then a group is a view."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


class ShareReduction(NamedTuple):
    """How devices compute and reduce their shares of the result of a group.

    Parameters
    ----------
    merge: reduction of the shares, as in `Partial`
    empty_share: share of a device without elements of the group
    share: function that returns a share; None for the function that returns results
    dtype: dtype of shares; by default that of the results
    finish: function that returns results from reduced shares
    """

    merge: str | Merge
    empty_share: object
    share: Reduce | None = None
    dtype: DType | None = None
    finish: Callable[[Array], Array] = unchanged


def shares_of(
    name: str, source: DType, axes: tuple[int, ...], skip_nan: bool, ddof: float = 0
) -> ShareReduction | None:
    """Return how devices share a reduction over *axes* of elements of dtype *source*; None if they cannot.

    Parameters
    ----------
    name: name of the reduction in NumPy, or ``count``
    source: dtype of the elements
    axes: reduced axes
    skip_nan: whether NaN are left out
    ddof: number that is subtracted from the number of elements in a variance
    """
    if name in ("count", "any", "all"):
        return {
            "count": ShareReduction("sum", 0),
            "any": ShareReduction("max", False),
            "all": ShareReduction("min", True),
        }[name]
    if name in ("min", "max") and source.kind in "iuf":
        return _extreme_shares(name, source, skip_nan and source.kind == "f")
    if source.kind not in "biufc":
        return None
    if name in ("sum", "prod"):
        return ShareReduction(name, int(name == "prod"))
    sum_dtype, skip_nan = sum_dtype_of(source), skip_nan and source.kind in "fc"
    if name == "mean":
        compute, dtype = totals(axes, sum_dtype, skip_nan=skip_nan)
        return ShareReduction(MERGE_TOTALS, 0, compute, dtype, lambda sums: np.asarray(sums["total"] / sums["count"]))
    if name in ("std", "var"):
        compute, dtype = moments(axes, sum_dtype, skip_nan)
        return ShareReduction(
            merged_moments,
            0,
            compute,
            dtype,
            partial(variance_from_moments, ddof=ddof, skip_nan=skip_nan, root=name == "std"),
        )
    return None


def _extreme_shares(name: str, source: DType, skip_nan: bool) -> ShareReduction:
    """Return how devices share a minimum or a maximum. The share of no elements is the other end of the dtype."""
    if skip_nan:
        ufunc = np.fmax if name == "max" else np.fmin
        return ShareReduction(partial(ufunc.reduce, axis=0), np.nan)
    if source.kind == "f":
        return ShareReduction(name, -np.inf if name == "max" else np.inf)
    limits = np.iinfo(source)
    return ShareReduction(name, limits.min if name == "max" else limits.max)


class Grouping(NamedTuple):
    """A reduction of groups.

    Parameters
    ----------
    name, options: name and options of the reduction, which the ranks compare
    function: function of all elements of a group in a block; its result lacks *axes*
    axes: reduced axes, ascending, among them that of the groups
    groups: groups of elements
    shares: shares of devices; None if they cannot share the reduction
    """

    name: str
    options: tuple[Hashable, ...]
    function: Reduce
    axes: tuple[int, ...]
    groups: ElementGroups
    shares: ShareReduction | None = None

    def members(self, block: Array, indices: Indices) -> Iterator[Array]:
        """Yield the elements of each group in a *block*, which has the *indices* along the axis of the groups."""
        axis_of_groups = self.groups.axis_of_groups
        for rows in self.groups.rows(indices):
            yield (
                block[(*(slice(None),) * axis_of_groups, rows)]
                if isinstance(rows, slice)
                else block.take(rows, axis_of_groups)
            )

    def stack(self, block: Array, indices: Indices, compute_share: Reduce, dtype: DType) -> Array:
        """Return the shares of all groups of `members`, stacked along `axis`."""
        shares = np.empty(self.shape(block.shape), dtype)
        rows = np.moveaxis(shares, self.axis, 0)
        for number, elements in enumerate(self.members(block, indices) if shares.size else ()):
            rows[number] = compute_share(elements)
        return shares

    @property
    def axis(self) -> int:
        """The axis of the groups in results."""
        return len([a for a in range(self.groups.axis_of_groups) if self._axis_stays(a)])

    @property
    def text(self) -> str:
        """The text of a call, which the ranks compare."""
        return f"{self.name}{self.options} over axes {self.axes} of groups, {array_text(self.groups.group_numbers)},"

    def layout(self, source: Layout) -> Layout:
        """Return the layout of the results from blocks in the layout *source*: the groups are not cut."""
        return source.replace(self.axes, ()).take(a for a in range(source.ndim) if self._axis_stays(a))

    def shape(self, source: Shape) -> Shape:
        """Return the shape of the results, or of a block of them, for a tensor or a block of the shape *source*."""
        return tuple(self.groups.size if a in self.axes else n for a, n in enumerate(source) if self._axis_stays(a))

    def _axis_stays(self, axis: int) -> bool:
        return axis == self.groups.axis_of_groups or axis not in self.axes


def grouped(grouping: Grouping, tensor: DTensor) -> DTensor:
    """Return a result for each group, along the axis of groups. Collective over the mesh if a reduced axis is cut."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = np.asarray(grouping.function(np.ones((1,) * tensor.ndim, tensor.dtype))).dtype
    blocks, shares = prod(tensor.layout.num_shards(a) for a in grouping.axes), grouping.shares
    if shares is not None and blocks > 1:
        share_dtype = dtype if shares.dtype is None else shares.dtype
        if 2 * blocks * prod(grouping.shape(tensor.shape)) * share_dtype.itemsize <= tensor.nbytes:
            return _merged_results(grouping, shares, tensor, dtype, share_dtype)
    all_indices = np.arange(len(grouping.groups.group_numbers))
    result_block, whole_layout = of_whole_blocks(
        tensor,
        grouping.axes,
        grouping.text,
        lambda block: grouping.stack(block, all_indices, grouping.function, dtype),
    )
    return make(result_block, grouping.layout(whole_layout), grouping.shape(tensor.shape), dtype)


def _merged_results(
    grouping: Grouping, shares: ShareReduction, tensor: DTensor, dtype: DType, share_dtype: DType
) -> DTensor:
    """Return the results in *dtype*, merged from the shares of devices in *share_dtype*. Collective over the mesh."""
    source, layout, shape = tensor.layout, grouping.layout(tensor.layout), grouping.shape(tensor.shape)
    compute_share = shares.share or grouping.function

    def stack_shares(block: Array) -> Array:
        indices = source.global_indices(tensor.shape, None, grouping.groups.axis_of_groups)
        return grouping.stack(
            block, indices, lambda members: compute_share(members) if members.size else shares.empty_share, share_dtype
        )

    def finish(merged_shares: Array) -> Array:
        with np.errstate(all="ignore"):
            return shares.finish(merged_shares).astype(dtype, copy=False)

    call_text = f"{grouping.text} of {tensor.shape} {tensor.dtype} in {source.specs_text}"
    share_tensor = make(
        agree_on_result(grouping.name, tensor.mesh, call_text, lambda: on_blocks(stack_shares, tensor)),
        layout,
        shape,
        share_dtype,
    )
    names = source.dims_along(grouping.axes)
    reduction = Partial(
        (call_text, share_tensor._spec),
        call_text,
        unchanged,
        names,
        shares.merge,
        dtype,
        share_dtype=share_dtype,
        finish=finish,
    )
    return run_partial(reduction, share_tensor, layout, shape)
