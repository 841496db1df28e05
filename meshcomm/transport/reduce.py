"""Reductions over the ranks of a group."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshcomm._types import Array
from meshcomm.errors import DTypeError
from meshcomm.layouts.boxes import Boxes
from meshcomm.layouts.partition import block_start
from meshcomm.ranks.teams import Group
from meshcomm.transport.choose import along, exchanged, gathered
from meshcomm.transport.exchange import Far


class AllReduce:
    """Arrays of *n* elements of the ranks of a group, reduced elementwise, on every rank. Local to make.

    Each rank reduces one part, in the order of the group, and all gather the parts: the result is the same to the last
    bit everywhere. *counted* are the places in the group whose arrays count, by default all of them.
    """

    def __init__(
        self,
        group: Group,
        place: int,
        reduce: Callable[[Array], Array],
        n: int,
        itemsize: int,
        counted: list[int] | None = None,
    ) -> None:
        self._reduce, self._counted = reduce, counted
        count = len(group.members)
        cuts = np.array([block_start(n, count, i) for i in range(count + 1)], dtype=np.intp)
        mine = int(cuts[place + 1] - cuts[place])
        everyone = np.arange(count, dtype=np.intp)
        rows = np.stack([np.zeros_like(cuts), cuts], axis=1)
        sends = Boxes(everyone, everyone, rows[:-1], np.stack([np.ones_like(cuts), cuts], axis=1)[1:])
        receives, call = along((count, mine), 0, 1, count), f"of all_reduce of {n} items of {itemsize} bytes"
        far = Far(
            lambda peer: ((1, n), rows[place]), lambda peer: ((count, int(cuts[peer + 1] - cuts[peer])), (place, 0))
        )
        self._scatter = exchanged(
            f"scatter {call}", group, place, itemsize, (1, n), sends, (count, mine), receives, far
        )
        whole = Boxes(everyone, everyone, cuts[:-1, None], cuts[1:, None])
        self._gather = gathered(f"gather {call}", group, place, itemsize, (mine,), (n,), whole)

    def run(self, a: Array) -> Array:
        """Return the reduced array. Collective over the group."""
        parts = self._scatter(a)
        reduced = self._reduce(parts if self._counted is None else parts[self._counted])
        return self._gather(reduced).reshape(a.shape)


_OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def reduction(op: str, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return a function that reduces an array over its first axis, in its dtype and in order. Local."""
    ufunc = _OPS.get(op) if isinstance(op, str) else None
    if ufunc is None:
        raise DTypeError(f"op must be one of {', '.join(_OPS)}, not {op!r}")

    def reduce(parts: Array) -> Array:
        # One after the other: ufunc.reduce may sum in pairs, or in another precision. An overflow must not stop one
        # rank between two communications.
        result: Array = parts[0].copy()
        with np.errstate(all="ignore"):
            for part in parts[1:]:
                ufunc(result, part, out=result)
        return result

    try:
        if dtype.kind in "SU":
            raise TypeError("text can be added, but not reduced in place")
        reduce(np.zeros((2, 1), dtype))
    except TypeError:
        raise DTypeError(f"op {op!r} is not defined for dtype {dtype}") from None
    return reduce
