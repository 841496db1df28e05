"""The elements of all blocks of a tensor in order, by a sample sort.

    samples of the blocks ──> splitters, the same on all ranks ──> counts ──> one message per pair ──> local sort

Every rank draws samples of its block, in proportion to its length. All ranks sort all samples, and choose every p-th
of them as a splitter: rank k gets the elements between splitters k - 1 and k. Elements are compared by value, then by
rank and index in the block. So equal elements are distributed evenly, and, if the blocks are in the order of the
global array, the sort is stable.

Before the exchange a rank either sorts its block (`_sorted_first`), and merges the runs that it receives by NumPy's
stable sort, which makes use of sorted runs. Or it only partitions its block at the splitters (`_partitioned`), which
is faster where NumPy sorts with vector instructions, but loses the order of equal elements.

The counts depend on the data. Each rank learns how many bytes it will receive, and allocates them. The received blocks
are a few elements longer or shorter than those of the usual cut. So a rank allocates enough for both, and at the end
sends the elements outside of its block of the usual cut to neighbouring ranks. All others stay where they are.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from meshcomm.blocks.make import make, on_blocks
from meshcomm.blocks.rows import RowRanks, ranks_along
from meshcomm.core._types import Array, DType, Indices
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.layouts.specs import Cuts
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.copies import exact_copy
from meshcomm.errors import ShapeError

MAX_SAMPLES, MIN_SAMPLES, ALL_SAMPLES = 4096, 64, 2**17
"""Samples per rank in a sort, on average: ALL_SAMPLES divided by the number of ranks, within the limits. With 4,096,
lengths of blocks differ by 2 %."""

COMPARED_ELEMENTS = 2**15
"""Elements that a sort compares at once, twice: few enough that they stay in the caches."""

_INT64 = np.dtype(np.int64)
_SPARE_DIVISOR = 8
"""Blocks are made even within the sort if that takes at most 1 / this of a block more memory; else by a relayout."""


class Splitters(NamedTuple):
    """The elements at which the global order is cut: their values, and where they come from.

    Parameters
    ----------
    values: ascending array of the splitters
    ranks: position in the group of the rank that holds each splitter
    indices: index of each splitter in the block of that rank
    """

    values: Array
    ranks: Indices
    indices: Indices

    def ties(self, run: slice, rank: int, equal_counts: Indices | int, own_result: Array) -> Indices:
        """Return the number of elements of *rank* that equal a splitter and come before it.

        Parameters
        ----------
        run: slice of the splitters
        rank: position of a rank in the group
        equal_counts: number of elements of the rank that equal each splitter
        own_result: result for splitters that come from this rank itself
        """
        ranks = self.ranks[run]
        return np.where(ranks > rank, equal_counts, np.where(ranks < rank, 0, own_result)).astype(np.intp)


class InOrder(NamedTuple):
    """The elements of a tensor in order: two tensors of one axis in a layout with `Cuts`.

    Parameters
    ----------
    values: sorted elements
    indices: flat index of each element in the global array in C order; None if not asked for
    """

    values: DTensor
    indices: DTensor | None


def in_order(name: str, tensor: DTensor, *, stable: bool, indexed: bool) -> InOrder:
    """Return the elements of *tensor* in order. Collective over the mesh.

    Parameters
    ----------
    name: name of the operation, for messages
    tensor: sharded tensor that is not empty. If *stable* or *indexed*, its blocks must be consecutive, and ordered by
        device, as in results of `in_flat_order`
    stable: whether equal elements stay in their order; they always do with *indexed*
    indexed: whether to return the indices
    """
    mesh, layout = tensor.mesh, tensor.layout
    names = layout.sharding_dims
    options = f"{', stable' * stable}{', with indices' * indexed}"
    call_text = f"{name}{options} of {tensor.shape} {tensor.dtype} in {layout.specs_text}"

    def sort_block(block: Array) -> tuple[Sequence[Array | None], list[int]]:
        def check() -> None:
            expected = layout.block_shape(tensor.shape), tensor.dtype
            if (block.shape, block.dtype) != expected:
                raise ShapeError(f"the block is {block.shape} {block.dtype}, but by its layout {expected}")

        with ranks_along(name, mesh, names, call_text) as ranks:
            ranks.agree_on_result(check)
            return _Sort(ranks, tensor.size).run(block.reshape(-1), _flat_indices(tensor) if indexed else None, stable)

    usual_layout = Layout([names], mesh)
    usual_lengths = np.diff(usual_layout.cut(0, tensor.size).consecutive.all_starts()).tolist()
    blocks, lengths = on_blocks(sort_block, tensor) or ([None, None], usual_lengths)
    result_layout = usual_layout if lengths == usual_lengths else Layout([Cuts(names, sizes=lengths)], mesh)
    values = make(blocks[0], result_layout, (tensor.size,), tensor.dtype)
    return InOrder(values, make(blocks[1], result_layout, (tensor.size,), np.dtype(np.intp)) if indexed else None)


def _flat_indices(tensor: DTensor) -> Indices:
    """Return the indices of this block in the global array in C order."""
    box = tensor.layout.block_box(tensor.shape)
    axis = next(axis for axis in range(tensor.ndim) if tensor.layout.num_shards(axis) > 1)
    row = prod(tensor.shape[axis + 1 :])
    start, stop = box[axis][:2]
    return np.arange(start * row, stop * row, dtype=np.intp)


class _Sort(NamedTuple):
    """One sample sort on this rank.

    Parameters
    ----------
    ranks: ranks that share the elements
    size: number of elements on all of them
    """

    ranks: RowRanks
    size: int

    def run(self, block: Array, indices: Indices | None, stable: bool) -> tuple[list[Array], list[int]]:
        """Return the blocks of this rank, values and indices if given, and the lengths of all blocks. Collective."""
        sorts_first = indices is not None or block.dtype.kind not in "biufmM" or (stable and block.dtype.kind == "f")
        arrays, cuts = self._sorted_first(block, indices) if sorts_first else self._partitioned(block)
        elements = self._exchange(arrays, np.diff(cuts, prepend=0, append=len(block)))
        received_arrays = elements.received_elements()
        if indices is None:
            received_arrays[0].sort(kind="stable" if sorts_first else kind_to_sort(block.dtype))
        else:
            order = np.argsort(received_arrays[0], kind="stable")
            for array in received_arrays:
                array[...] = array[order]
        return elements.even_blocks()

    def _sorted_first(self, block: Array, indices: Indices | None) -> tuple[list[Array], Indices]:
        """Return the arrays to send, sorted, and where the splitters cut them. Collective."""
        if indices is None:
            arrays = [np.sort(block, kind="stable")]
        else:
            order = _stable_order(block)
            arrays = [block[order], indices[order]]
        values = arrays[0]
        splitters = self._splitters(values)
        counts_before = np.searchsorted(values, splitters.values, side="left")
        equal_counts = np.searchsorted(values, splitters.values, side="right") - counts_before
        return arrays, counts_before + splitters.ties(
            slice(None), self.ranks.position, equal_counts, splitters.indices - counts_before
        )

    def _partitioned(self, block: Array) -> tuple[list[Array], Indices]:
        """Return the block to send, partitioned at the splitters, and where they cut it. Collective."""
        splitters, array = self._splitters(block), exact_copy(block)
        tie_fractions = splitters.indices / max(1, len(block))  # fraction of equal elements before each splitter
        cuts = np.empty(len(splitters.values), dtype=np.intp)
        runs = np.flatnonzero(_run_starts(splitters.values)).tolist()

        # Ranges of runs of equal splitters, and ranges of the elements to split there.
        pending_ranges = [(0, len(runs) - 1, 0, len(array))]
        while pending_ranges:
            first_run, last_run, start, stop = pending_ranges.pop()
            if first_run >= last_run:
                continue
            middle = (first_run + last_run) // 2
            run = slice(runs[middle], runs[middle + 1])
            piece, value = array[start:stop], splitters.values[runs[middle]]
            less_count, equal_count = _counts_before(piece, value)
            cut_points = (
                start
                + less_count
                + splitters.ties(run, self.ranks.position, equal_count, tie_fractions[run] * equal_count)
            )
            cuts[run] = cut_points
            for cut, begin in ((cut_points[0], start), (cut_points[-1], cut_points[0])):
                if begin < cut < stop:
                    array[begin:stop].partition(cut - begin)
            pending_ranges += [(first_run, middle, start, cut_points[0]), (middle + 1, last_run, cut_points[-1], stop)]
        return [array], cuts

    def _splitters(self, block: Array) -> Splitters:
        """Return the elements that cut the global order into equal blocks, one fewer than ranks. Collective."""
        from numpy.random import default_rng  # by np.random, two threads at once could end in a RecursionError

        count = self.ranks.size
        per_rank = min(MAX_SAMPLES, max(MIN_SAMPLES, ALL_SAMPLES // count))
        sample_count = min(len(block), -(-per_rank * count * len(block) // self.size))
        # One random index from each of equal intervals, the same in every run of the program.
        draws = np.arange(sample_count) + default_rng([self.ranks.position, len(block)]).random(sample_count)
        indices = np.minimum((draws * (len(block) / max(1, sample_count))).astype(np.intp), len(block) - 1)
        message = np.array([sample_count], _INT64).tobytes() + indices.tobytes() + block[indices].tobytes()
        samples = [_parsed_samples(message_bytes, block) for message_bytes in self.ranks.allgather(message)]
        ranks = np.repeat(np.arange(count), [len(values) for values, _ in samples])
        values, block_indices = (np.concatenate(arrays) for arrays in zip(*samples, strict=True))
        order = np.argsort(values, kind="stable")  # equal values by rank, and by index in the block
        positions = order[np.arange(1, count) * len(order) // count]
        return Splitters(values[positions], ranks[positions], block_indices[positions])

    def _exchange(self, arrays: list[Array], counts: Indices) -> "_ReceivedElements":
        """Return the elements that all ranks send to this one. Collective.

        Parameters
        ----------
        arrays: arrays of one length; the elements for each rank follow those for the rank before it
        counts: number of elements for each rank
        """
        ranks = self.ranks
        receive_counts = ranks.alltoall_counts(counts)
        messages = ranks.communicator.allgather(np.array([receive_counts.sum()], _INT64).tobytes())
        received_starts = np.cumsum([0, *(int(np.frombuffer(message, _INT64)[0]) for message in messages)])
        even_starts = np.array(Cut(self.size, ranks.size).all_starts())
        if np.abs(received_starts - even_starts).max() > self.size // ranks.size // _SPARE_DIVISOR:
            even_starts = received_starts
        starts, stops = np.array([received_starts, even_starts])[:, ranks.position : ranks.position + 2].T
        first_start, length = starts.min(), int(stops.max() - starts.min())
        buffers = ranks.agree_on_result(
            lambda: [new_block((length,), array.dtype) for array in arrays], f"the counts of {ranks.call}"
        )
        elements = _ReceivedElements(ranks, buffers, received_starts - first_start, even_starts - first_start)
        for array, buffer in zip(arrays, elements.received_elements(), strict=True):
            ranks.exchanged(np.ascontiguousarray(array), counts, buffer, receive_counts)
        return elements


class _ReceivedElements(NamedTuple):
    """The received elements, in buffers with free space for elements that neighbours send to make blocks even.

    Parameters
    ----------
    ranks: ranks that exchange elements
    buffers: buffer for each array
    received_starts, even_starts: starts of the elements of each rank, and end of the last ones, as indices of these
        buffers: as received, and in blocks of the usual cut
    """

    ranks: RowRanks
    buffers: list[Array]
    received_starts: Indices
    even_starts: Indices

    def received_elements(self) -> list[Array]:
        """Return the elements that this rank has received."""
        return [buffer[self._own_slice(self.received_starts)] for buffer in self.buffers]

    def even_blocks(self) -> tuple[list[Array], list[int]]:
        """Return the blocks of this rank in the usual cut, and the lengths of all blocks. Collective."""
        blocks = [buffer[self._own_slice(self.even_starts)] for buffer in self.buffers]
        if not np.array_equal(self.received_starts, self.even_starts):
            send_counts, receive_counts = (
                self._overlap_counts(self.received_starts, self.even_starts),
                self._overlap_counts(self.even_starts, self.received_starts),
            )
            for array, block in zip(self.received_elements(), blocks, strict=True):
                self.ranks.exchanged(array, send_counts, block, receive_counts)  # what stays is not copied
        return blocks, np.diff(self.even_starts).tolist()

    def _own_slice(self, starts: Indices) -> slice:
        return slice(*starts[self.ranks.position :][:2])

    def _overlap_counts(self, starts: Indices, other_starts: Indices) -> Indices:
        """Return, for each rank, the number of its elements by *other_starts* in this rank's block by *starts*."""
        block = self._own_slice(starts)
        return np.array(np.diff(np.clip(other_starts, block.start, block.stop)), np.intp)


def kind_to_sort(dtype: DType) -> Literal["stable"] | None:
    """Return the kind of NumPy's sort if the order of equal elements does not matter; None for NumPy's default.

    By default NumPy 2.4.6 sorts float16 wrongly on processors with AVX-512, such as 513 values of -1 and -0.0.
    """
    return "stable" if dtype.char == "e" else None


def _parsed_samples(message: bytes, block: Array) -> tuple[Array, Indices]:
    """Return the samples in a rank's *message*: values, of the dtype of *block*, and indices."""
    count = int(np.frombuffer(message, _INT64, 1)[0])
    offset = _INT64.itemsize * (1 + count)
    return np.frombuffer(message, block.dtype, count, offset), np.frombuffer(message, _INT64, count, _INT64.itemsize)


def _run_starts(values: Array) -> Array:
    """Return a mask of ascending *values* that differ from the one before, True at both ends. NaN equals NaN."""
    is_change = (values[1:] != values[:-1]) & ((values[1:] == values[1:]) | (values[:-1] == values[:-1]))
    first_start = np.ones(min(1, len(values)), dtype=bool)
    return np.concatenate([first_start, is_change, np.ones(1, dtype=bool)])


def _stable_order(values: Array) -> Indices:
    """Return the indices that sort *values*, with equal ones in their order.

    For most dtypes NumPy's default sort is twice as fast. After it, only the indices of equal elements are sorted.
    """
    if values.dtype.kind not in "iufmM" or values.itemsize < 4 or len(values) > 2**31:
        return np.argsort(values, kind="stable")
    order = np.argsort(values)
    is_first = _run_starts(values[order])[:-1]  # the first of elements that are equal
    is_tied = ~is_first
    is_tied[:-1] |= is_tied[1:].copy()
    if is_tied.any():
        run_offsets = np.cumsum(is_first[is_tied]) * len(values)
        order[is_tied] = np.sort(run_offsets + order[is_tied]) - run_offsets
    return order


def _counts_before(array: Array, value: object) -> tuple[int, int]:
    """Return the number of elements before *value* in the order of NumPy's sort, and the number equal to it."""
    less_count = equal_count = 0
    for start in range(0, len(array), COMPARED_ELEMENTS):
        chunk = array[start : start + COMPARED_ELEMENTS]
        if value != value:  # NaN, which is last
            chunk_count = len(chunk) - int(np.count_nonzero(chunk == chunk))
            less_count += len(chunk) - chunk_count
        else:
            chunk_count = int(np.count_nonzero(chunk == value))
            less_count += int(np.count_nonzero(chunk < value))
        equal_count += chunk_count
    return less_count, equal_count


def elements_at(name: str, ordered: DTensor, indices: Indices) -> Array | None:
    """Return elements of a result of `in_order` at *indices*, on all ranks of the mesh. Collective over the mesh."""
    layout = ordered.layout
    call_text = f"{name} of {ordered.dtype} at {indices.tolist()} of {ordered.size}"
    starts = np.array(layout.cut(0, ordered.size).consecutive.all_starts()[:-1])
    owners = np.searchsorted(starts, indices, side="right") - 1

    def gather_elements(block: Array) -> Array:
        with ranks_along(name, ordered.mesh, layout.axes[0], call_text) as ranks:
            own_indices = indices[owners == ranks.position] - starts[ranks.position]
            messages = ranks.allgather(ranks.agree_on_result(lambda: block[own_indices].tobytes()))
        elements = np.empty(len(indices), ordered.dtype)
        for position, message in enumerate(messages):
            elements[owners == position] = np.frombuffer(message, ordered.dtype)
        return elements

    return on_blocks(gather_elements, ordered)
