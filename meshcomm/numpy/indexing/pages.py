"""Elements that a loop of a script reads, one after the other: the ranks send each other pages of them.

An element of a cut array is on one rank, and all need it: a message for each takes 20 µs and more. So what comes is a
page: elements that follow in memory, or, where a loop goes over a diagonal or a column, those that come next in it.
All ranks keep it, and read it until the array is written. A number that is written to one element is written to the
page, too, as all ranks know it. Where a loop goes on for long, also by rows, all elements come:
:mod:`meshcomm.numpy.indexing.rows`.
"""
# Why all ranks read the same pages
# =================================
#
# A rank that finds an element in a page sends nothing, so all must find it, or none. All ranks of a script make the
# same calls on the same arrays. What is here depends on the indices of these calls, the shape, and the version of the
# storage, which counts calls: on no element, no block and no memory of one rank. So nobody reads from its own block
# what others do not have.
#
# When pages are fetched
# ======================
#
# The first element of an array comes alone. From then on, where three reads in a row that no page has are at one
# distance from each other, and not a short one, a run of elements at that distance comes; else the line where the
# element is. What has been read goes on: after a run comes one of the same step, also in another column, after a line
# the next ones; and both get longer. Pages that nobody reads before the next one has to come, three times in a row,
# are no gain: reads are random, or each turn writes the array. Then elements come alone for a while, longer each time.

from functools import partial
from weakref import ref

import numpy as np

from meshcomm.blocks.small import allgather_array, shares_of_all
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Indices
from meshcomm.core.arrays._tensor import let_rows
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.indexing._elements import ElementOwners, PagedElements, all_pages

LINE = 10
"""Bits of the index of an element in its line: lines have 1024 elements. A message of 8 KiB takes hardly longer than
one of an element."""

LINES_KEPT = 64
"""Lines that are kept for a tensor, before all of them are dropped: 512 KiB of doubles."""

LINES_AT_ONCE, RUN_FROM, RUN_UP_TO = 8, 64, 2**13
"""Lines of a message at most; elements of the first run, and of the longest one."""

WASTED, ALONE, ALONE_DOUBLED = 3, 32, 8
"""How many pages in a row may be fetched in vain. Then so many elements come alone, twice as many each time after it,
up to so many times. A compromise: a loop that reads at random loses 3 % in the end."""

LARGEST = 2**26
"""Bytes of an array of which each rank gets a copy, at most: as many as `numpy.asarray` gathers without a word."""

BYTES_OF_CALL = 2**18
"""Bytes that the ranks of a node send each other in the time of a call with a row, which is some 100 µs."""

MASK = (1 << LINE) - 1


class Pages(PagedElements):
    """The pages of one tensor, and what its reads were like."""

    def __init__(self, tensor: DTensor) -> None:
        self.storage, self.shape, self.scalar = tensor._storage, tensor.shape, tensor.dtype.type
        self.size = tensor.size
        self.lines = {}
        self.last, self.difference = -1, 0  # of the reads that no page had
        self.wasted = self.num_alone = self.hits = 0
        self.longer, self.next_line = 1, -1  # lines, or elements of a run; the line after those
        self.first = self.step = self.count = 0
        self.coming = 0  # elements of the run that was wanted last; 0: lines were
        self.values = np.empty(0, tensor.dtype)
        self.whole = None
        self.rows, self.patience = 0, 1  # calls with rows: until all elements come, then those that read them
        self.version = self.storage.version
        self.asker = None
        self.owner = ref(tensor, partial(PAGES.pop, id(tensor)))

    def write_slice(self, index: Value, value: Value) -> None:
        """Write what a call, which has been counted, writes to a slice. Without a value, all elements are dropped."""
        if self.version == self.storage.version - 1:
            self._drop()
            if value is None:
                self.whole = None
            elif self.whole is not None:
                whole = self.whole.reshape(self.shape)
                whole[index] = value
            self.version += 1

    def count_call(self, tensor: DTensor) -> None:
        """Count a call that has sent something; after many, let all elements come. Collective then."""
        self.catch_up()
        self.rows += 1
        is_simple = tensor.dtype.kind in "biufc" and tensor.nbytes <= LARGEST
        if self.rows >= self.enough and self.whole is None and is_simple:
            self.whole, self.rows = allgather_array("numpy.ndarray.__getitem__", tensor).reshape(-1), 0

    @property
    def enough(self) -> int:
        """How many calls with rows take as long as to send all elements; more of them, after that was in vain."""
        return self.patience * (1 + self.size * self.values.itemsize // BYTES_OF_CALL)

    def catch_up(self) -> None:
        """Drop what is older than the storage."""
        if self.version != self.storage.version:
            if self.whole is not None:
                self.patience = 1 if self.rows >= self.enough else 2 * self.patience
            self._drop()
            self.whole, self.rows, self.version = None, 0, self.storage.version

    def elements_to_fetch(self, flat: int) -> Indices | None:
        """Return which elements are to come for one that no page has, in C order; None for this one alone."""
        self.catch_up()
        if self.num_alone:
            self.num_alone -= 1
            return None
        is_first, difference = self.last < 0, flat - self.last
        again, self.last, self.difference = difference == self.difference, flat, difference
        if is_first:
            return None
        self.wasted = 0 if self.hits else self.wasted + 1
        if self.wasted > WASTED:
            self.num_alone = ALONE << min(self.wasted - WASTED - 1, ALONE_DOUBLED)
            self._drop()
            return None
        goes_on, is_even = self.hits > 0 and self.coming > 0, again and self.hits == 0 and abs(difference) > MASK >> 4
        self.hits = 0
        if goes_on or is_even:
            self.step = self.step if goes_on else difference
            ahead = (self.size - 1 - flat if self.step > 0 else flat) // abs(self.step) + 1
            self.longer = min(2 * self.longer, RUN_UP_TO) if goes_on else RUN_FROM
            self.first, self.count, self.coming = flat, 0, min(ahead, self.longer)
            return flat + self.step * np.arange(self.coming)
        number, self.coming = flat >> LINE, 0
        self.longer = min(2 * self.longer, LINES_AT_ONCE) if number == self.next_line else 1
        self.next_line = number + self.longer
        return np.arange(number << LINE, min(self.next_line << LINE, self.size))

    def keep(self, values: Array, flats: Indices) -> None:
        """Keep the *values* of the elements that were wanted."""
        if self.coming:
            self.values, self.count = values, self.coming
            return
        if len(self.lines) >= LINES_KEPT:
            self.lines.clear()
        for begin in range(0, len(flats), MASK + 1):
            self.lines[int(flats[begin]) >> LINE] = values[begin : begin + MASK + 1]

    def _drop(self) -> None:
        self.lines.clear()
        self.count = 0


PAGES: dict[int, Pages] = all_pages()
"""By the ids of tensors that are there."""


def pages_of(tensor: DTensor) -> Pages:
    """Return the pages of a tensor, from now on."""
    pages = PAGES.get(id(tensor))
    if pages is None:
        pages = PAGES[id(tensor)] = Pages(tensor)
        let_rows(True)
    return pages


def fetch_elements(tensor: DTensor, flats: Indices, owners: ElementOwners) -> Array:
    """Return elements of a tensor on all ranks, of which *flats* are the flat indices in C order. Collective."""
    at, numbers, lengths = list(np.unravel_index(flats, tensor.shape)), [], [len(starts) for starts in owners.starts]
    for axis, first in enumerate(owners.starts):
        starts = np.array(first)
        number = np.searchsorted(starts, at[axis], "right") - 1
        at[axis] = at[axis] - starts[number]
        numbers.append(number)
    which = np.ravel_multi_index(numbers, lengths)
    mesh, layout, shares = tensor.mesh, tensor.layout, dict[int, Indices]()
    for block in np.unique(which).tolist():
        device = owners.owners[tuple(map(int, np.unravel_index(block, lengths)))]
        shares[device] = np.flatnonzero(which == block)
    share_here = shares.get(mesh.rank or 0)
    mine = b"" if share_here is None else tensor._block[tuple(line[share_here] for line in at)].tobytes()
    longest = max(map(len, shares.values())) * tensor.dtype.itemsize
    which_ones = hash((int(flats[0]), int(flats[-1]), len(flats)))
    share_of = shares_of_all(f"t{layout.specs_text}: elements", tensor._spec, which_ones, mine, longest)
    values = np.empty(len(flats), tensor.dtype)
    for device, share in shares.items():
        values[share] = np.frombuffer(share_of(device), tensor.dtype, len(share))
    return values
