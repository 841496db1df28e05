"""Reductions of a block that comes piece by piece, with the digits that NumPy's reduction of the whole block has."""

# How NumPy adds up
# =================
#
# Consecutive floating-point numbers are added up as a tree: up to 128 of them in a loop with 8 accumulators, more in
# two halves, where the length of the first half is a multiple of 8. A complex number counts as two. Over leading axes,
# rows are added to the result one after the other. So there are two orders, `_TreeFold` and `_RowFold`. Shares of
# integers, and of functions such as the maximum, may be merged in any order: `_ShareFold`. The tests compare each with
# NumPy.
#
# Pieces come in the order of memory. A tree is cut into intervals that fit in a piece, and a buffer holds the elements
# of the last pieces that are in no complete interval yet.

from collections.abc import Callable
from math import prod
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.memory.scratch import scratch

Slices: TypeAlias = tuple[slice, ...]

_ANY_ORDER_UFUNCS = frozenset(
    (np.maximum, np.minimum, np.fmax, np.fmin, np.logical_or, np.logical_and, np.bitwise_or, np.bitwise_and)
)
_LOOP_LENGTH = 128
"""Floating-point numbers that NumPy adds up in one loop."""

_sum = np.add.reduce


class Fold(Protocol):
    """A reduction of a block that takes the pieces one after the other."""

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        """Return the buffer for the next piece, which has shape *sizes* and is at *box* in the block."""

    def take(self) -> None:
        """Reduce the piece that was written."""

    def result(self) -> Array:
        """Return the reduction of all pieces."""


class Folding(NamedTuple):
    """How a block is reduced by pieces.

    Parameters
    ----------
    share: function that reduces a piece over *axes*
    ufunc: function that merges the shares; where the order matters, *share* is its ``reduce``
    axes: reduced axes, ascending
    dtype: dtype of the shares
    finish: function from the reduced shares to the result
    """

    share: Callable[[Array], Array]
    ufunc: np.ufunc
    axes: tuple[int, ...]
    dtype: DType
    finish: Callable[[Array], Array]

    def fold(self, shape: Shape, dtype: DType, largest_piece: int, is_ordered: bool) -> Fold | None:
        """Return the fold of a block of *shape* and *dtype*; None if its digits would differ from NumPy's.

        *largest_piece* is the number of elements of the largest piece, *is_ordered* whether the pieces come in the
        order of memory and each is consecutive there.
        """
        axes, ufunc, ndim = self.axes, self.ufunc, len(shape)
        if dtype.itemsize == 1:  # to store the block takes less time than to reduce each piece
            return None
        if ufunc in _ANY_ORDER_UFUNCS or (ufunc in (np.add, np.multiply) and self.dtype.kind in "biu"):
            return _ShareFold(self, shape, dtype, largest_piece)
        if dtype != self.dtype or dtype.kind not in "fc" or dtype.itemsize < 4 or ufunc not in (np.add, np.multiply):
            return None
        is_leading = axes == (*range(len(axes)),)
        width = prod(shape[len(axes) :])
        if is_leading and (width > 1 or (ufunc is np.multiply and dtype.kind == "f")):
            return _RowFold(ufunc, len(axes), shape, dtype, largest_piece)
        is_trailing = axes == (*range(ndim - len(axes), ndim),)
        if ufunc is np.add and is_ordered and (is_trailing or (is_leading and width == 1)):
            result_shape = tuple(n for axis, n in enumerate(shape) if axis not in axes)
            return _TreeFold(result_shape, prod(shape[axis] for axis in axes), dtype, largest_piece)
        return None


def _scratch_array(count: int, dtype: DType) -> Array:
    return np.ndarray((count,), dtype, scratch("folds", count * dtype.itemsize))


class _ShareFold:
    """Merges the share of each piece with those of earlier pieces; all at the end if the result is one element."""

    def __init__(self, folding: Folding, shape: Shape, dtype: DType, largest_piece: int) -> None:
        self._folding, self._memory = folding, _scratch_array(largest_piece, dtype)
        self._result_axes = [axis for axis in range(len(shape)) if axis not in folding.axes]
        self._merged = np.empty([shape[axis] for axis in self._result_axes], folding.dtype)
        self._shares = list[Array]()

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        self._box, self._piece = box, self._memory[: prod(sizes)].reshape(sizes)
        return self._piece

    def take(self) -> None:
        share = self._folding.share(self._piece)
        if not self._result_axes:
            self._shares.append(share)
            return
        box = self._box
        index: tuple[Value, ...] = (*(box[axis] for axis in self._result_axes), ...)  # ... for an array of no axes
        target = self._merged[index]
        if all(box[axis].start == 0 for axis in self._folding.axes):
            target[...] = share
        else:
            self._folding.ufunc(target, share, out=target)

    def result(self) -> Array:
        if not self._result_axes:
            self._merged[()] = self._folding.ufunc.reduce(self._shares)
        return self._merged


class _RowFold:
    """Reduces rows one after the other; in memory, the result of earlier rows is one more row before the new ones."""

    def __init__(self, ufunc: np.ufunc, leading_ndim: int, shape: Shape, dtype: DType, largest_piece: int) -> None:
        self._ufunc, self._leading_ndim = ufunc, leading_ndim
        self._memory = _scratch_array(largest_piece + min(largest_piece, prod(shape[leading_ndim:])), dtype)
        self._result = np.empty(shape[leading_ndim:], dtype)

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        count, width = prod(sizes[: self._leading_ndim]), prod(sizes[self._leading_ndim :])
        rows = self._memory[: (count + 1) * width].reshape(count + 1, width)
        index: tuple[Value, ...] = (*box[self._leading_ndim :], ...)  # with ..., an array also of no axes
        self._target = self._result[index]
        is_first = all(interval.start == 0 for interval in box[: self._leading_ndim])
        if not is_first:
            rows[0] = self._target.reshape(-1)
        self._rows = rows[is_first:]
        return rows[1:].reshape(sizes)

    def take(self) -> None:
        if self._rows.shape[1] == 1 and self._ufunc is np.add:  # which NumPy would add up as a tree
            total = np.add.accumulate(self._rows)[-1]
        else:
            total = self._ufunc.reduce(self._rows, axis=0)
        self._target[...] = total.reshape(self._target.shape)

    def result(self) -> Array:
        return self._result


class _TreeFold:
    """Sums *count* consecutive elements for each element of the result."""

    def __init__(self, shape: Shape, count: int, dtype: DType, largest_piece: int) -> None:
        factor = 2 if dtype.kind == "c" else 1
        self._intervals = _tree_intervals(count * factor, max(_LOOP_LENGTH, largest_piece * factor), factor)
        longest = max(length for length, _ in self._intervals)
        self._memory, self._filled_count = _scratch_array(longest + largest_piece, dtype), 0
        self._sums, self._result_index = list[Array](), 0
        self._result = np.empty(shape, dtype)

    def buffer(self, box: Slices, sizes: Shape) -> Array:
        start, self._filled_count = self._filled_count, self._filled_count + prod(sizes)
        return self._memory[start : self._filled_count].reshape(sizes)

    def take(self) -> None:
        start, sums, intervals = 0, self._sums, self._intervals
        while start + (length := intervals[len(sums)][0]) <= self._filled_count:
            sums.append(_sum(self._memory[start : start + length]))
            start += length
            if len(sums) == len(intervals):
                self._result.flat[self._result_index] = self._total()
                self._result_index += 1
                sums.clear()
        if start < self._filled_count and start:
            self._memory[: self._filled_count - start] = self._memory[start : self._filled_count]
        self._filled_count -= start

    def _total(self) -> Array:
        """Return the sum over all intervals."""
        pair, totals = np.empty(2, self._memory.dtype), list[Array]()
        for total, (_, merges) in zip(self._sums, self._intervals, strict=True):
            for _ in range(merges):
                pair[0], pair[1] = totals.pop(), total
                total = _sum(pair)
            totals.append(total)
        return totals[0]

    def result(self) -> Array:
        return self._result


def _tree_intervals(count: int, limit: int, factor: int) -> list[tuple[int, int]]:
    """Return the intervals of the tree of *count* numbers: the elements of each, and how many sums to add after it.

    *limit* is the maximum of numbers in an interval; an element has *factor* numbers.

    >>> _tree_intervals(1000, 300, 1)
    [(248, 0), (248, 1), (248, 0), (256, 2)]
    """
    if count <= limit:
        return [(count // factor, 0)]
    half = count // 2
    half -= half % 8
    *earlier_intervals, (length, merges) = _tree_intervals(count - half, limit, factor)
    return [*_tree_intervals(half, limit, factor), *earlier_intervals, (length, merges + 1)]
