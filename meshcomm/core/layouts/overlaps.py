"""Overlaps of the blocks of two cuts of one axis.

Between consecutive blocks that is an interval. A device's runs of a cyclic cut share runs with it, which repeat. They
are found from one period, and never element by element: see `_common_runs`.
"""
# One list for sender and receiver: a proof
# -----------------------------------------
#
# A sender packs what it has for a peer in the order of its list, and the peer unpacks in the order of its own list. So
# `axis_overlaps` has to give the same rows for a pair of blocks, whichever of the two is asked for. Let A be the cut
# with the longer period and B the other one; a consecutive cut counts as the one with the longer period. What is found
# for a pair depends on A, B and the numbers of the two blocks only:
#
# 1. Windows. Both patterns repeat after L, the least common multiple of their periods. If the axis has two such
#    periods or more, its whole periods are found from the first one, with a count, and the rest of the axis is a
#    second window. Otherwise all of the axis is one window. This depends on L and the length.
# 2. Within a window, if a run of A is shorter than the period of B, a run of A and a run of B share one interval or
#    nothing. The rows are all these intervals (`_run_by_run`). It does not matter which of the two lists of runs is
#    walked through to find them.
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
    """How often the interval of each row is there: two nested loops, each with a count and a step in elements."""

    counts: Indices  # (k, ..., 2), the outer level first
    steps: Indices  # (k, ..., 2)


class AxisOverlaps(NamedTuple):
    """Overlaps of one block of an axis with the blocks of another cut: a row per interval, which may repeat."""

    numbers: Indices  # (k,): the block of the other cut
    starts: Indices  # (k,)
    stops: Indices  # (k,)
    repeats: Repeats | None = None  # (k, 2); None if nothing repeats

    @property
    def lengths(self) -> Indices:
        """The number of elements of each row."""
        lengths = self.stops - self.starts
        return lengths if self.repeats is None else lengths * self.repeats.counts.prod(axis=1)

    def subset(self, chosen: Indices | NDArray[np.bool_]) -> "AxisOverlaps":
        """Return the rows *chosen*, by a mask or by their numbers."""
        repeats = self.repeats and Repeats(self.repeats.counts[chosen], self.repeats.steps[chosen])
        return AxisOverlaps(self.numbers[chosen], self.starts[chosen], self.stops[chosen], repeats)


def axis_overlaps(cut: AnyCut, number: int, other: AnyCut, allowed: Indices | None = None) -> AxisOverlaps:
    """Return the overlaps of block *number* of *cut* with the blocks of the *other* cut of the same axis.

    Parameters
    ----------
    cut, number: cut of the axis, and number of a block of it
    other: another cut of the axis
    allowed: block numbers of *other* to look at, ascending, shape (k,); None is all

    >>> from meshcomm.core.layouts.partition import Cut
    >>> overlaps = axis_overlaps(Cut(10, 2), 1, CyclicCut(10, 2, 1, 0))
    >>> rows, repeats = (overlaps.numbers.tolist(), overlaps.starts.tolist()), overlaps.repeats
    >>> *rows, repeats.counts.tolist(), repeats.steps.tolist()
    ([0, 1], [6, 5], [[1, 2], [1, 3]], [[0, 2], [0, 2]])
    """
    if not (isinstance(cut, Consecutive) and isinstance(other, Consecutive)):
        result = _common_runs(cut, number, other)
        return result if allowed is None else result.subset(np.isin(result.numbers, allowed))
    start, stop = cut.interval(number)
    between = other.overlapping((start, stop))
    if allowed is None:
        numbers = np.arange(between.start, between.stop, dtype=np.intp)
    else:
        numbers = allowed[(between.start <= allowed) & (allowed < between.stop)]
    starts, stops = other.ends(numbers)
    result = AxisOverlaps(numbers, np.maximum(starts, start), np.minimum(stops, stop))
    nonempty = result.stops > result.starts
    return result if nonempty.all() else result.subset(nonempty)


@lru_cache(maxsize=4096)
def shared_with(cut: AnyCut, number: int, other: AnyCut) -> tuple[Indices, Indices]:
    """Return the blocks of *other* that share elements with block *number* of *cut*, and how many with each."""
    overlaps = axis_overlaps(cut, number, other)
    numbers, which = np.unique(overlaps.numbers, return_inverse=True)
    lengths = np.zeros(len(numbers), dtype=np.intp)
    np.add.at(lengths, which.reshape(-1), overlaps.lengths)
    return numbers, lengths


def shared(a: AnyCut, in_a: Indices, b: AnyCut, in_b: Indices) -> Indices:
    """Return how many elements blocks *in_a* of the cut *a* share with blocks *in_b* of the cut *b*, pair by pair."""
    if isinstance(a, Consecutive) and isinstance(b, Consecutive):
        (starts, stops), (others, ends) = a.ends(in_a), b.ends(in_b)
        return np.maximum(0, np.minimum(stops, ends) - np.maximum(starts, others))
    if isinstance(a, Consecutive) and isinstance(b, CyclicCut):
        start, stop = a.ends(in_a)
        return b.before(in_b, stop) - b.before(in_b, start)
    if isinstance(b, Consecutive):
        return shared(b, in_b, a, in_a)
    counts = np.zeros(len(in_b), dtype=np.intp)
    for number in np.unique(in_b).tolist():
        numbers, lengths = shared_with(b, number, a)
        rows = np.flatnonzero(in_b == number)
        at = np.minimum(np.searchsorted(numbers, in_a[rows]), max(0, len(numbers) - 1))
        if len(numbers):
            counts[rows] = np.where(numbers[at] == in_a[rows], lengths[at], 0)
    return counts


def holders(cut: AnyCut, numbers: Indices, other: AnyCut) -> Indices:
    """Return how many blocks of *other* share elements with each of the blocks *numbers* of *cut*."""
    if isinstance(cut, Consecutive) and isinstance(other, Consecutive):
        starts, stops = cut.ends(numbers)
        first, last = other.first_and_last(starts, stops)
        return np.where(stops > starts, other.filled_before(last + 1) - other.filled_before(first), 0)
    distinct, which = np.unique(numbers, return_inverse=True)
    counts = [len(shared_with(cut, number, other)[0]) for number in distinct.tolist()]
    return np.array(counts, dtype=np.intp)[which.reshape(-1)]


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
        length, runs = window.stop - window.start, -(-(window.stop - window.start) // cut.period)
        if _is_run_by_run(cut, other):
            bound += runs * ((cut.block - 1) // other.block + 2)
        else:
            bound += 3 * (runs * other.blocks if cut.period > other.period else -(-length // other.block))
    return min(bound, cut.longest)


def nested(a: AnyCut, b: AnyCut) -> bool:
    """Return whether each block of *a* is cut further by *b*, into equally many blocks, one after the other."""
    if not (isinstance(a, Consecutive) and isinstance(b, Consecutive)) or b.blocks % a.blocks:
        return a == b or a.blocks == 1
    numbers = np.arange(a.blocks + 1, dtype=np.intp)
    return bool((a.starts(numbers) == b.starts(numbers * (b.blocks // a.blocks))).all())


_MAX_OVERLAPS = 1 << 26
"""Rows of `axis_overlaps`. So many need some gigabytes; only two cyclic cuts of a very long axis can have them."""

# -- cyclic cuts ------------------------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """An interval of the axis that begins with a common period of two cuts, and occurs several *times*."""

    start: int
    stop: int
    times: int
    period: int


def _windows(a: CyclicCut, b: CyclicCut) -> list[_Window]:
    period = lcm(a.period, b.period)
    whole, rest = divmod(a.length, period)
    if whole < 2:
        return [_Window(0, a.length, 1, 0)]
    repeated = _Window(0, period, whole, period)
    return [repeated, _Window(whole * period, a.length, 1, 0)] if rest else [repeated]


def _is_run_by_run(a: CyclicCut, b: CyclicCut) -> bool:
    longer, shorter = (a, b) if a.period >= b.period else (b, a)
    return longer.block < shorter.period


def _common_runs(cut: AnyCut, number: int, other: AnyCut) -> AxisOverlaps:
    """Return `axis_overlaps` if one cut is cyclic, or both are."""
    one = np.array([number], dtype=np.intp)
    if isinstance(cut, Consecutive):
        assert isinstance(other, CyclicCut)
        numbers = np.arange(other.blocks, dtype=np.intp)
        return _ordered([_runs_within(*cut.ends(one), other, numbers, numbers)])
    if isinstance(other, Consecutive):
        numbers = np.arange(other.blocks, dtype=np.intp)
        return _ordered([_runs_within(*other.ends(numbers), cut, one, numbers)])
    if max_overlaps(cut, other) > _MAX_OVERLAPS:
        raise ShapeError(
            f"{cut} and {other} of one axis have no common period within it, and share too many runs to plan with: "
            f"more than {_MAX_OVERLAPS}; relayout to blocks of another size, or to another layout, first"
        )
    overlaps = []
    for window in _windows(cut, other):
        if _is_run_by_run(cut, other):
            inside = _run_by_run(cut, one, other, window)
        elif cut.period > other.period:
            starts, stops = _device_runs(cut, one, window)
            numbers = np.arange(other.blocks, dtype=np.intp)
            inside = _runs_within(starts[:, None], stops[:, None], other, numbers, numbers)
        else:
            short = np.arange(window.start // other.block, -(-window.stop // other.block), dtype=np.intp)
            starts, stops = short * other.block, np.minimum((short + 1) * other.block, window.stop)
            inside = _runs_within(starts, stops, cut, one, other.owners(short))
        assert inside.repeats is not None
        inside.repeats.counts[:, 0], inside.repeats.steps[:, 0] = window.times, window.period
        overlaps.append(inside)
    return _ordered(overlaps)


def _device_runs(cut: CyclicCut, one: Indices, window: _Window) -> tuple[Indices, Indices]:
    """Return starts and stops of the runs of one device in *window*, which begins with a period."""
    starts = np.arange(window.start + int(cut.firsts(one)[0]), window.stop, cut.period, dtype=np.intp)
    return starts, np.minimum(starts + cut.block, window.stop)


def _run_by_run(cut: CyclicCut, one: Indices, other: CyclicCut, window: _Window) -> AxisOverlaps:
    """Return the overlaps of one device's runs in *window* with the single runs of the other cut: 2 of the proof."""
    starts, stops = _device_runs(cut, one, window)
    count = (cut.block - 1) // other.block + 2
    short = starts[:, None] // other.block + np.arange(count, dtype=np.intp)
    first = np.maximum(starts[:, None], short * other.block)
    last = np.minimum(stops[:, None], (short + 1) * other.block)
    nonempty = first < last
    return _without_repeats(other.owners(short[nonempty]), first[nonempty], last[nonempty])


def _without_repeats(numbers: Indices, starts: Indices, stops: Indices) -> AxisOverlaps:
    repeats = Repeats(np.ones((len(starts), 2), dtype=np.intp), np.zeros((len(starts), 2), dtype=np.intp))
    return AxisOverlaps(numbers, starts, stops, repeats)


def _runs_within(starts: Indices, stops: Indices, cut: CyclicCut, devices: Indices, numbers: Indices) -> AxisOverlaps:
    """Return the runs of *devices* of a cyclic cut within intervals, three rows at most for each: 3 of the proof.

    All arguments are broadcast against each other; *numbers* says what number a row gets.
    """
    firsts = cut.firsts(devices)
    starts, stops, firsts, numbers = (np.ravel(a) for a in np.broadcast_arrays(starts, stops, firsts, numbers))
    run, period = cut.block, cut.period
    first = np.maximum(0, -((firsts + run - 1 - starts) // period))  # the first run that ends after the start
    last = (stops - firsts - 1) // period  # the last run that begins before the stop
    inside = (first <= last) & (starts < stops)
    starts, stops, firsts, numbers, first, last = (a[inside] for a in (starts, stops, firsts, numbers, first, last))
    begin, end = firsts + first * period, firsts + last * period + run
    alone = first == last
    head, tail = ~alone & (begin < starts), ~alone & (end > stops)
    first, last = first + head, last - tail
    whole = ~alone & (first <= last)
    single = _without_repeats(numbers[alone], np.maximum(begin, starts)[alone], np.minimum(end, stops)[alone])
    heads = _without_repeats(numbers[head], starts[head], begin[head] + run)
    tails = _without_repeats(numbers[tail], end[tail] - run, stops[tail])
    begins = (firsts + first * period)[whole]
    middle = _without_repeats(numbers[whole], begins, begins + run)
    assert middle.repeats is not None
    middle.repeats.counts[:, 1] = (last - first + 1)[whole]
    middle.repeats.steps[:, 1] = period
    return _joined([single, heads, middle, tails])


def _joined(parts: Sequence[AxisOverlaps]) -> AxisOverlaps:
    numbers, starts, stops = (np.concatenate([part[i] for part in parts]) for i in range(3))
    repeats = [part.repeats for part in parts if part.repeats is not None]
    counts, steps = (np.concatenate(arrays) for arrays in zip(*repeats, strict=True))
    return AxisOverlaps(numbers, starts, stops, Repeats(counts, steps))


def _ordered(parts: Sequence[AxisOverlaps]) -> AxisOverlaps:
    joined = _joined(parts)
    return joined.subset(np.lexsort((joined.starts, joined.numbers)))
