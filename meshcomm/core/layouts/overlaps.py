"""Overlaps of the blocks of two cuts of one axis.

The overlap of two consecutive blocks is an interval. With a cyclic cut, the overlaps are runs, which repeat. They are
found from one period, and never element by element: see `_common_runs`.
"""
# One list for sender and receiver: a proof
# -----------------------------------------
#
# A sender packs the elements for a peer in the order of its list, and the peer unpacks in the order of its own list.
# So `axis_overlaps` has to return the same rows for a pair of blocks, from either side. Let A be the cut with the
# longer period and B the other one; a consecutive cut counts as the one with the longer period. The rows of a pair
# depend only on A, B and the numbers of the two blocks:
#
# 1. Windows. Both patterns repeat after L, the least common multiple of their periods. If the axis has two or more
#    such periods, the rows of the first period are stored once, with the number of whole periods; the rest of the
#    axis, if any, is a second window. Otherwise all of the axis is one window. This depends on L and the length.
# 2. Within a window, if a run of A is shorter than the period of B, a run of A and a run of B share one interval or
#    nothing. The rows are all these intervals (`_run_by_run`). It does not matter which of the two lists of runs the
#    search goes through.
# 3. Otherwise a run of A is an interval in which runs of B repeat. The rows of one run of A are: the first run of B if
#    it is cut off, those that are whole, with a count, and the last one if it is cut off (`_runs_within`). Each row is
#    a function of the run of A and of the block of B.
# 4. Order. The first elements of two rows of a pair differ, because no element is in two rows. All rows are sorted by
#    the number of the peer and by their first element.

from collections.abc import Sequence
from functools import lru_cache
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshcomm.core._types import Indices
from meshcomm.core.layouts.cyclic import AnyCut, CyclicCut
from meshcomm.core.layouts.partition import Consecutive
from meshcomm.errors import ShapeError


class Repeats(NamedTuple):
    """How the interval of each row repeats: two nested loops, each with a count and a step in elements."""

    counts: Indices  # (k, 2), the outer level first; of boxes (k, number of axes, 2)
    steps: Indices  # as counts


class AxisOverlaps(NamedTuple):
    """Overlaps of one block of an axis with the blocks of another cut: one row per interval, which may repeat."""

    other_blocks: Indices  # (k,): the number of the block of the other cut
    starts: Indices  # (k,)
    stops: Indices  # (k,)
    repeats: Repeats | None = None  # None if nothing repeats

    @property
    def lengths(self) -> Indices:
        """The number of elements of each row."""
        lengths = self.stops - self.starts
        return lengths if self.repeats is None else lengths * self.repeats.counts.prod(axis=1)

    def subset(self, rows: Indices | NDArray[np.bool_]) -> "AxisOverlaps":
        """Return the overlaps of *rows*, a mask or row numbers."""
        repeats = self.repeats and Repeats(self.repeats.counts[rows], self.repeats.steps[rows])
        return AxisOverlaps(self.other_blocks[rows], self.starts[rows], self.stops[rows], repeats)


def axis_overlaps(cut: AnyCut, number: int, other: AnyCut, allowed: Indices | None = None) -> AxisOverlaps:
    """Return the overlaps of block *number* of *cut* with the blocks of the *other* cut of the same axis.

    Parameters
    ----------
    cut, number: cut of the axis, and number of one of its blocks
    other: another cut of the axis
    allowed: block numbers of *other* to include, ascending, shape (k,); None for all

    >>> from meshcomm.core.layouts.partition import Cut
    >>> overlaps = axis_overlaps(Cut(10, 2), 1, CyclicCut(10, 2, 1, 0))
    >>> rows, repeats = (overlaps.other_blocks.tolist(), overlaps.starts.tolist()), overlaps.repeats
    >>> *rows, repeats.counts.tolist(), repeats.steps.tolist()
    ([0, 1], [6, 5], [[1, 2], [1, 3]], [[0, 2], [0, 2]])
    """
    if not (isinstance(cut, Consecutive) and isinstance(other, Consecutive)):
        result = _common_runs(cut, number, other)
        return result if allowed is None else result.subset(np.isin(result.other_blocks, allowed))
    start, stop = cut.interval(number)
    block_range = other.overlapping((start, stop))
    if allowed is None:
        numbers = np.arange(block_range.start, block_range.stop, dtype=np.intp)
    else:
        numbers = allowed[(block_range.start <= allowed) & (allowed < block_range.stop)]
    starts, stops = other.ends(numbers)
    result = AxisOverlaps(numbers, np.maximum(starts, start), np.minimum(stops, stop))
    nonempty = result.stops > result.starts
    return result if nonempty.all() else result.subset(nonempty)


@lru_cache(maxsize=4096)
def blocks_sharing(cut: AnyCut, number: int, other: AnyCut) -> tuple[Indices, Indices]:
    """Return the blocks of *other* that share elements with block *number* of *cut*, and the number of elements."""
    overlaps = axis_overlaps(cut, number, other)
    numbers, inverse = np.unique(overlaps.other_blocks, return_inverse=True)
    lengths = np.zeros(len(numbers), dtype=np.intp)
    np.add.at(lengths, inverse.reshape(-1), overlaps.lengths)
    return numbers, lengths


def shared_counts(a: AnyCut, a_numbers: Indices, b: AnyCut, b_numbers: Indices) -> Indices:
    """Return the number of elements that each block of *a_numbers* of the cut *a* shares with its block of *b*.

    Element i of the result is for the blocks ``a_numbers[i]`` and ``b_numbers[i]``.
    """
    if isinstance(a, Consecutive) and isinstance(b, Consecutive):
        (a_starts, a_stops), (b_starts, b_stops) = a.ends(a_numbers), b.ends(b_numbers)
        return np.maximum(0, np.minimum(a_stops, b_stops) - np.maximum(a_starts, b_starts))
    if isinstance(a, Consecutive) and isinstance(b, CyclicCut):
        starts, stops = a.ends(a_numbers)
        return b.before(b_numbers, stops) - b.before(b_numbers, starts)
    if isinstance(b, Consecutive):
        return shared_counts(b, b_numbers, a, a_numbers)
    counts = np.zeros(len(b_numbers), dtype=np.intp)
    for number in np.unique(b_numbers).tolist():
        numbers, lengths = blocks_sharing(b, number, a)
        pairs = np.flatnonzero(b_numbers == number)
        candidates = np.minimum(np.searchsorted(numbers, a_numbers[pairs]), max(0, len(numbers) - 1))
        if len(numbers):
            counts[pairs] = np.where(numbers[candidates] == a_numbers[pairs], lengths[candidates], 0)
    return counts


def holder_counts(cut: AnyCut, numbers: Indices, other: AnyCut) -> Indices:
    """Return the number of blocks of *other* that share elements with each of the blocks *numbers* of *cut*."""
    if isinstance(cut, Consecutive) and isinstance(other, Consecutive):
        starts, stops = cut.ends(numbers)
        first, last = other.first_and_last(starts, stops)
        return np.where(stops > starts, other.nonempty_before(last + 1) - other.nonempty_before(first), 0)
    distinct_numbers, inverse = np.unique(numbers, return_inverse=True)
    counts = [len(blocks_sharing(cut, number, other)[0]) for number in distinct_numbers.tolist()]
    return np.array(counts, dtype=np.intp)[inverse.reshape(-1)]


def max_overlaps(cut: AnyCut, other: AnyCut) -> int:
    """Return an upper bound on the rows that `axis_overlaps` gives for one block of *cut*.

    >>> max_overlaps(CyclicCut(100, 2, 1, 0), CyclicCut(100, 2, 2, 0))
    6
    """
    if isinstance(cut, Consecutive) and isinstance(other, Consecutive):
        return cut.most_overlapping(other)
    if not (isinstance(cut, CyclicCut) and isinstance(other, CyclicCut)):
        return min(3 * other.blocks, cut.longest)
    bound = 0
    for window in _windows(cut, other):
        length, run_count = window.stop - window.start, -(-(window.stop - window.start) // cut.period)
        if _is_run_by_run(cut, other):
            bound += run_count * ((cut.block - 1) // other.block + 2)
        else:
            bound += 3 * (run_count * other.blocks if cut.period > other.period else -(-length // other.block))
    return min(bound, cut.longest)


def is_refined_by(a: AnyCut, b: AnyCut) -> bool:
    """Return whether *b* cuts each block of *a* further, into equally many consecutive blocks.

    Also if they are equal, or *a* has one block.
    """
    if not (isinstance(a, Consecutive) and isinstance(b, Consecutive)) or b.blocks % a.blocks:
        return a == b or a.blocks == 1
    numbers = np.arange(a.blocks + 1, dtype=np.intp)
    return bool((a.starts(numbers) == b.starts(numbers * (b.blocks // a.blocks))).all())


_ROW_LIMIT = 1 << 26
"""The maximum of rows of `axis_overlaps`: more need gigabytes. Only two cyclic cuts of a very long axis have more."""

# -- cyclic cuts ------------------------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """An interval of the axis that begins with a common period of two cuts, and occurs several *times*."""

    start: int
    stop: int
    times: int
    period: int


def _windows(a: CyclicCut, b: CyclicCut) -> list[_Window]:
    period = lcm(a.period, b.period)
    period_count, remainder = divmod(a.length, period)
    if period_count < 2:
        return [_Window(0, a.length, 1, 0)]
    repeated_window = _Window(0, period, period_count, period)
    return [repeated_window, _Window(period_count * period, a.length, 1, 0)] if remainder else [repeated_window]


def _is_run_by_run(a: CyclicCut, b: CyclicCut) -> bool:
    """Return whether a run of the cut with the longer period is shorter than the other period: step 2 of the proof."""
    long_cut, short_cut = (a, b) if a.period >= b.period else (b, a)
    return long_cut.block < short_cut.period


def _common_runs(cut: AnyCut, number: int, other: AnyCut) -> AxisOverlaps:
    """Return `axis_overlaps` if one cut is cyclic, or both are."""
    block_number = np.array([number], dtype=np.intp)
    if isinstance(cut, Consecutive):
        assert isinstance(other, CyclicCut)
        numbers = np.arange(other.blocks, dtype=np.intp)
        return _concatenate_sorted([_runs_within(*cut.ends(block_number), other, numbers, numbers)])
    if isinstance(other, Consecutive):
        numbers = np.arange(other.blocks, dtype=np.intp)
        return _concatenate_sorted([_runs_within(*other.ends(numbers), cut, block_number, numbers)])
    if max_overlaps(cut, other) > _ROW_LIMIT:
        raise ShapeError(
            f"{cut} and {other} of one axis have no common period within it, and share too many runs to plan with: "
            f"more than {_ROW_LIMIT}; relayout to blocks of another size, or to another layout, first"
        )
    tables = []
    for window in _windows(cut, other):
        if _is_run_by_run(cut, other):
            window_overlaps = _run_by_run(cut, block_number, other, window)
        elif cut.period > other.period:
            starts, stops = _block_runs(cut, block_number, window)
            numbers = np.arange(other.blocks, dtype=np.intp)
            window_overlaps = _runs_within(starts[:, None], stops[:, None], other, numbers, numbers)
        else:
            run_numbers = np.arange(window.start // other.block, -(-window.stop // other.block), dtype=np.intp)
            starts, stops = run_numbers * other.block, np.minimum((run_numbers + 1) * other.block, window.stop)
            window_overlaps = _runs_within(starts, stops, cut, block_number, other.owners(run_numbers))
        assert window_overlaps.repeats is not None
        window_overlaps.repeats.counts[:, 0], window_overlaps.repeats.steps[:, 0] = window.times, window.period
        tables.append(window_overlaps)
    return _concatenate_sorted(tables)


def _block_runs(cut: CyclicCut, block_number: Indices, window: _Window) -> tuple[Indices, Indices]:
    """Return starts and stops of the runs of one block in *window*, which begins with a period."""
    starts = np.arange(
        window.start + int(cut.first_run_starts(block_number)[0]), window.stop, cut.period, dtype=np.intp
    )
    return starts, np.minimum(starts + cut.block, window.stop)


def _run_by_run(cut: CyclicCut, block_number: Indices, other: CyclicCut, window: _Window) -> AxisOverlaps:
    """Return the overlaps of one block's runs in *window* with single runs of the other cut: step 2 of the proof."""
    starts, stops = _block_runs(cut, block_number, window)
    touched_count = (cut.block - 1) // other.block + 2
    run_numbers = starts[:, None] // other.block + np.arange(touched_count, dtype=np.intp)
    overlap_starts = np.maximum(starts[:, None], run_numbers * other.block)
    overlap_stops = np.minimum(stops[:, None], (run_numbers + 1) * other.block)
    nonempty = overlap_starts < overlap_stops
    return _with_single_repeats(other.owners(run_numbers[nonempty]), overlap_starts[nonempty], overlap_stops[nonempty])


def _with_single_repeats(other_blocks: Indices, starts: Indices, stops: Indices) -> AxisOverlaps:
    repeats = Repeats(np.ones((len(starts), 2), dtype=np.intp), np.zeros((len(starts), 2), dtype=np.intp))
    return AxisOverlaps(other_blocks, starts, stops, repeats)


def _runs_within(
    starts: Indices, stops: Indices, cut: CyclicCut, blocks: Indices, row_blocks: Indices
) -> AxisOverlaps:
    """Return the runs of *blocks* of a cyclic cut within intervals, at most three rows each: step 3 of the proof.

    The arguments broadcast against each other; *row_blocks* are the `other_blocks` of the rows.
    """
    firsts = cut.first_run_starts(blocks)
    starts, stops, firsts, row_blocks = (np.ravel(a) for a in np.broadcast_arrays(starts, stops, firsts, row_blocks))
    run_length, period = cut.block, cut.period
    # From the first run that ends after the start to the last one that begins before the stop.
    first_run = np.maximum(0, -((firsts + run_length - 1 - starts) // period))
    last_run = (stops - firsts - 1) // period
    nonempty = (first_run <= last_run) & (starts < stops)
    starts, stops, firsts, row_blocks, first_run, last_run = (
        a[nonempty] for a in (starts, stops, firsts, row_blocks, first_run, last_run)
    )
    first_start, last_stop = firsts + first_run * period, firsts + last_run * period + run_length
    is_single = first_run == last_run
    has_head, has_tail = ~is_single & (first_start < starts), ~is_single & (last_stop > stops)
    first_run, last_run = first_run + has_head, last_run - has_tail
    has_middle = ~is_single & (first_run <= last_run)
    single = _with_single_repeats(
        row_blocks[is_single], np.maximum(first_start, starts)[is_single], np.minimum(last_stop, stops)[is_single]
    )
    heads = _with_single_repeats(row_blocks[has_head], starts[has_head], first_start[has_head] + run_length)
    tails = _with_single_repeats(row_blocks[has_tail], last_stop[has_tail] - run_length, stops[has_tail])
    middle_starts = (firsts + first_run * period)[has_middle]
    middle = _with_single_repeats(row_blocks[has_middle], middle_starts, middle_starts + run_length)
    assert middle.repeats is not None
    middle.repeats.counts[:, 1] = (last_run - first_run + 1)[has_middle]
    middle.repeats.steps[:, 1] = period
    return _concatenate([single, heads, middle, tails])


def _concatenate(tables: Sequence[AxisOverlaps]) -> AxisOverlaps:
    other_blocks, starts, stops = (np.concatenate([table[i] for table in tables]) for i in range(3))
    repeats = [table.repeats for table in tables if table.repeats is not None]
    counts, steps = (np.concatenate(arrays) for arrays in zip(*repeats, strict=True))
    return AxisOverlaps(other_blocks, starts, stops, Repeats(counts, steps))


def _concatenate_sorted(tables: Sequence[AxisOverlaps]) -> AxisOverlaps:
    result = _concatenate(tables)
    return result.subset(np.lexsort((result.starts, result.other_blocks)))
