"""Elements that a loop of a script reads, one after the other: the ranks send each other pages of them.

An element of a cut array is on one rank, and all ranks need it: a message for each takes 20 µs or more. So the ranks
exchange pages: elements that follow in memory, or, in a loop over a diagonal or a column, the next elements of it.
All ranks keep a page, and read it until the array is written. A number that is written to one element is also written
to the page, as all ranks know it. After many reads, also of rows, all elements are gathered:
:mod:`meshcomm.numpy.indexing.rows`.
"""
# Why all ranks read the same pages
# =================================
#
# A rank that finds an element in a page sends nothing, so all ranks must find it, or none. All ranks of a script make
# the same calls on the same arrays. The pages depend on the indices of these calls, the shape, and the version of the
# storage, which counts calls. They depend on no element, no block and no memory of one rank. So no rank reads an
# element from its own block that others lack.
#
# When pages are fetched
# ======================
#
# The first element of an array is fetched alone. Then, if three reads in a row miss the pages, at one distance from
# each other that is not short, a run of elements at that distance is fetched; else the line of the element. A page
# that was read is continued: after a run the next run of the same step, also in another column, after a line the next
# lines; each is longer than the one before. If three pages in a row are not read before the next miss, pages are no
# gain: reads are random, or each turn writes the array. Then elements are fetched alone for a while, longer each time.

from functools import partial
from weakref import ref

import numpy as np

from meshcomm.blocks.small import allgather_array, allgather_bytes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Indices
from meshcomm.core.arrays._tensor import let_rows
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.indexing._elements import ElementOwners, PagedElements, all_pages

LINE = 10
"""Bits of the index of an element in its line: lines have 1024 elements. A message of 8 KiB takes hardly longer than
a message of one element."""

MAX_CACHED_LINES = 64
"""Maximum of cached lines of a tensor; then all of them are dropped: 512 KiB of doubles."""

MAX_LINES, FIRST_RUN, LONGEST_RUN = 8, 64, 2**13
"""Maximum lines of a message; elements of the first run, and of the longest one."""

MAX_WASTED_PAGES, SINGLE_READS, MAX_DOUBLINGS = 3, 32, 8
"""Pages in a row that may be fetched in vain; elements that are fetched alone then, twice as many each time; how often
their number doubles. A compromise: a loop that reads at random loses 3 % in the end."""

MAX_GATHERED_BYTES = 2**26
"""Maximum bytes of an array that is gathered to each rank: as many as `numpy.asarray` gathers without an error."""

BYTES_OF_CALL = 2**18
"""Bytes that the ranks of a node exchange in the time of one call with a row, about 100 µs."""

LINE_MASK = (1 << LINE) - 1


class Pages(PagedElements):
    """The pages of one tensor, and statistics of its reads."""

    def __init__(self, tensor: DTensor) -> None:
        self.storage, self.shape, self.scalar = tensor._storage, tensor.shape, tensor.dtype.type
        self.size = tensor.size
        self.lines = {}
        self.last_index, self.difference = -1, 0  # of the last read that no page had: flat index, distance from before
        self.wasted_pages = self.single_reads = self.hits = 0
        self.fetch_size, self.next_line = 1, -1  # lines, or elements of a run; the line after the last page
        self.first = self.step = self.count = 0
        self.run_length = 0  # elements of the run that was requested last; 0 if it was lines
        self.values = np.empty(0, tensor.dtype)
        self.whole = None
        self.rows, self.wait_factor = 0, 1  # calls with rows: before all elements are gathered, then since that
        self.version = self.storage.version
        self.asker = None
        self.tensor_ref = ref(tensor, partial(PAGES.pop, id(tensor)))

    def write_slice(self, index: Value, value: Value) -> None:
        """Write to the pages what a counted call has written to a slice. Without a value, drop all elements."""
        if self.version == self.storage.version - 1:
            self._drop()
            if value is None:
                self.whole = None
            elif self.whole is not None:
                array = self.whole.reshape(self.shape)
                array[index] = value
            self.version += 1

    def count_call(self, tensor: DTensor) -> None:
        """Count a call that has sent something; after many, gather all elements, which is Collective."""
        self.catch_up()
        self.rows += 1
        is_simple = tensor.dtype.kind in "biufc" and tensor.nbytes <= MAX_GATHERED_BYTES
        if self.rows >= self.gather_threshold and self.whole is None and is_simple:
            self.whole, self.rows = allgather_array("numpy.ndarray.__getitem__", tensor).reshape(-1), 0

    @property
    def gather_threshold(self) -> int:
        """Number of calls with rows that take as long as gathering all elements; more if that was in vain before."""
        return self.wait_factor * (1 + self.size * self.values.itemsize // BYTES_OF_CALL)

    def catch_up(self) -> None:
        """Drop elements of an older version of the storage."""
        if self.version != self.storage.version:
            if self.whole is not None:
                self.wait_factor = 1 if self.rows >= self.gather_threshold else 2 * self.wait_factor
            self._drop()
            self.whole, self.rows, self.version = None, 0, self.storage.version

    def elements_to_fetch(self, flat_index: int) -> Indices | None:
        """Return the flat indices of the elements to fetch for one that no page has; None to fetch it alone."""
        self.catch_up()
        if self.single_reads:
            self.single_reads -= 1
            return None
        is_first, difference = self.last_index < 0, flat_index - self.last_index
        is_repeated, self.last_index, self.difference = difference == self.difference, flat_index, difference
        if is_first:
            return None
        self.wasted_pages = 0 if self.hits else self.wasted_pages + 1
        if self.wasted_pages > MAX_WASTED_PAGES:
            self.single_reads = SINGLE_READS << min(self.wasted_pages - MAX_WASTED_PAGES - 1, MAX_DOUBLINGS)
            self._drop()
            return None
        continues_run, begins_run = (
            self.hits > 0 and self.run_length > 0,
            is_repeated and self.hits == 0 and abs(difference) > LINE_MASK >> 4,
        )
        self.hits = 0
        if continues_run or begins_run:
            self.step = self.step if continues_run else difference
            elements_ahead = (self.size - 1 - flat_index if self.step > 0 else flat_index) // abs(self.step) + 1
            self.fetch_size = min(2 * self.fetch_size, LONGEST_RUN) if continues_run else FIRST_RUN
            self.first, self.count, self.run_length = flat_index, 0, min(elements_ahead, self.fetch_size)
            return flat_index + self.step * np.arange(self.run_length)
        line_number, self.run_length = flat_index >> LINE, 0
        self.fetch_size = min(2 * self.fetch_size, MAX_LINES) if line_number == self.next_line else 1
        self.next_line = line_number + self.fetch_size
        return np.arange(line_number << LINE, min(self.next_line << LINE, self.size))

    def keep(self, values: Array, flat_indices: Indices) -> None:
        """Keep the *values* of the elements that were requested."""
        if self.run_length:
            self.values, self.count = values, self.run_length
            return
        if len(self.lines) >= MAX_CACHED_LINES:
            self.lines.clear()
        for start in range(0, len(flat_indices), LINE_MASK + 1):
            self.lines[int(flat_indices[start]) >> LINE] = values[start : start + LINE_MASK + 1]

    def _drop(self) -> None:
        self.lines.clear()
        self.count = 0


PAGES: dict[int, Pages] = all_pages()
"""The pages of living tensors, by the ids of the tensors."""


def pages_of(tensor: DTensor) -> Pages:
    """Return the pages of a tensor; new ones if it has none yet."""
    pages = PAGES.get(id(tensor))
    if pages is None:
        pages = PAGES[id(tensor)] = Pages(tensor)
        let_rows(True)
    return pages


def fetch_elements(tensor: DTensor, flat_indices: Indices, owners: ElementOwners) -> Array:
    """Return the elements of a tensor at *flat_indices*, in C order, on all ranks. Collective."""
    indices, block_numbers, counts = (
        list(np.unravel_index(flat_indices, tensor.shape)),
        [],
        [len(starts) for starts in owners.starts],
    )
    for axis, axis_starts in enumerate(owners.starts):
        starts = np.array(axis_starts)
        axis_block_numbers = np.searchsorted(starts, indices[axis], "right") - 1
        indices[axis] = indices[axis] - starts[axis_block_numbers]
        block_numbers.append(axis_block_numbers)
    flat_block_numbers = np.ravel_multi_index(block_numbers, counts)
    mesh, layout, positions_by_device = tensor.mesh, tensor.layout, dict[int, Indices]()
    for block_number in np.unique(flat_block_numbers).tolist():
        device = owners.device_of[tuple(map(int, np.unravel_index(block_number, counts)))]
        positions_by_device[device] = np.flatnonzero(flat_block_numbers == block_number)
    own_positions = positions_by_device.get(mesh.rank or 0)
    own_bytes = b"" if own_positions is None else tensor._block[tuple(i[own_positions] for i in indices)].tobytes()
    max_bytes = max(map(len, positions_by_device.values())) * tensor.dtype.itemsize
    request_hash = hash((int(flat_indices[0]), int(flat_indices[-1]), len(flat_indices)))
    bytes_of = allgather_bytes(f"t{layout.specs_text}: elements", tensor._spec, request_hash, own_bytes, max_bytes)
    values = np.empty(len(flat_indices), tensor.dtype)
    for device, positions in positions_by_device.items():
        values[positions] = np.frombuffer(bytes_of(device), tensor.dtype, len(positions))
    return values
