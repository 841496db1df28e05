"""Swaps of rows through views, which write one row twice: refused before anything is written.

``x[i], x[j] = x[j], x[i]`` reads the rows j and i, and writes row j to row i. The row i that it read is a view, so it
now has the elements of row j as well, and these are written to row j. NumPy's shuffles do this to what is no array of
NumPy.
"""

import threading
from weakref import ref

import numpy as np

from meshcomm.core.arrays.dtensor import DTensor

SWAP = (
    "t[i], t[j] = t[j], t[i] would write one row twice, as t[i] is a view that changes with the tensor: use "
    "t[[i, j]] = t[[j, i]], or copy() a row. Of a shuffle, use t[order] with the indices shuffled instead: "
    "t[numpy.random.default_rng(seed).permutation(len(t))]"
)


class _Recent(threading.local):
    """The last two rows that this thread read, the later one last: the tensor, the index, the row."""

    rows: "tuple[tuple[ref[DTensor], int, ref[DTensor]] | None, ...]" = (None, None)


_recent = _Recent()


def note(tensor: DTensor, number: int, row: DTensor, writes: bool = False) -> None:
    """Keep in mind that *row* is what `tensor[number]` gave; if it *writes*, that it is written there.

    ``ValueError`` if that is the first half of a swap of rows that were just read.
    """
    if not writes:
        _recent.rows = _recent.rows[1], (ref(tensor), number, ref(row))
        return
    first, second = _recent.rows
    if first is None or second is None or first[2]() is not row or second[2]() is None:
        return
    of_rows = first[0]() is tensor and second[0]() is tensor and first[1] != second[1]
    if of_rows and number == second[1]:
        raise ValueError(SWAP)


def check_no_swap(tensor: DTensor, index: object, value: DTensor) -> None:
    """Raise ``ValueError`` if ``tensor[index] = value`` is the first half of a swap of rows that were just read."""
    if isinstance(index, int | np.integer) and tensor.ndim:
        note(tensor, int(index) % max(len(tensor), 1), value, writes=True)
