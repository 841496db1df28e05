"""Reductions over the ranks of a group."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from meshcomm.core._callers import unstopped
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

    Of small arrays, each rank gathers those of all and reduces them, in the order of the group. Of others, each rank
    reduces one block of the elements so, and then all gather the blocks: two exchanges. The result is the same to the
    last bit everywhere.

    Parameters
    ----------
    group: ranks that reduce
    position: position of this rank in the group
    reduce: function that reduces an array over its first axis, as `reduction` returns it
    n, itemsize: number of elements of the array of each rank, and their bytes
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
        elements = Cut(n, count)
        cuts = [elements.interval(number) for number in range(count)]
        call = f"of all_reduce of {n} items of {itemsize} bytes"
        arrays = [((number, number + 1), (0, n)) for number in range(count)]
        self._at_once = count * n * itemsize <= REDUCED_AT_ONCE
        if self._at_once:
            everything = from_boxes(itemsize, position, arrays, [((0, count), (0, n))] * count)
            spec = ExchangeSpec(fingerprint(f"gather {call}"), count * n * itemsize, gathers=True)
            self._gather = on_arrays(exchange(group, [everything], spec), (count, n))
            return
        columns = [((0, count), cut) for cut in cuts]
        scatter = from_boxes(itemsize, position, arrays, columns)
        largest = max(n, count * elements.longest) * itemsize
        spec = ExchangeSpec(fingerprint(f"scatter {call}"), largest)
        start, stop = cuts[position]
        self._scatter = on_arrays(exchange(group, [scatter], spec), (count, stop - start))
        gather = from_boxes(itemsize, position, [(cut,) for cut in cuts], [((0, n),)] * count)
        at_once = gathers_at_once(n * itemsize, count)
        spec = ExchangeSpec(fingerprint(f"gather {call}"), n * itemsize, gathers=at_once)
        self._gather = on_arrays(exchange(group, [gather], spec), (n,))

    def run(self, array: Array, compute: Callable[[Array], Array] | None = None) -> Array:
        """Return the reduced array, or what *compute* makes of the array, reduced. Collective over the group."""
        # An overflow, which concerns one rank, must not stop it while the others go on.
        with unstopped():
            if compute is not None:
                array = compute(array)
            columns = self._gather(array) if self._at_once else self._scatter(array)
            reduced = self._reduce(columns if self._counted is None else columns[self._counted])
            return (reduced if self._at_once else self._gather(reduced)).reshape(array.shape)


class ExclusiveScan:
    """For each rank of a group, the arrays of those before it, reduced elementwise: first one with second one and on.

    As `AllReduce`: each rank scans one block of the elements, and then each rank gets its own row.

    Parameters
    ----------
    group: ranks that scan
    position: position of this rank in the group
    ufunc: reduction of two arrays
    n, itemsize: number of elements of the array of each rank, and their bytes
    order: positions whose arrays count, first one first; the results of others, and of the first one, are undefined
    """

    def __init__(
        self, group: Group, position: int, ufunc: np.ufunc, n: int, itemsize: int, *, order: list[int]
    ) -> None:
        self._ufunc, self._order = ufunc, order
        count = len(group.members)
        elements = Cut(n, count)
        call = f"of exclusive_scan of {n} items of {itemsize} bytes in the order {order}"
        arrays = [((number, number + 1), (0, n)) for number in range(count)]
        columns = [((0, count), elements.interval(number)) for number in range(count)]
        largest = max(n, count * elements.longest) * itemsize
        scatter = from_boxes(itemsize, position, arrays, columns)
        start, stop = elements.interval(position)
        spec = ExchangeSpec(fingerprint(f"scatter {call}"), largest)
        self._scatter = on_arrays(exchange(group, [scatter], spec), (count, stop - start))
        back = from_boxes(itemsize, position, columns, arrays)
        spec = ExchangeSpec(fingerprint(f"return {call}"), largest)
        self._return = on_arrays(exchange(group, [back], spec), (n,))

    def run(self, array: Array) -> Array:
        """Return the reduction of the arrays before that of this rank. Collective over the group."""
        columns = self._scatter(array)
        before = np.zeros_like(columns)
        with unstopped():
            for last, this in pairwise(self._order):
                first = last == self._order[0]
                before[this] = columns[last] if first else self._ufunc(before[last], columns[last])
        return self._return(before).reshape(array.shape)


def reduction(op: object, dtype: DType) -> Callable[[Array], Array]:
    """Return a function that reduces an array over its first axis, in its dtype and in order.

    Callers ignore floating-point errors, which must not stop one rank between two communications.
    ``DTypeError`` for an unknown *op*, or one that *dtype* does not have.
    """
    ufunc = _OPS.get(op) if isinstance(op, str) else None
    if ufunc is None:
        raise DTypeError(f"op must be one of {', '.join(_OPS)}, not {op!r}{suggestion(op, _OPS)}")

    def reduce(rows: Array) -> Array:
        # One after the other: ufunc.reduce may sum in pairs, or in another precision.
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
