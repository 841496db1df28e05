"""The ghosts along one axis: runs of consecutive ghosts, each from one block.

Ghosts are numbered on the axis continued past both ends: -1 is just before element 0. So the block [4, 8) of an axis
of 8 elements with 2 ghosts is [2, 10), and if the axis is periodic, 8 is element 0.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from meshcomm.core._types import Indices
from meshcomm.core.layouts.partition import ChosenCut, Cut, Interval
from meshcomm.halos.boundaries import Boundary, source_indices
from meshcomm.halos.widths import Width


class AxisRule(NamedTuple):
    """The cut of an axis, and the ghosts of its blocks."""

    cut: Cut | ChosenCut
    width: Width
    boundary: Boundary

    def padded(self, number: int) -> Interval:
        """Return block *number* with its ghosts.

        >>> AxisRule(Cut(8, 2), (1, 2), Boundary("none")).padded(1)
        (3, 8)
        """
        (start, stop), (before, after) = self.cut.interval(number), self.width
        if self.boundary.name == "none":
            return max(0, start - before), min(self.cut.length, stop + after)
        return start - before, stop + after

    @property
    def longest(self) -> int:
        """An upper bound on the elements of a block with its ghosts."""
        return self.cut.longest + sum(self.width)


class HaloRun(NamedTuple):
    """Consecutive elements of block *number* with its ghosts, all from block *owner*.

    The inner elements of a block are a run of the block itself.
    """

    number: int
    owner: int
    start: int
    stop: int
    is_ghost: bool


@lru_cache(maxsize=256)
def runs_of(rule: AxisRule, number: int) -> tuple[HaloRun, ...]:
    """Return the runs of block *number*, in order, without ghosts that are filled with a constant.

    The source indices of a run ascend by one, descend by one, or stay the same.

    >>> for run in runs_of(AxisRule(Cut(4, 2), (1, 3), Boundary("periodic")), 1):
    ...     print(run.start, run.stop, "from block", run.owner)
    1 2 from block 0
    2 4 from block 1
    4 6 from block 0
    6 7 from block 1
    """
    (padded_start, padded_stop), (start, stop) = rule.padded(number), rule.cut.interval(number)
    if not rule.boundary.repeats:
        padded_start, padded_stop = max(padded_start, 0), min(padded_stop, rule.cut.length)
    inner = [HaloRun(number, number, start, stop, False)] if start < stop else []
    return (*_ghosts(rule, number, padded_start, start), *inner, *_ghosts(rule, number, stop, padded_stop))


def _ghosts(rule: AxisRule, number: int, start: int, stop: int) -> list[HaloRun]:
    """Return the runs of the ghosts from *start* to *stop*."""
    if start >= stop:
        return []
    ghost_indices, n = np.arange(start, stop, dtype=np.intp), rule.cut.length
    sources = source_indices(rule.boundary, ghost_indices, n)
    owners, steps = rule.cut.blocks_of(sources).tolist(), np.diff(sources).tolist()
    runs, begin = [], 0
    for i in range(1, len(ghost_indices) + 1):
        if (
            i < len(ghost_indices)
            and owners[i] == owners[begin]
            and steps[i - 1] == steps[begin]
            and abs(steps[begin]) <= 1
        ):
            continue
        runs.append(HaloRun(number, owners[begin], start + begin, start + i, True))
        begin = i
    return runs


@lru_cache(maxsize=256)
def _by_owner(rule: AxisRule) -> dict[int, tuple[HaloRun, ...]]:
    """Return the runs of all blocks by their owner."""
    runs_of_owners: dict[int, list[HaloRun]] = {}
    for number in range(rule.cut.blocks):
        for run in runs_of(rule, number):
            runs_of_owners.setdefault(run.owner, []).append(run)
    return {owner: tuple(runs) for owner, runs in runs_of_owners.items()}


def runs_from(rule: AxisRule, owner: int) -> tuple[HaloRun, ...]:
    """Return the runs of all blocks that come from block *owner*, by block and in order."""
    return _by_owner(rule).get(owner, ())


def sources_of(rule: AxisRule, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
    """Return the source index of the first element of each run, and the step to the next one."""
    first_sources = source_indices(rule.boundary, starts, rule.cut.length)
    last_sources = source_indices(rule.boundary, stops - 1, rule.cut.length)
    return first_sources, (last_sources - first_sources) // np.maximum(stops - starts - 1, 1)
