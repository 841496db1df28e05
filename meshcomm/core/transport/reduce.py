"""Reductions over the ranks of a group."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._mistakes import suggestion
from meshcomm.core._tuning import REDUCED_AT_ONCE
from meshcomm.core._types import Array, DType
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.rank_sets import Group
from meshcomm.core.transport.choose import exchange, gathers_at_once, on_arrays
from meshcomm.core.transport.exchange import ExchangeSpec, from_boxes
from meshcomm.errors import DTypeError

_OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class AllReduce:
    """Arrays of the ranks of a group, reduced elementwise, on every rank.

    If arrays are small, each rank gathers those of all ranks and reduces them, in the order of the group. Else each
    rank reduces one block of the elements, and then all gather the blocks: two exchanges. The result is the same on
    all ranks, to the last bit.

    Parameters
    ----------
    group: ranks that reduce
    position: position of this rank in the group
    reduce: function that reduces an array over its first axis, as `reduction` returns it
    n, itemsize: number of elements of the array of each rank, and the bytes of an element
    counted: positions in the group whose arrays count, by default all
    """

    def __init__(
        self,
        group: Group,
        position: int,
        reduce: Callable[[Array], Array],
        n: int,
        itemsize: int,
        *,
        counted: list[int] | None = None,
    ) -> None:
        self._reduce, self._counted = reduce, counted
        count = len(group.members)
        element_cut = Cut(n, count)
        intervals = [element_cut.interval(index) for index in range(count)]
        description = f"of all_reduce of {n} items of {itemsize} bytes"
        row_boxes = [((index, index + 1), (0, n)) for index in range(count)]
        self._gathers_all = count * n * itemsize <= REDUCED_AT_ONCE
        if self._gathers_all:
            gather_all = from_boxes(itemsize, position, row_boxes, [((0, count), (0, n))] * count)
            spec = ExchangeSpec(fingerprint(f"gather {description}"), count * n * itemsize, gathers=True)
            self._gather = on_arrays(exchange(group, [gather_all], spec), (count, n))
            return
        column_boxes = [((0, count), interval) for interval in intervals]
        scatter = from_boxes(itemsize, position, row_boxes, column_boxes)
        max_bytes = max(n, count * element_cut.longest) * itemsize
        spec = ExchangeSpec(fingerprint(f"scatter {description}"), max_bytes)
        start, stop = intervals[position]
        self._scatter = on_arrays(exchange(group, [scatter], spec), (count, stop - start))
        gather = from_boxes(itemsize, position, [(interval,) for interval in intervals], [((0, n),)] * count)
        is_small = gathers_at_once(n * itemsize, count)
        spec = ExchangeSpec(fingerprint(f"gather {description}"), n * itemsize, gathers=is_small)
        self._gather = on_arrays(exchange(group, [gather], spec), (n,))

    def run(self, array: Array, compute: Callable[[Array], Array] | None = None) -> Array:
        """Return the reduction of *array*, or of the result of *compute* for it. Collective over the group."""
        # An overflow on one rank must not stop it while the others go on.
        with not_raising_float_errors():
            if compute is not None:
                array = compute(array)
            rows = self._gather(array) if self._gathers_all else self._scatter(array)
            reduced = self._reduce(rows if self._counted is None else rows[self._counted])
            return (reduced if self._gathers_all else self._gather(reduced)).reshape(array.shape)


class ExclusiveScan:
    """For each rank of a group, the arrays of the ranks before it, reduced elementwise from the first one on.

    As in `AllReduce`, each rank scans one block of the elements; then each rank gets its own row.

    Parameters
    ----------
    group: ranks that scan
    position: position of this rank in the group
    ufunc: reduction of two arrays
    n, itemsize: number of elements of the array of each rank, and the bytes of an element
    order: positions of the arrays that count, in order; the results of others, and of the first one, are undefined
    """

    def __init__(
        self, group: Group, position: int, ufunc: np.ufunc, n: int, itemsize: int, *, order: list[int]
    ) -> None:
        self._ufunc, self._order = ufunc, order
        count = len(group.members)
        element_cut = Cut(n, count)
        description = f"of exclusive_scan of {n} items of {itemsize} bytes in the order {order}"
        row_boxes = [((index, index + 1), (0, n)) for index in range(count)]
        column_boxes = [((0, count), element_cut.interval(index)) for index in range(count)]
        max_bytes = max(n, count * element_cut.longest) * itemsize
        scatter = from_boxes(itemsize, position, row_boxes, column_boxes)
        start, stop = element_cut.interval(position)
        spec = ExchangeSpec(fingerprint(f"scatter {description}"), max_bytes)
        self._scatter = on_arrays(exchange(group, [scatter], spec), (count, stop - start))
        return_exchange = from_boxes(itemsize, position, column_boxes, row_boxes)
        spec = ExchangeSpec(fingerprint(f"return {description}"), max_bytes)
        self._return = on_arrays(exchange(group, [return_exchange], spec), (n,))

    def run(self, array: Array) -> Array:
        """Return the reduction of the arrays before that of this rank. Collective over the group."""
        columns = self._scatter(array)
        results = np.zeros_like(columns)
        with not_raising_float_errors():
            for previous, current in pairwise(self._order):
                is_first = previous == self._order[0]
                results[current] = columns[previous] if is_first else self._ufunc(results[previous], columns[previous])
        return self._return(results).reshape(array.shape)


def reduction(op: object, dtype: DType) -> Callable[[Array], Array]:
    """Return a function that reduces an array over its first axis, in its dtype and in order.

    Callers ignore floating-point errors, which must not stop one rank between two communications.
    ``DTypeError`` for an unknown *op*, or one that *dtype* does not have.
    """
    ufunc = _OPS.get(op) if isinstance(op, str) else None
    if ufunc is None:
        raise DTypeError(f"op must be one of {', '.join(_OPS)}, not {op!r}{suggestion(op, _OPS)}")

    def reduce(rows: Array) -> Array:
        # Row by row: ufunc.reduce may sum in pairs, or in another precision.
        result: Array = rows[0].copy()
        for row in rows[1:]:
            ufunc(result, row, out=result)
        return result

    try:
        if dtype.kind in "SU":
            raise TypeError("text can be added, but not reduced in place")
        reduce(np.zeros((2, 1), dtype))
    except TypeError:
        raise DTypeError(f"op {op!r} is not defined for dtype {dtype}") from None
    return reduce
