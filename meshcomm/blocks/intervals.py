"""Reductions of long blocks, interval by interval, so that what NumPy makes on the way stays small."""

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
    """Return what *function* makes of a *block* by reducing *axes*: of a long one, by intervals of another axis.

    So the arrays that it makes on the way are small, also if the block is a view of many windows. The intervals are
    those of the axis that is outermost in memory: if that is reduced, columns would be cut, which takes longer.

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
    along = max((a for a in range(block.ndim) if a not in axes), key=steps.__getitem__, default=None)
    if along is None or steps[along] < max(steps) or block.shape[along] < 4:
        return function(block)
    at = leading + along - (0 if keepdims else len([a for a in axes if a < along]))
    result: Array | None = None
    stop = 0
    # Two rows at least: of one, NumPy adds up in another order.
    for interval in np.array_split(block, min(count, block.shape[along] // 2), along):
        part = np.asarray(function(interval))
        start, stop = stop, stop + interval.shape[along]
        if result is None:
            result = np.empty((*part.shape[:at], block.shape[along], *part.shape[at + 1 :]), part.dtype)
        result[(*(slice(None),) * at, slice(start, stop))] = part
    return result
