"""Reductions of groups of elements along an axis, with a result for each group, such as the mean of each month.

Each device goes once over its block, group by group. Where no reduced axis is cut, that is all: nothing moves, and no
rank waits. Where one is, there are two ways, of which the one is taken that moves less:

- Each device makes its shares of all groups, and the devices merge them in one reduction. A merge moves about two
  shares of each device. So it is the way of few groups of many elements.
- The tensor is relaid such that the reduced axes are whole, as for functions that have no shares, such as a median.
  The results are cut along another axis then.
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
from meshcomm.core.arrays.create import plain_text
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.statistics.statistics import (
    ADDED,
    merged_moments,
    moments,
    sum_dtype_of,
    totals,
    variance_from_moments,
)

Reduce: TypeAlias = Callable[[Array], object]
"""What reduces the axes of a block, or of some rows of it."""


class ElementGroups(NamedTuple):
    """Which elements along an axis belong together.

    Parameters
    ----------
    along: axis of the groups
    numbers: number of the group of each element, the same on all ranks; -1 for an element without a group
    size: number of groups, none of which is empty
    """

    along: int
    numbers: Indices
    size: int

    def rows(self, indices: Indices) -> list[slice | Indices]:
        """Return for each group where its elements are among those with the *indices*."""
        numbers = self.numbers[indices]
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers, np.arange(self.size + 1), sorter=order).tolist()
        return [_as_slice(order[start:stop]) for start, stop in pairwise(ends)]


def _as_slice(rows: Indices) -> slice | Indices:
    """Return ascending *rows* as a slice if they follow each other: then a group is a view."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


class Shares(NamedTuple):
    """How devices reduce what they made of their elements of a group.

    Parameters
    ----------
    merge: reduction of the shares, as in `Partial`
    none: share of no elements
    share: function that returns a share; None for the function that returns results
    dtype: dtype of shares; by default that of the results
    finish: function that returns results from reduced shares
    """

    merge: str | Merge
    none: object
    share: Reduce | None = None
    dtype: DType | None = None
    finish: Callable[[Array], Array] = unchanged


def shares_of(name: str, source: DType, axes: tuple[int, ...], skips: bool, ddof: float = 0) -> Shares | None:
    """Return how devices share a reduction over *axes* of elements of dtype *source*; None if they cannot.

    Parameters
    ----------
    name: name of the reduction in NumPy, or ``count``
    source: dtype of the elements
    axes: reduced axes
    skips: whether NaN are left out
    ddof: number that is subtracted from the number of elements in a variance
    """
    if name in ("count", "any", "all"):
        return {"count": Shares("sum", 0), "any": Shares("max", False), "all": Shares("min", True)}[name]
    if name in ("min", "max") and source.kind in "iuf":
        return _extreme_shares(name, source, skips and source.kind == "f")
    if source.kind not in "biufc":
        return None
    if name in ("sum", "prod"):
        return Shares(name, int(name == "prod"))
    sum_dtype, skips = sum_dtype_of(source), skips and source.kind in "fc"
    if name == "mean":
        compute_share, dtype = totals(axes, sum_dtype, skips=skips)
        return Shares(ADDED, 0, compute_share, dtype, lambda sums: np.asarray(sums["total"] / sums["count"]))
    if name in ("std", "var"):
        compute_share, dtype = moments(axes, sum_dtype, skips)
        return Shares(
            merged_moments,
            0,
            compute_share,
            dtype,
            partial(variance_from_moments, ddof=ddof, skips=skips, root=name == "std"),
        )
    return None


def _extreme_shares(name: str, source: DType, skips: bool) -> Shares:
    """Return how devices share a minimum or a maximum: the other end of the dtype is that of no elements."""
    if skips:
        ufunc = np.fmax if name == "max" else np.fmin
        return Shares(partial(ufunc.reduce, axis=0), np.nan)
    if source.kind == "f":
        return Shares(name, -np.inf if name == "max" else np.inf)
    limits = np.iinfo(source)
    return Shares(name, limits.min if name == "max" else limits.max)


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
    shares: Shares | None = None

    def members(self, block: Array, indices: Indices) -> Iterator[Array]:
        """Yield the elements of each group in a *block* of those with the *indices* along their axis."""
        along = self.groups.along
        for rows in self.groups.rows(indices):
            yield block[(*(slice(None),) * along, rows)] if isinstance(rows, slice) else block.take(rows, along)

    def stack(self, block: Array, indices: Indices, share: Reduce, dtype: DType) -> Array:
        """Return the *share* of each of these groups, one behind the other."""
        shares = np.empty(self.shape(block.shape), dtype)
        rows = np.moveaxis(shares, self.axis, 0)
        for number, elements in enumerate(self.members(block, indices) if shares.size else ()):
            rows[number] = share(elements)
        return shares

    @property
    def axis(self) -> int:
        """The axis of the groups in results."""
        return len([a for a in range(self.groups.along) if self._axis_stays(a)])

    @property
    def text(self) -> str:
        """What the ranks compare of a call."""
        return f"{self.name}{self.options} over axes {self.axes} of groups, {plain_text(self.groups.numbers)},"

    def layout(self, whole: Layout) -> Layout:
        """Return the layout of results in blocks that are made of those of a layout: the groups are not cut."""
        return whole.replace(self.axes, ()).take(a for a in range(whole.ndim) if self._axis_stays(a))

    def shape(self, whole: Shape) -> Shape:
        """Return the shape of the results, or of a block of them, of the shape of what is reduced."""
        return tuple(self.groups.size if a in self.axes else n for a, n in enumerate(whole) if self._axis_stays(a))

    def _axis_stays(self, axis: int) -> bool:
        return axis == self.groups.along or axis not in self.axes


def grouped(how: Grouping, tensor: DTensor) -> DTensor:
    """Return a result for each group, along the axis of groups. Collective over the mesh if a reduced axis is cut."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = np.asarray(how.function(np.ones((1,) * tensor.ndim, tensor.dtype))).dtype
    blocks, shares = prod(tensor.layout.num_shards(a) for a in how.axes), how.shares
    if shares is not None and blocks > 1:
        kind = dtype if shares.dtype is None else shares.dtype
        if 2 * blocks * prod(how.shape(tensor.shape)) * kind.itemsize <= tensor.nbytes:
            return _merged_results(how, shares, tensor, dtype, kind)
    every = np.arange(len(how.groups.numbers))
    local, whole = of_whole_blocks(
        tensor, how.axes, how.text, lambda block: how.stack(block, every, how.function, dtype)
    )
    return make(local, how.layout(whole), how.shape(tensor.shape), dtype)


def _merged_results(how: Grouping, shares: Shares, tensor: DTensor, dtype: DType, kind: DType) -> DTensor:
    """Return the results in *dtype*, merged from shares of a *kind* that devices make. Collective over the mesh."""
    source, layout, shape = tensor.layout, how.layout(tensor.layout), how.shape(tensor.shape)
    share = shares.share or how.function

    def shares_of(block: Array) -> Array:
        there = source.global_indices(tensor.shape, None, how.groups.along)
        return how.stack(block, there, lambda members: share(members) if members.size else shares.none, kind)

    def finish(merged: Array) -> Array:
        with np.errstate(all="ignore"):
            return shares.finish(merged).astype(dtype, copy=False)

    text = f"{how.text} of {tensor.shape} {tensor.dtype} in {source.specs_text}"
    local = make(
        agree_on_result(how.name, tensor.mesh, text, lambda: on_blocks(shares_of, tensor)), layout, shape, kind
    )
    names = source.dims_along(how.axes)
    merging = Partial(
        (text, local._spec), text, unchanged, names, shares.merge, dtype, share_dtype=kind, finish=finish
    )
    return run_partial(merging, local, layout, shape)
