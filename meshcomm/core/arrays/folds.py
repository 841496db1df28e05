"""Reductions of a block that comes piece by piece, with the digits that NumPy's reduction of the whole block has."""

# How NumPy adds up
# =================
#
# Floating-point numbers that lie together are added up as a tree: up to 128 of them in a loop with 8 accumulators,
# more in two halves, of which the first is a multiple of 8 long. A complex number counts as two. Over leading axes the
# rows are added to the result one after the other. So there are two orders, `_TreeFold` and `_RowFold`. Shares of
# integers, and of functions such as the maximum, may be merged in any order: `_ShareFold`. The tests compare each with
# NumPy.
#
# Pieces come in the order of memory. A tree is cut into intervals that fit in a piece, and a buffer has what the last
# pieces gave and no interval has used yet.

from collections.abc import Callable
from math import prod
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.memory.scratch import scratch

Slices: TypeAlias = tuple[slice, ...]

_OF_ANY_ORDER = frozenset(
    (np.maximum, np.minimum, np.fmax, np.fmin, np.logical_or, np.logical_and, np.bitwise_or, np.bitwise_and)
)
_LOOP = 128
"""Floating-point numbers that NumPy adds up in one loop."""

_added = np.add.reduce


class Fold(Protocol):
    """A reduction that gets the pieces of a block one after the other."""

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        """Return where to write the next piece, which is at *box* in the block."""

    def take(self) -> None:
        """Reduce the piece that was written."""

    def result(self) -> Array:
        """Return what all pieces were reduced to."""


class Folding(NamedTuple):
    """How a block is reduced by pieces.

    Parameters
    ----------
    share: reduces a piece over *axes*
    ufunc: merges what pieces are reduced to; where the order matters, *share* is its ``reduce``
    axes: reduced axes, ascending
    dtype: dtype of the shares
    finish: function from the reduced shares to the result
    """

    share: Callable[[Array], Array]
    ufunc: np.ufunc
    axes: tuple[int, ...]
    dtype: DType
    finish: Callable[[Array], Array]

    def fold(self, shape: Shape, dtype: DType, largest: int, is_ordered: bool) -> Fold | None:
        """Return what reduces a block of *shape* and *dtype*; None if its digits would be others.

        *largest* is the number of elements of the largest piece, *is_ordered* whether the pieces come in the order of
        memory, and the elements of each lie together.
        """
        axes, ufunc, ndim = self.axes, self.ufunc, len(shape)
        if dtype.itemsize == 1:  # to store the block takes less time than to reduce each piece
            return None
        if ufunc in _OF_ANY_ORDER or (ufunc in (np.add, np.multiply) and self.dtype.kind in "biu"):
            return _ShareFold(self, shape, dtype, largest)
        if dtype != self.dtype or dtype.kind not in "fc" or dtype.itemsize < 4 or ufunc not in (np.add, np.multiply):
            return None
        leading = axes == (*range(len(axes)),)
        width = prod(shape[len(axes) :])
        if leading and (width > 1 or (ufunc is np.multiply and dtype.kind == "f")):
            return _RowFold(ufunc, len(axes), shape, dtype, largest)
        trailing = axes == (*range(ndim - len(axes), ndim),)
        if ufunc is np.add and is_ordered and (trailing or (leading and width == 1)):
            remaining = tuple(n for axis, n in enumerate(shape) if axis not in axes)
            return _TreeFold(remaining, prod(shape[axis] for axis in axes), dtype, largest)
        return None


def _scratch_array(count: int, dtype: DType) -> Array:
    return np.ndarray((count,), dtype, scratch("folds", count * dtype.itemsize))


class _ShareFold:
    """The share of each piece, merged with those of the pieces before it; in the end where there is but one result."""

    def __init__(self, how: Folding, shape: Shape, dtype: DType, largest: int) -> None:
        self._how, self._memory = how, _scratch_array(largest, dtype)
        self._kept = [axis for axis in range(len(shape)) if axis not in how.axes]
        self._merged = np.empty([shape[axis] for axis in self._kept], how.dtype)
        self._shares = list[Array]()

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        self._box, self._piece = box, self._memory[: prod(sizes)].reshape(sizes)
        return self._piece

    def take(self) -> None:
        share = self._how.share(self._piece)
        if not self._kept:
            self._shares.append(share)
            return
        box = self._box
        index: tuple[Value, ...] = (*(box[axis] for axis in self._kept), ...)  # with ..., an array also of no axes
        at = self._merged[index]
        if all(box[axis].start == 0 for axis in self._how.axes):
            at[...] = share
        else:
            self._how.ufunc(at, share, out=at)

    def result(self) -> Array:
        if not self._kept:
            self._merged[()] = self._how.ufunc.reduce(self._shares)
        return self._merged


class _RowFold:
    """Rows, each taken to the result of those before it, which is in memory as one more row before them."""

    def __init__(self, ufunc: np.ufunc, leading: int, shape: Shape, dtype: DType, largest: int) -> None:
        self._ufunc, self._leading = ufunc, leading
        self._memory = _scratch_array(largest + min(largest, prod(shape[leading:])), dtype)
        self._result = np.empty(shape[leading:], dtype)

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        count, width = prod(sizes[: self._leading]), prod(sizes[self._leading :])
        rows = self._memory[: (count + 1) * width].reshape(count + 1, width)
        index: tuple[Value, ...] = (*box[self._leading :], ...)  # with ..., an array also of no axes
        self._at = self._result[index]
        is_first = all(at.start == 0 for at in box[: self._leading])
        if not is_first:
            rows[0] = self._at.reshape(-1)
        self._rows = rows[is_first:]
        return rows[1:].reshape(sizes)

    def take(self) -> None:
        if self._rows.shape[1] == 1 and self._ufunc is np.add:  # which NumPy would add up as a tree
            total = np.add.accumulate(self._rows)[-1]
        else:
            total = self._ufunc.reduce(self._rows, axis=0)
        self._at[...] = total.reshape(self._at.shape)

    def result(self) -> Array:
        return self._result


class _TreeFold:
    """Sums over intervals of *count* elements that lie together, one for each element of the result."""

    def __init__(self, shape: Shape, count: int, dtype: DType, largest: int) -> None:
        numbers = 2 if dtype.kind == "c" else 1
        self._intervals = _tree_intervals(count * numbers, max(_LOOP, largest * numbers), numbers)
        longest = max(length for length, _ in self._intervals)
        self._memory, self._filled = _scratch_array(longest + largest, dtype), 0
        self._sums, self._number = list[Array](), 0
        self._result = np.empty(shape, dtype)

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        start, self._filled = self._filled, self._filled + prod(sizes)
        return self._memory[start : self._filled].reshape(sizes)

    def take(self) -> None:
        used, sums, intervals = 0, self._sums, self._intervals
        while used + (length := intervals[len(sums)][0]) <= self._filled:
            sums.append(_added(self._memory[used : used + length]))
            used += length
            if len(sums) == len(intervals):
                self._result.flat[self._number] = self._total()
                self._number += 1
                sums.clear()
        if used < self._filled and used:
            self._memory[: self._filled - used] = self._memory[used : self._filled]
        self._filled -= used

    def _total(self) -> Array:
        """Return the sum of those of all intervals."""
        pair, totals = np.empty(2, self._memory.dtype), list[Array]()
        for total, (_, merges) in zip(self._sums, self._intervals, strict=True):
            for _ in range(merges):
                pair[0], pair[1] = totals.pop(), total
                total = _added(pair)
            totals.append(total)
        return totals[0]

    def result(self) -> Array:
        return self._result


def _tree_intervals(count: int, limit: int, numbers: int) -> list[tuple[int, int]]:
    """Return the intervals of the tree of *count* numbers: the elements of each, and how many sums to add after it.

    *limit* is how many numbers an interval may have, *numbers* how many an element has.

    >>> _tree_intervals(1000, 300, 1)
    [(248, 0), (248, 1), (248, 0), (256, 2)]
    """
    if count <= limit:
        return [(count // numbers, 0)]
    half = count // 2
    half -= half % 8
    *others, (length, merges) = _tree_intervals(count - half, limit, numbers)
    return [*_tree_intervals(half, limit, numbers), *others, (length, merges + 1)]
