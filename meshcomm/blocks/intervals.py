"""Reductions of long blocks, interval by interval, so that NumPy's temporary arrays stay small."""

from collections.abc import Callable

import numpy as np

from meshcomm.core._tuning import INTERVAL_BYTES
from meshcomm.core._types import Array


def by_intervals(
    function: Callable[[Array], object],
    block: Array,
    axes: tuple[int, ...],
    *,
    leading: int = 0,
    keepdims: bool = False,
) -> object:
    """Return *function* of a *block*, which reduces *axes*; for a long block, by intervals of another axis.

    So temporary arrays stay small, also if the block is a view of many windows. The intervals cut the axis that is
    outermost in memory. If that axis is reduced, the block is not cut: to cut columns takes longer.

    Parameters
    ----------
    function: function of an interval of the block
    block: any array
    axes: reduced axes
    leading: number of new axes of its result, before the others
    keepdims: True if its result keeps reduced axes

    >>> by_intervals(lambda rows: rows.sum(axis=1), np.ones((2**18, 4)), (1,)).shape
    (262144,)
    """
    count = -(-block.nbytes // INTERVAL_BYTES)
    if count < 2:
        return function(block)
    steps = [abs(step) if n > 1 else 0 for n, step in zip(block.shape, block.strides, strict=True)]
    interval_axis = max((a for a in range(block.ndim) if a not in axes), key=steps.__getitem__, default=None)
    if interval_axis is None or steps[interval_axis] < max(steps) or block.shape[interval_axis] < 4:
        return function(block)
    result_axis = leading + interval_axis - (0 if keepdims else len([a for a in axes if a < interval_axis]))
    result: Array | None = None
    stop = 0
    # At least two rows: NumPy sums a single row in another order.
    for interval in np.array_split(block, min(count, block.shape[interval_axis] // 2), interval_axis):
        interval_result = np.asarray(function(interval))
        start, stop = stop, stop + interval.shape[interval_axis]
        if result is None:
            result = np.empty(
                (
                    *interval_result.shape[:result_axis],
                    block.shape[interval_axis],
                    *interval_result.shape[result_axis + 1 :],
                ),
                interval_result.dtype,
            )
        result[(*(slice(None),) * result_axis, slice(start, stop))] = interval_result
    return result
